"""Layouts of runs in a store: groups of their own, and predictions where the network is known."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from asking import advise
from made_runs import made_record, made_spec
from made_tables import LAYOUTS, NETWORK, frames, layouts, run_row, window_row
from wattlaw.analysis.advise.advice_cautions import of_choice
from wattlaw.analysis.advise.choice import choose_of
from wattlaw.analysis.advise.option import Quantity
from wattlaw.analysis.advise.possible_options import read_options
from wattlaw.analysis.findings import analyse
from wattlaw.analysis.metrics.comparable_runs import comparable_runs
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.analysis.planned_campaign import Campaign, propose
from wattlaw.analysis.predict.intervals import Components
from wattlaw.analysis.predict.job import jobs_of
from wattlaw.analysis.predict.layout_cells import layout_cells
from wattlaw.analysis.predict.peak_memory import memory_of
from wattlaw.analysis.predict.run_settings import setting_of_row
from wattlaw.analysis.predict.workload_predictions import overviews, predict_workload
from wattlaw.common.errors import BadInput, NothingToRecommend
from wattlaw.report.topics import layout_table
from wattlaw.report.topics.advice_text import changes, summary
from wattlaw.report.topics.prediction import curves
from wattlaw.report.topics.prediction import table as table_of
from wattlaw.running.run_status import LIMITS, run_title
from wattlaw.store.record import Facts
from wattlaw.store.schema import row_of
from wattlaw.study.labels import layout_label, run_layout
from wattlaw.study.network import Network
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting

NOTHING = pd.DataFrame({"run_id": [], "energy_reason": []})


@cache
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
    asked = {"minimize": "time", "max_global_batch": 32}
    advice = advise(table(network=None), NOTHING, "digits-cnn", **asked)
    best = advice.recommended.setting
    assert (best.tp, best.pp, best.sharding) == (1, 1, "zero1")
    assert not advice.recommended.is_at(replace(best, sharding="none"))
    assert len(advice.rests_on.settings) == 1
    assert advice.rests_on.settings["measured"] == len(LAYOUTS)


def test_layouts_whose_time_is_too_uncertain_are_counted_with_the_run_that_narrows_it():
    asked = {"minimize": "time", "max_global_batch": 32}
    many, few = (
        advise(table(), NOTHING, "digits-cnn", **asked, max_gpus=most) for most in (512, 8)
    )
    (text,) = (str(item) for item in many.warnings if item.code == "layouts-unsure")
    assert re.match(r"\d+ layouts that did not run", text)
    count = int(re.search(r"(\d+) workers, .*micro-batch", text)[1])
    job = jobs_of(table(), "digits-cnn")[0]
    assert count > max(setting.gpus for setting in job.settings)
    assert any(text in line for line in summary(many))
    assert "layouts-unsure" not in {item.code for item in few.warnings}


@pytest.mark.parametrize(("launcher", "source"), [("local", "measured"), ("replay", "replayed")])
def test_the_figure_of_layouts_names_the_source_of_its_runs(launcher, source):
    runs, windows = layouts()
    found = analyse(runs.assign(launcher=launcher), windows)
    (line,) = layout_table.sentences(found)
    assert f"5 {source}" in line
    drawn = json.dumps(layout_table.figure(found))
    assert [name for name in ("measured", "imported", "simulated", "replayed")
            if f'"{name}"' in drawn.replace('"status": "measured"', "")] == [source]  # fmt: skip


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
    job = jobs_of(table(), "digits-cnn")[0]
    assert layout_cells(replace(job, observations=job.observations[:1])) is None


#: 8 billion parameters, of which 16 GPUs of 80 GB share the states; micro-batches of 1 to 8.
LARGE = Network(layers=32, hidden=4096, heads=32, ffn=14336, vocabulary=32000, sequence=4096)
BOARD = "NVIDIA H100 80GB HBM3"
OF_LARGE = {"precision": "bf16", "hardware": BOARD, "device_ids": ["GPU-1"],
            "network": LARGE.model_dump_json(exclude_defaults=True)}  # fmt: skip


def memory_runs(**changes):
    """Return runs of micro-batches of 1, 2 and 4 samples that fitted, and of 8 that did not."""
    rows = []
    for micro, peak_gib in ((1, 33), (2, 45), (4, 69), (8, None)):
        setting = Setting.packed(16, 8, tp=2, sharding="zero1", local_batch=micro / 2)
        status = {} if peak_gib else {"status": OUT_OF_MEMORY, "out_of_memory": "device"}
        size = None if peak_gib is None else peak_gib * 2**30
        row = {"gpus": 16, "nodes": 2, "global_batch": micro * 8, "local_batch": None}
        row |= {"layout": json.dumps(setting.layout), "peak_memory_bytes": size}
        rows.append(run_row(f"m{micro}", **(OF_LARGE | row | status | changes)))
    return frames(rows, [])[0]


def with_micro_batch(size, **sizes):
    values = {"tp": 2, "sharding": "zero1", "precision": "bf16"} | sizes
    return Setting.packed(16, 8, local_batch=size / values["tp"], **values)


def test_peaks_and_failures_of_runs_say_what_fits():
    memory = memory_of(memory_runs())
    assert len(memory.peaks) == 4
    assert memory.memory_gib == pytest.approx(79.1, abs=0.2)  # as torch reports
    small, large = memory.fits([with_micro_batch(2), with_micro_batch(16)]).mean(0)
    assert small > 0.95
    assert large < 0.02
    low, middle, high = np.quantile(memory.peaks_bytes([with_micro_batch(3)]), (0.05, 0.5, 0.95))
    assert low < 57 * 2**30 < high
    assert middle == pytest.approx(57 * 2**30, rel=0.1)
    assert memory.fits([with_micro_batch(8, tp=8)]).mean() > 0.9


def test_the_memory_that_runs_report_counts_before_that_of_the_board():
    small, large = (memory_of(memory_runs(gpu_memory_bytes=gib * 2**30)) for gib in (40, 200))
    assert (small.memory_gib, large.memory_gib) == (40, 200)
    asked = [with_micro_batch(6)]
    assert small.fits(asked).mean() < 0.01 < large.fits(asked).mean()


def test_what_runs_do_not_say_of_memory_is_not_modelled():
    unknown_board = memory_of(memory_runs(hardware="board"))
    assert len(unknown_board.peaks) == 3  # what was out of memory is above a memory not known
    assert unknown_board.fits([with_micro_batch(2)]) is None
    for told in ({"network": None}, {"device_ids": ["host"]}, {"hardware": "AMD EPYC, 8 cores"}):
        assert memory_of(memory_runs(**told)) is None
    simulated = memory_of(memory_runs(launcher="simulated"))
    assert simulated.peaks == ()
    assert 0.0 < simulated.fits([with_micro_batch(2)]).mean() <= 1.0


def data_parallel_tables(**changes):
    """Return the runs of ``LARGE`` on 8 to 32 GPUs with a sample each, and their windows."""
    runs, windows = [], []
    for gpus, seconds in ((8, 1.0), (16, 1.05), (32, 1.1)):
        run = {"gpus": gpus, "nodes": gpus // 8, "global_batch": gpus, "local_batch": 1,
               "layout": json.dumps({"sharding": "zero3", "gradient_accumulation": 1}),
               "peak_memory_bytes": 45 * 2**30}  # fmt: skip
        runs.append(run_row(f"d{gpus}", **(OF_LARGE | run | changes)))
        window = {"duration_s": 10 * seconds, "samples": 10 * gpus, "steps": 10}
        windows.append(window_row(f"d{gpus}", 1, **window))
    return frames(runs, windows)


def test_predictions_say_what_memory_settings_need_and_whether_they_fit():
    runs, windows = data_parallel_tables()
    given = {"tp": [1, 2], "micro_batch": [1], "sharding": ["zero3", "none"]}
    rows = predict_workload(
        run_metrics(runs, windows), "digits-cnn", gpus=[16], layout=given, stored=runs
    ).rows
    found = {(row.setting.tp, row.setting.sharding): row for row in rows}
    ran, copied = found[1, "zero3"], found[1, "none"]
    assert ran.fits == 1.0
    assert ran.peak_memory_bytes_ci[0] < 45 * 2**30 < ran.peak_memory_bytes_ci[1]
    assert copied.fits < 0.05  # 8 billion parameters of 16 bytes
    assert found[2, "zero3"].fits > 0.95
    assert copied.to_dict()["fits"] == copied.fits
    # The layouts are of the model of layouts: exchange in each layer takes time.
    assert found[2, "zero3"].time_per_sample_s > ran.time_per_sample_s


def test_other_layouts_than_those_that_ran_need_the_network():
    runs, windows = data_parallel_tables(network=None)
    table = run_metrics(runs, windows)
    assert predict_workload(table, "digits-cnn", gpus=[16], stored=runs).rows[0].fits is None
    with pytest.raises(NothingToRecommend, match="model"):
        predict_workload(table, "digits-cnn", gpus=[16], layout={"tp": [2]}, stored=runs)


def layout_tables():
    """Return runs of tp 1, 2 and 4 with micro-batches of 1 and 2 on 16 GPUs, one without memory."""
    runs, windows = [], []
    tried = ((1, 1, 1.0, 66), (2, 1, 1.2, 36), (2, 2, 1.1, 44), (4, 1, 1.5, 21), (1, 2, 1.0, None))
    for tp, micro, seconds, peak_gib in tried:
        name = f"t{tp}m{micro}"
        setting = Setting.packed(16, 8, tp=tp, sharding="zero1", local_batch=4)
        layout = setting.in_micro_batches(micro).layout
        run = {"gpus": 16, "nodes": 2, "global_batch": 64, "local_batch": 4}
        run |= OF_LARGE | {"layout": json.dumps(layout), "parallelism": "tensor"}
        if peak_gib is None:
            run |= {"status": OUT_OF_MEMORY, "out_of_memory": "device"}
        else:
            run["peak_memory_bytes"] = peak_gib * 2**30
            windows.append(window_row(name, 1, duration_s=10 * seconds, samples=640, steps=10))
        runs.append(run_row(name, **run))
    return frames(runs, windows)


def test_a_layout_that_was_out_of_memory_is_not_faster_and_the_table_names_whole_layouts():
    runs, windows = layout_tables()
    given = {"tp": [1], "micro_batch": [1, 2], "sharding": ["zero1", "none"]}
    found = predict_workload(
        run_metrics(runs, windows), "digits-cnn", gpus=[16], layout=given, stored=runs,
        baseline={"gpus": 16, "tp": 4, "micro_batch": 1},
    )  # fmt: skip
    rows = {(row.setting.micro_batch, row.setting.sharding): row for row in found.rows}
    ran, full, copied = rows[1, "zero1"], rows[2, "zero1"], rows[2, "none"]
    assert ran.p_faster > 0.8 and not ran.out_of_memory
    assert (full.fits, full.p_faster, full.out_of_memory) == (0.0, 0.0, True)
    assert copied.p_faster <= copied.fits < 1.0 and not copied.out_of_memory
    frame = table_of(found).to_frame()
    assert frame["layout"].tolist() == [
        f"data parallel, micro-batch {row.setting.micro_batch:g}, no sharding"
        if row.setting.sharding == "none" else f"zero1, micro-batch {row.setting.micro_batch:g}"
        for row in found.rows
    ]  # fmt: skip
    assert "out of memory" in frame["P(fits)"][found.rows.index(full)]


def test_the_curve_of_a_report_has_the_recommended_layout_and_its_runs_alone():
    runs, windows = layout_tables()
    findings = analyse(runs, windows)
    best = findings.advice[0].recommended.setting
    other = replace(best, gradient_accumulation=1, tp=4).in_micro_batches(1)
    for [overview], chosen in (
        (findings.predictions, best),
        (overviews(findings.runs, runs, {("digits-cnn", BOARD): other}), other),
    ):
        assert overview.shown == chosen
        assert {(row.setting.tp, row.setting.micro_batch) for row in overview.curve} == {
            (chosen.tp, chosen.micro_batch)
        }
        assert {item.setting for item in overview.measured} == {chosen}
    [panel] = curves(findings)["concat"]
    assert layout_label(best, among_others=True) in str(panel["title"])


def test_parts_that_take_about_as_long_are_bottlenecks_together():
    assert Components(27.6, 27.1, 0.0, 5.0).bottleneck == "compute and communication"
    assert Components(1.0, 2.0, 0.0, 0.5).bottleneck == "communication"


def test_advice_considers_layouts_between_those_that_ran_and_that_fit():
    runs, windows = layout_tables()
    table = run_metrics(runs, windows)
    asked = Question("time", max_global_batch=64, max_gpus=16)
    job = comparable_runs(table, "digits-cnn")
    options = read_options(table, job, {("bf16", 64): Quantity(10.0)}, asked, None,
                           any_batch=False, far=False, stored=runs)  # fmt: skip
    found = {(item.setting.tp, item.setting.micro_batch): item for item in options.predicted}
    assert set(found) == {(4, 2)}  # and not the one that was out of memory
    assert found[4, 2].fits > 0.95
    assert found[4, 2].to_dict()["tp"] == 4
    assert "tp 4" in found[4, 2].label
    assert found[4, 2].extrapolates == ()
    for fits, warned in ((0.5, True), (0.95, False)):
        choice = choose_of([replace(found[4, 2], fits=fits)], asked, "GPU")
        assert ("may-not-fit" in {item.code for item in of_choice(choice, options, job)}) == warned


def test_copies_that_share_a_sample_have_a_part_of_it_as_their_batch():
    spec = made_spec(Setting(8, tp=8, local_batch=0.5, nodes=1))
    row = row_of(made_record("r", spec, facts=Facts()), "done")
    assert (row["global_batch"], row["local_batch"]) == (4, None)
    assert setting_of_row(row, "sample").local_batch == 0.5


def test_advice_tells_layouts_of_one_size_apart():
    asked = {"minimize": "time", "max_global_batch": 32}
    given = {"gpus": 8, "tp": 2, "pp": 2}
    advice = advise(table(), NOTHING, "digits-cnn", **asked, baseline=given)
    best, base = advice.recommended, advice.baseline
    assert (best.setting.tp, base.setting.tp, base.setting.pp) == (1, 2, 2)
    assert best.columns == base.columns
    assert advice.savings.time.mean == pytest.approx(1 / 1.3 - 1, abs=0.02)
    assert changes(advice) != ""
    assert "tp 2" in base.label_beyond(best) and "pp 2" in base.label_beyond(best)
    with pytest.raises(BadInput, match=r"tp=1 \| 2"):
        advise(table(), NOTHING, "digits-cnn", **asked, baseline={"gpus": 8, "pp": 1})


def test_the_title_of_a_run_has_the_layout_that_is_asked_for_or_was_seen():
    run = {"gpus": 8, "local_batch": 4, "layout": '{"tp": 2, "gradient_accumulation": 2}'}
    assert run_layout(run | {"pp": 4}) == "tp 2, pp 4, micro-batch 16"
    assert run_layout(run | {"layout": None, "tp": 1, "sharding": "none"}) == ""
    assert run_layout(run | {"layout": None, "tp": 4, "sharding": None}) == "tp 4, micro-batch 16"
    assert run_layout(run | {"layout": '{"tp": 3}'}) == ""  # of another number of GPUs
    limits = dict.fromkeys(("emulated_gpus", *LIMITS))
    title = run_title("id", run | limits | {"workload": "gpt", "repeat": 0, "nodes": 1})
    assert title == "gpt on 8 workers, tp 2, micro-batch 4, batch 32 (repeat 0, id)"


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_proposal_plans_the_recommended_layout(nodes):
    findings = analyse(*layouts())
    proposal = propose(findings, "digits-cnn", Campaign(nodes, steps=100))
    planned = proposal.planned.setting
    assert (planned.gpus, planned.tp, planned.sharding) == (8 * nodes, 1, "zero1")
    assert proposal.planned.runs == (nodes == 1)
