"""What changes an answer stands beside it, and nothing is surer than its data."""

import json

import pytest

from asking import advise
from conftest import study_of
from made_stores import with_command, write_store
from made_tables import Rows, frames, near, run_row, runs_of, tables_of, window_row
from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.findings import analyse
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.api import results
from wattlaw.cli.main import main
from wattlaw.report.core_sections import sections
from wattlaw.report.sections import Content, Layout
from wattlaw.report.topics import advice_text as text
from wattlaw.running.run_status import StatusPoller
from wattlaw_dashboard.dashboard_overview import Chosen, read_overview, totals
from wattlaw_dashboard.pages import Pages, _used, read_report, read_results
from wattlaw_dashboard.tails import Device
from wattlaw_dashboard.timeline import timelines


def advice_of(*parts: Rows, **asked: object) -> Advice:
    tables = tables_of(*parts)
    table = run_metrics(*tables)
    return advise(table, tables[1], "digits-cnn", stored=tables[0], **asked)


def shown(advice: Advice) -> str:
    return " ".join(text.summary(advice))


def test_an_improbable_setting_is_a_candidate_and_no_instruction():
    """Three settings whose means are closer than their repeats: none is 50 % probable."""
    limits = (None, 200.0, 150.0, 125.0)
    parts = [
        runs_of({"power_limit_w": limit}, near(100 + at / 10, 0.2))
        for at, limit in enumerate(limits)
    ]
    advice = advice_of(*parts)
    assert advice.probability < 0.5
    assert not advice.clearly_best
    plain = advice.to_dict()
    assert plain["clearly_best"] is False
    probabilities = [plain["probability"], *(tie["probability"] for tie in plain["ties"])]
    assert all(0 < value < 0.5 for value in probabilities)
    assert len(probabilities) >= len(limits)
    first, *_ = text.summary(advice)
    assert not first.startswith("Run ")
    assert first.startswith("No setting is clearly best")
    assert "the fastest" not in shown(advice)
    assert text.answer(advice).figures[-1].value == text.percent(advice.probability)
    candidates = next(line for line in text.what_changes(advice) if line.startswith("Ties with"))
    assert text.percent(max(tie.probability for tie in advice.ties)) in candidates
    sure = advice_of(*(runs_of({"power_limit_w": limit}, near(100 * (1 + at)))
                       for at, limit in enumerate(limits)))  # fmt: skip
    assert sure.clearly_best and text.summary(sure)[0].startswith("Run ")


def test_whole_jobs_that_share_a_name_are_no_comparison():
    jobs = [
        runs_of({"gpus": n, "global_batch": None, "local_batch": None, "launcher": "imported"},
                [time_s], None, phase="run", samples=None, steps=None)
        for n, time_s in ((4, 3600.0), (8, 1000.0))
    ]  # fmt: skip
    advice = advice_of(*jobs)
    assert advice.unit == "run"
    assert advice.probability is None
    assert not advice.clearly_best
    assert "work-unknown" in {warning.code for warning in advice.warnings}
    assert "the runs may have done different work" in text.summary(advice)[0]
    ours = advice_of(*(runs_of({"gpus": n}, [1000.0 / n], None, phase="run", samples=None,
                               steps=None) for n in (4, 8)))  # fmt: skip
    assert "work-unknown" not in {warning.code for warning in ours.warnings}


def test_epochs_that_differ_are_named():
    long = runs_of({"gpus": 1}, near(100), epochs=40)
    short = runs_of({"gpus": 2}, near(55), epochs=4)
    advice = advice_of(long, short, deadline_s=600)
    assert advice.recommended is None
    assert "totals are for 40 epochs" in shown(advice)
    unbound = advice_of(long, short)
    assert unbound.recommended.to_dict()["epochs_trained"] == 4
    assert "This setting ran 4." in shown(unbound)
    assert "totals are for" not in shown(advice_of(long, runs_of({"gpus": 2}, near(55), epochs=40)))


def test_runs_that_are_left_out_are_counted_with_their_reasons():
    failed = ([run_row("bad", gpus=8, status="failed", reason="out of memory")], [])
    other = runs_of({"gpus": 1, "options": '{"learning_rate": 0.5}'}, [90.0])
    simulated = runs_of({"gpus": 2, "launcher": "simulated"}, near(50))
    emulated = runs_of({"gpus": 1, "emulated_gpus": 8}, [20.0])
    kept = [runs_of({"gpus": n}, near(100 / n)) for n in (1, 2)]
    unknown = runs_of({"gpus": 2, "global_batch": 128, "local_batch": 64}, [45.0, 45.5])
    advice = advice_of(failed, other, simulated, emulated, unknown, *kept)
    counts = sorted(advice.to_dict()["left_out"].values())
    assert counts == [1, 1, 1, 2, 3]
    assert dict(advice.left_out)["failed"] == 1
    assert dict(advice.left_out)["simulated"] == 3
    line = next(line for line in text.summary(advice) if line.startswith("Left out: "))
    assert line.startswith("Left out: 8 runs (")
    assert sum(advice.rests_on.runs.values()) == 6 + 2  # runs of a batch left out show the spread


def test_steps_of_an_unknown_batch_have_no_clear_answer():
    steps = [
        runs_of({"gpus": n, "global_batch": None, "local_batch": None}, near(10 * n**0.2), None,
                phase="steps", samples=None, steps=100)
        for n in (1, 2, 4)
    ]  # fmt: skip
    advice = advice_of(*steps)
    assert (advice.unit, advice.recommended.gpus) == ("step", 1)  # if a step has the same samples
    assert not advice.clearly_best
    assert "the batch is unknown" in text.summary(advice)[0]


@pytest.mark.parametrize("are_known", [True, False])
def test_epochs_that_grow_with_the_workers_have_no_clear_answer(are_known):
    """The data set grows with the GPUs: epochs take the same time, and samples do not."""
    grown = [
        runs_of({"gpus": n, "global_batch": 64 * n, "local_batch": 64, "launcher": "imported"},
                near(100 * n**0.1), None, samples=1000 * n if are_known else None, steps=None)
        for n in (1, 2, 4)
    ]  # fmt: skip
    advice = advice_of(*grown, any_batch=True)
    assert advice.unit == "epoch"
    assert not advice.clearly_best
    assert "different work" in text.summary(advice)[0]
    [told] = [str(warning) for warning in advice.warnings if warning.code == "work-unknown"]
    assert "has more samples" in told or not are_known


def test_the_fastest_setting_is_said_of_all_runs_of_the_job():
    """A row twice as fast has no energy: it is not compared, and it is named."""
    rows = [
        runs_of({"gpus": 1, "launcher": "imported"}, [100.0]),
        runs_of({"gpus": 2, "launcher": "imported"}, [60.0], 90),
        runs_of({"gpus": 4, "launcher": "imported"}, [30.0], None),
    ]
    advice = advice_of(*rows)
    assert advice.recommended.gpus == advice.baseline.gpus == 2
    [faster] = advice.to_dict()["faster_left_out"]
    assert (faster["gpus"], faster["time_s"]) == (4, 30.0)
    assert faster["left_out"] == "no comparable energy"
    assert "4 GPUs" in shown(advice)
    assert "the fastest imported setting," not in shown(advice)
    bounded = advice_of(*rows, max_slowdown=0.1)
    assert bounded.recommended is None  # 60 s is not within 10 % of 30 s
    few = advice_of(*(runs_of({"gpus": n}, near(100 / n)) for n in (1, 2)), max_gpus=1)
    assert [item.left_out for item in few.faster_left_out] == ["more GPUs than allowed"]
    assert not advice_of(*rows[:2]).faster_left_out


@pytest.mark.parametrize(
    "bound", [{"deadline_s": 100.5}, {"max_slowdown": 0.005}, {"energy_budget_j": 10_050.0}]
)
def test_a_setting_that_misses_a_bound_never_ties(bound):
    """200 W takes 0.6 % more time and energy: within 2 % of the best, and beyond the bound."""
    parts = [
        runs_of({"power_limit_w": limit}, [time_s - 0.1, time_s, time_s + 0.1])
        for limit, time_s in ((None, 100.0), (200.0, 100.6))
    ]
    free = advice_of(*parts)
    assert 200.0 in {tie.option.setting.power_limit_w for tie in free.ties}
    bounded = advice_of(*parts, **bound)
    assert bounded.recommended.setting.power_limit_w is None
    assert 200.0 not in {tie.option.setting.power_limit_w for tie in bounded.ties}


def test_advise_exits_with_1_where_nothing_is_recommended(tmp_path, capsys):
    parts = [runs_of({"gpus": n}, near(100 / n**0.9)) for n in (1, 2, 4)]
    store = write_store(tmp_path / "store", *tables_of(*parts)).path
    assert main(["advise", str(store)]) == 0
    assert main(["advise", str(store), "--deadline", "1s"]) == 1
    assert main(["advise", str(store), "--deadline", "1s", "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["recommended"] is None
    failed = frames([run_row("bad", status="failed", reason="out of memory")], [])
    empty = str(write_store(tmp_path / "empty", *failed).path)
    for command in ("advise", "predict"):
        assert main([command, empty]) == 1
        assert main([command, str(store), "-w", "no-such"]) == 2  # bad input


def test_dashboard_and_report_add_no_energy_or_gpu_hours_of_different_sources(tmp_path):
    """Each source has 1 kJ or more, and its runs that have a time an hour each."""
    runs, windows = [], []
    for launcher, source, joules in (
        ("local", "counter", 1000.0), ("local", "estimated", 2000.0),
        ("imported", "integral", 4000.0), ("imported", "estimated", 8000.0),
        ("simulated", "simulated", 16000.0), ("replay", "replayed", 32000.0),
    ):  # fmt: skip
        run_id = f"{launcher}-{source}"
        runs.append(run_row(run_id, launcher=launcher))
        energy = {"gpu_energy_j": joules, "energy_source": source, "energy_verdict": "ok"}
        windows.append(window_row(run_id, 0, **energy))
    runs.append(run_row("impossible"))
    windows.append(window_row("impossible", 0, gpu_energy_j=1e9, energy_source="counter",
                              energy_verdict="implausible"))  # fmt: skip
    path = write_store(tmp_path / "store", *frames(runs, windows)).path
    for record in path.glob("runs/*/run.json"):
        facts = json.loads(record.read_text())
        facts |= {"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T01:00:00Z"}
        record.write_text(json.dumps(facts))
    state, reading = read_overview([path], StatusPoller()), read_results([path])
    of_sources = _used(totals(state.rows), reading)
    assert {total.text: used for total, used in of_sources} == {
        "3 measured": {
            "time of GPUs or workers": "3 GPU-hours", "energy of GPUs": "1 kJ",
            "estimated energy of GPUs": "2 kJ",
        },
        "2 imported": {
            "time of GPUs or workers": "2 GPU-hours", "energy of GPUs": "4 kJ",
            "estimated energy of GPUs": "8 kJ",
        },
        "1 simulated": {"time of GPUs or workers": "1 GPU-seconds", "energy of GPUs": "16 kJ"},
        "1 replayed": {"time of GPUs or workers": "1 GPU-seconds", "energy of GPUs": "32 kJ"},
    }  # fmt: skip
    assert [total.group for total in totals(state.rows, ("workload",))] == [("digits-cnn",)] * 4
    opened = results.open(path)
    rows = analyse(opened.runs, opened.epochs).totals.dropna(subset="energy_j")
    energies = rows.set_index(["source", "energy_is"])["energy_j"].to_dict()
    assert sorted(energies.values()) == [1000.0 * 2**power for power in range(6)]
    assert {source for source, _ in energies} == {"measured", "imported", "simulated", "replayed"}


def test_the_mean_of_many_devices_is_of_one_origin():
    devices = []
    for number in range(10):
        device = Device("host", f"d{number}", "gpu")
        origin = "estimated" if number < 4 else "measured"
        power = 10.0 if number < 4 else 100.0
        device.add({"t_ns": 10**10, "power_w": power, "power_source": origin})
        devices.append(device)
    [chart] = [chart for chart in timelines(devices, []) if "Power" in chart.title]
    names = [line["name"] for line in chart.lines]
    assert "mean of 6 devices" in names and "mean of 4 devices (estimated)" in names
    assert [device.last("power_w") for device in devices] == [10.0] * 4 + [100.0] * 6


def test_the_dashboard_shows_a_workload_that_is_in_no_study_where_it_is_chosen(tmp_path):
    store = with_command(tmp_path / "store", *tables_of(runs_of({"gpus": 1}, near(100.0))))
    store.keep_study("s", json.dumps(study_of()))
    pages = Pages((store.path,))
    pages._reading._value = read_results([store.path])
    default, chosen = (
        pages.overview(Chosen(values))["answer"] for values in ((), (("workload", "command"),))
    )
    assert "Run digits-cnn on" in default and "Run command on" not in default
    assert "Also in the store: command" in default
    assert "Run command on" in chosen and "digits-cnn" not in chosen


def test_the_dashboard_has_the_answer_and_what_changes_it(tmp_path, monkeypatch):
    monkeypatch.setattr("wattlaw.report.core_sections.gallery", lambda: ())
    parts = [
        runs_of({"gpus": n, "global_batch": 64 * n, "local_batch": 64}, near(100 / n**0.9))
        for n in (1, 2, 4)
    ]
    tables = tables_of(*parts)
    path = write_store(tmp_path / "store", *tables).path
    page, pages = read_report([path]), Pages((path,))
    pages._reading._value = read_results([path])
    shown = [pages.overview(Chosen(values))["answer"] for values in ((), (("workload", "x"),))]
    for words in ("Run digits-cnn on 1 GPU", "allows a larger batch: 4 GPUs", "Left out: 6 runs"):
        assert words in page
    findings = analyse(*tables)
    [screen] = sections(Content(findings, (), Layout(("advice",))))
    (advice,) = findings.advice
    answer, changing, table = screen.blocks
    assert answer == text.answer(advice)
    assert all(item.value.split(" (")[0] in shown[0] for item in answer.figures)
    assert answer.headline in shown[0] and answer.headline not in shown[1]
    assert set(changing.items) >= {*text.what_changes(advice)}  # none of them is cut
    assert all(line in table.note for line in text.basis(advice))
