"""Claims about the law of time against GPU count."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import combinations

import pandas as pd

from wattlaw.analysis.claims.cases import cases_of_every_series, cases_of_main_series, make_case
from wattlaw.analysis.claims.effects import (
    TIME,
    beyond_law,
    difference,
    exponent,
    per_doubling,
    relative_change,
    require_measured,
    slope,
)
from wattlaw.analysis.claims.run_groups import RunGroup, run_groups
from wattlaw.analysis.claims.verdicts import (
    KIT,
    MIT,
    Check,
    Claim,
    ClaimDefinition,
    Outside,
    Tested,
    Within,
)
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.breakpoint import MIN_COUNTS, find_breakpoint
from wattlaw.analysis.laws.power_law import fit_power_law
from wattlaw.errors import Refused

#: How far the largest count may be from the law of the smaller ones.
MISS = 0.15
#: Exponents that differ by less are equal: a factor of 1.2 in time over a factor of 40 in GPUs.
SAME_BETA = 0.05
SCHNET_REACH = 64
#: Growth of time per doubling of GPUs and data that counts as slight.
SLIGHT = (0.005, 0.15)


def power_law_describes(findings: Findings) -> Claim:
    """Test that t = alpha N^-beta describes the time per epoch.

    By how far the largest count lies from the law of the others, and by whether the curve bends.
    R^2 is told beside them and decides nothing: curves that bend have a high one too.
    """

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        rows = require_measured(rows, TIME)
        counts, times_s = rows["gpus"].to_numpy(float), rows[TIME].to_numpy(float)
        law = fit_power_law(counts, times_s)
        if law.r2 is None:
            raise Refused("all times are equal: there is nothing to describe")
        largest = int(rows["gpus"].max())
        yield Within(
            "extrapolation_error", f"time at {largest} GPUs against the law of the smaller counts",
            beyond_law(rows, largest - 1), math.log(1 - MISS), math.log(1 + MISS),
            relative_change, "{:+.1%}",
        )  # fmt: skip
        numbers = {"r2": law.r2, "beta": law.beta, "lack_of_fit_p": law.lack_of_fit_p}
        try:
            bend = find_breakpoint(counts, times_s)
        except Refused as refused:  # too few counts to look for one: no support
            label, holds, contradicting_p = str(refused), False, None
        else:
            label, holds = bend.sentence if bend else "no breakpoint found", bend is None
            contradicting_p = bend.p_value if bend else None
        numbers["breakpoint_p"] = contradicting_p
        yield Tested(
            f"{label}, R^2 {law.r2:.3f}, beta {law.beta:.2f}", holds, contradicting_p, numbers
        )

    return ClaimDefinition(
        name="power-law-describes",
        claim="The time per epoch follows t = alpha N^-beta.",
        study=MIT,
        criterion=(
            f"the time at the largest count lies within {MISS:.0%} of the law fitted to the "
            f"smaller ones, and no breakpoint is found over at least {MIN_COUNTS} counts (one "
            "contradicts); R^2 is told and decides nothing"
        ),
        needs=f"at least {MIN_COUNTS} GPU counts of one setting, with repeats",
    ).evaluate(cases_of_main_series(findings, "local_batch", checks))


def beta_differs_between_models(findings: Findings) -> Claim:
    """Test that exponents differ between models (published: 0.42 to 0.87 without caps).

    An exponent depends on the range of N, so two models are compared over the counts of both.
    """
    cases = [
        make_case(f"{former.workload}, {other.workload}", f"{former.label} and {other.label}",
             partial(_over_shared_counts, former, other), _two_betas)
        for former, other in combinations(run_groups(findings), 2)
        if former.workload != other.workload and former.hardware == other.hardware
    ]  # fmt: skip
    return ClaimDefinition(
        name="beta-differs-between-models",
        claim="The scaling exponent beta differs between models.",
        study=MIT,
        criterion=(
            f"there are two models on the same hardware whose exponents over the same GPU counts "
            f"differ by more than {SAME_BETA:g}; contradicted if all differ by less"
        ),
        needs="two workloads on the same hardware and the same 3 or more GPU counts",
        about="some",
    ).evaluate(cases)


def _over_shared_counts(former: RunGroup, other: RunGroup) -> pd.DataFrame:
    first, second = former.main_series("local_batch"), other.main_series("local_batch")
    shared = set(first["gpus"]) & set(second["gpus"])
    both = pd.concat([first.assign(which=0), second.assign(which=1)], ignore_index=True)
    return both[both["gpus"].isin(shared)]


def _two_betas(rows: pd.DataFrame) -> Iterator[Check]:
    if rows.empty:
        raise Refused("no GPU count that both have")
    former, other = (exponent(of_one) for _, of_one in rows.groupby("which"))
    label = f"beta {former.estimate:.2f} and {other.estimate:.2f}, difference"
    yield Outside(
        Within(
            "beta_difference",
            label,
            difference(former, other),
            -SAME_BETA,
            SAME_BETA,
            shape="{:+.3f}",
        )
    )


def schnet_leaves_the_law(findings: Findings) -> Claim:
    """Test that SchNet follows its power law up to 64 GPUs and is slower beyond."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        rows = require_measured(rows, TIME)
        yield Within(
            "over_law",
            f"time at {rows['gpus'].max()} GPUs against the law up to {SCHNET_REACH}",
            beyond_law(rows, SCHNET_REACH), math.log(1 + MISS), show=relative_change,
            shape="{:+.1%}",
        )  # fmt: skip
        before = rows[rows["gpus"] <= SCHNET_REACH]
        try:
            bend = find_breakpoint(before["gpus"].to_numpy(float), before[TIME].to_numpy(float))
        except Refused:  # too few counts to look for a breakpoint
            return
        if bend is not None and bend.flattens:
            label = f"breakpoint already at {bend.at:g} GPUs (p = {bend.p_value:.2g})"
            yield Tested(
                label, holds=False, contradicting_p=bend.p_value, values={"bend_at": bend.at}
            )

    return ClaimDefinition(
        name="schnet-leaves-the-law-beyond-64",
        claim="SchNet leaves its power law beyond 64 GPUs.",
        study=MIT,
        criterion=(
            f"the largest count beyond {SCHNET_REACH} takes at least {MISS:.0%} longer than the "
            "law of the counts up to there, and these show no breakpoint of their own"
        ),
        needs=f"schnet on 3 or more GPU counts up to {SCHNET_REACH} and at least one beyond",
    ).evaluate(cases_of_main_series(findings, "local_batch", checks, "schnet"))


def growing_data_constant_local_batch(findings: Findings) -> Claim:
    """Test that time is constant where data set and global batch grow with the GPUs."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        yield Within(
            "time_per_doubling", "time per doubling of GPUs and data", slope(rows, TIME),
            -SAME_BETA, SAME_BETA, per_doubling, "{:+.1%}",
        )  # fmt: skip

    return ClaimDefinition(
        name="growing-data-constant-time",
        claim="With a data set that grows with the GPUs, constant local batch keeps time constant.",
        study=KIT,
        criterion=(
            f"the exponent of time is within {SAME_BETA:g} of 0: time changes by at most "
            f"{per_doubling(SAME_BETA):.1%} per doubling"
        ),
        needs="a data set that grows with 3 or more GPU counts at constant local batch",
    ).evaluate(cases_of_every_series(findings, "local_batch", checks, grows=True))


def growing_data_constant_global_batch(findings: Findings) -> Claim:
    """Test that time grows slightly where the data set grows at constant global batch."""
    low, high = (math.log2(1 + change) for change in SLIGHT)

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        yield Within(
            "time_per_doubling", "time per doubling of GPUs and data", slope(rows, TIME),
            low, high, per_doubling, "{:+.1%}",
        )  # fmt: skip

    return ClaimDefinition(
        name="growing-data-time-grows-slightly",
        claim=(
            "With a data set that grows with the GPUs, time grows slightly at constant global "
            "batch (more steps)."
        ),
        study=KIT,
        criterion=f"time grows by {SLIGHT[0]:.1%} to {SLIGHT[1]:.0%} per doubling",
        needs="a data set that grows with 3 or more GPU counts at constant global batch",
    ).evaluate(cases_of_every_series(findings, "global_batch", checks, grows=True))


CLAIMS = (
    power_law_describes, beta_differs_between_models, schnet_leaves_the_law,
    growing_data_constant_local_batch, growing_data_constant_global_batch,
)  # fmt: skip
