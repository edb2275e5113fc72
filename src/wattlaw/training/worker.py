"""One rank of a run: ``python -m wattlaw.training.worker RUN_FOLDER ATTEMPT`` under torchrun."""

import gc
import json
import os
import sys
import time
from pathlib import Path

from wattlaw import processes
from wattlaw.errors import BadInput, one_line
from wattlaw.store.files import write_text
from wattlaw.store.run_folder import RunFolder
from wattlaw.training.handover import AGENT_PID


def main() -> int:
    """Train; an error becomes one line for the record and a traceback for the log."""
    processes.end_with_parent(int(os.environ[AGENT_PID]))
    folder, attempt = RunFolder(Path(sys.argv[1])), int(sys.argv[2])
    try:
        _work(folder, attempt)
    except Exception as error:
        rank = int(os.environ.get("RANK", "0"))
        told = {"rank": rank, "time_s": time.time(), "reason": one_line(error)}
        write_text(folder.live(attempt) / f"error.{rank}.json", json.dumps(told))
        raise
    return 0


def _work(folder: RunFolder, attempt: int) -> None:
    import torch

    from wattlaw import registry
    from wattlaw.telemetry.windows import open_windows
    from wattlaw.training import facts, loop
    from wattlaw.training.ranks import joined
    from wattlaw.workloads import catalogue

    record = folder.read()
    if record is None:
        raise BadInput(f"{folder.record_path}: not there")
    live = folder.live(attempt)
    spec = record.spec
    entry = registry.load(catalogue.GROUP, spec.workload.name)
    workload = catalogue.build(spec.workload)
    with joined() as ranks:
        torch.manual_seed(record.seed)
        model = workload.model().to(ranks.device)
        windows = None
        if ranks.is_first_of_host:
            facts.write_facts(live, ranks, model, entry.metric)
            windows = open_windows(live, ranks.host)
        loop.train(workload, model, spec, record.seed, ranks, windows)
        if windows is not None:
            windows.close()
        del model  # gloo may abort at exit when a model outlives the process group
        gc.collect()


if __name__ == "__main__":
    sys.exit(main())
