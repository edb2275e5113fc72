"""The error of measured energies, on boards of a fake driver whose energy is known exactly.

Run with ``python benchmarks/accuracy.py``; it takes 90 s. Samplers record sixteen boards of the
tests' fake NVML driver, eight by polling and eight from the driver's buffers. The energies of
windows at random times are compared with the exact integral of the power. This is the error of the
method; errors of a real board's sensor are additional.
"""

import os
import sys
import tempfile
from pathlib import Path

from common import write_results

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from fake_nvml import FakeGpus
from recording import Recording, errors, record

SECONDS, HZ, WINDOWS = 65.0, 10.0, 200
METHODS = {"counter": "gpu_energy_counter_j", "integral": "gpu_energy_integral_j"}
#: Two boards of each kind: with a counter that refreshes every 20 ms, and every 100 ms.
KINDS = {
    "constant 250 W": {"low_w": 60.0, "high_w": 250.0, "period_s": 0.0},
    "square wave of 60 and 250 W at 1 Hz": {"low_w": 60.0, "high_w": 250.0, "period_s": 1.0},
    "square wave of 60 and 400 W at 1 Hz": {"low_w": 60.0, "high_w": 400.0, "period_s": 1.0},
    "square wave of 60 and 250 W at 0.37 Hz": {"low_w": 60.0, "high_w": 250.0, "period_s": 2.7},
}
REFRESH_MS = (20, 100)
LENGTHS_S = (1.0, 3.0, 5.5, 60.0)
#: The largest allowed relative error in windows of 1 s and of 60 s.
TARGETS = {"constant 250 W": 0.001, "square wave of 60 and 250 W at 1 Hz": 0.01}


def main() -> None:
    """Record, compare, print, and write the result with its settings."""
    columns = {name: [kind[name] for kind in KINDS.values() for _ in REFRESH_MS]
               for name in ("low_w", "high_w", "period_s")}  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        boards = {
            name: FakeGpus.create(
                folder / f"{name}.boards",
                len(KINDS) * len(REFRESH_MS),
                buffers=buffers,
                refresh_ms=[*REFRESH_MS] * len(KINDS),
                **columns,
            )
            for name, buffers in (("polled", 0), ("buffered", 1))
        }
        recordings = record({folder / name: group for name, group in boards.items()}, SECONDS, HZ)
    table = {
        name: {kind: largest_errors(recording, place) for place, kind in enumerate(KINDS)}
        for name, recording in zip(boards, recordings, strict=True)
    }
    result = {
        "what": "largest relative error of energies, on a fake NVML driver",
        "largest_relative_error": table,
        "target": "in windows of 1 s and 60 s at most: "
        + ", ".join(f"{most:.1%} for {kind}" for kind, most in TARGETS.items()),
        "met": all(
            error <= most
            for kinds in table.values()
            for kind, most in TARGETS.items()
            for length in ("1 s", "60 s")
            for error in kinds[kind][length].values()
        ),
        "windows": WINDOWS * len(REFRESH_MS),
        "sample_hz": HZ,
        "counter_refresh_ms": REFRESH_MS,
        "buffer_spacing_ms": 20,
        "recorded_s": SECONDS,
        "sampler": {
            name: {
                "cpu_share": recording.report.cpu_s / recording.report.duration_s,
                "readings_per_s": recording.report.meters["nvidia"].reads
                / recording.report.duration_s,
                "driver_calls_per_board_and_s": recording.calls / SECONDS / len(recording.boards),
            }
            for name, recording in zip(boards, recordings, strict=True)
        },
    }
    write_results("accuracy", f"cpu{os.cpu_count()}", result)


def largest_errors(recording: Recording, kind: int) -> dict[str, dict[str, float]]:
    """Return the largest relative error of a kind's boards, by length of window and method."""
    places = range(kind * len(REFRESH_MS), (kind + 1) * len(REFRESH_MS))
    table: dict[str, dict[str, float]] = {}
    for length_s in LENGTHS_S:
        windows = [
            row for place in places for row in recording.random_windows(place, length_s, WINDOWS)
        ]
        table[f"{length_s:g} s"] = {
            method: float(f"{max(errors(windows, column)):.3g}")
            for method, column in METHODS.items()
        }
    return table


if __name__ == "__main__":
    main()
