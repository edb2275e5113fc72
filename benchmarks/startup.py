"""The time of ``wattlaw --help``, and that of an empty Python process on the same machine.

Run with ``make bench``. Times are medians over interleaved starts. Only their ratio can be compared
between machines.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

STARTS = 15
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "wattlaw --help": [sys.executable, "-m", "wattlaw", "--help"],
}
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure, print, and write the result with its settings."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(STARTS):
        for name, line in COMMANDS.items():
            begun_s = time.perf_counter()
            subprocess.run(line, check=True, capture_output=True)
            times[name].append(time.perf_counter() - begun_s)
    medians = {name: statistics.median(times_s) for name, times_s in times.items()}
    python_s, help_s = medians.values()
    result = {
        "what": "start-up of the command line",
        "median_s": medians,
        "ratio": help_s / python_s,
        "target": "wattlaw --help under 0.3 s",
        "met": help_s < 0.3,
        "starts": STARTS,
        "python": platform.python_version(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, no GPU used",
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"startup-cpu{os.cpu_count()}-{datetime.now(UTC):%Y-%m}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
