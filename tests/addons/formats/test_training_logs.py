"""Logs of Megatron-LM, torchtitan, nanotron, NeMo and DeepSpeed."""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import program_logs as logs
from imported import a_file, left_out, metrics, notes, refusal, windows
from wattlaw.api.imports import read_import
from wattlaw.common.errors import BadInput

#: GPUs, copies, tensor and pipeline parallel sizes, micro-batch, parts of a step, global batch,
#: sharding, checkpointing, precision.
SETTINGS = {
    "megatron": (8, 2, 2, 2, 1, 8, 16, "zero1", "none", "bf16"),
    "torchtitan": (8, 4, 2, 1, 2, 2, 16, "fsdp", "selective", "fp32"),
    "nanotron": (8, 2, 2, 2, 2, 4, 16, "zero1", "none", "bf16"),
    "nemo": (4, 2, 2, 1, None, None, 128, "none", "none", "fp32"),
    "deepspeed": (2, 2, 1, 1, 8, 2, 32, "zero1", "none", "bf16"),
}
#: Steps and seconds after the warm-up, seconds of the warm-up, and the peak.
MEASURED = {
    "megatron": (30, 30 * 0.82, 15.0, 2048 * 2**20),
    "torchtitan": (2, 4.0, 16 + 16384 / 7000 + 2, 61.25 * 2**30),
    "nanotron": (3, 0.03, 4.7318, 309.25 * 2**20),
    "nemo": (3, 18.3, 32.68, 115792977920),
    "deepspeed": (20, 28 * 32 / 2360.8357470867227 - 8 * 32 / 1825.3868387544264,
                  8 * 32 / 1825.3868387544264, 2**29),
}  # fmt: skip


@pytest.mark.parametrize("program", logs.LOGS)
def test_a_log_has_layout_times_and_peak_memory(tmp_path, program):
    read = read_import(a_file(tmp_path / "train.log", logs.LOGS[program]))
    (run,) = read.runs
    setting, facts = run.record.spec.setting, run.record.facts
    assert SETTINGS[program] == (
        setting.gpus, setting.dp, setting.tp, setting.pp, facts.micro_batch,
        facts.gradient_accumulation, setting.global_batch, setting.sharding, setting.checkpointing,
        setting.precision,
    )  # fmt: skip
    steps, seconds, warmup_s, peak = MEASURED[program]
    measured = [row for row in windows(read) if not row["warmup"]]
    assert sum(row["steps"] for row in measured) == steps
    assert sum(row["duration_s"] for row in measured) == pytest.approx(seconds)
    assert sum(row["duration_s"] for row in windows(read) if row["warmup"]) == pytest.approx(
        warmup_s
    )
    assert facts.peak_memory_bytes == peak
    step_s = metrics(read, tmp_path)["step_time_s"].tolist()
    assert step_s == pytest.approx([seconds / steps])
    missing = {"torchtitan": "precision fp32", "nemo": "sharding", "deepspeed": "tp"}
    assert missing.get(program, "nodes 1") in "\n".join(run.record.notes)


def test_what_programs_print_of_their_network_version_and_hardware_is_kept(tmp_path):
    (one,) = read_import(a_file(tmp_path / "a.log", logs.megatron())).runs
    (two,) = read_import(a_file(tmp_path / "b.log", logs.nanotron())).runs
    (titan,) = read_import(a_file(tmp_path / "c.log", logs.torchtitan())).runs
    model = one.record.spec.workload.model
    assert model is not None
    assert (model.layers, model.vocabulary, model.sequence) == (12, 50304, 512)
    assert (model.kv_heads, model.gated, model.biases, model.tied) == (None, False, True, True)
    assert one.record.spec.setting.sequence_parallel
    model = two.record.spec.workload.model
    assert model is not None
    assert (model.layers, model.ffn, model.kv_heads, model.gated) == (2, 64, 4, True)
    spec, facts = titan.record.spec, titan.record.facts
    assert (spec.workload.name, spec.hardware, facts.parameters) == (
        "llama3-8B", "NVIDIA H200", 8_030_261_248,
    )  # fmt: skip
    assert facts.software == {"torchtitan": "0.3.0"}
    assert "model.NAME" in "\n".join(titan.record.notes)


def test_energy_lines_give_the_energy_of_all_gpus_which_is_never_ok(tmp_path):
    read = read_import(a_file(tmp_path / "train.log", logs.megatron()))
    (block,) = (row for row in windows(read) if not row["warmup"])
    assert block["gpu_energy_j"] == pytest.approx(410 * 8 * 30)
    assert block["gpu_power_mean_w"] == pytest.approx(500)
    assert (block["energy_source"], block["energy_verdict"]) == ("counter", "suspect")
    without = read_import(a_file(tmp_path / "no.log", logs.megatron(energy=False)))
    assert {row["energy_verdict"] for row in windows(without)} == {"unavailable"}


def test_each_start_is_a_run_and_one_out_of_memory_is_a_failed_run(tmp_path):
    out = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    text = (
        logs.megatron(lines=3, total=100)
        + logs.megatron(lines=3, begin=20, total=100)  # from a checkpoint, the same steps again
        + logs.megatron(lines=0, tp=1) + out
        + logs.megatron(lines=2, tp=4) + "[rank3]: " + out
    )  # fmt: skip
    read = read_import(a_file(tmp_path / "train.log", text))
    assert [run.record.status for run in read.runs] == ["done", "done", "failed", "failed"]
    assert [run.record.spec.setting.tp for run in read.runs] == [2, 2, 1, 4]
    assert [run.record.state for run in read.runs[2:]] == ["out of memory"] * 2
    reasons = [run.record.reason.partition(":")[0] for run in read.runs[2:]]
    assert reasons == ["out of memory at its start", "out of memory after step 20"]
    assert [run.record.spec.repeat for run in read.runs[:2]] == [0, 1]
    assert [row["from_step"] for row in windows(read)] == [0, 10, 20, 30]
    assert "the log ends at step 30 of 100" in "\n".join(read.runs[0].record.notes)


def test_lines_of_other_ranks_damaged_lines_and_steps_that_go_back_do_not_count(tmp_path):
    lines = logs.torchtitan(ranks=2).splitlines(keepends=True)
    steps = [line for line in lines if "step:" in line and "validate" not in line]
    damaged = [steps[-2].replace("tps:", "t"), steps[-2].rstrip("\n") + steps[-4], steps[0]]
    read = read_import(a_file(tmp_path / "a.log", "".join([*lines, *damaged, steps[-2][:-1]])))
    reasons = left_out(read)
    assert reasons["a line of steps of another rank"] == 5
    assert reasons["a line of steps that is damaged, or of another form"] == 3
    assert reasons["a step that is not after the one before"] == 1
    assert reasons["the last line is incomplete"] == 1
    assert sum(row["steps"] for row in windows(read)) == 5


def test_pauses_and_another_global_batch_are_left_out(tmp_path):
    text = logs.megatron(lines=8, ms=200)
    lines = text.splitlines(keepends=True)
    last = len(lines)
    lines[last - 1] = lines[last - 1].replace("(ms): 200.0", "(ms): 20000.0")
    lines[last - 3] = lines[last - 3].replace("batch size:    16", "batch size:     8")
    read = read_import(a_file(tmp_path / "train.log", "".join(lines)))
    reasons = left_out(read)
    assert reasons["steps with a pause"] == reasons["steps of another global batch than most"] == 1
    assert [row["steps"] for row in windows(read)] == [10, 40, 10]
    assert read.runs[0].record.spec.setting.global_batch == 16
    assert "with a pause" in notes(read) + "\n".join(read.runs[0].record.notes)


def test_a_log_that_lacks_gpus_or_measured_steps_is_refused_in_one_line(tmp_path, capsys):
    unknown = logs.megatron().replace("world_size", "size")
    path = a_file(tmp_path / "train.log", unknown)
    assert "--map gpus=@N" in refusal(path, capsys)
    (run,) = read_import(path, map="gpus=@16,hardware=@H100").runs
    assert (run.record.spec.setting.dp, run.record.spec.hardware) == (4, "H100")
    assert "fewer than two" in refusal(a_file(tmp_path / "one.log", logs.megatron(lines=1)), capsys)
    assert "no line of steps" in refusal(
        a_file(tmp_path / "none.log", logs.megatron(lines=0)), capsys
    )
    wrong = logs.megatron(tp=3)
    assert "does not divide" in refusal(a_file(tmp_path / "wrong.log", wrong), capsys)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(logs.LOGS)),
    st.randoms(use_true_random=False),
    st.sampled_from(("cut", "shuffle", "repeat", "garbage", "digits")),
    st.binary(max_size=40),
)
def test_damaged_logs_give_runs_or_one_error(tmp_path_factory, program, chance, how, junk):
    text = logs.LOGS[program]
    path = tmp_path_factory.mktemp("log") / "train.log"
    path.write_bytes(_damaged(text, chance, how, junk))
    with contextlib.suppress(BadInput):
        for run in read_import(path).runs:
            for row in run.windows:
                assert row["duration_s"] > 0
                assert row["steps"] >= 1


def _damaged(text: str, chance: random.Random, how: str, junk: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    if how == "shuffle":
        chance.shuffle(lines)
    elif how == "repeat":
        lines = [line for line in lines for _ in range(chance.randrange(3))]
    elif how == "digits":
        number = chance.choice(("0", "9" * 40, "-1", "nan", "1e999", "None", "3.7"))
        return "".join(
            number if c.isdigit() and chance.random() < 0.05 else c for c in text
        ).encode()
    data = "".join(lines).encode()
    place = chance.randrange(len(data) + 1)
    if how == "cut":
        return data[:place]
    return data[:place] + junk + data[place:] if how == "garbage" else data
