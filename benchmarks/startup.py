"""The start-up times of ``import wattlaw``, ``wattlaw --help`` and ``wattlaw advise``.

Run with ``make bench``, or with ``--store`` for ``advise`` on another store than the quickstart's.
An empty Python process runs beside them in each round, so that medians of one machine compare. One
round before them writes the compiled modules and fills the file cache. Other processes of a busy
machine lengthen the wall time, and the processor time hardly.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import write_results

ROUNDS = 15
EMPTY, IMPORT, HELP, ADVISE = "python -c pass", "import wattlaw", "wattlaw --help", "wattlaw advise"
#: Upper limits of the medians; that of the import is beyond an empty process.
TARGETS_S = {IMPORT: 0.05, HELP: 0.15, ADVISE: 1.5}


def main() -> None:
    """Measure, print, and write the result with its settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=Path("quickstart/wattlaw-store"))
    store = parser.parse_args().store
    wattlaw = [sys.executable, "-m", "wattlaw"]
    commands = {
        EMPTY: [sys.executable, "-c", "pass"],
        IMPORT: [sys.executable, "-c", "import wattlaw"],
        HELP: [*wattlaw, "--help"],
        ADVISE: [*wattlaw, "advise", str(store)],
    }
    rounds = [{name: seconds(line) for name, line in commands.items()} for _ in range(ROUNDS + 1)]
    times = {name: [took[name] for took in rounds[1:]] for name in commands}
    medians, processor = (
        {name: statistics.median(took[i] for took in times[name]) for name in commands}
        for i in (0, 1)
    )
    judged = medians | {IMPORT: medians[IMPORT] - medians[EMPTY]}
    write_results(
        "startup",
        f"cpu{os.cpu_count()}",
        {
            "what": "wall time of processes, in alternating rounds",
            "rounds": ROUNDS,
            "store_runs": len(list((store / "runs").iterdir())),
            "median_s": medians,
            "shortest_s": {name: min(times[name])[0] for name in commands},
            "median_processor_s": processor,
            "import_beyond_python_s": judged[IMPORT],
            "target_s": TARGETS_S,
            "met": {name: judged[name] < target_s for name, target_s in TARGETS_S.items()},
        },
    )


def seconds(line: list[str]) -> tuple[float, float]:
    """Return the wall and processor time of a process; Python may write its compiled modules."""
    environment = {name: os.environ[name] for name in os.environ if name != _NO_BYTECODE}
    before, begun_s = os.times(), time.perf_counter()
    subprocess.run(line, check=True, capture_output=True, env=environment)
    took_s, after = time.perf_counter() - begun_s, os.times()
    used_s = after.children_user + after.children_system
    return took_s, used_s - before.children_user - before.children_system


_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"

if __name__ == "__main__":
    main()
