"""Makes the runs of an import: what was run, its identity, its windows, and what was assumed."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wattlaw.common.errors import BadInput
from wattlaw.importing.importer import Options
from wattlaw.importing.reading import MAX_NS
from wattlaw.measure.telemetry.plausibility import energy_fault, power_fault
from wattlaw.store.fields import MICRO_BATCHES, MODEL, OPTIONS, InvalidCell, global_batch_of
from wattlaw.store.import_tables import ImportedRun
from wattlaw.store.record import Facts, RunRecord, Site
from wattlaw.study.model import ID_DIGITS, Measure, RunSpec, Train, WorkloadSpec, canonical
from wattlaw.study.network import Network
from wattlaw.study.setting import LAYOUT, RECORDED, Setting

#: The launcher of an imported run; no launcher of this name exists.
KIND = "imported"
HOST = "imported"
NOT_CHECKED = "measured elsewhere, not checked here"
NO_ENERGY = {"energy_source": "none", "energy_verdict": "unavailable"}
_MADE_BY_TOOLS = re.compile(
    r"version_\d+|checkpoint-\d+|(?:train|training|val|valid|validation|eval|evaluation|test)",
    re.IGNORECASE,
)
#: A window with a time is shorter, as ``store.schema`` checks.
_MAX_S = 4e9
#: The option that keeps a workload's original name where it is not a valid workload name.
_NAME_OPTION = "workload"
_ASSUMED = {"precision": "fp32", "dataset_fraction": "1", "nodes": "1"}
EPOCHS_MEASURE = Measure(epochs=1, warmup_epochs=0)
STEPS_MEASURE = Measure(epochs=None, warmup_epochs=0, steps=1, warmup_steps=0)


class RunMaker:
    """Makes the runs of one file, which are identified by file, setting and repeat. Equal settings
    are validated once; repeats are numbered."""

    def __init__(self, path: Path, options: Options, *, repeats_are_numbered: bool = False) -> None:
        name = options.source or path.name
        self.source = "".join(c if c.isprintable() else "?" for c in name)
        self._options = options
        self._specs: dict[Any, tuple[RunSpec, str, tuple[str, ...]]] = {}
        self._repeats: Counter[str] = Counter()
        self._lines: dict[str, int] = {}
        self._are_numbered = repeats_are_numbered or "repeat" in options.constants

    def run(
        self,
        values: Mapping[str, Any],
        windows: Iterable[Mapping[str, Any]],
        measure: Measure = EPOCHS_MEASURE,
        *,
        line: int = 0,
        notes: Iterable[str] = (),
        facts: Facts = Facts(),  # noqa: B008 - frozen
        site: Site | None = None,
        period_ns: tuple[int, int] | None = None,
        failure: str | None = None,
    ) -> ImportedRun:
        """Return a run, a failed one with the reason ``failure``. ``values`` are fields of
        ``store.fields``, parsed; ``--map field=@value`` replaces them. ``windows`` have columns of
        ``store.schema.EPOCHS``; those of the run are added. ``measure`` states what a window is:
        epochs, steps, or (with one epoch) a process. ``period_ns`` is when the run began and ended.
        Raises ``InvalidCell`` if the values are no setting, or another line has the same setting
        and repeat."""
        key = (measure, *((name, type(value), value) for name, value in values.items()))
        if key not in self._specs:
            self._specs[key] = self._spec(values, measure)
        spec, setting, assumed = self._specs[key]
        text = setting
        if not self._are_numbered and (repeat := self._repeats[setting]):
            spec = spec.model_copy(update={"repeat": repeat})
            # The canonical form of one of very many runs; the first place is that of the field.
            text = setting.replace('"repeat":0,"setting":', f'"repeat":{repeat},"setting":', 1)
        self._repeats[setting] += not self._are_numbered
        identity = json.dumps([text, self.source])
        run_id = hashlib.sha256(identity.encode()).hexdigest()[:ID_DIGITS]
        if run_id in self._lines:
            raise InvalidCell(f"has the setting and repeat of line {self._lines[run_id]}")
        self._lines[run_id] = line
        began, ended = (
            None if t_ns is None else datetime.fromtimestamp(t_ns // 1000 * 1e-6, UTC)
            for t_ns in period_ns or (None, None)
        )
        if site is not None and site.energy_j is not None and began is not None:
            period = {"energy_start_at": began, "energy_end_at": ended}
            site = site.model_copy(update=period)
        ran = _layout_that_ran(spec, {**values, **self._options.constants})
        record = RunRecord(
            run_id=run_id,
            study=self._options.study,
            spec=spec,
            seed=0,
            order_seed=0,
            status="done" if failure is None else "failed",
            reason=failure,
            notes=(f"imported from {self.source}", *assumed, *notes),
            facts=facts.model_copy(update=ran),
            site=site,
            started_at=began,
            finished_at=ended,
        )
        shared = {"run_id": run_id, "host": HOST, "warmup": False, "interrupted": False}
        rows = [{**shared, **NO_ENERGY, **window} for window in windows]
        if (fault := _fault(spec, rows)) is not None:
            raise InvalidCell(fault)
        return ImportedRun(record=record, windows=rows, line=line)

    def skip(self, values: Mapping[str, Any], measure: Measure = EPOCHS_MEASURE) -> None:
        """Count a rejected row as a repeat of its setting, so that the others keep their number."""
        setting = self._spec(values, measure)[1]
        self._repeats[setting] += not self._are_numbered

    def _spec(
        self, from_file: Mapping[str, Any], measure: Measure
    ) -> tuple[RunSpec, str, tuple[str, ...]]:
        values = {**from_file, **self._options.constants}
        if "gpus" not in values:
            raise InvalidCell("the number of GPUs is not known; set it with --map gpus=@N")
        setting = {key: values[key] for key in (*RECORDED, *LAYOUT) if key in values}
        if batch := global_batch_of(values):
            local, rest = divmod(batch, values["gpus"])
            local = batch / values["gpus"] if rest else local
            setting |= {"global_batch": batch, "local_batch": local}
        sizes = {k.removeprefix(MODEL): v for k, v in values.items() if k.startswith(MODEL)}
        name = values.get("workload", self._options.study)
        options = {k.removeprefix(OPTIONS): v for k, v in values.items() if k.startswith(OPTIONS)}
        if slug(name) != name:
            if _NAME_OPTION in options:
                raise InvalidCell(
                    f"options.{_NAME_OPTION} is reserved for the workload's full name"
                )
            options[_NAME_OPTION] = name
        if measure is EPOCHS_MEASURE and values.get("epochs", 1) != 1:
            measure = Measure(epochs=values["epochs"], warmup_epochs=0)
        try:
            layout = Setting.of_record(setting)
            parts = values.get("gradient_accumulation", 1)
            if batch and "micro_batch" in values:
                layout = layout.in_micro_batches(values["micro_batch"])
                parts = layout.gradient_accumulation
            has_layout = not values.keys().isdisjoint(LAYOUT)
            layout = replace(layout, gradient_accumulation=parts if has_layout else 1)
            train = Train() if has_layout else Train(gradient_accumulation=parts)
            workload = WorkloadSpec(
                name=slug(name) or KIND, options=options, model=Network(**sizes) if sizes else None
            )
            spec = RunSpec(
                workload=workload,
                setting=layout,
                train=train,
                repeat=values.get("repeat", 0),
                measure=measure,
                launch_kind=KIND,
                hardware=values.get("hardware"),
                nodes=values.get("nodes", 1),
            )
        except ValidationError as error:
            raise InvalidCell(error.errors()[0]["msg"]) from None
        except BadInput as error:
            raise InvalidCell(str(error)) from None
        assumed = [f"{key} {value}" for key, value in _ASSUMED.items() if key not in values]
        note = (f"not in the file and assumed: {', '.join(assumed)}",) if assumed else ()
        return spec, canonical(spec), note


def _layout_that_ran(spec: RunSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a run by its setting, where that has a layout or micro-batches."""
    setting, parts = spec.setting, spec.setting.gradient_accumulation
    parts = max(parts, spec.train.gradient_accumulation)
    ran = {name: getattr(setting, name) for name in LAYOUT[:-1] if name in values}
    if ran or "sequence_parallel" in values:
        ran["dp"] = setting.dp
    if not values.keys().isdisjoint(MICRO_BATCHES):
        ran["gradient_accumulation"] = parts
        micro = replace(setting, gradient_accumulation=parts).micro_batch
        is_whole = micro is not None and micro == int(micro)
        ran["micro_batch"] = int(micro or 0) if is_whole else values.get("micro_batch")
    kinds = {"tensor": setting.tp > 1, "pipeline": setting.pp > 1,
             "fsdp": setting.sharding in ("fsdp", "hsdp")}  # fmt: skip
    kind = next((name for name, is_kind in kinds.items() if is_kind), None)
    return ran | ({"parallelism": kind} if kind else {})


def _fault(spec: RunSpec, rows: Iterable[Mapping[str, Any]]) -> str | None:
    gpus, limit_w = spec.setting.gpus, spec.setting.power_limit_w
    of_limit = power_fault("power_limit_w", "gpu", limit_w) if limit_w else None
    of_energy = None
    for row in rows:
        start_ns, duration_s = row.get("start_ns"), row.get("duration_s")
        if start_ns is not None and not (0 <= start_ns < MAX_NS and (duration_s or 0.0) < _MAX_S):
            return "a window is not between 1970 and 2116, or lasts a century"
        if any((row.get(name) or 0) >= 2**63 for name in ("samples", "steps", "epoch")):
            return "a number of samples, steps or epochs is above 2^63"
        of_energy = of_energy or energy_fault(row, duration_s, gpus, spec.nodes)
    return of_limit or of_energy


def workload_of(path: Path) -> str:
    """Return the name of the folder of a training, or of the one above where a tool makes it
    (``version_0``, ``checkpoint-500``, ``train``)."""
    folder = path if path.is_dir() else path.absolute().parent
    while _MADE_BY_TOOLS.fullmatch(folder.name) and folder.parent.name:
        folder = folder.parent
    return "".join(c if c.isprintable() else "?" for c in folder.absolute().name)[:200] or KIND


def slug(text: str) -> str:
    """Return a text as a name of letters, digits, '.', '_' and '-'; it may be empty."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:100].rstrip("-")


def checked_energy(energies_j: Mapping[str, float], source: str, reason: str) -> dict[str, Any]:
    """Return the energy columns of a window whose energy another tool computed: never ``ok``."""
    known = {name: value for name, value in energies_j.items() if value > 0}
    if not known:
        return dict(NO_ENERGY)
    return {**known, "energy_source": source, "energy_verdict": "suspect", "energy_reason": reason}
