"""One row per setting from its repeats, with intervals of the mean on other days and nodes."""

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.metrics.estimates import LEVEL
from wattlaw.analysis.metrics.groups import group_numbers
from wattlaw.analysis.metrics.metrics import SETTINGS
from wattlaw.analysis.metrics.variation import JOB, variation, with_slow_nodes

#: Energies and quantities derived from them. Those that count different devices have no mean.
ENERGIES = (
    "energy_j", "energy_per_epoch_j", "energy_per_sample_j", "energy_per_step_j",
    "energy_delay_js", "energy_per_gpu_hour_j",
)  # fmt: skip
#: Quantities above 0, and the power of a run's time to which they are proportional. Those after a
#: quantity of ``_VARYING``, up to the next, are it or its inverse times a constant of the setting.
_ABOVE_0 = {
    "time_s": 1, "epoch_time_s": 1, "time_per_sample_s": 1, "step_time_s": 1, "samples_per_s": -1,
    "gpu_hours": 1, "samples_per_gpu_hour": -1, "steps_per_gpu_hour": -1,
    **dict.fromkeys(ENERGIES, 1), "energy_delay_js": 2,
    "energy_per_gpu_hour_j": 0, "power_per_gpu_w": 0, "sm_clock_mean_mhz": 0,
}  # fmt: skip
_VARYING = (
    "time_s", "energy_j", "energy_delay_js", "energy_per_gpu_hour_j",
    "power_per_gpu_w", "sm_clock_mean_mhz",
)  # fmt: skip
_SHARES = (
    "sm_util_mean", "sm_util_cv", "mem_util_mean", "mem_util_cv", "power_throttle_share",
    "data_wait_share", "communication_share", "rank_wait_share",
)  # fmt: skip
QUANTITIES = (*_ABOVE_0, *_SHARES, "metric")
_ORIGINS = ["interval_from", "sessions_from", "nodes_from"]


def aggregate(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per setting from the repeats in ``table`` (of ``run_metrics``).

    For each quantity q of ``QUANTITIES``: ``q`` (mean), ``q_sd`` (of the repeats, with n - 1),
    ``q_low`` and ``q_high``, the 95 % interval of the mean. Of quantities above 0 it is that on
    other days and nodes, mean * exp(-h) to mean * exp(h) with h by ``variation``, and reaches to
    the value without what a slow node adds. Those of shares and of quality are of the repeats
    alone, by Student's t; a single repeat has none.

    What shows how the times of runs, of sessions and of sets of nodes vary: ``interval_from`` is
    ``repeats`` of the setting, those of ``other settings``, or ``public data``; ``sessions_from``
    and ``nodes_from`` are ``repeats`` or ``public data``. Missing where they cannot differ, and
    without an interval.

    ``energy_is`` names what the energies count, or why there is none. The mean energy is missing if
    the repeats count different devices; a repeat without energy is left out of it.
    """
    names = list(QUANTITIES)
    table = with_slow_nodes(table.reset_index(drop=True))
    setting, energy_j = group_numbers(table, SETTINGS), table["energy_j"]
    measured = energy_j.groupby(setting).transform("count") > 0
    energy_is = table["energy_is"].where(energy_j.notna() | ~measured)
    is_comparable = energy_is.groupby(setting).transform("nunique") <= 1
    values = table[names].astype(float).assign(energy_is=energy_is)
    values[list(ENERGIES)] = values[list(ENERGIES)].where(is_comparable)
    grouped = values.groupby(setting)
    count, mean, sd = grouped[names].count(), grouped[names].mean(), grouped[names].std(ddof=1)
    half = special.stdtrit(count.where(count > 1) - 1, (1 + LEVEL) / 2) / np.sqrt(count) * sd
    kinds = grouped["energy_is"].first()
    if not is_comparable.all():
        kinds = grouped["energy_is"].agg(join_energy_kinds)
    low, high = mean - half, mean + half
    low[[*_SHARES]] = low[[*_SHARES]].clip(lower=0.0)
    logs, origins = _elsewhere(table, values, setting)
    for name in _ABOVE_0:
        low[name] = mean[name] * np.exp(logs[name, "low"])
        high[name] = mean[name] * np.exp(logs[name, "high"])
    columns = {"": mean, "_sd": sd, "_low": low, "_high": high}
    first = ~setting.duplicated()
    settings = table.loc[first, list(SETTINGS)].set_axis(setting[first]).sort_index()
    parts = [settings.fillna(np.nan).infer_objects(), grouped.size().rename("n"), kinds, origins]
    parts += [frame.add_suffix(end) for end, frame in columns.items()]
    order = [*SETTINGS, "n", "energy_is", *_ORIGINS]
    order += [f"{name}{end}" for name in names for end in columns]
    return pd.concat(parts, axis=1)[order].reset_index(drop=True).copy()  # in few blocks


def _elsewhere(
    table: pd.DataFrame, values: pd.DataFrame, setting: pd.Series
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the ends of intervals of mean logs, relative to the mean; and what shows them."""
    ends, origins = [], []
    for _, rows in table.groupby([*JOB], dropna=False):
        group = setting[rows.index]
        codes, settings = pd.factorize(group, sort=True)
        number = pd.Series(codes, index=rows.index)
        # Grouping by numbers is faster than by names of hosts.
        places = rows[["hosts", "session", "launcher", "nodes"]].copy()
        places["hosts"] = group_numbers(rows, ["hosts"]).where(rows["hosts"].notna())
        slow_log = rows["slow_log"].groupby(number).mean().to_numpy()
        error = rows["time_error"].astype(float) if "time_error" in rows else np.nan
        own = {}
        for name, power in _ABOVE_0.items():
            if name in _VARYING:
                shown = places.assign(slow_log=power * rows["slow_log"], time_error=power * error)
                varied = variation(values.loc[rows.index, name], number, shown)
            own[name, "low"] = -varied.half - np.maximum(power * slow_log, 0.0)
            own[name, "high"] = varied.half - np.minimum(power * slow_log, 0.0)
            if name == "time_s":
                from_ = np.where(np.bincount(codes) > 1, "repeats", "other settings")
                if not varied.repeated:
                    from_ = np.full(len(settings), "public data")
                columns = [from_, *(np.full(len(settings), at) for at in varied.origins[1:])]
                frame = pd.DataFrame(
                    dict(zip(_ORIGINS, columns, strict=True)), index=settings, dtype=object
                )
                frame[~np.isfinite(varied.half)] = None
                origins.append(frame)
        ends.append(pd.DataFrame(own, index=settings))
    if not ends:
        none = pd.MultiIndex.from_product([_ABOVE_0, ("low", "high")])
        return pd.DataFrame(columns=none, dtype=float), pd.DataFrame(columns=_ORIGINS)
    return pd.concat(ends).sort_index(), pd.concat(origins).sort_index()


def join_energy_kinds(kinds: pd.Series) -> str | None:
    return "; ".join(sorted(kinds.dropna().unique())) or None
