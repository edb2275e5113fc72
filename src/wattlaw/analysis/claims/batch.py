"""Claims about quality against global batch."""

import json

from wattlaw.analysis.batch_effects import FALLS, BatchQuality
from wattlaw.analysis.claims.cases import matches_name
from wattlaw.analysis.claims.verdicts import KIT, Case, ClaimDefinition, Tested
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.result import plain
from wattlaw.errors import Refused
from wattlaw.formatting import group_label


def _falls_beyond(
    batch: int, model: str, workload: str, stage: str | None = None
) -> ClaimDefinition:
    """Return the claim on ``quality_by_batch``, whose intervals hold for all batches together."""

    def cases(findings: Findings) -> list[Case]:
        return [
            _case(row, batch)
            for row in findings.quality
            if matches_name(str(row.group["workload"]), workload)
            and row.group["dataset_fraction"] in (None, 1.0)
            and stage in (None, _stage(row))
        ]

    subject = f"{workload}-{stage}" if stage else workload
    return ClaimDefinition(
        f"{subject}-quality-falls-beyond-{batch}",
        f"The quality of {model} falls beyond a global batch of {batch}.", KIT,
        f"the smallest batch beyond {batch} and all larger ones are worse than the best, and "
        f"{batch} (or the largest below) is not shown to differ from it; contradicted if that "
        "one is worse already, or the smallest beyond is within 1 % of the best",
        needs=f"{subject} trained to its end, with evaluation, at global batches up to and beyond "
        f"{batch}, repeated",
        cases=cases,
    )  # fmt: skip


def _case(row: BatchQuality, batch: int) -> Case:
    group_values = {name: row.group.get(name) for name in ("workload", "hardware", "precision")}
    workload, label = str(row.group["workload"]), group_label(group_values)
    counted = f"{int(row.means['n'].sum())} repeats of batches {_span(row)}"
    try:
        return Case(workload, label, (_tested(row, batch),), counted)
    except Refused as refused:
        return Case(workload, label, refusal=str(refused))


def _tested(row: BatchQuality, batch: int) -> Tested:
    means = row.means.set_index("global_batch")
    upto, beyond = means[means.index <= batch], means[means.index > batch]
    if means["verdict"].isna().all():
        raise Refused(row.sentence)
    if upto.empty or beyond.empty:
        raise Refused(f"global batches {_span(row)}: measure up to and beyond {batch}")
    early, late = upto.iloc[-1], beyond.iloc[0]
    falls_here = row.verdict == FALLS and row.falls_from == beyond.index[0]
    against = None
    if early["verdict"] == "worse":
        against = float(early["p_value"])
    elif late["verdict"] == "holds":
        against = 0.0  # an equivalence that holds for all batches together
    names = ("falls_beyond", "falls_from", "holds_to", "best_batch")
    numbers = {name: getattr(row, name) for name in names}
    by_batch = {str(size): plain(mean) for size, mean in means["mean"].items()}
    return Tested(row.sentence, falls_here, against, numbers | {"means": by_batch})


def _stage(row: BatchQuality) -> str:
    """Return the stage of training; a default is left out of a run's options."""
    try:
        return str(json.loads(row.group["options"] or "{}").get("stage", "pretrain"))
    except (ValueError, AttributeError):
        return "pretrain"


def _span(row: BatchQuality) -> str:
    return f"{row.means['global_batch'].min()} to {row.means['global_batch'].max()}"


CLAIMS = (
    _falls_beyond(8192, "ResNet50", "resnet50"),
    _falls_beyond(32, "a pre-trained FourCastNet", "fourcastnet", "pretrain"),
    _falls_beyond(64, "a fine-tuned FourCastNet", "fourcastnet", "finetune"),
)  # fmt: skip
