"""Studies: load a study file, show its runs, and run those that a store does not have."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattlaw.api.arguments import path_of
from wattlaw.api.progress_lines import LineProgress
from wattlaw.common import progress as work
from wattlaw.common import registry
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.formatting import plural
from wattlaw.common.text import quote, short_repr
from wattlaw.report.tables import as_html
from wattlaw.running import planning
from wattlaw.running.campaign import CANCELLED, Campaign, Observer, Outcome
from wattlaw.running.earlier_runs import earlier_runs, earlier_text
from wattlaw.running.launcher import GROUP, Launcher
from wattlaw.running.notify import Notifications, command_words
from wattlaw.running.planning import GpuHours, gpu_hours
from wattlaw.running.run_status import store_status
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw.study.plan import standalone_text
from wattlaw.study.setting import RECORDED
from wattlaw.workloads import catalogue

if TYPE_CHECKING:
    import pandas as pd

    from wattlaw.analysis.decide.decision import Decision
    from wattlaw.analysis.decide.next_runs import Proposal
    from wattlaw.api.results import Results


#: Statuses of runs that have their result.
_MEASURED = ("done", OUT_OF_MEMORY)
#: Jobs of a decision that are in a queue at once.
_JOBS_AT_ONCE = 4


@dataclass(frozen=True)
class Study:
    """A study file that was checked, and its runs in the order in which they start.

    Parameters
    ----------
    path
        The study file.
    plan
        The study as a model, ``plan.study``, and ``plan.runs``.
    """

    path: Path
    plan: planning.Planned

    def __repr__(self) -> str:
        return f"Study({self.name!r}, runs={len(self)}, launcher={self.launcher!r})"

    @property
    def name(self) -> str:
        """The name of the study."""
        return self.plan.study.name

    @property
    def launcher(self) -> str:
        """How runs start: ``local``, ``slurm``, ``simulated`` or ``replay``."""
        return self.plan.study.launch.kind

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of runs, workloads, settings and repeats, by the noun in the singular."""
        specs = [run.spec for run in self.plan.runs]
        return {
            "run": len(self),
            "workload": len({spec.workload.model_dump_json() for spec in specs}),
            "setting": len({(spec.setting, spec.nodes) for spec in specs}),
            "repeat": self.plan.study.repeats,
        }

    def __len__(self) -> int:
        return len(self.plan.runs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python: the study as in its file, with all defaults."""
        plain: dict[str, Any] = self.plan.study.model_dump(mode="json")
        return plain

    def to_frame(self) -> "pd.DataFrame":
        """Return a row per run: run_id, workload, its setting, repeat."""
        import pandas as pd

        rows = []
        for run in self.plan.runs:
            spec = run.spec
            row = {name: getattr(spec.setting, name) for name in RECORDED}
            identity = {"run_id": run.run_id, "workload": spec.workload.name}
            rows.append({**identity, **row, "nodes": spec.nodes, "repeat": spec.repeat})
        return pd.DataFrame(rows)

    def preview(self, store: str | PathLike[str]) -> "Preview":
        """Compare the study with a store, without running anything.

        Parameters
        ----------
        store
            The folder of results. It does not have to exist.

        Raises
        ------
        wattlaw.common.errors.BadInput
            ``store`` is a file.
        """
        results, records, statuses = self._stored(store)
        left = [run for run in self.plan.runs if statuses[run.run_id] not in _MEASURED]
        before = planning.forecast(self.plan, left)
        runnable = [run for run in left if run.run_id not in before.skipped]
        if not before.is_of_machine:  # else they stay planned, for another machine
            statuses |= dict.fromkeys(before.skipped, "skipped")
            left = runnable
        known = [record for record in records.values() if record is not None]
        hours, job = gpu_hours(left, known), None
        if (queue := _launcher(self).queue) and runnable:
            job = queue.submission_command(self.plan.study.launch, runnable[0], results)
        warnings = (*before.missing, *before.warnings, *self.earlier_versions(store))
        return Preview(self, statuses, hours, job, before.skipped, warnings)

    def missing_files(self) -> list[str]:
        """Return a sentence for each program and script of a command that is not here.

        Raises
        ------
        wattlaw.common.errors.BadInput
            A script that Python is to run on this machine does not exist.

        Examples
        --------
        >>> wattlaw.load_study("study.yaml").missing_files()
        []
        """
        try:
            return catalogue.missing_files(self.plan.study)
        except BadInput as error:
            raise BadInput(f"{self.path}: {error}") from None

    def forecast(self, store: str | PathLike[str] | None = None) -> planning.Forecast:
        """Return why runs will be skipped, and what may be wrong; nothing is started.

        Parameters
        ----------
        store
            The folder of results; its done runs are left out.

        Raises
        ------
        wattlaw.common.errors.BadInput
            ``store`` is a file.
        """
        states = {} if store is None else self._stored(store)[2]
        left = [run for run in self.plan.runs if states.get(run.run_id) not in _MEASURED]
        return planning.forecast(self.plan, left)

    def earlier_versions(self, store: str | PathLike[str]) -> list[str]:
        """Return a sentence on the runs of a store that an earlier version of the study made.

        Parameters
        ----------
        store
            The folder of results. It does not have to exist.
        """
        results = Store(Path(store))
        if not (results.path / "runs").is_dir():
            return []
        specs = (run.spec for run in self.plan.runs)
        return earlier_text(results, earlier_runs(results, self.name, specs))

    def next_measurements(
        self, store: str | PathLike[str], count: int = 10
    ) -> "tuple[Decision, list[Proposal]]":
        """Return the state of the decision, and the runs that would help it most now.

        Parameters
        ----------
        store
            The folder of results. It does not have to exist.
        count
            The most runs to return.

        Raises
        ------
        wattlaw.common.errors.Refused
            The study has no ``decide``.
        wattlaw.common.errors.BadInput
            ``store`` is a file.
        """
        from wattlaw.analysis.decide.decision import decide_of
        from wattlaw.api.deciding import StoreDecider

        decide_of(self.plan.study)
        _, _, states = self._stored(store)
        ended = (*_MEASURED, "running", "damaged")
        pending = [run for run in self.plan.runs if states[run.run_id] not in ended]
        decider = StoreDecider(self.plan.study, self.plan.runs, Path(store), study_file=self.path)
        return decider.next_measurements(pending, count)

    def _stored(
        self, path: str | PathLike[str]
    ) -> tuple[Store, dict[str, RunRecord | None], dict[str, str]]:
        """Return a store, its records of these runs (None: damaged), and the status of each run."""
        store = Store(Path(path))
        states = {run.run_id: "planned" for run in self.plan.runs}
        records = store.records_by_id(set(states))
        for run_id, record in records.items():
            folder = store.folder(run_id)
            if record is None or folder.damage(record) is not None:
                states[run_id] = "damaged"
            else:
                states[run_id] = folder.state(record)
        return store, records, states

    def _repr_html_(self) -> str:
        line = f"Study {self.name}: {len(self)} runs, launcher {self.launcher}"
        return as_html(self.to_frame(), [line])


@dataclass(frozen=True)
class Preview:
    """What a study would run.

    Parameters
    ----------
    study
        The study.
    statuses
        The status of each run in the store, by run id.
    gpu_hours
        The GPU-hours of the runs that are not done, without those that no machine can execute.
    job
        The batch job of the first run that can be one, where runs are jobs of a queue.
    skipped
        Why runs will be skipped, by run id. Those that only this machine cannot execute have the
        status ``planned``.
    warnings
        Sentences on what may be wrong with the runs.
    """

    study: Study
    statuses: Mapping[str, str]
    gpu_hours: GpuHours
    job: str | None
    skipped: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    __repr__ = short_repr

    @property
    def counts(self) -> dict[str, int]:
        """The number of runs by status."""
        return planning.count_statuses(self.statuses.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python."""
        hours = asdict(self.gpu_hours)
        plain = {"counts": self.counts, "gpu_hours": hours, "job": self.job}
        return plain | {"skipped": dict(self.skipped), "warnings": [*self.warnings]}

    def to_frame(self) -> "pd.DataFrame":
        """Return the table of the study with the column ``status``."""
        frame = self.study.to_frame()
        return frame.assign(status=frame["run_id"].map(self.statuses))

    def _repr_html_(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        return as_html(self.to_frame(), [f"Study {self.study.name}: {counts}"])


@dataclass(frozen=True, kw_only=True)
class RunOutcome(Outcome):
    """How the runs of a study ended.

    Parameters
    ----------
    done, failed, skipped, left
        Numbers of runs of the study.
    out_of_memory
        The number of runs that needed more memory than there was: results, not failures.
    interrupted_by
        What stopped the campaign before its end, such as ``SIGINT``; None if nothing did.
    warnings
        Sentences about the decision, and about runs of the store that are done but do not show what
        the study compares.
    not_needed
        The number of planned runs that the decision of the study does without.
    stopped_because
        Why they are not needed; None in a study without ``decide``.
    all_fail
        Whether it stopped since the first commands failed alike.
    store
        The folder of results.
    has_jobs
        Whether jobs of the study continue in a queue.
    """

    store: Path
    has_jobs: bool = False
    warnings: tuple[str, ...] = ()

    __repr__ = short_repr

    @property
    def is_success(self) -> bool:
        """Whether no run is left and none failed, or a decision is certain without those runs."""
        if self.failed and self.stopped_because is not None:
            from wattlaw.analysis.decide.next_runs import CERTAIN

            return self.left == 0 and self.stopped_because == CERTAIN
        return self.left == 0 and self.failed == 0

    @property
    def results(self) -> "Results":
        """The results in the store."""
        from wattlaw.api.results import open as open_results

        return open_results(self.store)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain Python."""
        return asdict(self) | {"store": str(self.store)}

    def to_frame(self) -> "pd.DataFrame":
        """Return the fields as a table of one row."""
        import pandas as pd

        return pd.DataFrame([self.to_dict()])

    def _repr_html_(self) -> str:
        return as_html(self.to_frame())


def load_study(
    path: str | PathLike[str],
    *,
    launch: str | None = None,
    hardware: str | None = None,
    table: str | PathLike[str] | None = None,
) -> Study:
    """Read a study file, and check all that can be checked without running it.

    Parameters
    ----------
    path
        The study file.
    launch
        Replaces the launcher of the file: ``local``, ``slurm``, ``simulated`` or ``replay``.
    hardware
        Replaces ``launch.simulation.hardware``, for the launcher ``simulated``.
    table
        Replaces ``launch.table``, for the launcher ``replay``.

    Raises
    ------
    wattlaw.common.errors.BadInput
        The line names the file, the key, the value and what is allowed.

    Examples
    --------
    >>> study = wattlaw.load_study("study.yaml")
    >>> study.name, len(study), study.launcher
    ('example', 18, 'simulated')
    """
    path, table_path = Path(path), None if table is None else Path(table)
    plan = planning.plan_study(path, launch, hardware, table_path)
    if plan.study.decide is not None:
        from wattlaw.analysis.decide.evidence import check_bounds
        from wattlaw.api.deciding import question_of_study

        try:
            check_bounds(question_of_study(plan.study), plan.study, plan.runs)
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None
    return Study(path, plan)


def run(
    study: Study | str | PathLike[str],
    store: str | PathLike[str] = "wattlaw-store",
    *,
    progress: Observer | Callable[[str], object] | None = None,
    openmetrics: str | PathLike[str] | None = None,
    notify: str | None = None,
) -> RunOutcome:
    """Run what a study asks for and the store does not have yet.

    Call it from the main thread: while it works, SIGINT, SIGTERM and SIGHUP stop the campaign.
    A later call continues it.

    Parameters
    ----------
    study
        A study, or the path of a study file.
    store
        The folder of results. It is created if necessary.
    progress
        A function that takes a line of text, such as ``print``, or an object with the methods of
        ``wattlaw.running.campaign.Observer``. Without it, a notebook shows the last of the lines,
        and a program nothing.
    openmetrics
        A ``.prom`` file that always has the state of the study as OpenMetrics text.
    notify
        A command that is run for each failed run, for limits that could not be restored, and at the
        end of the study. It gets ``{event, store, run_id, reason, time}`` as JSON on its standard
        input.

    Raises
    ------
    wattlaw.common.errors.WattlawError
        The study file is wrong, the store cannot be written, or the launcher does not work here.

    Examples
    --------
    >>> outcome = wattlaw.run("study.yaml", "results")
    >>> outcome.done, outcome.failed
    (18, 0)
    """
    if not isinstance(study, Study):
        study = load_study(path_of("study", study))
    plan, path = study.plan, path_of("store", store)
    if not (progress is None or callable(progress) or isinstance(progress, Observer)):
        raise BadInput(f"progress: given {quote(progress)}; allowed: a function such as print")
    command = None if notify is None else command_words(notify)
    study.missing_files()  # a script that is not here is refused before a store is made
    results = Store(path)
    if missing := _launcher(study).examine(plan.study.launch).missing(plan.study):
        raise NotAvailable("; ".join(missing))
    launcher = _launcher(study).open(plan.study.launch, path)
    results.create()
    results.keep_study(plan.study.name, standalone_text(study.path, plan.study), study.path)
    decide = plan.study.decide
    if progress is None or callable(progress):
        write = progress or work.notebook_line() or (lambda _: None)
        progress = LineProgress(write, len(plan.runs), decides=decide is not None)
    observers = [progress]
    decider = metrics = notifications = None
    with closing(launcher), ExitStack() as stack, work.silent():
        if openmetrics is not None:
            from wattlaw.exporting.openmetrics import MetricsFile

            metrics = MetricsFile(Path(openmetrics), study.name, results, len(study))
            observers.append(stack.enter_context(metrics))
        if command is not None:
            notifications = stack.enter_context(Notifications(command, path))
            observers.append(notifications)
        if decide is not None:
            from wattlaw.api.deciding import StoreDecider

            at_once = decide.at_once or (1 if launcher.queue is None else _JOBS_AT_ONCE)
            decider = StoreDecider(plan.study, plan.runs, path, at_once, study.path)
            decider.check_store()
        commit = planning.git_commit(Path.cwd())
        outcome = Campaign(
            plan.study, plan.runs, results, launcher, observers, commit, decider
        ).run()
        if notifications is not None:
            notifications.over(outcome)
    warnings = [text for _, text in store_status(results, queued=({}, [])).warnings]
    for source in (decider, metrics, notifications):
        warnings += () if source is None else source.warnings
    has_jobs = launcher.queue is not None and outcome.interrupted_by not in (None, CANCELLED)
    ended = RunOutcome(**vars(outcome), store=path, has_jobs=has_jobs)
    if ended.failed and ended.is_success:
        failed = f"{plural(ended.failed, 'run')} failed; the decision is certain without them"
        warnings.append(f"{failed} (wattlaw status {path})")
    return replace(ended, warnings=tuple(warnings))


def _launcher(study: Study) -> type[Launcher]:
    launcher: type[Launcher] = registry.load(GROUP, study.launcher)
    return launcher
