"""The tables of one or several stores."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from wattlaw.analysis.decide.decision import Decision
from wattlaw.analysis.metrics.groups import aggregate
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.common.errors import BadInput, DamagedFileWarning, NothingToRecommend
from wattlaw.common.scopes import ENERGY_SCOPES, OUTERMOST
from wattlaw.common.text import join_names, quote
from wattlaw.report.tables import as_html
from wattlaw.store.decision_file import decision_path, read_decision
from wattlaw.store.store import Store, read_stores
from wattlaw.study.sources import origins_label


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

    @cached_property
    def settings(self) -> pd.DataFrame:
        """A row per setting: means of the repeats with standard deviations and 95 % intervals."""
        return aggregate(self.metrics)

    @cached_property
    def statistics(self) -> pd.DataFrame:
        """A row per GPU and per run: utilisation, power, clock and temperature of all samples."""
        from wattlaw.store.statistics import statistics

        return pd.concat([statistics(store) for store in self._stores], ignore_index=True)

    def telemetry(self, run_id: str | Iterable[str] | None = None) -> pd.DataFrame:
        """Return the samples of done runs: a row per device and moment.

        Parameters
        ----------
        run_id
            A run, or several; by default all.

        Raises
        ------
        wattlaw.common.errors.BadInput
            A run is not done or does not exist.
        """
        snapshots = [store.without_damaged() for store in self._stores]
        done = {run_id for snapshot in snapshots for run_id in snapshot.done()}
        wanted = done if run_id is None else {run_id} if isinstance(run_id, str) else set(run_id)
        if missing := wanted - done:
            raise BadInput(f"run_id: given {quote(min(missing))}; allowed: a run that is done")
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

    @property
    def is_simulated(self) -> bool:
        """Whether every done run is simulated, so that nothing was measured."""
        return self.origins_label == "simulated"

    @property
    def origins_label(self) -> str:
        """``simulated`` or ``replayed`` if there are done runs and none is measured, else empty."""
        return origins_label(self.metrics["launcher"])

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
            raise NothingToRecommend("no run is done")
        if name is None and len(self.workloads) > 1:
            raise BadInput(f"workload is required; allowed: {join_names(self.workloads)}")
        return self.workloads[0] if name is None else name

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
        return None if values is None else Decision.from_dict(values)
    except BadInput as error:
        raise BadInput(
            f"{decision_path(store)}: damaged, or of another version of wattlaw ({error}); move it "
            "away, or run the study again, which keeps it under another name"
        ) from None
