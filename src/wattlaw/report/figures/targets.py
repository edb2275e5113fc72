"""Epochs, and time, to a target quality against global batch."""

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.batch_effects import LEARNING
from wattlaw.analysis.critical_batch import CriticalBatch
from wattlaw.analysis.findings import Findings
from wattlaw.report.figures.axes import counts_axis
from wattlaw.report.figures.labels import labels, short_all
from wattlaw.report.figures.parts import axis, compact, curve, ends, panel, picture
from wattlaw.report.theme import COLOURS, look

_WIDTH, _HEIGHT = 400, 230
_MOST = 4
_BATCH = "global batch (samples per step)"


def targets(findings: Findings) -> alt.ConcatChart | None:
    """Epochs to the target with the law of the critical batch, and the least time to it."""
    if findings.targets is None:
        return None
    table = findings.targets.settings
    table = table[table["epochs"].notna() & table["global_batch"].notna()]
    if table.empty:
        return None
    kinds = table[list(LEARNING)].drop_duplicates()
    differing = [name for name in LEARNING if kinds[name].nunique(dropna=False) > 1]
    table = table.assign(group=labels(table, differing))
    laws = _laws(findings, differing)
    batches = table.groupby("group", sort=False)["global_batch"].nunique()
    names = short_all(batches.sort_values(ascending=False, kind="stable").index, 40)
    panels = []
    for group, name in list(names.items())[:_MOST]:
        mine = table[table["group"] == group]
        panels.append(_epochs(mine, laws.get(group), name))
        panels.append(_times(mine, name))
    hidden = len(names) - _MOST
    words = [
        f"target: {findings.targets.target:g}", "bars: 95 % interval",
        "line on the left: S = S_min (1 + B / B_crit)",
        f"not shown: {hidden} more groups" if hidden > 0 else "",
    ]  # fmt: skip
    return picture(panels, 2, "To a target quality", words, 2 * _WIDTH)


def _laws(findings: Findings, differing: list[str]) -> dict[str, CriticalBatch]:
    if findings.targets is None or not findings.targets.critical:
        return {}
    groups = pd.DataFrame([group for group, _ in findings.targets.critical])
    named = labels(groups, differing)
    return dict(zip(named, (law for _, law in findings.targets.critical), strict=True))


def _epochs(mine: pd.DataFrame, law: CriticalBatch | None, name: str) -> alt.LayerChart:
    by_batch = mine.drop_duplicates("global_batch").sort_values("global_batch")
    table = _renamed(by_batch, "epochs", by_batch["runs_reached"])
    if law is None:
        x = counts_axis(table["at"], _BATCH, _WIDTH)
        y = axis("mean", "epochs to the target (count)", ends(table), zero=True)
        return panel(curve(table, x, y, look([""]), "epochs"), name, _WIDTH, _HEIGHT)
    x = counts_axis([*table["at"], law.batch_min, law.batch_max], _BATCH, _WIDTH)
    line = law.predict(np.geomspace(law.batch_min, law.batch_max, 25))
    line = line.rename(columns={"batch": "at", "epochs": "mean"})
    y = axis("mean", "epochs to the target (count)", [*ends(table), *line["mean"]], zero=True)
    drawn = alt.Chart(compact(line, "at", "mean")).mark_line(
        color=COLOURS[1], strokeDash=[6, 3], clip=True
    )
    layers = [drawn.encode(x=x, y=y), *curve(table, x, y, look([""]), "epochs", joined=False)]
    return panel(layers, name, _WIDTH, _HEIGHT)


def _times(mine: pd.DataFrame, name: str) -> alt.LayerChart:
    quickest = mine.sort_values("time_to_target_s").drop_duplicates("global_batch")
    quickest = quickest.sort_values("global_batch")
    table = _renamed(quickest, "time_to_target_s", quickest["gpus"])
    x = counts_axis(table["at"], _BATCH, _WIDTH)
    y = axis("mean", "least time to the target (s)", ends(table), log=True)
    return panel(curve(table, x, y, look([""]), "seconds"), name, _WIDTH, _HEIGHT)


def _renamed(rows: pd.DataFrame, column: str, gpus: pd.Series) -> pd.DataFrame:
    table = rows[["global_batch", column, f"{column}_low", f"{column}_high"]].astype(float)
    table = table.set_axis(["at", "mean", "low", "high"], axis=1)
    return table.assign(gpus=gpus, line="")
