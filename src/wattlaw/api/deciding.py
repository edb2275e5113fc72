"""Decisions of a store: what its runs show goes to the planner, and the decision back to it."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from wattlaw.analysis.decide.decision import Decision, decide_of, with_next_step
from wattlaw.analysis.decide.evidence import Evidence, read_evidence
from wattlaw.analysis.decide.next_runs import Proposal
from wattlaw.analysis.decide.planner import Planner
from wattlaw.analysis.metrics.result import Caution
from wattlaw.analysis.metrics.time_errors import step_time_so_far
from wattlaw.api.questions import question_of
from wattlaw.api.store_tables import stored_decision
from wattlaw.common.errors import BadInput, NotPermitted
from wattlaw.common.text import quote
from wattlaw.report.topics.decision_course import choice_text
from wattlaw.running.campaign import Choice
from wattlaw.running.earlier_runs import earlier_runs, mark_earlier
from wattlaw.store.decision_file import decision_lock, set_aside_decision, write_decision
from wattlaw.store.run_folder import RunLock
from wattlaw.store.store import Store, read_stores
from wattlaw.study.model import Study
from wattlaw.study.plan import PlannedRun
from wattlaw.study.question import Question
from wattlaw.workloads import catalogue


def question_of_study(study: Study) -> Question:
    """Return the question of a study, without what its runs have to show.

    Raises ``BadInput`` if a price or region is unknown, or the samples of an epoch are needed and
    unknown.
    """
    decide = decide_of(study)
    is_in_epochs = decide.total_samples is None
    needs_samples = bool(decide.lengths) and study.measure.is_by_steps == is_in_epochs
    if needs_samples and _epoch_samples(study) is None:
        raise BadInput(
            "decide: the samples of an epoch are not known; give total_samples instead, which "
            "changes no run (with dataset_samples of the workload, all runs start anew)"
        )
    try:
        return question_of(decide.asked, price_name="price_per_kwh")
    except BadInput as error:
        raise BadInput(f"decide.{error}") from None


def evidence_of(
    study: Study, runs: Sequence[PlannedRun], store: Path, pending: Collection[str] = ()
) -> Evidence:
    """Return the state of a decision by the results in a store, which may not exist yet."""
    results = Store(store)
    stored, epochs = read_stores([results])
    stored = mark_earlier(stored, earlier_runs(results, study.name, (run.spec for run in runs)))
    return read_evidence(
        question_of_study(study), study, runs, stored, epochs,
        epoch_samples=_epoch_samples(study), pending=pending,
    )  # fmt: skip


def _epoch_samples(study: Study) -> float | None:
    workload, share = study.workloads[0], study.sweeps[0].dataset_fraction[0]
    work = catalogue.work(workload)
    samples = work.samples if work is not None else workload.dataset_samples
    return None if samples is None else samples * float(share)


@dataclass
class StoreDecider:
    """Chooses the runs of a study with ``decide``; what it knows is in the store."""

    _study: Study
    _runs: Sequence[PlannedRun]
    _store: Path
    _at_once: int = 1
    study_file: Path | None = None
    #: Damaged files of earlier decisions.
    _damage: list[Caution] = field(default_factory=list)
    #: What the last choice rested on.
    _evidence: Evidence | None = None
    #: Step times, with their errors, that were no reason to stop an active run.
    _kept: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    #: The warnings of the last decision.
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._planner = Planner(self._study)

    def check_store(self) -> None:
        """Raise ``BadInput`` if the store has the decision of another study.

        This one would replace it, and with it the question that ``advise`` and the report answer.
        """
        previous = None
        with suppress(BadInput):  # a damaged one is set aside by the first choice
            previous = stored_decision(self._store)
        if previous is not None and previous.study != self._study.name:
            of, name = quote(previous.study), quote(self._study.name)
            text = f"{self._store}: has the decision of the study {of}"
            raise BadInput(f"{text}; run {name} with another --store")

    def choose(self, pending: Sequence[PlannedRun], active: Sequence[PlannedRun]) -> Choice:
        """Return the runs to start beside the active ones, and write ``decision.json``.

        Other campaigns on the store wait meanwhile, so that the file never goes back to fewer runs.
        """
        with decision_lock(self._store):
            try:
                previous = stored_decision(self._store)
            except BadInput as error:
                kept, previous = set_aside_decision(self._store), None
                self._damage.append(Caution("decision-damaged", f"{error}. It is now {kept}."))
            decision, proposed, others = self._next(pending, active, self._at_once - len(active))
            decision = replace(decision, warnings=(*self._damage, *decision.warnings))
            decision = decision.after(previous)
            write_decision(self._store, decision.to_dict())
        runs = [run for run, _ in proposed]
        if not (runs or active or decision.stopped_because):
            runs = others  # the campaign waits for them
        self.warnings = tuple(map(str, decision.warnings))
        text = choice_text(decision, [run.setting for run in runs])
        return Choice(runs, text, decision.stopped_because)

    def next_measurements(
        self, pending: Sequence[PlannedRun], count: int
    ) -> tuple[Decision, list[Proposal]]:
        """Return the state of the decision, and the most useful runs beside those that run now."""
        decision, proposed, _ = self._next(pending, [], count)
        return decision, [item for _, item in proposed]

    def stop_reason(self, run_id: str) -> str | None:
        """Return why an active run is not needed to its end, or None."""
        measured = None
        # A job may remove its live files at any time.
        with suppress(BadInput, NotPermitted, OSError):
            folder = Store(self._store).folder(run_id)
            if (record := folder.read()) is not None and record.attempts:
                windows = folder.windows(record.attempts).to_pylist()
                measured = step_time_so_far(windows, record.spec.nodes)
        if self._evidence is None or measured is None or measured == self._kept.get(run_id):
            return None
        self._kept[run_id] = measured
        return self._planner.stop_reason(self._evidence, run_id, *measured)

    def _next(
        self, pending: Sequence[PlannedRun], active: Sequence[PlannedRun], count: int
    ) -> tuple[Decision, list[tuple[PlannedRun, Proposal]], list[PlannedRun]]:
        """Return the decision, the next runs, and the pending ones that other campaigns execute.

        A run that ends while results are read would be missing from both, so that they are read
        again.
        """
        store, ids = Store(self._store), {run.run_id for run in pending}
        locked: set[str] | None = None
        while True:
            before = locked
            locked = {name for name in ids if RunLock(store.folder(name)).is_locked()}
            if before is not None and before <= locked:
                break
            evidence = evidence_of(self._study, self._runs, self._store, ids)
        self._evidence = evidence
        others = [run for run in pending if run.run_id in locked]
        decision, chosen = self._planner.next_runs(evidence, pending, active, others, count)
        file = self.study_file
        if file is not None and file.resolve().parent == (self._store / "studies").resolve():
            file = store.study_file(self._study.name)  # it is the store's copy
        return with_next_step(decision, self._store, self._study, file), chosen, others
