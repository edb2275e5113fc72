"""The table of a replay: measurements made elsewhere, one in each row."""

import json
import random
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.text import join_names, quote
from wattlaw.measure.telemetry.plausibility import energy_fault, power_fault
from wattlaw.store.fields import (
    FIELDS,
    OPTION,
    OPTIONS,
    STEP_PARTS,
    Field,
    InvalidCell,
    global_batch_of,
    in_range,
)
from wattlaw.store.rows import Row, read_rows
from wattlaw.study.model import RunSpec

#: The columns of which a table has exactly one: the time of a sample, a step or an epoch.
TIMES = ("time_per_sample_s", "step_time_s", "epoch_time_s")
_ENERGIES = ("power_per_gpu_w", "energy_per_sample_j")
_MOST = 1e9


def _placement(value: Any) -> tuple[int, ...]:
    text = FIELDS["workload"].parse(value)
    if not re.fullmatch(r"[1-9][0-9]{0,6}(\+[1-9][0-9]{0,6})*", text):
        raise ValueError
    return tuple(map(int, text.split("+")))


_FIELDS: Mapping[str, Field] = {
    **{name: FIELDS[name] for name in ("workload", "hardware", "gpus", "nodes")},
    "placement": Field(_placement, "the GPUs of each node, such as 4+4"),
    **{name: FIELDS[name] for name in ("local_batch", "global_batch", "precision")},
    **{name: FIELDS[name] for name in ("power_limit_w", "clock_limit_mhz")},
    **dict.fromkeys(TIMES, in_range(1e-9, _MOST, "seconds from 1e-9 to 1e9")),
    **dict.fromkeys(_ENERGIES, in_range(0, _MOST, "a number > 0 and <= 1e9", above_low=True)),
    **{name: FIELDS[name] for name in STEP_PARTS},
    "startup_s": in_range(0, _MOST, "seconds from 0 to 1e9"),
    "dataset_samples": FIELDS["gpus"],  # a whole number in the same range
}


@dataclass(frozen=True)
class Measurement:
    """One row of a table: its line, its time, its other cells by column, its options by name.

    ``values`` has ``gpus``, ``global_batch`` and ``nodes`` (None is unknown), and the other cells
    that are not empty. Options are texts as of ``option_text``.
    """

    line: int
    time_s: float
    values: Mapping[str, Any]
    options: Mapping[str, str]

    @classmethod
    def parse(cls, row: Row, time: str) -> "Measurement":
        """Return the measurement of a row; ``InvalidCell`` if a cell is missing or invalid."""
        if row.fault is not None:
            raise InvalidCell(row.fault)
        values, options = {}, {}
        for name, cell in row.cells.items():
            if cell is None or (isinstance(cell, str) and not cell.strip()):
                continue
            if name.startswith(OPTIONS):
                options[name.removeprefix(OPTIONS)] = option_text(OPTION.parse_cell(name, cell))
            else:
                values[name] = _FIELDS[name].parse_cell(name, cell)
        for name in ("gpus", time):
            if name not in values:
                raise InvalidCell(f"{name} is missing")
        values |= {"global_batch": global_batch_of(values), "nodes": _nodes(values)}
        if (fault := _power_fault(values, time)) is not None:
            raise InvalidCell(fault)
        return cls(row.line, values.pop(time), values, options)

    def fits(self, spec: RunSpec, options: Mapping[str, str]) -> bool:
        """Return whether this is of a run whose workload has these options; None fits every run."""
        setting = spec.setting
        wanted = {
            "workload": spec.workload.name,
            "hardware": spec.hardware,
            "nodes": spec.nodes,
            "global_batch": setting.global_batch,
            "precision": setting.precision,
        }
        return all(
            self.values.get(name) in (None, value) for name, value in wanted.items()
        ) and all(options.get(name) == text for name, text in self.options.items())


def _power_fault(values: Mapping[str, Any], time: str) -> str | None:
    """Return why a power of a row is more than a GPU can draw; None if it can, or is unknown."""
    for name in ("power_limit_w", "power_per_gpu_w"):
        if (watts := values.get(name)) and (fault := power_fault(name, "gpu", watts)):
            return fault
    samples = {"step_time_s": "global_batch", "epoch_time_s": "dataset_samples"}.get(time)
    count = 1 if samples is None else values.get(samples)
    sample_j = values.get("energy_per_sample_j")
    if sample_j is None or count is None:
        return None
    energy_j = {"gpu_energy_j": sample_j * count}
    fault = energy_fault(energy_j, values[time], values["gpus"], values["nodes"] or 1)
    return fault and f"energy_per_sample_j is {sample_j:.4g}: {fault}"


def option_text(value: object) -> str:
    """Return an option as text: 64, 64.0 and "64" are equal, and so are true and "True"."""
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        return str(float(text))
    except ValueError:
        return text.lower()


def _nodes(values: Mapping[str, Any]) -> int | None:
    """Return the nodes of a row; raise ``InvalidCell`` if its placement has others."""
    placement, gpus, nodes = values.get("placement"), values["gpus"], values.get("nodes")
    if placement is None:
        return nodes
    text = "+".join(map(str, placement))
    if sum(placement) != gpus:
        raise InvalidCell(f"placement {text} has {sum(placement)} GPUs; gpus is {gpus}")
    if nodes not in (None, len(placement)):
        raise InvalidCell(f"placement {text} has {len(placement)} nodes; nodes is {nodes}")
    return len(placement)


@dataclass(frozen=True)
class ReplayTable:
    """The measurements of a file in its order, and the name of its time column."""

    path: Path
    time: str
    unit: str  # what ``Measurement.line`` counts: ``line`` or ``row``
    rows: tuple[Measurement, ...]

    def names(self, column: str) -> set[Any]:
        """Return the values of a column; None where a row has none."""
        return {row.values.get(column) for row in self.rows}

    def measurement(self, spec: RunSpec, options: Mapping[str, str]) -> Measurement | None:
        """Return the measurement that a run replays; None if its setting is not in the table.

        Repeat r gets row r of the setting. If there are fewer rows, one is drawn, seeded by r.
        """
        setting = spec.setting
        if setting.dataset_fraction != 1 or setting.emulated_gpus is not None:
            return None
        if setting.power_profile is not None:
            return None  # tables have no profiles
        alike = self._by_limits[setting.gpus, setting.power_limit_w, setting.clock_limit_mhz]
        rows = [row for row in alike if row.fits(spec, options)]
        if not rows:
            return None
        if spec.repeat < len(rows):
            return rows[spec.repeat]
        return random.Random(spec.repeat).choice(rows)  # noqa: S311 - a draw, not a secret

    @cached_property
    def _by_limits(self) -> Mapping[tuple[Any, ...], list[Measurement]]:
        groups: dict[tuple[Any, ...], list[Measurement]] = defaultdict(list)
        for row in self.rows:
            key = (row.values.get(name) for name in ("gpus", "power_limit_w", "clock_limit_mhz"))
            groups[tuple(key)].append(row)
        return groups


def read_replay_table(path: Path) -> ReplayTable:
    """Return the measurements of a CSV, JSON-lines or Parquet file.

    Raises ``BadInput`` if the file cannot be read, has no rows or not the columns of such a table,
    or if a cell is invalid; the text names the row and the column.
    """
    table = read_rows(path)
    allowed = [*_FIELDS, f"{OPTIONS}NAME"]
    for name in table.columns:
        if name not in _FIELDS and not (name.startswith(OPTIONS) and name != OPTIONS):
            raise BadInput(f"{path}: unknown column {quote(name)}; allowed: {', '.join(allowed)}")
    if not table.rows:
        raise BadInput(f"{path}: no rows; allowed: one row or more")
    if "gpus" not in table.columns:
        raise BadInput(f"{path}: no column gpus; the table has: {join_names(table.columns)}")
    times = [name for name in TIMES if name in table.columns]
    if len(times) != 1:
        given = join_names(times) or "none"
        raise BadInput(f"{path}: given {given}; allowed: exactly one of {', '.join(TIMES)}")
    if {*_ENERGIES} <= {*table.columns}:
        raise BadInput(f"{path}: given {' and '.join(_ENERGIES)}; allowed: one of them")
    rows = []
    for row in table.rows:
        try:
            rows.append(Measurement.parse(row, times[0]))
        except InvalidCell as error:
            raise BadInput(f"{path}: {table.unit} {row.line}: {error}") from None
    return ReplayTable(path, times[0], table.unit, tuple(rows))
