"""Decisions: which run to measure next, and when to stop."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wattlaw.analysis.decide import Candidate, Plan, Proposal, is_long_enough, may_fit_memory, plan
from wattlaw.analysis.decide.decision import LIKELY, NO_ENERGY, Decision, OtherSetting
from wattlaw.analysis.decide.plan import BUDGET, NOTHING_LEFT, Belief
from wattlaw.analysis.decide.repeats import fit_with_repeats
from wattlaw.analysis.metrics.result import Caution, Result
from wattlaw.api.decision_inputs import Inputs, decide_of, read_inputs
from wattlaw.api.store_tables import stored_decision
from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import number, percent
from wattlaw.report.topics.decision import decision_text
from wattlaw.run.choosing import Choice
from wattlaw.run.early_stop import StepTime
from wattlaw.store.decision import decision_lock, set_aside_decision, write_decision
from wattlaw.store.run_folder import RunLock
from wattlaw.store.store import Store
from wattlaw.study.model import Study
from wattlaw.study.plan import PlannedRun
from wattlaw.study.setting import Setting
from wattlaw.study.sources import origin_of

_TARGET = "no run reached the target"
#: A run is hopeless if its setting is within the tolerance in at most this share of draws, even if
#: its time is shorter than measured by this number of standard deviations of a run.
_HOPELESS, _LOW_END = 0.01, 3.0
#: Keys of ``decide`` that say how surely and how something is decided, not what.
_NOT_ASKED = {"tolerance", "confidence", "budget", "at_once", "seed"}


@dataclass(frozen=True)
class Measurement(Result):
    """A run that could be made next; the regrets are None before the first run."""

    setting: Setting
    emulated_gpus: int | None
    gpu_hours: float | None
    regret_now: float | None
    regret_after: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python: the keys of the setting and the others, in one dictionary."""
        own = super().to_dict()
        return {**own.pop("setting"), **own}


@dataclass
class Decider:
    """Chooses the runs of a study with ``decide``; what it knows is in the store."""

    _study: Study
    _runs: Sequence[PlannedRun]
    _store: Path
    _at_once: int = 1
    #: Expected GPU-hours of the runs that were proposed.
    _expected: dict[str, float] = field(default_factory=dict)
    #: Damaged files of earlier decisions.
    _damage: list[Caution] = field(default_factory=list)
    #: What the last choice rested on.
    _inputs: Inputs | None = None
    #: The warnings of the last decision.
    warnings: tuple[str, ...] = ()

    def choose(self, pending: Sequence[PlannedRun], active: Sequence[PlannedRun]) -> Choice:
        """Return the runs to start beside the active ones, and write ``decision.json``.

        Other campaigns on the store wait meanwhile, so that the file never goes back to fewer runs.
        """
        with decision_lock(self._store):
            previous = self._previous()
            inputs, others = self._read(pending)
            self._inputs = inputs
            free = [run for run in pending if run not in others]
            count = self._at_once - len(active)
            current, runs = self._plan(inputs, free, [*active, *others], count)
            if not (runs or active or current.stopped_because):
                runs = others  # the campaign waits for them
            reason = None if runs or active else current.stopped_because or NOTHING_LEFT
            decision = self._decision(inputs, current, reason).after(previous)
            write_decision(self._store, decision.to_dict())
        self.warnings = tuple(map(str, decision.warnings))
        return Choice(runs, decision_text(decision), reason)

    def _read(self, pending: Sequence[PlannedRun]) -> tuple[Inputs, list[PlannedRun]]:
        """Return what is known, and the pending runs that other campaigns execute.

        The budget includes both. A run that ends while results are read would be missing from
        both, so that they are read again.
        """
        others, ids = self._locked(pending), {run.run_id for run in pending}
        while True:
            before = others
            inputs = read_inputs(self._study, self._runs, self._store, ids)
            others = self._locked(pending)
            if before <= others:
                break
        runs = [run for run in pending if run.run_id in others]
        hours = self._gpu_hours(inputs, [inputs.candidates[run.run_id] for run in runs]) or ()
        self._expected.update(zip((run.run_id for run in runs), hours, strict=False))
        return inputs, runs

    def _locked(self, runs: Sequence[PlannedRun]) -> set[str]:
        store = Store(self._store)
        return {run.run_id for run in runs if RunLock(store.folder(run.run_id)).is_locked()}

    def stop_reason(self, run_id: str, measured: StepTime) -> str | None:
        """Return why an active run is not needed to its end, or None.

        It is long enough if more steps would hardly change its mean step time. Its setting is
        hopeless if it would be within the tolerance of the best in at most 1 % of the draws of what
        is known, even if a run were faster by three standard deviations.
        """
        inputs, decide = self._inputs, decide_of(self._study)
        if inputs is None or decide.target is not None:
            return None
        is_precise = measured.error is not None and is_long_enough(measured.error, decide.tolerance)
        if is_precise and self._study.measure.is_by_steps:
            return (
                f"the standard error of its step time is {percent(measured.error, 2)}, and a "
                f"tolerance of {percent(decide.tolerance)} needs no more"
            )
        candidate = inputs.candidates[run_id]
        choices = _choices(inputs, candidate.setting)
        if inputs.job is None or candidate.informs or candidate.setting not in choices:
            return None
        belief = Belief.of(
            fit_with_repeats(inputs.job.observations, decide.seed), choices, inputs.job.host
        )
        own = choices.index(candidate.setting)
        belief.times[:, own] = measured.step_s * np.exp(-_LOW_END * belief.time_noise[own])
        regrets = belief.regrets(inputs.question, choices)[:, own]
        if (regrets <= decide.tolerance).mean() > _HOPELESS:
            return None
        return (
            f"with {number(measured.step_s)} s per step, the setting is within "
            f"{percent(decide.tolerance)} of the best with a probability of at most "
            f"{percent(_HOPELESS)}"
        )

    def _previous(self) -> Decision | None:
        """Return the stored decision; a file that cannot be read gets another name."""
        try:
            return stored_decision(self._store)
        except BadInput as error:
            kept = set_aside_decision(self._store)
            self._damage.append(Caution("decision-damaged", f"{error}. It is now {kept}."))
            return None

    def next_measurements(
        self, pending: Sequence[PlannedRun], count: int
    ) -> tuple[Decision, list[Measurement]]:
        """Return the state of the decision, and the most useful runs beside those that run now."""
        inputs, others = self._read(pending)
        free = [run for run in pending if run not in others]
        current, runs = self._plan(inputs, free, others, count)
        proposals = {item.candidate: item for item in current.proposals}
        rows = []
        for run in runs:
            candidate, emulated = inputs.candidates[run.run_id], run.setting.emulated_gpus
            item = proposals.get(candidate, Proposal(candidate, None, None))
            hours = item.gpu_hours or self._expected[run.run_id] or None
            regrets = current.expected_regret, item.regret_after
            rows.append(Measurement(candidate.setting, emulated, hours, *regrets))
        reason = None if rows or others else current.stopped_because or NOTHING_LEFT
        return self._decision(inputs, current, reason), rows

    def _plan(
        self,
        inputs: Inputs,
        pending: Sequence[PlannedRun],
        active: Sequence[PlannedRun],
        count: int,
    ) -> tuple[Plan, list[PlannedRun]]:
        """Return the plan, and the pending runs that it proposes."""
        decide, candidates = decide_of(self._study), inputs.candidates
        busy = {candidates[run.run_id].setting for run in active}
        excluded = inputs.infeasible | busy
        possible = [
            run
            for run in pending
            if run.run_id not in inputs.done
            and (setting := candidates[run.run_id].setting) not in excluded
            and may_fit_memory(setting, inputs.out_of_memory)
        ]
        # Runs of other studies inform the model, and those that emulate stand for larger jobs.
        able = {run.run_id for run in (*possible, *active)} | inputs.done
        settings = [item.informs or item.setting
                    for name, item in candidates.items() if name in able]  # fmt: skip
        spent = sum(inputs.hours.values()) + sum(
            self._expected.get(run.run_id, 0.0) for run in active
        )
        hours_left = None if decide.budget.gpu_hours is None else decide.budget.gpu_hours - spent
        if decide.budget.runs is not None:
            count = min(count, decide.budget.runs - len(inputs.hours) - len(active))
        job, choices = inputs.job, list(dict.fromkeys(_of(inputs, possible)))
        current = plan(
            inputs.question, choices, [] if job is None else job.observations,
            host=None if job is None else job.host, settings=settings,
            unmodelled=[item.setting for item in choices if job and job.shares_cores(item.setting)],
            hours_left=hours_left, at_once=max(count, 1), seed=decide.seed,
        )  # fmt: skip
        if decide.target is not None and current.setting is None and inputs.job is not None:
            current = replace(current, stopped_because=None if inputs.untried else _TARGET)
        if count < 1:
            reason = current.stopped_because or (None if active else BUDGET)
            return replace(current, proposals=(), stopped_because=reason), []
        wanted = [item.candidate for item in current.proposals]
        if inputs.untried:
            wanted = self._for_target(inputs, possible, active)[:count] or wanted
        elif (
            not wanted and current.setting in inputs.to_retry and current.stopped_because != BUDGET
        ):
            wanted = [item for item in _of(inputs, possible) if item.setting == current.setting][:1]
        expected = {item.candidate: item.gpu_hours for item in current.proposals}
        runs = self._affordable(inputs, possible, wanted, expected, hours_left)
        return (replace(current, stopped_because=BUDGET) if wanted and not runs else current), runs

    def _for_target(
        self, inputs: Inputs, possible: Sequence[PlannedRun], active: Sequence[PlannedRun]
    ) -> list[Candidate]:
        """Return the cheapest run of each global batch whose epochs to the target are unknown."""
        busy = {inputs.candidates[run.run_id].setting.global_batch for run in active}
        items = list(dict.fromkeys(_of(inputs, possible)))
        hours = self._gpu_hours(inputs, items) or [float(item.setting.gpus) for item in items]
        cheapest: dict[float | None, Candidate] = {}
        for _, item in sorted(zip(hours, items, strict=True), key=lambda pair: pair[0]):
            batch = item.setting.global_batch
            if item.informs is None and batch in inputs.untried - busy:
                cheapest.setdefault(batch, item)
        return list(cheapest.values())

    def _affordable(
        self,
        inputs: Inputs,
        possible: Sequence[PlannedRun],
        wanted: Sequence[Candidate],
        expected: Mapping[Candidate, float | None],
        hours_left: float | None,
    ) -> list[PlannedRun]:
        """Return the first run of each candidate, as long as all of them fit the budget."""
        first: dict[Candidate, PlannedRun] = {}
        for run in possible:
            first.setdefault(inputs.candidates[run.run_id], run)
        others = [item for item in wanted if expected.get(item) is None]
        hours = dict(
            zip(others, self._gpu_hours(inputs, others) or [0.0] * len(others), strict=True)
        )
        runs, used = [], 0.0
        for item in wanted:
            cost = expected.get(item) or hours.get(item, 0.0)
            if hours_left is None or used + cost <= hours_left:
                used += cost
                runs.append(first[item])
                self._expected[first[item].run_id] = cost
        return runs

    def _gpu_hours(self, inputs: Inputs, candidates: Sequence[Candidate]) -> list[float] | None:
        """Return the predicted GPU-hours of candidates; None without a measured run."""
        if inputs.job is None or not candidates:
            return None if inputs.job is None else []
        distinct = list(dict.fromkeys(item.setting for item in candidates))
        posterior = fit_with_repeats(inputs.job.observations, decide_of(self._study).seed)
        times = np.median(posterior.steps(distinct).step_s, axis=0)
        by_setting = dict(zip(distinct, times.tolist(), strict=True))
        return [item.gpu_hours(by_setting[item.setting]) for item in candidates]

    def _decision(self, inputs: Inputs, current: Plan, reason: str | None) -> Decision:
        decide = decide_of(self._study)
        lacks_energy = (
            inputs.question.needs_energy
            and inputs.job is not None
            and not any(item.power_per_gpu_w for item in inputs.job.observations)
        )
        return replace(
            undecided(self._study),
            setting=current.setting,
            expected_regret=current.expected_regret,
            probability=current.probability,
            meets=None if lacks_energy and decide.energy_budget else current.meets,
            gpu_hours_spent=sum(inputs.hours.values()),
            gpu_hours_grid=self._grid_hours(inputs),
            runs=len(inputs.hours),
            stopped_because=reason,
            worker=inputs.worker,
            others=tuple(OtherSetting(*item) for item in current.others),
            warnings=(
                *self._damage,
                *((NO_ENERGY,) if lacks_energy else ()),
                *_missed(current),
                *_overspent(decide.budget.gpu_hours, sum(inputs.hours.values())),
                *inputs.warnings,
                *(inputs.job.warnings if inputs.job else ()),
            ),
        )

    def _grid_hours(self, inputs: Inputs) -> float | None:
        left = [
            item
            for run_id, item in inputs.candidates.items()
            if run_id not in inputs.hours
            and inputs.question.allows(item.informs or item.setting)
            and item.setting not in inputs.infeasible.union(inputs.out_of_memory)
        ]
        hours = self._gpu_hours(inputs, left)
        return None if hours is None else sum(inputs.hours.values()) + sum(hours)


def undecided(study: Study) -> Decision:
    """Return the state of the decision of a study before its first run."""
    decide = decide_of(study)
    plain = decide.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_ASKED)
    return Decision(
        study=study.name, workload=study.workloads[0].name, origin=origin_of(study.launch.kind),
        question={"minimize": decide.minimize, **plain},
        setting=None, expected_regret=None, probability=None, meets=None,
        tolerance=decide.tolerance, confidence=decide.confidence,
        gpu_hours_spent=0.0, gpu_hours_grid=None, runs=0, stopped_because=None,
    )  # fmt: skip


def _missed(current: Plan) -> Iterator[Caution]:
    if current.meets is not None and current.meets < LIKELY:
        yield Caution(
            "constraints-missed",
            "The leading setting meets the constraints with a probability of "
            f"{number(current.meets, 2)}: none is likelier to be right. Loosen them, or "
            "add settings to the sweeps.",
        )


def _overspent(budget: float | None, spent: float) -> Iterator[Caution]:
    if budget is not None and spent > budget:
        yield Caution(
            "budget-exceeded",
            f"The runs used {number(spent)} GPU-hours, more than decide.budget.gpu_hours of "
            f"{number(budget)}: the cost of the first runs is not known in advance, and that of "
            "the others is predicted.",
        )


def _of(inputs: Inputs, runs: Iterable[PlannedRun]) -> list[Candidate]:
    return [inputs.candidates[run.run_id] for run in runs]


def _choices(inputs: Inputs, setting: Setting) -> list[Setting]:
    """Return the settings that can be decided for; ``setting`` is one if it is allowed."""
    candidates = (item.informs or item.setting for item in inputs.candidates.values())
    excluded = inputs.infeasible.union(inputs.out_of_memory)
    return [
        item
        for item in dict.fromkeys([setting, *candidates])
        if inputs.question.allows(item) and item not in excluded
    ]
