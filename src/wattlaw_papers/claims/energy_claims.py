"""Claims about utilisation, energy and carbon."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.energy_laws import FACTOR, energy_law
from wattlaw.analysis.laws.limit_effects import LIMITS, without_limits
from wattlaw.analysis.metrics.metrics import HOUR_S
from wattlaw.common.errors import Refused
from wattlaw_papers.claims import cases, effects, verdicts
from wattlaw_papers.claims.effects import ENERGY, TIME
from wattlaw_papers.claims.factor_model import factor_model
from wattlaw_papers.claims.verdicts import KIT, MIT, Check, ClaimDefinition, Measurements, Within

#: The least change per doubling of GPUs that counts as one.
LEAST_CHANGE = 0.01
EXPONENT_MARGIN, MIN_R2, MIN_COUNTS = 0.1, 0.9, 3
FACTOR_MARGIN = 0.05
#: The counts that the figures of utilisation compare, and a change between them that counts as one.
FIGURE_GPUS, UTILISATION_CHANGE = (2, 128), 0.10
#: The published factor of energy and the range of counts behind it, 2 to 416 GPUs.
DIMENET_ENERGY, DIMENET_RANGE = 3.0, 208
CO2_GPUS, CO2_KG_PER_H, CO2_TOLERANCE = 128, 22.0, 0.25


def _utilisation(
    name: str, claim: str, criterion: str, checks: cases.Checks, *workloads: str,
    counts: str = "3 or more GPU counts",
) -> ClaimDefinition:  # fmt: skip
    needs = f"GPUs whose utilisation is sampled, on {counts} of one setting, with repeats"
    tests = cases.on_main_series(checks, *workloads)
    return ClaimDefinition(name, claim, MIT, criterion, needs, tests)


def _sm_utilisation(
    name: str, claim: str, effect: str, low: float, high: float, *workloads: str
) -> ClaimDefinition:
    few, many = FIGURE_GPUS

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        ratio = effects.contrast(rows, "sm_util_mean", "gpus", {few: -1.0, many: 1.0})
        label = f"SM utilisation at {many} GPUs over that at {few}"
        yield Within("sm_utilisation_ratio", label, ratio, low, high, math.exp)

    criterion = f"a run's mean SM utilisation at {many} GPUs is {effect} that at {few}"
    counts = f"{few} and {many} GPUs"
    return _utilisation(name, claim, criterion, checks, *workloads, counts=counts)


def _variation(column: str, part: str) -> ClaimDefinition:
    return _utilisation(
        f"{part.lower()}-variation-rises",
        f"The coefficient of variation of {part} utilisation rises with the number of GPUs.",
        f"sigma/mu of {part} utilisation over a run's samples rises by at least "
        f"{LEAST_CHANGE:.0%} per doubling",
        cases.per_doubling(
            "variation_per_doubling", f"sigma/mu of {part} utilisation per doubling of GPUs",
            column, math.log2(1 + LEAST_CHANGE),
        ),
    )  # fmt: skip


def _energy_rises(rows: pd.DataFrame) -> list[Check]:
    means = effects.require_measured(rows, ENERGY).groupby("gpus")[ENERGY].mean()
    last = f"{means.iloc[-1] / means.iloc[0]:.2f} times that of {means.index[0]}"
    label = f"energy at {means.index[-1]} GPUs {last}; per doubling"
    rises = cases.per_doubling("energy_per_doubling", label, ENERGY, math.log2(1 + LEAST_CHANGE))
    return list(rises(rows))


def _carbon(measured: Measurements) -> Sequence[verdicts.Case]:
    footprint = measured.footprint
    low, high = (math.log(CO2_KG_PER_H * (1 + give)) for give in (-CO2_TOLERANCE, CO2_TOLERANCE))

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        if footprint is None or footprint.grid_g_per_kwh is None:
            raise Refused("no carbon intensity of the grid was given")
        known = effects.require_measured(rows, ENERGY)
        kg = [footprint.of(energy_j).co2_kg for energy_j in known[ENERGY]]
        hourly = known.assign(kg_per_h=np.array(kg, dtype=float) / (known[TIME] / HOUR_S))
        effect = effects.contrast(hourly, "kg_per_h", "gpus", {CO2_GPUS: 1.0})
        label = f"kg CO2e per hour of {CO2_GPUS} GPUs ({footprint.counted()})"
        yield Within("co2_kg_per_h", label, effect, low, high, math.exp)

    def select(group: cases.RunGroup) -> pd.DataFrame:
        selected = without_limits(group.runs[group.runs["gpus"] == CO2_GPUS])
        if selected.empty:
            raise Refused(f"no runs on {CO2_GPUS} GPUs")
        return selected

    return cases.on_groups(select, checks, hardware="v100", energy=True)(measured)


def _linear(rows: pd.DataFrame) -> Iterator[Check]:
    counts = rows["gpus"].nunique()
    if counts < MIN_COUNTS:
        raise Refused(f"{counts} GPU counts; measure {MIN_COUNTS} or more")
    law = energy_law(rows)
    r2, factor_w = law["r2_log_log"], law["factor_w"]
    if r2 is None:
        raise Refused("all energies are the same, so there is no R^2")
    exponent = verdicts.Effect(law["exponent"], law["exponent_se"], law["n"] - 2)
    yield Within("exponent", "exponent", exponent, 1 - EXPONENT_MARGIN, 1 + EXPONENT_MARGIN)
    yield verdicts.Tested(
        f"R^2 {r2:.3f}, {factor_w:.4g} W per GPU", r2 >= MIN_R2, None,
        {"r2": r2, "r2_through_origin": law["r2_origin"], "factor_w": factor_w},
    )  # fmt: skip


def _factor_depends(
    on: str, differ: str, needs: str, are_pair: Callable[[cases.RunGroup, cases.RunGroup], bool],
    but: tuple[str, ...] | None,
) -> ClaimDefinition:  # fmt: skip
    """Return the claim on jobs at the same settings ``but`` these or, if None, the same GPUs."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        first, other = rows.groupby("which")["workload" if but is None else "hardware"].first()
        cell = rows.groupby("gpus").ngroup() if but is None else effects.settings(rows, but)
        yield Within(
            "factor_ratio", f"energy per GPU-hour, {other} over {first}",
            effects.paired(rows, FACTOR, rows["which"] == 1, cell),
            math.log(1 - FACTOR_MARGIN), math.log(1 + FACTOR_MARGIN), math.exp, inside=False,
        )  # fmt: skip

    return ClaimDefinition(
        f"factor-depends-on-{on}", f"The energy of a GPU-hour depends on the {on}.", KIT,
        f"there are two {differ} differs by more than {FACTOR_MARGIN:.0%}; contradicted if all "
        "differ by less",
        needs=f"{needs}, repeated",
        cases=cases.on_pairs(
            are_pair, lambda group: without_limits(group.runs), checks, energy=True
        ),
        about="some",
    )  # fmt: skip


def _factor_moves(rate: str, other_rate: str) -> ClaimDefinition:
    least = math.log2(1 + LEAST_CHANGE)

    def all_runs(measured: Measurements) -> list[verdicts.Case]:
        groups = cases.run_groups(measured)
        if not groups:
            return []
        rows = pd.concat([without_limits(group.runs) for group in groups], ignore_index=True)
        rows[list(LIMITS)] = float("nan")  # the highest counts as none
        names = ", ".join(sorted({group.workload for group in groups}))
        return [cases.make_case(names, "all runs without limits", rows, checks, energy=True)]

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        model = factor_model(rows)
        term = model.terms.set_index("term").loc[f"log_{rate}"]
        estimate, error = (float(value) for value in term[["estimate", "se"]].to_numpy(float))
        effect = verdicts.Effect(estimate, error, model.settings - 1)
        label = f"energy per GPU-hour per doubling of {rate} per GPU-hour"
        yield Within(rate, label, effect, -least, least, effects.growth, "{:+.1%}", inside=False)

    return ClaimDefinition(
        f"factor-moves-with-{rate}",
        f"The energy of a GPU-hour moves with {rate} per GPU-hour.",
        KIT,
        f"at the same {other_rate} per GPU-hour, model and hardware, it changes by more than "
        f"{LEAST_CHANGE:.0%} per doubling; contradicted if by less",
        needs="the energy of runs at several GPU counts and global batches per workload",
        cases=all_runs,
    )


CLAIMS = (
    _utilisation(
        "memory-utilisation-falls",
        "Memory utilisation falls with the number of GPUs.",
        f"a run's mean memory utilisation falls by at least {LEAST_CHANGE:.0%} per doubling",
        cases.per_doubling(
            "memory_utilisation_per_doubling", "memory utilisation per doubling of GPUs",
            "mem_util_mean", high=math.log2(1 - LEAST_CHANGE),
        ),
    ),
    _sm_utilisation(
        "gnn-sm-utilisation-falls", "The SM utilisation of DimeNet and SchNet falls.",
        f"at least {UTILISATION_CHANGE:.0%} less than", -math.inf, math.log(1 - UTILISATION_CHANGE),
        "dimenet", "schnet",
    ),
    _sm_utilisation(
        "bert-sm-utilisation-stays", "The SM utilisation of BERT stays.",
        f"within {UTILISATION_CHANGE:.0%} of", math.log(1 - UTILISATION_CHANGE),
        math.log(1 + UTILISATION_CHANGE), "bert",
    ),
    _variation("sm_util_cv", "SM"),
    _variation("mem_util_cv", "memory"),
    ClaimDefinition(
        "energy-rises-with-gpus", "The energy of an epoch rises with the number of GPUs.", MIT,
        f"the energy per epoch rises by at least {LEAST_CHANGE:.0%} per doubling",
        needs="the energy of runs on 3 or more GPU counts of one setting, with repeats",
        cases=cases.on_main_series(_energy_rises, energy=True),
    ),
    ClaimDefinition(
        "dimenet-energy-rises-threefold",
        "The energy of an epoch of DimeNet rises more than threefold.", MIT,
        f"the energy per epoch at the largest count is at least {DIMENET_ENERGY:g} times that at "
        f"the smallest; less contradicts if the counts span the study's range, a factor of "
        f"{DIMENET_RANGE}",
        needs="the energy of dimenet at constant local batch from 2 GPUs up to 416, with repeats",
        cases=cases.on_main_series(
            cases.first_to_last(
                "energy_ratio", "factor of energy", ENERGY, DIMENET_ENERGY, reach=DIMENET_RANGE
            ),
            "dimenet", energy=True,
        ),
    ),
    ClaimDefinition(
        "128-v100-22-kg-co2-per-hour", "128 V100 emit 22 kg CO2 per hour.", MIT,
        f"runs on {CO2_GPUS} V100 without cap, times PUE and grid intensity as given, emit "
        f"{CO2_KG_PER_H:g} kg CO2e per hour within {CO2_TOLERANCE:.0%}",
        needs=f"the energy of repeated runs on {CO2_GPUS} V100, PUE and the grid's g CO2e per kWh",
        cases=_carbon,
        remark="At a full 250 W per board, 22 kg per hour are 0.69 kg per kWh.",
    ),
    ClaimDefinition(
        "energy-near-linear-in-gpu-hours", "Energy is close to linear in GPU-hours.", KIT,
        "the exponent of energy against GPU-hours of runs without limits is 1 within "
        f"{EXPONENT_MARGIN:g}, with R^2 of at least {MIN_R2:g}",
        needs="the energy of 4 or more settings on 3 or more GPU counts",
        cases=cases.on_groups(lambda group: without_limits(group.runs), _linear, energy=True),
    ),
    _factor_depends(
        "hardware",
        "kinds of hardware on which the energy per GPU-hour of the same settings",
        "the energy of one workload at the same settings on two kinds of hardware",
        lambda one, other: one.workload == other.workload and one.hardware != other.hardware,
        but=("hardware", "launcher", "nodes", "threads_per_worker"),
    ),
    _factor_depends(
        "model",
        "models whose energy per GPU-hour on the same hardware and GPU counts",
        "the energy of two workloads on the same hardware and GPU counts",
        cases.are_models,
        but=None,
    ),
    _factor_moves("samples", "steps"),
    _factor_moves("steps", "samples"),
)  # fmt: skip
