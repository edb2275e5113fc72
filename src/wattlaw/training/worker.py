"""One rank of a run: ``python -m wattlaw.training.worker RUN_FOLDER ATTEMPT`` under torchrun."""

import gc
import os
import sys
from pathlib import Path

from wattlaw import processes
from wattlaw.errors import BadInput
from wattlaw.store.run_folder import RunFolder
from wattlaw.training import failures, preemption
from wattlaw.training.environment import AGENT_PID, DISK_FULL


def main() -> int:
    """Train; an error becomes one line in the record and a traceback in the log."""
    preemption.listen()
    processes.end_with_parent(int(os.environ[AGENT_PID]))
    folder, attempt = RunFolder(Path(sys.argv[1])), int(sys.argv[2])
    try:
        _train(folder, attempt)
    except Exception as error:
        try:
            failures.write_error(folder.live(attempt), int(os.environ.get("RANK", "0")), error)
        except OSError as write_error:
            if failures.disk_full_error(write_error):
                os._exit(DISK_FULL)  # the traceback may not fit on the disk either
        raise
    return 0


def _train(folder: RunFolder, attempt: int) -> None:
    with processes.collector_paused():
        import torch
        import torch._dynamo  # otherwise the first optimizer imports it

        from wattlaw import registry
        from wattlaw.store.live import open_windows
        from wattlaw.training import facts, flops
        from wattlaw.training.loop import Training
        from wattlaw.training.ranks import process_group
        from wattlaw.workloads import catalogue

    record = folder.read()
    if record is None:
        raise BadInput(f"{folder.record_path}: not there")
    live = folder.live(attempt)
    spec = record.spec
    entry = registry.load(catalogue.GROUP, spec.workload.name)
    workload = catalogue.build(spec.workload)
    with process_group() as ranks:
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
        training.run(windows, entry.metric, folder, live)
        if windows is not None:
            windows.close()
        del training, model  # gloo may abort at exit when a model outlives the process group
        gc.collect()


if __name__ == "__main__":
    sys.exit(main())
