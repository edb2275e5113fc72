"""A process that trains the loops of one side of a throughput comparison: ours or the reference.

``python benchmarks/loop_process.py ours|reference CASE`` builds the loops once. It then trains a
block for each request on standard input, so that two such processes can take turns on one machine.
"""

import dataclasses
import json
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

from common import end_tree
from wattlaw.common import processes
from wattlaw.study.base_model import Precision

_SEED = 0


@dataclass(frozen=True)
class Case:
    """A workload with the settings that both sides share."""

    workload: str
    options: dict[str, Any]  # ``train_samples`` is the length of an epoch
    batch: int
    precision: Precision = "fp32"
    channels_last: bool = False
    compile: bool = False
    fused: bool = True
    loader_workers: int = 0

    @property
    def samples(self) -> int:
        """Return the samples of an epoch, a multiple of the batch, so that shapes never change."""
        return int(self.options["train_samples"])


class LoopError(Exception):
    """The process of a side has failed; the message says why."""


class LoopProcess:
    """The process of one side, seen from the benchmark."""

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

    def request(self, limit_s: float, **request: Any) -> dict[str, Any]:
        """Send a request and return the reply.

        Raises
        ------
        LoopError
            The process reports an error, or does not reply in time.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return self.receive(limit_s)

    def receive(self, limit_s: float) -> dict[str, Any]:
        """Wait for a reply; the process sends the first one when it has built its loops."""
        assert self.process.stdout is not None
        timed_out = threading.Event()

        def end() -> None:
            timed_out.set()
            self.process.kill()

        timer = threading.Timer(limit_s, end)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            self._log.seek(0)
            output = " ".join(self._log.read()[-400:].split())
            why = f"no answer in {limit_s:.0f} s" if timed_out.is_set() else f"ended: {output}"
            raise LoopError(f"{self.role}: {why}")
        content: dict[str, Any] = json.loads(line)
        if "error" in content:
            raise LoopError(f"{self.role}: {content['error']}")
        return content

    def close(self) -> None:
        """End the process."""
        end_tree(self.process)
        self._log.close()


@contextmanager
def open_pair(
    case: Case, environment: Mapping[str, str], limit_s: float
) -> Iterator[tuple[LoopProcess, LoopProcess, dict[str, Any]]]:
    """Start both processes at the same time; yield them and the facts about our loop.

    The facts have the names of the reference's loops as ``variants``. If the reference cannot be
    built, this list is empty and ``failed`` has the reason.

    Raises
    ------
    LoopError
        Our loop cannot be built, or the models of both sides differ in size.
    """
    sides = [LoopProcess(role, case, environment) for role in ("ours", "reference")]
    try:
        facts = sides[0].receive(limit_s)
        try:
            reference = sides[1].receive(limit_s)
        except LoopError as error:
            reference = {"variants": [], "failed": {"reference": str(error)}}
        parameters = reference.pop("parameters", facts["parameters"])
        if parameters != facts["parameters"]:
            raise LoopError(f"{facts['parameters']} parameters, the reference {parameters}")
        yield sides[0], sides[1], facts | {"failed": {}} | reference
    finally:
        for side in sides:
            side.close()


# The rest of this module runs in the process of a side.


def main() -> None:
    """Build a side, then reply to each request line with one line; end with the parent process."""
    processes.end_with_parent(os.getppid())
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with replies

    def reply(content: Mapping[str, Any]) -> None:
        print(json.dumps(content), file=replies, flush=True)

    role, case = sys.argv[1], Case(**json.loads(sys.argv[2]))
    try:
        with _loops(role, case) as (loops, facts):
            reply(facts | {"variants": list(loops)})
            for line in sys.stdin:
                request = json.loads(line)
                epochs = request["epochs"]
                start, end = loops[request["variant"]](epochs)
                times = {"start_ns": start.ns, "seconds": end.wall_s - start.wall_s}
                times |= {"cpu_s": end.cpu_s - start.cpu_s}
                reply(times | {"samples": epochs * case.samples})
    except Exception as error:
        message = " ".join(str(error).split())[:400]
        reply({"error": f"{type(error).__name__}: {message}"})
    os._exit(0)  # gloo may abort while the interpreter ends


class Moment(NamedTuple):
    """A moment on three clocks: ns since 1970, elapsed seconds, seconds of processor time."""

    ns: int
    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> "Moment":
        """Return the current moment, after the GPU has finished its work."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return cls(time.time_ns(), time.perf_counter(), time.process_time())


#: Trains a number of epochs; returns the start and the end.
Loop = Callable[[int], tuple[Moment, Moment]]


@contextmanager
def _loops(role: str, case: Case) -> Iterator[tuple[dict[str, Loop], dict[str, Any]]]:
    """Yield the loops of a side by name, and facts about its model and its process."""
    import torch

    threads = int(os.environ.get("OMP_NUM_THREADS", processes.cores()))
    torch.set_num_threads(threads)
    torch.manual_seed(_SEED)
    if role == "reference":
        from references import reference

        model, loops = reference(case)
        yield loops, _facts(model)
        return
    from wattlaw.running.training.ranks import process_group

    single_rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    with tempfile.TemporaryDirectory() as name:
        os.environ |= single_rank | {"WATTLAW_RENDEZVOUS_FILE": str(Path(name) / "rendezvous")}
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with process_group() as ranks:
            model, loops, flops_per_sample = _ours(case, ranks)
            yield (
                loops,
                _facts(model)
                | {
                    "device": str(ranks.device),
                    "threads": threads,
                    "flops_per_sample": flops_per_sample,
                },
            )


def _facts(model: Any) -> dict[str, Any]:
    return {"parameters": sum(p.numel() for p in model.parameters() if p.requires_grad)}


def _ours(case: Case, ranks: Any) -> tuple[Any, dict[str, Loop], float | None]:
    """Return our model, our loop with everything an epoch does, and its operations per sample."""
    from wattlaw.running.training import flops
    from wattlaw.running.training.loop import Training
    from wattlaw.study.model import Measure, RunSpec, Train, WorkloadSpec
    from wattlaw.study.setting import Setting
    from wattlaw.workloads import catalogue

    spec = RunSpec(
        workload=WorkloadSpec(name=case.workload, options=case.options),
        setting=Setting(gpus=1, local_batch=case.batch, precision=case.precision),
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
    operations = flops.flops_per_sample(workload, model, training.data)
    epoch_numbers = iter(range(10**9))

    def loop(epochs: int) -> tuple[Moment, Moment]:
        start = Moment.now()
        for _ in range(epochs):
            training.train_epoch(next(epoch_numbers))
        return start, Moment.now()

    return model, {"ours": loop}, operations


if __name__ == "__main__":
    main()
