"""How good the data are: which runs were done, and what stands behind their energies."""

import altair as alt
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.report.figures.labels import short
from wattlaw.report.figures.parts import across, compact, panel, picture
from wattlaw.report.theme import COLOURS, FONT_SIZE, INK

_WIDTH, _ROW = 320, 30


def data_quality(findings: Findings) -> alt.ConcatChart | None:
    """How many runs have which status, and done runs which energy source and verdict."""
    if not findings.statuses:
        return None
    panels = [_bars(pd.Series(findings.statuses), "status of runs")]
    if len(findings.runs):
        panels.append(_bars(_energies(findings.runs).value_counts(), "energy of done runs"))
    words = ["energy: its source, and the worst verdict of a run's windows"]
    return picture(panels, 2, "Data quality", words, 2 * _WIDTH)


def _energies(runs: pd.DataFrame) -> pd.Series:
    source = runs["energy_source"].fillna("none").astype(str)
    return source + ", " + runs["energy_verdict"].fillna("unavailable").astype(str)


def _bars(counts: pd.Series, title: str) -> alt.LayerChart:
    names = {name: short(str(name), 30) for name in counts.index}
    table = pd.DataFrame({"name": [names[name] for name in counts.index],
                          "runs": counts.to_numpy(int)})  # fmt: skip
    base = alt.Chart(compact(table, "name", "runs"))
    y = alt.Y("name:N", title=None, sort=None)
    x = across("runs", "runs (count)", [1.15 * table["runs"].max()], zero=True)
    text = base.mark_text(align="left", dx=5, fontSize=FONT_SIZE, color=INK)
    layers = [
        base.mark_bar(color=COLOURS[0]).encode(x=x, y=y),
        text.encode(x=x, y=y, text=alt.Text("runs:Q", format=",d")),
    ]
    return panel(layers, title, _WIDTH, _ROW * len(table))
