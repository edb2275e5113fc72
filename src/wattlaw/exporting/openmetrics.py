"""The progress of a campaign as an OpenMetrics text file, for node_exporter's textfile collector.

The format is OpenMetrics 1.0. The Prometheus text format, which node_exporter reads, takes its
UNIT and EOF lines as comments.
"""

import contextlib
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from wattlaw.common.errors import BadInput
from wattlaw.common.files import write_text
from wattlaw.common.scopes import PARTS
from wattlaw.running.campaign import Observer
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw.study.sources import MEASURED, TRAINING, origin_of

#: Prometheus reads such files every 15 s by default.
_PERIOD_S = 10.0
#: Of each metric: its type, its unit, and its help.
_METRICS = {
    "wattlaw_runs": ("gauge", "", "Runs of the study by status; active: running or in a queue."),
    "wattlaw_gpu_hours": ("counter", "hours", "GPUs x time of ended runs, of their last attempt."),
    "wattlaw_energy_joules": ("counter", "joules", "Energy of devices in windows of done runs."),
    "wattlaw_module_energy_joules": ("counter", "joules", "Energy of modules with their devices."),
    "wattlaw_node_energy_joules": ("counter", "joules", "Energy of nodes with all in them."),
    "wattlaw_active_run_start_time_seconds": ("gauge", "seconds", "Start of each active run."),
    "wattlaw_last_step_time_seconds": ("gauge", "seconds", "Mean step time of the last window."),
}
_ENDED = ("done", OUT_OF_MEMORY, "failed", "skipped", "interrupted")
#: Of each kind of device: the metric, so that no sum over one metric counts a part twice, and the
#: prefix of the columns of source and verdict.
_ENERGIES = {
    **dict.fromkeys(PARTS, ("wattlaw_energy_joules", "")),
    "module": ("wattlaw_module_energy_joules", ""),
    "node": ("wattlaw_node_energy_joules", "node_"),
}
_OF_STEPS = ["phase", "start_ns", "step_time_mean_s"]
_OF_ENERGY = ["energy_source", "energy_verdict", "node_energy_source", "node_energy_verdict"]
_OF_ENERGY += [f"{kind}_energy_j" for kind in _ENERGIES]

Labels = tuple[tuple[str, str], ...]


class MetricsFile(Observer):
    """Keeps a file up to date, with mode 0644, every 10 s, in a thread until its exit.

    Raises ``BadInput`` if it cannot be written at first; ``warnings`` has later errors.
    """

    def __init__(self, path: Path, study: str, store: Store, runs: int) -> None:
        if path.suffix != ".prom" or (path.exists() and not path.is_file()):
            raise BadInput(
                f"{path}: not a file for OpenMetrics; allowed: a regular file whose name ends in "
                ".prom, since node_exporter reads no other"
            )
        self._path, self._store, self._runs = path, store, runs
        self._common = (("study", study), ("store", str(store.path.resolve())))
        self._active: dict[str, RunRecord] = {}
        self._states: Counter[str] = Counter()
        self._ended: deque[RunRecord] = deque()
        self._totals: dict[tuple[str, Labels], float] = defaultdict(float)
        self._last_steps: dict[Labels, tuple[int, float]] = {}  # start of the window, value
        self.warnings: tuple[str, ...] = ()
        try:
            self._write()
        except OSError as error:
            raise BadInput(f"{path}: cannot be written: {error.strerror}") from None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_often, daemon=True)
        self._thread.start()

    def started(self, record: RunRecord) -> None:
        self._active[record.run_id] = record

    def ended(self, record: RunRecord, *, is_new: bool) -> None:  # noqa: ARG002
        self._active.pop(record.run_id, None)
        self._states[record.state] += 1
        self._ended.append(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write_often(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stop.wait(_PERIOD_S)
            self._read_windows()
            try:
                self._write()
            except OSError as error:
                self.warnings = (f"{self._path}: was not updated: {error.strerror}",)

    def _read_windows(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # The commands that read these files report what is wrong with them.
        readable = contextlib.suppress(pa.ArrowException, OSError, LookupError, ValueError)
        while self._ended:
            record = self._ended.popleft()
            is_measured = origin_of(record.spec.launch_kind) == MEASURED  # others use no GPUs
            if is_measured and record.started_at is not None and record.finished_at is not None:
                duration_s = (record.finished_at - record.started_at).total_seconds()
                hours = record.spec.setting.gpus * max(0.0, duration_s) / 3600.0
                self._totals["wattlaw_gpu_hours", ()] += hours
            if record.status == "done":
                with (
                    readable,
                    pq.ParquetFile(self._store.folder(record.run_id).epochs_path) as file,
                ):
                    table = file.read([*_OF_STEPS, *_OF_ENERGY], use_threads=False)
                    for window in table.to_pylist():
                        self._add_energy(window)
                        self._take_step(record, window)
        for record in list(self._active.values()):
            folder = self._store.folder(record.run_id)
            with readable:
                attempts = [int(path.name) for path in folder.live(0).parent.iterdir()]
                for window in folder.windows(max(attempts)).select(_OF_STEPS).to_pylist():
                    self._take_step(record, window)

    def _add_energy(self, window: dict[str, Any]) -> None:
        for kind, (metric, prefix) in _ENERGIES.items():
            energy_j = window[f"{kind}_energy_j"]
            if energy_j is not None and window[f"{prefix}energy_verdict"] != "implausible":
                labels = (("device", kind), ("source", window[f"{prefix}energy_source"]))
                self._totals[metric, labels] += energy_j

    def _take_step(self, record: RunRecord, window: dict[str, Any]) -> None:
        origin = origin_of(record.spec.launch_kind)
        labels = (("workload", record.spec.workload.name), ("origin", origin))
        start_ns, value = window["start_ns"], window["step_time_mean_s"]
        is_training = window["phase"] in TRAINING
        if is_training and value is not None and start_ns > self._last_steps.get(labels, (0,))[0]:
            self._last_steps[labels] = start_ns, value

    def _write(self) -> None:
        lines, samples = list[str](), dict[str, list[str]]()
        for name, labels, value in self._samples():
            text = _as_text((*self._common, *labels))
            samples.setdefault(name, []).append(f"{{{text}}} {value!r}")
        for name, (kind, unit, text) in _METRICS.items():
            lines.append(f"# TYPE {name} {kind}")
            if unit:
                lines.append(f"# UNIT {name} {unit}")
            lines.append(f"# HELP {name} {text}")
            total = "_total" if kind == "counter" else ""
            lines += [f"{name}{total}{sample}" for sample in samples.get(name, ())]
        write_text(self._path, "\n".join([*lines, "# EOF", ""]), durable=False, mode=0o644)

    def _samples(self) -> Iterator[tuple[str, Labels, float]]:
        active = list(self._active.values())
        states = {state: self._states[state] for state in _ENDED} | {"active": len(active)}
        states["planned"] = self._runs - sum(states.values())
        for state, count in states.items():
            yield "wattlaw_runs", (("status", state),), count
        for (name, labels), value in sorted(self._totals.items()):
            yield name, labels, value
        for record in active:
            if record.started_at is not None:
                workload, gpus = record.spec.workload.name, str(record.spec.setting.gpus)
                of_run = (("run_id", record.run_id), ("workload", workload), ("gpus", gpus))
                yield "wattlaw_active_run_start_time_seconds", of_run, record.started_at.timestamp()
        for labels, (_, value) in sorted(self._last_steps.items()):
            yield "wattlaw_last_step_time_seconds", labels, value


def _as_text(labels: Labels) -> str:
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    return ",".join(f'{name}="{value.translate(escapes)}"' for name, value in labels)
