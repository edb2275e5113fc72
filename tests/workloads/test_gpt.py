"""``gpt``: its counts, and the same training in every layout on real ranks."""

import pytest
import torch

from conftest import parsed
from launchers import execute
from ranks import losses, spec_of, trained
from reduced import WORKLOADS
from wattlaw.common.errors import BadInput
from wattlaw.running.local import LocalLauncher
from wattlaw.running.planning import check_layout
from wattlaw.running.training.flops import flops_per_sample
from wattlaw.store.store import Store
from wattlaw.study.model import WorkloadSpec
from wattlaw.workloads import catalogue

OPTIONS = WORKLOADS["gpt"].options
LLAMA_3_8B = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocabulary": 128256,
    "sequence": 8192,
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "parameters"),
    # 8.03 billion parameters by the model card of Llama 3 8B.
    [({}, 1_049_728), (OPTIONS, None), (LLAMA_3_8B, 8_030_261_248)],
)
def test_parameters_and_operations_are_those_of_the_model(options, parameters):
    spec = WorkloadSpec(name="gpt", options=options)
    workload, work = catalogue.build(spec), catalogue.work(spec)
    with torch.device("meta"):
        model = workload.model()
    found = sum(parameter.numel() for parameter in model.parameters())
    assert found == catalogue.validated(spec).parameters
    assert found == (parameters or found)
    assert flops_per_sample(workload, model, workload.training_data()) == work.flops_per_sample
    assert work.tokens_per_sample == catalogue.validated(spec).sequence


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    spec = spec_of("gpt", OPTIONS, epochs=2)
    return trained(spec, tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.parametrize(
    ("gpus", "layout", "train"),
    [
        (2, {"sharding": "fsdp", "checkpointing": "full"}, {"gradient_accumulation": 2}),
        (2, {"tp": 2}, {}),
        (4, {"tp": 2, "sharding": "zero2", "sequence_parallel": True}, {}),
        (4, {"tp": 2}, {"gradient_accumulation": 2}),
    ],
    ids=["fsdp", "tensor", "fsdp and tensor", "copies of tensor"],
)
def test_every_layout_trains_the_same_steps_and_counts_each_sample_once(
    tmp_path, alone, gpus, layout, train
):
    """At the same global batch, but for the order of sums."""
    found = trained(spec_of("gpt", OPTIONS, gpus=gpus, layout=layout, **train), tmp_path / "run")
    for phase in ("train", "evaluate"):
        assert losses(found, phase) == pytest.approx(losses(alone, phase), rel=2e-3)
    for name in ("phase", "steps", "samples"):
        assert [window[name] for window in found] == [window[name] for window in alone]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"pp": 2}, ["pp", "2"]),
        ({"cp": 2}, ["cp", "2"]),
        ({"ep": 2}, ["ep", "2"]),
        ({"sharding": "hsdp"}, ["sharding", "hsdp", "fsdp"]),
        ({"checkpointing": "selective"}, ["checkpointing", "selective", "full"]),
        ({"tp": 4}, ["tp", "kv_heads 2"]),
    ],
)
def test_a_layout_that_cannot_be_trained_is_refused_by_name(layout, words):
    with pytest.raises(BadInput) as refused:
        check_layout(spec_of("gpt", OPTIONS, gpus=4, layout=layout))
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)


def test_other_workloads_have_no_layouts():
    check_layout(spec_of("digits-cnn", {}, gpus=2))
    with pytest.raises(BadInput, match="gpt"):
        check_layout(spec_of("digits-cnn", {}, gpus=2, layout={"tp": 2}))


def test_a_run_has_its_layout_and_its_peak_memory_as_columns(tmp_path):
    split = {"sharding": ["fsdp"], "checkpointing": ["full"]}
    study = parsed(
        workloads=[{"name": "gpt", "options": OPTIONS}],
        sweeps=[{"gpus": [2], "global_batch": [8], **split}],
        measure={"steps": 6, "warmup_steps": 2, "sample_hz": 20},
        launch={"gpus_per_node": 2, "threads_per_worker": 1},
    )
    store = Store(tmp_path / "store")
    outcome = execute(study, store.path, LocalLauncher(study.launch, gpus=[], board_of={}))
    assert outcome.done == 1, store.records()
    (row,) = store.pandas("runs").to_dict("records")
    layout = {
        "parallelism": "fsdp", "world_size": 2, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": 2,
        "virtual_stages": 1, "sharding": "fsdp", "checkpointing": "full",
        "gradient_accumulation": 1, "micro_batch": 4, "tokens_per_sample": 16.0,
    }  # fmt: skip
    assert {name: row[name] for name in layout} == layout
    assert row["peak_memory_bytes"] > 50e6
    spec = WorkloadSpec(name="gpt", options=OPTIONS)
    assert row["parameters"] == catalogue.validated(spec).parameters
    assert row["flops_per_sample"] == catalogue.work(spec).flops_per_sample
    epochs = store.pandas("epochs")
    assert epochs["steps"].sum() >= 8
    assert (epochs["samples"] == 8 * epochs["steps"]).all()
