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
        told = {"rank": rank, "time_s": time.time(), "reason": _reason(error)}
        write_text(folder.live(attempt) / f"error.{rank}.json", json.dumps(told))
        raise
    return 0


def _reason(error: Exception) -> str:
    """Return an error on one line; with what to do where a batch does not fit."""
    words = one_line(error)
    type_name = type(error).__name__
    if type_name == "OutOfMemoryError" or "can't allocate memory" in words:
        return (
            "out of memory: the local batch does not fit; try a smaller one, "
            f"or train.gradient_accumulation, which keeps the global batch ({words[:300]})"
        )
    return words


def _work(folder: RunFolder, attempt: int) -> None:
    import torch

    from wattlaw import registry
    from wattlaw.telemetry.windows import open_windows
    from wattlaw.training import facts, flops
    from wattlaw.training.loop import Training
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
        training = Training(workload, model, spec, record.seed, ranks)
        windows = None
        if ranks.is_first_of_host:
            counted = flops.flops_per_sample(workload, model, training.data)
            facts.write_facts(
                live,
                ranks,
                model,
                entry.metric,
                flops_per_sample=counted,
                loader_workers=training.loader.workers,
            )
            windows = open_windows(live, ranks.host)
        training.run(windows, entry.metric, folder)
        if windows is not None:
            windows.close()
        del training, model  # gloo may abort at exit when a model outlives the process group
        gc.collect()


if __name__ == "__main__":
    sys.exit(main())
