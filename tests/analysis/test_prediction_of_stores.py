"""Predictions of whole stores: many exact runs, host power, hardware files, and the check."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_studies import MIT, kit, mit
from wattlaw.analysis.metrics.metrics import run_metrics
from wattlaw.analysis.predict.grid import doublings
from wattlaw.analysis.predict.host_power import HostPower
from wattlaw.analysis.predict.job import SHARED_CORES, jobs_of
from wattlaw.analysis.predict.layout import Reference
from wattlaw.analysis.predict.parameters import LEARNED, hardware_priors
from wattlaw.analysis.predict.workload_predictions import overviews
from wattlaw.hardware.library import read_cluster
from wattlaw.study.setting import Setting

DIMENET = {"dimenet": MIT["dimenet"]}


@pytest.fixture(scope="module")
def capped():
    """Give the table of dimenet on 2 to 32 GPUs under four caps, three repeats with 1 % noise."""
    made = mit(models=DIMENET, counts=(2, 4, 8, 16, 32), noise=0.01, clocks=False)
    return run_metrics(made.runs, made.epochs)


def test_many_exact_observations_give_the_same_posterior_for_every_seed(capped):
    [job] = jobs_of(capped, "dimenet")
    setting = Setting.packed(128, job.node_gpus, local_batch=128)
    medians = [np.median(job.amounts([setting], seed=seed)[0]) for seed in range(3)]
    truth = MIT["dimenet"].alpha_s * 128 ** -MIT["dimenet"].beta
    assert max(medians) < 1.12 * min(medians)
    assert medians[0] == pytest.approx(truth, rel=0.25)


PARTS = st.floats(5, 500)


@given(PARTS, PARTS, st.lists(st.integers(1, 8), min_size=3, max_size=9))
def test_the_power_of_nodes_and_gpus_is_found(node_w, gpu_w, counts):
    settings = [Setting.packed(count, 4) for count in [1, 4, *counts]]
    watts = [node_w * item.nodes + gpu_w * item.gpus for item in settings]
    found = HostPower.fit(settings, watts)
    assert (found.node_w, found.gpu_w) == pytest.approx((node_w, gpu_w), rel=1e-4)
    many = Setting.packed(64, 4)
    draws = found.draws([many], 4000, seed=1)
    assert np.median(draws) == pytest.approx(16 * node_w + 64 * gpu_w, rel=0.05)


def test_full_nodes_alone_do_not_say_what_a_node_with_one_gpu_draws():
    full = [Setting.packed(count, 4) for count in (4, 8)]
    of_full_nodes = HostPower.fit(full, [140.0, 280.0])
    wanted = [Setting.packed(16, 4), Setting(1, nodes=1)]
    many, one = np.quantile(of_full_nodes.draws(wanted, 4000, seed=1), [0.05, 0.95], axis=0).T
    assert many == pytest.approx([560, 560], rel=0.06)
    assert one[0] < 50
    assert one[1] > 120
    known = HostPower.fit([*full, wanted[1]], [140.0, 280.0, 110.0])
    assert np.std(known.draws(wanted, 4000, seed=1)[:, 1]) < 4


def test_the_power_of_hosts_is_part_of_the_predicted_energy():
    made = kit(watts={"A100": 300.0}, growing=False)
    table = run_metrics(made.runs, made.epochs)
    for job in jobs_of(table, str(table["workload"].iloc[0])):
        assert (job.host is not None) == ("+" in job.energy_is)
        [row] = job.predict([job.fastest])
        own = table[
            (table["gpus"] == row.setting.gpus) & (table["local_batch"] == row.setting.local_batch)
        ]
        assert row.energy_per_sample_j == pytest.approx(own["energy_per_sample_j"].mean(), rel=0.1)
        assert row.energy_is == job.energy_is


@pytest.mark.parametrize(
    ("hardware", "threads", "sharing"),
    [("a processor, 8 cores", 1, {16, 32}), ("a processor, 8 cores", 4, {4, 8, 16, 32}),
     ("a processor, 8 cores", None, set()), ("NVIDIA V100", 1, set())],
)  # fmt: skip
def test_predictions_for_workers_that_share_cores_warn(capped, hardware, threads, sharing):
    table = capped.assign(hardware=hardware, threads_per_worker=threads)
    [job] = jobs_of(table[table["repeat"] == 0], "dimenet")
    rows = job.predict([Setting(gpus, nodes=1, local_batch=128) for gpus in (2, 4, 8, 16, 32)])
    assert {row.setting.gpus for row in rows if SHARED_CORES in row.warnings} == sharing
    assert not job.shares_cores(Setting(8, nodes=4, local_batch=128))


def test_a_hardware_file_gives_the_priors_of_networks_and_clocks(capped):
    [job] = jobs_of(capped.assign(gradient_bytes=100e6), "dimenet")
    cluster = read_cluster("dgx-a100-80")
    priors = hardware_priors(cluster, job.gradient_bytes, job.observations)
    reference = Reference.of(job.observations)
    nominal_s = 100e6 / (cluster.network.bandwidth_gb_s * 1e9)
    mean, sd = priors.values["between_volume"]
    assert np.exp(mean) * reference.compute_s == pytest.approx(nominal_s / 0.7)
    assert 0 < sd < 1
    assert priors.values["node_size"] == LEARNED.values["node_size"]
    without = hardware_priors(cluster, None, job.observations)
    assert "between_volume" not in without.values
    assert {"knee", "clock_exponent"} <= set(without.values)
    [row] = job.predict([job.fastest], cluster=cluster)
    assert cluster.name in row.rests_on.priors


def test_the_check_predicts_the_most_gpus_from_fewer(capped):
    [overview] = overviews(capped)
    assert {check.setting.gpus for check in overview.checks} == {32}
    assert len(overview.checks) == capped["power_limit_w"].nunique(dropna=False)
    for check in overview.checks:
        own = capped[capped["gpus"] == 32]
        own = own[own["power_limit_w"].fillna(0) == (check.setting.power_limit_w or 0)]
        assert check.measured_s == pytest.approx(own["time_s"].mean(), rel=0.01)
        assert abs(check.error) < 0.25
    assert {row.setting.gpus for row in overview.curve} == {*doublings([2, 32])}
    assert {item.setting.power_limit_w for item in overview.measured} == {
        overview.curve[0].setting.power_limit_w
    }
