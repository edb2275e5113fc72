"""Calibration: it recovers known parameters and predicts measurements of power caps."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pytest

from made_jobs import job, profile
from public_data import ORIGINS, public_csv
from wattlaw.cli.main import main
from wattlaw.errors import BadInput, Refused
from wattlaw.launch.simulated.calibration_data import (
    WorkloadSource,
    calibration_data,
)
from wattlaw.launch.simulated.machine import calibrated_key, matching_keys, workload_key
from wattlaw.simulator.calibration import (
    Calibration,
    MeasuredSetting,
    apply_calibration,
    calibrate,
    calibration_json,
    prediction_intervals,
    read_calibration,
)
from wattlaw.simulator.calibration_summary import fit_errors, fitted_parameters, fitted_work_factors
from wattlaw.simulator.job import Parameters, SimulatedJob
from wattlaw.simulator.library import read_cluster
from wattlaw.simulator.predict import predict

TRUE = Parameters(
    compute_fp32=0.6, bandwidth=0.72, kernel_us=4.0, network=0.6, least_voltage=0.84,
    power_busy=0.3, power_compute=0.5, power_memory=0.3,
)  # fmt: skip
NOISE = 0.02
BOARD = read_cluster("mit-v100").gpu


def measured(of: SimulatedJob, dice: np.random.Generator) -> MeasuredSetting:
    """Return a job as if it had been measured where ``TRUE`` holds."""
    train = predict(replace(of, parameters=TRUE)).train
    time, power = np.exp(dice.normal(0, NOISE, 2))
    return MeasuredSetting(of, "plain", train.duration_s * time, train.gpu_power_w * power)


def settings() -> Iterator[SimulatedJob]:
    """Yield settings of few seconds of simulator each, data sets of whole steps."""
    for place, (gpus, batch) in enumerate([(1, 4), (1, 16), (1, 64), (2, 16), (8, 16), (16, 64)]):
        samples = 64_000 * gpus
        for clock_mhz in (None, 900.0 + 20 * place):
            yield job(gpus, local_batch=batch, samples=samples, clock_limit_mhz=clock_mhz)
        if gpus == 1:
            yield job(gpus, local_batch=batch, samples=samples, power_limit_w=110.0 + 20 * place)


def others() -> Iterator[SimulatedJob]:
    """Yield settings that nothing was fitted to."""
    for gpus, batch, cap_w in ((1, 32, None), (1, 8, 140.0), (4, 32, None), (4, 8, 200.0)):
        yield job(gpus, local_batch=batch, samples=64_000 * gpus, power_limit_w=cap_w)


@pytest.fixture(scope="module")
def fitted() -> list[Calibration]:
    """Return calibrations to measurements that differ in nothing but their noise."""
    found = []
    for seed in range(2):
        dice = np.random.default_rng(seed)
        found.append(calibrate([measured(one, dice) for one in settings()], "made"))
    return found


def test_known_parameters_lie_within_their_intervals(fitted: list[Calibration]) -> None:
    truth = TRUE.model_dump() | {"knee": BOARD.knee_clock_mhz / BOARD.max_clock_mhz}
    inside = [
        one.low <= truth[one.name] <= one.high
        for calibration in fitted
        for one in fitted_parameters(calibration, BOARD)
    ]
    assert np.mean(inside) >= 0.9
    for calibration in fitted:
        by_name = {one.name: one for one in fitted_parameters(calibration, BOARD)}
        assert by_name["power_busy"].is_identified
        assert not by_name["compute_tensor"].is_identified  # nothing ran on it
        assert by_name["compute_tensor"].value == pytest.approx(0.45)
        (factor,) = fitted_work_factors(calibration)
        assert factor.low <= 1 <= factor.high
        assert calibration.time_sigma == pytest.approx(NOISE, rel=0.6)


def test_held_out_settings_are_within_their_intervals(fitted: list[Calibration]) -> None:
    inside, widths = [], []
    for calibration in fitted:
        for of in others():
            truth = predict(replace(of, parameters=TRUE)).train
            told = prediction_intervals(of, calibration, "plain")
            for name, true in (
                ("epoch_time_s", truth.duration_s),
                ("gpu_power_w", truth.gpu_power_w),
                ("gpu_energy_j", truth.gpu_energy_j),
            ):
                inside.append(told[name].low <= true <= told[name].high)
                widths.append(told[name].high / told[name].low - 1)
    assert np.mean(inside) >= 0.9
    assert np.median(widths) < 0.25  # they say something


def test_a_workload_that_was_not_measured_is_less_certain(fitted: list[Calibration]) -> None:
    known, unknown = (prediction_intervals(job(1), fitted[0], name) for name in ("plain", "other"))
    for name in known:
        assert unknown[name].high / unknown[name].low > known[name].high / known[name].low


@pytest.mark.parametrize(
    "change",
    [{"covariance": 1e18}, {"covariance": 1e300}, {"freedom": 1e-3}, {"time_sigma": 1e3}],
)
def test_an_uninformative_calibration_has_a_finite_interval(fitted, change) -> None:
    if "covariance" in change:
        variances = np.full(len(fitted[0].names), change["covariance"])
        change = {"covariance": tuple(map(tuple, np.diag(variances)))}
    told = prediction_intervals(job(1), fitted[0].model_copy(update=change), "plain")[
        "epoch_time_s"
    ]
    assert 0 < told.low < 1e-100
    assert 1e100 < told.high < np.inf


def test_a_calibration_is_the_same_after_a_file(tmp_path: Path, fitted: list[Calibration]) -> None:
    path = tmp_path / "c.json"
    path.write_text(calibration_json(fitted[0]), encoding="utf-8")
    again = read_calibration(path, BOARD)
    assert again == fitted[0]
    assert again.digest == fitted[0].digest != fitted[1].digest


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gpu": "abacus"}, "allowed for this hardware: NVIDIA V100 PCIe 32 GB"),
        ({"names": ["a"]}, "names: not the parameters of this version"),
        ({"covariance": [[1.0]]}, "covariance: not"),
        ({"time_sigma": -1.0}, "time_sigma: given -1"),
        ({"work_factors": {"plain": -1.0}}, "work_factors"),
        ({"settings": None}, "settings: given null"),
        ({"work_factors": {"plain": 1e300}}, "work_factors.plain: given 1e+300"),
        ({"time_sigma": 1e6}, "time_sigma: given"),
        ({"more": 1}, "more: unknown key"),
    ],
)
def test_a_calibration_of_another_board_is_rejected(
    tmp_path: Path, fitted: list[Calibration], change: dict[str, Any], told: str
) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(json.loads(calibration_json(fitted[0])) | change), encoding="utf-8")
    with pytest.raises(BadInput, match=r"c\.json") as caught:
        read_calibration(path, BOARD)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_covariance_of_no_numbers_is_refused(tmp_path: Path, fitted: list[Calibration]) -> None:
    size = len(fitted[0].names)
    path = tmp_path / "c.json"
    wrong = fitted[0].model_copy(update={"covariance": tuple(map(tuple, -np.eye(size)))})
    path.write_text(calibration_json(wrong), encoding="utf-8")
    with pytest.raises(BadInput, match="not symmetric and positive semidefinite"):
        read_calibration(path)
    huge = np.full((size, size), 1.7e308)
    wrong = fitted[0].model_copy(update={"covariance": tuple(map(tuple, huge))})
    path.write_text(calibration_json(wrong), encoding="utf-8")
    with pytest.raises(BadInput, match="covariance"):
        read_calibration(path)


def test_a_workload_matches_exactly_or_as_the_only_similar_one(fitted: list[Calibration]) -> None:
    def of(*names: str) -> Calibration:
        return fitted[0].model_copy(update={"work_factors": dict.fromkeys(names, 1.0)})

    key = workload_key(profile(options={"width": 2}))
    assert key == "plain (width=2)"
    assert calibrated_key(of("plain", key, f"{key} [data=a]"), key) == key
    assert calibrated_key(of("plain", f"{key} [data=a]"), key) == f"{key} [data=a]"
    assert calibrated_key(of(f"{key} [data=a]", f"{key} [data=b]"), key) == key
    assert matching_keys(of(f"{key} [data=a]", f"{key} [data=b]"), "plain") == []


def test_two_settings_are_too_few() -> None:
    with pytest.raises(Refused, match="three settings"):
        calibrate([MeasuredSetting(job(1), "plain", 1.0)] * 2)


# Measurements of one V100: two networks on three data sets, seven caps.

#: The table has no sample counts. ImageNet-2012; features that Hugging Face's run_qa makes of
#: SQuAD 1.1 for BERT at 384 tokens; the data set's card.
SAMPLES = {"imagenet": 1_281_167, "squad": 88_524, "sentiment140": 1_600_000}
NETS = {"resnet50": "resnet50", "bert_base_uncased": "bert-base"}
MAP = (
    "gpus=@1,epoch_time_s=time_per_epoch,power_w=average_power,workload=network,"
    "local_batch=batch_size,power_limit_w=power_limit,samples=samples,options.dataset=dataset"
)


class Traces(NamedTuple):
    """Rows of a V100, half of which a calibration was fitted to, and the folder of the latter."""

    fit: list[dict[str, str]]
    others: list[dict[str, str]]
    folder: Path

    @property
    def calibration(self) -> Path:
        return self.folder / "calibration.json"


@pytest.fixture(scope="module", params=ORIGINS)
def traces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """Import half of the rows, in an order in which neighbours differ, and calibrate with them.

    Sample counts are cut to a multiple of the batch, by 0.1 % at most, which halves the
    simulator's work.
    """
    with public_csv("power_caps.csv", request.param).open(encoding="utf-8", newline="") as file:
        table = [one for one in csv.DictReader(file) if one["gpu"] == "V100"]
    rows = [one for one in table if one["network"] in NETS]
    for one in rows:
        count, batch = SAMPLES[one["dataset"]], int(one["batch_size"])
        one["samples"] = str(count - count % batch)
    rows = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]
    if request.param == "generated":
        rows = rows[:35]
    made = Traces(rows[::2], rows[1::2], tmp_path_factory.mktemp("traces"))
    with (made.folder / "half.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(made.fit)
    store = str(made.folder / "store")
    line = ["import", str(made.folder / "half.csv"), "--map", MAP, "--hardware", "V100"]
    assert main([*line, "--store", store]) == 0
    line = ["calibrate", store, "--hardware", "v100-pcie-32gb", "--as"]
    assert main([*line, "bert_base_uncased=bert-base", "-o", str(made.calibration)]) == 0
    return made


def names_of(row: dict[str, str]) -> tuple[str, str]:
    """Return a row's workload, and which of the calibration's it is."""
    own, name = NETS[row["network"]], row["network"]
    also = "" if own == name else f", runs={name}"
    return own, f"{own} [dataset={row['dataset']}{also}]"


def test_the_other_half_of_the_measurements_is_predicted_within_a_tenth(traces: Traces) -> None:
    calibration = read_calibration(traces.calibration, BOARD)
    times, energies, inside = [], [], []
    for place, own in enumerate(traces.others):
        of, key = measured_job(own), names_of(own)[1]
        train = predict(apply_calibration(of, calibration, key)).train
        time_s, power_w = float(own["time_per_epoch"]), float(own["average_power"])
        times.append(abs(train.duration_s / time_s - 1))
        energies.append(abs(train.gpu_energy_j / (time_s * power_w) - 1))
        if place % 3 == 0:
            told = prediction_intervals(of, calibration, key)["epoch_time_s"]
            inside.append(told.low <= time_s <= told.high)
    assert len(traces.others) in (17, 70)  # generated, public
    assert median(times) < 0.1
    assert median(energies) < 0.1
    assert np.mean(inside) > 0.85


def measured_job(row: dict[str, str]) -> SimulatedJob:
    """Return the job of a row."""
    found = calibration_data(
        [
            {
                "workload": row["network"], "options": json.dumps({"dataset": row["dataset"]}),
                "train": "{}", "hardware": "V100", "launcher": "imported", "nodes": 1, "gpus": 1,
                "global_batch": int(row["batch_size"]), "local_batch": int(row["batch_size"]),
                "precision": "fp32", "power_limit_w": float(row["power_limit"]),
                "clock_limit_mhz": None, "dataset_fraction": 1.0, "epoch_time_s": 1.0,
                "samples_per_epoch": float(row["samples"]), "power_per_gpu_w": None,
                "energy_source": "none",
            }
        ],
        read_cluster("v100-pcie-32gb"),
        {name: WorkloadSource(own) for name, own in NETS.items()},
    )  # fmt: skip
    return found.measured[0].job


def test_the_commands_predict_what_the_functions_do(
    traces: Traces, capsys: pytest.CaptureFixture[str]
) -> None:
    path = traces.calibration
    calibration = read_calibration(path)
    for own in traces.others[0:6:2]:
        workload, key = names_of(own)
        line = ["simulate", "-w", workload, "--hardware", "v100-pcie-32gb", "--calibration"]
        line += [str(path), "--as", key, "--samples", own["samples"], "--json"]
        line += ["--local-batch", own["batch_size"], "--power-limit", own["power_limit"]]
        assert main(line) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["calibration"] == f"calibrated {calibration.digest}"
        low, high = row["epoch_time_s_ci"]
        assert low < row["epoch_time_s"] < high
        train = predict(apply_calibration(measured_job(own), calibration, key)).train
        assert row["epoch_time_s"] == pytest.approx(train.duration_s)
        assert row["gpu_energy_per_epoch_j"] == pytest.approx(train.gpu_energy_j)


def test_simulate_lists_the_measured_data_sets_to_choose_from(
    traces: Traces, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["simulate", "--hardware", "v100-pcie-32gb", "--local-batch", "64", "--json",
            "--calibration", str(traces.calibration), "-w"]  # fmt: skip
    assert main([*line, "bert-base"]) == 0
    err = capsys.readouterr().err
    assert "choose one with --as" in err
    assert "bert-base [dataset=squad, runs=bert_base_uncased]" in err
    assert main([*line, "resnet50"]) == 0  # one data set, which is taken
    assert not capsys.readouterr().err
    assert main([*line, "vgg16"]) == 0
    assert "it has no factor for vgg16" in capsys.readouterr().err
    assert main([*line, "resnet50", "--as", "abacus"]) == 2
    assert "--as: 'abacus' is unknown; expected one of: " in capsys.readouterr().err


def test_the_fit_is_printed_with_its_residuals(
    traces: Traces, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration = read_calibration(traces.calibration)
    assert calibration.settings == len(traces.fit)
    assert f"{len(traces.fit)} runs of store" in calibration.made_from
    own = [one for one in traces.fit if one["network"] == "resnet50"][:6]
    again = [
        MeasuredSetting(measured_job(one), names_of(one)[1], float(one["time_per_epoch"]),
                 float(one["average_power"]))
        for one in own
    ]  # fmt: skip
    off = fit_errors(calibration, again)
    assert off.settings == 6
    assert off.time < 0.2
    assert off.energy is not None
    assert off.energy < 0.2


def test_settings_that_leave_nothing_to_judge_by_are_refused() -> None:
    dice = np.random.default_rng(0)
    three = [
        replace(measured(job(1, local_batch=16), dice), workload=name) for name in ("a", "b", "c")
    ]
    with pytest.raises(Refused, match="leave no degrees of freedom"):
        calibrate(three)


def test_few_settings_give_wide_intervals_that_contain_the_truth() -> None:
    """With four settings a residual's deviation is hardly known: Student's t says so."""
    inside = []
    for seed in range(6):
        dice = np.random.default_rng(100 + seed)
        four = [
            measured(job(1, local_batch=batch, samples=64_000, clock_limit_mhz=1000.0), dice)
            for batch in (4, 16, 64, 256)
        ]
        found = calibrate(four)
        assert found.freedom < 4
        new = measured(job(1, local_batch=32, samples=64_000, clock_limit_mhz=1000.0), dice)
        told = prediction_intervals(new.job, found, "plain")
        inside.append(told["epoch_time_s"].low <= new.epoch_time_s <= told["epoch_time_s"].high)
    assert sum(inside) >= 5
