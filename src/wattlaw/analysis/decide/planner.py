"""The planner of a study with ``decide``: the runs to make next, and the decision so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from wattlaw.analysis.decide.decision import Decision, decide_of, undecided
from wattlaw.analysis.decide.evidence import Candidate, Evidence, is_long_enough, may_fit_memory
from wattlaw.analysis.decide.next_runs import (
    BUDGET,
    CERTAIN,
    NOT_MET,
    NOTHING_LEFT,
    Belief,
    Plan,
    Proposal,
    plan,
)
from wattlaw.analysis.decide.surprises import fit_with_repeats
from wattlaw.common.formatting import number, percent
from wattlaw.study.model import Study
from wattlaw.study.plan import PlannedRun

_TARGET = "no run reached the target"
_EXCLUDED = "more than half of the settings cannot run"
#: A run is hopeless if its setting is within the tolerance in at most this share of draws, even if
#: its time is shorter than measured by this number of standard deviations of a run.
_HOPELESS, _LOW_END = 0.01, 3.0


@dataclass
class Planner:
    """Chooses the runs of a study by what is known."""

    study: Study
    #: Expected GPU-hours of the runs that were chosen, by run id.
    _expected: dict[str, float] = field(default_factory=dict)

    def next_runs(
        self,
        evidence: Evidence,
        pending: Sequence[PlannedRun],
        active: Sequence[PlannedRun],
        others: Sequence[PlannedRun],
        count: int,
    ) -> tuple[Decision, list[tuple[PlannedRun, Proposal]]]:
        """Return the decision, and at most ``count`` of the pending runs, the best first.

        Of the pending runs, ``others`` are executed by other campaigns. The budget includes them
        and the active ones. Where only they can change the decision, it has not stopped.
        """
        hours = self._gpu_hours(evidence, evidence.of(others))
        self._expected.update(zip((run.run_id for run in others), hours, strict=False))
        free = [run for run in pending if run not in others]
        current, chosen = self._plan(evidence, free, [*active, *others], count)
        # Runs of others may be what a decision needs.
        waits = others and current.stopped_because in (None, NOTHING_LEFT)
        reason = None
        if not (chosen or active or waits):
            reason = current.stopped_because or NOTHING_LEFT
        grid_hours, excluded = None, evidence.excluded
        if evidence.job is not None:
            left = [
                item
                for run_id, item in evidence.candidates.items()
                if run_id not in evidence.hours
                and evidence.question.allows(item.decided)
                and item.setting not in excluded
            ]
            grid_hours = sum(evidence.hours.values()) + sum(self._gpu_hours(evidence, left))
        ended, decide = replace(current, stopped_because=reason), decide_of(self.study)
        decision = undecided(self.study).with_plan(ended, evidence, grid_hours, decide)
        return decision, chosen

    def _plan(
        self,
        evidence: Evidence,
        pending: Sequence[PlannedRun],
        active: Sequence[PlannedRun],
        count: int,
    ) -> tuple[Plan, list[tuple[PlannedRun, Proposal]]]:
        decide, candidates, job = decide_of(self.study), evidence.candidates, evidence.job
        question = evidence.question
        excluded = evidence.infeasible.union(item.setting for item in evidence.of(active))
        first: dict[Candidate, PlannedRun] = {}
        able = {run.run_id for run in active} | evidence.done
        for run in pending:
            item = candidates[run.run_id]
            is_possible = run.run_id not in evidence.done and item.setting not in excluded
            if is_possible and may_fit_memory(item.setting, evidence.out_of_memory):
                first.setdefault(item, run)
                able.add(run.run_id)
        spent = sum(evidence.hours.values())
        spent += sum(self._expected.get(run.run_id, 0.0) for run in active)
        hours_left = None if decide.budget.gpu_hours is None else decide.budget.gpu_hours - spent
        if decide.budget.runs is not None:
            count = min(count, decide.budget.runs - len(evidence.hours) - len(active))
        # Runs of other studies inform the model, and those that emulate stand for larger jobs.
        settings = [item.decided for name, item in candidates.items() if name in able]
        current = plan(
            question,
            list(first),
            [] if job is None else job.observations,
            host=None if job is None else job.host,
            beside=evidence.beside_training,
            settings=settings,
            memory=evidence.memory,
            # Workers without GPUs share caches and memory, which the model of a step does not have.
            is_modelled=job is None or job.worker == "GPU",
            hours_left=hours_left,
            at_once=max(count, 1),
            seed=decide.seed,
        )
        # Where the memory that layouts need is known, it is a reason against them, not a failure.
        full = evidence.out_of_memory if evidence.memory is not None else ()
        asked = {
            item.decided
            for item in candidates.values()
            if question.allows(item.decided) and may_fit_memory(item.setting, full)
        }
        if current.stopped_because in (CERTAIN, NOT_MET) and (
            2 * len(asked.intersection(settings)) < len(asked)
        ):
            current = replace(current, stopped_because=_EXCLUDED)
        has_target = question.target is not None
        if has_target and current.setting is None and job is not None:
            current = replace(current, stopped_because=None if evidence.untried else _TARGET)
        if count < 1:
            reason = current.stopped_because or (None if active else BUDGET)
            return replace(current, stopped_because=reason), []
        wanted = list(current.proposals)
        others: list[Candidate] = []
        if evidence.untried:
            others = self._for_target(evidence, list(first), active)[:count]
        elif not wanted and current.stopped_because != BUDGET:
            is_left = current.setting in evidence.to_retry
            others = [item for item in first if is_left and item.setting == current.setting][:1]
        if others:
            known = {item.candidate: item for item in wanted}
            now = current.expected_regret
            wanted = [known.get(item, Proposal(item, regret_now=now)) for item in others]
        chosen = self._affordable(evidence, wanted, first, hours_left)
        if wanted and not chosen:
            current = replace(current, stopped_because=BUDGET)
        return current, chosen

    def _for_target(
        self, evidence: Evidence, possible: Sequence[Candidate], active: Sequence[PlannedRun]
    ) -> list[Candidate]:
        busy = {item.setting.global_batch for item in evidence.of(active)}
        hours = self._gpu_hours(evidence, possible)
        hours = hours or [float(item.setting.gpus) for item in possible]
        cheapest: dict[float | None, Candidate] = {}
        for _, item in sorted(zip(hours, possible, strict=True), key=lambda pair: pair[0]):
            batch = item.setting.global_batch
            if item.informs is None and batch in evidence.untried - busy:
                cheapest.setdefault(batch, item)
        return list(cheapest.values())

    def _affordable(
        self,
        evidence: Evidence,
        wanted: Sequence[Proposal],
        runs: Mapping[Candidate, PlannedRun],
        hours_left: float | None,
    ) -> list[tuple[PlannedRun, Proposal]]:
        unknown = [item.candidate for item in wanted if item.gpu_hours is None]
        hours = dict(zip(unknown, self._gpu_hours(evidence, unknown), strict=False))
        chosen, used = [], 0.0
        for item in wanted:
            run, cost = runs[item.candidate], item.gpu_hours or hours.get(item.candidate, 0.0)
            if hours_left is None or used + cost <= hours_left:
                used += cost
                chosen.append((run, replace(item, gpu_hours=cost or None)))
                self._expected[run.run_id] = cost
        return chosen

    def _gpu_hours(self, evidence: Evidence, candidates: Sequence[Candidate]) -> list[float]:
        if evidence.job is None or not candidates:
            return []
        distinct = list(dict.fromkeys(item.setting for item in candidates))
        posterior = fit_with_repeats(evidence.job.observations, decide_of(self.study).seed)
        times = np.median(posterior.steps(distinct).step_s, axis=0)
        by_setting = dict(zip(distinct, times.tolist(), strict=True))
        return [item.gpu_hours(by_setting[item.setting]) for item in candidates]

    def stop_reason(
        self, evidence: Evidence, run_id: str, step_s: float, error: float | None
    ) -> str | None:
        """Return why an active run is not needed to its end, or None.

        It is long enough if more steps would hardly change its mean step time ``step_s``, whose
        standard error is the share ``error``. Its setting is hopeless if it would be within the
        tolerance of the best in at most 1 % of the draws of what is known, even if a run were
        faster by three standard deviations.
        """
        job, tolerance = evidence.job, evidence.question.tolerance
        if evidence.question.target is not None:
            return None
        is_precise = error is not None and is_long_enough(error, tolerance)
        if is_precise and self.study.measure.is_by_steps:
            return (
                f"the standard error of its step time is {percent(error, 2)}, and a tolerance of "
                f"{percent(tolerance)} needs no more"
            )
        candidate, excluded = evidence.candidates[run_id], evidence.excluded
        decided = [candidate.setting, *(item.decided for item in evidence.candidates.values())]
        choices = [
            item
            for item in dict.fromkeys(decided)
            if evidence.question.allows(item) and item not in excluded
        ]
        if job is None or candidate.informs or candidate.setting not in choices:
            return None
        posterior = fit_with_repeats(job.observations, decide_of(self.study).seed)
        belief = Belief.of(posterior, choices, job.host, evidence.beside_training)
        own = choices.index(candidate.setting)
        belief.times[:, own] = step_s * np.exp(-_LOW_END * belief.time_noise[own])
        regrets = belief.regrets(evidence.question, choices)[:, own]
        if (regrets <= tolerance).mean() > _HOPELESS:
            return None
        return (
            f"with {number(step_s)} s per step, the setting is within {percent(tolerance)} "
            f"of the best with a probability of at most {percent(_HOPELESS)}"
        )
