"""The energy of a scheduler's accounting, interruptions and clocks: columns, analysis, page."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from made_stores import write_store
from made_tables import frames, run_row, study, window_row
from wattlaw.analysis.findings import Findings, analyse
from wattlaw.analysis.metrics.scheduler_energy import Agreement
from wattlaw.common.errors import BadInput, DamagedFileWarning
from wattlaw.report.core_sections import layout, sections
from wattlaw.report.page import write_report
from wattlaw.report.sections import Content
from wattlaw.report.stores import read_accounting_windows
from wattlaw.report.topics import scheduler_energy
from wattlaw.store.record import ClockReport, Interruption, Site
from wattlaw.store.schema import TELEMETRY
from wattlaw.store.store import Store

#: A job's last start; an attempt before it ended 100 s earlier.
START = datetime(2026, 11, 1, 12, tzinfo=UTC)
T0 = int(START.timestamp()) * 10**9
S = 10**9
SITE = Site(
    scheduler="slurm", job_id="17", partition="gpu", nodes=("n1", "n2"), energy_j=5000.0,
    energy_source="sacct ConsumedEnergyRaw", energy_start_at=START,
    energy_end_at=START + timedelta(seconds=20),
)  # fmt: skip


def samples(run_id: str, host: str, kind: str, power_w: float, begin_s: float, end_s: float) -> Any:
    """Return a device that draws a constant power, read every 0.5 s."""
    t_ns = np.arange(T0 + int(begin_s * S), T0 + int(end_s * S) + 1, S // 2)
    rows = [{"run_id": run_id, "host": host, "device": f"{kind}-{host}", "kind": kind,
             "t_ns": int(one), "power_w": power_w, "power_source": "measured"}
            for one in t_ns]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=TELEMETRY)


def window(run_id: str, host: str, start_s: float, **changes: Any) -> dict[str, Any]:
    """Return a window of 4 s with 600 J of GPUs and 100 J of processors."""
    row = window_row(
        run_id, 1, host=host, start_ns=T0 + int(start_s * S), duration_s=4.0, gpu_energy_j=600.0,
        cpu_energy_j=100.0, energy_source="integral", energy_verdict="ok",
    )  # fmt: skip
    return row | changes


def slurm_store(path: Path, sites: dict[str, Site | None], *, gpu_ends_s: float = 12.0) -> Store:
    """Write runs of two nodes, each with 100 W of GPU and 20 W of CPU from 2 s to 12 s.

    In windows are 2 hosts x 2 windows x 700 J. A cut window and samples of an attempt before the
    last start are there too, with a greater power.
    """
    runs = [run_row(name, launcher="slurm", gpus=2, local_batch=32, nodes=2, repeat=i)
            for i, name in enumerate(sites)]  # fmt: skip
    windows = [
        one
        for name in sites
        for host in ("n1", "n2")
        for one in (
            window(name, host, -110, epoch=0, interrupted=True, gpu_energy_j=9000.0),
            window(name, host, 3),
            window(name, host, 7, phase="evaluate"),
        )
    ]
    store = write_store(path, *frames(runs, windows))
    for name, site in sites.items():
        folder = store.folder(name)
        record = folder.read()
        assert record is not None
        folder.write(record.model_copy(update={"site": site}), durable=False)
        parts = [samples(name, host, "gpu", 100.0, 2, gpu_ends_s) for host in ("n1", "n2")]
        parts += [samples(name, host, "cpu", 20.0, 2, 12) for host in ("n1", "n2")]
        parts += [samples(name, "n1", "gpu", 1000.0, -110, -100)]
        pq.write_table(pa.concat_tables(parts), folder.telemetry_path)
    return store


def found_in(store: Store, *, with_telemetry: bool = True) -> Findings:
    spans = read_accounting_windows([store]) if with_telemetry else None
    return analyse(store.pandas("runs"), store.pandas("epochs"), accounting_windows=spans)


def energies(store: Store, *, with_telemetry: bool = True) -> list[dict[Any, Any]]:
    return found_in(store, with_telemetry=with_telemetry).sites.energies.to_dict("records")


def changed(**changes: Any) -> Site:
    return SITE.model_copy(update=changes)


def test_the_table_of_runs_has_the_scheduler_values_or_null(tmp_path):
    store = slurm_store(tmp_path, {"a": SITE, "b": None})
    record = store.folder("a").read()
    clock = ClockReport(host="n2", reference="n1", at="begin", offset_s=0.001, uncertainty_s=0.0002)
    other = clock.model_copy(update={"at": "end", "offset_s": -0.003})
    cut = Interruption(attempt=1, at=START, reason="node failure")
    more = {"clocks": (clock, other), "interruptions": (cut, cut), "attempts": 3}
    store.folder("a").write(record.model_copy(update=more))
    told, nothing = store.arrow("runs").to_pylist()
    assert (told["job_id"], told["partition"]) == ("17", "gpu")
    assert told["node_names"] == ["n1", "n2"]
    assert told["interruptions"] == 2
    assert told["clock_offset_max_s"] == pytest.approx(0.0032)
    assert told["site_energy_j"] == 5000.0
    assert told["site_energy_source"] == "sacct ConsumedEnergyRaw"
    assert told["site_energy_start_at"] == START
    assert told["site_energy_end_at"] == START + timedelta(seconds=20)
    assert nothing["interruptions"] == 0
    unknown = {"job_id", "partition", "node_names", "clock_offset_max_s"}
    unknown |= {name for name in nothing if name.startswith("site_energy")}
    assert {nothing[name] for name in unknown} == {None}


def test_a_run_that_never_began_here_has_no_number_of_interruptions(tmp_path):
    store = slurm_store(tmp_path, {"a": None})
    record = store.folder("a").read()
    store.folder("a").write(record.model_copy(update={"attempts": 0}))
    assert store.arrow("runs")["interruptions"].to_pylist() == [None]


def test_our_energy_over_the_accounted_time_is_the_integral_of_telemetry(tmp_path):
    (row,) = energies(slurm_store(tmp_path, {"a": SITE}))
    assert row["same_time"] is True
    assert row["ours_j"] == pytest.approx(2 * (100 + 20) * 10)  # 10 of 20 s have telemetry
    assert row["ours_is"] == "gpu+cpu, integral"
    assert row["covered"] == pytest.approx(0.5)
    assert row["ratio"] == pytest.approx(2400 / 5000)


def test_a_node_without_samples_is_covered_for_no_time(tmp_path):
    (row,) = energies(slurm_store(tmp_path, {"a": changed(nodes=("n1", "n2", "n3", "n4"))}))
    assert row["covered"] == pytest.approx(0.25)


WINDOWS_J = 4 * 700  # evaluation included, and not the 9 kJ of the attempt before


@pytest.mark.parametrize(
    ("site", "gpu_ends_s", "with_telemetry", "ours_j"),
    [
        (SITE, 12.0, False, WINDOWS_J),
        (SITE, 8.0, True, WINDOWS_J),  # the samples of a GPU end early
        (changed(energy_start_at=None, energy_end_at=None), 12.0, True, WINDOWS_J + 2 * 9100),
    ],
)
def test_without_telemetry_over_the_accounted_time_ours_is_of_the_windows(
    tmp_path, site, gpu_ends_s, with_telemetry, ours_j
):
    store = slurm_store(tmp_path, {"a": site}, gpu_ends_s=gpu_ends_s)
    (row,) = energies(store, with_telemetry=with_telemetry)
    assert row["same_time"] is False
    assert row["ours_j"] == pytest.approx(ours_j)
    assert np.isnan(row["covered"])
    assert row["ratio"] == pytest.approx(ours_j / 5000)


def test_where_a_meter_reads_the_nodes_their_energy_is_compared():
    site = {"site_energy_j": 4000.0, "site_energy_source": "sacct"}
    node = {"energy_scope": "gpu+cpu", "node_energy_j": 900.0, "node_energy_source": "counter",
            "node_energy_verdict": "ok"}  # fmt: skip
    # Not all energy, since this meter is slow; and the devices have none in one window.
    lost = {"gpu_energy_j": None, "energy_verdict": "partial"}
    windows = [window("a", "n1", 3, **node), window("a", "n1", 7, **node, **lost)]
    (row,) = analyse(*frames([run_row("a", **site)], windows)).sites.energies.to_dict("records")
    assert (row["ours_j"], row["ours_is"]) == (1800.0, "node, counter")
    assert row["ratio"] == pytest.approx(0.45)
    windows[1] |= {"node_energy_verdict": "partial"}
    (row,) = analyse(*frames([run_row("a", **site)], windows)).sites.energies.to_dict("records")
    assert np.isnan(row["ours_j"])


def test_a_window_without_energy_makes_our_energy_missing():
    site = {"site_energy_j": 5000.0, "site_energy_source": "sacct"}
    lost = {"gpu_energy_j": None, "energy_verdict": "partial"}
    windows = [window("a", "n1", 3), window("a", "n1", 7, **lost)]
    (row,) = analyse(*frames([run_row("a", **site)], windows)).sites.energies.to_dict("records")
    assert np.isnan(row["ours_j"])
    assert np.isnan(row["ratio"])
    short = [*windows[:1], windows[1] | {"duration_s": 0.03}]
    (row,) = analyse(*frames([run_row("a", **site)], short)).sites.energies.to_dict("records")
    assert row["ours_j"] == pytest.approx(700)


def test_limits_of_agreement_are_those_of_the_log_ratio():
    found = Agreement.of(np.exp([-0.2, -0.1, 0.0, 0.1, 0.2]))
    assert (found.runs, found.median) == (5, 1.0)
    assert (found.low, found.high) == pytest.approx((np.exp(-0.2), np.exp(0.2)))
    # The standard deviation is sqrt(0.1 / 4) = 0.15811; 1.96 of them are 0.30990.
    assert found.limits == pytest.approx((0.73352, 1.36329), abs=1e-5)
    assert Agreement.of([0.5, 0.6, 0.7, 0.8]).limits is None


def test_energies_of_different_times_are_not_put_together(tmp_path):
    sites = {name: changed(energy_j=j) for name, j in
             zip("abcde", (4000, 4800, 5000, 6000, 8000), strict=True)}  # fmt: skip
    sites["f"] = changed(energy_start_at=None)
    found = found_in(slurm_store(tmp_path, sites))
    (_, windows), (_, same) = found.sites.agreements
    assert (windows.runs, windows.limits) == (1, None)
    assert same.runs == 5
    assert same.median == pytest.approx(2400 / 5000)
    assert (same.low, same.high) == pytest.approx((0.3, 0.6))
    assert same.limits is not None
    table = scheduler_energy.energies(found)
    at = table.headings.index("measured / scheduler")
    assert {row[at].replace("\u00a0", " ") for row in table.rows} == {"0.48 (0.3 to 0.6)", "4.2"}
    assert {row[table.headings.index("runs")] for row in table.rows} == {"5", "1"}


def text_of(findings: Findings, name: str) -> str:
    """Return all text of a section, with the notes and titles of tables."""
    shown = sections(Content(findings, (), layout(None)))
    (section,) = [section for section in shown if section.name == name]
    return " ".join(map(str, (*section.sentences, *section.blocks)))


def test_the_page_shows_both_energies_with_their_scope(tmp_path):
    store = slurm_store(tmp_path / "store", {"a": SITE, "b": changed(energy_j=6000.0)})
    findings = found_in(store)
    write_report(findings, tmp_path / "page.html", pictures=())
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'id="table-scheduler_energy"' in page
    for text in ("(sacct ConsumedEnergyRaw)", "the same time", "is 0.44 of the scheduler&#39;s"):
        assert text in page, text
    assert "limits of agreement" not in page  # of two runs there is a range


def test_without_a_scheduler_the_page_does_not_mention_it():
    findings = analyse(*study())
    assert scheduler_energy.energies(findings) is None
    text = text_of(findings, "energy") + text_of(findings, "data")
    assert "scheduler" not in text
    assert "interrupted" not in text
    assert "clocks" not in text


def test_the_schedulers_energy_is_shown_without_a_meter_of_ours():
    runs = [run_row("a", site_energy_j=5000.0, site_energy_source="sacct")]
    findings = analyse(*frames(runs, [window_row("a", 1)]))
    assert findings.energy is None
    table = scheduler_energy.energies(findings)
    assert table is not None
    assert "measured / scheduler" not in table.headings
    assert "scheduler_energy" in text_of(findings, "energy")


def test_interruptions_and_clocks_are_in_the_section_on_data_quality():
    runs = [
        run_row("a", interruptions=2, clock_offset_max_s=0.0032),
        run_row("b", repeat=1, interruptions=0, clock_offset_max_s=0.001),
        run_row("c", repeat=2, interruptions=1, status="failed", reason="out of tries"),
    ]
    windows = [window_row("a", 1), window_row("b", 1), window_row("a", 2, interrupted=True)]
    text = text_of(analyse(*frames(runs, windows)), "data")
    assert "2 runs were interrupted (3 times in total)" in text
    assert "Left out: 1 training window" in text
    assert "compared in 2 runs: they differ by at most 3.2 ms" in text


def test_a_damaged_file_of_telemetry_is_named(tmp_path):
    store = slurm_store(tmp_path, {"a": SITE})
    store.folder("a").telemetry_path.write_bytes(b"no table")
    with pytest.warns(DamagedFileWarning, match=r"run a is left out: .*telemetry\.parquet"):
        assert len(read_accounting_windows([store])) == 0
    with pytest.raises(BadInput, match=r"telemetry\.parquet"):
        read_accounting_windows([Store(store.path, strict=True)])


def test_stores_without_a_schedulers_energy_are_not_read(tmp_path):
    store = slurm_store(tmp_path, {"a": changed(energy_j=None)})
    store.folder("a").telemetry_path.write_bytes(b"no table")
    assert len(read_accounting_windows([store])) == 0
