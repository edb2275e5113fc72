"""How long a study of 200,000 runs takes to plan, beside the same work in one call per run.

    .venv/bin/python benchmarks/planning.py

Prints seconds of processor time for reading and planning, and the ratio to making and naming as
many runs with validation (``RunSpec(...)`` and ``run_id``), which is how it was done before.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from wattlaw.study.identity import run_id
from wattlaw.study.model import RunSpec
from wattlaw.study.plan import expand
from wattlaw.study.reader import read_study

GRIDS = {
    "200,000 settings": ({"gpus": 100, "local_batch": 100, "power_limit_w": 20}, 1),
    "2,000 settings, 100 repeats": ({"gpus": 10, "local_batch": 10, "power_limit_w": 20}, 100),
}


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time that a call takes."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def measure(sizes: dict[str, int], repeats: int) -> tuple[float, float]:
    """Return the seconds of a plan, and of making and naming its runs one by one."""
    sweep = {key: [*range(100, 100 + size)] for key, size in sizes.items()}
    study = {"name": "x", "workloads": [{"name": "a"}], "sweeps": [sweep], "repeats": repeats}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "study.yaml"
        path.write_text(json.dumps(study))
        planned_s = seconds(lambda: expand(read_study(path)))
        some = expand(read_study(path))[:20_000]
    parts = [{name: getattr(run.spec, name) for name in RunSpec.model_fields} for run in some]
    return planned_s, 10 * seconds(lambda: [run_id(RunSpec(**part)) for part in parts])


def main() -> None:
    """Measure both grids."""
    for name, (sizes, repeats) in GRIDS.items():
        planned_s, single_s = measure(sizes, repeats)
        print(
            f"{name}: planned in {planned_s:.2f} s; one by one {single_s:.2f} s, "
            f"{single_s / planned_s:.1f} times as long"
        )


if __name__ == "__main__":
    main()
