"""``wattlaw predict`` and ``Results.predict``: settings, units, what is not known, wrong values."""

import json
from pathlib import Path

import pandas as pd
import pytest

import wattlaw
from made_stores import write_store
from made_studies import MIT, mit
from made_tables import study
from wattlaw.cli.commands.predict import predict as predict_command
from wattlaw.common.errors import BadInput, Refused
from wattlaw.report.topics.prediction import table
from wattlaw.store.record import DeviceReport, SamplerReport

TIMES = ("step_time_s", "time_per_sample_s", "epoch_time_s", "train_time_s")


def step_time_s(gpus: int, local_batch: int, nodes: int) -> float:
    """Return a step: compute, and communication that is ten times slower between nodes."""
    inside, between = (min(gpus, 4) - 1) / 4, (nodes - 1) / nodes
    return 0.01 + 0.005 * local_batch + 0.01 * inside + 0.1 * between


def import_table(folder: Path, gpus: tuple[int, ...], columns: tuple[str, ...]) -> Path:
    """Return a store with a row for each GPU count at local batch 16, 4 GPUs per node."""
    rows = []
    for count in gpus:
        nodes = -(-count // 4)
        row = {"gpus": count, "nodes": nodes, "local_batch": 16, "samples": 50_000}
        row["epoch_time_s"] = step_time_s(count, 16, nodes) * 50_000 / (16 * count)
        row["power_w"] = 200.0 * count
        rows.append({name: row[name] for name in ("gpus", "epoch_time_s", *columns)})
    table, store = folder / "table.csv", folder / "store"
    pd.DataFrame(rows).to_csv(table, index=False)
    mapping = ",".join(f"{name}={name}" for name in rows[0])
    wattlaw.import_files(table, store, map=mapping, hardware="T4", workload="net")
    return store


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    columns = ("nodes", "local_batch", "samples", "power_w")
    return import_table(tmp_path_factory.mktemp("placed"), (1, 2, 4, 8), columns)


def test_the_json_has_each_quantity_with_its_interval_and_python_the_same_rows(placed, capsys):
    asked = {"baseline": "gpus=4,local_batch=16", "seed": 3}
    code = predict_command([placed], gpus="16,32", epochs=10, as_json=True, **asked)
    rows = json.loads(capsys.readouterr().out)
    predictions = wattlaw.open(placed).predict(gpus=[16, 32], epochs=10, **asked)
    assert predictions.to_dict()["rows"] == rows
    assert "predicted" in str(predictions).lower()
    assert "<table" in predictions._repr_html_()
    assert code == 0
    sizes = [(row["gpus"], row["nodes"], row["global_batch"]) for row in rows]
    assert sizes == [(16, 4, 256), (32, 8, 512)]
    for row in rows:
        assert (row["source"], row["ci_level"], row["hardware"]) == ("predicted", 0.9, "T4")
        for name in (*TIMES, "power_per_gpu_w", "energy_per_sample_j"):
            low, high = row[f"{name}_ci"]
            assert low < row[name] < high
        assert row["time_per_sample_s"] == pytest.approx(row["step_time_s"] / row["global_batch"])
        assert row["epoch_time_s"] == pytest.approx(50_000 * row["time_per_sample_s"])
        assert row["train_time_s"] == pytest.approx(10 * row["epoch_time_s"])
        assert 0 <= row["p_faster"] <= 1
        assert row["rests_on"]["gpus"] == [1, 2, 4, 8]
        assert "gpus" in row["extrapolates"]


def test_a_script_on_one_worker_is_predicted_there_with_what_is_recommended(tmp_path):
    runs, epochs = study((1,), source="none")
    runs = runs.assign(parallelism="none", hardware="cpu")
    opened = wattlaw.open(write_store(tmp_path / "store", runs, epochs).path)
    rows = opened.predict().rows
    assert {(row.setting.gpus, row.setting.nodes) for row in rows} == {(1, 1)}
    batches = {row.setting.global_batch for row in rows}
    assert {32, 64, 128, opened.advise().recommended.global_batch} == batches
    shown = table(opened.predict())
    assert "workers" in shown.headings and not {"GPUs", "W per GPU"} & {*shown.headings}
    assert "one-worker" not in {each.code for each in opened.predict().warnings}
    two = opened.predict(gpus=[2])
    assert [row.setting.gpus for row in two.rows] == [2]
    assert two.warnings[0].code == "one-worker"  # the first that is said
    # With several counts, the usual batch has rows, and the recommended setting one of its own.
    several = wattlaw.open(write_store(tmp_path / "several", *study((1, 2))).path)
    best = several.advise(minimize="time", any_batch=True).recommended
    assert {row.setting.gpus for row in several.predict().rows} == {1, 2, 4, 8}
    assert "one-worker" not in {each.code for each in several.predict(gpus=[2]).warnings}
    assert best.global_batch == 128


def test_what_a_table_does_not_say_is_missing(tmp_path):
    row = wattlaw.open(import_table(tmp_path, (1, 2, 4), ())).predict(gpus=[16]).rows[0].to_dict()
    unknown = ("nodes", "local_batch", "step_time_s", "time_per_sample_s", "energy_per_sample_j",
               "power_per_gpu_w", "train_time_s")  # fmt: skip
    assert {name: row[name] for name in unknown} == dict.fromkeys(unknown)
    low, high = row["epoch_time_s_ci"]
    assert low < row["epoch_time_s"] < high
    assert sum(row["components"].values()) == pytest.approx(row["epoch_time_s"], rel=0.3)
    assert {"placement-unknown", "batch-unknown"} <= {each["code"] for each in row["warnings"]}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gpus": [0]}, "gpus"),
        ({"gpus": [3], "global_batch": [64]}, "global_batch: given 64 for 3 GPUs"),
        ({"local_batch": [8], "global_batch": [64]}, "one of them"),
        ({"gpus": [2], "nodes": [4]}, "nodes: given 4 for 2 GPUs"),
        ({"gpus": [16], "nodes": [2], "gpus_per_node": 4}, "at least 4"),
        ({"power_limit_w": [-5.0]}, "power_limit_w"),
        ({"baseline": "gpus=4,colour=3"}, "baseline"),
        ({"baseline": "local_batch=4"}, "gpus is missing"),
    ],
)
def test_values_out_of_range_are_named(placed, values, words):
    with pytest.raises(BadInput, match=words):
        wattlaw.open(placed).predict(**values)


def codes(prediction):
    return {warning.code for warning in prediction.warnings}


def test_far_from_the_runs_is_a_warning_and_very_far_is_refused(placed):
    near, far, farthest = wattlaw.open(placed).predict(gpus=[16, 17, 512]).rows
    assert ["far" in codes(row) for row in (near, far, farthest)] == [False, True, True]
    for values in ({"gpus": [513]}, {"gpus": [8], "baseline": "gpus=513"}):
        with pytest.raises(Refused, match="513 GPUs; allowed: at most 512"):
            wattlaw.open(placed).predict(**values)
        assert wattlaw.open(placed).predict(**values, far=True).rows


def capped_store(folder: Path, board: str, **facts: float) -> Path:
    """Return a store of runs with and without a cap; the runs have recorded facts of a board."""
    made = mit(models={"dimenet": MIT["dimenet"]}, counts=(2, 4, 8), repeats=2, noise=0.005)
    store = write_store(folder / "store", made.runs.assign(hardware=board), made.epochs)
    gpu = DeviceReport(id="g", kind="gpu", name=board, facts=facts)
    sampler = SamplerReport(host="a", samples=1, duration_s=1, cpu_s=0, start_cpu_s=0,
                            devices=(gpu,))  # fmt: skip
    for record in store.records():
        known = record.facts.model_copy(update={"hardware": board})
        changed = record.model_copy(update={"samplers": (sampler,), "facts": known})
        store.folder(record.run_id).write(changed, durable=False)
    return store.path


@pytest.mark.parametrize(
    ("board", "facts", "low", "high"),
    [
        ("X1", {"min_power_limit_w": 80.0, "max_power_limit_w": 320.0}, 80, 320),  # recorded
        ("dgx-a100-80 (simulated, uncalibrated)", {}, 100, 400),  # in the library
        ("NVIDIA A100-SXM4-80GB", {"max_power_limit_w": 350.0}, 100, 350),  # both
    ],
)
def test_a_limit_that_the_board_does_not_accept_is_refused(tmp_path, board, facts, low, high):
    results = wattlaw.open(capped_store(tmp_path, board, **facts))
    rows = results.predict(gpus=[4], power_limit_w=[low, high]).rows
    assert "limit-far" not in codes(rows[1])
    for watts in (low - 0.5, high + 0.5):
        with pytest.raises(BadInput, match=f"power_limit_w: given {watts:g}; allowed: .* {high} W"):
            results.predict(gpus=[4], power_limit_w=[watts], far=True)


def test_without_a_known_range_limits_far_from_those_of_the_runs_have_a_warning(tmp_path):
    results = wattlaw.open(capped_store(tmp_path, "X1"))
    capped = sorted(results.metrics["power_limit_w"].dropna().unique())
    limits = [capped[0] / 1.2, capped[0] / 1.3, capped[-1] * 1.2, capped[-1] * 1.3, None]
    rows = results.predict(gpus=[4], power_limit_w=limits).rows
    assert ["limit-far" in codes(row) for row in rows] == [False, True, False, True, False]
    with pytest.raises(BadInput, match="clock_limit_mhz"):
        results.predict(gpus=[4], clock_limit_mhz=[9000], hardware="a100-sxm-40gb")
