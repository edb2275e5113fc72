"""One side of a throughput comparison, in a process of its own: our loop, or the reference's.

``python benchmarks/sides.py ours|reference CASE`` builds a loop once and trains a block whenever it
is asked on standard input, so that two of them can take turns on one machine.
"""

import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from watched import end_tree
from wattlaw import processes
from wattlaw.study.base import Precision

_SEED = 0
_PROFILED = {"wait": 4, "warmup": 2, "active": 6}  # steps
_ROWS = 25


@dataclass(frozen=True)
class Case:
    """What both sides train, with the same settings."""

    workload: str
    options: dict[str, Any]  # ``train_samples`` of them make an epoch
    batch: int
    precision: Precision = "fp32"
    channels_last: bool = False
    compile: bool = False
    fused: bool = True
    loader_workers: int = 0

    @property
    def samples(self) -> int:
        """Return the samples of an epoch: whole batches, so that shapes never change."""
        return int(self.options["train_samples"])


class Lost(Exception):
    """A side that cannot go on; the text says why."""


class Side:
    """The handle of one side."""

    def __init__(self, role: str, case: Case, environment: Mapping[str, str]) -> None:
        self.role = role
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close
        line = [sys.executable, __file__, role, json.dumps(dataclasses.asdict(case))]
        self.process = subprocess.Popen(
            line,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, limit_s: float, **request: Any) -> dict[str, Any]:
        """Ask for something; return the answer.

        Raises
        ------
        Lost
            The side says that it cannot, or does not answer in time.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return self.answer(limit_s)

    def answer(self, limit_s: float) -> dict[str, Any]:
        """Wait for an answer; the first one comes when the side is built."""
        assert self.process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(limit_s, end)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            self._log.seek(0)
            said = " ".join(self._log.read()[-400:].split())
            why = f"no answer in {limit_s:.0f} s" if late.is_set() else f"ended: {said}"
            raise Lost(f"{self.role}: {why}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise Lost(f"{self.role}: {found['error']}")
        return found

    def close(self) -> None:
        """End the process."""
        end_tree(self.process)
        self._log.close()


@contextmanager
def opened(
    case: Case, environment: Mapping[str, str], limit_s: float
) -> Iterator[tuple[Side, Side, dict[str, Any]]]:
    """Build both sides at the same time; give them, and what ours has told of itself.

    ``hows`` are the reference's loops; none where it cannot be built, and ``failed`` says why.

    Raises
    ------
    Lost
        Ours cannot be built, or they do not train models of the same size.
    """
    sides = [Side(role, case, environment) for role in ("ours", "reference")]
    try:
        told = sides[0].answer(limit_s)
        try:
            reference = sides[1].answer(limit_s)
        except Lost as lost:
            reference = {"hows": [], "failed": {"reference": str(lost)}}
        parameters = reference.pop("parameters", told["parameters"])
        if parameters != told["parameters"]:
            raise Lost(f"{told['parameters']} parameters, the reference {parameters}")
        yield sides[0], sides[1], told | {"failed": {}} | reference
    finally:
        for side in sides:
            side.close()


# What follows runs in the process of a side.


def main() -> None:
    """Build a side and answer, a line for a line; end with whoever asks."""
    processes.end_with_parent(os.getppid())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(found: Mapping[str, Any]) -> None:
        print(json.dumps(found), file=answers, flush=True)

    role, case = sys.argv[1], Case(**json.loads(sys.argv[2]))
    try:
        with _loops(role, case) as (loops, told):
            answer(told | {"hows": list(loops)})
            for line in sys.stdin:
                request = json.loads(line)
                if "profile" in request:
                    answer({"profile": _profile(loops[request["profile"]], case)})
                else:
                    epochs = request["epochs"]
                    begun, ended = loops[request["how"]](epochs)
                    found = {"start_ns": begun.ns, "seconds": ended.wall_s - begun.wall_s}
                    found |= {"cpu_s": ended.cpu_s - begun.cpu_s}
                    answer(found | {"samples": epochs * case.samples})
    except Exception as error:
        words = " ".join(str(error).split())[:400]
        answer({"error": f"{type(error).__name__}: {words}"})
    os._exit(0)  # gloo may abort while the interpreter ends


class Moment(NamedTuple):
    """A moment by three clocks: ns since 1970, and seconds of the wall's and processor's clock."""

    ns: int
    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> "Moment":
        """Return the present one, once the GPU has done all it was given."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return cls(time.time_ns(), time.perf_counter(), time.process_time())


#: Trains so many epochs; returns when it began and when it ended.
Loop = Callable[[int], tuple[Moment, Moment]]


@contextmanager
def _loops(role: str, case: Case) -> Iterator[tuple[dict[str, Loop], dict[str, Any]]]:
    """Give the loops of a side by name, and what is to be told of it."""
    import torch

    threads = int(os.environ.get("OMP_NUM_THREADS", processes.cores()))
    torch.set_num_threads(threads)
    torch.manual_seed(_SEED)
    if role == "reference":
        from references import reference

        model, loops = reference(case)
        yield loops, _told(model)
        return
    from wattlaw.training.ranks import process_group

    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    with tempfile.TemporaryDirectory() as name:
        os.environ |= alone | {"WATTLAW_RENDEZVOUS_FILE": str(Path(name) / "meeting")}
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with process_group() as ranks:
            model, loops, flops_per_sample = _ours(case, ranks)
            yield (
                loops,
                _told(model)
                | {
                    "device": str(ranks.device),
                    "threads": threads,
                    "flops_per_sample": flops_per_sample,
                },
            )


def _told(model: Any) -> dict[str, Any]:
    return {"parameters": sum(each.numel() for each in model.parameters() if each.requires_grad)}


def _ours(case: Case, ranks: Any) -> tuple[Any, dict[str, Loop], float | None]:
    """Return our model, our loop with all that an epoch does, and its operations per sample."""
    from wattlaw.study.model import Measure, RunSpec, Setting, Train, WorkloadSpec
    from wattlaw.training import flops
    from wattlaw.training.loop import Training
    from wattlaw.workloads import catalogue

    spec = RunSpec(
        workload=WorkloadSpec(name=case.workload, options=case.options),
        setting=Setting(
            gpus=1, global_batch=case.batch, local_batch=case.batch, precision=case.precision
        ),
        repeat=0,
        measure=Measure(evaluate=False),
        train=Train(
            channels_last=case.channels_last,
            compile=case.compile,
            fused_optimizer=case.fused,
            loader_workers=case.loader_workers,
        ),
        launch_kind="local",
    )
    workload = catalogue.build(spec.workload)
    model = workload.model().to(ranks.device)
    training = Training(workload, model, spec, _SEED, ranks)
    counted = flops.flops_per_sample(workload, model, training.data)
    done = iter(range(10**9))

    def loop(epochs: int) -> tuple[Moment, Moment]:
        begun = Moment.now()
        for _ in range(epochs):
            training.train_epoch(next(done))
        return begun, Moment.now()

    return model, {"ours": loop}, counted


def _profile(loop: Loop, case: Case) -> list[str]:
    """Return what some steps spend their time on, as a table."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import ProfilerActivity, profile, schedule

    on_gpu = torch.cuda.is_available()
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=kinds, schedule=schedule(**_PROFILED, repeat=1)) as watched:
        hook = register_optimizer_step_post_hook(lambda *_: watched.step())
        loop(math.ceil((1 + sum(_PROFILED.values())) * case.batch / case.samples))
        hook.remove()
    key = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    table: str = watched.key_averages().table(
        sort_by=key, row_limit=_ROWS, max_name_column_width=60
    )
    return table.splitlines()


if __name__ == "__main__":
    main()
