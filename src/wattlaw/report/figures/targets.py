"""Epochs and time to a target quality, against global batch."""

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.batch_effects import LEARNING
from wattlaw.analysis.critical_batch import CriticalBatch
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import plural
from wattlaw.report.figures.axes import counts_axis, y_axis
from wattlaw.report.figures.labels import row_labels, unique_labels
from wattlaw.report.figures.parts import CI_BARS, compact, concat, curve, panel, y_values
from wattlaw.report.theme import COLOURS, line_styles

_WIDTH, _HEIGHT = 400, 230
_MAX_GROUPS = 4
_BATCH = "global batch (samples per step)"


def targets(findings: Findings) -> alt.ConcatChart | None:
    """Draw epochs to the target with the law of the critical batch, and the least time to it."""
    targets = findings.targets
    if targets is None:
        return None
    table = targets.settings
    table = table[table["epochs"].notna() & table["global_batch"].notna()]
    if table.empty:
        return None
    kinds = table[list(LEARNING)].drop_duplicates()
    differing = [name for name in LEARNING if kinds[name].nunique(dropna=False) > 1]
    table = table.assign(group=row_labels(table, differing))
    laws: dict[str, CriticalBatch] = {}
    if targets.critical:
        labels = row_labels(pd.DataFrame([group for group, _ in targets.critical]), differing)
        laws = dict(zip(labels, (law for _, law in targets.critical), strict=True))
    batches = table.groupby("group", sort=False)["global_batch"].nunique()
    names = unique_labels(batches.sort_values(ascending=False, kind="stable").index, 40)
    panels = []
    for group, name in list(names.items())[:_MAX_GROUPS]:
        rows = table[table["group"] == group]
        panels.append(panel(_epochs(rows, laws.get(group)), name, _WIDTH, _HEIGHT))
        panels.append(panel(_times(rows), name, _WIDTH, _HEIGHT))
    hidden = len(names) - _MAX_GROUPS
    notes = [
        f"target: {targets.target:g}",
        CI_BARS,
        "line on the left: S = S_min (1 + B / B_crit)",
        f"not shown: {plural(hidden, 'more group')}" if hidden > 0 else "",
    ]
    return concat(panels, 2, notes, 2 * _WIDTH)


def _epochs(rows: pd.DataFrame, law: CriticalBatch | None) -> list[alt.Chart]:
    by_batch = rows.drop_duplicates("global_batch").sort_values("global_batch")
    table = _as_curve(by_batch, "epochs", by_batch["runs_reached"])
    title = "epochs to the target (count)"
    if law is None:
        y = y_axis("mean", title, y_values(table), zero=True)
        return curve(table, counts_axis(table["at"], _BATCH), y, line_styles([""]), "epochs")
    x = counts_axis([*table["at"], law.batch_min, law.batch_max], _BATCH)
    line = law.predict(np.geomspace(law.batch_min, law.batch_max, 25))
    line = line.rename(columns={"batch": "at", "epochs": "mean"})
    y = y_axis("mean", title, [*y_values(table), *line["mean"]], zero=True)
    law_line = alt.Chart(compact(line, "at", "mean")).mark_line(
        color=COLOURS[1], strokeDash=[6, 3], clip=True
    )
    points = curve(table, x, y, line_styles([""]), "epochs", joined=False)
    return [law_line.encode(x=x, y=y), *points]


def _times(rows: pd.DataFrame) -> list[alt.Chart]:
    fastest = rows.sort_values("time_to_target_s").drop_duplicates("global_batch")
    fastest = fastest.sort_values("global_batch")
    table = _as_curve(fastest, "time_to_target_s", fastest["gpus"])
    y = y_axis("mean", "least time to the target (s)", y_values(table), log=True)
    return curve(table, counts_axis(table["at"], _BATCH), y, line_styles([""]), "seconds")


def _as_curve(rows: pd.DataFrame, column: str, gpus: pd.Series) -> pd.DataFrame:
    table = rows[["global_batch", column, f"{column}_low", f"{column}_high"]].astype(float)
    table = table.set_axis(["at", "mean", "low", "high"], axis=1)
    return table.assign(gpus=gpus, line="")
