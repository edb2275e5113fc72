"""Runs on paper: the same store as measured ones, the same numbers for the same seed."""

import json
import re
import signal

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import yaml

from conftest import parsed, records, started, study_of, wait_for
from made_runs import made_record, made_spec
from wattlaw.api import studies
from wattlaw.cli.main import main
from wattlaw.hardware import library
from wattlaw.running.planning import plan_study
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.store.statistics import statistics
from wattlaw.store.store import Store
from wattlaw.study.launching import Launch
from wattlaw.study.model import WorkloadSpec
from wattlaw.study.setting import Setting
from wattlaw_simulator.launching import SimulatedLauncher
from wattlaw_simulator.launching.simulated_machine import Machine
from wattlaw_simulator.launching.simulated_run import FAILURE, simulate

MIT = {"kind": "simulated", "simulation": {"hardware": "mit-v100"}}
SWEEPS = [{"gpus": [1, 2, 8], "local_batch": [4], "power_limit_w": [None, 150]}]
DIGITS = WorkloadSpec(name="digits-cnn")
V100 = library.read_cluster("mit-v100")


def plan(path, launch=None, **study):
    asked = {"launch": MIT | (launch or {}), "sweeps": SWEEPS} | study
    path.write_text(yaml.safe_dump(study_of(**asked)))
    return plan_study(path)


def begun(run, folder):
    """Return the record of a planned run and its folder."""
    place = RunFolder(folder / run.run_id)
    place.path.mkdir(parents=True)
    return made_record(run.run_id, run.spec, attempts=1), place


def test_the_same_seed_gives_the_same_tables_and_another_one_others(tmp_path):
    found = []
    for number, seed in enumerate((0, 0, 1)):
        simulation = MIT["simulation"] | {"seed": seed}
        planned = plan(tmp_path / "study.yaml", {"simulation": simulation})
        run = next(one for one in planned.runs if one.spec.setting.gpus == 8)
        record, folder = begun(run, tmp_path / str(number))
        simulate(Machine.from_launch(planned.study.launch), record, folder.path)
        found.append([pq.read_table(path).drop_columns(["run_id"])
                      for path in (folder.epochs_path, folder.telemetry_path)])  # fmt: skip
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]
    assert found[0][1]["power_w"] != found[2][1]["power_w"]


def test_the_label_has_what_changes_numbers_and_so_is_part_of_identity(tmp_path):
    def found(**simulation):
        launch = {"simulation": MIT["simulation"] | simulation}
        return plan(tmp_path / "study.yaml", launch, order="as_written").runs[0]

    plain = found()
    assert plain.spec.hardware == "mit-v100 (simulated, calibrated)"
    assert plain.run_id == found(fail_share=0.5).run_id
    seeded = found(seed=7)
    assert seeded.spec.hardware == "mit-v100 (simulated, calibrated, seed 7)"
    quality = found(critical_batch=512.0, epochs_to_target=90.0)
    assert "critical batch 512, 90 epochs" in quality.spec.hardware
    assert len({plain.run_id, seeded.run_id, quality.run_id}) == 3


def test_cluster_files_of_the_same_name_have_different_labels(tmp_path):
    own = tmp_path / "ours.yaml"
    labels = set()
    for cores in (40, 64):
        told = V100.model_dump(mode="json")
        told["node"]["cores"] = cores
        own.write_text(yaml.safe_dump(told))
        launch = {"kind": "simulated", "simulation": {"hardware": str(own)}}
        label = SimulatedLauncher.resolve(parsed(launch=launch)).launch.hardware
        assert re.fullmatch(r"ours [0-9a-f]{8} \(simulated, calibrated\)", label)
        labels.add(label)
    assert len(labels) == 2


def test_gpus_of_a_node_are_the_studys_or_the_clusters_and_make_the_nodes(tmp_path):
    def nodes(**launch):
        runs = plan(tmp_path / "study.yaml", launch).runs
        return {run.spec.setting.gpus: run.spec.nodes for run in runs}

    assert nodes() == {1: 1, 2: 1, 8: 4}
    assert nodes(gpus_per_node=1) == {1: 1, 2: 2, 8: 8}


@pytest.mark.parametrize(
    ("launch", "options", "expected"),
    [
        ({"simulation": {}}, [], "launch.simulation.hardware (or --hardware) is required"),
        ({"gpus_per_node": 3}, [], "launch.gpus_per_node: 3 is too large; allowed: 1 to 2"),
        ({"simulation": {"fail_share": 1.5}}, [], "given 1.5; allowed: the share of attempts"),
        ({"simulation": {"critical_batch": 5}}, [], "allowed: both or neither"),
        ({}, ["--hardware", "nowhere/x.yaml"], "nowhere/x.yaml: cannot be read"),
        ({"kind": "local"}, ["--hardware", "mit-v100"], "run: --hardware requires the launcher"),
    ],
)
def test_a_study_that_cannot_be_simulated_gives_a_one_line_error(
    launch, options, expected, write_study, tmp_path, capsys
):
    study = write_study(launch=MIT | launch, sweeps=SWEEPS)
    store = tmp_path / "store"
    assert main(["run", str(study), "--store", str(store), *options]) == 2
    told = capsys.readouterr().err
    assert expected in told
    assert told.count("\n") == 1
    assert not store.exists()


def test_a_killed_process_of_the_pool_fails_its_run_and_the_next_has_another_pool(tmp_path):
    planned = plan(tmp_path / "study.yaml")
    launcher = SimulatedLauncher.open(planned.study.launch, tmp_path)
    reasons = []
    for run in planned.runs[:2]:
        attempt = launcher.start(*begun(run, tmp_path), None)
        if not reasons:
            next(iter(launcher._pool._processes.values())).kill()
        reasons.append(wait_for(attempt.poll, "the run to end").reason)
    launcher.close()
    assert reasons == ["a simulating process was killed", None]


def spec_of(workload=DIGITS, **setting):
    setting = Setting(gpus=2, local_batch=4, **setting)
    return made_spec(setting, workload=workload, launch_kind="simulated")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (spec_of(), None),
        (spec_of(power_limit_w=100.0, clock_limit_mhz=735.0), None),
        (spec_of(WorkloadSpec(name="own", command=("python", "x.py"))), "command cannot be sim"),
        (spec_of(WorkloadSpec(name="digits-cnn", options={"width": 512})), "no profile is stored"),
        (spec_of(power_limit_w=251.0), "a power limit of 251 W is outside 100 to 250 W"),
        (spec_of(clock_limit_mhz=2000.0), "a clock limit of 2000 MHz is outside 135 to 1380 MHz"),
    ],
)
def test_a_run_that_can_never_be_simulated_is_refused_with_the_reason(spec, expected, tmp_path):
    launcher = SimulatedLauncher.open(Launch.model_validate(MIT), tmp_path)
    refusal = launcher.unsupported_reason(spec)
    assert refusal is None if expected is None else expected in refusal


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Give the store of a small study that was simulated by the command line."""
    folder = tmp_path_factory.mktemp("simulated")
    sweeps = [{"gpus": [1, 2, 8, 424], "local_batch": [2], "power_limit_w": [None, 150, 50]}]
    measure = {"epochs": 3, "sample_hz": 10}
    study = study_of(sweeps=sweeps, measure=measure, repeats=2, launch=MIT)
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    outcome = studies.run(folder / "study.yaml", folder / "store")
    assert (outcome.done, outcome.failed, outcome.skipped) == (16, 0, 8)
    return folder / "store"


def test_a_simulated_store_has_the_schema_of_measured_ones_and_says_simulated(store):
    of = Store(store)
    epochs, telemetry, runs = (of.pandas(name) for name in ("epochs", "telemetry", "runs"))
    assert of.arrow("epochs").schema == EPOCHS
    assert of.arrow("telemetry").schema == TELEMETRY
    assert len(epochs) == 16 * 3 * 2
    assert set(telemetry.power_source) == set(epochs.energy_source) == {"simulated"}
    assert set(runs.launcher) == {"simulated"}
    assert set(runs.hardware) == {"mit-v100 (simulated, calibrated)"}
    done = runs[runs.status == "done"]
    assert {json.loads(text)["simulator"] for text in done.software} == {"calibrated"}
    assert set(done.parameters) == {85066}
    assert done.sampler_cpu_share.isna().all()  # there was nothing to sample
    files = {path.name for path in of.folder(done.run_id.iloc[0]).path.iterdir()}
    assert files == {"run.json", "lock", "log.txt", "epochs.parquet", "telemetry.parquet"}


def test_windows_have_the_samples_and_updates_that_training_would_have(store):
    of = Store(store)
    runs, epochs = of.pandas("runs").set_index("run_id"), of.pandas("epochs")
    whole, rest = np.divmod(1437, epochs.run_id.map(runs.global_batch))  # digits: 1,437 and 360
    rest = rest.where(rest >= epochs.run_id.map(runs.gpus), 0)  # a sample for each rank, or none
    batch, train = epochs.run_id.map(runs.global_batch), epochs.phase == "train"
    assert (epochs.samples == whole * batch + rest)[train].all()
    assert (epochs.steps == whole + (rest > 0))[train].all()
    assert set(epochs.samples[~train]) == {360}


def test_all_nodes_of_a_run_are_one_host_with_the_energy_of_all_gpus(store):
    of = Store(store)
    runs, epochs = of.pandas("runs").set_index("run_id"), of.pandas("epochs")
    for run_id, hosts in epochs.groupby("run_id").host.agg(set).items():
        nodes = runs.nodes[run_id]
        assert hosts == {"sim0001" if nodes == 1 else f"sim[0001-{nodes:04d}]"}
    train = epochs[epochs.phase == "train"]
    gpus = train.run_id.map(runs.gpus)
    assert np.allclose(train.gpu_energy_j, gpus * train.gpu_power_mean_w * train.duration_s)
    boards = of.pandas("telemetry").groupby("run_id").device.agg(set)
    large = next(run_id for run_id in boards.index if runs.gpus[run_id] == 424)
    assert boards[large] == {"SIM-0001-0", "SIM-0071-1", "SIM-0142-0", "SIM-0212-1"}


def test_limits_are_in_the_record_as_enforced_and_those_out_of_range_skip_the_run(store):
    for record in records(store).values():
        asked = record.spec.setting.power_limit_w
        if asked == 50:
            assert record.status == "skipped"
            assert "a power limit of 50 W is outside 100 to 250 W" in record.reason
        elif asked is None:
            assert record.limits == ()
        else:
            assert {one.power_limit_enforced_w for one in record.limits} == {asked}
            assert {one.host for one in record.limits} == set(record.facts.hosts)
            assert {one.device for one in record.limits} == set(record.facts.device_ids)


def test_the_command_line_reports_and_repeats_failures(write_study, tmp_path):
    failing = MIT | {"simulation": MIT["simulation"] | {"fail_share": 0.5}}
    study, store = write_study(launch=failing, sweeps=SWEEPS), tmp_path / "store"
    assert main(["run", str(study), "--store", str(store)]) == 1
    failed = [one for one in records(store).values() if one.status == "failed"]
    assert 0 < len(failed) < 6
    assert {one.reason for one in failed} == {FAILURE}
    write_study(launch=MIT, sweeps=SWEEPS)
    assert main(["run", str(study), "--store", str(store)]) == 0
    found = records(store)
    assert {one.status for one in found.values()} == {"done"}
    again = found[failed[0].run_id]
    assert (again.attempts, again.notes[0]) == (2, f"attempt 1: {FAILURE}")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_in_the_middle_it_leaves_no_process_and_a_store_that_the_next_start_completes(
    how, write_study, tmp_path
):
    study = write_study(launch=MIT, sweeps=SWEEPS, repeats=8)  # 48 runs
    store = tmp_path / "store"
    with started("run", study, "--store", store) as campaign:
        wait_for(lambda: len([*store.glob("runs/*/epochs.parquet")]) > 4, "some runs to be done")
        helpers = psutil.Process(campaign.pid).children(recursive=True)
        for process in (campaign, *(helpers if how is signal.SIGINT else ())):
            process.send_signal(how)  # a Ctrl-C goes to all of them
        output, _ = campaign.communicate(timeout=30)
        wait_for(lambda: not any(one.is_running() for one in helpers), "helpers to end", 10)
    assert "Traceback" not in output
    assert how is signal.SIGKILL or "stopped by SIGINT" in output
    before = {one.run_id for one in records(store).values() if one.status == "done"}
    assert 0 < len(before) < 48
    assert Store(store).arrow("epochs").num_rows == len(before) * 4
    assert main(["run", str(study), "--store", str(store)]) == 0
    assert {one.status for one in records(store).values()} == {"done"}
    assert Store(store).arrow("epochs").num_rows == 48 * 4


@pytest.mark.parametrize("measure", [{"steps": 4000}, {"seconds": 30.0}])
def test_a_simulated_run_has_a_warmup_block_and_a_measured_one(measure, tmp_path):
    path, measure = tmp_path / "study.yaml", measure | {"warmup_steps": 50}
    sweeps = [{"gpus": [8], "local_batch": [4]}]
    path.write_text(json.dumps(study_of(launch=MIT, sweeps=sweeps, measure=measure)))
    assert main(["run", str(path), "--store", str(tmp_path / "store")]) == 0
    store = Store.existing(tmp_path / "store")
    warmup, block = store.pandas("epochs").sort_values("start_ns").itertuples()
    assert (warmup.phase, block.phase) == ("steps", "steps")
    assert (warmup.warmup, block.warmup) == (True, False)
    assert (warmup.from_step, warmup.steps, block.from_step) == (0, 50, 50)
    assert block.samples == 32 * block.steps
    assert block.step_time_mean_s * block.steps == pytest.approx(block.duration_s)
    assert block.gpu_energy_j == pytest.approx(8 * block.gpu_power_mean_w * block.duration_s)
    if "steps" in measure:
        assert block.steps == 4000
    else:
        assert block.duration_s == pytest.approx(30, rel=0.3)
    samples = store.pandas("telemetry")
    assert samples["power_w"].mean() == pytest.approx(block.gpu_power_mean_w, rel=0.2)
    of_gpus = statistics(store)
    (row,) = of_gpus[of_gpus["part"] == "run"].itertuples()
    assert row.power_mean_w == pytest.approx(block.gpu_power_mean_w, rel=0.2)
