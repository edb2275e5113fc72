"""The tables of docs/simulation-model.md are those that the benchmark makes now."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = ROOT / "benchmarks" / "published.py"
    spec = importlib.util.spec_from_file_location("published_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("table", ["exponents", "explained", "energies"])
def test_the_documented_predictions_are_what_the_simulator_says_today(
    benchmark: ModuleType, table: str
) -> None:
    told = (ROOT / "docs" / "simulation-model.md").read_text(encoding="utf-8")
    made = benchmark.markdown(getattr(benchmark, table)())
    assert len(made.splitlines()) > 6
    assert made in told, "run 'make bench-simulator' and bring its tables into the document"
