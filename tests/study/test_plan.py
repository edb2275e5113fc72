"""From a study to its runs: grids united, duplicates merged, the order drawn, nodes counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import parsed
from wattlaw.api.studies import load_study
from wattlaw.common.errors import BadInput
from wattlaw.running.local import LocalLauncher
from wattlaw.study.command import substitute
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec, run_id
from wattlaw.study.plan import PlannedRun, expand, impossible, read_study


def test_the_union_of_grids_has_each_setting_once():
    sweeps = [
        {"gpus": [1, 2], "local_batch": [32]},
        {"gpus": [1, 2], "global_batch": [64]},
        {"gpus": [2, 2], "global_batch": [64, 64]},
    ]
    runs = expand(parsed(sweeps=sweeps, repeats=2))
    found = [(run.setting.gpus, run.setting.global_batch, run.spec.repeat) for run in runs]
    settings = [(1, 32), (2, 64), (1, 64)]
    assert sorted(found) == sorted((*s, repeat) for s in settings for repeat in (0, 1))


def test_settings_that_cannot_exist_name_the_sizes_that_do_not_divide():
    sweep = {"gpus": [4], "global_batch": [8], "tp": [1, 2, 3], "micro_batch": [1, 8]}
    assert impossible(parsed(sweeps=[sweep])) == {
        "tp 3 does not divide the GPUs": 2,
        "micro_batch: given 8 for a global batch of 8 and dp 4": 1,
        "micro_batch: given 8 for a global batch of 8 and dp 2": 1,
    }


def test_a_workload_given_twice_is_run_once_and_one_with_other_options_is_another():
    same = {"name": "digits-cnn"}
    runs = expand(parsed(workloads=[same, same, same | {"options": {"lr": 0.1}}]))
    assert [run.spec.workload.options for run in runs].count({}) == 1
    assert len(runs) == 2


def test_a_random_order_depends_on_its_seed_alone_and_mixes_repeats():
    changes = {"sweeps": [{"gpus": [1, 2, 4, 8], "local_batch": [8, 16]}], "repeats": 3}
    one, same, other = (
        [run.run_id for run in expand(parsed(**changes, order_seed=seed))] for seed in (1, 1, 2)
    )
    assert one == same != other
    assert sorted(one) == sorted(other)
    repeats = [run.spec.repeat for run in expand(parsed(**changes, order_seed=1))]
    assert repeats != sorted(repeats)


def test_nodes_follow_from_gpus_per_node_but_a_local_run_has_one():
    for kind, expected in (("slurm", {1: 1, 4: 1, 5: 2, 16: 4}), ("local", {1: 1, 16: 1})):
        runs = planned({"gpus": list(expected), "local_batch": [8]}, kind=kind, gpus_per_node=4)
        assert {run.setting.gpus: run.spec.nodes for run in runs} == expected


def test_huge_grids_are_refused_before_they_are_expanded(tmp_path):
    """24,000 x 24,000 pairs took minutes to check one by one; now each list is gone through once"""
    path = tmp_path / "study.yaml"
    for count, refused in ((24_000, "given 576,000,000 runs"), (49_000, "more than 50,000 values")):
        ones = ",".join("1" * count)
        path.write_text(
            f"name: x\nworkloads: [{{name: a}}]\n"
            f"sweeps: [{{gpus: [{ones}], global_batch: [{ones}]}}]\n"
        )
        with pytest.raises(BadInput, match=refused):
            expand(read_study(path))


def test_a_planned_run_is_the_run_that_validation_would_make():
    for run in expand(
        parsed(
            workloads=[{"name": "a", "options": {"x": [1.0, 2]}}, {"command": ["python", "a.py"]}],
            sweeps=[{"gpus": [2], "local_batch": [4], "power_limit_w": [None, 200],
                     "dataset_fraction": ["gpus/4"], "epochs": 9}],
            train={"seed": 3},
        )
    ):  # fmt: skip
        again = RunSpec.model_validate_json(run.spec.model_dump_json())
        assert run.spec == again
        assert run.run_id == run_id(again)


def test_a_sweep_is_for_the_workloads_it_names_and_for_all_if_it_names_none():
    workloads = [{"name": "a"}, {"name": "b"}, {"command": ["python", "c.py"]}]
    sweeps = [
        {"gpus": [1], "local_batch": [8]},
        {"gpus": [2, 4], "local_batch": [8], "workloads": ["b", "c"]},
    ]
    runs = expand(parsed(workloads=workloads, sweeps=sweeps))
    found = sorted((run.spec.workload.name, run.setting.gpus) for run in runs)
    assert found == [("a", 1), *((name, gpus) for name in "bc" for gpus in (1, 2, 4))]


def test_the_epochs_of_a_sweep_are_those_of_its_runs_alone():
    sweeps = [
        {"gpus": [1, 2], "local_batch": [8], "epochs": 7},
        {"gpus": [2, 4], "local_batch": [8]},
        {"gpus": [4], "local_batch": [8], "epochs": 2},
    ]
    measure = {"epochs": 2, "warmup_epochs": 1, "sample_hz": 5}
    runs = expand(parsed(sweeps=sweeps, measure=measure))
    found = {(run.setting.gpus, run.spec.measure.epochs) for run in runs}
    assert found == {(1, 7), (2, 7), (2, 2), (4, 2)}  # where epochs differ, so do runs
    assert len(runs) == 4
    assert {(r.spec.measure.warmup_epochs, r.spec.measure.sample_hz) for r in runs} == {(1, 5)}


def test_a_rule_gives_each_gpu_count_its_fraction():
    sweeps = [
        {"gpus": [1, 2, 4, 8], "local_batch": [8], "dataset_fraction": ["gpus/8"]},
        {"gpus": [2], "local_batch": [8], "dataset_fraction": [0.25]},
        {"gpus": [1, 4], "local_batch": [8], "dataset_fraction": ["1/gpus"]},
    ]
    settings = [run.setting for run in expand(parsed(sweeps=sweeps))]
    found = sorted((setting.gpus, setting.dataset_fraction) for setting in settings)
    assert found == [(1, 0.125), (1, 1.0), (2, 0.25), (4, 0.25), (4, 0.5), (8, 1.0)]


pieces = st.sampled_from(["{{", "}}", "{", "}", "{gpus}", "gpus", " "])


@given(st.lists(pieces).map("".join))
def test_braces_are_escaped_as_in_str_format(word):
    try:
        expected = word.format(gpus=2)
    except (ValueError, LookupError):
        with pytest.raises(ValueError, match=r"^given '.*; allowed in braces: gpus \(\{\{ is a"):
            substitute(word, {"gpus": 2})
    else:
        assert substitute(word, {"gpus": 2}) == expected


def test_a_command_is_named_after_its_script():
    def name(*words: str) -> str:
        (run,) = expand(parsed(workloads=[{"command": list(words)}]))
        return run.spec.workload.name

    assert name("python", "a/train.py", "eval.py") == "train"
    assert name("./train.sh", "x") == "train"
    assert name("python", "my script.py") == "my-script"
    assert name("python", ".py") == "py"
    assert name("{gpus}") == "gpus-"
    assert name("...", "x") == "command"


def planned(sweep: dict[str, object], **launch: object) -> list[PlannedRun]:
    launch = {"kind": "slurm", "gpus_per_node": 2} | launch
    return expand(parsed(sweeps=[sweep], launch=launch))


def test_two_gpus_on_one_node_and_on_two_are_two_settings(write_study):
    sweep = {"gpus": [2, 4], "global_batch": [64], "nodes": [1, 2]}
    launch = {"kind": "slurm", "gpus_per_node": 4}
    runs = planned(sweep, **launch)
    pairs = {(run.setting.gpus, run.spec.nodes) for run in runs}
    assert pairs == {(2, 1), (2, 2), (4, 1), (4, 2)}
    assert len({run.run_id for run in runs}) == 4
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
    launcher = LocalLauncher(Launch(gpus_per_node=2), gpus=[], board_of={})
    runs = planned(sweep, kind="local")
    reasons = {run.spec.nodes: launcher.unsupported_reason(run.spec) for run in runs}
    assert reasons[1] is None
    assert "2 nodes" in reasons[2]


def test_few_workers_train_the_local_batch_of_many():
    sweep = {"gpus": [1, 2], "global_batch": [2048], "emulate": {"gpus": [16, 64]}}
    settings = [run.setting for run in planned(sweep)]
    assert {(s.gpus, s.emulated_gpus, s.local_batch) for s in settings} == {
        (1, 16, 128), (2, 16, 128), (1, 64, 32), (2, 64, 32),
    }  # fmt: skip
    assert all(s.global_batch == s.gpus * s.local_batch for s in settings)
    plain = planned({"gpus": [1], "global_batch": [32]})
    assert {run.run_id for run in plain}.isdisjoint(run.run_id for run in planned(sweep))
