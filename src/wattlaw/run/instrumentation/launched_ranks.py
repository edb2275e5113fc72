"""Whether the ranks that trained are those that were launched."""

from collections import defaultdict
from collections.abc import Sequence

from wattlaw.run.instrumentation.steps import ProcessSteps

#: Ends the message about a command that starts ranks.
REMEDY = (
    "wattlaw starts the command once per GPU; write the command of one rank, without torchrun, "
    "accelerate launch, mpirun, srun or torch.multiprocessing.spawn, or use launch_with"
)


def wrong_ranks(processes: Sequence[ProcessSteps], launched: int) -> str | None:
    """Return how training processes differ from the ranks that were launched, or None.

    A command that starts ranks itself trains as a job of another size, or several times. Processes
    without a process group, each with a model of its own, are not judged here.
    """
    ranks: dict[int, set[int]] = defaultdict(set)
    for process in processes:
        if not process.steps:
            continue
        # What the process group says counts more than a variable that a script may set.
        has_group = (process.world_size or 1) > 1
        size = process.world_size if has_group else process.env_world_size
        if size is not None and size != launched:
            one = "one rank alone" if size == 1 else f"one of {size} ranks"
            return (
                f"process {process.pid} on {process.host} trained as {one}, but {launched} "
                f"{'was' if launched == 1 else 'were'} launched; {REMEDY}"
            )
        if process.launched_rank is not None and process.rank is not None:
            ranks[process.launched_rank].add(process.rank)
    for launched_rank, own in sorted(ranks.items()):
        if len(own) > 1:
            return (
                f"rank {launched_rank} of the {launched} that were launched has started {len(own)} "
                f"ranks of its own; {REMEDY}"
            )
    return None
