"""Run ids depend on the specification only, and never change."""

import hashlib
from dataclasses import fields, replace

import pytest

from conftest import parsed
from made_runs import made_spec
from wattlaw.running.planning import plan_study
from wattlaw.study.command import LogProgress
from wattlaw.study.model import Measure, RunSpec, Train, WorkloadSpec, canonical, run_id
from wattlaw.study.network import Network
from wattlaw.study.plan import expand, read_study
from wattlaw.study.setting import Setting

PLAIN = Setting(gpus=2, local_batch=32)


def spec(**changes: object) -> RunSpec:
    return made_spec(**{"setting": PLAIN, **changes})


# Written down once: an identity that drifts makes every store start over.
KNOWN = {
    "dc1249e37f69460b": (
        spec(),
        '{"launch_kind":"local","measure":{},"repeat":0,'
        '"setting":{"global_batch":64,"gpus":2,"local_batch":32},'
        '"workload":{"name":"digits-cnn"}}',
    ),
    "7ac32285ae125605": (
        spec(
            workload=WorkloadSpec(name="x", options={"é": [1.0, {"b": None, "a": "\n"}]}),
            setting=replace(PLAIN, clock_limit_mhz=1410.5, dataset_fraction=0.1),
            measure=Measure(sample_hz=0.5, evaluate=False),
            launch_kind="slurm",
        ),
        '{"launch_kind":"slurm","measure":{"evaluate":false,"sample_hz":0.5},"repeat":0,'
        '"setting":{"clock_limit_mhz":1410.5,"dataset_fraction":0.1,"global_batch":64,"gpus":2,'
        '"local_batch":32},'
        '"workload":{"name":"x","options":{"\\u00e9":[1,{"a":"\\n","b":null}]}}}',
    ),
}


@pytest.mark.parametrize("known", KNOWN)
def test_known_identities_never_drift(known):
    asked, text = KNOWN[known]
    assert canonical(asked) == text
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == known
    assert run_id(asked) == known


#: Studies of every kind, and the ids of their runs in the order of execution.
STUDIES = {
    "workloads_and_repeats": (
        """
workloads: [{name: digits-cnn, options: {lr: 0.1}}, {name: resnet50}]
sweeps: [{gpus: [1], local_batch: [32]}, {gpus: [2], global_batch: [64], workloads: [resnet50]}]
repeats: 2
""",
        "00afd58d0594b37d 6e9cde9a96189d82 9a8e9de77fc04589 0e99130a04608a08"
        " cfc9fc1c3ef26f23 a2832b8994f283a7",
    ),
    "own_script": (
        """
workloads:
  - command: [python, train.py, --batch, '{local_batch}', '{seed}']
    dataset_samples: 5000
    instrument: none
    launch_with: torchrun
    progress: {pattern: 'step (?P<step>[0-9]+)'}
sweeps: [{gpus: [2], local_batch: [8]}]
measure: {steps: 50}
""",
        "741cdc454939d88e",
    ),
    "limits": (
        """
workloads: [{name: digits-cnn}]
sweeps: [{gpus: [4], global_batch: [256], power_limit_w: [null, 250, 150.5],
          clock_limit_mhz: [1410], power_profile: [null, max-q]}]
""",
        "1813ab3cb4ad33b6 486ec34eb1ea6558 0476df1785a812f8 32a8a9c9a928bef7"
        " 239f86d43d890373 879dd5fab23f38d0",
    ),
    "precision_and_share_of_the_data": (
        """
workloads: [{name: bert-base}]
sweeps: [{gpus: [1, 8], local_batch: [16], precision: [fp32, bf16],
          dataset_fraction: [0.5, 1/gpus]}]
""",
        "44a728e01ae696e7 860cfb1811850565 8c3c063e3e106464 ae10ba78ea667034"
        " 46c2fa2f0e61f969 a9aff547605edd32 8d3aacead61d776b d465625b5fc8252d",
    ),
    "emulated_gpus": (
        """
workloads: [{name: digits-cnn}]
sweeps: [{gpus: [2], global_batch: [1024], emulate: {gpus: [16, 64]}}]
""",
        "f45d9afca3d82dd3 425d7dc1e06928fa",
    ),
    "epochs": (
        """
workloads: [{name: digits-cnn}]
sweeps: [{gpus: [1], local_batch: [32], epochs: 7}]
measure: {epochs: 5, warmup_epochs: 2, sample_hz: 5, evaluate: false, assume_cpu_w: 15}
""",
        "5871129eaa89f3a8",
    ),
    "seconds": (
        """
workloads: [{name: digits-cnn}]
sweeps: [{gpus: [1], local_batch: [32]}]
measure: {seconds: 60, warmup_steps: 5}
""",
        "c52ca190826f671d",
    ),
    "training_loop": (
        """
workloads: [{name: digits-cnn}]
sweeps: [{gpus: [1], local_batch: [32]}]
train: {channels_last: true, compile: true, fused_optimizer: true, gradient_accumulation: 4,
        bucket_mb: 50, loader_workers: 2, prefetch: 4, checkpoint_every: 1,
        save_model: true, seed: 3}
""",
        "b8daf7494db52668",
    ),
    "slurm": (
        """
workloads: [{name: digits-cnn}]
sweeps: [{gpus: [4, 8], local_batch: [32]}, {gpus: [8], local_batch: [32], nodes: [4]}]
launch: {kind: slurm, gpus_per_node: 4, slurm: {options: {partition: gpu}, gres: gpu:a100}}
""",
        "c9cd0d49137f6624 d0b51a174f29a9cd a2d43cc209c3b5a2",
    ),
    "simulated": (
        """
workloads: [{name: resnet50}]
sweeps: [{gpus: [8], local_batch: [32]}]
launch: {kind: simulated, hardware: A100, gpus_per_node: 4,
         simulation: {hardware: kit-a100, seed: 4}}
""",
        "96c3f7698f56fff2",
    ),
    "replay": (
        """
workloads: [{name: resnet50}]
sweeps: [{gpus: [8], local_batch: [32]}]
launch: {kind: replay, table: runs.csv}
decide: {minimize: time, epochs: 90}
""",
        "e407168f9d27e0c1",
    ),
}


@pytest.mark.parametrize("kind", STUDIES)
def test_the_ids_of_studies_of_every_kind_never_drift(kind, ids_in_order):
    text, known = STUDIES[kind]
    assert ids_in_order("name: golden\n" + text) == known.split()


#: Values of fields whose other value does not follow from the one that ``spec()`` has.
OTHERS: dict[str, object] = {
    "model": Network(layers=2, hidden=8, heads=2, vocabulary=16, sequence=4),
    "name": "other", "options": {"lr": 0.1}, "command": ("python", "train.py"),
    "dataset_samples": 1000, "instrument": "none", "launch_with": "none",
    "progress": LogProgress(pattern=r"step (?P<step>\d+)"), "gpus_per_node": (1, 1),
    "gradient_accumulation": 2, "sharding": "fsdp", "checkpointing": "full",
    "local_batch": 64, "power_limit_w": 200.0, "clock_limit_mhz": 735.0,
    "power_profile": "max-q", "dataset_fraction": 0.5,
    "precision": "bf16", "emulated_gpus": 64, "steps": 100, "seconds": 60.0, "warmup_steps": 10,
    "assume_cpu_w": 15.0, "bucket_mb": 50.0, "loader_workers": 0, "prefetch": 3,
    "checkpoint_every": 1, "launch_kind": "slurm", "hardware": "H200", "nodes": 2,
}  # fmt: skip
PARTS = {"workload": WorkloadSpec, "measure": Measure, "train": Train}
FIELDS = [(part, name) for part, model in PARTS.items() for name in model.model_fields]
FIELDS += [("setting", item.name) for item in fields(Setting) if item.name != "software"]
FIELDS += [(name,) for name in RunSpec.model_fields if name not in {*PARTS, "setting"}]


@pytest.mark.parametrize("place", FIELDS, ids=".".join)
def test_every_different_specification_is_another_run(place):
    asked = spec()
    part = getattr(asked, place[0]) if len(place) == 2 else asked
    before = getattr(part, place[-1])
    value = not before if isinstance(before, bool) else OTHERS.get(place[-1])
    value = before + 1 if value is None else value
    assert value != before
    if len(place) == 2:
        changes = {place[1]: value}
        is_setting = place[0] == "setting"
        value = replace(part, **changes) if is_setting else part.model_copy(update=changes)
    assert run_id(asked.model_copy(update={place[0]: value})) != run_id(asked)


@pytest.fixture
def ids_in_order(tmp_path):
    """Give a function from the text of a study file to its run ids."""

    def of(text: str) -> list[str]:
        (tmp_path / "study.yaml").write_text(text)
        return [run.run_id for run in expand(read_study(tmp_path / "study.yaml"))]

    return of


def ids(**changes: object) -> set[str]:
    return {run.run_id for run in expand(parsed(**changes))}


def test_when_and_by_whom_do_not_matter():
    local = {"kind": "local", "timeout_s": 9, "max_parallel": 3, "threads_per_worker": 2}
    launch = local | {"gpus_per_node": 1}
    assert ids() == ids(name="other", order="as_written", order_seed=5, launch=launch)


def test_the_nodes_that_a_run_takes_matter_and_not_the_size_that_they_have():
    def on(gpus_per_node: int) -> set[str]:
        launch = {"kind": "slurm", "gpus_per_node": gpus_per_node}
        return ids(sweeps=[{"gpus": [4], "local_batch": [8]}], launch=launch)

    assert on(4) == on(8)
    assert on(4) != on(2)


SHORT = """\
name: x
workloads: [{name: digits-cnn, options: {lr: 200, momentum: [1, {a: 2}], width: 5}}]
sweeps: [{gpus: [1, 2], local_batch: [8], power_limit_w: [null, 200]}]
"""
LONG = """\
launch: {timeout_s: null, max_parallel: 1, hardware: null, kind: local}
measure: {assume_cpu_w: null, evaluate: true, sample_hz: 10.0, warmup_epochs: 1, epochs: 3}
order_seed: 0
order: random
repeats: 1
sweeps:
  - {dataset_fraction: [1], precision: [fp32], clock_limit_mhz: [null],
     power_limit_w: [2.0e+2, null], global_batch: null, local_batch: [8], gpus: [2, 1]}
workloads: [{options: {width: 5.0, momentum: [1.0, {a: 2.0}], lr: 2e2}, name: digits-cnn}]
name: x
"""


def test_defaults_written_out_order_of_keys_and_kind_of_number_do_not_matter(ids_in_order):
    assert set(ids_in_order(SHORT)) == set(ids_in_order(LONG))


def test_different_numbers_and_booleans_give_different_runs():
    values = [1, 1.5, True, "1", [1], None, 2**53, 2**53 + 1, 0.1, 0.1 + 2**-56]
    found = {run_id(spec(workload=WorkloadSpec(name="x", options={"a": v}))) for v in values}
    assert len(found) == len(values)


def test_an_option_given_at_its_default_is_the_same_run(write_study):
    def of(options: dict[str, object]) -> str:
        path = write_study(workloads=[{"name": "digits-cnn", "options": options}])
        (run,) = plan_study(path).runs
        return run.run_id

    assert of({}) == of({"lr": 0.05}) == of({"width": 32, "lr": 0.05})
    assert of({}) != of({"lr": 0.06})
