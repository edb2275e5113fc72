"""The section ``decide`` of a study file: its keys, and what is refused."""

import pytest

from wattlaw.api.studies import load_study
from wattlaw.common.errors import BadInput

BAD = {
    "several workloads": (
        {}, {"workloads": [{"name": "a", "dataset_samples": 1}, {"name": "b"}]}, "decide"),
    "a target with precisions": (
        {"target": 0.7},
        {"sweeps": [{"gpus": [1], "local_batch": [8], "precision": ["fp32", "bf16"]}],
         "measure": {"epochs": 2, "warmup_epochs": 1, "evaluate": True}},
        "decide.target",
    ),
    "a deadline without a length": ({"deadline": "6h"}, {}, "decide.deadline"),
    "two lengths": ({"epochs": 3, "total_samples": 5}, {}, "decide.epochs"),
    "a batch": ({"epochs_by_batch": {"many": 3}}, {}, "decide.epochs_by_batch.many"),
    "cost without a price": ({"minimize": "cost"}, {}, "decide.minimize"),
    "a region": ({"grid": "Atlantis"}, {}, "decide.grid"),
    "two currencies": (
        {"price_per_kwh": "1 EUR", "price_per_gpu_hour": "2 USD"}, {},
        "decide.price_per_kwh and price_per_gpu_hour"),
    "fewer GPUs than are emulated": (
        {"max_gpus": 2},
        {"sweeps": [{"gpus": [1, 2], "global_batch": [64], "emulate": {"gpus": [4]}}]},
        "decide.max_gpus"),
    "epochs of other batches": ({"epochs_by_batch": {99: 3}}, {}, "decide.epochs_by_batch"),
    "bounds that no setting meets together": (
        {"max_gpus": 1, "epochs_by_batch": {256: 3}}, {}, "decide.max_gpus with epochs_by_batch"),
    "several power profiles": ({}, {"sweeps": [
        {"gpus": [1], "local_batch": [8], "power_profile": ["max-q", None]}]}, "decide"),
    "shares of the data": ({}, {"sweeps": [
        {"gpus": [1], "local_batch": [8], "dataset_fraction": [0.5, 1]}]}, "decide"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_named_with_what_is_allowed(write_decide, name):
    decide, changes, key = BAD[name]
    with pytest.raises(BadInput, match=f"{key}: .*allowed: "):
        load_study(write_decide(decide, **changes))


def test_samples_of_an_epoch_must_be_known_where_epochs_are(write_decide):
    unknown = {"workloads": [{"name": "bert"}]}
    study = load_study(write_decide({"total_samples": 1e6}, **unknown)).plan.study
    assert study.decide.total_samples == 1e6
    with pytest.raises(BadInput, match="dataset_samples"):
        load_study(write_decide({"epochs": 3}, **unknown))


def test_quantities_and_batches_are_read_as_in_advise(write_decide):
    decide = load_study(
        write_decide({"deadline": "6h", "max_slowdown": "10%", "energy_budget": "1kWh",
               "max_gpu_hours": 40, "epochs_by_batch": {256: 90}, "grid": "DE", "tolerance": "5%"})
    ).plan.study.decide  # fmt: skip
    assert (decide.deadline, decide.max_slowdown, decide.energy_budget) == (21600, 0.1, 3.6e6)
    assert decide.max_gpu_hours == 40
    assert (decide.asked["epochs_by_batch"], decide.tolerance) == ({256.0: 90.0}, 0.05)
