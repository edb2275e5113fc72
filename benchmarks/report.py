"""Time and page size of ``wattlaw report`` for a store as large as the MIT study.

Run with ``make bench-analysis``. The store is synthetic (laws plus noise, from a seed): 3,402 runs
of seven workloads, with caps and clocks. The command runs in a process of its own, and its time
includes reading the store. The result has the times of several calls and the shortest one, because
other processes can only make a call slower.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from made_stores import write_store
from made_studies import MIT, Caps, Model, mit

TIMES = 3
LIMIT_S, LIMIT_MB = 60.0, 5.0
SAMPLES = 60  # of telemetry, per run
RESULTS = Path(__file__).parent / "results"
#: 7 models x 9 settings of limits x 9 counts x 6 repeats.
MODELS = {
    **MIT,
    "inceptionv3": Model(3500.0, 0.70, 256, metric="top1"),
    "fourcastnet": Model(8000.0, 0.90, 1, 280.0, metric="rmse"),
}
CAPS = Caps(
    slower={100.0: 1.6, 150.0: 1.2, 200.0: 1.0, 250.0: 1.0},
    draws={100.0: 0.5, 150.0: 0.7, 200.0: 0.85, 250.0: 1.0},
    clock_slower={135.0: 6.0, 435.0: 2.6, 735.0: 1.7, 1035.0: 1.3},
    clock_draws={135.0: 0.3, 435.0: 0.42, 735.0: 0.55, 1035.0: 0.75},
)
COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 424)


def main() -> None:
    """Write the store, time the command, print, and write the result with its settings."""
    study = mit(models=MODELS, counts=COUNTS, caps=CAPS, repeats=6)
    with tempfile.TemporaryDirectory() as folder:
        store, page = Path(folder) / "store", Path(folder) / "report.html"
        write_store(store, study.runs, study.epochs, samples=SAMPLES)
        line = [sys.executable, "-m", "wattlaw", "report", str(store), "-o", str(page)]
        times = []
        for _ in range(TIMES):
            begun_s = time.perf_counter()
            subprocess.run(line, check=True, capture_output=True)
            times.append(time.perf_counter() - begun_s)
        size_mb = page.stat().st_size / 1e6
    result = {
        "what": "wattlaw report of a synthetic store",
        "runs": len(study.runs),
        "windows": len(study.epochs),
        "telemetry_rows": len(study.runs) * SAMPLES,
        "times_s": times,
        "best_s": min(times),
        "page_mb": size_mb,
        "target": f"under {LIMIT_S:g} s and {LIMIT_MB:g} MB",
        "met": min(times) < LIMIT_S and size_mb < LIMIT_MB,
        "python": platform.python_version(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, no GPU used",
        "load_average": os.getloadavg()[0],
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"report-cpu{os.cpu_count()}-{datetime.now(UTC):%Y-%m}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
