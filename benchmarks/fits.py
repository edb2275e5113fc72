"""The time of all fits of 500 scaling series: laws, intervals, selection, breakpoint test.

Each series has 9 worker counts and 3 repeats with independent noise; half of the series flatten.
Counts differ between series, so that no cache has results. Run with ``make bench-analysis``.
"""

import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.fitting import fit_groups

SERIES, REPEATS = 500, 3
TARGET_S = 20.0
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure, print, and write the result with its settings."""
    table = study()
    fit_groups(table[table["series"] < 3], "gpus", "epoch_time_s", ["series"])  # imports, caches
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    fits = fit_groups(table, "gpus", "epoch_time_s", ["series"])
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    begun_s = time.perf_counter()
    text = json.dumps([row.to_dict() for row in fits.rows], allow_nan=False)
    result = {
        "what": "all fits of scaling series, in one process",
        "series": SERIES,
        "runs": len(table),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "per_series_ms": 1000 * wall_s / SERIES,
        "json_s": time.perf_counter() - begun_s,
        "json_mb": len(text) / 1e6,
        "laws": len(fits.laws),
        "breakpoints": sum(row.breakpoint is not None for row in fits.rows),
        "target": f"{SERIES} series under {TARGET_S:g} s",
        "met": wall_s < TARGET_S,
        "python": platform.python_version(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, no GPU used",
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"fits-cpu{os.cpu_count()}-{datetime.now(UTC):%Y-%m}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def study() -> pd.DataFrame:
    """Return the runs of all series."""
    rng = np.random.default_rng(0)
    parts = []
    for number in range(SERIES):
        counts = np.sort(rng.choice(np.arange(1, 425), 9, replace=False))
        gpus = np.repeat(counts, REPEATS)
        flat = rng.choice([0.0, 0.02])
        time_s = 100 * (gpus ** -rng.uniform(0.4, 1) + flat)
        parts.append(
            pd.DataFrame(
                {
                    "series": number,
                    "gpus": gpus,
                    "epoch_time_s": time_s * np.exp(rng.normal(0, 0.03, gpus.size)),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


if __name__ == "__main__":
    main()
