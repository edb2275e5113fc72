"""Every exporter's contract, and the series that Extra-P reads."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import wattlaw
from made_stores import write_store
from made_tables import frames, run_row, study, window_row
from wattlaw.api.store_reports import EXPORTS
from wattlaw.common import registry
from wattlaw.common.errors import BadInput, Refused
from wattlaw.exporting import GROUP

COUNTS = (1, 2, 4, 8, 16)
EXTRAP = Path(os.environ.get("WATTLAW_EXTRAP_PYTHON") or ".venv-extrap/bin/python")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    store = write_store(tmp_path_factory.mktemp("made"), *study(COUNTS, "counter"), samples=3)
    return wattlaw.open(store.path)


def read(path: Path) -> dict[tuple[str, str], dict[tuple[float, ...], list[float]]]:
    """Return the values of a file in Extra-P's text format, by call path and metric."""
    values: dict[tuple[str, str], dict[tuple[float, ...], list[float]]] = {}
    points: list[tuple[float, ...]] = []
    region = metric = ""
    for line in filter(None, path.read_text().splitlines()):
        word, rest = line.split(" ", 1)
        if word == "POINTS":
            inner = [part.strip(" ()") for part in rest.strip().split(")") if part.strip()]
            points += [tuple(map(float, part.split())) for part in inner]
        elif word == "REGION":
            region = rest
        elif word == "METRIC":
            metric = rest
        elif word == "DATA":
            series = values.setdefault((region, metric), {})
            series[points[len(series)]] = list(map(float, rest.split()))
        else:
            assert word == "PARAMETER"
    return values


@pytest.mark.parametrize("name", registry.names(GROUP))
def test_an_exporter_writes_its_endings_atomically_and_counts_what_it_writes(
    name, results, tmp_path
):
    endings = registry.load(GROUP, name).endings
    assert endings and all(ending.startswith(".") for ending in endings)
    assert name not in EXPORTS
    for ending in endings:
        path = tmp_path / ending / f"new{ending.upper()}"
        written = results.export(name, path)
        assert written.rows > 0
        assert {*path.parent.iterdir()} == {*written.files}
        assert all(file.stat().st_size > 0 for file in written.files)
        before = [file.read_bytes() for file in written.files]
        assert [file.read_bytes() for file in results.export(name, path).files] == before
    with pytest.raises(BadInput, match="allowed: " + endings[0].replace(".", "[.]")):
        results.export(name, tmp_path / "wrong.xyz")
    assert not (tmp_path / "wrong.xyz").exists()


def test_extrap_gets_time_and_energy_of_each_series_with_every_repeat(results, tmp_path):
    written = results.export("extrap", tmp_path / "x.txt")
    series = {key: values for file in written.files for key, values in read(file).items()}
    assert written.rows == sum(len(v) for s in series.values() for v in s.values())
    fits = {tuple(row.group.items())[1] for row in results.fit().rows if row.law}
    assert {path for path, _ in series} >= {
        f"digits-cnn->{rule.replace('_', ' ')} {batch:g}" for rule, batch in fits
    }
    columns = {"time_s per epoch": "time_s", "energy_j per epoch, cpu, counter": "energy_j"}
    assert {metric for _, metric in series} == {*columns}
    runs = results.metrics[results.metrics["global_batch"] == 64]
    for metric, column in columns.items():
        own = series["digits-cnn->global batch 64", metric]
        assert list(own) == [(float(count),) for count in COUNTS]
        for (count,), values in own.items():
            assert sorted(values) == sorted(runs[runs["gpus"] == count][column])


def test_series_of_other_points_and_energies_are_in_files_and_metrics_of_their_own(tmp_path):
    """Extra-P refuses a file in which a call path lacks a point of another one."""
    rows, windows = [], []
    for workload, counts in (("a", (1, 2, 4)), ("b", (2, 4, 8)), ("c", (1, 2, 4))):
        for gpus in counts:
            run_id = f"{workload}{gpus:015}"
            source, launcher = ("simulated",) * 2 if workload == "b" else ("counter", "local")
            # Text that Extra-P or a terminal would interpret.
            hardware = "d -> e\x1b" if workload == "c" else "board"
            rows.append(run_row(run_id, workload=workload, gpus=gpus, local_batch=64 // gpus,
                                launcher=launcher, hardware=hardware))  # fmt: skip
            energy = None if (workload, gpus) == ("a", 2) else 5.0 * gpus
            windows.append(window_row(run_id, 0, duration_s=64.0 / gpus, gpu_energy_j=energy,
                                      energy_source=source if energy else "none",
                                      energy_verdict="ok" if energy else "partial"))  # fmt: skip
    store = write_store(tmp_path / "s", *frames(rows, windows))
    written = wattlaw.open(store.path).export("extrap", tmp_path / "x.txt")
    assert [file.name for file in written.files] == ["x-1.txt", "x-2.txt"]
    series = [read(file) for file in written.files]
    assert [{f"{path.split('->')[0]}: {metric}" for path, metric in file} for file in series] == [
        {"a: time_s per epoch", "c: time_s per epoch", "c: energy_j per epoch, gpu, counter"},
        {"b: time_s per epoch, simulated", "b: energy_j per epoch, gpu, simulated"},
    ]
    for callpath, _ in [key for file in series for key in file]:
        assert callpath.count("->") == 1
        assert callpath.isprintable()
        assert ("d - e" in callpath) == callpath.startswith("c")


def test_without_a_series_nothing_is_written(tmp_path):
    store = write_store(tmp_path / "s", *study((1, 2)))
    with pytest.raises(Refused, match="no scaling series"):
        wattlaw.open(store.path).export("extrap", tmp_path / "x.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.skipif(not EXTRAP.exists(), reason="no Extra-P: make test-extrap")
def test_extrap_reads_what_is_exported(results, tmp_path):
    for batch in (None, "global"):
        path = results.export("extrap", tmp_path / "x.txt", batch=batch).files[0]
        line = [str(EXTRAP), "-W", "ignore", "tests/support/read_extrap.py", str(path)]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
        loaded = json.loads(ran.stdout)
        series = {(one["callpath"], one["metric"]): one for one in loaded["series"]}
        own = read(path)
        assert set(series) == set(own)
        assert loaded["parameters"] == ["gpus", *(["global_batch"] if batch else [])]
        for key, one in series.items():
            expected = [
                [*point, np.mean(values), min(values), max(values)]
                for point, values in own[key].items()
            ]
            assert sorted(one["values"]) == pytest.approx(np.array(sorted(expected)), rel=1e-12)
