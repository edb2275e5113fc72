"""Data quality: status of runs, and source and verdict of their energies."""

import altair as alt
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.report.figures import parts
from wattlaw.report.figures.labels import shorten_middle
from wattlaw.report.theme import COLOURS, FONT_SIZE, INK

_WIDTH, _ROW_HEIGHT = 320, 30


def data_quality(findings: Findings) -> alt.ConcatChart | None:
    """Draw the number of runs by status, and of done runs by energy source and verdict."""
    if not findings.statuses:
        return None
    panels = [_bars(pd.Series(findings.statuses), "status of runs")]
    runs = findings.runs
    if len(runs):
        energies = runs["energy_source"].fillna("none").astype(str)
        energies += ", " + runs["energy_verdict"].fillna("unavailable").astype(str)
        panels.append(_bars(energies.value_counts(), "energy of done runs"))
    notes = ["energy: its source, and the worst verdict of a run's windows"]
    return parts.concat(panels, 2, notes, 2 * _WIDTH)


def _bars(counts: pd.Series, title: str) -> alt.LayerChart:
    names = [shorten_middle(str(name), 30) for name in counts.index]
    table = pd.DataFrame({"name": names, "runs": counts.to_numpy(int)})
    base = alt.Chart(parts.compact(table, "name", "runs"))
    y = alt.Y("name:N", title=None, sort=None)
    x = parts.x_axis("runs", "runs (count)", [1.15 * table["runs"].max()], zero=True)
    text = base.mark_text(align="left", dx=5, fontSize=FONT_SIZE, color=INK)
    layers = [
        base.mark_bar(color=COLOURS[0]).encode(x=x, y=y),
        text.encode(x=x, y=y, text=alt.Text("runs:Q", format=",d")),
    ]
    return parts.panel(layers, title, _WIDTH, _ROW_HEIGHT * len(table))
