"""The options of a job: settings that were measured, and other GPU counts by a law.

Caps, clocks and batch of a predicted option are those of a measured one; they are not interpolated.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd

from wattlaw.analysis.advice.comparable_runs import ENERGY, TIME, ComparableRuns
from wattlaw.analysis.advice.option import PER, SETTING, Option, Quantity
from wattlaw.analysis.aggregate import aggregate
from wattlaw.analysis.groups import group_numbers, plain_value
from wattlaw.analysis.laws.curves import Curve
from wattlaw.analysis.laws.selection import select
from wattlaw.analysis.metrics import SETTINGS
from wattlaw.analysis.series import FEWEST, RULES, scaling_series
from wattlaw.errors import Refused

Epochs = Callable[[dict[str, Any]], Quantity | None]


def measured_options(job: ComparableRuns, epochs: Epochs) -> list[Option]:
    """Return the settings of a job with their measured time and energy.

    ``epochs`` returns the number of units to train at a setting; None makes it no option.
    """
    evaluation = job.rows["eval_time_s"].groupby(group_numbers(job.rows, SETTINGS)).mean()
    options = []
    rows = aggregate(job.rows).assign(eval_time_s=evaluation)
    for row in rows.to_dict("records"):
        setting = row_setting(row)
        needed, time_s = epochs(setting), _measured(row, TIME)
        if needed is None or time_s is None:
            continue
        energy = _measured(row, ENERGY)
        options.append(
            Option(
                setting=setting, unit=job.unit, time_s=time_s, energy_j=energy, amount=needed,
                measured=True, repeats=int(row["n"]), energy_is=job.energy_is if energy else None,
                eval_time_s=plain_value(row["eval_time_s"]), metric=plain_value(row["metric"]),
                per={name: plain_value(row[name]) for name in PER},
            )
        )  # fmt: skip
    return options


def row_setting(row: dict[Any, Any]) -> dict[str, Any]:
    """Return the settings of a row as plain Python, a missing one as None."""
    values = {name: plain_value(row[name]) for name in SETTING}
    return values | {name: int(values[name]) for name in _COUNTS if values[name] is not None}


_COUNTS = ("nodes", "gpus", "global_batch", "local_batch", "threads_per_worker")


def _measured(row: dict[Any, Any], name: str) -> Quantity | None:
    return Quantity.of(row[name], row[f"{name}_low"], row[f"{name}_high"])


#: Laws are extrapolated up to this multiple of their largest GPU count.
REACH = 8


def predicted_options(job: ComparableRuns, epochs: Epochs, max_gpus: int | None) -> list[Option]:
    """Return options at doublings of the measured GPU counts that were not measured.

    Each series of a job gets the law that ``laws.selection.select`` takes for its time, and one for
    its energy. Counts go up to ``REACH`` times the largest of the series, and to twice ``max_gpus``
    or the largest measured if that is more, so that the next doubling can be predicted. Bounds are
    the laws' 95 % prediction intervals; they are valid if the law is, which was not measured
    outside its range. If several laws predict a setting, one that contains it in its range is used,
    then the one with the narrowest interval.
    """
    best_options: dict[tuple[Any, ...], Option] = {}
    series = scaling_series(job.rows)
    of_rule = series[series["rule"].isin(RULES) & series["fraction_per_gpu"].isna()]
    for _, rows in of_rule.groupby("series", sort=False):
        for option in _of_series(rows, job, epochs, max_gpus):
            key = tuple(option.setting.values())
            if key not in best_options or _doubt(option) < _doubt(best_options[key]):
                best_options[key] = option
    return list(best_options.values())


def _of_series(
    rows: pd.DataFrame, job: ComparableRuns, epochs: Epochs, max_gpus: int | None
) -> Iterator[Option]:
    measured = sorted(int(count) for count in rows["gpus"].unique())
    counts = [count for count in doublings(measured, max_gpus) if _fits(rows, count)]
    times = _law(rows, TIME)
    if times is None or not counts:
        return
    energies = _law(rows, ENERGY)
    energy = None if energies is None else energies.predict(counts).to_dict("records")
    for i, row in enumerate(times.predict(counts).to_dict("records")):
        setting = _setting(rows, counts[i])
        needed, time_s = epochs(setting), _predicted(row)
        if needed is None or time_s is None:
            continue
        energy_j = None if energy is None else _predicted(energy[i])
        yield Option(
            setting=setting, unit=job.unit, time_s=time_s, energy_j=energy_j, amount=needed,
            measured=False, repeats=0, energy_is=job.energy_is if energy_j else None,
            law=times.law, law_range=(measured[0], measured[-1]), rule=str(rows["rule"].iloc[0]),
        )  # fmt: skip


def doublings(measured: list[int], max_gpus: int | None) -> list[int]:
    """Return the unmeasured doublings of measured counts, up to the limit of extrapolation."""
    top = REACH * measured[-1]
    if max_gpus is not None:
        top = min(top, 2 * max(max_gpus, measured[-1]))
    counts = {count << i for count in measured for i in range((top // count).bit_length())}
    return sorted(counts - {*measured})


def _fits(rows: pd.DataFrame, count: int) -> bool:
    """Say whether a global batch can be divided by so many GPUs."""
    return rows["rule"].iloc[0] != "global_batch" or int(rows["batch"].iloc[0]) % count == 0


def _law(rows: pd.DataFrame, column: str) -> Curve | None:
    try:
        return select(rows["gpus"].to_numpy(float), rows[column].to_numpy(float)).best
    except Refused:
        return None


def _setting(rows: pd.DataFrame, count: int) -> dict[str, Any]:
    setting = row_setting(rows.iloc[0].to_dict()) | {"gpus": count}
    if rows["placement"].iloc[0] in (None, FEWEST):
        setting["nodes"] = None
    if rows["rule"].iloc[0] == "global_batch":
        return setting | {"local_batch": setting["global_batch"] // count}
    return setting | {"global_batch": setting["local_batch"] * count}


def _predicted(row: dict[Any, Any]) -> Quantity | None:
    return Quantity.of(row["mean"], row["prediction_low"], row["prediction_high"])


def _doubt(option: Option) -> tuple[bool, float]:
    time_s = option.time_s
    width = float("inf") if time_s.high is None else time_s.high / time_s.mean
    return option.extrapolates, width
