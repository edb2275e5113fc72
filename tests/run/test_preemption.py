"""A run that gets a preemption notice stops, and a later attempt continues it exactly."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import torch

from agents import HERE, PLUGIN, agent, record_of
from conftest import wait_for
from ranks import losses, spec_of, trained
from reduced import WORKLOADS
from wattlaw.running.finish import finish
from wattlaw.running.training.agent import WORKER
from wattlaw.running.training.environment import WARNS
from wattlaw.running.training.preemption import steps_between
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import RunSpec, run_id

STEPS = 6  # of an epoch: 1437 samples are 5 x 256 + 157
SAMPLER = "wattlaw.measure.telemetry.sampler"
LOOKS = STEPS + 2  # checks for a notice, in an epoch that is not the last


def model_of(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / "model.pt", weights_only=True)["model"]
    return found


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def content(folder: RunFolder, attempt: int, name: str) -> dict[str, Any] | None:
    path = folder.live(attempt) / f"{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def digits(gpus: int = 1, **train: object) -> RunSpec:
    options = {"width": 8}
    return spec_of(
        "digits-dropout", options, gpus=gpus, global_batch=256, epochs=3, save_model=True, **train
    )


@pytest.fixture(scope="module", autouse=True)
def plugin():
    """Make the workload with dropout importable; the ranks inherit the path of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PLUGIN)
        yield


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    return trained(digits(), folder), folder


@pytest.mark.parametrize(
    ("looks", "stops"),
    [
        ([1, STEPS - 1], [(0, 1), (0, STEPS)]),  # the second before its evaluation
        ([LOOKS + 4, 1, 3], [(1, 4), (1, 5), (2, 0)]),
        ([2 * LOOKS + STEPS + 1], [(2, STEPS)]),
    ],
)
def test_a_run_preempted_at_any_step_ends_with_the_same_result(
    looks, stops, uninterrupted, tmp_path
):
    folder = RunFolder(tmp_path / "run")
    found = []
    for attempt, look in enumerate([*looks, None], 1):
        found.append(trained(digits(), folder.path, attempt, warned_at=look))
    assert are_equal(model_of(folder.path), model_of(uninterrupted[1]))
    for attempt, (epoch, step) in enumerate(stops, 1):
        at = {"epoch": epoch, "step": step}
        assert content(folder, attempt, "checkpointed") == at
        assert content(folder, attempt, "stopped") == at | {"reason": "preemption notice (SIGUSR1)"}
    assert content(folder, len(found), "stopped") is None
    rows = [row for rows in found for row in rows]
    assert losses(rows, "evaluate") == losses(uninterrupted[0], "evaluate")
    for epoch, row in enumerate(one for one in uninterrupted[0] if one["phase"] == "train"):
        parts = [one for one in rows if one["phase"] == "train" and one["epoch"] == epoch]
        assert sum(part["samples"] for part in parts) == row["samples"]
        assert sum(part["steps"] for part in parts) == STEPS
        mean = sum(part["loss"] * part["samples"] for part in parts) / row["samples"]
        assert mean == pytest.approx(row["loss"], rel=1e-12)


def test_an_interrupted_epoch_continues_with_any_data_loading(tmp_path):
    spec = digits(2, gradient_accumulation=3, loader_workers=2)
    trained(spec, tmp_path / "uninterrupted")
    trained(spec, tmp_path / "cut", 1, warned_at=3)
    trained(spec, tmp_path / "cut", 2)
    assert are_equal(model_of(tmp_path / "cut"), model_of(tmp_path / "uninterrupted"))


def test_running_statistics_of_ranks_are_averaged_before_a_checkpoint(tmp_path):
    options = WORKLOADS["resnet50"].options | {"train_samples": 32}
    spec = spec_of("resnet50", options, gpus=2, epochs=1, save_model=True)
    trained(spec, tmp_path / "uninterrupted")
    trained(spec, tmp_path / "cut", 1, warned_at=3)
    trained(spec, tmp_path / "cut", 2)
    one, other = model_of(tmp_path / "cut"), model_of(tmp_path / "uninterrupted")
    statistics = [name for name in one if "running" in name]
    assert statistics
    for name in statistics:  # a mean of means is the mean but for its last digits
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.0, 1000), (0.001, 1000), (0.01, 100), (0.3, 3), (100.0, 1)]
)
def test_ranks_check_for_a_notice_about_once_a_second(step_s, steps):
    assert steps_between(step_s) == steps


class Run:
    def __init__(self, folder: Path) -> None:
        train = {"save_model": True}
        self.spec = spec_of(
            "digits-dropout", {"width": 4}, gpus=2, global_batch=24, epochs=2, **train
        )
        self.folder = RunFolder(folder / run_id(self.spec))
        self.attempt = 0

    def begin(self, pause_s: float = 0.0, **more: str) -> "subprocess.Popen[bytes]":
        self.attempt += 1
        self.record = record_of(self.spec, self.folder, self.attempt)
        pause = self.folder.path / "pause"
        pause.write_text(str(pause_s))
        self.agent = agent(self.folder, self.attempt, TEST_PAUSE_FILE=str(pause), **more)
        return self.agent

    def content(self, name: str) -> dict[str, Any] | None:
        return content(self.folder, self.attempt, name)

    def processes(self, module: str) -> list[psutil.Process]:
        children = psutil.Process(self.agent.pid).children()
        return [child for child in children if module in child.cmdline()]


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    if made.attempt and made.agent.poll() is None:
        family = psutil.Process(made.agent.pid).children(recursive=True)
        for process in (*family, made.agent):
            process.kill()
        made.agent.wait()


def test_real_ranks_preempted_within_an_epoch_stop_and_continue(run, tmp_path):
    first = run.begin(0.03, **{WARNS: "1"})
    wait_for(lambda: len(run.folder.windows(1)) == 2, "the first epoch")
    time.sleep(0.4)  # some steps of the second one
    first.send_signal(signal.SIGUSR1)
    assert first.wait(90) == 0
    stopped = run.content("stopped")
    assert stopped["epoch"] == 1
    assert 0 < stopped["step"] < 60
    assert run.content("checkpointed") == {"epoch": 1, "step": stopped["step"]}
    assert run.content(f"ended.{HERE}") == {"code": 0}
    assert finish(run.record, run.folder).status == "failed"

    second = run.begin(**{WARNS: "1"})
    # The ranks import their libraries, or are not there yet.
    wait_for(lambda: run.processes(SAMPLER), "the sampler")
    second.send_signal(signal.SIGUSR1)
    assert second.wait(90) == 0
    assert run.content("stopped")["step"] == stopped["step"] + 1
    third = run.begin(0.01)  # without the variable a signal changes nothing
    wait_for(lambda: len(run.processes(WORKER)) == 2, "the ranks")
    for process in (third, *run.processes(WORKER), *run.processes(SAMPLER)):
        process.send_signal(signal.SIGUSR1)  # Slurm may signal all processes
    assert third.wait(90) == 0, run.folder.log_path.read_text()
    assert run.content("stopped") is None
    done = finish(run.record, run.folder)
    assert done.status == "done", done.reason
    rows = pq.read_table(run.folder.epochs_path).to_pylist()
    training = [row for row in rows if row["phase"] == "train"]
    assert [row["interrupted"] for row in training][:2] == [False, True]
    assert sum(row["steps"] for row in training if row["epoch"] == 1) == 60
    assert len({report.host for report in done.samplers}) == 1

    trained(run.spec, tmp_path / "uncut")
    assert are_equal(model_of(run.folder.path), model_of(tmp_path / "uncut"))


ENDS = """
import os, signal

from wattlaw.running.training import preemption

class AtExit:
    def __del__(self):  # after Python has removed its handlers
        os.kill(os.getpid(), signal.SIGUSR1)

last = AtExit()
with preemption.listening():
    pass
"""


def test_a_notice_that_comes_while_a_rank_exits_does_not_fail_it():
    assert subprocess.run([sys.executable, "-c", ENDS], check=False).returncode == 0
