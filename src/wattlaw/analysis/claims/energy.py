"""Claims about energy and carbon."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS, without_limits
from wattlaw.analysis.claims.cases import cases_of_main_series, cases_of_runs, make_case
from wattlaw.analysis.claims.effects import (
    ENERGY,
    TIME,
    contrast,
    from_interval,
    paired,
    per_doubling,
    ratio,
    require_measured,
    settings,
    slope,
)
from wattlaw.analysis.claims.run_groups import RunGroup, run_groups
from wattlaw.analysis.claims.verdicts import (
    KIT,
    MIT,
    Case,
    Check,
    Claim,
    ClaimDefinition,
    Effect,
    Outside,
    Tested,
    Within,
)
from wattlaw.analysis.energy_factor import factor_model
from wattlaw.analysis.energy_laws import LOG_LOG, ORIGIN, energy_law
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.metrics import HOUR_S
from wattlaw.errors import Refused

FACTOR = "energy_per_gpu_hour_j"
LEAST = 0.01
NEAR_LINEAR, LEAST_R2, LEAST_COUNTS = 0.1, 0.9, 3
DIFFERS = 0.05
CO2_GPUS, CO2_KG_PER_H, CO2_GIVE = 128, 22.0, 0.25


def energy_rises_with_gpus(findings: Findings) -> Claim:
    """Test that the energy of an epoch, relative to the fewest GPUs, rises with their number."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        known = require_measured(rows, ENERGY)
        means = np.log(known.groupby("gpus")[ENERGY].mean())
        last = f"{math.exp(means.iloc[-1] - means.iloc[0]):.2f} times that of {means.index[0]}"
        yield Within(
            "energy_per_doubling",
            f"energy at {means.index[-1]} GPUs {last}; per doubling",
            slope(rows, ENERGY), math.log2(1 + LEAST), show=per_doubling, shape="{:+.1%}",
        )  # fmt: skip

    return ClaimDefinition(
        name="energy-rises-with-gpus",
        claim="The energy of an epoch rises with the number of GPUs.",
        study=MIT,
        criterion=f"the energy per epoch rises by at least {LEAST:.0%} per doubling",
        needs="the energy of runs on 3 or more GPU counts of one setting, with repeats",
    ).evaluate(cases_of_main_series(findings, "local_batch", checks, energy=True))


def carbon_of_128(findings: Findings) -> Claim:
    """Test that 128 V100 emit 22 kg CO2e per hour, with the footprint's PUE and grid."""
    footprint = findings.footprint
    low, high = (math.log(CO2_KG_PER_H * (1 + give)) for give in (-CO2_GIVE, CO2_GIVE))

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        if footprint is None or footprint.grid_g_per_kwh is None:
            raise Refused("no carbon intensity of the grid was given")
        known = require_measured(rows, ENERGY)
        kg = [footprint.of(energy_j).co2_kg for energy_j in known[ENERGY]]
        hourly = known.assign(kg_per_h=np.array(kg, dtype=float) / (known[TIME] / HOUR_S))
        effect = contrast(hourly, "kg_per_h", "gpus", {CO2_GPUS: 1.0})
        label = f"kg CO2e per hour of {CO2_GPUS} GPUs ({footprint.counted()})"
        yield Within("co2_kg_per_h", label, effect, low, high, ratio)

    def row_filter(rows: pd.DataFrame) -> pd.DataFrame:
        selected = without_limits(rows[rows["gpus"] == CO2_GPUS])
        if selected.empty:
            raise Refused(f"no runs on {CO2_GPUS} GPUs")
        return selected

    boards = [group for group in run_groups(findings) if "v100" in group.hardware.lower()]
    return ClaimDefinition(
        name="128-v100-22-kg-co2-per-hour",
        claim="128 V100 emit 22 kg CO2 per hour.",
        study=MIT,
        criterion=(
            f"runs on {CO2_GPUS} V100 without cap, times PUE and grid intensity as given, emit "
            f"{CO2_KG_PER_H:g} kg CO2e per hour within {CO2_GIVE:.0%}"
        ),
        needs=f"the energy of repeated runs on {CO2_GPUS} V100, PUE and the grid's g CO2e per kWh",
        remark="At a full 250 W per board, 22 kg per hour are 0.69 kg per kWh.",
    ).evaluate(cases_of_runs(boards, row_filter, checks, energy=True))


def energy_linear_in_gpu_hours(findings: Findings) -> Claim:
    """Test that energy is close to linear in GPU-hours, per model and hardware."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        counts = rows["gpus"].nunique()
        if counts < LEAST_COUNTS:
            raise Refused(f"{counts} GPU counts; measure {LEAST_COUNTS} or more")
        law = energy_law(rows)
        power = law.form(LOG_LOG)
        if power.r2 is None:
            raise Refused("all energies are the same, so there is no R^2")
        exponent = from_interval(
            power.parameters["exponent"], power.intervals["exponent"], law.n - 2
        )
        yield Within("exponent", "exponent", exponent, 1 - NEAR_LINEAR, 1 + NEAR_LINEAR)
        yield Tested(
            f"R^2 {power.r2:.3f}, {law.factor_w:.4g} W per GPU", power.r2 >= LEAST_R2, None,
            {"r2": power.r2, "r2_through_origin": law.form(ORIGIN).r2, "factor_w": law.factor_w},
        )  # fmt: skip

    return ClaimDefinition(
        name="energy-near-linear-in-gpu-hours",
        claim="Energy is close to linear in GPU-hours.",
        study=KIT,
        criterion=(
            f"the exponent of energy against GPU-hours of runs without limits is 1 within "
            f"{NEAR_LINEAR:g}, with R^2 of at least {LEAST_R2:g}"
        ),
        needs="the energy of 4 or more settings on 3 or more GPU counts",
    ).evaluate(cases_of_runs(run_groups(findings), without_limits, checks, energy=True))


def factor_depends_on_hardware(findings: Findings) -> Claim:
    """Test that energy per GPU-hour differs between hardware, at the same settings."""
    pairs = [
        _pair(first, other, ("hardware", "launcher", "nodes", "threads_per_worker"))
        for first, other in combinations(run_groups(findings), 2)
        if first.workload == other.workload and first.hardware != other.hardware
    ]
    return _factor_depends(
        "hardware", "the hardware",
        "there are two kinds of hardware on which the energy per GPU-hour of the same settings",
        "the energy of one workload at the same settings on two kinds of hardware, repeated", pairs,
    )  # fmt: skip


def factor_depends_on_model(findings: Findings) -> Claim:
    """Test that energy per GPU-hour differs between models on the same hardware and GPU count."""
    pairs = [
        _pair(first, other, None)
        for first, other in combinations(run_groups(findings), 2)
        if first.workload != other.workload and first.hardware == other.hardware
    ]
    return _factor_depends(
        "model", "the model",
        "there are two models whose energy per GPU-hour on the same hardware and GPU counts",
        "the energy of two workloads on the same hardware and GPU counts, repeated", pairs,
    )  # fmt: skip


def _factor_depends(name: str, on: str, there_are: str, needs: str, pairs: list[Case]) -> Claim:
    return ClaimDefinition(
        name=f"factor-depends-on-{name}",
        claim=f"The energy of a GPU-hour depends on {on}.",
        study=KIT,
        criterion=(
            f"{there_are} differs by more than {DIFFERS:.0%}; contradicted if all differ by less"
        ),
        needs=needs,
        about="some",
    ).evaluate(pairs)


def _pair(first: RunGroup, other: RunGroup, but: tuple[str, ...] | None) -> Case:
    """Compare two jobs at the same settings ``but`` for these or, if None, at the same GPUs."""

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        cell = rows.groupby("gpus").ngroup() if but is None else settings(rows, but)
        effect = paired(rows, FACTOR, rows["which"] == 1, cell)
        names_of_pair = [] if but is None else [other.hardware, "over", first.hardware]
        label = " ".join(
            ["energy per GPU-hour,", *(names_of_pair or [other.workload, "over", first.workload])]
        )
        inside = Within(
            "factor_ratio", label, effect, math.log(1 - DIFFERS), math.log(1 + DIFFERS), ratio
        )
        yield Outside(inside)

    both = pd.concat(
        [without_limits(group.runs).assign(which=i) for i, group in enumerate((first, other))],
        ignore_index=True,
    )
    workload = first.workload if but is not None else f"{first.workload}, {other.workload}"
    return make_case(workload, f"{first.label} and {other.label}", both, checks, energy=True)


def factor_moves_with_samples(findings: Findings) -> Claim:
    """Test that the factor moves with samples per GPU-hour."""
    return _factor_moves(findings, "samples")


def factor_moves_with_steps(findings: Findings) -> Claim:
    """Test that the factor moves with gradient steps per GPU-hour."""
    return _factor_moves(findings, "steps")


def _factor_moves(findings: Findings, rate: str) -> Claim:
    least = math.log2(1 + LEAST)

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        model = factor_model(rows)
        term = model.terms.set_index("term").loc[f"log_{rate}"]
        estimate, error = (float(value) for value in term[["estimate", "se"]].to_numpy(float))
        effect = Effect(estimate, error, model.settings - 1)
        label = f"energy per GPU-hour per doubling of {rate} per GPU-hour"
        shown = Within(rate, label, effect, -least, least, per_doubling, "{:+.1%}")
        yield Outside(shown)

    known = run_groups(findings)
    names = ", ".join(sorted({group.workload for group in known}))
    row_filter = partial(_unlimited, known)
    cases = (
        [make_case(names, "all runs without limits", row_filter, checks, energy=True)]
        if known
        else []
    )
    return ClaimDefinition(
        name=f"factor-moves-with-{rate}",
        claim=f"The energy of a GPU-hour moves with {rate} per GPU-hour.",
        study=KIT,
        criterion=(
            f"at the same {'steps' if rate == 'samples' else 'samples'} per GPU-hour, model and "
            f"hardware, it changes by more than {LEAST:.0%} per doubling; contradicted if by less"
        ),
        needs="the energy of runs at several GPU counts and global batches per workload",
    ).evaluate(cases)


def _unlimited(known: list[RunGroup]) -> pd.DataFrame:
    rows = pd.concat([without_limits(group.runs) for group in known], ignore_index=True)
    return rows.assign(**dict.fromkeys(LIMITS, float("nan")))  # the highest stands for none


CLAIMS = (
    energy_rises_with_gpus, carbon_of_128, energy_linear_in_gpu_hours, factor_depends_on_hardware,
    factor_depends_on_model, factor_moves_with_samples, factor_moves_with_steps,
)  # fmt: skip
