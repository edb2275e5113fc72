"""What the table of runs has of a scheduler: job, nodes, interruptions, clocks and energy."""

from datetime import UTC, datetime, timedelta

from made_stores import write_store
from made_tables import frames, run_row, window_row
from wattlaw.store.record import Interruption, Site

START = datetime(2026, 11, 1, 12, tzinfo=UTC)
SITE = Site(
    scheduler="slurm", job_id="17", partition="gpu", nodes=("n1", "n2"), energy_j=5000.0,
    energy_source="sacct ConsumedEnergyRaw", energy_start_at=START,
    energy_end_at=START + timedelta(seconds=20),
)  # fmt: skip
CUT = Interruption(attempt=1, at=START, reason="node failure")


def row_of_run(path, **changes):
    store = write_store(path, *frames([run_row("a", launcher="slurm")], [window_row("a", 1)]))
    record = store.folder("a").read()
    store.folder("a").write(record.model_copy(update=changes), durable=False)
    (row,) = store.arrow("runs").to_pylist()
    return row


def test_the_table_of_runs_has_what_the_scheduler_says(tmp_path):
    row = row_of_run(tmp_path, site=SITE, interruptions=(CUT, CUT), attempts=3)
    assert (row["job_id"], row["partition"]) == ("17", "gpu")
    assert row["node_names"] == ["n1", "n2"]
    assert row["interruptions"] == 2
    assert row["site_energy_j"] == 5000.0
    assert row["site_energy_source"] == "sacct ConsumedEnergyRaw"
    assert row["site_energy_start_at"] == START
    assert row["site_energy_end_at"] == START + timedelta(seconds=20)


def test_a_run_without_a_scheduler_has_null(tmp_path):
    row = row_of_run(tmp_path)
    unknown = {"job_id", "partition", "node_names"}
    unknown |= {name for name in row if name.startswith("site_energy")}
    assert {row[name] for name in unknown} == {None}
    assert row["interruptions"] == 0


def test_a_run_that_never_began_here_has_no_number_of_interruptions(tmp_path):
    assert row_of_run(tmp_path, attempts=0)["interruptions"] is None
