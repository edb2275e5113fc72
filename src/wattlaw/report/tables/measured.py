"""What was measured, one row per setting: repeats as mean with interval."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from wattlaw.analysis.advice.formatting import TIME_UNITS
from wattlaw.analysis.caps.limits import LIMITS, UNITS
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import JSON_COLUMNS, differing_options, format_setting
from wattlaw.formatting import (
    NONE,
    interval,
    joules,
    known,
    number,
    plural,
    unit_of,
    with_interval,
)
from wattlaw.report.tables.table import Column, Table, make, words

_SETTINGS = "wattlaw export STORE settings -o settings.csv"
_HELD_DOWN = " Held down by cap: share of time in which the power limit kept the clocks down."


def settings(findings: Findings) -> Table | None:
    """Return time, speed, energy and quality of each setting."""
    cells = in_words(findings.settings, findings.varying_settings)
    size, unit = joules(cells["energy_per_epoch_j"])
    seconds, time_unit = unit_of(cells["epoch_time_s"], TIME_UNITS)
    columns = [
        *setting_columns(findings.varying_settings),
        Column("local batch", lambda row: number(row["local_batch"], 9)),
        Column("runs", lambda row: number(row["n"])),
        Column(f"{time_unit} per epoch", lambda row: scaled(row, "epoch_time_s", seconds)),
        Column("95 % interval", lambda row: interval(
            *(row[f"epoch_time_s_{end}"] / seconds for end in ("low", "high")))),
        Column("samples/s", lambda row: number(row["samples_per_s"])),
        Column(f"{unit} per epoch", lambda row: scaled(row, "energy_per_epoch_j", size)),
        Column("energy is", lambda row: row["energy_is"] or "not available", numeric=False),
        Column("metric", lambda row: number(row["metric"], 4)),
    ]  # fmt: skip
    return make(
        "settings",
        "What was measured, by setting (mean over repeats)",
        columns,
        cells.to_dict("records"),
        note="N: workers (GPUs, or CPU processes where there is no GPU). Time per epoch: "
        f"training windows after warm-up; evaluation is not in it.{interruptions(findings)}",
        command=_SETTINGS,
        rank=limits_set,
    )


def efficiency(findings: Findings) -> Table | None:
    """Return energy per sample and update, energy-delay products and GPU-hours by setting."""
    cells = in_words(findings.settings, findings.varying_settings)
    cells = cells[cells["energy_per_epoch_j"].notna()]
    if cells.empty:
        return None
    noun = worker(findings)
    has_power = cells["power_per_gpu_w"].notna().any()
    size, unit = joules(cells["energy_per_epoch_j"])
    sample_size, sample_unit = joules(cells["energy_per_sample_j"])
    update_size, update_unit = joules(cells["energy_per_step_j"])
    columns = [
        *setting_columns(findings.varying_settings),
        Column(f"{unit} per epoch (95 % interval)", lambda row: scaled(
            row, "energy_per_epoch_j", size, with_ci=True)),
        Column(f"{sample_unit} per sample", lambda row: scaled(
            row, "energy_per_sample_j", sample_size)),
        Column(f"{update_unit} per step", lambda row: scaled(
            row, "energy_per_step_j", update_size)),
        Column(f"{noun}-hours per epoch", lambda row: number(row["gpu_hours_per_epoch"])),
        Column("W per GPU", lambda row: number(row["power_per_gpu_w"])),
        Column(f"E·T ({unit} s)", lambda row: scaled(row, "energy_delay_js", size)),
        Column(f"E·T² ({unit} s²)", lambda row: scaled(row, "energy_delay2_js2", size)),
        words("energy is", "energy_is"),
    ]  # fmt: skip
    return make(
        "efficiency",
        "Energy by setting (mean over repeats)",
        columns,
        cells.to_dict("records"),
        note="E·T and E·T²: energy-delay products of an epoch (Gonzalez and Horowitz 1996); the "
        "less, the better."
        + (" W per GPU: the GPUs' part alone." if has_power else "")
        + suspicion(findings),
        command=_SETTINGS,
        rank=limits_set,
    )


def utilisation(findings: Findings) -> Table | None:
    """Return how busy the GPUs were by setting; None where no run has it."""
    cells = in_words(findings.settings, findings.varying_settings)
    cells = cells[cells[["sm_util_mean", "mem_util_mean"]].notna().any(axis=1)]
    columns = [
        *setting_columns(findings.varying_settings),
        Column("SM utilisation", lambda row: number(row["sm_util_mean"])),
        Column("its CV", lambda row: number(row["sm_util_cv"])),
        Column("memory utilisation", lambda row: number(row["mem_util_mean"])),
        Column("its CV ", lambda row: number(row["mem_util_cv"])),
        Column("SM clock (MHz)", lambda row: number(row["sm_clock_mean_mhz"], 4)),
        Column("held down by cap", lambda row: number(row["power_throttle_share"])),
        Column("runs", lambda row: number(row["n"])),
    ]  # fmt: skip
    return make(
        "utilisation",
        "Utilisation by setting (shares of time, 0 to 1; mean over repeats)",
        columns,
        cells.to_dict("records"),
        note="CV: coefficient of variation over all samples of a run's training windows."
        + (_HELD_DOWN if cells["power_throttle_share"].notna().any() else ""),
        command=_SETTINGS,
        rank=limits_set,
    )


def interruptions(findings: Findings) -> str:
    """Return the end of a note on windows that says how many count as no measurement."""
    own = findings.epochs[findings.epochs["run_id"].isin(findings.runs["run_id"])]
    count = int((own["interrupted"].astype(bool) & (own["phase"] == "train")).sum())
    if not count:
        return ""
    return (
        f" Left out: {plural(count, 'training window')} in which, or before which, a run was "
        "interrupted."
    )


def setting_columns(differing: Sequence[str]) -> list[Column]:
    """Return the columns that say which setting a row of ``in_words`` is."""
    others = (name for name in differing if name != "workload")
    return [
        words("workload", "workload"),
        *(words(name.removesuffix("_w").removesuffix("_mhz").replace("_", " "), name)
          for name in others),
        Column("N", lambda row: number(row["gpus"])),
        Column("global batch", lambda row: number(row["global_batch"], 9)),
    ]  # fmt: skip


def in_words(rows: pd.DataFrame, differing: Sequence[str]) -> pd.DataFrame:
    """Return rows with the settings that differ as words: caps with unit, options cut short."""
    told = {}
    for name in differing:
        if name in JSON_COLUMNS:
            shorter = differing_options(rows[name])
            told[name] = rows[name].map(lambda one, by=shorter: format_setting("options", by[one])
                                        if isinstance(one, str) else NONE)  # fmt: skip
        elif name in LIMITS:
            unit = UNITS[name]
            told[name] = rows[name].map(
                lambda one, unit=unit: f"{one:g} {unit}" if known(one) else "none"
            )
        elif name != "workload":
            told[name] = rows[name].map(lambda one: one if isinstance(one, str) else number(one))
    limits = rows[[name for name in LIMITS if name in rows]]
    return rows.assign(**told, _limits=limits.notna().sum(axis=1))


def limits_set(row: dict[str, Any]) -> int:
    """Return how many limits are set in a row of ``in_words``: those without any come first."""
    return int(row["_limits"])


def scaled(row: dict[str, Any], name: str, size: float, *, with_ci: bool = False) -> str:
    """Return an energy or a time of a row in another unit."""
    value = row[name]
    if not known(value):
        return NONE
    if not with_ci:
        return number(value / size)
    return with_interval(value / size, row[f"{name}_low"] / size, row[f"{name}_high"] / size)


def worker(findings: Findings) -> str:
    """Return what the runs' workers are: GPUs where any was seen, else workers."""
    seen = findings.runs[["sm_util_mean", "gpu_energy_per_epoch_j"]].notna().any(axis=None)
    return "GPU" if seen else "worker"


def energy_reasons(findings: Findings, verdict: str, most: int = 3) -> list[str]:
    """Return the reasons stored for a verdict on energies: those of most runs first."""
    epochs = findings.epochs
    if "energy_reason" not in epochs:
        return []
    own = findings.runs.loc[findings.runs["energy_verdict"] == verdict, "run_id"]
    rows = epochs[
        epochs["run_id"].isin(own)
        & (epochs["phase"] == "train")
        & (epochs["energy_verdict"] == verdict)
        & epochs["energy_reason"].notna()
    ]
    once = rows[["run_id", "energy_reason"]].drop_duplicates()
    return [str(reason) for reason in once["energy_reason"].value_counts().index[:most]]


def suspicion(findings: Findings) -> str:
    """Return the end of a note on energies that says why some are suspect; nothing if none is."""
    reasons = energy_reasons(findings, "suspect")
    return f" Suspect energies: {'; '.join(reasons)}." if reasons else ""
