"""What a decision rests on: its question, its candidates, and what runs have shown."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

import numpy as np
import pandas as pd

from wattlaw.analysis.laws.batch_effects import epochs_by_batch, quality_by_batch
from wattlaw.analysis.metrics.comparable_runs import worker_noun
from wattlaw.analysis.metrics.metrics import HOUR_S, run_metrics
from wattlaw.analysis.metrics.result import Caution
from wattlaw.analysis.metrics.run_overhead import Overheads
from wattlaw.analysis.predict.job import Job, jobs_of
from wattlaw.analysis.predict.observation import Floats
from wattlaw.analysis.predict.peak_memory import Memory, memory_of, usable_gib
from wattlaw.analysis.predict.run_settings import setting_of_row
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.formatting import plural
from wattlaw.common.text import join_names
from wattlaw.study.model import Study
from wattlaw.study.not_as_declared import TOO_SHORT, TRAINING_ENDED
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw.study.plan import PlannedRun
from wattlaw.study.question import Question
from wattlaw.study.setting import LAYOUT, Setting, layout_of
from wattlaw.study.sources import TRAINING, origin_of

#: Runs with equal values in these columns are runs of the study's job.
_JOB = ("options", "train", "dataset_fraction", "run_length", "hardware", "power_profile")
#: A setting whose runs failed this often cannot run.
_TRIES = 2
UNKNOWN_QUALITY = Caution(
    "quality-unknown",
    "no global batch has a known quality, so no batch is excluded; set decide.max_global_batch",
)
#: The standard error of a run's mean step time that suffices, as a share of the tolerance.
_PRECISE = 0.25


@dataclass(frozen=True)
class Candidate:
    """A run that could be made.

    ``steps`` are its optimizer steps, with warm-up; ``overhead_s`` is the time beside them.
    ``informs`` is the setting that the run is to decide about, where it emulates it on fewer GPUs.
    """

    setting: Setting
    steps: float
    overhead_s: float = 0.0
    informs: Setting | None = None

    @property
    def decided(self) -> Setting:
        return self.informs or self.setting

    def gpu_hours(self, step_time_s: float) -> float:
        return self.setting.gpus * (self.overhead_s + self.steps * step_time_s) / 3600


def setting_of(run: PlannedRun) -> Setting:
    setting = run.setting
    return Setting(
        setting.gpus,
        nodes=min(run.nodes, setting.gpus),
        local_batch=setting.local_batch,
        gradient_accumulation=max(
            setting.gradient_accumulation, run.spec.train.gradient_accumulation
        ),
        precision=setting.precision,
        power_limit_w=setting.power_limit_w,
        clock_limit_mhz=setting.clock_limit_mhz,
        **{name: getattr(setting, name) for name in LAYOUT},
    )


def emulated_setting(run: PlannedRun, study: Study) -> Setting | None:
    gpus, per_node = run.setting.emulated_gpus, study.launch.gpus_per_node
    if gpus is None:
        return None
    nodes = None if per_node is None else ceil(gpus / per_node)
    return replace(setting_of(run), gpus=gpus, nodes=nodes, gpus_per_node=None)


def check_bounds(question: Question, study: Study, runs: Sequence[PlannedRun]) -> None:
    # Repeats share their setting.
    different = {(id(run.setting), run.nodes): run for run in runs}.values()
    settings = [emulated_setting(run, study) or setting_of(run) for run in different]
    of_keys = {
        "max_gpus": Question(max_gpus=question.max_gpus),
        "max_global_batch": Question(max_global_batch=question.max_global_batch),
        "epochs_by_batch": Question(samples_by_batch=question.epochs_by_batch),
    }
    if any(all(bound.allows(item) for bound in of_keys.values()) for item in settings):
        return
    alone = [key for key, bound in of_keys.items() if not any(map(bound.allows, settings))]
    keys = alone or [key for key in of_keys if getattr(question, key)]
    gpus = sorted({item.gpus for item in settings})
    batches = sorted({item.global_batch or 0 for item in settings})
    raise BadInput(
        f"decide.{' with '.join(keys)}: excludes every setting of the sweeps; allowed: what leaves "
        f"one of them (GPUs: {join_names([str(count) for count in gpus])}; global batches: "
        f"{join_names([f'{batch:.0f}' for batch in batches])})"
    )


def may_fit_memory(setting: Setting, out_of_memory: Sequence[Setting]) -> bool:
    """Return whether a setting may fit into memory, given those that did not.

    Settings of the same precision and layout with at least as many samples in a micro-batch do not,
    unless more copies share the model's states.
    """
    samples = setting.micro_batch or 0.0
    return setting not in out_of_memory and not any(
        item.precision == setting.precision
        and layout_of(item) == layout_of(setting)
        and (item.sharding == "none" or item.dp >= setting.dp)
        and item.micro_batch and samples >= item.micro_batch
        for item in out_of_memory
    )  # fmt: skip


def is_long_enough(error: float, tolerance: float) -> bool:
    """Return whether more steps of a run would hardly change a decision.

    ``error`` is the standard error of its mean step time, as a share of it: of n independent steps,
    their coefficient of variation over sqrt(n). ``tolerance`` is the regret that does not matter.
    """
    return error <= _PRECISE * tolerance


@dataclass(frozen=True)
class Evidence:
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
    samples_per_epoch: float
    overheads: Overheads | None  # beside training, of jobs; None if these are not compared
    memory: Memory | None  # that layouts need; None if nothing says it

    def beside_training(self, settings: Sequence[Setting], draws: int = 0) -> tuple[Floats, Floats]:
        """Return draws of the time and energy of jobs of settings beside their training.

        Without ``draws``, there is a row of means.
        """
        length, by_batch = self.question.samples, self.question.samples_by_batch
        if self.overheads is None or not (length or by_batch):
            return np.zeros((1, len(settings))), np.zeros((1, len(settings)))
        samples = [by_batch.get(item.global_batch or 0.0, length or 0.0) for item in settings]
        epochs = [count / self.samples_per_epoch for count in samples]
        time_s, energy_j = self.overheads.beside(settings, epochs)
        normals = np.random.default_rng([0, 9]).standard_normal((draws, 1)) if draws else 0.0
        noise = np.exp(self.overheads.spread * normals)
        return np.atleast_2d(time_s * noise), np.atleast_2d(energy_j)

    @property
    def excluded(self) -> frozenset[Setting]:
        return self.infeasible.union(self.out_of_memory)

    def of(self, runs: Iterable[PlannedRun]) -> list[Candidate]:
        return [self.candidates[run.run_id] for run in runs]


def read_evidence(
    question: Question,
    study: Study,
    planned: Sequence[PlannedRun],
    runs: pd.DataFrame,
    epochs: pd.DataFrame,
    *,
    epoch_samples: float | None,
    pending: Collection[str] = (),
) -> Evidence:
    """Return the state of a decision by the results in a store.

    ``question`` is what is asked, without what runs show. ``epoch_samples`` are known before a run,
    if at all. ``pending`` runs can be made: an earlier campaign may have skipped them.
    """
    settings = {run.run_id: setting_of(run) for run in planned}
    own = runs[runs["run_id"].isin(settings.keys()) & (runs["status"] != "damaged")]
    own = own.set_index("run_id", drop=False)
    # A setting whose run trained with another batch stands for that batch, as do its repeats.
    other = own[own["global_batch_declared"].notna()]
    ran = {
        settings[run_id]: replace(settings[run_id], local_batch=batch / settings[run_id].gpus)
        for run_id, batch in zip(other["run_id"], other["global_batch"], strict=True)
    }
    settings = {run_id: ran.get(setting, setting) for run_id, setting in settings.items()}
    rows = pd.DataFrame()
    if (own["status"] == "done").any():
        rows = _job_rows(study, run_metrics(runs, epochs), settings)
    job = None
    if len(rows):
        # In the order of measuring: each run is compared with what was expected before it.
        times = runs.set_index("run_id")["started_at"]
        rows = rows.iloc[rows["run_id"].map(times).argsort(kind="stable")]
        job = jobs_of(rows, study.workloads[0].name, study.launch.gpus_per_node, runs)[0]
        # Which of the layouts were made does not say which model their times need.
        job = replace(job, observations=job.seen_for([*settings.values()]))
    seconds = _seconds(own, epochs)
    overheads = [total - trained for total, trained in seconds.values() if trained]
    overhead_s = max(0.0, median(overheads)) if overheads else 0.0
    per_epoch = epoch_samples or 1.0
    if job is not None and job.unit == "epoch":
        per_epoch = job.samples_per_unit or 1.0
    candidates = {
        run.run_id: _candidate(run, settings[run.run_id], per_epoch, overhead_s, study)
        for run in planned
    }
    done = own.index[own["status"] == "done"]
    was_done = {settings[name] for name in done}
    is_skipped = (own["status"] == "skipped") & (
        (own["attempts"] > 0) | ~own["run_id"].isin(pending)
    )
    failed = own[(own["status"] == "failed") | is_skipped]
    tries = Counter[Setting]()
    for run_id, attempts in failed[["run_id", "attempts"]].itertuples(index=False):
        # A run that was skipped before its start cannot run at all.
        tries[settings[run_id]] += attempts or _TRIES
    memory = {settings[run_id] for run_id in own.index[own["status"] == OUT_OF_MEMORY]}
    infeasible = {setting for setting, count in tries.items() if count >= _TRIES} - was_done
    beside, known_memory = None, memory_of(own) if len(own) else None
    if job is not None:
        of_runs = [setting_of_row(row, job.unit) for row in rows.to_dict("records")]
        known_memory = job.memory
        if question.is_of_jobs(study.workloads[0].command or ()):
            beside = Overheads.of(rows, of_runs)
    elif known_memory is None and (model := study.workloads[0].model) is not None:
        known_memory = Memory(model, usable_gib(study.launch.hardware or ""))
    question, untried, warnings = _answered(
        question, study, rows, epochs, candidates.values(), per_epoch, known=bool(len(own))
    )
    ended = own["notes"].explode().astype(str).str.contains(TOO_SHORT, regex=False)
    if ended.any():
        text = f"In {plural(ended[ended].index.nunique(), 'run')} the training ended too soon"
        warnings = (*warnings, Caution(TRAINING_ENDED, f"{text}: {TOO_SHORT}."))
    return Evidence(
        question=question,
        job=job,
        candidates=candidates,
        done=frozenset(done),
        out_of_memory=tuple(memory - was_done),
        infeasible=frozenset(infeasible),
        to_retry=frozenset(set(tries) - infeasible - was_done - memory),
        hours={name: settings[name].gpus * total / HOUR_S for name, (total, _) in seconds.items()},
        untried=untried,
        warnings=warnings,
        worker=worker_noun(rows if len(rows) else own, study.launch.hardware),
        samples_per_epoch=per_epoch,
        overheads=beside,
        memory=known_memory,
    )


def _candidate(
    run: PlannedRun, setting: Setting, per_epoch: float, overhead_s: float, study: Study
) -> Candidate:
    measure = run.spec.measure
    steps: float = measure.warmup_steps + (measure.steps or 0)
    if measure.epochs is not None:
        steps = measure.epochs * per_epoch / setting.samples
    emulated = emulated_setting(run, study)
    if emulated is not None:
        emulated = replace(emulated, local_batch=setting.local_batch)
    return Candidate(setting, steps, overhead_s + (measure.seconds or 0.0), emulated)


def _job_rows(study: Study, rows: pd.DataFrame, run_ids: Collection[str]) -> pd.DataFrame:
    origin = origin_of(study.launch.kind)
    rows = rows[rows["workload"] == study.workloads[0].name]
    rows = rows[rows["launcher"].map(origin_of) == origin]
    own = rows[rows["run_id"].isin(run_ids)]
    if own.empty:
        return own  # which of the other runs are comparable is not known yet
    for name in _JOB:
        value = own[name].mode(dropna=False)[0]
        rows = rows[rows[name].isna() if pd.isna(value) else rows[name] == value]
    return rows


def _seconds(own: pd.DataFrame, epochs: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return the time of each run that ended, and the training in it (0 if it is not done)."""
    windows = epochs[epochs["run_id"].isin(own.index)]
    sums = windows.groupby(["run_id", "phase", "host"], dropna=False)["duration_s"].sum()
    phases = sums.groupby(level=["run_id", "phase"]).max().unstack()
    phases = phases.reindex(own.index[own["status"].isin(["done", "failed", OUT_OF_MEMORY])])
    trained = phases.reindex(columns=[*TRAINING]).max(axis=1).fillna(0.0)
    total = (own["finished_at"] - own["started_at"]).dt.total_seconds().fillna(0.0)
    # The clock of a simulated run is not that of the simulation.
    evaluated = phases.reindex(columns=["evaluate"])["evaluate"].fillna(0.0)
    total = total.where(own["launcher"] != "simulated", trained + evaluated)
    return {run_id: (float(total[run_id]), float(trained[run_id])) for run_id in phases.index}


def _answered(
    question: Question,
    study: Study,
    rows: pd.DataFrame,
    epochs: pd.DataFrame,
    candidates: Collection[Candidate],
    per_epoch: float,
    *,
    known: bool,
) -> tuple[Question, frozenset[float | None], tuple[Caution, ...]]:
    if question.target is not None:
        possible = {item.setting.global_batch for item in candidates
                    if item.informs is None and question.allows(item.setting)}  # fmt: skip
        reached, tried = _epochs_to_target(rows, epochs, question.target)
        samples = {batch: count * per_epoch for batch, count in reached.items()}
        # An impossible batch: an empty mapping would allow every batch.
        question = replace(question, samples_by_batch=samples or {0.0: 1.0})
        return question, frozenset(possible - tried), ()
    length = question.epochs or study.sweeps[0].epochs or study.measure.epochs
    by_batch = {batch: count * per_epoch for batch, count in question.epochs_by_batch.items()}
    question = replace(
        question,
        samples=question.samples or (length * per_epoch if length else None),
        samples_by_batch=by_batch,
    )
    if question.max_global_batch is not None or by_batch:
        return question, frozenset(), ()
    # Of runs of several lengths, the longest count.
    qualities = quality_by_batch(rows) if len(rows) else ()
    longest = max(
        (item for item in qualities if item.known_to is not None),
        key=lambda item: item.group["epochs_trained"] or 0,
        default=None,
    )
    bound = None if longest is None else longest.known_to
    warnings = (UNKNOWN_QUALITY,) if bound is None and known else ()
    return replace(question, max_global_batch=bound), frozenset(), warnings


def _epochs_to_target(
    rows: pd.DataFrame, epochs: pd.DataFrame, target: float
) -> tuple[dict[float, float], set[float]]:
    if rows.empty:
        return {}, set()
    tried = set(rows["global_batch"].dropna())
    try:
        batches = epochs_by_batch(rows, epochs, target)
    except Refused:
        return {}, tried
    reached = batches[batches["epochs"].notna()]
    return dict(zip(reached["global_batch"], reached["epochs"], strict=True)), tried
