"""Throughput by parallel layout: cells that ran, are predicted, or cannot run.

Rows are the sizes that share a model and columns the micro-batch; with too many rows, one size
against another. A cell shows the fastest of the settings that differ in what is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import geometric_mean
from typing import Any, Literal

from wattlaw.analysis.predict.job import Job
from wattlaw.analysis.predict.peak_memory import LEAST_FIT
from wattlaw.common.errors import BadInput
from wattlaw.study.base_model import CHECKPOINTINGS, SHARDINGS
from wattlaw.study.network import Network
from wattlaw.study.plan import unfit
from wattlaw.study.setting import LAYOUT_NAMES, MODEL_SIZES, Setting
from wattlaw.study.sources import MEASURED

#: What a reader can compare, and layouts that are predicted for it.
_MAX_ROWS, _MAX_COLUMNS, _MOST = 12, 8, 300
_SIZES = (*MODEL_SIZES, "ep")
#: In what the settings of a table are equal.
_ALIKE = ("gpus", "nodes", "global_batch", "precision", "power_limit_w", "clock_limit_mhz")
_WORDS = (*SHARDINGS, *CHECKPOINTINGS)

Status = Literal["not run", "not possible", "unlikely", "out of memory", "predicted", "measured"]
#: Of the settings of a cell, the last that there is.
_RANKS: tuple[Status, ...] = (
    "not run", "not possible", "unlikely", "out of memory", "predicted", "measured",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    row: tuple[Any, ...]
    column: tuple[Any, ...]
    status: Status
    setting: Setting | None = None  # the fastest of the cell
    per_s: float | None = None  # samples or tokens that a GPU processes
    per_s_ci: tuple[float, float] | None = None  # of a prediction, 90 %
    fits: float | None = None  # the probability, where it is known
    reason: str = ""  # why it is not possible
    folded: int = 0  # other settings of the cell


@dataclass(frozen=True)
class LayoutCells:
    job: Job
    chosen: Setting  # all settings are as it is, but for their layout
    unit: str  # what is processed: tokens | samples
    rows: tuple[str, ...]  # names of the settings that make the rows
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    source: str  # of the cells that are called measured


def layout_cells(
    job: Job,
    chosen: Setting | None = None,
    out_of_memory: Sequence[Setting] = (),
    source: str = MEASURED,
) -> LayoutCells | None:
    """Return the layouts of settings that are as ``chosen``, by default the fastest one that ran.

    None with a single layout, or where the batch is not known.
    """
    if chosen is None or chosen.local_batch is None:
        chosen = job.fastest
    if chosen.local_batch is None or (job.samples_per_unit is None and job.unit != "step"):
        return None
    has_nodes = any(item.setting.nodes for item in job.observations)  # imported runs have none
    chosen, *out_of_memory = (
        item if has_nodes else without_nodes(item) for item in (chosen, *out_of_memory)
    )
    steps_s: dict[Setting, list[float]] = {}
    for item in job.observations:
        if _is_alike(item.setting, chosen):
            steps_s.setdefault(item.setting, []).append(item.healthy_step_s)
    too_large = {item for item in out_of_memory if _is_alike(item, chosen)} - steps_s.keys()
    tried = [*steps_s, *too_large]
    rows, columns = _axes([*tried, chosen])
    if not rows and not columns:
        return None
    network = job.network or job.observations[0].network
    work = chosen.samples / chosen.gpus * (1 if network is None else network.sequence)
    found: dict[tuple[Any, Any], list[Cell]] = {}

    def add(setting: Setting, status: Status, **values: Any) -> None:
        key = _values(setting, rows), _values(setting, columns)
        found.setdefault(key, []).append(Cell(*key, status, setting, **values))

    for setting, times in steps_s.items():
        add(setting, "measured", per_s=work / geometric_mean(times))
    for setting in too_large:
        add(setting, "out of memory")
    wanted = dict.fromkeys([chosen] if chosen not in steps_s else [])
    for key in product({row for row, _ in found}, {column for _, column in found}):
        if any(item.status == "measured" for item in found.get(key, ())):
            continue
        named = dict(zip((*rows, *columns), (*key[0], *key[1]), strict=True))
        possible, fault = _variants(chosen, named, tried, network)
        wanted |= dict.fromkeys(item for item in possible if item not in too_large)
        if network is None or not possible:
            status: Status = "not run" if possible else "not possible"
            found.setdefault(key, []).append(Cell(*key, status, reason=fault))
    for row in job.predict([*wanted][:_MOST]) if network is not None and wanted else ():
        if row.step_time_s is None or row.step_time_s_ci is None:
            continue
        low_s, high_s = row.step_time_s_ci
        status = "unlikely" if row.fits is not None and row.fits < LEAST_FIT else "predicted"
        speed = {"per_s": work / row.step_time_s, "per_s_ci": (work / high_s, work / low_s)}
        add(row.setting, status, **speed, fits=row.fits)

    def rank(cell: Cell) -> tuple[bool, int, float]:
        return cell.setting == chosen, _RANKS.index(cell.status), cell.per_s or 0.0

    cells = _cut([replace(max(of, key=rank), folded=len(of) - 1) for of in found.values()])
    unit = "samples" if network is None else "tokens"
    return LayoutCells(job, chosen, unit, rows, columns, cells, source)


def without_nodes(setting: Setting) -> Setting:
    return replace(setting, nodes=None, gpus_per_node=None)


def _is_alike(setting: Setting, chosen: Setting) -> bool:
    return all(getattr(setting, name) == getattr(chosen, name) for name in _ALIKE)


def _axes(settings: Sequence[Setting]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the rows and of the columns: what differs, the sizes first."""
    counts = {name: len({getattr(item, name) for item in settings})
              for name in LAYOUT_NAMES}  # fmt: skip
    varied = [name for name, count in counts.items() if count > 1]
    sizes = [name for name in _SIZES if name in varied]
    others = [name for name in varied if name not in (*_SIZES, "micro_batch")]
    micro = [name for name in varied if name == "micro_batch"]
    rows, columns = (sizes, micro or others[:1]) if sizes else (others[:1], micro or others[1:2])
    is_long = len({_values(item, rows) for item in settings}) > _MAX_ROWS
    if len(sizes) > 1 and (is_long or not micro):
        first, second = sorted(sizes, key=lambda name: -counts[name])[:2]
        rows, columns = [first], [second]
    return tuple(rows), tuple(columns)


def _values(setting: Setting, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(setting, name) for name in names)


def _variants(
    chosen: Setting, named: Mapping[str, Any], tried: Sequence[Setting], network: Network | None
) -> tuple[list[Setting], str]:
    """Return the settings of a cell, one for each micro-batch that was tried, and what refuses the
    first of the others."""
    sizes = {name: value for name, value in named.items() if name != "micro_batch"}
    micro_batches = sorted({item.micro_batch or 1 for item in tried})
    possible, faults = [], []
    for micro in [named["micro_batch"]] if "micro_batch" in named else micro_batches:
        try:
            setting = replace(chosen, gradient_accumulation=1, **sizes).in_micro_batches(int(micro))
            fault = network and unfit(setting, network)
        except BadInput as error:
            fault = str(error).partition(";")[0]
        if fault:
            faults.append(fault)
        else:
            possible.append(setting)
    return possible, next(iter(faults), "")


def _cut(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return the cells in their order, of the rows and columns with the fastest."""
    kept = list(cells)
    for axis, most in (("row", _MAX_ROWS), ("column", _MAX_COLUMNS)):
        best: dict[tuple[Any, ...], float] = {}
        for cell in kept:
            place = getattr(cell, axis)
            best[place] = max(best.get(place, 0.0), cell.per_s or 0.0)
        shown = sorted(best, key=lambda place: -best[place])[:most]
        kept = [cell for cell in kept if getattr(cell, axis) in shown]
    return tuple(sorted(kept, key=lambda cell: (_order(cell.row), _order(cell.column))))


def _order(values: tuple[Any, ...]) -> tuple[float, ...]:
    return tuple(_WORDS.index(v) if isinstance(v, str) else float(v) for v in values)
