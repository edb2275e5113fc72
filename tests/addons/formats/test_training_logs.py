"""Logs of Megatron-LM, torchtitan, nanotron, NeMo and DeepSpeed."""

import contextlib
import random
import re

import pytest

import program_logs as logs
from import_samples import damaged
from imported import a_file, left_out, metrics, notes, refusal, windows
from wattlaw.api.imports import read_import
from wattlaw.common.errors import BadInput

#: GPUs, copies, tensor and pipeline parallel sizes, micro-batch, parts of a step, global batch,
#: sharding, checkpointing, precision.
SETTINGS = {
    "megatron": (8, 2, 2, 2, 1, 8, 16, "zero1", "none", "bf16"),
    "megatron_bridge": (2, 2, 1, 1, 2, 2, 8, "zero1", "none", "bf16"),
    "megatron_lm": (8, 1, 4, 2, 1, 512, 512, "zero1", "selective", "bf16"),
    "torchtitan": (2, 2, 1, 1, 2, 2, 8, "fsdp", "selective", "fp32"),
    "nanotron": (2, 2, 1, 1, 2, 2, 8, "none", "none", "bf16"),
    "nanotron_batch_1024": (2, 1, 2, 1, 256, 4, 1024, "none", "none", "bf16"),
    "nanotron_pipeline": (2, 1, 1, 2, 2, 2, 4, "none", "none", "bf16"),
    "nemo": (2, 2, 1, 1, None, None, 16, "none", "none", "fp32"),
    "nemo_mean_of_5": (2, 2, 1, 1, None, None, 16, "none", "none", "fp32"),
    "deepspeed": (2, 2, 1, 1, 8, 2, 32, "zero1", "none", "bf16"),
}
#: Steps and seconds after the warm-up, seconds of the warm-up, the peak, and tokens per sample.
MEASURED = {
    "megatron": (30, 30 * 0.82, 15.0, 2048 * 2**20, 512),
    "megatron_bridge": (55, 5 * 1.7583, 5 * 0.2541, 564_960_000, None),
    "megatron_lm": (14, 5_872.1027, 450.8465 + 423.2911 + 421.5453, 74_046.685546875 * 2**20, 8192),
    "torchtitan": (9, 128 * (3 / 10 + 4 / 9 + 1 / 11 + 1 / 14), 128 * (1 / 7 + 2 / 10),
                   0.65 * 2**30, None),
    "nanotron": (9, 4.064, 2.112, 327.55 * 2**20, 64),
    "nanotron_batch_1024": (4, 24.45, 15.8, 348.1 * 2**20, 8),
    "nanotron_pipeline": (3, 1.235, 0.964, 322.94 * 2**20, 64),
    "nemo": (17, 0.7369, 0.31557, None, None),
    "nemo_mean_of_5": (15, 5 * (0.04496 + 0.03333 + 0.03673), 5 * 0.06543, None, None),
    "deepspeed": (20, 28 * 32 / 2360.8357470867227 - 8 * 32 / 1825.3868387544264,
                  8 * 32 / 1825.3868387544264, 2**29, None),
}  # fmt: skip
#: What the logs do not say, by --map.
MAPS = {"megatron_bridge": "gpus=@2"}
#: Lines with a step of the rank that counts; DeepSpeed's first line begins at the second step.
LINE = {
    "megatron": "elapsed time per", "megatron_bridge": "elapsed time per",
    "megatron_lm": "elapsed time per", "torchtitan": "tps: ",
    "nanotron": "elapsed_time_per", "nanotron_batch_1024": "elapsed_time_per",
    "nanotron_pipeline": "elapsed_time_per", "nemo": "train_step_timing",
    "nemo_mean_of_5": "train_step_timing", "deepspeed": "RunningAvg",
}  # fmt: skip
#: Steps at which the log would end.
TOTALS = {"torchtitan": 12, "nanotron": 12, "nemo": 20, "nemo_mean_of_5": 20, "megatron_bridge": 60}


def _imported(path, program, text=None):
    options = {"map": MAPS[program]} if program in MAPS else {}
    return read_import(a_file(path / f"{program}.log", text or logs.LOGS[program]), **options)


def _blocks(read):
    keys = ("from_step", "steps", "warmup", "duration_s", "samples")
    return [tuple(row.get(key) for key in keys) for row in windows(read)]


@pytest.mark.parametrize("program", logs.LOGS)
def test_a_log_has_layout_times_and_peak_memory(tmp_path, program):
    read = _imported(tmp_path, program)
    (run,) = read.runs
    setting, facts = run.record.spec.setting, run.record.facts
    assert SETTINGS[program] == (
        setting.gpus, setting.dp, setting.tp, setting.pp, facts.micro_batch,
        facts.gradient_accumulation, setting.global_batch, setting.sharding, setting.checkpointing,
        setting.precision,
    )  # fmt: skip
    steps, seconds, warmup_s, peak, tokens = MEASURED[program]
    measured = [row for row in windows(read) if not row["warmup"]]
    assert sum(row["steps"] for row in measured) == steps
    assert sum(row["samples"] for row in measured) == steps * setting.global_batch
    assert sum(row["duration_s"] for row in measured) == pytest.approx(seconds)
    own_s = sum(row["duration_s"] for row in windows(read) if row["warmup"])
    assert own_s == pytest.approx(warmup_s)
    assert facts.peak_memory_bytes == (None if peak is None else round(peak))
    assert facts.tokens_per_sample == tokens
    step_s = metrics(read, tmp_path)["step_time_s"].tolist()
    assert step_s == pytest.approx([seconds / steps])
    missing = {"torchtitan": "precision fp32", "nemo": "sharding", "deepspeed": "tp"}
    assert missing.get(program, "nodes 1") in "\n".join(run.record.notes)


def test_the_parameters_of_a_log_are_those_that_the_program_counts(tmp_path):
    (run,) = _imported(tmp_path, "megatron_lm").runs
    (billions,) = re.findall(r"parameters in billions: ([\d.]+)", logs.LOGS["megatron_lm"])
    assert run.record.spec.workload.model.parameters == pytest.approx(
        1e9 * float(billions), rel=3e-4
    )
    assert "the log ends at step 17 of 20" in run.record.notes


@pytest.mark.parametrize("program", TOTALS)
def test_a_log_that_was_cut_says_so_and_has_the_steps_of_its_complete_lines(tmp_path, program):
    complete = _blocks(_imported(tmp_path, program))
    lines = logs.LOGS[program].splitlines(keepends=True)
    places = [at for at, line in enumerate(lines) if LINE[program] in line]
    cut = places[-2]
    text = "".join(lines[:cut]) + lines[cut][: len(lines[cut]) // 2]
    read = _imported(tmp_path, program, text)
    (run,) = read.runs
    blocks = _blocks(read)
    assert blocks[0] == complete[0]
    end, total = blocks[-1][0] + blocks[-1][1], TOTALS[program]
    assert complete[-1][0] < end < total == complete[-1][0] + complete[-1][1]
    notes = "\n".join(run.record.notes)
    assert f"the log ends at step {end:,} of {total}" in notes
    assert left_out(read)["the last line is incomplete"] == 1


@pytest.mark.parametrize("program", sorted(LINE.keys() - {"torchtitan"}))
def test_colours_and_lines_of_several_ranks_change_nothing(tmp_path, program):
    expected = _blocks(_imported(tmp_path, program))
    lines = logs.LOGS[program].splitlines()
    coloured = "".join(f"\x1b[32m{line}\x1b[0m\n" for line in lines)
    assert _blocks(_imported(tmp_path / "coloured", program, coloured)) == expected
    ranks = "".join(f"[default{rank}]:{line}\n" for line in lines for rank in range(3))
    read = _imported(tmp_path / "ranks", program, ranks)
    assert _blocks(read) == expected
    steps = sum(LINE[program] in line for line in lines)
    assert left_out(read)["a line of steps of another rank"] == 2 * steps


@pytest.mark.parametrize("program", sorted(LINE))
def test_a_restart_in_one_file_is_a_second_run(tmp_path, program):
    once = _imported(tmp_path, program)
    twice = _imported(tmp_path / "twice", program, 2 * logs.LOGS[program])
    assert _blocks(twice) == 2 * _blocks(once)
    first, second = (run.record for run in twice.runs)
    assert first.spec.setting == second.spec.setting == once.runs[0].record.spec.setting
    assert first.facts == second.facts


def test_groups_of_ranks_of_a_restart_of_nemo_belong_to_it(tmp_path):
    groups = "All tensor model parallel group ranks: "
    other = logs.LOGS["nemo"].replace(f"{groups}[[0], [1]]", f"{groups}[[0, 1]]")
    read = _imported(tmp_path, "nemo", logs.LOGS["nemo"] + other)
    assert [run.record.spec.setting.tp for run in read.runs] == [1, 2]
    assert [run.record.spec.setting.dp for run in read.runs] == [2, 1]


@pytest.mark.parametrize("program", ["megatron_bridge", "nemo_mean_of_5"])
def test_a_mean_without_the_line_before_it_counts_its_own_steps(tmp_path, program):
    lines = logs.LOGS[program].splitlines(keepends=True)
    places = [at for at, line in enumerate(lines) if LINE[program] in line]
    del lines[places[-2]]
    read = _imported(tmp_path, program, "".join(lines))
    assert [steps for _, steps, *_ in _blocks(read)][-1] == 5
    assert sum(steps for _, steps, *_ in _blocks(read)) == TOTALS[program] - 5


def test_a_mean_of_recent_steps_after_the_time_of_a_line_is_ignored(tmp_path):
    expected = _blocks(_imported(tmp_path, "megatron_bridge"))
    text = re.sub(r"(\(ms\): [\d.]+) \|", r"\1/999.9 |", logs.LOGS["megatron_bridge"])
    assert _blocks(_imported(tmp_path / "mean", "megatron_bridge", text)) == expected


def test_what_programs_print_of_their_network_version_and_hardware_is_kept(tmp_path):
    (one,) = _imported(tmp_path, "megatron").runs
    (two,) = _imported(tmp_path, "nanotron").runs
    (titan,) = _imported(tmp_path, "torchtitan").runs
    model = one.record.spec.workload.model
    assert (model.layers, model.vocabulary, model.sequence) == (12, 50304, 512)
    assert (model.kv_heads, model.gated, model.biases, model.tied) == (None, False, True, True)
    assert one.record.spec.setting.sequence_parallel
    model = two.record.spec.workload.model
    assert (model.layers, model.hidden, model.heads, model.vocabulary) == (2, 64, 4, 256)
    assert (model.ffn, model.kv_heads, model.gated, model.tied) == (128, 2, True, True)
    assert two.record.facts.parameters is None  # 90.4K is rounded
    spec, facts = titan.record.spec, titan.record.facts
    assert (spec.workload.name, spec.hardware, facts.parameters) == (
        "llama3-debugmodel", "CPU", 6_163_712,
    )  # fmt: skip
    assert facts.software == {"torchtitan": "0.3.0"}
    assert "model.NAME" in "\n".join(titan.record.notes)
    assert "printed as 7: step times are rounded" in "\n".join(titan.record.notes)


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
    lines = logs.LOGS["torchtitan"].splitlines(keepends=True)
    steps = [line for line in lines if "tps: " in line]
    validation = steps[-2].replace("step: ", "validate step: ")
    damaged = [steps[-2].replace("tps:", "t"), steps[-2].rstrip("\n") + steps[-4], validation]
    read = _imported(tmp_path, "torchtitan", "".join([*lines, *damaged, steps[-2][:-1]]))
    reasons = left_out(read)
    assert reasons["a line of steps that is damaged, or of another form"] == 2
    assert reasons["a step that is not after the one before"] == 12  # those of the other rank
    assert reasons["the last line is incomplete"] == 1
    assert sum(row["steps"] for row in windows(read)) == 12
    ranks = [line for line in lines if line not in steps[1::2]]
    text = "".join(f"[rank{rank}]:{line}" for line in ranks for rank in range(2))
    prefixed = _imported(tmp_path / "ranks", "torchtitan", text)
    assert left_out(prefixed)["a line of steps of another rank"] == 12
    assert _blocks(prefixed) == _blocks(read)


def test_pauses_and_another_global_batch_are_left_out(tmp_path):
    lines = logs.megatron(lines=8, ms=200).splitlines(keepends=True)
    lines[-1] = lines[-1].replace("(ms): 200.0", "(ms): 20000.0")
    lines[-3] = lines[-3].replace("batch size:    16", "batch size:     8")
    read = read_import(a_file(tmp_path / "train.log", "".join(lines)))
    reasons = left_out(read)
    assert reasons["steps with a pause"] == reasons["steps of another global batch than most"] == 1
    assert [row["steps"] for row in windows(read)] == [10, 40, 10]
    assert read.runs[0].record.spec.setting.global_batch == 16
    assert "with a pause" in notes(read) + "\n".join(read.runs[0].record.notes)


def test_a_log_that_lacks_gpus_or_measured_steps_is_refused_in_one_line(tmp_path, capsys):
    path = a_file(tmp_path / "train.log", logs.megatron().replace("world_size", "size"))
    assert "--map gpus=@N" in refusal(path, capsys)
    (run,) = read_import(path, map="gpus=@16,hardware=@H100").runs
    assert (run.record.spec.setting.dp, run.record.spec.hardware) == (4, "H100")
    assert "fewer than two" in refusal(a_file(tmp_path / "one.log", logs.megatron(lines=1)), capsys)
    assert "no line of steps" in refusal(
        a_file(tmp_path / "none.log", logs.megatron(lines=0)), capsys
    )
    wrong = logs.megatron(tp=3)
    assert "does not divide" in refusal(a_file(tmp_path / "wrong.log", wrong), capsys)


@pytest.mark.parametrize("program", logs.LOGS)
def test_damaged_logs_give_runs_or_one_error(tmp_path, program):
    dice = random.Random(program)
    for _ in range(8):
        content = damaged(dice, logs.LOGS[program].encode())
        with contextlib.suppress(BadInput):
            for run in _imported(tmp_path, program, content).runs:
                assert all(row["duration_s"] > 0 and row["steps"] >= 1 for row in run.windows)
