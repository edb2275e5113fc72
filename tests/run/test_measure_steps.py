"""``wattlaw measure`` of training scripts: steps, their time and energy, and the end at a limit."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import paths
from conftest import wattlaw
from fake_nvml import FakeGpus
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.analysis.predict.job import jobs_of
from wattlaw.store.store import Store

SCRIPTS = paths.SCRIPTS
COUNT = "i=0; while [ $i -lt {n} ]; do i=$((i+1)); echo step $i seen $((i*4)); sleep 0.05; done"
PATTERN = r"step (?P<step>\d+) seen (?P<samples>\d+)"


def measured(folder: Path, *line: object) -> tuple[dict[str, object], object]:
    done = wattlaw("measure", "-o", folder, "--json", folder / "s.json", *line)
    return json.loads((folder / "s.json").read_text()), done


def test_a_script_is_ended_when_it_has_its_steps_and_their_energy_is_known(tmp_path, monkeypatch):
    boards = FakeGpus.create(tmp_path / "boards", 1, high_w=[200.0])
    for name, value in boards.environment().items():
        monkeypatch.setenv(name, value)
    limits = ("--steps", "90", "--warmup-steps", "10", "--sample-hz", "20")
    script = (sys.executable, SCRIPTS / "plain.py", "--epochs", "100000")
    found, done = measured(tmp_path, *limits, "--", *script)
    assert (done.returncode, found["exit_code"]) == (0, 0)
    assert (found["instrumented"], found["parallelism"], found["world_size"]) == (True, "none", 1)
    assert 90 - found["pauses"] == found["steps_measured"]
    assert found["steps"] >= 100
    shown = max(int(line.split()[1]) for line in done.stdout.splitlines() if line[:5] == "step ")
    assert shown - 30 <= found["steps"] <= shown + 1  # its last half second is not recorded
    (record,) = Store(tmp_path).records()
    assert (record.status, record.spec.workload.options["steps"]) == ("done", 90)
    epochs = Store(tmp_path).pandas("epochs")
    windows = epochs[epochs["phase"] == "steps"].sort_values("start_ns")
    assert windows["warmup"].tolist() == [True] + [False] * (len(windows) - 1)
    steady = windows[~windows["warmup"].astype(bool)]
    assert steady["steps"].sum() == found["steps_measured"]
    assert steady["samples"].sum() == found["samples_measured"]
    assert windows["epoch"].isna().all()
    step_s = steady["duration_s"].sum() / steady["steps"].sum()
    assert found["step_time_mean_s"] == pytest.approx(step_s)
    assert found["gpu_energy_per_step_j"] == pytest.approx(200 * step_s, rel=0.05)


@pytest.mark.parametrize(
    ("choice", "parallelism", "late_s"),
    [((), "ddp", 0.0), (("--fsdp", "1"), "fsdp", 0.01), (("--fsdp", "2"), "fsdp", 0.01)],
    ids=["ddp", "fsdp1", "fsdp2"],
)
def test_what_ranks_wait_for_is_split_as_the_script_times_it_and_used_for_predictions(
    tmp_path, choice, parallelism, late_s
):
    line = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    options = ("--warmup-steps", "5", "--", sys.executable, *line, SCRIPTS / "ddp.py")
    found, done = measured(tmp_path, *options, *choice, "--accumulate", "2", "--epochs", "8")
    assert (found["steps"], found["world_size"], found["parallelism"]) == (40, 2, parallelism)
    assert (found["samples_seen"], found["gradient_accumulation"]) == (1600, 2)
    assert (found["dp"], found["tp"], found["pp"], found["cp"]) == (2, 1, 1, 1)
    assert (found["sharding"], found["micro_batch"]) == ("fsdp" if choice else "none", 10)
    assert found["tokens_per_sample"] is None
    results = [json.loads(text) for text in re.findall(r"RESULT (.*)", done.stdout)]
    # Of 80 backward passes, DDP does not show the last; two are a step.
    waits_s = np.array([result["gradient_waits_s"] for result in results], float)
    waits_s = waits_s.reshape(2, 40, 2).sum(2)
    store = Store(tmp_path)
    runs, epochs = store.pandas("runs"), store.pandas("epochs")
    steady = epochs[(epochs["phase"] == "steps") & ~epochs["warmup"].astype(bool)]
    begins, counts = steady["from_step"].astype(int), steady["steps"].astype(int)
    steps = np.concatenate([np.arange(a, a + b) for a, b in zip(begins, counts, strict=True)])
    least_s = waits_s.min(0)[steps]
    for name, steps_s in (
        ("communication_s", least_s),
        ("rank_wait_s", waits_s.mean(0)[steps] - least_s),
    ):
        expected_s = np.nansum(steps_s)
        # A callback may be late on a busy machine. FSDP's copies are timed, its collectives here.
        near_s = (0.004 if choice else 0.001) * len(steps)
        assert steady[name].sum() == pytest.approx(expected_s, rel=0.15, abs=near_s)
    assert steady["rank_wait_s"].sum() > 0.8 * late_s * len(steps)  # twice, mean of two ranks
    (job,) = jobs_of(run_metrics(runs, epochs), "command")
    (observation,) = job.observations
    share = steady["communication_s"].sum() / steady["duration_s"].sum()
    assert observation.communication_s == pytest.approx(share * observation.step_time_s)
    assert observation.waiting_s > 0


def test_the_layout_of_an_unmodified_script_is_seen_and_its_samples_are_counted_once(tmp_path):
    """fully_shard over two copies, each of which two ranks share by parallelize_module."""
    line = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    script = (SCRIPTS / "sharded.py", "--tp", "2", "--accumulate", "2", "--recompute")
    found, done = measured(tmp_path, "--", sys.executable, *line, *script)
    assert done.returncode == 0, done.stderr
    layout = {
        "tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 2, "virtual_stages": 1, "sharding": "fsdp",
        "checkpointing": "full", "gradient_accumulation": 2, "micro_batch": 2,
        "tokens_per_sample": 12.0, "parallelism": "tensor", "world_size": 4,
    }  # fmt: skip
    assert {name: found[name] for name in layout} == layout
    assert (found["steps"], found["samples_seen"]) == (12, 96)
    assert found["parameters"] == 2 * 16 * 64 + 64 + 16
    (run,) = Store(tmp_path).pandas("runs").to_dict("records")
    assert {name: run[name] for name in layout} == layout
    assert run["peak_memory_bytes"] == found["peak_resident_bytes"] > 50e6
    assert "dp 2 x tp 2" in done.stderr


def test_a_program_is_ended_when_its_output_shows_the_steps(tmp_path):
    limits = ("--steps", "20", "--warmup-steps", "4", "--progress", PATTERN)
    found, done = measured(tmp_path, *limits, "--", "sh", "-c", COUNT.format(n=10_000))
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines == [f"step {n} seen {n * 4}" for n in range(1, len(lines) + 1)]
    assert 24 <= len(lines) < 100
    assert (found["instrumented"], found["world_size"]) == (False, None)
    assert found["steps_measured"] + found["pauses"] == 20
    assert 0.04 < found["step_time_mean_s"] < 1
    assert found["samples_measured"] == 4 * found["steps_measured"]


def test_a_program_that_ends_before_its_steps_keeps_its_exit_code(tmp_path):
    limits = ("--steps", "200", "--warmup-steps", "2", "--progress", PATTERN)
    found, done = measured(tmp_path, *limits, "--", "sh", "-c", COUNT.format(n=8) + "; exit 5")
    assert (done.returncode, found["exit_code"]) == (5, 5)
    assert (found["steps"], found["samples_seen"]) == (8, 32)
    assert [note for note in found["notes"] if "6 of 200 measured steps" in note]


@pytest.mark.parametrize(
    "options",
    [
        ("--steps", "5", "--seconds", "5"),
        ("--steps", "5", "--instrument", "none"),
        ("--progress", "step"),
    ],
)
def test_options_that_cannot_work_start_nothing(tmp_path, options):
    done = wattlaw("measure", "-o", tmp_path / "s", *options, "--", "touch", tmp_path / "started")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "s").exists()


FAULTS = {
    "full": "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))",
    "never": "raise SystemExit(5)",
}
TRAINING = """
import time, torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
{}
for number in range(150):
    optimizer.step()
    time.sleep(0.01)
    print(number)
raise SystemExit(5)
"""


@pytest.mark.parametrize(
    ("fault", "note"),
    [
        ("full", "the records stop before"),
        ("never", "but no step was recorded"),
    ],
)
def test_what_disturbs_the_records_is_a_note_and_not_an_error_of_the_script(tmp_path, fault, note):
    script = (sys.executable, "-c", TRAINING.format(FAULTS[fault]))
    found, done = measured(tmp_path, "--", *script)
    assert (done.returncode, found["exit_code"]) == (5, 5)
    assert done.stdout.split() == [str(n) for n in range(0 if fault == "never" else 150)]
    assert "Traceback" not in done.stderr
    assert [text for text in found["notes"] if note in text]
