"""Advice: what it chooses under which constraints, and that it says how far the data carry it."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from asking import advise
from made_studies import MIT, Made, kit, mit
from made_tables import frames, run_row, window_row
from public_data import ORIGINS, public_csv
from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.advise.possible_options import WIDEST
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.common.errors import BadInput, Refused
from wattlaw.report.topics.advice_text import summary
from wattlaw.study.footprint import Footprint

DIMENET = {"dimenet": MIT["dimenet"]}
CELL = ["gpu", "dataset", "network", "batch_size", "optimizer"]


@pytest.fixture(scope="module")
def made():
    """Give dimenet on 2 to 128 GPUs under caps and clocks: 200 W costs no time and saves 15 %."""
    return mit(models=DIMENET, noise=0.005)


@pytest.fixture(scope="module")
def batches():
    """Give resnet50 on one board; its quality falls beyond a global batch of 512."""
    return kit(watts={"A100": 300.0}, growing=False)


@pytest.fixture(scope="module")
def found(made):
    return advice(made)


def advice(made: Made, workload: str = "dimenet", **asked: object) -> Advice:
    """Return the advice; the batch of these workloads grows with the GPUs without a quality."""
    asked = {"any_batch": True} | asked
    return advise(run_metrics(made.runs, made.epochs), made.epochs, workload, **asked)


def picked(found: Advice) -> tuple[int, float | None, float | None]:
    setting = found.recommended.setting
    return setting.gpus, setting.power_limit_w, setting.clock_limit_mhz


def said(found: Advice, words: str) -> bool:
    return any(words in warning.text for warning in found.warnings)


def cells_of(made: Made) -> pd.DataFrame:
    table = run_metrics(made.runs, made.epochs)
    by = ["gpus", "global_batch", "power_limit_w", "clock_limit_mhz"]
    cells = table.groupby(by, dropna=False)[["epoch_time_s", "energy_per_epoch_j"]]
    return cells.mean().reset_index()


def test_without_constraints_it_is_the_least_energy_delay_product(made, found):
    table = cells_of(made)
    best = table.loc[(table["epoch_time_s"] * table["energy_per_epoch_j"]).idxmin()]
    assert picked(found)[:2] == (best["gpus"], best["power_limit_w"]) == (128, 200)
    assert found.recommended.time_s.mean == pytest.approx(best["epoch_time_s"])
    assert found.recommended.energy_j.mean == pytest.approx(best["energy_per_epoch_j"])
    assert "least energy x time of 35 measured settings" in found.reason


@pytest.mark.parametrize("hours", [0.06, 0.3])
def test_with_a_deadline_it_is_the_least_energy_that_meets_it(made, hours):
    found = advice(made, deadline_s=3600 * hours, epochs=3)
    table = cells_of(made)
    meeting = table[3 * table["epoch_time_s"] <= 3600 * hours]
    best = meeting.loc[meeting["energy_per_epoch_j"].idxmin()]
    assert picked(found)[0] == best["gpus"]
    assert found.recommended.setting.power_limit_w == best["power_limit_w"]
    assert found.recommended.train_time_s.high <= 3600 * hours


def test_with_a_budget_it_is_the_fastest_within_it(made):
    table = cells_of(made)
    budget_j = 1.01 * table["energy_per_epoch_j"].median()
    found = advice(made, energy_budget_j=budget_j, epochs=1)
    assert found.recommended.train_energy_j.high <= budget_j
    within = table[table["energy_per_epoch_j"] <= budget_j]
    assert found.recommended.time_s.mean >= within["epoch_time_s"].min()
    assert "least time" in found.reason
    hours = table.eval("gpus * epoch_time_s / 3600")
    most = 1.01 * hours.median()
    found = advice(made, max_gpu_hours=most, epochs=1)
    assert found.recommended.gpu_hours.high <= most
    assert found.recommended.time_s.mean >= table[hours <= most]["epoch_time_s"].min()
    assert found.goal == "time"


@pytest.mark.parametrize("origin", ORIGINS)
def test_the_best_cap_within_10_percent_equals_an_exhaustive_search(origin):
    table = pd.read_csv(public_csv("power_caps.csv", origin))
    runs, epochs = [], []
    for i, row in enumerate(table.to_dict("records")):
        name = "/".join(str(row[column]) for column in CELL)
        runs.append(run_row(f"{i:016x}", workload=name, power_limit_w=row["power_limit"]))
        epochs.append(
            window_row(f"{i:016x}", 0, duration_s=row["time_per_epoch"], energy_source="counter",
                       gpu_energy_j=row["energy_per_epoch_J"], energy_verdict="ok")
        )  # fmt: skip
    runs, epochs = frames(runs, epochs)
    made = run_metrics(runs, epochs)
    cells = [item for item in table.groupby(CELL) if item[1]["power_limit"].nunique() >= 4]
    chosen = cells[:: len(cells) // 4]
    assert len(chosen) >= 5
    for key, cell in chosen:
        near = cell[cell["time_per_epoch"] <= 1.1 * cell["time_per_epoch"].min()]
        best = near.loc[near["energy_per_epoch_J"].idxmin(), "power_limit"]
        name = "/".join(str(part) for part in key)
        found = advise(made[made["workload"] == name], epochs, name, max_slowdown=0.10)
        assert found.recommended.setting.power_limit_w == best


def test_no_measured_setting_dominates_the_pareto_front(made, found):
    front, table = found.pareto, cells_of(made)
    for one in front:
        better = (table["epoch_time_s"] < one.time_s.mean * (1 - 1e-9)) & (
            table["energy_per_epoch_j"] < one.energy_j.mean * (1 - 1e-9)
        )
        assert not better.any()
    ends = (table["epoch_time_s"].min(), table["energy_per_epoch_j"].min())
    assert (front[0].time_s.mean, front[-1].energy_j.mean) == pytest.approx(ends)
    times = [one.time_s.mean for one in front]
    assert times == sorted(times)


def test_a_deadline_beyond_what_was_measured_is_answered_by_a_prediction_with_a_warning():
    made = mit(models=DIMENET, counts=(2, 4, 8, 16, 32), noise=0.01, clocks=False)
    truth = MIT["dimenet"]
    deadline_s = 1.4 * truth.alpha_s * 128**-truth.beta  # 64 GPUs take 1.77 times that of 128
    found = advice(made, deadline_s=deadline_s, epochs=1)
    option = found.recommended
    assert (option.gpus, option.source) == (128, "predicted")
    assert option.time_s.low < truth.alpha_s * 128**-truth.beta < option.time_s.high
    told = found.to_dict()["recommended"]
    assert {"gpus", "nodes"} <= set(told["extrapolates"])
    assert told["source"] == "predicted"
    assert {"extrapolated", "far"} <= {warning.code for warning in found.warnings}


def test_predictions_end_where_their_intervals_are_wide():
    made = mit(models=DIMENET, counts=(2, 4, 8), noise=0.005)
    with pytest.raises(Refused, match="max_gpus: given 4096 GPUs; allowed: at most 512"):
        advice(made, deadline_s=1, max_gpus=4096)
    found = advice(made, deadline_s=1, max_gpus=4096, far=True)
    assert found.recommended is None
    predicted = [one for one in found.pareto if one.is_predicted]
    assert predicted
    assert all(one.time_s.high <= WIDEST * one.time_s.low for one in predicted)


def test_a_better_setting_that_did_not_run_is_what_to_measure_next():
    """Give 8 GPUs at 250 W alone; all others ran at 200 W too, which saves energy at no time."""
    made = mit(models=DIMENET, counts=(2, 4, 8), noise=0.005, clocks=False)
    runs = made.runs[(made.runs["gpus"] < 8) | made.runs["power_limit_w"].isna()]
    found = advise(
        run_metrics(runs, made.epochs), made.epochs, "dimenet", max_slowdown=0.05, any_batch=True
    )
    assert found.recommended.source == "measured"
    assert found.probability < 0.5
    better = [tie.option for tie in found.ties if tie.probability_better > 0.9]
    assert better
    assert all((item.source, item.gpus) == ("predicted", 8) for item in better)
    assert [tie.option for tie in found.ties if tie.is_better] == better
    text = " ".join(summary(found))
    assert "Probably better: 8 GPUs" in text
    assert "saves nothing" not in text  # no setting is clearly best
    assert found.next_measurement.option.gpus == 8
    assert not found.next_measurement.is_repeat


def test_measured_once_means_an_interval_from_public_data_and_a_word():
    made = mit(models=DIMENET, repeats=1)
    found = advice(made, deadline_s=3600)
    option = found.to_dict()["recommended"]
    # t with Satterthwaite's degrees of freedom of runs (2 %, 2), sessions (1 %, 4), nodes (3 %, 4).
    total = 0.02**2 + 0.01**2 + 0.03**2
    freedom = total**2 / (0.02**4 / 2 + 0.01**4 / 4 + 0.03**4 / 4)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(total)
    mean = option["epoch_time_s"]
    assert option["epoch_time_s_ci"] == pytest.approx([mean * np.exp(-half), mean * np.exp(half)])
    assert option["interval_from"] == "public data"
    assert "measured-once" in {warning.code for warning in found.warnings}


def test_without_energy_advice_is_by_time_with_a_warning():
    made = mit(models=DIMENET, energy=False)
    found = advice(made, deadline_s=3600)
    assert said(found, "No energy is known")
    assert "least GPU-hours" in found.reason
    assert found.to_dict()["recommended"]["energy_j"] is None
    assert found.to_dict()["recommended"]["cost"] is None
    budget = advice(made, energy_budget_j=1e6)
    assert budget.recommended is None
    assert "energy budget cannot be checked" in budget.reason


@pytest.mark.parametrize("goal", ["cost", "carbon"])
def test_without_energy_cost_and_carbon_are_by_gpu_hours(goal):
    made = mit(models=DIMENET, energy=False)
    factors = {"price_per_kwh": 0.3, "currency": "EUR", "grid_g_per_kwh": 400}
    hours = cells_of(made).eval("gpus * epoch_time_s / 3600").min()
    result = advice(made, minimize=goal, footprint=Footprint(**factors), epochs=1)
    assert result.recommended.gpu_hours.mean == pytest.approx(hours)
    assert result.goal == "GPU-hours"
    assert result.recommended.cost is result.recommended.co2_kg is None
    rented = Footprint(**factors, price_per_gpu_hour=2.0)
    result = advice(made, minimize=goal, footprint=rented, epochs=1)
    assert result.recommended.gpu_hours.mean == pytest.approx(hours)
    codes = {warning.code for warning in result.warnings}
    assert ("electricity-not-counted" in codes) == (goal == "cost")
    if goal == "cost":
        assert (result.goal, result.recommended.cost.mean) == ("cost", pytest.approx(2 * hours))


def test_a_batch_at_which_quality_falls_is_recommended_if_any_batch_may_be(batches):
    runs, epochs = batches.runs, batches.epochs.copy()
    large = epochs["run_id"].isin(runs.loc[runs["global_batch"] == 1024, "run_id"])
    epochs.loc[large & (epochs["phase"] == "train"), "duration_s"] /= 10
    table = run_metrics(runs, epochs)
    quickest = table[table["global_batch"] < 1024]["epoch_time_s"].min()
    asked = {"max_gpus": 16, "epochs": 1, "deadline_s": 0.5 * quickest}
    found = advise(table, epochs, "resnet50", **asked)
    assert found.recommended is None
    found = advise(table, epochs, "resnet50", **asked, any_batch=True)
    assert found.recommended.setting.global_batch == 1024
    assert found.warnings[0].code == "quality-falls"


def test_to_a_target_epochs_are_those_that_each_global_batch_took(batches):
    runs, epochs = batches.runs, batches.epochs.copy()
    batch = epochs["run_id"].map(runs.set_index("run_id")["global_batch"])
    judged = epochs["phase"] == "evaluate"
    # Small batches get there after two epochs, 512 after three; 1024 never does.
    after = np.where(batch >= 512, 3, 2)
    epochs.loc[judged, "metric"] = np.where(epochs["epoch"] + 1 >= after, 0.75, 0.5)[judged]
    epochs.loc[judged & (batch == 1024), "metric"] = 0.5
    table = run_metrics(runs, epochs)
    found = advise(table, epochs, "resnet50", target=0.7, max_slowdown=100.0)
    assert {one.epochs.mean for one in found.pareto} <= {2.0, 3.0}
    assert said(found, "Global batch 1024 is excluded: 0 of 5 repeats reached the target")
    for one in found.pareto:
        took = 3 if one.setting.global_batch >= 512 else 2
        assert one.train_time_s.mean == pytest.approx(took * one.time_s.mean)
    with pytest.raises(Refused, match="no global batch reached"):
        advise(table, epochs, "resnet50", target=0.9)


def test_cost_and_carbon_have_the_energys_interval(made):
    factors = Footprint(pue=1.5, grid_g_per_kwh=400, price_per_kwh=0.2, currency="EUR")
    found = advice(made, footprint=factors)
    told = found.to_dict()["recommended"]
    kwh = told["train_energy_j"] / 3.6e6
    assert told["cost"] == pytest.approx(1.5 * 0.2 * kwh)
    assert told["co2_kg"] == pytest.approx(1.5 * 0.4 * kwh)
    ends = [1.5 * 0.4 * end / 3.6e6 for end in told["train_energy_j_ci"]]
    assert told["co2_kg_ci"] == pytest.approx(ends)


def test_energies_that_count_different_things_are_not_compared(made):
    runs, epochs = made.runs, made.epochs.copy()
    few = runs.loc[runs["gpus"] == 2, "run_id"]
    epochs.loc[epochs["run_id"].isin(few), "cpu_energy_j"] = 1.0
    found = advise(run_metrics(runs, epochs), epochs, "dimenet", any_batch=True)
    assert all(one.gpus > 2 for one in found.pareto)
    assert said(found, "Compared: gpu, counter. Excluded from comparisons of energy: gpu+cpu")


@pytest.mark.parametrize("asked", [{"max_gpus": 0}, {"deadline_s": 0.0}, {"epochs": 0},
                                   {"max_slowdown": -0.1}, {"energy_budget_j": float("nan")},
                                   {"epochs": 3, "target": 0.5}])  # fmt: skip
def test_a_constraint_that_nothing_can_keep_is_bad_input(made, asked):
    with pytest.raises(BadInput):
        advice(made, **asked)


def of_steps(steps: int, error: float, repeats: int = 3) -> Advice:
    """Return the advice on two batches, of which the faster one has runs of such steps."""
    runs, windows = [], []
    for batch, count, own in ((64, 100, 0.001), (128, steps, error)):
        for repeat in range(repeats):
            name = f"{batch}-{repeat}"
            runs.append(run_row(name, global_batch=batch, local_batch=batch, repeat=repeat,
                                measure_steps=100))  # fmt: skip
            windows.append(
                window_row(name, None, phase="steps", steps=count, samples=batch * count,
                           duration_s=0.01 * count * (1 + 0.001 * repeat), step_time_error=own)
            )  # fmt: skip
    table, epochs = frames(runs, windows)
    return advise(run_metrics(table, epochs), epochs, "digits-cnn", any_batch=True)


@pytest.mark.parametrize(
    ("steps", "error", "is_short"),
    [(100, 0.001, False), (4, 0.001, True), (100, 0.08, True), (12, 0.04, False)],
)
def test_runs_that_are_too_short_or_unsteady_to_be_sure_by(steps, error, is_short):
    found, best = of_steps(steps, error), 128
    assert found.recommended.global_batch == best
    assert any(warning.code == "short-run" for warning in found.warnings) == is_short
    assert (found.probability <= 0.9) == is_short
    assert ("too few or too unsteady steps" in " ".join(summary(found))) == is_short
    assert ("no more, since its runs are too short" in " ".join(summary(found))) == is_short
    if is_short:
        assert found.next_measurement.option.global_batch == best
        (line,) = (line for line in summary(found) if line.startswith("- Measure next"))
        assert "more steps under measure" in line and "repeats:" not in line


def test_the_error_of_a_mean_by_its_own_steps_widens_the_interval():
    """Three runs of 100 steps in ten blocks: Student's t of the blocks over that of many."""
    steady, unsteady = of_steps(100, 0.001), of_steps(100, 0.08)
    wide = unsteady.recommended.time_s
    own = 0.08 * stats.t.ppf(0.975, 9) / 1.96 / 3**0.5
    assert np.log(wide.high / wide.mean) > 1.96 * own
    narrow = steady.recommended.time_s
    assert np.log(narrow.high / narrow.mean) < 1.96 * own
