"""Claims about the law of time against GPU count, and about how much faster more GPUs are."""

import math
from collections.abc import Iterator

import pandas as pd

from wattlaw.analysis.laws.power_law import MIN_COUNTS, find_breakpoint, fit_power_law
from wattlaw.common.errors import Refused
from wattlaw_papers.claims import cases, effects
from wattlaw_papers.claims.effects import TIME
from wattlaw_papers.claims.verdicts import KIT, MIT, Cases, Check, ClaimDefinition, Tested, Within

#: How far the largest count may be from the law of the smaller ones.
LAW_MARGIN = 0.15
#: Exponents that differ by less are equal: a factor of 1.2 in time over a factor of 40 in GPUs.
SAME_BETA = 0.05
SCHNET_REACH, FOURCASTNET_REACH = 64, 4
#: Growth of time per doubling of GPUs and data that counts as slight.
SLIGHT_GROWTH = (0.005, 0.15)
NEAR_LINEAR = 0.9
#: The largest count of the pictures of Frey et al., and that over their smallest.
FIGURE_GPUS, FIGURE_RANGE = 128, 128 / 2
#: So much off a published speedup counts as that speedup; and off a published difference.
TOLERANCE = 0.1
#: The published exponents without caps, which the speedups of these models follow from.
CNN_BETAS = {"resnet50": 0.52, "vgg16": 0.64, "inception": 0.44}
CNN_DIFFERENCE, OVERTAKEN_AT = 0.20, 100
OTHERS_THAN_BERT = (*CNN_BETAS, "dimenet", "schnet")


def _power_law(rows: pd.DataFrame) -> Iterator[Check]:
    """Test the largest count against the law of the others, and whether the curve bends. R^2
    decides nothing: curves that bend have a high one too."""
    rows = effects.require_measured(rows, TIME)
    counts, times_s = rows["gpus"].to_numpy(float), rows[TIME].to_numpy(float)
    law = fit_power_law(counts, times_s)
    if law.r2 is None:
        raise Refused("all times are equal: there is nothing to describe")
    largest = int(rows["gpus"].max())
    yield Within(
        "extrapolation_error", f"time at {largest} GPUs against the law of the smaller counts",
        effects.beyond_law(rows, largest - 1), math.log(1 - LAW_MARGIN),
        math.log(1 + LAW_MARGIN),
        math.expm1, "{:+.1%}",
    )  # fmt: skip
    try:
        bend = find_breakpoint(counts, times_s)
    except Refused as refused:  # too few counts to look for one: no support
        label, holds, contradicting_p = str(refused), False, None
    else:
        label, holds = bend.sentence if bend else "no breakpoint found", bend is None
        contradicting_p = bend.p_value if bend else None
    numbers = {name: getattr(law, name) for name in ("r2", "beta", "lack_of_fit_p")}
    numbers["breakpoint_p"] = contradicting_p
    text = f"{label}, R^2 {law.r2:.3f}, beta {law.beta:.2f}"
    yield Tested(text, holds, contradicting_p, numbers)


def _two_betas(low: float, high: float, *, inside: bool = True) -> cases.Checks:
    """Return the test of the second model's exponent less the first one's."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        first, other = (effects.exponent(part) for _, part in rows.groupby("which"))
        label = f"beta {first.estimate:.2f} and {other.estimate:.2f}, difference"
        less = effects.difference(first, other)
        yield Within("beta_difference", label, less, low, high, shape="{:+.3f}", inside=inside)

    return checks


def _schnet(rows: pd.DataFrame) -> Iterator[Check]:
    rows = effects.require_measured(rows, TIME)
    yield Within(
        "over_law", f"time at {rows['gpus'].max()} GPUs against the law up to {SCHNET_REACH}",
        effects.beyond_law(rows, SCHNET_REACH), math.log(1 + LAW_MARGIN), math.inf,
        math.expm1, "{:+.1%}",
    )  # fmt: skip
    before = rows[rows["gpus"] <= SCHNET_REACH]
    try:
        bend = find_breakpoint(before["gpus"].to_numpy(float), before[TIME].to_numpy(float))
    except Refused:  # too few counts to look for a breakpoint
        return
    if bend is not None and bend.flattens:
        label = f"breakpoint already at {bend.at:g} GPUs (p = {bend.p_value:.2g})"
        yield Tested(label, holds=False, contradicting_p=bend.p_value, values={"bend_at": bend.at})


def _overtakes(rows: pd.DataFrame) -> Iterator[Check]:
    if rows["unit"].nunique() > 1:
        raise Refused("the times are of different units")
    counts = sorted(int(count) for count in rows["gpus"].unique())
    upto = [count for count in counts if count <= OVERTAKEN_AT]
    if not upto or counts[-1] == upto[-1]:
        raise Refused(f"measure both up to and beyond {OVERTAKEN_AT} GPUs")
    both = rows.assign(cell=rows["gpus"] * (-1) ** rows["which"])
    one, other = rows.groupby("which")["workload"].first()
    for name, count, bounds in (
        ("time_ratio_before", upto[-1], (0.0, math.inf)),
        ("time_ratio_beyond", counts[-1], (-math.inf, 0.0)),
    ):
        ratio = effects.contrast(both, TIME, "cell", {count: 1.0, -count: -1.0})
        label = f"time of {one} over {other} at {count} GPUs"
        yield Within(name, label, ratio, *bounds, math.exp, "{:.3f}")


def _speedup_of(beta: float) -> cases.Checks:

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        shown = effects.require_measured(rows[rows["gpus"] <= FIGURE_GPUS], TIME)
        first, last = int(shown["gpus"].min()), int(shown["gpus"].max())
        if last < FIGURE_RANGE * first:
            raise Refused(f"{first} to {last} GPUs: measure a factor of {FIGURE_RANGE:g}")
        effect = effects.contrast(shown, TIME, "gpus", {first: 1.0, last: -1.0})
        published = beta * math.log(last / first)
        label = f"speedup from {first} to {last} GPUs ({math.exp(published):.3g} by the exponent)"
        low, high = (published + math.log(1 + give) for give in (-TOLERANCE, TOLERANCE))
        yield Within("speedup", label, effect, low, high, math.exp)

    return checks


def _fourcastnet(rows: pd.DataFrame) -> Iterator[Check]:
    counts = sorted(int(count) for count in rows["gpus"].unique())
    middle_count = max(count for count in counts if count <= FOURCASTNET_REACH * counts[0])
    if middle_count in (counts[0], counts[-1]):
        reach = f"up to and beyond {FOURCASTNET_REACH} times the smallest"
        raise Refused(f"{counts[0]} to {counts[-1]} GPUs: measure counts {reach}")
    for name, low, high, bounds in (
        ("beta_up_to_4x", counts[0], middle_count, (NEAR_LINEAR, math.inf)),
        ("beta_beyond_4x", middle_count, counts[-1], (-math.inf, NEAR_LINEAR)),
    ):
        logs = effects.contrast(rows, TIME, "gpus", {low: 1.0, high: -1.0})
        label = f"beta between {low} and {high} GPUs"
        yield Within(name, label, effects.scaled(logs, 1 / math.log(high / low)), *bounds)


def _speedup_claim(
    workload: str, model: str, speedup: float, largest: int, *, is_limited: bool = False,
    remark: str = "",
) -> ClaimDefinition:  # fmt: skip
    """Return a claim on the speedup from 2 GPUs to ``largest`` or, not ``is_limited``, beyond."""
    at, upto = (f"-at-{largest}", f" up to {largest}") if is_limited else ("", "")
    least = speedup * (1 - TOLERANCE)
    return ClaimDefinition(
        f"{workload}-speedup-{speedup:g}{at}",
        f"{model} gets {speedup:g} times as fast{f' on {largest} GPUs' if is_limited else ''}.",
        MIT,
        f"the largest count{upto} is at least {least:g} times as fast as the smallest (the "
        f"published value less {TOLERANCE:.0%}); less contradicts if the counts span at least the "
        f"study's range, a factor of {largest / 2:g}",
        needs=f"{workload} at constant local batch from 2 GPUs up to {largest}, with repeats",
        cases=cases.on_main_series(
            cases.first_to_last(
                "speedup", "speedup", TIME, least, reach=largest / 2,
                up_to=largest if is_limited else math.inf,
            ),
            workload,
        ),
        remark=remark,
    )  # fmt: skip


def _growing_data_cases(rule: str, low: float, high: float) -> Cases:
    label = "time per doubling of GPUs and data"
    checks = cases.per_doubling("time_per_doubling", label, TIME, low, high)
    return cases.on_every_series(rule, checks, grows=True)


CLAIMS = (
    ClaimDefinition(
        "power-law-describes", "The time per epoch follows t = alpha N^-beta.", MIT,
        f"the time at the largest count lies within {LAW_MARGIN:.0%} of the law fitted to the "
        f"smaller ones, and no breakpoint is found over at least {MIN_COUNTS} counts (one "
        "contradicts); R^2 is reported and decides nothing",
        needs=f"at least {MIN_COUNTS} GPU counts of one setting, with repeats",
        cases=cases.on_main_series(_power_law),
    ),
    ClaimDefinition(  # published: 0.42 to 0.87 without caps
        "beta-differs-between-models", "The scaling exponent beta differs between models.", MIT,
        "there are two models on the same hardware whose exponents over the same GPU counts "
        f"differ by more than {SAME_BETA:g}; contradicted if all differ by less",
        needs="two workloads on the same hardware and the same 3 or more GPU counts",
        cases=cases.on_pairs(  # an exponent depends on the range of N
            cases.are_models, cases.RunGroup.main_series,
            _two_betas(-SAME_BETA, SAME_BETA, inside=False), shared_counts=True,
        ),
        about="some",
    ),
    ClaimDefinition(
        "bert-scales-best", "BERT scales best of all models.", MIT,
        "its exponent is larger than that of each other model of the study on the same hardware, "
        "over the same GPU counts; contradicted by a larger one",
        needs="bert and another model of the study on the same hardware and the same 3 or more GPU "
        "counts, with repeats",
        cases=cases.on_models(["bert"], OTHERS_THAN_BERT, _two_betas(-math.inf, 0.0)),
        remark="The published exponents of BERT and DimeNet, 0.87 and 0.82, have standard errors "
        "of 0.03 each.",
    ),
    ClaimDefinition(
        "dimenet-scales-better-than-schnet", "DimeNet scales better than SchNet.", MIT,
        f"its exponent over the same GPU counts is larger by at least {SAME_BETA:g}",
        needs="dimenet and schnet on the same hardware and the same 3 or more GPU counts, with "
        "repeats",
        cases=cases.on_models(["dimenet"], ["schnet"], _two_betas(-math.inf, -SAME_BETA)),
    ),
    ClaimDefinition(
        "cnn-exponents-within-0.2",
        "The exponents of the convolutional networks differ by at most 0.20.", MIT,
        f"the exponents of every two over the same GPU counts differ by at most "
        f"{CNN_DIFFERENCE * (1 + TOLERANCE):g} (the published value and {TOLERANCE:.0%})",
        needs="two of resnet50, vgg16 and inceptionv3 on the same hardware and the same 3 or more "
        "GPU counts, with repeats",
        cases=cases.on_pairs(
            lambda one, other: cases.are_models(one, other)
            and all(cases.matches_name(group.workload, *CNN_BETAS) for group in (one, other)),
            cases.RunGroup.main_series,
            _two_betas(*(sign * CNN_DIFFERENCE * (1 + TOLERANCE) for sign in (-1, 1))),
            shared_counts=True,
        ),
    ),
    ClaimDefinition(
        "vgg16-overtakes-resnet50-beyond-100", "VGG16 overtakes ResNet50 beyond 100 GPUs.", MIT,
        f"at the largest common count up to {OVERTAKEN_AT} GPUs it takes longer than ResNet50, at "
        "the largest beyond less",
        needs="vgg16 and resnet50 on the same hardware, on counts up to and beyond "
        f"{OVERTAKEN_AT}, with repeats",
        cases=cases.on_models(["vgg16"], ["resnet50"], _overtakes),
    ),
    ClaimDefinition(
        "schnet-leaves-the-law-beyond-64", "SchNet leaves its power law beyond 64 GPUs.", MIT,
        f"the largest count beyond {SCHNET_REACH} takes at least {LAW_MARGIN:.0%} longer than the "
        "law of the counts up to there, and these show no breakpoint of their own",
        needs=f"schnet on 3 or more GPU counts up to {SCHNET_REACH} and at least one beyond",
        cases=cases.on_main_series(_schnet, "schnet"),
    ),
    _speedup_claim("dimenet", "DimeNet", 60.0, 416),
    _speedup_claim("bert", "BERT", 76.0, 424),
    _speedup_claim("bert", "BERT", 30.0, 128, is_limited=True),
    _speedup_claim(
        "resnet50", "ResNet50", 20.0, 128, is_limited=True,
        remark="It is that of the figure of energies; the published exponent of 0.52 gives 8.7.",
    ),
    ClaimDefinition(
        "cnn-speedup-5-to-6",
        "The convolutional networks get as much faster as their exponents say.", MIT,
        f"the largest count N up to {FIGURE_GPUS} is (N / smallest count)^beta times as fast as "
        f"the smallest, within {TOLERANCE:.0%}, with the published beta of the model; the counts "
        f"span a factor of {FIGURE_RANGE:g} or more",
        needs="resnet50, vgg16 or inceptionv3 at constant local batch from 2 to 128 GPUs, repeated",
        cases=lambda measured: [
            case
            for name, beta in CNN_BETAS.items()
            for case in cases.on_main_series(_speedup_of(beta), name)(measured)
        ],
        remark="The text says 5 to 6 times; by the exponents it is 8.7, 14 and 6.2 for ResNet50, "
        "VGG16 and InceptionV3 from 2 to 128 GPUs.",
    ),
    ClaimDefinition(
        "growing-data-constant-time",
        "With a data set that grows with the GPUs, constant local batch keeps time constant.", KIT,
        f"the exponent of time is within {SAME_BETA:g} of 0: time changes by at most "
        f"{effects.growth(SAME_BETA):.1%} per doubling",
        needs="a data set that grows with 3 or more GPU counts at constant local batch",
        cases=_growing_data_cases("local_batch", -SAME_BETA, SAME_BETA),
    ),
    ClaimDefinition(
        "growing-data-time-grows-slightly",
        "With a data set that grows with the GPUs, time grows slightly at constant global batch "
        "(more steps).",
        KIT,
        f"time grows by {SLIGHT_GROWTH[0]:.1%} to {SLIGHT_GROWTH[1]:.0%} per doubling",
        needs="a data set that grows with 3 or more GPU counts at constant global batch",
        cases=_growing_data_cases(
            "global_batch", math.log2(1 + SLIGHT_GROWTH[0]), math.log2(1 + SLIGHT_GROWTH[1])
        ),
    ),
    ClaimDefinition(
        "resnet50-near-linear", "ResNet50's speedup is near-linear at constant global batch.", KIT,
        f"beta of every series of constant global batch is at least {NEAR_LINEAR:g}",
        needs="resnet50 at a constant global batch on 3 or more GPU counts, with repeats",
        cases=cases.on_every_series(
            "global_batch",
            lambda rows: [Within("beta", "beta", effects.exponent(rows), NEAR_LINEAR)], "resnet50",
        ),
    ),
    ClaimDefinition(
        "fourcastnet-not-past-4x",
        "FourCastNet scales near-linearly up to 4 times the GPUs and not past it.", KIT,
        "at constant global batch, the exponent between the smallest count and "
        f"{FOURCASTNET_REACH} times it is at least {NEAR_LINEAR:g}, and the one from there to the "
        "largest count is less",
        needs="fourcastnet at a constant global batch, repeated, on counts up to and beyond 4 "
        "times the smallest",
        cases=cases.on_every_series("global_batch", _fourcastnet, "fourcastnet"),
    ),
)  # fmt: skip
