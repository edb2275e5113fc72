"""Claims about how busy GPUs are."""

import math
from collections.abc import Iterator

import pandas as pd

from wattlaw.analysis.claims.cases import cases_of_main_series
from wattlaw.analysis.claims.effects import per_doubling, slope
from wattlaw.analysis.claims.verdicts import MIT, Check, Claim, ClaimDefinition, Within
from wattlaw.analysis.findings import Findings

#: The least change per doubling of GPUs that counts as one.
LEAST = 0.01
_NEEDS = "GPUs whose utilisation is sampled, on 3 or more GPU counts of one setting, with repeats"


def memory_utilisation_falls(findings: Findings) -> Claim:
    """Test that the mean memory utilisation of a run falls with the GPU count."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        yield Within(
            "memory_utilisation_per_doubling", "memory utilisation per doubling of GPUs",
            slope(rows, "mem_util_mean"), high=math.log2(1 - LEAST), show=per_doubling,
            shape="{:+.1%}",
        )  # fmt: skip

    return ClaimDefinition(
        name="memory-utilisation-falls",
        claim="Memory utilisation falls with the number of GPUs.",
        study=MIT,
        criterion=f"a run's mean memory utilisation falls by at least {LEAST:.0%} per doubling",
        needs=_NEEDS,
    ).evaluate(cases_of_main_series(findings, "local_batch", checks))


def sm_variation_rises(findings: Findings) -> Claim:
    """Test that sigma/mu of SM utilisation over a run rises with the GPU count."""
    return _variation_rises(findings, "sm", "SM")


def memory_variation_rises(findings: Findings) -> Claim:
    """Test that sigma/mu of memory utilisation over a run rises with the GPU count."""
    return _variation_rises(findings, "mem", "memory")


def _variation_rises(findings: Findings, kind: str, part: str) -> Claim:
    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        yield Within(
            "variation_per_doubling", f"sigma/mu of {part} utilisation per doubling of GPUs",
            slope(rows, f"{kind}_util_cv"), math.log2(1 + LEAST), show=per_doubling,
            shape="{:+.1%}",
        )  # fmt: skip

    return ClaimDefinition(
        name=f"{part.lower()}-variation-rises",
        claim=f"The coefficient of variation of {part} utilisation rises with the number of GPUs.",
        study=MIT,
        criterion=(
            f"sigma/mu of {part} utilisation over a run's samples rises by at least {LEAST:.0%} "
            "per doubling"
        ),
        needs=_NEEDS,
    ).evaluate(cases_of_main_series(findings, "local_batch", checks))


CLAIMS = (memory_utilisation_falls, sm_variation_rises, memory_variation_rises)
