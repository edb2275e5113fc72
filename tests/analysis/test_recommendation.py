"""The first screen: what to run, what it saves, how sure that is, and what it rests on."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from asking import advise
from made_stores import write_store
from made_studies import MIT, kit, mit
from made_tables import frames, run_row, window_row
from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.advise.certainty import as_decided
from wattlaw.analysis.advise.choice import Choice
from wattlaw.analysis.decide.decision import Decision
from wattlaw.analysis.metrics.comparable_runs import worker_noun
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.analysis.metrics.result import Caution
from wattlaw.api import results
from wattlaw.cli.commands.advise import advise as advise_command
from wattlaw.common.errors import BadInput
from wattlaw.report.topics import advice_text
from wattlaw.report.topics.advice_text import answer, summary
from wattlaw.study.question import Question

#: The most lines of the first screen, at 80 columns.
LINES = 16


def runs_of(settings: list[dict[str, object]], times: list[list[float]], **changes: object):
    runs, epochs = [], []
    for number, (setting, of_setting) in enumerate(zip(settings, times, strict=True)):
        for repeat, time_s in enumerate(of_setting):
            name = f"{number:08}{repeat:08}"
            run = {"global_batch": 64, "local_batch": 64 // int(setting.get("gpus", 1))} | changes
            runs.append(run_row(name, repeat=repeat, **run | setting))
            energy = {"gpu_energy_j": 100 * time_s, "energy_source": "counter",
                      "energy_verdict": "ok"}  # fmt: skip
            if "imported" in changes.values():
                energy |= {"energy_verdict": "suspect", "energy_reason": "from elsewhere"}
            epochs.append(window_row(name, 1, duration_s=time_s, **energy))
    return frames(runs, epochs)


def advice_of(tables, workload: str = "digits-cnn", **asked: object) -> Advice:
    return advise(run_metrics(*tables), tables[1], workload, **asked)


def caps(*times: list[float], **changes: object):
    """Return the tables of runs at 250 W and at lower limits, in steps of 50 W."""
    limits = [{"power_limit_w": None if not i else 250.0 - 50 * i} for i in range(len(times))]
    return runs_of(limits, list(times), **changes)


def spread(mean: float, share: float = 0.01, count: int = 3) -> list[float]:
    steps = np.linspace(-1, 1, count)
    return [mean * float(np.exp(share * step)) for step in steps]


def test_savings_are_changes_with_the_interval_of_the_log_ratio():
    slow, fast = spread(100.0), spread(70.0, 0.02)
    result = advice_of(caps(slow, fast), baseline={"power_limit_w": None, "gpus": 1})
    assert result.recommended.setting.power_limit_w == 200
    assert result.savings.time.mean == pytest.approx(np.mean(fast) / np.mean(slow) - 1)
    logs = [np.log(values) for values in (fast, slow)]
    test = stats.ttest_ind(*logs).confidence_interval(0.95)  # pooled, on logarithms
    expected = np.exp([test.low, test.high]) - 1
    assert result.savings.time.interval == pytest.approx(expected, rel=0.05)
    assert result.savings.energy.interval == pytest.approx(expected, rel=0.05)
    plain = result.to_dict()["savings"]
    assert plain["time"] == result.savings.time.mean
    assert plain["energy_ci"] == result.savings.energy.interval
    assert plain["cost"] is plain["cost_ci"] is None


def test_equal_settings_tie_and_different_ones_do_not():
    result = advice_of(caps(spread(100.0), spread(100.1), spread(130.0)))
    assert [tie.option.setting.power_limit_w for tie in result.ties if tie.option.repeats] == [200]
    assert result.probability > 0.5
    sure = advice_of(caps(spread(100.0), spread(130.0, 0.01), spread(150.0)))
    assert sure.probability > 0.9
    assert not [tie for tie in sure.ties if not tie.option.is_predicted]
    near = result.to_dict()["ties"][0]
    assert 0 <= near["probability_better"] <= 1
    assert near["source"] in ("measured", "predicted")


@pytest.mark.parametrize("measure", [{"measure_steps": 100}, {"measure_seconds": 30.0}])
def test_the_next_run_of_a_study_of_steps_has_their_number_and_the_warm_up(measure):
    step_s = {64: 0.1, 128: 0.15}
    settings = [{"gpus": 2, "global_batch": batch, "local_batch": batch // 2} for batch in step_s]
    runs, epochs = runs_of(settings, [spread(100 * time_s) for time_s in step_s.values()],
                           dataset_samples=100_000, warmup_steps=20, launcher="simulated",
                           **measure)  # fmt: skip
    epochs = epochs.assign(phase="steps", steps=100, samples=None)
    result = advice_of((runs, epochs), any_batch=True, epochs=90)
    following = result.next_measurement
    seconds = 20 * step_s[128] + measure.get("measure_seconds", 100 * step_s[128])
    assert result.unit == "epoch"
    assert following.option.setting.global_batch == 128
    assert following.gpu_hours == pytest.approx(2 * seconds / 3600, rel=0.01)


def test_savings_are_against_what_the_study_says_is_run():
    batches = [{"global_batch": size, "local_batch": size} for size in (32, 64, 128)]
    runs, epochs = runs_of(batches, [spread(time_s) for time_s in (100.0, 65.0, 45.0)])
    tables = runs, epochs.assign(gpu_energy_j=None, energy_source=None, energy_verdict=None)
    asked = {"minimize": "time", "max_global_batch": 128}
    result = advice_of(tables, **asked, in_use={"gpus": 1, "global_batch": 32})
    assert (result.recommended.global_batch, result.baseline.global_batch) == (128, 32)
    assert result.savings.time.mean == pytest.approx(-0.55)
    _, saving, _ = answer(result).figures  # the time of one GPU would repeat the time
    assert (saving.name, saving.value) == ("saving", "55 %")
    assert "batch 32" in saving.note and "32" not in answer(result).reference

    best = advice_of(tables, **asked, in_use={"gpus": 1, "global_batch": 128})
    assert best.baseline == best.recommended
    assert answer(best).figures[1].value == "none"
    # What is run today may not have run here; if it cannot be predicted, the fastest replaces it.
    predicted = advice_of(tables, **asked, in_use={"gpus": 2, "global_batch": 32})
    assert predicted.baseline_is == "fastest"
    assert "saving" not in {item.name for item in answer(predicted).figures}
    assert "saves nothing" not in answer(predicted).reference
    apart = runs_of([batches[0], batches[2]], [spread(100.0), spread(45.0)])
    between = advice_of(apart, **asked, in_use={"gpus": 1, "global_batch": 64})
    assert (between.baseline.source, between.baseline.global_batch) == ("predicted", 64)
    assert between.savings.time.mean < -0.2


@pytest.mark.parametrize(("scatter", "is_uncertain"), [(0.01, False), (0.9, True)])
def test_a_saving_that_may_be_a_loss_is_said_to_be_uncertain(scatter, is_uncertain):
    batches = [{"global_batch": size, "local_batch": size} for size in (32, 64)]
    tables = runs_of(batches, [spread(100.0, scatter), spread(80.0, scatter)])
    asked = {"minimize": "time", "max_global_batch": 64}
    result = advice_of(tables, **asked, in_use={"gpus": 1, "global_batch": 32})
    low, high = result.savings.time.interval
    assert (low < 0 < high) == is_uncertain
    assert ("uncertain" in " ".join(summary(result))) == is_uncertain


def test_the_baseline_is_a_setting_of_the_runs():
    tables = caps(spread(100.0), spread(110.0))
    named = {"gpus": 1, "global_batch": 64}
    assert advice_of(tables, baseline=named).baseline.setting.power_limit_w is None
    capped = advice_of(tables, baseline=named | {"power_limit_w": 200.0})
    assert capped.baseline.setting.power_limit_w == 200
    assert advice_of(tables).baseline.setting.power_limit_w is None  # the fastest
    for wrong, text in (
        ({"gpus": 3}, "no run has gpus=3"),
        ({"watts": 3}, "unknown setting 'watts'"),
    ):
        with pytest.raises(BadInput, match=f"baseline: {text}"):
            advice_of(tables, baseline=wrong)
    several = runs_of([{"gpus": 1}, {"gpus": 2}], [spread(2.0), spread(1.0)])
    with pytest.raises(BadInput, match=r"2 settings have global_batch=64.*gpus=1 \| 2"):
        advice_of(several, baseline={"global_batch": 64})


@pytest.mark.parametrize(
    ("launcher", "source"),
    [("local", "measured"), ("slurm", "measured"), ("imported", "imported"),
     ("replay", "replayed"), ("simulated", "simulated")],
)  # fmt: skip
def test_every_value_names_its_source(launcher, source):
    result = advice_of(caps(spread(100.0), spread(70.0), launcher=launcher))
    plain = result.to_dict()
    sources = {plain[name]["source"] for name in ("recommended", "baseline")}
    assert sources == {source}
    assert {row["source"] for row in plain["pareto"]} <= {source, "predicted"}
    assert set(plain["rests_on"]["runs"]) == {source}
    assert set(plain["rests_on"]["settings"]) <= {source, "predicted"}
    assert "measured" not in plain["recommended"]
    if source == "simulated":  # however sure the simulation is
        assert result.next_measurement.option == result.recommended
        assert not plain["next_measurement"]["is_repeat"]
    if source != "measured":
        first = summary(result)[0]
        assert f"{source}, not measured" in first


def test_suspect_energies_say_why_in_the_first_sentence():
    result = advice_of(caps(spread(100.0), spread(70.0), launcher="imported"))
    assert {"energy-suspect", "energy-reason"} <= {warning.code for warning in result.warnings}
    assert "from elsewhere" in summary(result)[0]
    assert result.rests_on.energy_verdicts == {"suspect": 6}


def test_batches_of_unknown_quality_need_to_be_asked_for():
    settings = [{"gpus": n, "global_batch": 64 * n, "local_batch": 64} for n in (1, 2, 4)]
    tables = runs_of(settings, [spread(100.0 / n**0.9) for n in (1, 2, 4)])
    result = advice_of(tables)
    assert result.recommended.setting.global_batch == 64
    assert result.warnings[0].code == "batch-quality-unknown"
    assert "--any-batch" in summary(result)[0]
    assert result.any_batch.setting.global_batch == 256
    assert result.any_batch_savings.time.mean == pytest.approx(4**-0.9 - 1, rel=0.01)
    assert result.to_dict()["any_batch"]["source"] == "measured"
    assert any("batch 256 (64 each)" in line for line in summary(result)[1:])
    # Of runs none but those of 4 GPUs meet it; the model misses none of these runs.
    linear = runs_of(settings, [spread(100.0 / n) for n in (1, 2, 4)])
    bounded = advice_of(linear, deadline_s=3 * 49.0, epochs=3)
    larger, nearest = bounded.any_batch, bounded.nearest
    assert (bounded.recommended, larger.gpus) == (None, 4)
    assert nearest.is_predicted and nearest.extrapolates
    saved = larger.train_time_s.mean / nearest.train_time_s.mean - 1
    assert bounded.any_batch_savings.time.mean == pytest.approx(saved)
    text = " ".join(summary(bounded))
    for words in ("(predicted, outside of", "against the nearest", "it meets the deadline"):
        assert words in text
    in_use = advice_of(tables, baseline={"gpus": 2})
    assert in_use.recommended.setting.global_batch == 128
    every = advice_of(tables, any_batch=True)
    assert every.recommended.setting.global_batch == 256
    assert every.any_batch is every.any_batch_savings is None
    assert "batch-quality-unknown" not in {warning.code for warning in every.warnings}


def test_batches_up_to_the_largest_of_known_quality_are_recommended():
    made = kit(watts={"A100": 300.0}, growing=False, repeats=3)  # quality falls beyond 512
    table = run_metrics(made.runs, made.epochs)
    result = advise(table, made.epochs, "resnet50")
    assert result.recommended.setting.global_batch == 512
    assert result.recommended.to_dict()["quality_known"]
    assert "batch-excluded" in {warning.code for warning in result.warnings}


def test_a_limit_that_leaves_no_batch_of_known_quality_is_answered_by_the_nearest():
    made = kit(watts={"A100": 300.0}, growing=False, repeats=3)
    large = made.runs[(made.runs["gpus"] > 1) | (made.runs["global_batch"] == 1024)]
    result = advise(run_metrics(large, made.epochs), made.epochs, "resnet50", max_gpus=1)
    assert result.recommended is None
    assert result.nearest.gpus == 1
    assert result.nearest.setting.global_batch == 1024
    json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("hardware", "worker"),
    [("T4", "GPU"), ("4 x H100", "GPU"), ("AMD Instinct MI300X", "GPU"),
     ("AMD EPYC 7V13", "worker"), (None, "worker")],
)  # fmt: skip
def test_the_name_of_a_gpu_makes_its_workers_gpus(hardware, worker):
    runs = pd.DataFrame({"hardware": [hardware], "sm_util_mean": None, "gpu_energy_j": None})
    assert worker_noun(runs) == worker
    assert worker_noun(runs.assign(gpu_energy_j=5.0)) == "GPU"


def test_one_run_of_each_setting_without_energy_and_batch_has_a_recommendation():
    names = {"global_batch": None, "local_batch": None, "launcher": "imported"}
    runs = [run_row(f"{n}", gpus=n, **names) for n in (1, 2, 4, 8)]
    windows = [
        window_row(f"{n}", 0, duration_s=100 / n**0.9, samples=None, steps=None)
        for n in (1, 2, 4, 8)
    ]
    result = advice_of(frames(runs, windows))
    assert result.recommended.gpus == 8
    assert result.probability is None  # no repeat tells how much these runs vary
    assert result.savings.energy is None
    assert result.next_measurement.option.gpus == 8  # it ran once
    json.dumps(result.to_dict(), allow_nan=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a store of dimenet on 2 to 128 GPUs under caps and clocks."""
    made = mit(models={"dimenet": MIT["dimenet"]}, noise=0.02)
    return write_store(tmp_path_factory.mktemp("store"), made.runs, made.epochs).path


ASKED: tuple[dict[str, object], ...] = (
    {"baseline": "gpus=8,clock_limit_mhz=735", "max_slowdown": "50%", "grid": "400"},
    {"any_batch": True, "deadline": "1s", "max_gpus": 2},
    {"any_batch": True, "deadline": "20min", "epochs": 90, "max_gpus": 256, "price": "0.2",
     "baseline": "gpus=2,power_limit_w=200", "grid": "de", "price_per_gpu_hour": "2"},
)  # fmt: skip


def test_a_batch_that_the_script_ignored_is_not_predicted():
    sizes = [{"global_batch": size, "local_batch": size} for size in (32, 128)]
    runs, epochs = runs_of(sizes, [spread(100.0), spread(60.0)])
    asked = {"max_global_batch": 128, "in_use": {"gpus": 1, "global_batch": 64}}
    between = advice_of((runs, epochs), **asked)
    assert (between.baseline.source, between.baseline.global_batch) == ("predicted", 64)
    # One run was to have a batch of 64, and had 32.
    runs = runs.assign(global_batch_declared=[64.0, *[None] * (len(runs) - 1)])
    ran = advice_of((runs, epochs), **asked)
    assert ran.baseline_is == "fastest"
    assert "batch-not-as-declared" in {item.code for item in ran.warnings}


def test_a_setting_that_no_run_is_near_is_at_most_90_percent_sure():
    sizes = [{"gpus": gpus, "nodes": 1, "local_batch": 64, "global_batch": 64 * gpus}
             for gpus in (1, 2, 4)]  # fmt: skip
    tables = runs_of(sizes, [spread(100.0), spread(51.0), spread(26.0)])
    found = advice_of(tables, minimize="time", any_batch=True).recommended
    assert found.is_measured
    for gpus, batch, is_near in ((8, 64, True), (32, 64, False), (4, 128, False)):
        setting = replace(found.setting, gpus=gpus, gpus_per_node=None, local_batch=batch)
        option = replace(found, setting=setting, source="predicted")
        assert option.is_measured == is_near, (gpus, batch)
        decision = Decision(
            "s", "w", "measured", {"minimize": "time"}, setting, 0.01, 0.98, None, 0.02, 0.9, 1.0,
            4.0, 3, None,
        )  # fmt: skip
        choice = Choice(option, "", (option,), Question(), "time", eligible=(option,))
        decided = as_decided(decision, choice, found, [found], tables[0])
        assert decided.probability == (0.98 if is_near else 0.9)


@pytest.mark.parametrize("asked", ASKED)
def test_the_first_screen_is_short_and_the_rest_is_on_demand(asked, store, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code = advise_command([store], **asked)
    first = capsys.readouterr().out.splitlines()
    assert len(first) <= LINES
    assert max(map(len, first)) <= 80
    assert code == (1 if first[0].startswith("Nothing to recommend") else 0)
    assert advise_command([store], **asked, details=True) == code
    every = capsys.readouterr().out.splitlines()
    assert every[: len(first)] == first
    assert any(line.startswith("Warning: ") for line in every)


#: A piece of the line that says each warning which is not printed as it is.
SAID = {
    "quality-falls": "quality is lower at this batch",
    "batch-quality-unknown": "the quality of larger batches is unknown",
    "short-run": "too few or too unsteady steps",
    "work-unknown": "may have done different work",
    "decision-differs": "decision leads with another setting",
    "only-the-mean-meets": "only the mean meets",
    "energy-estimated": "estimated from CPU use",
    "no-energy": "energy is not known",
    "electricity-not-counted": "electricity is not counted",
    "epochs-differ": "- The text.",
    "epochs-unknown": "This is a job of 1 epoch",
    "energy-suspect": "energies are suspect",
    "energy-reason": "energies are suspect",
    "predicted": "predicted from measured runs",
    "extrapolated": "outside of their range",
}


def test_each_warning_that_is_not_printed_has_a_line_that_says_it():
    assert SAID.keys() == {*advice_text._SAID}
    found = replace(advice_of(caps(spread(100.0), spread(80.0))), warnings=())
    for code, piece in SAID.items():
        beyond = ("gpus",) if code == "extrapolated" else ()
        is_predicted = code in ("predicted", "extrapolated")
        source = "predicted" if is_predicted else found.recommended.source
        option = replace(found.recommended, source=source, extrapolates=beyond)
        warned = replace(found, recommended=option, warnings=(Caution(code, "The text."),))
        assert piece in " ".join(summary(warned)), code
        assert piece not in " ".join(summary(found)), code


@pytest.mark.parametrize("asked", [{"any_batch": True}, {"max_slowdown": "50%"}])
def test_the_terminal_has_every_warning_of_python(asked, store, capsys):
    advise_command([store], **asked)
    shown = " ".join(capsys.readouterr().out.split())
    warnings = results.open(store).advise(**asked).warnings
    codes = {item.code for item in warnings}
    implied = {code for code, other in advice_text.IMPLIED.items() if other in codes}
    missing = {item.code for item in warnings if str(item) not in shown}
    assert missing <= {*SAID, *implied}
    assert bool(codes - missing) == ("any_batch" in asked)  # lines of their own


def test_the_command_prints_json_that_is_the_advice(store, capsys):
    code = advise_command([store], "dimenet", deadline="30min", epochs=3, grid="400",
                          baseline="gpus=2", any_batch=True, as_json=True)  # fmt: skip
    plain = json.loads(capsys.readouterr().out)
    assert code == 0
    asked = {"deadline": 1800, "epochs": 3, "grid": 400, "baseline": {"gpus": 2}}
    assert plain == results.open(store).advise(**asked, any_batch=True).to_dict()
    assert {"recommended", "baseline", "savings", "probability", "ties", "rests_on",
            "next_measurement", "pareto", "warnings"} <= set(plain)  # fmt: skip
    assert set(plain["pareto"][0]) == set(plain["recommended"])
    assert all(row["code"] for row in plain["warnings"])


def test_several_workloads_have_a_row_each(tmp_path, capsys, monkeypatch):
    models = {name: MIT[name] for name in ("dimenet", "schnet")}
    made = mit(models=models, counts=(2, 4), repeats=2, clocks=False)
    two = write_store(tmp_path / "store", made.runs, made.epochs).path
    monkeypatch.setenv("COLUMNS", "500")
    assert advise_command([two], any_batch=True) == 0
    names = ("dimenet", "schnet")
    lines = [
        line for line in capsys.readouterr().out.splitlines() if line.strip().startswith(names)
    ]
    assert [re.findall("dimenet|schnet", line) for line in lines] == [["dimenet"], ["schnet"]]
    best = [results.open(two).advise(name, any_batch=True).recommended.label for name in names]
    assert all(label.split(", ")[0] in line for label, line in zip(best, lines, strict=True))
    assert advise_command([two], max_gpus=1) == 1
    assert capsys.readouterr().out.count("No setting") == 2
    assert advise_command([two], any_batch=True, as_json=True) == 0
    assert [row["workload"] for row in json.loads(capsys.readouterr().out)] == ["dimenet", "schnet"]
