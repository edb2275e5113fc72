"""What a time is of: an epoch, a sample, a step or a run; and which runs compare."""

import json

import pandas as pd
import pytest

from asking import advise
from made_tables import Tables, frames, run_row, window_row
from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.findings import analyse
from wattlaw.analysis.laws.series import fit_table, scaling_series
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.analysis.metrics.result import Caution
from wattlaw.analysis.metrics.setting_means import aggregate
from wattlaw.common.errors import Refused
from wattlaw.report.topics import measured
from wattlaw.report.topics import scaling as scaling_topics

ENERGY = {"cpu_energy_j": 50.0, "energy_source": "counter", "energy_verdict": "ok"}
SCRIPT = json.dumps({"command": ["python", "train.py"]})
COUNTED = json.dumps({"command": ["python", "train.py", "--epochs", "{epochs}"]})


def script_run(run_id: str, **changes: object) -> dict[str, object]:
    """Return a run of a command whose batch is not known."""
    unknown = {"global_batch": None, "local_batch": None, "workload": "script"}
    return run_row(run_id, **({"options": SCRIPT, "epochs": 3} | unknown | changes))


def process(run_id: str, duration_s: float, **changes: object) -> dict[str, object]:
    row: dict[str, object] = {"phase": "run", "duration_s": duration_s, "samples": None,
                              "steps": None, **ENERGY}  # fmt: skip
    return window_row(run_id, 0, **(row | changes)) | {"epoch": None}


def steps(run_id: str, duration_s: float, count: int = 100, **changes: object) -> dict[str, object]:
    """Return a window of optimizer steps with 32 samples each."""
    row: dict[str, object] = {"phase": "steps", "duration_s": duration_s, "steps": count,
                              "samples": 32 * count, **ENERGY}  # fmt: skip
    return window_row(run_id, 0, **(row | changes)) | {"epoch": None}


def processes(counts: tuple[int, ...] = (1, 2, 4), **changes: object) -> Tables:
    runs = [
        script_run(f"{gpus}-{repeat}", gpus=gpus, repeat=repeat, **changes)
        for gpus in counts
        for repeat in range(2)
    ]
    windows = [
        process(str(run["run_id"]), 60.0 / (i // 2 + 1) + 0.1 * (i % 2))
        for i, run in enumerate(runs)
    ]
    return frames(runs, windows)


def advice_of(tables: Tables, **constraints: object) -> Advice:
    return advise(run_metrics(*tables), tables[1], "script", **constraints)  # type: ignore[arg-type]


def codes(warnings: tuple[Caution, ...]) -> set[str]:
    return {warning.code for warning in warnings}


def test_a_process_is_a_run_and_no_epoch():
    table = run_metrics(*processes())
    assert set(table["unit"]) == {"run"}
    assert set(table["basis"]) == {"run"}
    assert table.loc[0, ["time_s", "energy_j"]].tolist() == [60.0, 50.0]
    unknown = ["epoch_time_s", "energy_per_epoch_j", "step_time_s", "time_per_sample_s",
               "epochs_trained"]  # fmt: skip
    assert table[unknown].isna().all(axis=None)
    escaped = json.dumps({"command": ["python", "train.py", "{{epochs}}"]})
    assert set(run_metrics(*processes((1,), options=escaped))["unit"]) == {"run"}


def test_advice_on_processes_is_of_one_run_and_says_that_start_up_is_in_it():
    found = advice_of(processes())
    plain = found.to_dict()
    best = plain["recommended"]
    assert {"per-run", "startup-included"} <= codes(found.warnings)
    assert {"code", "text"} == set(plain["warnings"][0])
    assert (plain["unit"], best["unit"], best["epochs"], best["epoch_time_s"]) == (
        "run", "run", None, None,
    )  # fmt: skip
    assert best["train_time_s"] == best["time_s"] == pytest.approx(20.05)
    for wanted in ({"epochs": 90}, {"target": 0.9}):
        with pytest.raises(Refused, match=r"a run, not an epoch: .*\{epochs\}"):
            advice_of(processes(), **wanted)


def test_a_process_that_takes_epochs_is_divided_by_them():
    table = run_metrics(*processes(options=COUNTED))
    assert set(table["unit"]) == {"epoch"}
    assert table.loc[0, ["time_s", "epoch_time_s", "energy_per_epoch_j"]].tolist() == pytest.approx(
        [20.0, 20.0, 50 / 3]
    )
    assert set(table["epochs_trained"]) == {3}
    found = advice_of(processes(options=COUNTED), epochs=90)
    assert "startup-included" in codes(found.warnings)
    assert not {"per-run", "units-differ"} & codes(found.warnings)
    assert found.to_dict()["recommended"]["train_time_s"] == pytest.approx(90 * 20.05 / 3)


@pytest.mark.parametrize(
    ("options", "name", "word"),
    [(COUNTED, "epochs", "epochs"), (SCRIPT, "measure_steps", "steps"),
     (SCRIPT, "measure_seconds", "s")],
)  # fmt: skip
def test_processes_of_other_lengths_are_no_repeats(options, name, word):
    runs = [
        script_run(f"{n}", options=options, repeat=n, **({"epochs": None} | {name: n}))
        for n in (2, 4)
    ]
    tables = frames(runs, [process("2", 20.0), process("4", 30.0)])
    settings = aggregate(run_metrics(*tables))
    assert settings["n"].tolist() == [1, 1]
    assert set(settings["run_length"]) == {f"2 {word}", f"4 {word}"}
    found = advice_of(tables)
    assert "variants-excluded" in codes(found.warnings)
    assert found.recommended is not None
    assert found.recommended.repeats == 1


def test_steps_are_known_per_step_and_sample_and_warm_up_does_not_count():
    windows = [steps("a", 99.0, 20, warmup=True), steps("a", 6.0, 60), steps("a", 4.0, 40)]
    row = run_metrics(*frames([script_run("a", epochs=None)], windows)).iloc[0]
    assert (row["unit"], row["basis"], row["run_length"]) == ("sample", "steps", None)
    assert row["step_time_s"] == pytest.approx(0.1)
    assert row["time_per_sample_s"] == row["time_s"] == pytest.approx(0.1 / 32)
    assert row["energy_per_step_j"] == pytest.approx(1.0)
    assert row["energy_per_sample_j"] == row["energy_j"] == pytest.approx(1 / 32)
    assert row["samples_per_s"] == pytest.approx(320)
    assert row["train_energy_j"] == pytest.approx(100.0)
    assert pd.isna(row["epoch_time_s"])


def test_runs_compare_in_the_unit_that_all_have():
    runs = [run_row("a"), run_row("b", gpus=2, local_batch=32)]
    table = run_metrics(*frames(runs, [window_row("a", 1, samples=3200), steps("b", 1.0)]))
    assert set(table["unit"]) == {"sample"}
    assert table["time_s"].tolist() == pytest.approx([1 / 3200, 1 / 3200])
    assert table["epoch_time_s"].notna().tolist() == [True, False]


def test_runs_without_a_common_unit_are_not_pooled_and_named():
    runs = [script_run(f"{gpus}", gpus=gpus, epochs=None, dataset_samples=3200) for gpus in (1, 2)]
    runs.append(script_run("whole", gpus=4))
    tables = frames(runs, [steps("1", 10.0), steps("2", 6.0), process("whole", 9.0)])
    table = run_metrics(*tables)
    units = table.set_index("run_id")["unit"].to_dict()
    assert units == {"1": "epoch", "2": "epoch", "whole": "run"}
    assert set(scaling_series(table)["run_id"]) == {"1", "2"}
    found = advice_of(tables)
    (warning,) = [warning for warning in found.warnings if warning.code == "units-differ"]
    assert "whole" in warning.text
    assert "units-differ" in codes(analyse(*tables).cautions)
    assert {option.gpus for option in found.pareto if not option.is_predicted} <= {1, 2}


@pytest.mark.parametrize("samples", [None, 3200])
def test_a_deadline_needs_the_length_of_a_training(samples):
    runs = [script_run(f"{gpus}", gpus=gpus, epochs=None) for gpus in (1, 2)]
    tables = frames(runs, [steps("1", 10.0, samples=samples), steps("2", 6.0, samples=samples)])
    unit = "step" if samples is None else "sample"
    best = advice_of(tables).to_dict()["recommended"]
    assert best["unit"] == unit
    assert (best["train_time_s"], best["gpu_hours"], best["epochs"]) == (None, None, None)
    assert best["step_time_s"] == pytest.approx(0.06)
    with pytest.raises(Refused, match="total_samples"):
        advice_of(tables, deadline_s=3600.0)
    with pytest.raises(Refused, match="total_samples"):
        advice_of(tables, epochs=90)


def test_copies_that_do_not_cooperate_have_no_speedup_and_are_warned_about():
    tables = processes(workers_cooperate=False, world_size=1)
    findings = analyse(*tables)
    assert findings.speedups.empty
    assert not findings.fits.laws
    assert "workers-do-not-cooperate" in codes(findings.cautions)
    assert scaling_topics.speedups(findings) is None
    found = advice_of(tables)
    (warning,) = [w for w in found.warnings if w.code == "workers-do-not-cooperate"]
    assert "DistributedDataParallel" in warning.text
    assert "gpus: [1]" in warning.text
    assert {option.gpus for option in found.pareto} == {1}
    with pytest.raises(Refused, match="DistributedDataParallel"):
        advice_of(processes((2, 4), workers_cooperate=False))


@pytest.mark.parametrize("kind", ["deepspeed", "tensor"])
def test_laws_refuse_other_parallelism_by_name(kind):
    tables = processes(parallelism=kind)
    fits = fit_table(run_metrics(*tables))
    assert not fits.laws
    assert [kind in reason for _, reason in fits.refusals] == [True]
    found = advice_of(tables, max_gpus=64)
    assert all(not option.is_predicted for option in found.pareto)
    (warning,) = [w for w in found.warnings if w.code == "not-data-parallel"]
    assert kind in warning.text


def test_emulated_runs_are_in_no_law_and_labelled():
    runs = [run_row(f"{gpus}", gpus=gpus, local_batch=64 // gpus) for gpus in (1, 2)]
    emulated = {"emulated_gpus": 64, "local_batch": 1, "global_batch": 4, "gpus": 4}
    tables = frames(
        [*runs, run_row("e", **emulated)], [window_row(name, 1) for name in ("1", "2", "e")]
    )
    findings = analyse(*tables)
    assert set(findings.series["run_id"]) == {"1", "2"}
    assert "emulated_gpus" in findings.varying_settings
    table = measured.settings(findings)
    assert table is not None
    assert "emulated gpus" in table.headings
    found = advise(findings.runs, tables[1], "digits-cnn")
    assert "emulated-excluded" in codes(found.warnings)
    assert {option.gpus for option in found.pareto if not option.is_predicted} <= {1, 2}


def test_a_count_on_several_numbers_of_nodes_is_several_settings():
    layout = {"a": (2, 1), "b": (4, 1), "c": (2, 2), "d": (4, 2), "e": (8, 2)}
    runs = [
        run_row(name, gpus=gpus, nodes=nodes, local_batch=64 // gpus)
        for name, (gpus, nodes) in layout.items()
    ]
    findings = analyse(*frames(runs, [window_row(name, 1) for name in layout]))
    assert len(findings.settings) == 5
    assert "nodes" in findings.varying_settings
    of_global = findings.series[findings.series["rule"] == "global_batch"]
    members = of_global.groupby("placement")["run_id"].agg(set).to_dict()
    assert members == {"1 node": {"a", "b"}, "2 nodes": {"c", "d", "e"},
                       "fewest nodes": {"a", "b", "e"}}  # fmt: skip
    assert of_global["series"].nunique() == 3
