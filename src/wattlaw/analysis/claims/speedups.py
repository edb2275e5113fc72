"""Claims about how much faster more GPUs are."""

import math
from collections.abc import Iterator

import pandas as pd

from wattlaw.analysis.claims.cases import cases_of_every_series, cases_of_main_series
from wattlaw.analysis.claims.effects import (
    TIME,
    contrast,
    exponent,
    ratio,
    require_measured,
    scaled,
)
from wattlaw.analysis.claims.verdicts import KIT, MIT, Check, Claim, ClaimDefinition, Effect, Within
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.levels import ERROR
from wattlaw.errors import Refused

NEAR_LINEAR = 0.9
FOURCASTNET_REACH = 4
DIMENET, BERT, CNN = 60.0, 76.0, (5.0, 6.0)
#: The largest count of Frey et al. over their smallest; the same of their pictures.
FULL_RANGE, PICTURED_RANGE = 424 / 2, 128 / 2
#: So much off a published speedup counts as that speedup.
GIVE = 0.1


def dimenet_speedup(findings: Findings) -> Claim:
    """Test that DimeNet gets 60 times as fast."""
    return _reaches(findings, "dimenet", "DimeNet", DIMENET)


def bert_speedup(findings: Findings) -> Claim:
    """Test that BERT gets 76 times as fast."""
    return _reaches(findings, "bert", "BERT", BERT)


def _reaches(findings: Findings, workload: str, model: str, speedup: float) -> Claim:
    least = math.log(speedup * (1 - GIVE))

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        label, effect, reach = _speedup(rows)
        if reach < FULL_RANGE and effect.bounds(ERROR)[0] < least:
            raise Refused(_too_narrow(label, effect, reach, FULL_RANGE))
        yield Within("speedup", label, effect, least, show=ratio)

    return ClaimDefinition(
        name=f"{workload}-speedup-{speedup:g}",
        claim=f"{model} gets {speedup:g} times as fast.",
        study=MIT,
        criterion=(
            f"the largest count is at least {speedup * (1 - GIVE):g} times as fast as the smallest "
            f"(the published value less {GIVE:.0%}); less contradicts if the counts span at least "
            f"the study's whole range, a factor of {FULL_RANGE:g}"
        ),
        needs=f"{workload} at constant local batch from 2 GPUs up to 424, with repeats",
    ).evaluate(cases_of_main_series(findings, "local_batch", checks, workload))


def cnn_speedup(findings: Findings) -> Claim:
    """Test that the convolutional networks get 5 to 6 times as fast, and no more."""
    low, high = math.log(CNN[0] * (1 - GIVE)), math.log(CNN[1] * (1 + GIVE))

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        label, effect, reach = _speedup(rows)
        least, most = effect.bounds(ERROR)
        # More GPUs may still bring more: too little contradicts over the whole range alone.
        needed = PICTURED_RANGE if least >= low and most <= high else FULL_RANGE
        if least <= high and reach < needed:
            raise Refused(_too_narrow(label, effect, reach, needed))
        yield Within("speedup", label, effect, low, high, ratio)

    return ClaimDefinition(
        name="cnn-speedup-5-to-6",
        claim="The convolutional networks get 5 to 6 times as fast.",
        study=MIT,
        criterion=(
            f"the largest count is {math.exp(low):g} to {math.exp(high):g} times as fast as the "
            f"smallest (the published values, {GIVE:.0%} more or less), over counts that span a "
            f"factor of {PICTURED_RANGE:g}; less contradicts from a factor of {FULL_RANGE:g} on"
        ),
        needs="resnet50, vgg16 or inceptionv3 at constant local batch from 2 to 128 GPUs, repeated",
    ).evaluate(
        cases_of_main_series(findings, "local_batch", checks, "resnet50", "vgg16", "inception")
    )


def _speedup(rows: pd.DataFrame) -> tuple[str, Effect, float]:
    """Return words, ln of the speedup of the largest count over the smallest, and their ratio."""
    counts = require_measured(rows, TIME)["gpus"]
    low, high = int(counts.min()), int(counts.max())
    label = f"speedup from {low} to {high} GPUs"
    return label, contrast(rows, TIME, "gpus", {low: 1.0, high: -1.0}), high / low


def _too_narrow(label: str, effect: Effect, reach: float, needed: float) -> str:
    return (
        f"{label} {math.exp(effect.estimate):.3g}; the counts span a factor of {reach:g}, so the "
        f"effect of more GPUs is unknown: measure counts that span a factor of {needed:g}"
    )


def resnet50_near_linear(findings: Findings) -> Claim:
    """Test that ResNet50 scales near-linearly at constant global batch."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        yield Within("beta", "beta", exponent(rows), NEAR_LINEAR)

    return ClaimDefinition(
        name="resnet50-near-linear",
        claim="ResNet50's speedup is near-linear at constant global batch.",
        study=KIT,
        criterion=f"beta of every series of constant global batch is at least {NEAR_LINEAR:g}",
        needs="resnet50 at a constant global batch on 3 or more GPU counts, with repeats",
    ).evaluate(cases_of_every_series(findings, "global_batch", checks, "resnet50"))


def fourcastnet_ends_at_four(findings: Findings) -> Claim:
    """Test that FourCastNet scales near-linearly up to four times the GPUs, and not past it."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        counts = sorted(int(count) for count in rows["gpus"].unique())
        knee = max(count for count in counts if count <= FOURCASTNET_REACH * counts[0])
        if knee in (counts[0], counts[-1]):
            raise Refused(
                f"{counts[0]} to {counts[-1]} GPUs: measure counts up to and beyond "
                f"{FOURCASTNET_REACH} times the smallest"
            )
        for name, low, high, bounds in (
            ("beta_up_to_4x", counts[0], knee, (NEAR_LINEAR, math.inf)),
            ("beta_beyond_4x", knee, counts[-1], (-math.inf, NEAR_LINEAR)),
        ):
            logs = contrast(rows, TIME, "gpus", {low: 1.0, high: -1.0})
            label = f"beta between {low} and {high} GPUs"
            yield Within(name, label, scaled(logs, 1 / math.log(high / low)), *bounds)

    return ClaimDefinition(
        name="fourcastnet-not-past-4x",
        claim="FourCastNet scales near-linearly up to 4 times the GPUs and not past it.",
        study=KIT,
        criterion=(
            "at constant global batch, the exponent between the smallest count and "
            f"{FOURCASTNET_REACH} times it is at least {NEAR_LINEAR:g}, and the one from there to "
            "the largest count is less"
        ),
        needs=(
            "fourcastnet at a constant global batch, repeated, on counts up to and beyond 4 times "
            "the smallest"
        ),
    ).evaluate(cases_of_every_series(findings, "global_batch", checks, "fourcastnet"))


CLAIMS = (
    dimenet_speedup, bert_speedup, cnn_speedup, resnet50_near_linear, fourcastnet_ends_at_four,
)  # fmt: skip
