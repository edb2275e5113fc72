"""Nodes as a swept value, and the local batch of a large job on few workers."""

import json

from conftest import study_of
from wattlaw.api.studies import load_study
from wattlaw.running.local import LocalLauncher
from wattlaw.study.launching import Launch
from wattlaw.study.model import Study
from wattlaw.study.plan import PlannedRun, expand


def planned(sweep: dict[str, object], **launch: object) -> list[PlannedRun]:
    study = study_of(sweeps=[sweep], launch={"kind": "slurm", "gpus_per_node": 2} | launch)
    return expand(Study.model_validate_json(json.dumps(study)))


def test_two_gpus_on_one_node_and_on_two_are_two_settings(write_study):
    sweep = {"gpus": [2, 4], "global_batch": [64], "nodes": [1, 2]}
    launch = {"kind": "slurm", "gpus_per_node": 4}
    runs = planned(sweep, **launch)
    pairs = {(run.setting.gpus, run.spec.nodes) for run in runs}
    assert pairs == {(2, 1), (2, 2), (4, 1), (4, 2)}
    assert len({run.run_id for run in runs}) == 4
    assert {run.spec.nodes for run in runs} == {1, 2}
    study = load_study(write_study(sweeps=[sweep], launch=launch))
    assert (study.sizes["run"], study.sizes["setting"]) == (4, 4)
    assert set(study.to_frame()["nodes"]) == {1, 2}


def test_the_least_number_of_nodes_is_the_same_run_whether_it_is_named_or_not():
    sweep: dict[str, object] = {"gpus": [4], "global_batch": [64]}
    (plain,) = planned(sweep)
    (named,) = planned(sweep | {"nodes": [2]})
    assert (plain.spec.nodes, plain.run_id) == (2, named.run_id)


def test_the_local_launcher_skips_more_than_one_node_with_the_reason(write_study):
    sweep = {"gpus": [2], "local_batch": [8], "nodes": [1, 2]}
    runs = planned(sweep, kind="local")
    launcher = LocalLauncher(Launch(gpus_per_node=2), gpus=[], board_of={})
    reasons = {run.spec.nodes: launcher.unsupported_reason(run.spec) for run in runs}
    assert reasons[1] is None
    assert "2 nodes" in reasons[2]


# Emulation.


def test_few_workers_train_the_local_batch_of_many():
    sweep = {"gpus": [1, 2], "global_batch": [2048], "emulate": {"gpus": [16, 64]}}
    settings = [run.setting for run in planned(sweep)]
    assert {(s.gpus, s.emulated_gpus, s.local_batch) for s in settings} == {
        (1, 16, 128), (2, 16, 128), (1, 64, 32), (2, 64, 32),
    }  # fmt: skip
    assert all(s.global_batch == s.gpus * s.local_batch for s in settings)
    plain = planned({"gpus": [1], "global_batch": [32]})
    assert {run.run_id for run in plain}.isdisjoint(run.run_id for run in planned(sweep))
