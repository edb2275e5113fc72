"""Time and memory of layouts: what follows from their arithmetic, and public measurements."""

from dataclasses import replace

import numpy as np
import pytest

from wattlaw.analysis.predict.observation import Observation
from wattlaw.analysis.predict.parallel_step import LIMITS, POWER, Parallel, Scale, step
from wattlaw.analysis.predict.parallel_step import PRIORS as STEP
from wattlaw.analysis.predict.parameters import Transformation
from wattlaw.analysis.predict.peak_memory import PRIORS as MEMORY
from wattlaw.analysis.predict.peak_memory import Peak, learn, peak_gib
from wattlaw.analysis.predict.posterior import fit
from wattlaw.analysis.predict.predictions import predict
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting

NETWORK = Network(layers=32, hidden=4096, heads=32, ffn=11008, vocabulary=32000, sequence=4096)


def middle(priors):
    values = Transformation(list(priors.values())).values(np.zeros((1, len(priors))))
    return {name: values[:, index : index + 1] for index, name in enumerate(priors)}


def layout(gpus, micro=1, parts=8, **sizes):
    setting = Setting.packed(gpus, 8, gradient_accumulation=parts, precision="bf16", **sizes)
    return replace(setting, local_batch=micro * parts / setting.model_gpus)


def seconds(*settings):
    parallel = Parallel.of(settings, [NETWORK] * len(settings))
    return step(middle(STEP), parallel, Scale(2e14)).step_s[0]


def gib(*settings):
    return peak_gib(middle(MEMORY), Parallel.of(settings, [NETWORK] * len(settings)))[0]


def test_a_pipeline_has_a_bubble_that_more_micro_batches_hide():
    few, many = layout(8, parts=8, pp=8), layout(8, parts=64, pp=8)
    parts = step(middle(STEP), Parallel.of([few, many], [NETWORK] * 2), Scale(2e14))
    share = parts.waiting_s[0] / parts.step_s[0]
    assert share[0] == pytest.approx(7 / 15, rel=0.05)  # (pp - 1) / (k + pp - 1)
    assert share[1] == pytest.approx(7 / 71, rel=0.05)
    interleaved = layout(8, parts=8, pp=8, virtual_stages=2)
    assert seconds(interleaved)[0] < seconds(few)[0]


def test_tensor_parallel_between_nodes_is_slower_than_in_one():
    inside, across = layout(16, tp=8, micro=2), layout(16, tp=16, micro=2)
    per_sample = seconds(inside, across) / [inside.global_batch, across.global_batch]
    assert per_sample[1] > 2 * per_sample[0]


def test_a_last_stage_with_fewer_layers_makes_up_for_the_output_matrix():
    words = Network(layers=32, hidden=4096, heads=32, vocabulary=200_000, sequence=4096)
    parallel = Parallel.of([layout(8, pp=8), layout(8)], [words] * 2)
    balanced, even = (
        step(middle(STEP) | {"balance": np.full((1, 1), share)}, parallel, Scale(2e14)).step_s[0]
        for share in (0.99, 0.01)
    )
    assert balanced[0] < 0.8 * even[0]
    assert balanced[1] == pytest.approx(even[1])


def test_a_long_micro_batch_hides_the_reduction_but_not_the_gathering_of_parameters():
    pairs = [(micro, sharding) for sharding in ("none", "zero1") for micro in (1, 8)]
    settings = [layout(16, micro=m, parts=8 // m, sharding=kind) for m, kind in pairs]
    parallel = Parallel.of(settings, [NETWORK] * 4)
    values = middle(STEP) | {"gradient": np.full((1, 1), 20.0)}
    copies_s = step(values, parallel, Scale(2e14)).communication_s[0]
    assert copies_s[1] < 0.6 * copies_s[0]
    assert copies_s[3] > 0.5 * copies_s[0]


def test_recomputation_costs_a_third_and_saves_activations():
    plain, again = layout(8, tp=8, micro=4), layout(8, tp=8, micro=4, checkpointing="full")
    assert seconds(again)[0] / seconds(plain)[0] == pytest.approx(4 / 3, rel=0.15)
    assert gib(again)[0] < 0.6 * gib(plain)[0]  # the rest are states


def test_states_are_shared_as_zero_does():
    """7.5 GB x (2 + 2 + 12), of 64 GPUs: Rajbhandari et al. 2020, figure 1."""
    values = middle(MEMORY) | {"states": np.ones((1, 1)), "gradients": np.full((1, 1), 2.0),
                               "activations": np.full((1, 1), 1e-9), "logits": np.zeros((1, 1)),
                               "rest": np.zeros((1, 1))}  # fmt: skip
    settings = [layout(64, sharding=kind) for kind in ("none", "zero1", "zero2", "zero3")]
    parallel = Parallel.of(settings, [NETWORK] * 4)
    peaks = peak_gib(values, parallel)[0] / NETWORK.parameters * 2**30
    expected = [16.0, 4 + 12 / 64, 2 + 14 / 64]
    assert peaks[:3] == pytest.approx(expected, rel=0.01)
    assert peaks[3] < 1.2  # 16 / 64, and two layers that are gathered


def test_out_of_memory_teaches_what_does_not_fit():
    wide = [layout(8, micro=size, tp=2) for size in (1, 2, 4, 8)]
    true = gib(*wide) * 1.5
    room = float(np.sqrt(true[1] * true[2]))
    runs = [Peak(item, NETWORK, room, peak if peak < room else None, bool(peak < room))
            for item, peak in zip(wide, true, strict=True)]  # fmt: skip
    chance = (learn(runs).peaks_gib(wide, [NETWORK] * 4) <= room).mean(0)
    assert chance[0] > 0.9
    assert chance[2] < 0.25  # a little above the memory
    assert chance[3] < 0.1
    others = [layout(8, micro=size, tp=4) for size in (1, 16)]
    chance = (learn(runs).peaks_gib(others, [NETWORK] * 2) <= room).mean(0)
    assert chance[1] - chance[0] < -0.5


def limited(setting, power_limit_w):
    return replace(setting, power_limit_w=power_limit_w)


def test_a_power_limit_slows_computing_and_not_the_bubble():
    values = middle(STEP | POWER | LIMITS)
    settings = [layout(8, tp=2, micro=2), layout(8, pp=8, micro=2)]
    wanted = [limited(item, watts) for item in settings for watts in (None, 400.0)]
    steps = step(values, Parallel.of(wanted, [NETWORK] * 4), Scale(2e14, 700.0))
    time_s, watts = steps.step_s[0], steps.power_w[0]
    assert time_s[1] / time_s[0] > 1.1
    assert watts[1] < 400 < watts[0]
    assert watts[2] < watts[0]  # a pipeline waits
    assert time_s[1] * watts[1] < time_s[0] * watts[0]  # the limit saves energy


def test_limits_and_layouts_of_runs_predict_power_and_energy_of_others():
    values, sizes = middle(STEP | POWER | LIMITS), ((1, 1), (2, 1), (4, 1), (2, 2), (1, 4))
    layouts = [layout(8, tp=tp, pp=pp, micro=2) for tp, pp in sizes]
    measured = [limited(item, watts) for item in layouts for watts in (None, 500.0, 300.0)]
    asked = [limited(layout(8, tp=tp, pp=pp, micro=2), 400.0) for tp, pp in ((8, 1), (4, 2))]
    truth = step(values, Parallel.of([*measured, *asked], [NETWORK] * 17), Scale(2e14, 700.0))
    times, powers = truth.step_s[0], truth.power_w[0]
    rows = zip(measured, times, powers, strict=False)
    predicted = predict([Observation(*row, network=NETWORK) for row in rows], asked)
    for row, time_s, watts in zip(predicted, times[15:], powers[15:], strict=True):
        joules = time_s * watts * 8 / row.setting.samples
        assert row.power_per_gpu_w == pytest.approx(watts, rel=0.1)
        assert row.energy_per_sample_j_ci[0] < joules < row.energy_per_sample_j_ci[1]
        assert row.energy_per_sample_j == pytest.approx(joules, rel=0.2)


def test_a_fit_predicts_other_layouts_of_its_own_world():
    choices = [layout(gpus, micro=micro, parts=8, tp=tp, pp=pp, checkpointing="full")
               for gpus in (8, 16) for tp in (1, 2, 4, 8) for pp in (1, 2) for micro in (1, 2, 4)
               if tp * pp <= gpus]  # fmt: skip
    dice = np.random.default_rng(1)
    times = seconds(*choices) * np.exp(0.02 * dice.standard_normal(len(choices)))
    runs = [Observation(*row, network=NETWORK) for row in zip(choices, times, strict=True)]
    order = dice.permutation(len(runs))
    posterior = fit([runs[index] for index in order[:16]])
    rest = order[16:]
    _, draws, _ = posterior.runs([choices[i] for i in rest])
    error = np.abs(np.log(np.median(draws, axis=0) / times[rest]))
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    assert np.median(error) < 0.05
    assert ((low < times[rest]) & (times[rest] < high)).mean() >= 0.75


def test_runs_of_one_setting_that_scatter_widen_the_intervals_of_others():
    choices = [layout(8, micro=micro, tp=tp) for tp in (1, 2, 4) for micro in (1, 2)] * 2
    scatter = 0.3 * np.random.default_rng(2).standard_normal(12)
    rows = zip(choices, seconds(*choices) * np.exp(scatter), strict=True)
    _, draws, _ = fit([Observation(*row, network=NETWORK) for row in rows]).runs(choices[:1])
    low, high = np.quantile(draws, [0.05, 0.95])
    apart = scatter[:6] - scatter[6:]
    assert np.log(high / low) > 2 * 1.645 * np.sqrt((apart**2).mean() / 2)


def test_short_runs_say_their_settings_time_no_better_than_their_steps():
    choices = [layout(8, micro=micro, tp=tp) for tp in (1, 2) for micro in (1, 4)]
    runs = [Observation(*row, network=NETWORK, time_error=0.07)
            for row in zip(choices, seconds(*choices) * [1, 4, 0.25, 1], strict=True)]  # fmt: skip
    intervals = {}
    for error in (0.0, 0.07):
        posterior = fit([replace(run, time_error=error) for run in runs])
        low, high = np.quantile(posterior.runs(choices)[1], [0.05, 0.95], axis=0)
        intervals[error] = np.log(high / low)
    # The errors of the runs and of one more, each with its tails.
    assert (intervals[0.07] > 2 * 1.645 * 0.07 * np.sqrt(2)).all()
    assert (intervals[0.07] > intervals[0.0]).all()
