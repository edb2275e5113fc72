"""Studies on the test cluster: written, run from a login host, read back."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from slurm.cluster import Cluster
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store

#: The digits' net, pausing for each batch: it takes its time without the processor's.
PLUGIN = Path(__file__).parents[1] / "support" / "dropout_plugin"
SLOW = [{"name": "digits-dropout", "options": {"width": 4}}]
RUN_S = 350
#: Of the net that pauses: about 3 s of training in each epoch.
PAUSE_S = 0.25


@dataclass
class Desk:
    """A user at a login host, with one study and its store."""

    cluster: Cluster
    folder: Path

    def pauses(self, seconds: float) -> None:
        """Have the net that pauses do so for each batch, from now on also in runs under way."""
        fresh = self.folder / "pause.new"
        fresh.write_text(str(seconds))
        fresh.rename(self.folder / "pause")

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def write(self, slurm: dict[str, object] | None = None, **changes: object) -> None:
        asked: dict[str, object] = {"poll_s": 1, "settle_s": 5, "time": "10", **(slurm or {})}
        study: dict[str, object] = {
            "name": "on-slurm",
            "workloads": [{"name": "digits-cnn"}],
            "sweeps": [{"gpus": [2], "global_batch": [128]}],
            "order": "as_written",
            "measure": {"epochs": 2, "warmup_epochs": 1, "sample_hz": 20},
        }
        launch = {"kind": "slurm", "gpus_per_node": 1, "slurm": asked}
        launch |= changes.pop("launch", {})
        text = yaml.safe_dump(study | changes | {"launch": launch})
        (self.folder / "study.yaml").write_text(text)

    def line(self, *words: object, host: str = "login1") -> list[str]:
        here = ["env", f"--chdir={self.folder}"]
        return self.cluster.on(host, *here, sys.executable, "-m", "wattlaw", *words)

    def environment(self) -> dict[str, str]:
        return self.cluster.environment() | {
            "PYTHONPATH": str(PLUGIN),
            "TEST_PAUSE_FILE": str(self.folder / "pause"),
            "OMP_NUM_THREADS": "1",
        }

    def does(self, *words: object, host: str = "login1") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.line(*words, host=host), env=self.environment(),
            capture_output=True, text=True, timeout=RUN_S, check=False,
        )  # fmt: skip

    def runs(self, host: str = "login1") -> "subprocess.CompletedProcess[str]":
        return self.does("run", "study.yaml", "--store", "store", host=host)

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[str]"]:
        line = self.line("run", "study.yaml", "--store", "store")
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(line, env=self.environment(), text=True, **both)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def records(self) -> list[RunRecord]:
        return Store(self.store).records() if (self.store / "runs").is_dir() else []

    def record(self) -> RunRecord:
        (found,) = self.records()
        return found

    def wait_epochs(self, count: int) -> None:
        def trained() -> bool:
            streams = self.store.glob("runs/*/live/*/windows.*.csv")
            return any(text.read_text().count("train") >= count for text in streams)

        self.cluster.wait_for(trained, f"{count} epochs", 90)

    def wait_begun(self) -> None:
        self.cluster.wait_for((self.folder / "begun").exists, "the command to begin", 90)

    def submissions(self) -> int:
        return len(self.cluster.calls("sbatch"))


def slowly(desk: Desk, **changes: object) -> None:
    """Write a study of one run on one node that keeps a checkpoint of each epoch.

    It lasts longer than any test needs, also on a busy machine, until ``desk.pauses(0)``.
    """
    desk.pauses(PAUSE_S)
    slurm = changes.pop("slurm", None)
    alone = [{"gpus": [1], "global_batch": [128]}]
    changes = {"workloads": SLOW, "train": {"checkpoint_every": 1}, "sweeps": alone} | changes
    measure = {"epochs": 16, "warmup_epochs": 1, "sample_hz": 20, "evaluate": False}
    desk.write(slurm, measure=measure, **changes)


def waiting(desk: Desk, **changes: object) -> None:
    """Write a study of one command on one node; it trains nothing, until ``desk.pauses(0)``."""
    desk.pauses(PAUSE_S)
    loop = f"touch {desk.folder}/begun; until grep -qx 0 {desk.folder}/pause; do sleep 0.2; done"
    command = [{"name": "waits", "command": ["bash", "-c", loop]}]
    desk.write(workloads=command, sweeps=[{"gpus": [1], "global_batch": [128]}], **changes)


def finished(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=RUN_S)
    assert process.returncode == 0, output
    return output


def is_whole(desk: Desk, record: RunRecord) -> None:
    assert record.status == "done", record.reason
    epochs = Store(desk.store).pandas("epochs")
    mine = epochs[(epochs.run_id == record.run_id) & (epochs.phase == "train")]
    for epoch in range(record.spec.measure.epochs):
        parts = mine[mine.epoch == epoch]
        assert set(parts.groupby("host").steps.sum()) == {12}, (epoch, parts)
    assert mine[mine.from_step > 0].interrupted.all()
