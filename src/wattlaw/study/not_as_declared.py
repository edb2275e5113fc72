"""Warnings about runs that trained otherwise than their study declares, and the warnings' codes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from wattlaw.common.formatting import known, plural

#: The code of the warning ``uncooperative_text``.
UNCOOPERATIVE = "workers-do-not-cooperate"
#: The warning on runs whose training ends before the steps to measure, and what their notes have.
TRAINING_ENDED = "training-ended"
TOO_SHORT = (
    "let it train for more epochs or with a smaller batch, or time whole runs, start-up included "
    "(in a study measure: {epochs: 1, warmup_epochs: 0}; measure without --steps)"
)


def uncooperative_text(runs: int, workloads: Iterable[str]) -> str:
    return (
        f"In {plural(runs, 'run')} of {', '.join(sorted(workloads))} the workers do not cooperate: "
        "each trained a model of its own on the same data, so there is no speedup. Train with "
        "DistributedDataParallel (torch.distributed.init_process_group), or set gpus: [1]."
    )


#: The code of the warnings ``batch_texts``.
OTHER_BATCH = "batch-not-as-declared"


def batch_texts(runs: Iterable[Mapping[Any, Any]]) -> list[str]:
    """Return a warning for each workload with runs of another global batch than declared.

    ``runs`` have ``workload, gpus, global_batch`` and ``global_batch_declared``.
    """
    kinds: dict[str, Counter[tuple[int, float, float]]] = {}
    for run in runs:
        if known(declared := run["global_batch_declared"]):
            kind = (int(run["gpus"]), declared, run["global_batch"])
            kinds.setdefault(run["workload"], Counter())[kind] += 1
    texts = []
    for workload, counts in sorted(kinds.items()):
        shown = [
            f"{ran:g} instead of {declared:g} on {plural(gpus, 'GPU')}"
            for gpus, declared, ran in sorted(counts)[:3]
        ]
        more = f" and {len(counts) - 3} more settings" if len(counts) > 3 else ""
        texts.append(
            f"{plural(counts.total(), 'run')} of {workload} trained with another global batch than "
            f"declared: {', '.join(shown)}{more}. Results use the batch that ran. "
            "Pass {local_batch} (of each GPU) or {global_batch} to the script. A script that gets "
            "one and trains with another is to be corrected. With wattlaw.track, give it the "
            "global_batch that trains. Batches include gradient accumulation."
        )
    return texts
