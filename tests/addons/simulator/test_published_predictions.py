"""Simulated beside published values, and power limits beside public traces."""

import importlib

import numpy as np
import pytest

from paths import ROOT
from public_data import public_csv
from wattlaw.hardware.library import read_cluster
from wattlaw_simulator.power import Board
from wattlaw_simulator.simulated_job import Parameters


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.mark.parametrize("table", ["exponents", "findings", "energies"])
def test_documented_predictions_match_the_simulator(benchmarks, table):
    benchmark = benchmarks("published")
    document = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    table_text = benchmark.markdown(getattr(benchmark, table)())
    assert len(table_text.splitlines()) > 6
    assert table_text in document, "run make bench-simulator and copy its tables"


def test_the_page_of_claims_has_the_present_exponents(benchmarks):
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    for row in benchmarks("paper_items")._tables("mit-2022"):
        assert f"| {' | '.join(row)} |\n" in text, "run make bench-papers"


@pytest.mark.parametrize("dataset", ["imagenet", "squad", "sentiment140"])
def test_power_limits_act_as_in_public_traces_of_a_v100(benchmarks, dataset):
    """Times and powers; no number was fitted to sentiment140."""
    public_csv("power_caps.csv", "public")
    board = Board(read_cluster("v100-pcie-32gb").gpu, "fp32", Parameters())
    errors = benchmarks("power_traces").errors(board, dataset)
    assert len(errors) >= 2 * 7 * 3
    assert np.sqrt((errors**2).mean()) < (0.04 if dataset == "sentiment140" else 0.03)
