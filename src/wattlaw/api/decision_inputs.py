"""What a decision rests on: its question, its candidates, and the results in a store."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from wattlaw.analysis.decide import Candidate, Question
from wattlaw.analysis.laws.batch_effects import quality_by_batch
from wattlaw.analysis.laws.to_target import time_to_target
from wattlaw.analysis.metrics.comparable_runs import worker_noun
from wattlaw.analysis.metrics.metrics import BASES, HOUR_S
from wattlaw.analysis.metrics.result import Caution
from wattlaw.analysis.predict.job import Job, jobs_of
from wattlaw.api.footprint import footprint_of
from wattlaw.api.store_tables import StoreTables
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.text import join_names
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store
from wattlaw.study.decide import Decide
from wattlaw.study.model import Measure, Study
from wattlaw.study.plan import PlannedRun
from wattlaw.study.setting import Setting
from wattlaw.study.sources import origin_of
from wattlaw.workloads import catalogue

#: Runs with equal values in these columns are runs of the study's job.
_JOB = ("options", "train", "dataset_fraction", "run_length", "hardware", "power_profile")
#: In the reasons of failures that larger micro-batches share.
_MEMORY = "out of memory"
#: A setting whose runs failed this often cannot run.
_TRIES = 2
UNKNOWN_QUALITY = Caution(
    "quality-unknown",
    "no global batch has a known quality, so no batch is excluded; set decide.max_global_batch",
)


@dataclass(frozen=True)
class Inputs:
    """The state of a decision.

    ``job`` has the measured runs; ``candidates`` and ``hours`` are by run id; ``done`` are the runs
    that are done, maybe by another campaign. Settings ``out_of_memory`` and ``infeasible`` cannot
    run, those of ``to_retry`` failed once and were never done. Of the global batches ``untried``
    the epochs to the target are unknown.
    """

    question: Question
    job: Job | None
    candidates: Mapping[str, Candidate]
    done: frozenset[str]
    out_of_memory: tuple[Setting, ...]
    infeasible: frozenset[Setting]
    to_retry: frozenset[Setting]
    hours: Mapping[str, float]
    untried: frozenset[float | None]
    warnings: tuple[Caution, ...]
    worker: str  # what a "gpu" of the runs is called


def decide_of(study: Study) -> Decide:
    """Return the section ``decide`` of a study; raise ``Refused`` without one."""
    if study.decide is None:
        raise Refused(f"study {study.name}: no decide; allowed: a study file with decide")
    return study.decide


def question_of(study: Study) -> Question:
    """Return the question of a study, without what its runs have to show.

    Raises ``BadInput`` if a price or region is unknown, or the samples of an epoch are needed and
    unknown.
    """
    decide = decide_of(study)
    is_in_epochs = decide.total_samples is None
    needs_samples = decide.has_length and study.measure.is_by_steps == is_in_epochs
    if needs_samples and _samples_per_epoch(study) is None:
        raise BadInput(
            "decide: the samples of an epoch are not known; set dataset_samples of the workload"
        )
    try:
        factors = footprint_of(
            decide.pue, decide.grid, decide.price_per_kwh, decide.price_per_gpu_hour,
            price_name="price_per_kwh",
        )  # fmt: skip
        price = (factors.price_per_kwh or 0.0) * (factors.pue or 1.0) if factors else 0.0
        return Question(
            decide.minimize, deadline_s=decide.deadline, max_slowdown=decide.max_slowdown,
            energy_budget_j=decide.energy_budget, max_gpus=decide.max_gpus,
            max_global_batch=decide.max_global_batch, price_per_kwh=price,
            price_per_gpu_hour=(factors.price_per_gpu_hour or 0.0) if factors else 0.0,
            tolerance=decide.tolerance, confidence=decide.confidence,
        )  # fmt: skip
    except BadInput as error:
        raise BadInput(f"decide.{error}") from None


def check_question(study: Study, runs: Sequence[PlannedRun]) -> None:
    """Raise ``BadInput`` if the question of a study is wrong, or excludes every setting."""
    question_of(study)
    decide, per_node = decide_of(study), study.launch.gpus_per_node
    bounds = {
        "max_gpus": Question(max_gpus=decide.max_gpus),
        "max_global_batch": Question(max_global_batch=decide.max_global_batch),
        "epochs_by_batch": Question(samples_by_batch=decide.batches),
    }
    # Repeats share their setting.
    different = {(id(run.setting), run.nodes): run for run in runs}.values()
    settings = [emulated_setting(run, per_node) or setting_of(run) for run in different]
    if any(all(bound.allows(item) for bound in bounds.values()) for item in settings):
        return
    alone = [name for name, bound in bounds.items() if not any(map(bound.allows, settings))]
    keys = alone or [name for name in bounds if getattr(decide, name)]
    gpus = sorted({item.gpus for item in settings})
    batches = sorted({item.global_batch or 0 for item in settings})
    raise BadInput(
        f"decide.{' with '.join(keys)}: excludes every setting of the sweeps; allowed: what leaves "
        f"one of them (GPUs: {join_names([str(count) for count in gpus])}; global batches: "
        f"{join_names([f'{batch:.0f}' for batch in batches])})"
    )


def setting_of(run: PlannedRun) -> Setting:
    """Return the setting of a run as the prediction model names it."""
    setting = run.setting
    return Setting(
        setting.gpus,
        nodes=min(run.nodes, setting.gpus),
        local_batch=setting.local_batch,
        gradient_accumulation=run.spec.train.gradient_accumulation,
        precision=setting.precision,
        power_limit_w=setting.power_limit_w,
        clock_limit_mhz=setting.clock_limit_mhz,
    )


def emulated_setting(run: PlannedRun, gpus_per_node: int | None) -> Setting | None:
    """Return the setting that a run emulates on fewer GPUs; None if it does not."""
    gpus = run.setting.emulated_gpus
    if gpus is None:
        return None
    nodes = None if gpus_per_node is None else ceil(gpus / gpus_per_node)
    return replace(setting_of(run), gpus=gpus, nodes=nodes, gpus_per_node=None)


def read_inputs(
    study: Study, runs: Sequence[PlannedRun], path: Path, pending: Collection[str] = ()
) -> Inputs:
    """Return the state of a decision by the results in a store, which may not exist yet.

    ``pending`` are runs that can be made: an earlier campaign may have skipped them.
    """
    store = Store(path)
    settings = {run.run_id: setting_of(run) for run in runs}
    records = {
        run_id: record
        for run_id, record in store.records_by_id(settings.keys()).items()
        if record is not None and store.folder(run_id).damage(record) is None
    }
    # A setting whose run trained with another batch stands for that batch, as do its repeats.
    ran = {
        settings[run_id]: replace(
            settings[run_id], local_batch=record.facts.global_batch / settings[run_id].gpus
        )
        for run_id, record in records.items()
        if record.facts.global_batch
    }
    settings = {run_id: ran.get(setting, setting) for run_id, setting in settings.items()}
    tables = StoreTables((path,))
    rows, epochs = _job_rows(study, tables, settings.keys()) if records else (None, None)
    job = None
    if rows is not None and not rows.empty:
        job = jobs_of(rows, study.workloads[0].name, study.launch.gpus_per_node)[0]
    seconds = {} if epochs is None else _seconds(records, epochs)
    overheads = [total - trained for total, trained in seconds.values() if trained]
    startup_s = max(0.0, median(overheads)) if overheads else 0.0
    per_epoch = _samples_per_epoch(study) or 1.0
    if job is not None and job.unit == "epoch":
        per_epoch = job.samples_per_unit or 1.0
    candidates = {
        run.run_id: _candidate(run, settings[run.run_id], per_epoch, startup_s, study)
        for run in runs
    }
    done_runs = frozenset(name for name, record in records.items() if record.status == "done")
    done = {settings[name] for name in done_runs}
    failed = [
        record for run_id, record in records.items()
        if record.state == "failed"
        or (record.state == "skipped" and (record.attempts or run_id not in pending))
    ]  # fmt: skip
    memory = {settings[item.run_id] for item in failed if _MEMORY in (item.reason or "")} - done
    tries: Counter[Setting] = Counter()
    for record in failed:
        # A run that was skipped before its start cannot run at all.
        tries[settings[record.run_id]] += record.attempts or _TRIES
    infeasible = {setting for setting, count in tries.items() if count >= _TRIES} - done
    question, untried, warnings = _answered(study, rows, epochs, candidates.values(), per_epoch)
    return Inputs(
        question, job, candidates, done_runs, tuple(memory), frozenset(infeasible),
        frozenset(set(tries) - infeasible - done - memory),
        {name: settings[name].gpus * total / HOUR_S for name, (total, _) in seconds.items()},
        untried, warnings, "GPU" if rows is None or rows.empty else worker_noun(rows),
    )  # fmt: skip


def _samples_per_epoch(study: Study) -> float | None:
    """Return the samples of an epoch as far as they are known before a run."""
    workload, share = study.workloads[0], study.sweeps[0].dataset_fraction[0]
    work = catalogue.work(workload)
    samples = work.samples if work is not None else workload.dataset_samples
    return None if samples is None else samples * float(share)


def _candidate(
    run: PlannedRun, setting: Setting, per_epoch: float, startup_s: float, study: Study
) -> Candidate:
    measure: Measure = run.spec.measure
    steps: float = measure.warmup_steps + (measure.steps or 0)
    if measure.epochs is not None:
        steps = measure.epochs * per_epoch / setting.samples
    emulated = emulated_setting(run, study.launch.gpus_per_node)
    if emulated is not None:
        emulated = replace(emulated, local_batch=setting.local_batch)
    return Candidate(setting, steps, startup_s + (measure.seconds or 0.0), emulated)


def _job_rows(study: Study, tables: StoreTables, run_ids: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the metrics of the runs of the study's job, of any study, and all windows."""
    rows = tables.metrics
    origin = origin_of(study.launch.kind)
    rows = rows[rows["workload"] == study.workloads[0].name]
    rows = rows[rows["launcher"].map(origin_of) == origin]
    own = rows[rows["run_id"].isin(run_ids)]
    if own.empty:
        rows = own  # which of the other runs are comparable is not known yet
    for name in _JOB if len(own) else ():
        value = own[name].mode(dropna=False)[0]
        rows = rows[rows[name].isna() if pd.isna(value) else rows[name] == value]
    return rows, tables.epochs


def _seconds(
    records: Mapping[str, RunRecord], epochs: pd.DataFrame
) -> dict[str, tuple[float, float]]:
    """Return the time of each run that ended, and the training in it (0 if it is not done)."""
    sums = epochs.groupby(["run_id", "phase", "host"], dropna=False)["duration_s"].sum()
    phases = sums.groupby(level=["run_id", "phase"]).max().unstack()
    trained = phases[[name for name in BASES if name in phases]].max(axis=1)
    evaluated = phases["evaluate"] if "evaluate" in phases else trained * 0
    windows = trained + evaluated.fillna(0)
    result: dict[str, tuple[float, float]] = {}
    for run_id, record in records.items():
        if record.state not in ("done", "failed"):
            continue  # an interrupted run is made again
        total = 0.0
        if record.started_at and record.finished_at:
            total = (record.finished_at - record.started_at).total_seconds()
        if record.spec.launch_kind == "simulated":  # its clock is not that of the simulation
            total = float(windows.get(run_id, 0.0))
        result[run_id] = (total, float(trained.get(run_id, 0.0)))
    return result


def _answered(
    study: Study,
    rows: pd.DataFrame | None,
    epochs: pd.DataFrame | None,
    candidates: Any,
    per_epoch: float,
) -> tuple[Question, frozenset[float | None], tuple[Caution, ...]]:
    """Return the question with what runs have shown: epochs to a target, quality by batch."""
    question, decide = question_of(study), decide_of(study)
    if decide.target is not None:
        reached, tried = _epochs_to_target(rows, epochs, decide.target)
        samples = {batch: count * per_epoch for batch, count in reached.items()}
        # An impossible batch: an empty mapping would allow every batch.
        question = replace(question, samples_by_batch=samples or {0.0: 1.0})
        batches = {item.setting.global_batch for item in candidates
                   if item.informs is None and _allows(question, item.setting)}  # fmt: skip
        return question, frozenset(batches - tried), ()
    length = decide.epochs or study.sweeps[0].epochs or study.measure.epochs
    question = replace(
        question,
        samples=decide.total_samples or (length * per_epoch if length else None),
        samples_by_batch={batch: count * per_epoch for batch, count in decide.batches.items()},
    )
    if decide.max_global_batch is not None or decide.epochs_by_batch:
        return question, frozenset(), ()
    bound = _known_quality(rows)
    warnings = () if bound is not None or rows is None else (UNKNOWN_QUALITY,)
    return replace(question, max_global_batch=bound), frozenset(), warnings


def _allows(question: Question, setting: Setting) -> bool:
    return replace(question, samples_by_batch={}).allows(setting)


def _epochs_to_target(
    rows: pd.DataFrame | None, epochs: pd.DataFrame | None, target: float
) -> tuple[dict[float, float], set[float]]:
    """Return the epochs by global batch, and the batches that were trained."""
    if rows is None or epochs is None or rows.empty:
        return {}, set()
    tried = set(rows["global_batch"].dropna())
    try:
        settings = time_to_target(rows, epochs, target)
    except Refused:
        return {}, tried
    reached = settings[settings["epochs"].notna()]
    return dict(zip(reached["global_batch"], reached["epochs"], strict=True)), tried


def _known_quality(rows: pd.DataFrame | None) -> float | None:
    """Return the largest global batch at which quality does not fall; None if none is known.

    Of runs of several lengths, the longest count.
    """
    if rows is None or rows.empty:
        return None
    known = [item for item in quality_by_batch(rows) if item.known_to is not None]
    longest = max(known, key=lambda item: item.group["epochs_trained"] or 0, default=None)
    return None if longest is None else longest.known_to
