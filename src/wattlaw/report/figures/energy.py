"""Energy and power against workers, and energy against speed."""

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.formatting import JOULE_UNITS, choose_unit
from wattlaw.report.figures.axes import WORKERS, x_axis, y_axis
from wattlaw.report.figures.facets import (
    LINE_COLUMNS,
    PANEL_COLUMNS,
    facet,
    fixed_dataset,
    mean_and_sd,
    without_limits,
)
from wattlaw.report.figures.labels import shorten_middle
from wattlaw.report.figures.parts import (
    CI_BARS,
    SD_BARS,
    against_workers,
    compact,
    draw_panels,
    error_bars,
    points,
    reference_line,
)
from wattlaw.report.figures.point_labels import point_labels
from wattlaw.report.figures.scaling import reference_label, relative_facets
from wattlaw.report.theme import COLOURS


def energy(findings: Findings) -> alt.ConcatChart | None:
    """Draw energy per epoch against workers; lines join only energies that count the same."""
    rows = without_limits(fixed_dataset(findings.series))
    rows = rows[rows["energy_per_epoch_j"].notna()]
    if rows.empty:
        return None
    facets = facet(rows, line_by=(*LINE_COLUMNS, "energy_is"))
    size, unit = choose_unit(facets.rows["energy_per_epoch_j"], JOULE_UNITS)
    table = mean_and_sd(facets.rows, "energy_per_epoch_j", 1 / size)
    notes = [counted_note(findings), "points: means", SD_BARS]
    return against_workers(facets, table, f"energy per epoch ({unit})", notes, zero=True)


def power(findings: Findings) -> alt.ConcatChart | None:
    """Draw the mean power of a GPU against workers."""
    rows = without_limits(fixed_dataset(findings.series))
    rows = rows[rows["power_per_gpu_w"].notna()]
    if rows.empty:
        return None
    facets = facet(rows)
    table = mean_and_sd(facets.rows, "power_per_gpu_w")
    notes = ["of the GPU alone, over training windows", "points: means", SD_BARS]
    return against_workers(facets, table, "mean power of a GPU (W)", notes, zero=True)


def counted_note(findings: Findings) -> str:
    """Return a note on what energies count."""
    return shorten_middle(f"counted: {findings.energy}", 120)


def energy_parts(findings: Findings) -> alt.ConcatChart | None:
    """Draw energy per epoch by part, where more than GPUs is measured; one series per job."""
    rows = without_limits(fixed_dataset(findings.series))
    rows = rows[rows["gpu_energy_per_epoch_j"].notna() & rows["energy_per_epoch_j"].notna()]
    rows = rows[rows["energy_is"].str.startswith("gpu+")]
    if rows.empty:
        return None
    by = (*PANEL_COLUMNS, "rule", "batch", "energy_is")
    facets = facet(_longest_series(rows), by, (), one_panel=False)
    rows = facets.rows
    size, unit = choose_unit(rows["energy_per_epoch_j"], JOULE_UNITS)
    others = rows["energy_is"].str.split(",").str[0].str.removeprefix("gpu+").str.upper()
    gpu = rows["gpu_energy_per_epoch_j"] / size
    parts = pd.concat(
        [rows.assign(part="GPUs", energy=gpu, order=0),
         rows.assign(part=others.str.replace("+", " + "), order=1,
                     energy=rows["energy_per_epoch_j"] / size - gpu)]
    )  # fmt: skip
    by = ["panel", "part", "order", "gpus"]
    means = parts.groupby(by, sort=False)["energy"].mean().reset_index()
    colour = alt.Color(
        "part:N",
        scale=alt.Scale(domain=list(dict.fromkeys(means["part"])),
                        range=[COLOURS[0], COLOURS[5], COLOURS[2], COLOURS[3]]),
        legend=alt.Legend(title=None, orient="bottom"),
    )  # fmt: skip

    def layers(rows: pd.DataFrame) -> list[alt.Chart]:
        totals = rows.groupby("gpus")["energy"].sum()
        y = y_axis("energy", f"energy per epoch ({unit})", totals, zero=True)
        x = alt.X("gpus:O", title=WORKERS, axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))
        bars = alt.Chart(compact(rows, "gpus", "energy", "part", "order"))
        return [bars.mark_bar(stroke="white").encode(x=x, y=y, color=colour, order="order:O")]

    notes = [counted_note(findings), "means over repeats of each job's longest series"]
    return draw_panels(facets, means, layers, notes)


def _longest_series(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of each job the series with the most worker counts."""
    counts = rows.groupby("series")["gpus"].nunique().rename("counts")
    ranked = rows.join(counts, on="series").sort_values("counts", ascending=False, kind="stable")
    chosen = ranked.drop_duplicates(list(PANEL_COLUMNS))["series"]
    return rows[rows["series"].isin(chosen)]


def energy_speed(findings: Findings) -> alt.ConcatChart | None:
    """Draw normalised energy against normalised speed, points labelled with the worker count."""
    facets, table = relative_facets(findings)
    table = table[table["energy_ratio"].notna()]
    if table.empty:
        return None
    styles = facets.styles

    def layers(rows: pd.DataFrame) -> list[alt.Chart]:
        reference = reference_label(rows)
        speeds, energies = (
            [*rows[[name, f"{name}_low", f"{name}_high"]].to_numpy(float).ravel(), 1.0]
            for name in ("speedup", "energy_ratio")
        )
        x = x_axis("speedup", f"speed (ratio to {reference})", speeds, log=True)
        y = y_axis("energy_ratio", f"energy (ratio to {reference})", energies)
        joined = alt.Chart(compact(rows, "speedup", "energy_ratio", "line", "gpus"))
        joined = joined.mark_line(strokeWidth=1.2).encode(
            x=x, y=y, order="gpus:Q", color=styles["color"], strokeDash=styles["strokeDash"]
        )
        largest_first = np.argsort(-rows["gpus"].to_numpy(), kind="stable")
        is_reference = (rows["gpus"] == rows["reference"]).to_numpy()
        tooltip = {"line": "line", "gpus": "workers"}
        return [
            reference_line(1.0),
            *error_bars(rows, x, y, styles, "energy_ratio_low", "energy_ratio_high"),
            *error_bars(rows, x, y, styles, "speedup_low", "speedup_high", horizontal=True),
            joined,
            points(rows, x, y, styles, tooltip),
            *point_labels(
                rows, x, y, facets.size[:2], "gpus", ("energy_ratio_low", "energy_ratio_high"),
                [i for i in largest_first if not is_reference[i]],
            ),
        ]  # fmt: skip

    notes = ["numbers: workers, where there is space", CI_BARS, counted_note(findings)]
    return draw_panels(facets, table, layers, notes)
