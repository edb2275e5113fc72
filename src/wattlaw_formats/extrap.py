"""Scaling series as text input of Extra-P.

Extra-P (https://github.com/extra-p/extrap) models a metric of a call path over parameters. Every
metric and call path of a file has the same points, so series with other points are in a file of
their own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from wattlaw.analysis.laws.series import RULES, scaling_series, varying_columns
from wattlaw.analysis.metrics.groups import groups
from wattlaw.analysis.metrics.metrics import ESTIMATED
from wattlaw.common.errors import Refused
from wattlaw.common.files import write_text
from wattlaw.common.formatting import replace_invisible
from wattlaw.common.text import collapse_whitespace
from wattlaw.exporting import Exported, Tables
from wattlaw.study.labels import group_label
from wattlaw.study.sources import MEASURED, source_of

#: Fewer are no series of their own: a run of another series has the same batch by chance.
_MIN_POINTS = 3


@dataclass(frozen=True)
class _Series:
    callpath: str
    metric: str
    values: dict[float, list[float]]  # by GPUs


class ExtraP:
    endings = (".txt",)

    def write(self, tables: Tables, path: Path) -> Exported:
        """Write the series to ``path``, or to numbered files if they differ in their points."""
        by_points: dict[tuple[float, ...], list[_Series]] = defaultdict(list)
        for series in _series(tables.metrics):
            by_points[tuple(series.values)].append(series)
        if not by_points:
            raise Refused(f"extrap: no scaling series of done runs has {_MIN_POINTS} points")
        files = []
        for number, same in enumerate(by_points.values(), 1):
            stem = path.stem if len(by_points) == 1 else f"{path.stem}-{number}"
            files.append(path.with_name(f"{stem}{path.suffix}"))
            write_text(files[-1], _as_text(same), durable=False)
        count = sum(len(v) for same in by_points.values() for s in same for v in s.values.values())
        return Exported(tuple(files), count)


def _series(metrics: pd.DataFrame) -> Iterator[_Series]:
    """Yield time and energy of each series by call path."""
    table = scaling_series(metrics)
    names = [name for name in varying_columns(table) if name != "workload"]
    # The share of the data grows within a series, or distinguishes series.
    grows = table["fraction_per_gpu"].notna()
    table["dataset_fraction"] = table["dataset_fraction"].where(~grows)
    used: Counter[str] = Counter()
    for rule in sorted(table["rule"].unique()):
        own = [rule] if rule in RULES else []
        by = ["workload", *own, *names, "fraction_per_gpu"]
        for group, rows in groups(table[table["rule"] == rule], by):
            workload = str(group.pop("workload"))
            label = group_label(group)
            callpath = "->".join(filter(None, map(_name, (workload, label))))
            used[callpath] += 1
            if used[callpath] > 1:
                callpath += f" ({used[callpath]})"
            yield from _metrics(callpath, rows)


def _metrics(callpath: str, rows: pd.DataFrame) -> Iterator[_Series]:
    first = rows.iloc[0]
    source = source_of(first["launcher"])
    said = "" if source == MEASURED else f", {source}"
    known = [(f"time_s per {first['unit']}{said}", "time_s", rows)]
    for group, of_energy in groups(rows[rows["energy_j"].notna()], ["energy_is"]):
        energy_is = str(group["energy_is"])
        if ESTIMATED not in energy_is:  # such an energy has no law
            metric = f"energy_j per {first['unit']}, {energy_is.removesuffix(said)}{said}"
            known.append((metric, "energy_j", of_energy))
    for metric, column, of_metric in known:
        values: dict[float, list[float]] = defaultdict(list)
        for row in of_metric.sort_values(["gpus", "repeat"]).to_dict("records"):
            values[row["gpus"]].append(float(row[column]))
        if len(values) >= _MIN_POINTS:
            yield _Series(callpath, _name(metric), dict(values))


def _name(text: str) -> str:
    """Return a name without what Extra-P's format interprets: line breaks and ``->``."""
    return collapse_whitespace(replace_invisible(text)).replace("->", "-")


def _as_text(series: Sequence[_Series]) -> str:
    points = " ".join(f"({gpus:.15g})" for gpus in series[0].values)
    lines = ["PARAMETER gpus", "", f"POINTS {points}"]
    callpath = None
    for one in series:
        if one.callpath != callpath:
            callpath = one.callpath
            lines += ["", f"REGION {callpath}"]
        lines += [f"METRIC {one.metric}"]
        lines += [f"DATA {' '.join(map(repr, values))}" for values in one.values.values()]
    return "\n".join(lines) + "\n"
