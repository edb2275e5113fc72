"""Claims about power caps and locked clocks."""

import math
from collections.abc import Iterator

import pandas as pd

from wattlaw.analysis.laws.limit_effects import Limit, at_limit, distinct_limits
from wattlaw.analysis.metrics.estimates import ERROR
from wattlaw.analysis.metrics.result import plain
from wattlaw.common.errors import Refused
from wattlaw.study.labels import limit_label
from wattlaw_papers.claims import cases, effects
from wattlaw_papers.claims.effects import ENERGY, TIME, varying_only
from wattlaw_papers.claims.limit_comparison import MARGIN, SAME, compare_limits
from wattlaw_papers.claims.verdicts import MIT, Check, ClaimDefinition, Tested, Within

#: The least change of alpha that counts as one.
MIN_TIME_INCREASE = 0.02
MAX_SLOWDOWN, CLEAR_SLOWDOWN, MIN_SAVING = 0.05, 0.10, 0.10
MANY_GPUS, FASTEST_AT = 128, 200.0
#: The study says of one model that caps do not matter; it is tested by itself.
SCHNET_APART = "SchNet, which is said to be insensitive to caps, has a claim of its own."
#: Of the slow-down's factor between the smallest count and 128 GPUs.
MIN_SHRINKAGE = 0.05


def _alpha_not_beta(
    limit: Limit, words: str, plural: str, remark: str = "", but: str | None = None
) -> ClaimDefinition:
    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        compared = compare_limits(rows, limit)
        labels = [limit_label(limit, value) for value in compared.limits["limit"]]
        betas = dict(zip(labels, compared.limits["beta"].tolist(), strict=True))
        names = ("difference_p", "equivalence_p")
        p_values = {name: plain(getattr(compared, name)) for name in names}
        # Exact data have no test; what is not within the margin then differs.
        against = 0.0 if compared.difference_p is None else compared.difference_p
        is_same = compared.verdict == SAME
        yield Tested(compared.sentence.rstrip("."), is_same, against, {"betas": betas} | p_values)
        lowest = distinct_limits(rows[limit])[-1]
        yield Within(
            "alpha_ratio", f"time under {limit_label(limit, lowest)} over that without",
            effects.change_under_limit(effects.limited_and_reference(rows, limit), TIME, limit),
            math.log(1 + MIN_TIME_INCREASE), show=math.exp, shape="{:.3f}",
        )  # fmt: skip

    return ClaimDefinition(
        f"{plural}-move-alpha-not-beta", f"{words} change alpha, not beta.", MIT,
        f"the exponents under all {plural} are equal within {MARGIN:g} (two one-sided tests; "
        "contradicted by a significant difference), and the lowest makes an epoch at least "
        f"{MIN_TIME_INCREASE:.0%} longer",
        needs=f"two or more {plural} on the same 3 or more GPU counts, with repeats",
        cases=cases.on_groups(lambda group: group.limit_series(limit), checks, but=but),
        remark=remark,
    )  # fmt: skip


def _under_cap(
    name: str, claim: str, effect: str, cap_w: float | None, y: str, low: float, high: float,
    *workloads: str, but: str | None = None, remark: str = "",
) -> ClaimDefinition:  # fmt: skip
    """Return a claim on ``y`` under a cap (None: the lowest run), with bounds of the ln ratio."""
    quantity = "energy" if y == ENERGY else "time"
    cap = "the lowest cap" if cap_w is None else f"{cap_w:g} W"

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        change = effects.change_under_limit(rows, y, "power_limit_w")
        at = limit_label("power_limit_w", float(rows.loc[rows["limited"], "power_limit_w"].iloc[0]))
        yield Within(
            f"{quantity}_ratio", f"{quantity} per epoch under {at}", change,
            low, high, math.expm1, "{:+.1%}",
        )  # fmt: skip

    needs = f"runs with {cap if cap_w is None else f'a cap of {cap}'} beside runs of the same "
    needs += "settings without cap, repeated"

    def select(group: cases.RunGroup) -> pd.DataFrame:
        return effects.limited_and_reference(group.runs, "power_limit_w", cap_w)

    return ClaimDefinition(
        name, claim, MIT,
        f"an epoch takes {effect} under {cap} than at the same setting without cap (or "
        "under the highest), over all GPU counts",
        needs=f"{needs}, and their energy" if y == ENERGY else needs,
        cases=cases.on_groups(select, checks, *workloads, but=but, energy=y == ENERGY),
        remark=f"Published for V100 boards with a limit of 250 W. {remark}".strip(),
    )  # fmt: skip


def _fastest(rows: pd.DataFrame) -> Iterator[Check]:
    limits = distinct_limits(rows["power_limit_w"])
    if FASTEST_AT not in limits or len(limits) < 2:
        raise Refused(f"no runs with a cap of {FASTEST_AT:g} W beside others")
    for other in limits:
        if other == FASTEST_AT:
            continue
        kinds = [at_limit(rows, "power_limit_w", value) for value in (other, FASTEST_AT)]
        pair = pd.concat(
            [kind.assign(limited=i == 1) for i, kind in enumerate(kinds)], ignore_index=True
        )
        label = limit_label("power_limit_w", other)
        yield Within(
            f"time_ratio_to_{label.replace(' ', '_')}",
            f"time under {FASTEST_AT:g} W over that under {label}",
            effects.change_under_limit(pair, TIME, "power_limit_w"), high=0.0,
            show=math.expm1, shape="{:+.1%}",
        )  # fmt: skip


def _slow_down(rows: pd.DataFrame) -> Iterator[Check]:
    limits = distinct_limits(rows["power_limit_w"])
    if len(limits) < 2:
        raise Refused("no runs under a cap beside a higher one or none")
    kinds = [at_limit(rows, "power_limit_w", value) for value in (limits[0], limits[-1])]
    free, capped = (rows_of_limit["gpus"].unique() for rows_of_limit in kinds)
    shared = sorted(set(free) & set(capped))
    if MANY_GPUS not in shared or shared[0] == MANY_GPUS:
        raise Refused(f"not run with and without the cap on {MANY_GPUS} GPUs and on fewer")
    both = pd.concat(
        rows_of_limit.assign(cell=rows_of_limit["gpus"] * (-1) ** i)
        for i, rows_of_limit in enumerate(kinds)
    )
    slowdown_at_fewest = {-shared[0]: 1.0, shared[0]: -1.0}
    slower = effects.contrast(both, TIME, "cell", slowdown_at_fewest)
    if slower.bounds(ERROR)[1] < math.log(1 + MIN_SHRINKAGE):
        raise Refused(f"{limit_label('power_limit_w', limits[-1])} does not slow {shared[0]} GPUs")
    change = effects.contrast(
        both, TIME, "cell", slowdown_at_fewest | {-MANY_GPUS: -1.0, MANY_GPUS: 1.0}
    )
    yield Within(
        "slow_down_factor",
        f"the slow-down by {limits[-1]:g} W at {shared[0]} GPUs "
        f"(a factor of {math.exp(slower.estimate):.3f}) over that at {MANY_GPUS}",
        change, math.log(1 + MIN_SHRINKAGE), show=math.exp, shape="{:.3f}",
    )  # fmt: skip


CLAIMS = (
    _alpha_not_beta("power_limit_w", "Power caps", "caps", SCHNET_APART, "schnet"),
    _alpha_not_beta(
        "clock_limit_mhz", "SM clocks", "clocks",
        "The study's own exponents of DimeNet, 0.97, 0.90 and 0.82 at 135, 735 and 1380 MHz "
        "(the last with a standard error of 0.03), contradict it.",
    ),
    _under_cap(
        "200w-costs-no-speed", "A power cap of 200 W costs no speed.",
        f"less than {MAX_SLOWDOWN:.0%} longer", 200.0, TIME, -math.inf,
        math.log(1 + MAX_SLOWDOWN),
    ),
    _under_cap(
        "200w-saves-energy", "A power cap of 200 W saves at least 10 % of the energy.",
        f"at least {MIN_SAVING:.0%} less energy", 200.0, ENERGY, -math.inf,
        math.log(1 - MIN_SAVING),
    ),
    _under_cap(
        "100w-slows-clearly", "A power cap of 100 W slows training clearly.",
        f"at least {CLEAR_SLOWDOWN:.0%} longer", 100.0, TIME, math.log(1 + CLEAR_SLOWDOWN),
        math.inf, but="schnet", remark=SCHNET_APART,
    ),
    _under_cap(
        "schnet-insensitive-to-caps", "SchNet is insensitive to power caps.",
        f"at most {MAX_SLOWDOWN:.0%} more or less time", None, TIME, math.log(1 - MAX_SLOWDOWN),
        math.log(1 + MAX_SLOWDOWN), "schnet",
    ),
    ClaimDefinition(
        "bert-fastest-at-200w", "BERT is fastest under a power cap of 200 W.", MIT,
        "an epoch takes less time under 200 W than at the same setting without cap and under every "
        "other cap, over all GPU counts",
        needs="bert with a cap of 200 W beside runs of the same settings with others, repeated",
        cases=cases.on_groups(
            lambda group: varying_only(group.runs, "power_limit_w"), _fastest, "bert"
        ),
        remark="Published for V100 boards with a limit of 250 W.",
    ),
    ClaimDefinition(
        "slow-down-shrinks-at-128", "The slow-down by a power cap shrinks at 128 GPUs.", MIT,
        "the time under the lowest cap over that without is, at the smallest GPU count, at least "
        f"{MIN_SHRINKAGE:.0%} more than at {MANY_GPUS} GPUs",
        needs=f"runs without cap and under one that slows them, on {MANY_GPUS} GPUs and on fewer, "
        "repeated",
        cases=cases.on_groups(lambda group: group.limit_series("power_limit_w"), _slow_down),
        remark="A slow-down that shrinks is a larger beta under the cap.",
    ),
)  # fmt: skip
