"""The results of the done runs, with the figures of the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattlaw.api.results import open as open_results
from wattlaw.errors import WattlawError
from wattlaw.report.figures import GALLERY
from wattlaw.report.pictures import Picture, chart_of, draw_charts
from wattlaw.report.stores import read_findings
from wattlaw.store.store import Store

#: The figures of the page, in its order.
_FIGURES = ("decision", "epoch_time", "pareto", "predictions", "speedup", "energy_speed")
#: Energies of windows, with what they are of.
_ENERGIES = {"gpu_energy_j": "GPUs", "cpu_energy_j": "processors", "dram_energy_j": "memory"}


@dataclass(frozen=True)
class Results:
    """Figures, the energy of all windows by kind of device in J, and why there is none."""

    pictures: tuple[Picture, ...]
    energy_j: dict[str, float]
    reason: str | None = None


def read_results(paths: Sequence[Path]) -> Results:
    """Return the results of stores; damaged runs are left out."""
    try:
        results = open_results(*paths)
        epochs = results.epochs
        energies = {
            name: float(epochs[column].sum())
            for column, name in _ENERGIES.items() if epochs[column].notna().any()
        }  # fmt: skip
        if results.metrics.empty:
            return Results((), energies, "no run is done yet")
        stores = [Store(path) for path in paths]
        findings = read_findings(stores, results.runs, epochs)
        chosen = [figure for name in _FIGURES for figure in GALLERY if figure.name == name]
        charts = (chart_of(figure, findings) for figure in chosen)
        pictures = draw_charts([chart for chart in charts if chart is not None])
        return Results(pictures, energies)
    except WattlawError as error:
        return Results((), {}, str(error))
