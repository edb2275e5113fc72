"""The tables of one or several stores."""

import shlex
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from wattlaw.analysis.decide.decision import Decision, with_next_step
from wattlaw.analysis.metrics.comparable_runs import NAME_ONE
from wattlaw.analysis.metrics.metrics import SETTINGS, run_metrics
from wattlaw.analysis.metrics.setting_means import aggregate
from wattlaw.api.arguments import listed
from wattlaw.common.errors import BadInput, DamagedFileWarning, NothingToRecommend
from wattlaw.common.scopes import ENERGY_SCOPES, OUTERMOST
from wattlaw.common.text import join_names, quote
from wattlaw.report.tables import as_html
from wattlaw.running.earlier_runs import earlier_runs, mark_earlier
from wattlaw.store.decision_file import decision_path, read_decision
from wattlaw.store.store import Store, read_stores
from wattlaw.study.model import Study
from wattlaw.study.plan import expand, read_study
from wattlaw.study.sources import EARLIER, origins_label
from wattlaw.workloads import catalogue

#: The tables of ``table``.
FRAMES = ("runs", "epochs", "telemetry", "statistics", "metrics", "settings")
#: Columns that the table of settings always has; and those of other settings in which rows differ.
_SETTINGS = (
    "workload", "hardware", "nodes", "gpus", "global_batch", "local_batch", "precision",
    "power_limit_w", "clock_limit_mhz", "unit",
)  # fmt: skip
_MEANS = (
    "n", "time_s", "time_s_low", "time_s_high", "interval_from", "sessions_from", "nodes_from",
    "energy_j", "energy_j_low", "energy_j_high", "energy_is", "samples_per_s", "gpu_hours",
    "power_per_gpu_w", "sm_util_mean", "metric",
)  # fmt: skip


@dataclass(frozen=True)
class StoreTables:
    """The tables of one or several stores.

    Tables are read when they are first used, and kept. Open the stores again to see newer runs.
    """

    paths: tuple[Path, ...]
    strict: bool = False

    @property
    def damaged(self) -> dict[str, str]:
        """The runs that are left out for a missing or damaged file: the reasons by run id."""
        _ = self._tables
        return {key: reason for store in self._stores for key, reason in store.damaged.items()}

    @property
    def runs(self) -> pd.DataFrame:
        """A row per run of any status: its setting, where it ran, status and reason."""
        return self._tables[0]

    @property
    def epochs(self) -> pd.DataFrame:
        """A row per window (training or evaluation of an epoch) of each host of the done runs."""
        return self._tables[1]

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row per done run: time, energy, power and utilisation of training, and quality.

        ``unit`` says what ``time_s`` and ``energy_j`` are of: an epoch, a sample, a step or a run.
        """
        return run_metrics(*self._tables)

    def _metrics_in(self, energy_scope: str | None) -> pd.DataFrame:
        """Return ``metrics`` with energies of a scope; None is the outermost that was measured."""
        scope = checked_scope(energy_scope) or OUTERMOST
        return self.metrics if scope == OUTERMOST else run_metrics(*self._tables, scope)

    def _present_metrics(self, energy_scope: str | None = None) -> pd.DataFrame:
        """Return ``_metrics_in`` without the runs of earlier versions of studies."""
        frame, runs = self._metrics_in(energy_scope), self._present_tables[0]
        return frame[~frame["run_id"].isin(runs.loc[runs["status"] == EARLIER, "run_id"])]

    @property
    def settings(self) -> pd.DataFrame:
        """A row per setting: means of the repeats, of time and energy with 95 % intervals.

        Intervals are of the mean on other days and nodes. ``interval_from``, ``sessions_from`` and
        ``nodes_from`` say what shows how runs, days and nodes vary: repeats, or public data.
        Other settings have a column where rows differ in them. ``table("settings")`` has all
        columns: more quantities, and the standard deviation and interval of each.
        """
        frame = self._all_settings
        different = [name for name in SETTINGS if frame[name].nunique(dropna=False) > 1]
        shown = {*_SETTINGS, *different}
        columns = [name for name in SETTINGS if name in shown]
        return frame[[*columns, *_MEANS]]

    @cached_property
    def _all_settings(self) -> pd.DataFrame:
        return aggregate(self.metrics)

    @cached_property
    def statistics(self) -> pd.DataFrame:
        """A row per GPU and per run: utilisation, power, clock and temperature of all samples."""
        from wattlaw.store.statistics import statistics

        return pd.concat([statistics(store) for store in self._stores], ignore_index=True)

    @property
    def telemetry(self) -> pd.DataFrame:
        """A row per device and moment: the samples of all done runs, read at each use.

        Of many runs they need much memory: ``table("telemetry", run_id)`` reads those of some.
        """
        return self.table("telemetry")

    def table(self, name: str, run_id: str | Iterable[str] | None = None) -> pd.DataFrame:
        """Return a table with all of its columns.

        Parameters
        ----------
        name
            ``runs``, ``epochs``, ``telemetry``, ``statistics``, ``metrics`` or ``settings``.
        run_id
            A run, or several, whose rows are returned; by default all.

        Raises
        ------
        wattlaw.common.errors.BadInput
            There is no such table, it has no rows of single runs, or a run is not in it.

        Examples
        --------
        >>> results = wattlaw.open("results")
        >>> len(results.settings.columns) < len(results.table("settings").columns)
        True
        """
        if name not in FRAMES:
            raise BadInput(f"table: given {quote(name)}; allowed: {', '.join(FRAMES)}")
        ids = None if run_id is None else set(listed(run_id))
        if name == "telemetry":
            return self._samples(ids)
        frame: pd.DataFrame = self._all_settings if name == "settings" else getattr(self, name)
        if ids is None:
            return frame
        if name == "settings":
            raise BadInput('run_id: the table "settings" has means of runs; give no run_id')
        _refuse_missing(ids, frame["run_id"])
        return frame[frame["run_id"].isin(ids)]

    def _samples(self, ids: set[str] | None) -> pd.DataFrame:
        snapshots = [store.without_damaged() for store in self._stores]
        done = {run_id for snapshot in snapshots for run_id in snapshot.done()}
        wanted = done if ids is None else ids
        _refuse_missing(wanted, done)
        tables = [
            store.arrow("telemetry", wanted, snapshot=snapshot)
            for store, snapshot in zip(self._stores, snapshots, strict=True)
        ]
        frame: pd.DataFrame = pa.concat_tables(tables).to_pandas()
        return frame

    def arrow(self, table: str) -> pa.Table:
        """Return the table ``runs``, ``epochs`` or ``telemetry`` as an Arrow table."""
        return pa.concat_tables([store.arrow(table) for store in self._stores])

    @property
    def documents(self) -> dict[str, bytes]:
        """The study files and the decision of the stores, by name; of equal names the first."""
        return {
            name: content
            for store in reversed(self._stores)
            for name, content in store.documents.items()
        }

    @property
    def decision(self) -> dict[str, Any] | None:
        """The last decision of ``wattlaw run`` in the first store that has one, or None."""
        return next((item.to_dict() for item in self._decisions()), None)

    @property
    def workloads(self) -> tuple[str, ...]:
        """The names of the workloads that have done runs."""
        return tuple(sorted(map(str, self.metrics["workload"].dropna().unique())))

    @cached_property
    def asked_workloads(self) -> tuple[str, ...]:
        """The workloads that answers are about where none is named.

        They are those of the studies in the stores; without a study, all that have done runs.
        """
        studied = {workload.name for _, study in self._studies for workload in study.workloads}
        # A study without a done run has no answer: another workload's would not be its own.
        done = {*self.workloads}
        return tuple(sorted((studied & done or studied or done) if done else ()))

    @property
    def other_workloads(self) -> tuple[str, ...]:
        """The workloads whose done runs are of no study, where others are of one."""
        return tuple(name for name in self.workloads if name not in self.asked_workloads)

    @property
    def is_simulated(self) -> bool:
        """Whether every done run is simulated, so that nothing was measured."""
        return self.origins_label == "simulated"

    @property
    def origins_label(self) -> str:
        """``simulated`` or ``replayed`` if there are done runs and none is measured, else empty."""
        return origins_label(self.metrics["launcher"])

    @property
    def _words(self) -> dict[str, Any]:
        """How commands name the store and the file of its study."""
        if len(self.paths) != 1:
            return {}
        files = [store.study_file(study.name) for store, study in self._studies]
        file = files[0] if len(files) == 1 else None
        words = {"store": self.paths[0]} | ({} if file is None else {"study_file": file})
        return {name: shlex.quote(str(path)) for name, path in words.items()}

    def __len__(self) -> int:
        """Return the number of runs, of any status."""
        return len(self.runs)

    def __repr__(self) -> str:
        return f"Results({', '.join(repr(str(path)) for path in self.paths)})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python: the stores, and the number of runs by workload and status."""
        runs = self.to_frame().to_dict("records")
        return {"stores": [str(path) for path in self.paths], "runs": runs}

    def to_frame(self) -> pd.DataFrame:
        """Return the number of runs by workload and status, with the range of GPU counts."""
        by = self.runs.groupby(["workload", "launcher", "status"], dropna=False)["gpus"]
        counts = by.agg(["size", "min", "max"])
        counts.columns = pd.Index(["runs", "gpus_min", "gpus_max"])
        return counts.reset_index()

    def _repr_html_(self) -> str:
        return as_html(self.to_frame(), [f"Stores: {', '.join(map(str, self.paths))}"])

    def _workload(self, name: str | None) -> str:
        if name is None and not self.workloads:
            store = self.paths[0]
            raise NothingToRecommend(
                f"no run is done; 'wattlaw status {store}' says why, and "
                f"'wattlaw run STUDY --store {store}' makes the missing runs"
            )
        if name is None and len(self.asked_workloads) > 1:
            names = join_names(self.asked_workloads)
            raise BadInput(f"workload: not given, and runs are of {names}; {NAME_ONE}")
        return self.asked_workloads[0] if name is None else name

    def _decision_of(self, workload: str) -> Decision | None:
        return next((item for item in self._decisions() if item.workload == workload), None)

    def _decisions(self) -> Iterator[Decision]:
        for store in self._stores:
            try:
                decision = stored_decision(store.path)
            except BadInput as error:
                if self.strict:
                    raise
                warnings.warn(f"no decision is shown: {error}", DamagedFileWarning, stacklevel=2)
            else:
                if decision is not None:
                    yield decision

    @cached_property
    def _stores(self) -> tuple[Store, ...]:
        return tuple(Store.existing(path, strict=self.strict) for path in self.paths)

    @cached_property
    def _tables(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        return read_stores(self._stores)

    @cached_property
    def _present_tables(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The tables, where done runs of earlier versions of studies have the status EARLIER."""
        earlier: dict[str, list[str]] = {}
        for store, study in self._studies:
            with suppress(BadInput):
                specs = (run.spec for run in expand(catalogue.checked(study)))
                for changes, run_ids in earlier_runs(store, study.name, specs).items():
                    earlier.setdefault(changes, []).extend(run_ids)
        runs, epochs = self._tables
        return mark_earlier(runs, earlier), epochs

    @cached_property
    def _studies(self) -> list[tuple[Store, Study]]:
        """The present versions of the stores' studies, which are copies in the stores."""
        found = []
        for store in self._stores:
            for path in (store.path / "studies").glob("*.yaml"):
                with suppress(BadInput, OSError):
                    found.append((store, read_study(path)))
        return found


def _refuse_missing(wanted: set[str], known: Iterable[str]) -> None:
    if missing := wanted.difference(known):
        missing_id = min(missing, key=str)
        raise BadInput(f"run_id: given {quote(missing_id)}; allowed: a run of the table")


def checked_scope(energy_scope: str | None) -> str | None:
    """Return the argument ``energy_scope``; ``BadInput`` if it is unknown."""
    if energy_scope is None or energy_scope in ENERGY_SCOPES:
        return energy_scope
    allowed = ", ".join(ENERGY_SCOPES)
    raise BadInput(f"energy_scope: given {quote(energy_scope)}; allowed: {allowed}")


def stored_decision(store: Path) -> Decision | None:
    """Return the last decision of a store; None without one.

    Raises ``BadInput`` if the file is damaged, or of another version of wattlaw.
    """
    try:
        values = read_decision(store)
        if values is None:
            return None
        decision = Decision.from_dict(values)
        return with_next_step(decision, store, study_file=Store(store).study_file(decision.study))
    except BadInput as error:
        raise BadInput(
            f"{decision_path(store)}: damaged, or of another version of wattlaw ({error}); move it "
            "away, or run the study again, which keeps it under another name"
        ) from None
