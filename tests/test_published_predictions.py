"""The tables of docs/simulation-model.md match the output of the benchmark."""

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


@pytest.mark.parametrize("table", ["exponents", "exponents_with_changes", "energies"])
def test_documented_predictions_match_the_simulator(benchmark: ModuleType, table: str) -> None:
    document = (ROOT / "docs" / "simulation-model.md").read_text(encoding="utf-8")
    table_text = benchmark.markdown(getattr(benchmark, table)())
    assert len(table_text.splitlines()) > 6
    assert table_text in document, "run make bench-simulator and copy its tables"
