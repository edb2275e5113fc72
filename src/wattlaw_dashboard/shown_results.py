"""The results of the done runs: the energy they used, and the figures of the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattlaw.analysis.findings import analyse
from wattlaw.api.results import open as open_results
from wattlaw.common.errors import one_line
from wattlaw.report.figures import GALLERY
from wattlaw.report.layouts import MAX_CAVEATS
from wattlaw.report.pictures import chart_of, draw_charts
from wattlaw.report.sections import Picture
from wattlaw.report.topics import verdict
from wattlaw.store.statistics import read_telemetry
from wattlaw.store.store import Store
from wattlaw.study.sources import MEASURED, source_of

#: The figures of the page, in its order.
_FIGURES = ("decision", "epoch_time", "pareto", "predictions", "speedup", "energy_speed")
#: Energies of windows, with what they are of. Outer scopes contain inner ones.
_ENERGIES = {
    "gpu_energy_j": "GPUs", "cpu_energy_j": "processors", "dram_energy_j": "memory",
    "module_energy_j": "modules", "node_energy_j": "nodes",
}  # fmt: skip


@dataclass(frozen=True)
class Results:
    """The answer and figures, or why there are none.

    ``origin`` is empty if all values are measured.
    """

    sentences: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    reason: str | None = None
    origin: str = ""


def read_energies(paths: Sequence[Path]) -> dict[str, float] | str:
    """Return the energy of all windows of the done runs in J, by what it is of; or why not.

    Energies of different sources are never added up, and impossible ones are left out.
    """
    try:
        results = open_results(*paths)
        epochs = results.epochs
        sources = epochs["run_id"].map(results.runs.set_index("run_id")["launcher"].map(source_of))
        energies: dict[str, float] = {}
        for column, name in _ENERGIES.items():
            of_node = "node_" if name == "nodes" else ""
            known = epochs[column].notna() & (epochs[f"{of_node}energy_verdict"] != "implausible")
            is_estimated = epochs[f"{of_node}energy_source"] == "estimated"
            labels = sources.where(~is_estimated, sources.replace(MEASURED, "") + " estimated")
            sums = epochs.loc[known, column].groupby(labels[known]).sum()
            energies |= {
                f"{name} ({str(label).strip()})": float(sum_j) for label, sum_j in sums.items()
            }
        return energies
    except Exception as error:  # the page says so, and the next reading may succeed
        return f"the energies cannot be read: {one_line(error)}"


def read_results(paths: Sequence[Path]) -> Results:
    try:
        results = open_results(*paths)
        if results.metrics.empty:
            return Results(reason="no run is done yet")
        stores = [Store(path) for path in paths]
        statistics, joint = read_telemetry(stores, results.runs)
        findings = analyse(results.runs, results.epochs, statistics=statistics, joint=joint)
        chosen = [figure for name in _FIGURES for figure in GALLERY if figure.name == name]
        charts = (chart_of(figure, findings) for figure in chosen)
        pictures = draw_charts([chart for chart in charts if chart is not None])
        return Results(
            tuple(verdict.sentences(findings)), tuple(verdict.caveats(findings)[:MAX_CAVEATS]),
            pictures, origin=results.origins_label,
        )  # fmt: skip
    except Exception as error:  # also of data that a figure does not expect: the page says so
        return Results(reason=one_line(error))
