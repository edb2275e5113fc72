"""The OpenMetrics file of a campaign, read by Prometheus's own parsers."""

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser as prometheus
from prometheus_client.openmetrics import parser as openmetrics

from conftest import started, wait_for
from made_stores import record, write_store
from made_tables import frames, run_row, window_row
from wattlaw.cli.main import main
from wattlaw.exporting import openmetrics as exporting
from wattlaw.exporting.openmetrics import MetricsFile, _as_text
from wattlaw.store.record import RunRecord

Samples = dict[str, list[tuple[dict[str, str], float]]]


def read(path: Path) -> Samples:
    samples: Samples = {}
    text = path.read_text(encoding="utf-8")
    for family in openmetrics.text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.timestamp is None  # node_exporter refuses timestamps
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    plain = [
        (sample.name, sample.labels, sample.value)
        for family in prometheus.text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert plain == [(name, *pair) for name, pairs in samples.items() for pair in pairs]
    return samples


def by(samples: Samples, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(own[label] for label in labels): value for own, value in samples.get(name, [])}


def test_an_unwritable_or_misnamed_file_is_refused_before_anything_runs(
    write_study, tmp_path, capsys
):
    (tmp_path / "folder.prom").mkdir()
    study = write_study()
    for name in ("metrics.txt", "missing/x.prom", "folder.prom"):
        line = ["run", study, "--store", tmp_path / "s", "--openmetrics", tmp_path / name]
        assert main([*map(str, line)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert name in error
    assert not [*(tmp_path / "s" / "runs").glob("*")]


def test_a_killed_run_leaves_a_complete_file(write_study, tmp_path):
    """Readers see the old file or the new one, whenever they read, and after a kill."""
    path = tmp_path / "x.prom"
    study = write_study(
        sweeps=[{"gpus": [1], "global_batch": [128]}],
        measure={"epochs": 500, "warmup_epochs": 1, "sample_hz": 5},
    )
    with started("run", study, "--store", tmp_path / "s", "--openmetrics", path) as process:
        wait_for(path.exists, "the first file")
        wait_for(lambda: by(read(path), "wattlaw_last_step_time_seconds", "workload"), "steps")
        samples = read(path)
        assert by(samples, "wattlaw_runs", "status")["active",] == 1
        ((labels, start_s),) = samples["wattlaw_active_run_start_time_seconds"]
        assert (labels["workload"], labels["gpus"]) == ("digits-cnn", "1")
        assert 0 < time.time() - start_s < 600
        process.kill()
        process.wait()
    read(path)


RUNS = [
    run_row("done0000", gpus=4, global_batch=64, local_batch=16),
    run_row("doubtful", gpus=1),
    run_row("nometer0", gpus=1),
    run_row("failed00", gpus=2, global_batch=64, local_batch=32, status="failed"),
]
WINDOWS = [
    window_row("done0000", 0, gpu_energy_j=10.0, cpu_energy_j=1.0, energy_source="counter",
               energy_verdict="ok", start_ns=5, step_time_mean_s=0.25, module_energy_j=20.0,
               node_energy_j=30.0, node_energy_source="integral", node_energy_verdict="suspect"),
    window_row("done0000", 0, phase="evaluate", gpu_energy_j=5.0, energy_source="counter",
               energy_verdict="ok", start_ns=9, step_time_mean_s=9.0),
    window_row("doubtful", 0, gpu_energy_j=1e9, energy_source="integral",
               energy_verdict="implausible", start_ns=7, step_time_mean_s=0.5),
    window_row("nometer0", 0, start_ns=1),
]  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "store", *frames(RUNS, WINDOWS))


def records(hours: float) -> Iterator[RunRecord]:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for row in RUNS:
        times = {"started_at": start, "finished_at": start + timedelta(hours=hours)}
        yield record(row).model_copy(update=times)


def test_totals_count_measured_hours_and_plausible_energies(store, tmp_path):
    with MetricsFile(tmp_path / "x.prom", "s", store, 6) as metrics:
        for one in records(hours=0.5):
            metrics.started(one)
            metrics.ended(one, is_new=True)
    assert metrics.warnings == ()
    samples = read(tmp_path / "x.prom")
    assert by(samples, "wattlaw_runs", "status") == {
        ("done",): 3, ("failed",): 1, ("skipped",): 0, ("interrupted",): 0, ("active",): 0,
        ("out of memory",): 0,
        ("planned",): 2,
    }  # fmt: skip
    assert samples["wattlaw_gpu_hours_total"][0][1] == pytest.approx(0.5 * (4 + 1 + 1 + 2))
    energies = by(samples, "wattlaw_energy_joules_total", "device", "source")
    assert energies == {("gpu", "counter"): 15.0, ("cpu", "counter"): 1.0}
    for name, source, joules in (("module", "counter", 20.0), ("node", "integral", 30.0)):
        outer = by(samples, f"wattlaw_{name}_energy_joules_total", "device", "source")
        assert outer == {(name, source): joules}
    (last,) = samples["wattlaw_last_step_time_seconds"]
    assert last[1] == 0.5


def test_a_file_that_cannot_be_written_later_is_a_warning_and_damage_is_left_out(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr(exporting, "_PERIOD_S", 0.01)
    folder = tmp_path / "collector"
    folder.mkdir()
    store.folder("done0000").epochs_path.write_bytes(b"PAR1")
    with MetricsFile(folder / "x.prom", "s", store, 4) as metrics:
        for one in records(hours=1.0):
            metrics.ended(one, is_new=False)
        wait_for(lambda: 'status="done"} 3' in (folder / "x.prom").read_text(), "the counts")
        energies = by(read(folder / "x.prom"), "wattlaw_energy_joules_total", "source")
        assert energies == {}  # that of the damaged run is not known
        folder.rename(tmp_path / "gone")
        wait_for(lambda: metrics.warnings, "the warning")
    (warning,) = metrics.warnings
    assert str(folder) in warning
    assert not any("write_often" in thread.name for thread in threading.enumerate())


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(values=st.lists(TEXT, min_size=1, max_size=3))
def test_any_label_survives_both_parsers(values):
    labels = tuple((f"l{number}", value) for number, value in enumerate(values))
    text = f"# TYPE m gauge\n# HELP m Help.\nm{{{_as_text(labels)}}} 1.5\n# EOF\n"
    for parse in (openmetrics, prometheus):
        (family,) = parse.text_string_to_metric_families(text)
        assert family.samples[0].labels == dict(labels)
        assert family.samples[0].value == 1.5
