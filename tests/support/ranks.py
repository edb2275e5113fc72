"""Trains workloads in real processes and a real process group, without launcher and sampler.

The processes are forked from a server that has imported the libraries once, which takes seconds.
"""

import multiprocessing
import os
import tempfile
import traceback
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from wattlaw.store.live import read_live
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.schema import WINDOWS
from wattlaw.study.model import Measure, RunSpec, Train, WorkloadSpec
from wattlaw.study.setting import Setting

_HOST = "here"
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["ranks_imports"])


@cache
def _serve() -> None:
    """Start the server, which finds what it imports by its environment, not by sys.path."""
    here = Path(__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (here, here.parent))))
        forkserver.ensure_running()


def spec_of(
    name: str,
    options: dict[str, Any],
    *,
    gpus: int = 1,
    global_batch: int = 8,
    epochs: int = 2,
    precision: str = "fp32",
    fraction: float = 1.0,
    evaluate: bool = True,
    layout: dict[str, Any] | None = None,
    **train: Any,
) -> RunSpec:
    setting = Setting(
        gpus=gpus, local_batch=global_batch // gpus, precision=precision,
        dataset_fraction=fraction, **layout or {},
    )  # fmt: skip
    return RunSpec(
        workload=WorkloadSpec(name=name, options=options),
        setting=setting,
        repeat=0,
        measure=Measure(epochs=epochs, warmup_epochs=0, evaluate=evaluate),
        train=Train(**train),
        launch_kind="local",
    )


def start(
    spec: RunSpec, folder: Path, attempt: int = 1, seed: int = 0, warned_at: int | None = None
) -> list[Any]:
    """Start the ranks of a run; return their processes.

    ``warned_at`` is which of their looks for a warning sees one, counted from 1: there is a look
    after every step, one before an epoch's evaluation and one after it.
    """
    _serve()
    live = RunFolder(folder).live(attempt)
    live.mkdir(parents=True)
    meeting = tempfile.mktemp(dir=live)  # noqa: S306 - torch makes the file
    ranks = [
        _SERVER.Process(target=_rank, args=(spec, folder, attempt, rank, meeting, seed, warned_at))
        for rank in range(spec.setting.gpus)
    ]
    for rank in ranks:
        rank.start()
    return ranks


def trained(
    spec: RunSpec, folder: Path, attempt: int = 1, seed: int = 0, warned_at: int | None = None
) -> list[dict[str, Any]]:
    """Train a run to its end, or to a warning; return its windows."""
    ranks = start(spec, folder, attempt, seed, warned_at)
    for rank in ranks:
        rank.join(150)
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
    told = "\n".join(path.read_text() for path in RunFolder(folder).live(attempt).glob("error.*"))
    assert codes == [0] * len(ranks), told
    return windows_of(folder, attempt)


def windows_of(folder: Path, attempt: int = 1) -> list[dict[str, Any]]:
    path = RunFolder(folder).live(attempt) / f"windows.{_HOST}.csv"
    return read_live(path, WINDOWS, _HOST).to_pylist() if path.exists() else []


def losses(windows: list[dict[str, Any]], phase: str = "train") -> list[float]:
    return [window["loss"] for window in windows if window["phase"] == phase]


class _Looks:
    """A warning that is seen at one of the looks for it, and at all after that."""

    def __init__(self, warned_at: int) -> None:
        self._left = warned_at

    def begin(self) -> None:
        """Do nothing at an epoch's begin."""

    def now(self) -> bool:
        self._left -= 1
        return self._left <= 0

    after_step = now


def _rank(
    spec: RunSpec,
    folder: Path,
    attempt: int,
    rank: int,
    meeting: str,
    seed: int,
    warned_at: int | None,
) -> None:
    import torch

    from wattlaw.common import registry
    from wattlaw.running.training import environment, failures
    from wattlaw.running.training.loop import Training
    from wattlaw.running.training.ranks import process_group
    from wattlaw.running.training.shared_models import new_model
    from wattlaw.store.live import open_windows
    from wattlaw.workloads import catalogue

    # Loaders are forked, as in a rank that torchrun starts. A server of the rank's own, which is
    # what it inherits, would hold its loaders and they it, for ever after the rank's end.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    world = str(spec.setting.gpus)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "OMP_NUM_THREADS": "1"}
    os.environ[environment.RENDEZVOUS_FILE] = meeting
    run = RunFolder(folder)
    try:
        entry = registry.load(catalogue.GROUP, spec.workload.name)
        workload = catalogue.build(spec.workload)
        with process_group(spec.setting.tp) as ranks:
            torch.manual_seed(seed)
            model = new_model(workload, spec.setting, ranks)
            training = Training(workload, model, spec, seed, ranks)
            if warned_at is not None:
                training._notice = _Looks(warned_at)
            windows = open_windows(run.live(attempt), _HOST) if rank == 0 else None
            training.run(windows, entry.metric, run, run.live(attempt))
    except Exception as error:
        failures.write_error(run.live(attempt), rank, error)
        (run.live(attempt) / f"error.{rank}").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)  # gloo may abort while the interpreter ends
