"""The cost of sampling by source: processor time of the sampler, of Zeus and of CodeCarbon.

Run with ``make bench-overhead``. All samplers and tools are watched at the same time, so that they
run under the same load. A call of the fake NVIDIA driver takes 2 microseconds, far less than one of
a real driver. ``--tree NAME=ROOT`` adds a copy of another machine's ``/sys`` as a source.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import cpu_s, end_tree, write_results
from overhead import FakeGpus, start_tool
from powercap import Powercap
from trees import AcpiMeters, IntelCards, grace_names
from wattlaw.measure.devices.sysfs import ROOT_VARIABLE

HZ = 10.0


@dataclass(frozen=True)
class Case:
    """A tool on a source: how to make it in a folder, and how many devices it has."""

    name: str
    tool: str
    hz: float  # 0: the default of the tool
    devices: int
    make: Callable[[Path], object]
    root: Path | None = None  # of the kernel's files; None: ``sys`` in the folder


def boards(count: int, *, buffers: bool) -> Callable[[Path], object]:
    """Return a function that makes boards of a fake driver."""
    return lambda folder: FakeGpus.create(folder / "boards", count, buffers=int(buffers))


CASES = [
    Case("processes only", "wattlaw", HZ, 0, lambda _: None),
    *(
        Case(f"{n} NVIDIA, {how}", "wattlaw", HZ, n, boards(n, buffers=how == "buffered"))
        for how in ("buffered", "polled")
        for n in (1, 8)
    ),
    Case("RAPL", "wattlaw", HZ, 4, lambda folder: Powercap(folder / "sys/class/powercap")),
    Case("6 Intel GPUs", "wattlaw", HZ, 6, lambda folder: IntelCards(folder / "sys", 6)),
    Case(
        "4 Grace Hopper modules",
        "wattlaw",
        HZ,
        8,
        lambda folder: AcpiMeters(folder / "sys", grace_names(4)),
    ),
    *(
        Case(f"{n} NVIDIA", tool, hz, n, boards(n, buffers=True))
        for tool, rates in (("zeus", (0.0, HZ)), ("codecarbon", (0.0, 1.0)))
        for hz in rates
        for n in (1, 8)
    ),
]


def watch(
    cases: list[Case], settle_s: float, watch_s: float, rounds: int, python: Path
) -> list[list[float]]:
    """Return for each round the share of a core that each case uses, all at the same time."""
    shares = []
    with contextlib.ExitStack() as stack:
        processes: list[subprocess.Popen[str]] = []
        run = subprocess.Popen(["/bin/sleep", "infinity"], text=True)  # the processes of a run
        stack.callback(end_tree, run)
        for case in cases:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            (folder / "sys").mkdir()
            case.make(folder)
            more = {ROOT_VARIABLE: str(case.root or folder / "sys")}
            processes.append(start_tool(case.tool, case.hz, folder, python, more, run.pid))
            stack.callback(end_tree, processes[-1])
        time.sleep(settle_s)
        for _ in range(rounds):
            begun_s = time.monotonic()
            before_s = [cpu_s(process.pid) for process in processes]
            time.sleep(watch_s)
            used_s = [cpu_s(process.pid) for process in processes]
            took_s = time.monotonic() - begun_s
            used = zip(before_s, used_s, strict=True)
            shares.append([(after - before) / took_s for before, after in used])
            print([f"{share:.4%}" for share in shares[-1]], os.getloadavg(), flush=True)
    return shares


def main() -> None:
    """Watch all cases for some time, print a table, and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers-python", type=Path, default=Path(".venv-peers/bin/python"))
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=ROOT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--watch-s", type=float, default=60.0)
    parser.add_argument("--settle-s", type=float, default=20.0)
    options = parser.parse_args()
    python = options.peers_python
    cases = [case for case in CASES if case.tool == "wattlaw" or python.exists()]
    for name, root in (tree.split("=", 1) for tree in options.tree):
        cases.append(Case(name, "wattlaw", HZ, 0, lambda _: None, Path(root).resolve()))
    settle_s, watch_s = options.settle_s, options.watch_s
    rounds = watch(cases, settle_s, watch_s, options.rounds, python)
    shares = [statistics.median(values) for values in zip(*rounds, strict=True)]
    zeus = {case.devices: share for case, share in zip(cases, shares, strict=True)
            if case.tool == "zeus" and case.hz == HZ}  # fmt: skip
    rows: list[dict[str, object]] = []
    for place, (case, share) in enumerate(zip(cases, shares, strict=True)):
        ratio = zeus[case.devices] / share if case.devices in zeus else None
        rows.append(
            {
                "tool": case.tool,
                "source": case.name,
                "hz": case.hz or "default",
                "share_of_a_core": share,
                "share_per_device": share / case.devices if case.devices else None,
                "zeus_10_hz_times": ratio,
                "all_rounds": [values[place] for values in rounds],
            }
        )
        print(f"{case.tool:10} {case.name:20} {case.hz:4g} Hz {share:.4%}", flush=True)
    settings = {"rounds": options.rounds, "watch_s": watch_s, "settle_s": settle_s}
    results = {
        "driver": "fake (tests/support/fake_nvml), and files: nothing here ran on a GPU",
        "settings": settings,
        "load_average": os.getloadavg()[0],
        "sampling": rows,
    }
    write_results("sampler-sources", f"cpu{os.cpu_count()}", results, show=False)


if __name__ == "__main__":
    main()
