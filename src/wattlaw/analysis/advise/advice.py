"""Advice: the setting to run, what it saves, how sure that is, and what it rests on."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.advice_cautions import BATCH_UNKNOWN, WORK_UNKNOWN, of_choice, of_data
from wattlaw.analysis.advise.certainty import as_decided, certainty, draw, savings
from wattlaw.analysis.advise.choice import BY_SPEED, Choice, Savings, choose, pareto
from wattlaw.analysis.advise.option import Option
from wattlaw.analysis.advise.possible_options import (
    LOWER_BATCH,
    TOO_LARGE_BATCH,
    UNKNOWN_BATCH,
    Options,
    read_options,
)
from wattlaw.analysis.advise.whole_job import needed_epochs
from wattlaw.analysis.decide.decision import STUDY_FILE, Decision
from wattlaw.analysis.metrics.comparable_runs import ComparableRuns, comparable_runs, unanswered
from wattlaw.analysis.metrics.result import Caution, Result
from wattlaw.study.command import command_of, epochs_argument, setting_values, substitute
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw.study.question import Question
from wattlaw.study.sources import EARLIER, source_of

#: A setting that is best with a lower probability is a candidate, and not clearly best.
CLEAR = 0.5
#: Statuses of runs that have no results although they were started, or were to be.
_WITHOUT_RESULT = (OUT_OF_MEMORY, "failed", "interrupted", "skipped")
_NO_ENERGY = "no comparable energy"
_ELECTRICITY = Caution(
    "electricity-not-counted",
    "No energy is known: the cost is that of GPU-hours, electricity is not counted.",
)
#: Launchers whose runs start the command of a study.
_OF_STUDIES = ("local", "slurm")
_LIMIT_FLAGS = {
    "power_limit_w": "--power-limit",
    "clock_limit_mhz": "--clock-limit",
    "power_profile": "--power-profile",
}
_PYTHON = re.compile(r"python[0-9.]*")


@dataclass(frozen=True)
class RestsOn(Result):
    runs: Mapping[str, int]  # of the job by source; all of them show how much runs scatter
    settings: Mapping[str, int]  # that are compared, by source; predicted ones, too
    repeats: tuple[int, int]  # the fewest and the most runs of a setting
    energy_is: str | None  # what the energies count, such as ``gpu+cpu, counter``
    energy_verdicts: Mapping[str, int]  # the number of runs by the verdict of their energy
    energy_reason: str | None  # the most frequent reason of a verdict that is not ok


@dataclass(frozen=True, kw_only=True)
class Advice(Choice):
    """The recommended setting, its savings, how sure it is, and what it rests on.

    ``recommended`` is None where no option meets the constraints. ``nearest`` is then the option
    that exceeds them least. ``probability`` is that of being within the tolerance of the best
    option that is compared; None if the uncertainty is unknown. If it is below 50 %, no setting is
    ``clearly_best``: the candidates are the recommended option and ``ties``, each with its
    probability. ``any_batch`` is the option to run if the quality at its larger global batch is
    acceptable, which is not known; its savings are relative to the recommended option, or else to
    the nearest one.
    """

    properties = ("tolerance", "simulated", "clearly_best")

    workload: str
    unit: str  # what times and energies are of: epoch | sample | step | run
    command: str | None  # the line that trains at ``recommended``, of a study's command
    baseline: Option | None
    rests_on: RestsOn
    pareto: tuple[Option, ...]
    any_batch: Option | None
    any_batch_savings: Savings | None
    batches_left_out: tuple[int, ...]  # global batches of lower or unknown quality
    left_out: Mapping[str, int]  # runs of the workload that are not compared, by the reason
    faster_left_out: tuple[Option, ...]  # than those compared; none for a named baseline
    worker: str = field(repr=False)  # what a "gpu" is called
    baseline_is: str = field(repr=False)  # named | in use, by the study | fastest
    any_batch_meets: str = field(repr=False)  # ``meets the deadline of 2 d``; empty without bounds
    decision: Decision | None = None  # of the study whose question this answers
    store: str = field(default="STORE", repr=False)  # of the runs, as a word of a command
    study_file: str = field(default=STUDY_FILE, repr=False)  # likewise

    @property
    def tolerance(self) -> float:
        return self.question.tolerance

    @property
    def simulated(self) -> bool:
        return set(self.rests_on.runs) == {"simulated"}

    @property
    def clearly_best(self) -> bool:
        codes = {warning.code for warning in self.warnings}
        if WORK_UNKNOWN in codes or (self.unit == "step" and BATCH_UNKNOWN in codes):
            return False
        if self.recommended is None or self.probability is not None:
            return (self.probability or 0.0) >= CLEAR
        return True

    def to_frame(self) -> pd.DataFrame:
        """Return the Pareto front of time and energy: a row per option.

        ``recommended`` marks the recommended option. The 95 % interval of a quantity is in
        ``<quantity>_low`` and ``<quantity>_high``.
        """
        best, options = self.recommended, list(self.pareto)
        if best is not None and best not in options:
            options.append(best)
        rows: list[dict[str, Any]] = []
        for option in options:
            row: dict[str, Any] = {}
            for name, value in option.to_dict().items():
                if name.endswith("_ci"):
                    row[f"{name[:-3]}_low"], row[f"{name[:-3]}_high"] = value or (None, None)
                else:
                    row[name] = value
            rows.append(row | {"recommended": option == best})
        return pd.DataFrame(rows)


def advise(
    table: pd.DataFrame,
    epochs: pd.DataFrame,
    workload: str,
    question: Question | None = None,
    *,
    stored: pd.DataFrame | None = None,
    baseline: Mapping[str, Any] | None = None,
    any_batch: bool = False,
    far: bool = False,
    decision: Decision | None = None,
    store: str = "STORE",
    study_file: str = STUDY_FILE,
) -> Advice:
    """Return the recommended setting for a workload, as ``Results.advise`` explains.

    ``table`` is of ``metrics.run_metrics``, and ``epochs`` has the windows of the same runs, for a
    target; ``stored`` has all runs, also those without a result. ``comparable_runs`` selects runs
    of one of the workload's jobs. Settings that did not run are predicted, and recommended only
    where no other meets the constraints. Bounds of options are 95 % intervals of the mean on other
    days and nodes (``metrics.variation``); those of predicted ones and of whole jobs 95 % intervals
    of a run. ``decision`` is that of a study which asks ``question``; ``store`` and
    ``study_file`` name the folder of the runs and the study in commands.
    """
    job, question = comparable_runs(table, workload), question or Question()
    amounts, cautions = needed_epochs(job, epochs, question)
    if job.energy_is is None and question.is_priced_twice:
        question, cautions = question.without_electricity(), (_ELECTRICITY, *cautions)
    options = read_options(
        table, job, amounts, question, baseline, any_batch=any_batch, far=far,
        decided=decision.setting if decision else None, stored=stored,
    )  # fmt: skip
    choice, larger = choose(options, question, job.worker)
    is_late = choice.recommended is None and question.deadline_s is not None
    if is_late and options.sound and question.max_gpus is None:
        options = options.predict(outside=True)
        choice, larger = choose(options, question, job.worker)

    base = options.named or min(choice.compared, key=BY_SPEED)  # what savings refer to
    choice = certainty(choice, base, options.ran, job.rows)
    if decision is not None:
        choice = as_decided(decision, choice, base, options.ran, job.rows)
    any_batch_savings = None
    if larger is not None and larger.recommended is not None:
        others = larger.recommended, choice.recommended or choice.nearest or base
        any_batch_savings = savings(*others, draw(others, options.ran))

    rows, repeats = job.rows, [item.repeats for item in options.ran]
    reasons = epochs.loc[epochs["run_id"].isin(rows["run_id"]), "energy_reason"].dropna()
    verdicts = rows["energy_verdict"].value_counts()
    rests_on = RestsOn(
        runs=dict(Counter(rows["launcher"].map(source_of))),
        settings=dict(Counter(item.source for item in choice.compared)),
        repeats=(min(repeats), max(repeats)),
        energy_is=job.energy_is,
        energy_verdicts={str(verdict): int(count) for verdict, count in verdicts.items()},
        energy_reason=None if reasons.empty else str(reasons.mode()[0]),
    )
    cautions = (
        *of_choice(choice, options, job), *unanswered(job.warnings, question.samples), *cautions,
        *of_data(options, job, rests_on.energy_reason),
    )  # fmt: skip
    command = None
    if choice.recommended is not None and stored is not None:
        command = run_command(choice.recommended, stored[stored["run_id"].isin(rows["run_id"])])
    known = vars(choice) | {"warnings": tuple(dict.fromkeys(cautions))}
    first = None if baseline else min(choice.compared, key=BY_SPEED)
    known |= _left_out(table, stored, job, options, choice, first)
    return Advice(
        **known,
        workload=workload,
        unit=job.unit,
        command=command,
        baseline=base,
        rests_on=rests_on,
        pareto=pareto(options.offered),
        any_batch=larger.recommended if larger else None,
        any_batch_savings=any_batch_savings,
        worker=job.worker,
        baseline_is="fastest" if options.named is None else "named" if baseline else "in use",
        any_batch_meets=larger.meets if larger else "",
        decision=decision,
        store=store,
        study_file=study_file,
    )


def _left_out(
    table: pd.DataFrame, stored: pd.DataFrame | None, job: ComparableRuns, options: Options,
    choice: Choice, base: Option | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the runs and batches that are not compared, and the faster settings among them."""
    counts: Counter[str] = Counter()
    if stored is not None:
        own = stored[stored["workload"] == job.rows["workload"].iloc[0]]
        counts.update(own.loc[own["status"] == EARLIER, "reason"])
        counts.update({name: int((own["status"] == name).sum()) for name in _WITHOUT_RESULT})
        untimed = (own["status"] == "done") & ~own["run_id"].isin(table["run_id"])
        counts["done without a measured window"] = int(untimed.sum())
        waits = (own["status"] == "planned") & own["reason"].isna()
        counts["not run yet (wattlaw run continues their study)"] = int(waits.sum())
    counts.update(job.left_out)
    counts["without a time or the epochs to train"] = len(job.rows) - sum(
        item.repeats for item in options.ran
    )
    for item in options.ran if options.sound else ():
        if item.left_out in (UNKNOWN_BATCH, LOWER_BATCH, TOO_LARGE_BATCH):
            counts[f"with a {item.left_out}"] += item.repeats
        elif not item.left_out and item not in choice.compared:
            counts[f"with {_NO_ENERGY}"] += item.repeats
    faster: dict[str, Option] = {}  # the fastest setting of each reason
    for item in sorted(options.ran, key=lambda item: item.job_time_s.mean):
        is_faster = base is not None and item.job_time_s.mean < base.job_time_s.mean
        if is_faster and item not in choice.compared:
            reason = item.left_out or _NO_ENERGY
            faster.setdefault(reason, replace(item, left_out=reason))
    batches = {item.global_batch or 0 for item in options.allowed if item.left_out}
    return {
        "batches_left_out": tuple(sorted(batches)),
        "left_out": {reason: count for reason, count in counts.items() if count > 0},
        "faster_left_out": tuple(faster.values()),
    }


def run_command(option: Option, runs: pd.DataFrame) -> str | None:
    """Return the line that trains at an option; None if its job is no command of a study, or the
    command needs a value that only a measurement has.

    ``runs`` are the stored runs of the job. A line for several nodes is to be started on each of
    them, with the name of the first one in ``HOST``.
    """
    job = next(iter(runs["options"].dropna()), "{}")
    command = command_of(job)
    if not command or option.launcher not in _OF_STUDIES:
        return None
    values = setting_values(option.setting) | {"python": "python", "seed": 0, "repeat": 0}
    known = {
        key: value for key, value in values.items() if value is not None or key in _LIMIT_FLAGS
    }
    epochs = 0.0 if option.epochs is None else option.epochs.mean
    count = int(epochs) if epochs.is_integer() else None
    if count:
        known["epochs"] = count
    try:
        words = [substitute(word, known) for word in command]
    except ValueError:
        return None
    if count and (said := epochs_argument(words)) is not None:
        words[said.index] = f"{said.prefix}{count}"
    has_group = bool(runs["backend"].notna().any())
    launched = _launched(words, option, json.loads(job).get("launch_with", "auto"), has_group)
    if launched is None or not all(map(str.isprintable, launched)):
        return None
    limits = [
        f"{flag}={value:g}" if isinstance(value, float) else f"{flag}={value}"
        for name, flag in _LIMIT_FLAGS.items()
        if (value := getattr(option.setting, name)) is not None
    ]
    line = shlex.join([*(["wattlaw", "measure", *limits, "--"] if limits else []), *launched])
    threads = option.threads_per_worker
    return line if threads is None else f"OMP_NUM_THREADS={threads} {line}"


def _launched(
    words: Sequence[str], option: Option, program: str, has_group: bool
) -> list[str] | None:
    """Return the command of all workers; torchrun sets what several, or a process group, need."""
    nodes, workers = option.setting.nodes or 1, option.gpus
    if program == "srun":
        return ["srun", "--nodes", str(nodes), "--ntasks", str(workers), *words]
    if program == "mpirun":
        return ["mpirun", "-n", str(workers), *words]
    if workers == 1 and program != "torchrun" and not has_group:
        return [*words]
    if program == "none" or len(set(option.setting.gpus_per_node or (workers,))) > 1:
        return None
    where = ["--standalone"]
    if nodes > 1:
        where = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500"]
    script = [*words[1:]] if _PYTHON.fullmatch(words[0]) else []
    if not script or not (script[0] == "-m" or script[0].endswith(".py")):
        script = ["--no-python", *words]
    return ["torchrun", *where, "--nproc-per-node", str(workers // nodes), *script]
