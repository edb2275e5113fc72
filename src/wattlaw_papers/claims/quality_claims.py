"""Claims about quality against global batch."""

import json
from itertools import product

from wattlaw.analysis.laws.batch_effects import FALLS, BatchQuality
from wattlaw.analysis.metrics.result import plain
from wattlaw.study.labels import group_label
from wattlaw_papers.claims.cases import matches_name
from wattlaw_papers.claims.verdicts import KIT, Case, ClaimDefinition, Measurements, Tested


def _falls_beyond(
    batch: int, model: str, workload: str, stage: str | None = None
) -> ClaimDefinition:
    """Return the claim on ``quality_by_batch``, whose intervals hold for all batches together."""
    subject = f"{workload}-{stage}" if stage else workload
    return ClaimDefinition(
        f"{subject}-quality-falls-beyond-{batch}",
        f"The quality of {model} falls beyond a global batch of {batch}.",
        KIT,
        f"the smallest batch beyond {batch} and all larger ones are worse than the best, and "
        f"{batch} (or the largest below) is not shown to differ from it; contradicted if that "
        "one is worse already, or the smallest beyond is within 1 % of the best",
        needs=f"{subject} trained to its end, with evaluation, at global batches up to and beyond "
        f"{batch}, repeated",
        cases=lambda measured: [_case(row, batch) for row in _rows(measured, workload, stage)],
    )


def _rows(measured: Measurements, workload: str, stage: str | None = None) -> list[BatchQuality]:
    return [
        row
        for row in measured.quality
        if matches_name(str(row.group["workload"]), workload)
        and row.group["dataset_fraction"] in (None, 1.0)
        and stage in (None, _stage(row))
    ]


def _label(row: BatchQuality) -> str:
    return group_label(
        {name: row.group.get(name) for name in ("workload", "hardware", "precision")}
    )


def _falls_earlier(measured: Measurements) -> list[Case]:
    cases = []
    for first, other in product(_rows(measured, "fourcastnet"), _rows(measured, "resnet50")):
        names = ", ".join(str(row.group["workload"]) for row in (first, other))
        label = f"{_label(first)} ({_stage(first)}) and {_label(other)}"
        text = f"{first.sentence}; {other.sentence}"
        if first.means["verdict"].isna().all() or other.means["verdict"].isna().all():
            cases.append(Case(names, label, refusal=text))
            continue
        against = 0.0 if _holds_where_falls(first, other) else None  # for all batches together
        numbers = {f"{key}_falls_from": row.falls_from for key, row in
                   (("fourcastnet", first), ("resnet50", other))}  # fmt: skip
        tested = Tested(text, _holds_where_falls(other, first), against, numbers)
        cases.append(Case(names, label, (tested,)))
    return cases


def _holds_where_falls(holding: BatchQuality, falling: BatchQuality) -> bool:
    """Say whether the quality of one is shown to hold at the batch where that of another falls."""
    falls_from, holds_to = falling.falls_from, holding.holds_to
    return falls_from is not None and holds_to is not None and holds_to >= falls_from


def _case(row: BatchQuality, batch: int) -> Case:
    workload, label = str(row.group["workload"]), _label(row)
    means = row.means.set_index("global_batch")
    span = f"{means.index.min()} to {means.index.max()}"
    upto, beyond = means[means.index <= batch], means[means.index > batch]
    if means["verdict"].isna().all():
        return Case(workload, label, refusal=row.sentence)
    if upto.empty or beyond.empty:
        refusal = f"global batches {span}: measure up to and beyond {batch}"
        return Case(workload, label, refusal=refusal)
    early, late = upto.iloc[-1], beyond.iloc[0]
    falls_here = row.verdict == FALLS and row.falls_from == beyond.index[0]
    against = None
    if early["verdict"] == "worse":
        against = float(early["p_value"])
    elif late["verdict"] == "holds":
        against = 0.0  # an equivalence that holds for all batches together
    names = ("falls_beyond", "falls_from", "holds_to", "best_batch")
    numbers: dict[str, object] = {name: getattr(row, name) for name in names}
    numbers["means"] = {str(size): plain(mean) for size, mean in means["mean"].items()}
    tested = Tested(row.sentence, falls_here, against, numbers)
    return Case(workload, label, (tested,), f"{int(means['n'].sum())} repeats of batches {span}")


def _stage(row: BatchQuality) -> str:
    """Return the stage of training; a default is left out of a run's options."""
    try:
        return str(json.loads(row.group["options"] or "{}").get("stage", "pretrain"))
    except (ValueError, AttributeError):
        return "pretrain"


CLAIMS = (
    _falls_beyond(8192, "ResNet50", "resnet50"),
    _falls_beyond(32, "a pre-trained FourCastNet", "fourcastnet", "pretrain"),
    _falls_beyond(64, "a fine-tuned FourCastNet", "fourcastnet", "finetune"),
    ClaimDefinition(
        "fourcastnet-large-batch-effects-earlier",
        "FourCastNet suffers large-batch effects at a smaller batch than ResNet50.",
        KIT,
        "the quality of FourCastNet falls from a global batch at or below which that of ResNet50 "
        "is shown to hold; contradicted if it holds where that of ResNet50 falls",
        needs="fourcastnet and resnet50 trained to their end, with evaluation, at several global "
        "batches, repeated",
        cases=_falls_earlier,
    ),
)
