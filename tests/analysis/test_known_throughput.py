"""A job among known measurements: which rows compare, how far from the best, and why."""

import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import wattlaw
from made_stores import write_store
from made_tables import Tables, frames, run_row, window_row
from public_data import present
from wattlaw.analysis.advise.known_throughput import (
    BEYOND,
    NORMAL,
    OBSERVED,
    SETTING,
    UNKNOWN,
    Placement,
    board_of,
    place,
)
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.api.known_measurements import read_known
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput, Refused
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting

NETWORK = Network(
    layers=28, hidden=3072, heads=32, ffn=8192, vocabulary=131072, sequence=4096, tied=True
)
HARDWARE = "NVIDIA H100 80GB HBM3"
#: tokens per second of a GPU by tensor parallel size and micro-batch: a rule without noise.
RATES = {
    (tp, micro): 16000 / (1 + 0.1 * np.log2(tp)) / (1 + 1.5 / micro)
    for tp in (1, 2, 4, 8)
    for micro in (1, 2, 4, 8)
}


def known(**changes: object) -> pd.DataFrame:
    """Return a table of a 3.57B model on 8 H100 at a global batch of 256, without recomputation."""
    rows = [("site", tp, micro, 256 * tp / 8 / micro, rate) for (tp, micro), rate in RATES.items()]
    columns = ["source", "tp", "micro_batch", "grad_acc", "tokens_per_s_per_gpu"]
    table = pd.DataFrame(rows, columns=columns)
    job = {"model": "3B", "params_b": NETWORK.parameters / 1e9, "seq_len": 4096}
    job |= {"hardware": "h100_80gb", "gpus": 8, "gpus_per_node": 8, "global_batch": 256}
    job |= {"pp": 1, "cp": 1, "ep": 1, "precision": "bf16", "status": "ok"}
    return table.assign(**(job | changes))


def read(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        table.to_csv(Path(folder) / "known.csv", index=False)
        return read_known(Path(folder) / "known.csv")


def tables(rate: float, tp: int = 1, micro: int = 4, /, **changes: object) -> Tables:
    """Return the tables of a store with one job that trains so many tokens per second and GPU."""
    gpus = int(str(changes.get("gpus", 8)))
    setting = Setting(gpus, tp=tp, sharding="zero1", local_batch=256 / gpus, precision="bf16")
    layout = setting.in_micro_batches(micro).layout
    run = {"workload": "gpt", "gpus": gpus, "global_batch": 256, "local_batch": 256 // gpus}
    run |= {"precision": "bf16", "hardware": HARDWARE, "layout": json.dumps(layout)}
    run |= {"network": NETWORK.model_dump_json(exclude_defaults=True)}
    step_s = 256 * 4096 / (rate * gpus)
    window = window_row("r" * 16, 1, duration_s=10 * step_s, samples=2560, steps=10)
    return frames([run_row("r" * 16, **(run | changes))], [window])


def placed(
    rate: float, table: pd.DataFrame, tp: int = 1, micro: int = 4, /, **changes: object
) -> Placement:
    runs, windows = tables(rate, tp, micro, **changes)
    (placement,) = place(run_metrics(runs, windows), runs[[*OBSERVED]], read(table)[0])
    return placement


def test_a_job_has_its_rate_its_distance_from_the_best_and_its_percentile():
    item = placed(8000.0, known())
    best = max(RATES.values())
    assert item.tokens_per_s_per_gpu == pytest.approx(8000)
    assert item.tflops_per_gpu == pytest.approx(8000 * NETWORK.flops_per_token / 1e12)
    assert item.mfu == pytest.approx(item.tflops_per_gpu / 1070)  # of the library's H100
    assert item.best is not None
    assert (item.best.tokens_per_s_per_gpu, item.at_gpus) == (pytest.approx(best), 16)
    assert item.below_best == pytest.approx(1 - 8000 / best)
    slower = sum(rate < 8000 for rate in RATES.values())
    assert item.percentile == slower / 16
    low, high = item.percentile_ci or (1.0, 0.0)
    assert 0 < low < slower / 16 < high < 1


def test_a_model_of_other_size_compares_by_its_operations():
    other = known(params_b=2 * NETWORK.parameters / 1e9 * 0.9)
    item = placed(8000.0, other)
    assert item.best is not None
    assert item.best.tflops_per_gpu == pytest.approx(
        1.8 * max(RATES.values()) * NETWORK.flops_per_token / 1e12
    )


@pytest.mark.parametrize("tied", [True, False])
def test_a_count_with_or_without_the_outputs_matrix_is_of_the_same_network(tied):
    network = NETWORK.model_copy(update={"tied": tied}).model_dump_json(exclude_defaults=True)
    item = placed(max(RATES.values()), known(), network=network)
    assert item.tied_otherwise == (0 if tied else 16)
    assert item.below_best == pytest.approx(0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hardware": "A100-80GB SXM"}, "of another board"),
        ({"params_b": 8.0}, "of models beyond a factor of 2"),
        ({"params_b": None}, "without a model size"),
        ({"seq_len": 32768}, "of sequences beyond a factor of 4"),
        ({"precision": "fp8"}, "of another precision"),
        ({"tokens_per_s_per_gpu": 90000.0}, "above the board's peak"),
        ({"ep": 8, "gpus": 64, "global_batch": 2048}, "with experts"),
        ({"model": "3B LoRA"}, "that train adapters only"),
    ],
)
def test_rows_that_do_not_compare_are_counted_by_reason(changes, reason):
    item = placed(8000.0, pd.concat([known(), known(**changes)], ignore_index=True))
    assert (item.comparable, item.left_out) == (16, {reason: 16})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "oom"}, "out of memory or crashed"),
        ({"tokens_per_s_per_gpu": np.nan}, "not read (the throughput is missing)"),
        ({"precision": "NVFP4"}, 'not read (precision is "NVFP4")'),
        ({"source": "mean"}, "not read (a row of totals or means)"),
    ],
)
def test_rows_that_are_no_measurements_are_counted_by_reason(changes, reason):
    rows, left_out = read(pd.concat([known(), known(**changes)], ignore_index=True))
    assert (len(rows), left_out) == (16, {reason: 16})
    with pytest.raises(BadInput, match=re.escape(reason)):
        read(known(**changes))


def test_a_throughput_that_is_not_stated_follows_from_the_time_of_a_step():
    row = known().iloc[[0]]
    step_s = 256 * 4096 / (row["tokens_per_s_per_gpu"] * 8)
    item = placed(8000.0, row.assign(step_time_s=step_s, tokens_per_s_per_gpu=np.nan))
    assert item.best is not None
    assert item.best.tokens_per_s_per_gpu == pytest.approx(RATES[1, 1])


def test_other_gpu_counts_are_named_and_few_measurements_say_nothing():
    assert placed(8000.0, known(), gpus=16).gpus_compared == (8,)
    far = placed(8000.0, known(), gpus=64)
    assert (far.best, far.below_best, far.explanation) == (None, None, UNKNOWN)
    few = placed(8000.0, known().iloc[:5])
    assert (few.at_gpus, few.percentile, few.causes) == (5, None, ())


@pytest.mark.parametrize(("tp", "micro", "named"), [(1, 1, "micro_batch"), (8, 8, "tp")])
def test_the_setting_that_costs_most_is_named(tp, micro, named):
    table = known()
    is_own = (table["tp"] == tp) & (table["micro_batch"] == micro)
    rate = RATES[tp, micro] if named == "micro_batch" else 0.9 * RATES[tp, micro]
    item = placed(rate, table[~is_own], tp, micro)
    first = item.causes[0]
    assert (item.explanation, first.setting) == (SETTING, named)
    assert first.gain_ci[0] < first.gain < first.gain_ci[1]
    assert first.probability > 0.6


def test_full_recomputation_is_named_where_the_table_has_none():
    layout = json.dumps({"checkpointing": "full", "gradient_accumulation": 4})
    item = placed(0.74 * RATES[1, 8], known(), 1, 8, layout=layout)
    assert item.causes[0].setting == "checkpointing"
    assert item.causes[0].gain == pytest.approx(1 / 3, abs=0.1)


def test_a_job_far_below_its_layout_is_slow_for_another_reason_and_the_best_is_normal():
    assert placed(0.3 * RATES[1, 8], known(), 1, 8).explanation == BEYOND
    assert placed(RATES[1, 8], known(), 1, 8).explanation == NORMAL


def test_a_layout_that_was_seen_counts_as_one_that_was_asked_for():
    seen = {"layout": None, "tp": 8, "pp": 1, "cp": 1, "gradient_accumulation": 32}
    setting = placed(8000.0, known(), parallelism="tensor", **seen).setting
    assert (setting.tp, setting.micro_batch) == (8, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": None}, "model"),
        ({"layout": None, "parallelism": "tensor"}, "tp, pp"),
        ({"network": NETWORK.model_copy(update={"experts": 8}).model_dump_json()}, "experts"),
    ],
)
def test_runs_that_do_not_say_enough_are_refused_with_what_to_add(changes, message):
    with pytest.raises(Refused, match=message):
        placed(8000.0, known(), **changes)


def test_boards_are_recognised_by_the_names_of_drivers_vendors_and_tables():
    names = {
        "H100": (HARDWARE, "DGX-H100", "h100_80gb", "H100-96GB HBM2e (500 W limit)"),
        "A100": ("NVIDIA A100-SXM4-40GB", "A100"),
        "T4": ("Tesla T4",),
        "RTX 4090": ("NVIDIA GeForce RTX 4090",),
        "GB300": ("DGX-GB300",),
    }
    for board, texts in names.items():
        assert {board_of(text) for text in texts} == {board}


def test_a_row_has_a_setting_if_it_states_its_layout_and_micro_batches():
    layout = {"gpus": 16, "grad_acc": 16, "zero_or_fsdp": "FULL_SHARD", "act_ckpt": "selective"}
    rows, _ = read(known(**layout, tp=1, micro_batch=1))
    shared = {"gradient_accumulation": 16, "sharding": "fsdp", "checkpointing": "selective"}
    expected = Setting(16, gpus_per_node=(8, 8), local_batch=16, precision="bf16", **shared)
    assert set(rows["setting"]) == {expected}
    for missing in (["tp"], ["pp"], ["micro_batch", "grad_acc"]):
        rows, left_out = read(known().query("tp == 1").drop(columns=missing))
        assert rows["setting"].isna().all()
        assert not left_out
    with pytest.raises(BadInput, match="tp x pp x cp is 3"):
        read(known(tp=3))


def test_the_command_and_python_read_the_same_table(tmp_path: Path, capsys):
    store, file = tmp_path / "store", tmp_path / "known.csv"
    write_store(store, *tables(RATES[8, 1], 8, 1))
    known().to_csv(file, index=False)
    expected = wattlaw.open(store).compare(reference=file)
    assert main(["compare", str(store), "--reference", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected.to_dict()
    assert main(["compare", str(store), "--reference", str(file)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "below the best known of 16 measurements on H100" in out[0]
    assert max(map(len, out)) <= 80


def test_a_table_of_other_columns_and_units_is_read_with_its_map(tmp_path: Path, capsys):
    store, file = tmp_path / "store", tmp_path / "other.csv"
    write_store(store, *tables(RATES[8, 1], 8, 1))
    rows = known()
    sizes = {"layers": 28, "hidden": 3072, "heads": 32, "ffn": 8192, "vocabulary": 131072}
    other = pd.DataFrame({"board": HARDWARE, "n": 8, "tensor": rows["tp"]})
    other["step [ms]"] = 1000 * 256 * 4096 / (rows["tokens_per_s_per_gpu"] * 8)
    other["mbs"] = rows["micro_batch"]
    other.to_csv(file, index=False)
    columns = {"hardware": "board", "gpus": "n", "step_time": "step [ms]", "tp": "tensor"}
    columns |= {"micro_batch": "mbs"}
    constants = {"pp": 1, "global_batch": 256, "model.sequence": 4096, "precision": "bf16"}
    constants |= {f"model.{name}": size for name, size in sizes.items()} | {"model.tied": "true"}
    fields = columns | {name: f"@{value}" for name, value in constants.items()}
    mapping = ",".join(f"{field}={column}" for field, column in fields.items())
    assert main(["compare", str(store), "--reference", str(file), "--map", mapping, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    expected = placed(RATES[8, 1], rows, 8, 1)
    assert (row["comparable"], row["with_layout"], row["left_out"]) == (16, 16, {})
    assert row["below_best"] == pytest.approx(expected.below_best)
    assert row["causes"][0]["setting"] == expected.causes[0].setting
    assert main(["compare", str(store), "--map", mapping]) == 2


@pytest.mark.parametrize("more", [["b"], ["--by", "git_commit"], ["-o", "x.html"]])
def test_a_reference_and_another_comparison_exclude_each_other(more, tmp_path: Path):
    write_store(tmp_path / "a", *tables(8000.0))
    assert main(["compare", str(tmp_path / "a"), *more, "--reference", "known.csv"]) == 2


def test_a_table_without_a_required_column_is_bad_input():
    missing = {"tokens_per_s_per_gpu": "throughput"}
    for name in ("hardware", "gpus", "params_b", "tokens_per_s_per_gpu"):
        with pytest.raises(BadInput, match=missing.get(name, name)):
            read(known().drop(columns=name))


def test_public_measurements_place_one_of_their_own_and_name_its_micro_batch():
    table = pd.read_csv(present("parallel_layouts.csv"))
    row = (table["gpus"] == 8) & (table["tp"] == 8) & (table["micro_batch"] == 1)
    row &= table["source"].eq("nanotron-ultrascale-playbook")
    rate = float(table.loc[row, "tokens_per_s_per_gpu"].iloc[0])
    item = placed(rate, table[~row], 8, 1)
    _, left_out = read(table[~row])
    # 3 of its 610 rows state a batch that is not that of their micro-batches.
    assert (item.board, item.gpus_compared, item.comparable) == ("H100", (8,), 607)
    assert left_out["out of memory or crashed"] == 249
    counts = [item.comparable, *item.left_out.values(), *left_out.values()]
    assert sum(counts) == (~row).sum()
    assert item.explanation == SETTING
    assert item.causes[0].setting == "micro_batch"
