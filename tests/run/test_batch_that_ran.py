"""The batch that ran, compared with the batch of the setting, and what follows from it."""

import json

import pytest

import wattlaw
from conftest import records, setenv, study_in
from made_stores import write_store
from made_tables import frames, run_row, window_row
from paths import SCRIPTS
from wattlaw.api.deciding import evidence_of
from wattlaw.api.studies import load_study, run
from wattlaw.cli.main import main
from wattlaw.running.steps import batch_that_ran
from wattlaw.store.store import Store
from wattlaw.study.not_as_declared import OTHER_BATCH

#: Environment of scripts/ddp.py, which trains another batch than that of its setting.
VARIANTS = {"each-trains-all": "BATCH={global_batch}", "fixed": "BATCH=5"}


@pytest.mark.parametrize(
    ("steps_by_samples", "declared", "ran"),
    [
        ({128: 40}, 128, None),
        ({256: 40}, 128, 256),
        ({128: 20, 22: 20}, 128, None),  # two steps in an epoch, the last one smaller
        ({128: 20, 22: 20}, 64, 128),
        ({96: 20, 160: 20}, 128, None),  # buckets
        ({50 + n: 3 for n in range(30)}, 64, None),  # as many tokens in each step
        ({64: 5, 128: 5, 256: 30}, 256, None),  # the batch grows at first
        ({20: 1, 16: 38, 12: 1}, 16, None),  # fetched ahead
        ({8: 13, 0: 13}, 4, None),  # the steps of a loop that takes two for each batch
        ({}, 128, None),
    ],
)
def test_the_batch_that_ran_is_that_of_usual_steps(steps_by_samples, declared, ran):
    assert batch_that_ran(steps_by_samples, declared) == ran


def test_run_status_and_fit_warn_of_each_workload_whose_batch_differs(
    tmp_path, monkeypatch, capsys
):
    script = ["{python}", str(SCRIPTS / "ddp.py")]
    study = {
        "name": "batches",
        "workloads": [
            {"name": name, "command": ["env", batch, *script]} for name, batch in VARIANTS.items()
        ],
        "sweeps": [{"gpus": [1, 2], "local_batch": [8]}],
        "measure": {"steps": 15, "warmup_steps": 3},
        "launch": {"gpus_per_node": 4, "threads_per_worker": 1, "max_parallel": 2},
    }
    store = str(tmp_path / "store")
    setenv(monkeypatch, {"EPOCHS": "100000", "STEP_S": "0.01"})
    assert main(["run", str(study_in(tmp_path, study)), "--store", store]) == 0
    shown = capsys.readouterr().out
    assert main(["status", store, "--json"]) == 0
    warned = json.loads(capsys.readouterr().out)["warnings"]
    texts = {item["text"].split(" of ")[1].split()[0]: item["text"] for item in warned}
    assert {item["code"] for item in warned} == {OTHER_BATCH}
    assert set(texts) == set(VARIANTS)
    assert "32 instead of 16 on 2 GPUs" in texts["each-trains-all"]
    assert "{local_batch}" in texts["each-trains-all"]
    assert "{global_batch}" in texts["fixed"]
    assert "5 instead of 8 on 1 GPU, 10 instead of 16 on 2 GPUs" in texts["fixed"]
    assert [f"Warning: {text}" for text in texts.values()] == [
        line for line in shown.splitlines() if line.startswith("Warning: ")
    ]
    main(["fit", store, "--json"])
    shown = capsys.readouterr()
    assert texts["fixed"] in shown.err.replace("wattlaw: ", "")
    laws = json.loads(shown.out)
    # The other script trains 8 samples on one worker and 32 on two: that is no series.
    assert [(law["group"]["workload"], law["group"]["local_batch"]) for law in laws] == [
        ("fixed", 5)
    ]


def test_settings_that_ran_the_same_batch_are_repeats_of_one(tmp_path):
    runs, windows = [], []
    for number, declared in enumerate((64, 128, 256)):
        ran = {} if declared == 64 else {"global_batch_declared": declared}
        name = f"{number:016}"
        runs.append(run_row(name, gpus=2, global_batch=64, local_batch=32, **ran))
        windows.append(window_row(name, 1, duration_s=10.0 + 0.1 * number))
    path = tmp_path / "store"
    write_store(path, *frames(runs, windows))
    advice = wattlaw.open(path).advise()
    assert [(item.global_batch, item.repeats) for item in advice.pareto] == [(64, 3)]


def test_a_decision_counts_a_run_as_the_setting_that_ran(write_decide, tmp_path):
    path, store = write_decide({"minimize": "gpu_hours"}), tmp_path / "store"
    run(path, store)
    loaded = load_study(path)
    done = next(r for r in records(store).values() if r.status == "done")
    declared = done.spec.setting
    facts = done.facts.model_copy(update={"global_batch": 3 * declared.global_batch})
    Store(store).folder(done.run_id).write(done.model_copy(update={"facts": facts}))
    inputs = evidence_of(loaded.plan.study, loaded.plan.runs, store)
    for planned in loaded.plan.runs:  # repeats will run the same batch
        is_same = planned.setting == declared
        factor = 3 if is_same else 1
        setting = inputs.candidates[planned.run_id].setting
        assert setting.global_batch == factor * planned.setting.global_batch
    assert 3 * declared.local_batch in {
        item.setting.local_batch for item in inputs.job.observations
    }
    assert OTHER_BATCH in {warning.code for warning in inputs.job.warnings}
