"""A summary of a recorded run: its windows by name, with time and energy."""

import math
from dataclasses import dataclass

from wattlaw.store.record import VERDICTS, RunRecord
from wattlaw.store.run_folder import RunFolder

_ENERGIES = ("gpu", "cpu", "dram")


@dataclass(frozen=True)
class PhaseSummary:
    """All windows of one name; a value is None if it was not measured in one of them."""

    phase: str
    windows: int
    duration_s: float
    energy_j: dict[str, float]  # gpu, cpu, dram, each if every window has it
    energy_source: str
    energy_verdict: str
    reasons: tuple[str, ...]
    sm_util: float | None
    mem_util: float | None
    cpu_cores: float | None
    mem_used_max_bytes: int | None

    @property
    def total_j(self) -> float | None:
        """Return the sum of the measured parts."""
        return sum(self.energy_j.values()) if self.energy_j else None


def phase_summaries(folder: RunFolder) -> list[PhaseSummary]:
    """Return the phases of a run in the order of their first windows."""
    import pyarrow.parquet as pq

    rows = pq.read_table(folder.epochs_path).to_pylist()
    names = list(dict.fromkeys(row["phase"] for row in rows))
    return [_phase(name, [row for row in rows if row["phase"] == name]) for name in names]


def _phase(name: str, rows: list[dict[str, object]]) -> PhaseSummary:
    energy_j = {}
    for part in _ENERGIES:
        values = [row[f"{part}_energy_j"] for row in rows]
        known = [float(value) for value in values if isinstance(value, float)]
        if known and len(known) == len(values):
            energy_j[part] = math.fsum(known)
    sources = {str(row["energy_source"]) for row in rows}
    verdicts = [str(row["energy_verdict"]) for row in rows]
    return PhaseSummary(
        phase=name,
        windows=len(rows),
        duration_s=math.fsum(float(str(row["duration_s"])) for row in rows),
        energy_j=energy_j,
        energy_source=sources.pop() if len(sources) == 1 else "mixed",
        energy_verdict=max(verdicts, key=VERDICTS.index),
        reasons=tuple(dict.fromkeys(str(r["energy_reason"]) for r in rows if r["energy_reason"])),
        sm_util=_mean(rows, "sm_util_mean"),
        mem_util=_mean(rows, "mem_util_mean"),
        cpu_cores=_mean(rows, "cpu_cores_mean"),
        mem_used_max_bytes=max(
            (value for row in rows if isinstance(value := row["mem_used_max_bytes"], int)),
            default=None,
        ),
    )


def _mean(rows: list[dict[str, object]], column: str) -> float | None:
    """Return the mean over time of a column, over the windows that have it."""
    known = [
        (float(value), float(str(row["duration_s"])))
        for row in rows
        if isinstance(value := row[column], float)
    ]
    total_s = math.fsum(duration_s for _, duration_s in known)
    return math.fsum(v * s for v, s in known) / total_s if total_s > 0 else None


def summary_line(record: RunRecord, folder: RunFolder) -> str:
    """Return a summary of a run in one line."""
    parts = []
    for phase in phase_summaries(folder):
        energy = "energy not available"
        if phase.total_j is not None:
            source = f"{'+'.join(phase.energy_j)}, {phase.energy_source}, {phase.energy_verdict}"
            energy = f"{phase.total_j:.4g} J ({source})"
        parts.append(f"{phase.phase} x{phase.windows}: {phase.duration_s:.3f} s, {energy}")
    return (
        f"wattlaw: {record.spec.workload.name}: {'; '.join(parts) or 'no windows'} -> {folder.path}"
    )
