"""A summary of a recorded run: its windows by name, with time and energy."""

import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wattlaw.common.scopes import KINDS, scope_of_windows
from wattlaw.common.text import short_repr
from wattlaw.store.record import VERDICTS, RunRecord, device_facts
from wattlaw.store.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class TrackResult:
    """Time and energy of a tracked block. A value that is not known is None.

    Parameters
    ----------
    name
        The name of the run.
    duration_s
        Time from the start to the end of the block.
    energy_j
        Energy of the outermost scope that was measured: the node, or else the modules and devices
        that have a meter, each part once. None where a part of it was not measured.
    energy_scope
        What ``energy_j`` counts: ``node``, ``module``, ``gpu+cpu+dram`` and so on.
    energy_source
        How it is known: ``counter``, ``integral``, ``simulated``, ``estimated`` or ``none``.
    power_mean_w
        ``energy_j / duration_s``.
    verdict
        The quality of the energy: ``ok``, ``suspect``, ``partial``, ``implausible`` or
        ``unavailable``.
    reason
        Why a value is missing or suspect; None where nothing is.
    run_id
        The id of the run in the store.
    """

    name: str
    duration_s: float | None = None
    energy_j: float | None = None
    energy_scope: str | None = None
    energy_source: str = "none"
    power_mean_w: float | None = None
    verdict: str = "unavailable"
    reason: str | None = None
    run_id: str | None = None

    __repr__ = short_repr

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_frame(self) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame([self.to_dict()])

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, na_rep="-"))


def track_result(
    record: RunRecord, samples: "pa.Table", host: str, start_ns: int, duration_s: float
) -> TrackResult:
    import pyarrow as pa

    from wattlaw.measure.telemetry.window_energy import energy_of_windows

    block = pa.table({"host": [host], "start_ns": [start_ns], "duration_s": [duration_s]})
    (row,) = energy_of_windows(block, samples, device_facts(record.samplers)).to_pylist()
    energy = WindowEnergy.of([row])
    is_usable = energy.scope is not None and energy.is_used(energy.scope)
    energy_j = energy.total_j if is_usable else None
    reason = row["energy_reason"]
    if energy_j is None and reason is None:
        missing = [item for report in record.samplers for item in report.unavailable.items()]
        reason = "; ".join(f"{meter}: {why}" for meter, why in missing)
        reason = reason or "the samples of the block have no energy"
    return TrackResult(
        name=record.spec.workload.name,
        duration_s=duration_s,
        energy_j=energy_j,
        energy_scope=energy.scope if is_usable else None,
        energy_source=energy.source(energy.scope),
        power_mean_w=energy_j / duration_s if energy_j is not None and duration_s > 0 else None,
        verdict=energy.verdict(energy.scope),
        reason=reason,
        run_id=record.run_id,
    )


@dataclass(frozen=True)
class WindowEnergy:
    energy_j: dict[str, float]  # of each kind that every window has
    scope: str | None
    total_j: float | None  # of the scope
    sources: dict[str, str]  # of "devices", modules included, and of "node" if that has a meter
    verdicts: dict[str, str]

    @classmethod
    def of(cls, rows: list[dict[str, Any]]) -> "WindowEnergy":
        of_kinds = {kind: [row[f"{kind}_energy_j"] for row in rows] for kind in KINDS}
        energy_j = {k: math.fsum(values) for k, values in of_kinds.items() if None not in values}
        counted = scope_of_windows({row["energy_scope"] for row in rows}, energy_j, energy_j)
        sources, verdicts = {}, {}
        for name, prefix in (("devices", ""), ("node", "node_")):
            values = [row[f"{prefix}energy_verdict"] for row in rows]
            if None not in values:
                different = {row[f"{prefix}energy_source"] for row in rows}
                sources[name] = different.pop() if len(different) == 1 else "mixed"
                verdicts[name] = max(values, key=VERDICTS.index)
        total_j = math.fsum(energy_j[kind] for kind in counted) if counted else None
        return cls(energy_j, "+".join(counted) or None, total_j, sources, verdicts)

    def source(self, kind: str | None) -> str:
        return self.sources["node" if kind == "node" else "devices"]

    def verdict(self, kind: str | None) -> str:
        return self.verdicts["node" if kind == "node" else "devices"]

    def is_used(self, kind: str | None) -> bool:
        return VERDICTS.index(self.verdict(kind)) < VERDICTS.index("partial")

    def text(self) -> str:
        return f"{self.scope}, {self.source(self.scope)}, {self.verdict(self.scope)}"


@dataclass(frozen=True)
class PhaseSummary:
    windows: int
    duration_s: float
    energy: WindowEnergy
    reasons: tuple[str, ...]
    sm_util: float | None
    mem_util: float | None
    cpu_cores: float | None
    mem_used_max_bytes: int | None
    steps: int | None  # optimizer steps, if every window has them


def phase_summaries(folder: RunFolder, *, is_measured: bool = False) -> dict[str, PhaseSummary]:
    import pyarrow.parquet as pq

    phases: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in pq.read_table(folder.epochs_path).to_pylist():
        if not (is_measured and row["warmup"]):
            phases[row["phase"]].append(row)
    return {name: _phase(rows) for name, rows in phases.items()}


def _phase(rows: list[dict[str, Any]]) -> PhaseSummary:
    durations_s: dict[str, float] = defaultdict(float)
    for row in rows:  # hosts run at the same time
        durations_s[row["host"]] += row["duration_s"]

    def mean(column: str) -> float | None:
        known = [(row[column], row["duration_s"]) for row in rows if row[column] is not None]
        total_s = math.fsum(duration_s for _, duration_s in known)
        return math.fsum(v * s for v, s in known) / total_s if total_s > 0 else None

    memory_bytes = [row["mem_used_max_bytes"] for row in rows]
    steps = [row["steps"] for row in rows]
    return PhaseSummary(
        windows=len(rows) // len(durations_s),
        duration_s=max(durations_s.values()),
        energy=WindowEnergy.of(rows),
        reasons=tuple(dict.fromkeys(row["energy_reason"] for row in rows if row["energy_reason"])),
        sm_util=mean("sm_util_mean"),
        mem_util=mean("mem_util_mean"),
        cpu_cores=mean("cpu_cores_mean"),
        mem_used_max_bytes=max((size for size in memory_bytes if size is not None), default=None),
        steps=None if None in steps else sum(steps),
    )


def summary_line(record: RunRecord, folder: RunFolder) -> str:
    parts = []
    for name, phase in phase_summaries(folder).items():
        text, energy = "energy not available", phase.energy
        if energy.total_j is not None:
            text = f"{energy.total_j:.4g} J ({energy.text()})"
        parts.append(f"{name} x{phase.windows}: {phase.duration_s:.3f} s, {text}")
    return (
        f"wattlaw: {record.spec.workload.name}: {'; '.join(parts) or 'no windows'} -> {folder.path}"
    )
