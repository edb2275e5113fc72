"""Energy and power against workers, and energy against speed."""

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.formatting import joules
from wattlaw.report.figures.axes import WORKERS
from wattlaw.report.figures.facets import (
    JOB,
    KIND,
    Arranged,
    arranged,
    fixed_data,
    free,
    summarised,
)
from wattlaw.report.figures.labels import short
from wattlaw.report.figures.numbers import numbered
from wattlaw.report.figures.parts import (
    POINT,
    across,
    against_workers,
    axis,
    compact,
    level,
    panel,
    picture,
    told_apart,
)
from wattlaw.report.figures.scaling import references, relative_to_reference
from wattlaw.report.theme import COLOURS, look

BARS = "bars: standard deviation over repeats"


def energy(findings: Findings) -> alt.ConcatChart | None:
    """Energy per epoch against workers; says what is counted and whether it is an estimate."""
    shown = measured(findings.series)
    if shown is None:
        return None
    size, unit = joules(shown.rows["energy_per_epoch_j"])
    table = summarised(shown.rows, "energy_per_epoch_j")
    table[["mean", "low", "high"]] /= size
    words = [counted(findings), "points: means", BARS]
    title = f"energy per epoch ({unit})"
    return against_workers(shown, table, "Energy per epoch", title, words, zero=True)


def power(findings: Findings) -> alt.ConcatChart | None:
    """Mean power of one GPU against workers."""
    rows = free(fixed_data(findings.series))
    rows = rows[rows["power_per_gpu_w"].notna()]
    if rows.empty:
        return None
    shown = arranged(rows)
    words = ["the GPU alone, over training windows", "points: means", BARS]
    table = summarised(shown.rows, "power_per_gpu_w")
    title = "mean power of a GPU (W)"
    return against_workers(shown, table, "Power of a GPU", title, words, zero=True)


def measured(series: pd.DataFrame) -> Arranged | None:
    """Return the uncapped series with energy; a line joins energies that count the same only."""
    rows = free(fixed_data(series))
    rows = rows[rows["energy_per_epoch_j"].notna()]
    return None if rows.empty else arranged(rows, line_by=(*KIND, "energy_is"))


def counted(findings: Findings) -> str:
    """Return what energies count."""
    return short(f"counted: {findings.energy}", 120)


def energy_parts(findings: Findings) -> alt.ConcatChart | None:
    """Energy per epoch by its parts, where GPUs and more are measured; one series per job."""
    rows = free(fixed_data(findings.series))
    rows = rows[rows["gpu_energy_per_epoch_j"].notna() & rows["energy_per_epoch_j"].notna()]
    rows = rows[rows["energy_is"].str.startswith("gpu+")]
    if rows.empty:
        return None
    shown = arranged(_widest(rows), (*JOB, "rule", "batch", "energy_is"), (), one_panel=False)
    size, unit = joules(shown.rows["energy_per_epoch_j"])
    others = shown.rows["energy_is"].str.split(",").str[0].str.removeprefix("gpu+").str.upper()
    gpu = shown.rows["gpu_energy_per_epoch_j"] / size
    rest = shown.rows["energy_per_epoch_j"] / size - gpu
    parts = pd.concat(
        [shown.rows.assign(part="GPUs", share=gpu, above=0),
         shown.rows.assign(part=others.str.replace("+", " + "), share=rest, above=1)]
    )  # fmt: skip
    by = ["panel", "part", "above", "gpus"]
    means = parts.groupby(by, sort=False)["share"].mean().reset_index()
    names = list(dict.fromkeys(means["part"]))
    colour = alt.Color(
        "part:N",
        scale=alt.Scale(domain=names, range=[COLOURS[0], COLOURS[5], COLOURS[2], COLOURS[3]]),
        legend=alt.Legend(title=None, orient="bottom"),
    )
    width, height, columns = shown.size
    panels = []
    for name in shown.panels:
        mine = shown.of(name, means)
        y = axis("share", f"energy per epoch ({unit})",
                 mine.groupby("gpus")["share"].sum(), zero=True)  # fmt: skip
        x = alt.X("gpus:O", title=WORKERS, axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))
        bars = alt.Chart(compact(mine, "gpus", "share", "part", "above"))
        bars = bars.mark_bar(stroke="white").encode(x=x, y=y, color=colour, order="above:O")
        panels.append(panel([bars], name, width, height))
    words = [counted(findings), "means over repeats of each job's longest series", shown.left_out]
    return picture(panels, columns, "Energy per epoch by part", words, shown.width)


def _widest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of each job the series with the most worker counts."""
    counts = rows.groupby("series")["gpus"].nunique().rename("counts")
    ranked = rows.join(counts, on="series").sort_values("counts", ascending=False, kind="stable")
    chosen = ranked.drop_duplicates(list(JOB))["series"]
    return rows[rows["series"].isin(chosen)]


def energy_speed(findings: Findings) -> alt.ConcatChart | None:
    """Normalised energy against normalised speed, points labelled with their worker count."""
    shown, table = relative_to_reference(findings)
    table = table[table["energy_ratio"].notna()]
    if table.empty:
        return None
    width, height, columns = shown.size
    looks = look(shown.lines, shown.width)
    panels = []
    for name in shown.panels:
        mine = shown.of(name, table)
        if mine.empty:
            continue
        about = references(mine)
        speeds = mine[["speedup", "speedup_low", "speedup_high"]].to_numpy(float).ravel()
        energies = mine[["energy_ratio", "energy_ratio_low", "energy_ratio_high"]]
        y = axis("energy_ratio", f"energy (ratio to {about})",
                 [*energies.to_numpy(float).ravel(), 1.0])  # fmt: skip
        x = across("speedup", f"speed (ratio to {about})", [*speeds, 1.0], log=True)
        layers = [level(1.0), *told_apart(mine, x, y, looks, "energy_ratio", "speedup")]
        base = alt.Chart(compact(mine, "speedup", "energy_ratio", "line", "gpus"))
        line = base.mark_line(strokeWidth=1.2).encode(
            x=x, y=y, order="gpus:Q", color=looks["color"], strokeDash=looks["strokeDash"]
        )
        points = base.mark_point(filled=True, size=POINT, opacity=0.95)
        layers += [line, points.encode(x=x, y=y, color=looks["color"], shape=looks["shape"])]
        largest = np.argsort(-mine["gpus"].to_numpy(), kind="stable")
        away = (mine["gpus"] != mine["reference"]).to_numpy()
        layers += numbered(
            mine, x, y, (width, height), ("speedup", "energy_ratio", "gpus"),
            ("energy_ratio_low", "energy_ratio_high"), [i for i in largest if away[i]],
        )  # fmt: skip
        panels.append(panel(layers, name, width, height))
    words = ["numbers: workers, where there is room", "bars: 95 % interval", counted(findings)]
    return picture(panels, columns, "Energy against speed", [*words, shown.left_out], shown.width)
