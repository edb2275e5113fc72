"""Claims about quality against global batch."""

import json

import pandas as pd

from wattlaw.analysis.batch_effects import FALLS, BatchQuality
from wattlaw.analysis.claims.run_groups import matches_name
from wattlaw.analysis.claims.verdicts import KIT, Case, Claim, ClaimDefinition, Tested
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.result import plain
from wattlaw.errors import Refused
from wattlaw.formatting import group_label

RESNET50, PRETRAINED, FINETUNED = 8192, 32, 64


def resnet50_falls(findings: Findings) -> Claim:
    """Test that ResNet50's accuracy falls beyond a global batch of 8192."""
    return _falls_beyond(findings, "resnet50", "ResNet50", RESNET50)


def pretraining_falls(findings: Findings) -> Claim:
    """Test that the quality of a pre-trained FourCastNet falls beyond a global batch of 32."""
    return _falls_beyond(
        findings, "fourcastnet", "a pre-trained FourCastNet", PRETRAINED, "pretrain"
    )


def finetuning_falls(findings: Findings) -> Claim:
    """Test that the quality of a fine-tuned FourCastNet falls beyond a global batch of 64."""
    return _falls_beyond(findings, "fourcastnet", "a fine-tuned FourCastNet", FINETUNED, "finetune")


def _falls_beyond(
    findings: Findings, workload: str, model: str, batch: int, stage: str | None = None
) -> Claim:
    """Judge the findings of ``quality_by_batch``, whose intervals hold for all batches together."""
    cases = [
        _case(row, batch)
        for row in findings.quality.rows
        if matches_name(str(row.group["workload"]), workload)
        and row.group["dataset_fraction"] in (None, 1.0)
        and stage in (None, _stage(row))
    ]
    subject = f"{workload}-{stage}" if stage else workload
    return ClaimDefinition(
        name=f"{subject}-quality-falls-beyond-{batch}",
        claim=f"The quality of {model} falls beyond a global batch of {batch}.",
        study=KIT,
        criterion=(
            f"the smallest batch beyond {batch} and all larger ones are worse than the best, and "
            f"{batch} (or the largest below) cannot be told from it; contradicted if that one is "
            "worse already, or the smallest beyond is within 1 % of the best"
        ),
        needs=(
            f"{subject} trained to its end, with evaluation, at global batches up to and beyond "
            f"{batch}, repeated"
        ),
    ).evaluate(cases)


def _case(row: BatchQuality, batch: int) -> Case:
    group_values = {name: row.group.get(name) for name in ("workload", "hardware", "precision")}
    workload, label = str(row.group["workload"]), group_label(group_values)
    try:
        return Case(workload, label, (_tested(row, batch),), _counted(row.means))
    except Refused as refused:
        return Case(workload, label, refusal=str(refused))


def _tested(row: BatchQuality, batch: int) -> Tested:
    means = row.means.set_index("global_batch")
    upto, beyond = means[means.index <= batch], means[means.index > batch]
    if means["verdict"].isna().all():
        raise Refused(row.sentence)
    if upto.empty or beyond.empty:
        raise Refused(
            f"global batches {_span(row.means['global_batch'])}: measure up to and beyond {batch}"
        )
    early, late = upto.iloc[-1], beyond.iloc[0]
    falls_here = row.verdict == FALLS and row.falls_from == beyond.index[0]
    against = None
    if early["verdict"] == "worse":
        against = float(early["p_value"])
    elif late["verdict"] == "holds":
        against = 0.0  # an equivalence that holds for all batches together
    numbers = {
        "falls_beyond": row.falls_beyond, "falls_from": row.falls_from, "holds_to": row.holds_to,
        "best_batch": row.best_batch,
        "means": {str(size): plain(mean) for size, mean in means["mean"].items()},
    }  # fmt: skip
    return Tested(row.sentence, falls_here, against, numbers)


def _stage(row: BatchQuality) -> str:
    """Return the stage of training; a default is left out of a run's options."""
    try:
        return str(json.loads(row.group["options"] or "{}").get("stage", "pretrain"))
    except (ValueError, AttributeError):
        return "pretrain"


def _counted(means: pd.DataFrame) -> str:
    return f"{int(means['n'].sum())} repeats of batches {_span(means['global_batch'])}"


def _span(batches: pd.Series) -> str:
    return f"{min(batches)} to {max(batches)}"


CLAIMS = (resnet50_falls, pretraining_falls, finetuning_falls)
