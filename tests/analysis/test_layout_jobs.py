"""Layouts of runs in a store: groups of their own, and predictions where the network is known."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import pytest

from made_runs import made_record, made_spec
from made_tables import LAYOUTS, NETWORK, layouts
from wattlaw.analysis.advise.advice import advise
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.analysis.predict.job import jobs_of, predict_workload
from wattlaw.analysis.predict.layout_cells import layout_cells
from wattlaw.common.errors import BadInput, NothingToRecommend
from wattlaw.store.record import Facts
from wattlaw.store.schema import row_of
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting


def table(network: str | None = NETWORK):
    return run_metrics(*layouts(network))


def test_every_layout_is_a_group_of_its_own_with_a_name():
    layouts = [json.loads(text) for text in table()["layout"]]
    assert layouts[0] == {"sharding": "zero1", "gradient_accumulation": 1}
    assert layouts[4] == {"tp": 2, "pp": 2, "sharding": "zero1", "gradient_accumulation": 4}


def test_layouts_that_did_not_run_are_predicted_between_those_that_did():
    given = {"tp": [1, 2, 8, 3], "pp": [1, 4], "micro_batch": [4]}
    rows = predict_workload(
        table(), "digits-cnn", gpus=[8], global_batch=[32], gpus_per_node=8, layout=given
    ).rows
    found = {(row.setting.tp, row.setting.pp): row for row in rows}
    # 3 does not divide 8 GPUs, and 8 x 4 is more than 8.
    assert sorted(found) == [(1, 1), (1, 4), (2, 1), (2, 4), (8, 1)]
    one, eight = found[1, 1], found[8, 1]
    assert one.step_time_s == pytest.approx(1.0, rel=0.1)
    assert eight.step_time_s > 1.3
    assert found[1, 4].components.waiting_s > found[1, 1].components.waiting_s
    low, high = eight.step_time_s_ci
    near_low, near_high = one.step_time_s_ci
    assert high / low > near_high / near_low
    assert eight.setting.sharding == "zero1"  # as in most runs


def test_without_its_network_a_job_with_layouts_is_not_predicted():
    with pytest.raises(NothingToRecommend, match="model"):
        jobs_of(table(network=None), "digits-cnn")


@pytest.mark.parametrize(
    ("given", "batch"),
    [({"tp": [3]}, 32), ({"size": [2]}, 32), ({"micro_batch": [64]}, 32), ({"tp": [1]}, 4)],
)
def test_a_layout_that_cannot_exist_is_bad_input(given, batch):
    with pytest.raises(BadInput, match="layout"):
        predict_workload(table(), "digits-cnn", gpus=[8], global_batch=[batch], layout=given)


def test_advice_compares_layouts_that_ran_also_where_none_can_be_predicted():
    advice = advise(table(network=None), pd.DataFrame({"run_id": [], "energy_reason": []}),
                    "digits-cnn", Question("time", max_global_batch=32))  # fmt: skip
    best = advice.recommended.setting
    assert (best.tp, best.pp, best.sharding) == (1, 1, "zero1")
    assert not advice.recommended.is_at(replace(best, sharding="none"))
    assert len(advice.rests_on.settings) == 1
    assert advice.rests_on.settings["measured"] == len(LAYOUTS)


def test_a_layout_that_was_only_seen_is_no_setting():
    """Otherwise a study of a script that shards by itself would never find its settings again."""
    spec = made_spec(Setting(2, local_batch=8))
    record = made_record("r", spec, facts=Facts(sharding="fsdp", tp=1, dp=2))
    assert row_of(record, "done").get("layout") is None
    spec = made_spec(Setting(2, local_batch=8, sharding="zero3"))
    record = made_record("r", spec, facts=Facts(sharding="fsdp"))
    assert json.loads(row_of(record, "done")["layout"])["sharding"] == "fsdp"


def cells_of(chosen: Setting | None = None, too_large: Sequence[Setting] = ()) -> dict:
    job = jobs_of(table(), "digits-cnn")[0]
    found = layout_cells(job, chosen, too_large)
    assert found.unit == "tokens"
    return {(*cell.row, *cell.column): cell for cell in found.cells}


def test_cells_are_measured_predicted_too_large_or_not_possible():
    on = {"nodes": 1, "local_batch": 4, "sharding": "zero1"}
    too_large = Setting(8, tp=8, gradient_accumulation=8, **on)
    cells = cells_of(too_large=[too_large])
    assert {key: cell.status for key, cell in cells.items()} == {
        (1, 1): "measured", (1, 2): "measured", (2, 1): "measured", (2, 2): "measured",
        (4, 1): "measured", (4, 2): "predicted", (8, 1): "out of memory", (8, 2): "not possible",
    }  # fmt: skip
    assert cells[1, 1].per_s == pytest.approx(32 * 256 / 8 / 1.0)
    low, high = cells[4, 2].per_s_ci
    assert low < cells[4, 2].per_s < high < cells[1, 1].per_s
    assert "8 x 2" in cells[8, 2].reason
    # Another micro-batch makes columns.
    chosen = Setting(8, tp=2, pp=2, gradient_accumulation=8, **on)
    cells = cells_of(chosen)
    assert (cells[2, 2, 2].setting, cells[2, 2, 2].status) == (chosen, "predicted")
    assert cells[2, 2, 4].status == "measured"


def test_a_job_with_one_layout_has_no_cells():
    observations = jobs_of(table(), "digits-cnn")[0].observations[:1]
    job = replace(jobs_of(table(), "digits-cnn")[0], observations=observations)
    assert layout_cells(job) is None
