"""The launcher ``replay``: each run is ready when it is started."""

from pathlib import Path
from typing import Self

from wattlaw.errors import BadInput, NotAvailable
from wattlaw.launch.launcher import Ended, Launcher
from wattlaw.launch.replay.run import Replay, replay
from wattlaw.launch.replay.table import ReplayTable, read_replay_table
from wattlaw.launch.simulated.launcher import Allocation
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec, Study
from wattlaw.text import join_names

#: Active runs: each has an open file, and a Ctrl-C waits for them.
_IN_FLIGHT = 200


class ReplayLauncher(Launcher):
    """Takes the times and energies of runs from a table of measurements made elsewhere."""

    is_durable = False  # a replay can be repeated

    def __init__(self, table: ReplayTable) -> None:
        self._table = table
        self._allocated: set[Allocation] = set()

    @classmethod
    def resolve(cls, study: Study) -> Study:
        """Return the study with the hardware of the table, if that is of one hardware only.

        Raises ``BadInput`` if the table cannot be read, has several kinds of hardware and the study
        names none of them, or has no row of a workload.
        """
        table, hardware = _read(study.launch), study.launch.hardware
        known = sorted(table.names("hardware") - {None})
        if hardware is None and len(known) == 1:
            hardware = known[0]
        if known and None not in table.names("hardware") and hardware not in known:
            raise BadInput(
                f"launch.hardware: given {hardware or 'nothing'}; allowed: the hardware of "
                f"{table.path}, one of {join_names(known)}"
            )
        workloads = table.names("workload")
        for workload in study.workloads:
            if not workloads & {None, workload.name}:
                raise BadInput(
                    f"{table.path}: no rows of workload {workload.name}; the table has: "
                    f"{join_names(sorted(workloads))}"
                )
        launch = study.launch.model_copy(update={"hardware": hardware})
        return study.model_copy(update={"launch": launch})

    @classmethod
    def open(cls, launch: Launch, store: Path) -> Self:  # noqa: ARG003 - every store works
        """Read the table; raise ``BadInput`` if it is invalid."""
        return cls(_read(launch))

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        """Return why the table has no time of a run, or None."""
        try:
            Replay.of(self._table, spec)
        except NotAvailable as error:
            return str(error)
        return None

    def allocate(self, spec: RunSpec) -> Allocation | None:  # noqa: ARG002 - all runs are alike
        """Return an allocation while few runs are active."""
        return Allocation(self._allocated) if len(self._allocated) < _IN_FLIGHT else None

    def start(
        self, record: RunRecord, folder: RunFolder, allocation: Allocation
    ) -> "ReplayedAttempt":
        """Write the results of a run."""
        return ReplayedAttempt(replay(self._table, record, folder), allocation)


class ReplayedAttempt:
    """A run that has ended."""

    def __init__(self, record: RunRecord, allocation: Allocation) -> None:
        self._record, self._allocation = record, allocation

    def poll(self) -> Ended:
        """Return the record of the run."""
        self._allocation.release()
        return Ended(record=self._record)

    def stop(self) -> None:
        """Release the allocation; the run has ended."""
        self._allocation.release()


def _read(launch: Launch) -> ReplayTable:
    if launch.table is None:
        raise BadInput(
            "launch.table (or --table) is required; allowed: a .csv, .jsonl or .parquet file"
        )
    return read_replay_table(Path(launch.table))
