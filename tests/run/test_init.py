"""``wattlaw init``: from one short run of a script to a study file."""

import ast
import io
import math
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paths
from conftest import environment, python
from fake_nvml import FakeGpus
from wattlaw.analysis.metrics.time_errors import SHORT, steps_needed, time_errors
from wattlaw.cli.commands.init import _batch
from wattlaw.cli.main import main
from wattlaw.common.errors import BadInput
from wattlaw.running.first_machine import Machine, slurm_machine
from wattlaw.running.first_run import Seen, batch_candidates, fixed_batch_note, named_argument
from wattlaw.running.first_study import Argument, first_study
from wattlaw.running.slurm import commands
from wattlaw.running.slurm.commands import Partition, parse_partition
from wattlaw.running.steps import step_time_columns
from wattlaw.running.training.rank_starters import command_of_one_rank
from wattlaw.study.command import PLACEHOLDERS, substitute
from wattlaw.study.model import Study
from wattlaw.study.plan import expand, read_study

DDP = str(paths.SCRIPTS / "ddp.py")
COMMAND = ("python", "t.py", "--batch-size", "64")
SEEN = Seen(COMMAND, 1, step_s=0.1, beside_s=10.0, global_batch=64)
EIGHT = Machine(8, {"kind": "local"}, has_gpus=True)


def study_of(tmp_path: Path, seen: Seen, machine: Machine = EIGHT, name: str = "") -> Study:
    argument = named_argument(seen, name) if name else batch_candidates(seen)[0]
    (tmp_path / "s.yaml").write_text(first_study(seen, argument, machine).text)
    return read_study(tmp_path / "s.yaml")


def settings(study: Study) -> set[tuple[object, ...]]:
    runs = [run.setting for run in expand(study)]
    return {(setting.gpus, setting.global_batch, setting.power_limit_w) for setting in runs}


def test_a_script_under_torchrun_becomes_a_study_that_check_accepts(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    line = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", DDP)
    command = (sys.executable, *line, "--batch-size", "10", "--epochs", "100000")
    assert main(["init", "--yes", "--steps", "10", "--", *command]) == 0
    shown = capfd.readouterr()
    study = read_study(tmp_path / "study.yaml")
    (workload,) = study.workloads
    expected = (sys.executable, DDP, "--batch-size", "{local_batch}", "--epochs", "100000")
    assert workload.command == expected
    assert workload.dataset_samples == 200
    # It ran as two workers with 10 samples each; fewer and more workers, and batches, are to try.
    assert {(2, 20, None), (1, 20, None), (2, 80, None)} <= settings(study)
    assert study.decide is not None
    assert study.decide.in_use == {"gpus": 2, "global_batch": 20}
    assert study.launch.threads_per_worker == 1  # OMP_NUM_THREADS of this process, as it ran
    assert "with 1 thread (OMP_NUM_THREADS=1)" in shown.out
    stages = [line for line in shown.err.splitlines() if line.startswith("init: ")]
    assert len(stages) == 3
    assert "10 steps after 20" in stages[1]
    found = re.findall(r"^  wattlaw (.*)$", shown.out, re.MULTILINE)
    assert found == ["check study.yaml", "run study.yaml", "advise wattlaw-store"]
    assert (main(shlex.split(found[0])), capfd.readouterr().err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["study.yaml"]


@pytest.mark.parametrize(
    ("output", "command", "code"),
    [
        ("new.yaml", "-c 'raise SystemExit(3)'", 2),
        ("new.yaml", "-c 'print()'", 2),  # never trains
        ("old.yaml", "-c \"open('ran', 'w')\"", 2),
        ("old.yaml/new.yaml", "-c \"open('ran', 'w')\"", 2),
        ("new.yaml", "-m accelerate.commands.launch t.py", 2),
    ],
)
def test_what_gives_no_study_is_one_line_and_leaves_files_alone(
    tmp_path, monkeypatch, capfd, output, command, code
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.yaml").write_text("mine")
    line = ("init", "--yes", "-o", output, "--", sys.executable, *shlex.split(command))
    assert main([*line]) == code
    assert capfd.readouterr().err.count("wattlaw: ") == 1
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.yaml": "mine"}


def test_an_ambiguous_batch_is_asked_for_on_a_terminal(monkeypatch, capsys, tmp_path):
    seen = replace(SEEN, command=(*COMMAND, "--hidden", "64"))
    assert [argument.name for argument in batch_candidates(seen)] == ["--batch-size", "--hidden"]

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("nonsense\n--hidden\n"))
    assert _batch(seen.command, seen, None, asks=True).name == "--hidden"
    assert "nonsense" in capsys.readouterr().out  # refused, and asked again
    with pytest.raises(BadInput, match="--batch-argument --batch-size -- python "):
        _batch(seen.command, seen, None, asks=False)
    with pytest.raises(BadInput, match="--batch-size has the batch that ran"):
        named_argument(SEEN, "--bs")
    unseen = replace(SEEN, global_batch=None)  # without a DataLoader
    with pytest.raises(BadInput, match="--batch-argument --batch-size -- python "):
        _batch(COMMAND, unseen, None, asks=False)
    with pytest.raises(BadInput, match=r"add_argument.*-- python t\.py --batch-size 64"):
        line = ("python", "t.py")
        _batch(line, replace(unseen, command=line), None, asks=False)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("words", "said"), [((), "no argument"), (("--batch-size", "16"), "--batch-size says 16")]
)
def test_a_batch_that_no_argument_sets_gives_a_study_of_one_batch(tmp_path, ranks, words, said):
    command = ("python", "t.py", *words)
    seen = replace(SEEN, command=command, ranks=ranks, global_batch=64 * ranks)
    assert _batch(command, seen, None, asks=True) is None
    found = first_study(seen, None, EIGHT)
    note = fixed_batch_note(seen)
    assert said in note
    assert f"the batch that ran is {64 * ranks}" in note
    (tmp_path / "s.yaml").write_text(found.text)
    study = read_study(tmp_path / "s.yaml")
    assert study.workloads[0].command == command
    assert settings(study) == {(gpus, 64 * gpus, None) for gpus in (1, 2, 4, 8)}
    assert study.decide.in_use == {"gpus": ranks, "global_batch": 64 * ranks}
    assert study.decide.max_global_batch == 512


@pytest.mark.parametrize(
    ("ranks", "batch", "words", "name", "expected"),
    [
        (1, 64, "--batch-size 64", "", "--batch-size {local_batch}"),
        (1, 64, "train.batch=64 lr=0.1", "", "train.batch={local_batch} lr=0.1"),
        (1, 64, "--global-batch-size 64", "", "--global-batch-size {global_batch}"),
        (4, 64, "-b 64", "", "-b {global_batch}"),
        (4, 64, "-b 16", "", "-b {local_batch}"),
        (1, 64, "data 64", "", "data {local_batch}"),
        (1, 64, "--width 64 -b 64", "-b", "--width 64 -b {local_batch}"),
        (1, 64, "--lr 1e-3 -b 64", "", "--lr 1e-3 -b {local_batch}"),  # no number in the file
        (2, None, "--batch-size 8 -x {a}", "batch_size", "--batch-size {local_batch} -x {{a}}"),
    ],
)
def test_the_argument_with_the_batch_gets_its_placeholder(
    tmp_path, ranks, batch, words, name, expected
):
    seen = replace(
        SEEN, ranks=ranks, global_batch=batch, command=("python", "t.py", *words.split())
    )
    study = study_of(tmp_path, seen, name=name)
    assert study.workloads[0].command == ("python", "t.py", *expected.split())
    assert (ranks, batch or 16) in {(n, size) for n, size, _ in settings(study)}


@pytest.mark.parametrize(
    ("words", "samples", "expected"),
    [
        (("--epochs", "90"), 50_000, 90),
        (("--num_epochs=90",), 50_000, 90),
        (("--epochs", "90"), None, None),  # the samples of an epoch are needed
        (("--epochs", "9.5"), 50_000, None),
        (("--warmup-epochs", "5"), 50_000, None),
    ],
)
def test_the_epochs_of_the_command_are_those_of_the_question(tmp_path, words, samples, expected):
    seen = replace(SEEN, command=(*COMMAND, *words), dataset_samples=samples)
    assert study_of(tmp_path, seen).decide.epochs == expected


@pytest.mark.parametrize(
    ("epochs", "steps", "is_noted", "why"),
    [
        (100, 500, False, "about 0.5 s"),
        (4, 80, False, "all of a training with a batch of 256"),
        (1, 20, True, "too few for 20 after 20 of warm-up: let it train for more epochs"),
        (None, 500, False, "how long it trains is unknown: a batch of 256 needs 520 steps"),
    ],
)
def test_runs_measure_no_more_steps_than_a_training_with_the_largest_batch_has(
    tmp_path, epochs, steps, is_noted, why
):
    """An epoch has 100 steps with the batch that ran, and 25 with the largest one."""
    command = COMMAND if epochs is None else (*COMMAND, "--epochs", str(epochs))
    seen = replace(SEEN, command=command, step_s=0.001, dataset_samples=6400)
    study = first_study(seen, batch_candidates(seen)[0], EIGHT)
    (tmp_path / "study.yaml").write_text(study.text)
    assert read_study(tmp_path / "study.yaml").measure.steps == steps
    assert any("too few" in note for note in study.notes) == is_noted
    assert study.text.partition("of warm-up: ")[2].splitlines()[0].endswith(why)


@pytest.mark.parametrize("cv", [0.02, 1.0])
def test_a_run_is_as_long_as_the_rule_that_judges_it_requires(cv):
    """Runs of the chosen length, whose steps vary as those of the short run, are rarely short."""
    rng = np.random.default_rng(0)

    def window(count: int) -> dict[str, object]:
        steps_s = rng.gamma(1 / cv**2, cv**2, count)
        return {"run_id": 0, "host": "", "warmup": False, "steps": count,
                "duration_s": steps_s.sum(), **step_time_columns(steps_s)}  # fmt: skip

    lengths = [steps_needed([window(50)]) for _ in range(100)]
    runs = [max(20, length) for length in lengths]
    short = [time_errors(pd.DataFrame([window(n)])).item() > SHORT for n in runs]
    assert np.mean(short) < 0.15
    assert np.median(lengths) < 5 * (cv / SHORT) ** 2 + 20  # not far more than it takes
    seen = replace(SEEN, step_s=0.5, needed_steps=lengths[0])
    text = first_study(seen, batch_candidates(seen)[0], EIGHT).text
    assert f"measure: {{steps: {runs[0]}}}" in text


@pytest.mark.parametrize(("needed", "is_short"), [(80, False), (200, True)])
def test_a_training_that_has_too_few_steps_to_be_sure_by_says_so_in_the_study(needed, is_short):
    command = (*COMMAND, "--epochs", "4")
    seen = replace(SEEN, command=command, dataset_samples=6400, needed_steps=needed)
    found = first_study(seen, batch_candidates(seen)[0], EIGHT)
    (measure,) = (line for line in found.text.splitlines() if line.startswith("measure:"))
    assert measure.startswith("measure: {steps: 80}")
    assert ("needs 200; let it train for more epochs" in measure) == is_short
    assert [note for note in found.notes if note in measure] == [*found.notes[:is_short]]


@pytest.mark.parametrize("script", ["5.py", "null.py", "1e5.py", "2026-01-01.py"])
def test_the_name_of_a_study_is_a_text(tmp_path, script):
    study = study_of(tmp_path, replace(SEEN, command=("python", script, "-b", "64")))
    assert study.name == script.removesuffix(".py")


def test_batches_fit_the_memory_that_the_peak_leaves(tmp_path):
    """30 GB of 80 GB: twice the local batch fits, four times may need 120 GB."""
    machine = replace(EIGHT, memory_gb=80.0)
    found = settings(study_of(tmp_path, replace(SEEN, peak_memory_bytes=30 * 10**9), machine))
    assert {(1, 64), (1, 128), (2, 256), (8, 256)} <= {(n, batch) for n, batch, _ in found}
    assert (1, 256, None) not in found


def test_a_run_without_a_gpu_sets_no_budget_for_gpus(tmp_path):
    assert study_of(tmp_path, SEEN).decide.budget.gpu_hours is None
    on_gpu = replace(SEEN, peak_memory_bytes=10**9)
    assert study_of(tmp_path, on_gpu).decide.budget.gpu_hours > 0


def test_the_budget_covers_the_start_up_of_runs_that_are_slower_to_start(tmp_path):
    """Runs of 18.6 s were measured on two busy cores, after a short run of 10.4 s."""
    seen = replace(SEEN, step_s=0.0014, beside_s=10.3)
    one = Machine(1, {"kind": "local", "gpus_per_node": 1})
    budget = study_of(tmp_path, seen, one).decide.budget.gpu_hours
    assert budget >= 3 * 2 * 18.6 / 3600  # three batches, two runs of each


def test_sharded_trainings_get_no_fewer_workers_than_ran(tmp_path):
    seen = replace(SEEN, ranks=4, parallelism="fsdp", command=("python", "t.py", "-b", "16"))
    assert {gpus for gpus, *_ in settings(study_of(tmp_path, seen))} == {4, 8}


@pytest.mark.parametrize(
    ("words", "expected", "values"),
    [
        # A copy of the model on 2 of 8 GPUs: 4 copies, of which each gets 16 of 64 samples.
        ("--tp 2 --batch-size 16", "--tp {tp} --batch-size {micro_batch}", {"tp": {1, 2, 4}}),
        ("--batch-size 16 --epochs 2", "--batch-size {micro_batch} --epochs 2", {"tp": {2}}),
        (
            "--tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 64",
            "--tensor-model-parallel-size {tp} --micro-batch-size {micro_batch} "
            "--global-batch-size {global_batch}",
            {"tp": {1, 2, 4}, "micro_batch": {2, 4, 8}},
        ),
    ],
)
def test_a_layout_is_swept_where_an_argument_carries_it(tmp_path, words, expected, values):
    network = {"layers": 4, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 32}
    parts = 4 if "micro" in words else 1
    command = ("python", "t.py", *words.split())
    seen = replace(SEEN, ranks=8, layout={"tp": 2}, network=network, command=command,
                   gradient_accumulation=parts)  # fmt: skip
    study = study_of(tmp_path, seen)
    workload = study.workloads[0]
    assert workload.command == ("python", "t.py", *expected.split())
    assert workload.model.heads == 4
    runs = [run.setting for run in expand(study)]
    assert {name: {getattr(run, name) for run in runs} for name in values} == values
    assert study.decide.in_use["tp"] == 2
    shared = [item for item in runs if item.tp == 2 and item.micro_batch == 16 / parts]
    assert (8, 64) in {(item.gpus, item.global_batch) for item in shared}


def test_a_precision_is_that_of_the_runs_and_of_its_argument(tmp_path):
    seen = replace(SEEN, precision="bf16", command=(*COMMAND, "--precision=bf16"))
    study = study_of(tmp_path, seen)
    assert {run.setting.precision for run in expand(study)} == {"bf16"}
    assert study.workloads[0].command[-1] == "--precision={precision}"
    assert "precision" not in study_of(tmp_path, replace(SEEN, precision="fp64")).sweeps[0]


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))),
    *(st.integers(1, 9) for _ in range(2)),
    st.integers(1, 5000),
    st.sampled_from((None, 1e9, 3e10)),
    st.sampled_from((EIGHT, replace(EIGHT, per_node=6, caps_w=(320.0, 240.0), default_w=400.0),
                     Machine(2, {"kind": "local", "gpus_per_node": 2}))),
)  # fmt: skip
def test_every_study_keeps_the_command_and_the_setting_that_ran(
    tmp_path_factory, words, per_node, ranks, local, peak, machine
):
    machine = replace(machine, per_node=max(per_node, ranks), memory_gb=80.0)
    command = ("python", *words, "t.py", "-b", str(local))
    seen = replace(
        SEEN, command=command, ranks=ranks, global_batch=local * ranks, peak_memory_bytes=peak
    )
    found = first_study(seen, Argument(len(command) - 1, "-b", "", str(local)), machine)
    path = tmp_path_factory.mktemp("any") / "s.yaml"
    path.write_text(found.text, encoding="utf-8")
    study = read_study(path)
    values = dict.fromkeys(PLACEHOLDERS, "") | {"local_batch": local, "global_batch": local}
    assert [substitute(word, values) for word in study.workloads[0].command] == [*command]
    assert (ranks, ranks * local, None) in settings(study)
    assert len(settings(study)) == found.settings == len(expand(study)) / study.repeats
    assert 0 < found.gpu_hours <= (study.decide.budget.gpu_hours or math.inf)


def test_the_gpus_of_this_machine_have_caps_within_their_range(tmp_path):
    boards = FakeGpus.create(tmp_path / "boards", 2, limit_min_mw=250_000)
    code = (
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
        "from wattlaw.running.first_machine import this_machine\n"
        "it = this_machine()\nprint([it.per_node, it.has_gpus, it.caps_w, it.memory_gb])"
    )
    shown = python("-c", code, env=environment() | boards.environment())
    per_node, has_gpus, caps_w, memory_gb = ast.literal_eval(shown.stdout)
    assert (per_node, has_gpus) == (2, True)
    assert (caps_w, memory_gb) == ((320.0,), 40)  # 80 % of 400 W; 60 % is below the range


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("4|64|gpu:a100:4(S:0-1)\n", Partition(4, 64, 4, "gpu:a100")),
        ("2|96+|gpu:8,shard:16\n9|32|(null)\n", Partition(2, 96, 8, "gpu")),
        ("1|8|craynetwork:4,gpu:1g.5gb:7\n", Partition(1, 8, 7, "gpu:1g.5gb")),
        ("3|16|(null)\n5|32|(null)\n", Partition(5, 32)),
        ("", None),
    ],
)
def test_the_nodes_of_a_partition_are_those_that_sinfo_shows(output, expected):
    assert parse_partition(output) == expected


@pytest.mark.parametrize(
    ("partition", "counts"),
    [(Partition(3, 64, 4, "gpu:a100"), {1, 2, 4, 8}), (Partition(1, 32), {1, 2, 4})],
)
def test_a_study_for_a_partition_uses_its_nodes(tmp_path, monkeypatch, partition, counts):
    find: Callable[[str], Partition] = {"small": partition}.__getitem__
    monkeypatch.setattr(commands, "partition", find)
    monkeypatch.delenv("OMP_NUM_THREADS")
    study = study_of(tmp_path, SEEN, slurm_machine("small"))
    assert study.launch.kind == "slurm"
    assert study.launch.gpus_per_node == 4
    assert study.launch.slurm.options == {"partition": "small"}
    assert study.launch.slurm.gres == (partition.gres or None)
    assert study.launch.slurm.cpus_per_worker == partition.cores // 4
    assert study.launch.threads_per_worker == partition.cores // 4
    assert {gpus for gpus, *_ in settings(study)} == counts


@pytest.mark.parametrize(
    ("line", "expected", "launch_with"),
    [
        ("python t.py -b 1", "python t.py -b 1", "auto"),
        ("torchrun --nproc-per-node 4 --standalone t.py -b 1", "python t.py -b 1", "auto"),
        ("env A=1 /x/bin/torchrun --nnodes=1 t.py", "env A=1 /x/bin/python t.py", "auto"),
        ("uv run python3 -m torch.distributed.run t.py", "uv run python3 t.py", "auto"),
        ("torchrun --no-python --nproc-per-node 2 ./t.sh", "./t.sh", "auto"),
        ("srun -n 2 ./t.py", "./t.py", "srun"),
    ],
)
def test_a_command_that_starts_ranks_becomes_that_of_one(line, expected, launch_with):
    found = command_of_one_rank(shlex.split(line))
    assert found == (tuple(shlex.split(expected)), launch_with)
