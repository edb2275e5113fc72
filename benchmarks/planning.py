"""How long a study of 20,000 runs takes to read and plan.

    .venv/bin/python benchmarks/planning.py

Prints seconds of processor time, and the ratio to hashing as many short texts on the same machine.
"""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from wattlaw.study.plan import expand, read_study

GRIDS = {
    "20,000 settings": ({"gpus": 100, "local_batch": 100, "power_limit_w": 2}, 1),
    "200 settings, 100 repeats": ({"gpus": 10, "local_batch": 10, "power_limit_w": 2}, 100),
}


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time that a call takes."""
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


def planning(sizes: dict[str, int], repeats: int) -> float:
    """Return the seconds of a plan."""
    sweep = {key: [*range(100, 100 + size)] for key, size in sizes.items()}
    study = {"name": "x", "workloads": [{"name": "a"}], "sweeps": [sweep], "repeats": repeats}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "study.yaml"
        path.write_text(json.dumps(study))
        return seconds(lambda: expand(read_study(path)))


def main() -> None:
    """Measure the planning of each grid."""
    texts = [str(number).encode() * 30 for number in range(20_000)]
    for name, (sizes, repeats) in GRIDS.items():
        planned_s = planning(sizes, repeats)
        hashed_s = seconds(lambda: [hashlib.sha256(text).hexdigest() for text in texts])
        print(f"{name}: {planned_s:.2f} s, {planned_s / hashed_s:.1f} times the hashes")


if __name__ == "__main__":
    main()
