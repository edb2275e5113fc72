"""Claims about power caps and locked clocks."""

import math
from collections.abc import Iterator
from functools import partial

import pandas as pd

from wattlaw.analysis.caps.comparison import SAME, compare_limits
from wattlaw.analysis.caps.limits import Limit, at_limit, distinct_limits
from wattlaw.analysis.claims.cases import Checks, cases_of_limit_series, cases_of_runs
from wattlaw.analysis.claims.effects import (
    ENERGY,
    TIME,
    change_under_limit,
    contrast,
    limited_and_reference,
    ratio,
    relative_change,
)
from wattlaw.analysis.claims.run_groups import run_groups
from wattlaw.analysis.claims.verdicts import (
    MIT,
    Case,
    Check,
    Claim,
    ClaimDefinition,
    Tested,
    Within,
)
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.levels import ERROR
from wattlaw.analysis.result import plain
from wattlaw.errors import Refused
from wattlaw.formatting import limit_label

#: Exponents that differ by less are equal; the margin of ``compare_limits``.
MARGIN = 0.05
#: The least change of alpha that counts as one.
MOVED = 0.02
NO_COST, CLEARLY, SAVED = 0.05, 0.10, 0.10
MILD_W, STRICT_W = 200.0, 100.0
MANY_GPUS = 128
#: Of the slow-down's factor between the smallest count and 128 GPUs.
SHRINKS = 0.05


def caps_move_alpha(findings: Findings) -> Claim:
    """Test that power caps change the offset of the law and leave its exponent."""
    return _alpha_not_beta(findings, "power_limit_w", "Power caps", "caps", "")


def clocks_move_alpha(findings: Findings) -> Claim:
    """Test that locked clocks change the offset of the law and leave its exponent.

    Published for DimeNet: 0.97, 0.90 and 0.82 at 135, 735 and 1380 MHz, with an SE of 0.03 for the
    last (``reference.published``).
    """
    remark = (
        "The study's own exponents of DimeNet, 0.97, 0.90 and 0.82 at 135, 735 and 1380 MHz "
        "(the last with a standard error of 0.03), speak against it."
    )
    return _alpha_not_beta(findings, "clock_limit_mhz", "SM clocks", "clocks", remark)


def _alpha_not_beta(
    findings: Findings, limit: Limit, words: str, plural: str, remark: str
) -> Claim:
    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        compared = compare_limits(rows, limit, TIME, MARGIN)
        values, betas = compared.limits["limit"], compared.limits["beta"]
        # Exact data have no test; what is not within the margin then differs.
        against = 0.0 if compared.difference_p is None else compared.difference_p
        betas_by_limit = {
            limit_label(limit, limit_value): float(b)
            for limit_value, b in zip(values, betas, strict=True)
        }
        yield Tested(
            compared.sentence.rstrip("."), compared.verdict == SAME, against,
            {
                "betas": betas_by_limit, "difference_p": compared.difference_p,
                "equivalence_p": plain(compared.equivalence_p),
            },
        )  # fmt: skip
        lowest = distinct_limits(rows[limit])[-1]
        yield Within(
            "alpha_ratio", f"time under {limit_label(limit, lowest)} over that without",
            change_under_limit(limited_and_reference(rows, limit), TIME, limit),
            math.log(1 + MOVED), show=ratio, shape="{:.3f}",
        )  # fmt: skip

    return ClaimDefinition(
        name=f"{plural}-move-alpha-not-beta",
        claim=f"{words} move alpha, not beta.",
        study=MIT,
        criterion=(
            f"the exponents under all {plural} are equal within {MARGIN:g} (two one-sided tests; "
            f"contradicted by a significant difference), and the lowest makes an epoch at least "
            f"{MOVED:.0%} longer"
        ),
        needs=f"two or more {plural} on the same 3 or more GPU counts, with repeats",
        remark=remark,
    ).evaluate(cases_of_limit_series(findings, "local_batch", limit, checks))


def mild_cap_costs_no_speed(findings: Findings) -> Claim:
    """Test that a cap of 200 W leaves the time per epoch as it is."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        yield _change("time_ratio", TIME, rows, MILD_W, high=math.log(1 + NO_COST))

    return ClaimDefinition(
        name="200w-costs-no-speed",
        claim="A power cap of 200 W costs no speed.",
        study=MIT,
        criterion=(
            f"an epoch takes less than {NO_COST:.0%} longer under 200 W than at the same setting "
            "without cap (or under the highest), over all GPU counts"
        ),
        needs=_cap_needs(MILD_W),
        remark=_BOARD,
    ).evaluate(_at_cap(findings, MILD_W, checks))


def mild_cap_saves_energy(findings: Findings) -> Claim:
    """Test that a cap of 200 W saves 10 % of the energy of an epoch."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        yield _change("energy_ratio", ENERGY, rows, MILD_W, high=math.log(1 - SAVED))

    return ClaimDefinition(
        name="200w-saves-energy",
        claim="A power cap of 200 W saves at least 10 % of the energy.",
        study=MIT,
        criterion=(
            f"an epoch takes at least {SAVED:.0%} less energy under 200 W than at the same setting "
            "without cap (or under the highest), over all GPU counts"
        ),
        needs=f"{_cap_needs(MILD_W)}, and their energy",
        remark=_BOARD,
    ).evaluate(_at_cap(findings, MILD_W, checks, energy=True))


def strict_cap_slows(findings: Findings) -> Claim:
    """Test that a cap of 100 W slows training clearly."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        yield _change("time_ratio", TIME, rows, STRICT_W, low=math.log(1 + CLEARLY))

    return ClaimDefinition(
        name="100w-slows-clearly",
        claim="A power cap of 100 W slows training clearly.",
        study=MIT,
        criterion=(
            f"an epoch takes at least {CLEARLY:.0%} longer under 100 W than at the same setting "
            "without cap (or under the highest), over all GPU counts"
        ),
        needs=_cap_needs(STRICT_W),
        remark=_BOARD,
    ).evaluate(_at_cap(findings, STRICT_W, checks))


_BOARD = "Published for V100 boards with a limit of 250 W."


def _cap_needs(cap_w: float) -> str:
    return f"runs with a cap of {cap_w:g} W beside runs of the same settings without cap, repeated"


def _at_cap(
    findings: Findings, cap_w: float, checks: Checks, *, energy: bool = False
) -> list[Case]:
    row_filter = partial(limited_and_reference, limit="power_limit_w", value=cap_w)
    return cases_of_runs(run_groups(findings), row_filter, checks, energy=energy)


def _change(
    name: str, y: str, rows: pd.DataFrame, cap_w: float, low: float = -math.inf,
    high: float = math.inf,
) -> Check:  # fmt: skip
    effect = change_under_limit(rows, y, "power_limit_w")
    word = "energy" if y == ENERGY else "time"
    label = f"{word} per epoch under {cap_w:g} W"
    return Within(name, label, effect, low, high, relative_change, "{:+.1%}")


def slow_down_shrinks(findings: Findings) -> Claim:
    """Test that the slow-down by the lowest cap is smaller at 128 GPUs than at the fewest.

    If so, the exponent under that cap is larger, which speaks against ``caps_move_alpha``.
    """

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        limits = distinct_limits(rows["power_limit_w"])
        if len(limits) < 2:
            raise Refused("no runs under a cap beside a higher one or none")
        kinds = [at_limit(rows, "power_limit_w", value) for value in (limits[0], limits[-1])]
        free, capped = (limit_value["gpus"].unique() for limit_value in kinds)
        shared = sorted(set(free) & set(capped))
        if MANY_GPUS not in shared or shared[0] == MANY_GPUS:
            raise Refused(f"not run with and without the cap on {MANY_GPUS} GPUs and on fewer")
        both = pd.concat(
            [
                limit_value.assign(cell=limit_value["gpus"] * (-1) ** i)
                for i, limit_value in enumerate(kinds)
            ]
        )
        few = {-shared[0]: 1.0, shared[0]: -1.0}
        slower = contrast(both, TIME, "cell", few)
        if slower.bounds(ERROR)[1] < math.log(1 + SHRINKS):
            raise Refused(
                f"{limit_label('power_limit_w', limits[-1])} does not slow {shared[0]} GPUs"
            )
        change = contrast(both, TIME, "cell", few | {-MANY_GPUS: -1.0, MANY_GPUS: 1.0})
        yield Within(
            "slow_down_factor",
            f"the slow-down by {limits[-1]:g} W at {shared[0]} GPUs "
            f"(a factor of {ratio(slower.estimate):.3f}) over that at {MANY_GPUS}",
            change, math.log(1 + SHRINKS), show=ratio, shape="{:.3f}",
        )  # fmt: skip

    return ClaimDefinition(
        name="slow-down-shrinks-at-128",
        claim="The slow-down by a power cap shrinks at 128 GPUs.",
        study=MIT,
        criterion=(
            "the time under the lowest cap over that without is, at the smallest GPU count, at "
            f"least {SHRINKS:.0%} more than at {MANY_GPUS} GPUs"
        ),
        needs=(
            f"runs without cap and under one that slows them, on {MANY_GPUS} GPUs and on fewer, "
            "repeated"
        ),
        remark="A slow-down that shrinks is a larger beta under the cap.",
    ).evaluate(cases_of_limit_series(findings, "local_batch", "power_limit_w", checks))


CLAIMS = (
    caps_move_alpha, clocks_move_alpha, mild_cap_costs_no_speed, mild_cap_saves_energy,
    strict_cap_slows, slow_down_shrinks,
)  # fmt: skip
