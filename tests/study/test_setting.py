"""A setting checks itself, places its GPUs, and is the same after it was written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_runs import made_spec
from wattlaw.common.errors import BadInput
from wattlaw.study.model import RunSpec
from wattlaw.study.setting import RECORDED, Setting


def test_packed_uses_the_fewest_nodes_and_nodes_alone_place_evenly_in_any_order():
    assert Setting.packed(10, 4).gpus_per_node == (4, 4, 2)
    assert Setting(10, local_batch=2).on_nodes_of(4) == Setting.packed(10, 4, local_batch=2)
    assert Setting(7, nodes=3).gpus_per_node == (3, 2, 2)
    assert Setting(4, gpus_per_node=(1, 3)) == Setting(4, 2, (3, 1))


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"gpus": 0}, "gpus"),
        ({"gpus": True}, "gpus"),
        ({"gpus": 2, "nodes": 3}, "nodes"),
        ({"gpus": 4, "gpus_per_node": (1, 2)}, "gpus_per_node"),
        ({"gpus": 4, "nodes": 1, "gpus_per_node": (2, 2)}, "nodes"),
        ({"gpus": 4, "local_batch": -1}, "local_batch"),
        ({"gpus": 4, "power_limit_w": float("nan")}, "power_limit_w"),
        ({"gpus": 4, "clock_limit_mhz": "x"}, "clock_limit_mhz"),
        ({"gpus": 4, "tp": 0}, "tp"),
        ({"gpus": 6, "tp": 2, "pp": 2}, "tp x pp x cp"),
        ({"gpus": 8, "tp": 2, "ep": 8}, "ep"),
        ({"gpus": 4, "sharding": "full"}, "sharding"),
        ({"gpus": 4, "precision": "fp7"}, "precision"),
        ({"gpus": 4, "power_profile": "fast"}, "power_profile"),
        ({"gpus": 4, "dataset_fraction": 1.5}, "dataset_fraction"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(values, key):
    with pytest.raises(BadInput, match=f"^{key}: .*allowed: "):
        Setting(**values)


def test_results_name_a_setting_and_leave_out_a_layout_that_is_none():
    assert Setting.packed(8, 4, local_batch=16.0).to_dict() == {
        "gpus": 8, "nodes": 2, "gpus_per_node": [4, 4], "local_batch": 16.0, "global_batch": 128.0,
        "gradient_accumulation": 1, "precision": "fp32", "power_limit_w": None,
        "clock_limit_mhz": None,
    }  # fmt: skip
    assert Setting(8, pp=2).to_dict()["pp"] == 2
    assert Setting(8).global_batch is None


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 3), st.integers(1, 64))
def test_copies_of_a_model_share_the_batch(tp, pp, dp, micro):
    gpus = tp * pp * dp
    local = micro * 4 / (tp * pp)  # of four micro-batches for each copy
    setting = Setting(gpus, local_batch=local, gradient_accumulation=4, tp=tp, pp=pp)
    assert (setting.dp, setting.micro_batch, setting.global_batch) == (dp, micro, 4 * dp * micro)


@given(
    st.builds(
        Setting,
        gpus=st.integers(1, 64),
        local_batch=st.none() | st.integers(1, 512),
        precision=st.sampled_from(["fp32", "bf16"]),
        power_limit_w=st.none() | st.floats(1, 1000),
        dataset_fraction=st.floats(0.01, 1),
        emulated_gpus=st.none() | st.integers(100, 200),
        sharding=st.sampled_from(["none", "zero1"]),
    )
)
def test_a_record_gives_the_same_setting(setting):
    record = setting.to_record()
    assert record.keys() - RECORDED == ({"sharding"} if setting.sharding != "none" else set())
    assert Setting.of_record(json.loads(json.dumps(record))) == setting


@pytest.mark.parametrize(
    "changed",
    [{"global_batch": 65}, {"local_batch": 3.5}, {"gpus": "2"}, {"surprise": 1}, {"gpus": None}],
)
def test_a_record_that_contradicts_itself_is_refused(changed):
    spec = made_spec(Setting(2, local_batch=32))
    record = spec.model_dump(mode="json")
    assert RunSpec.model_validate(record | {"measure": spec.measure, "train": spec.train,
                                            "workload": spec.workload}) == spec  # fmt: skip
    record["setting"] |= changed
    with pytest.raises(ValueError, match="setting"):
        RunSpec.model_validate_json(json.dumps(record))


def test_versions_of_software_are_facts_that_do_not_tell_settings_apart():
    known, plain = Setting(8, software=(("torch", "2.11"),)), Setting(8)
    assert (known, known.to_record()) == (plain, plain.to_record())
