"""Draws of the model's error that agree with what the model misses of observations."""

import numpy as np
import pytest
from scipy import special, stats

from wattlaw.analysis.predict import model_error
from wattlaw.analysis.predict.layout import Layout, Reference
from wattlaw.analysis.predict.model_error import Errors, draw_errors
from wattlaw.analysis.predict.observation import Observation
from wattlaw.study.setting import Setting

USUAL = 0.02
DRAWS = 4000


def packed(gpus, batch):
    return Setting.packed(gpus, 4, local_batch=float(batch))


def errors_of(seen, wanted, residuals, **options):
    reference = Reference.of([Observation(item, 1.0) for item in seen])
    layouts = Layout.of(seen, reference), Layout.of(wanted, reference)
    repeated = np.tile(np.asarray(residuals, dtype=float), (DRAWS, 1))
    dice = np.random.default_rng(1)
    return draw_errors(layouts, (seen, wanted), repeated, USUAL, dice, **options)


def correlations(settings):
    """Return those of errors by placement and by batch, and which settings are the same."""
    gpus, nodes, load = (
        np.exp(-((values[:, None] - values) ** 2) / 2)
        for name, reach in (("gpus", 1.4), ("nodes", 1.4), ("local_batch", 0.7))
        for values in [np.log([getattr(item, name) for item in settings]) / reach]
    )
    same = np.array([[item == other for other in settings] for item in settings])
    return gpus * nodes, load, same


def test_with_known_sizes_they_are_those_of_a_gaussian_process(monkeypatch):
    sizes = (2.0, 1.0, 0.5, 1.0)
    monkeypatch.setattr(model_error, "_SIZES", tuple(((size, 1.0),) for size in sizes))
    seen = [packed(1, 16), packed(1, 64), packed(4, 64)]
    wanted = [packed(1, 64), packed(2, 32), packed(8, 16)]
    residuals = np.array([0.03, -0.02, 0.01])
    errors, noise = errors_of(seen, wanted, residuals)

    placement, load, same = correlations([*seen, *wanted])
    repeats = 0.5 * USUAL
    own = (sizes[3] * USUAL) ** 2 - repeats**2
    covariance = own * same + USUAL**2 * (
        sizes[0] ** 2 * placement + sizes[1] ** 2 * load + sizes[2] ** 2 * placement * load
    )
    gain = np.linalg.solve(covariance[:3, :3] + repeats**2 * np.eye(3), covariance[:3, 3:])
    left = covariance[3:, 3:] - covariance[3:, :3] @ gain
    assert errors.mean(0) == pytest.approx(residuals @ gain, abs=4 * 0.06 / np.sqrt(DRAWS))
    assert np.cov(errors.T) == pytest.approx(left, abs=0.08 * left.max())
    assert noise == pytest.approx([repeats] * 3)


def test_an_error_of_a_batch_is_that_of_the_batch_on_other_gpu_counts():
    seen = [packed(gpus, batch) for gpus in (1, 2, 4) for batch in (8, 64, 512)]
    residuals = [0.06 if item.local_batch == 64 else 0.0 for item in seen]
    errors, _ = errors_of(seen, [packed(16, 64), packed(16, 512)], residuals)
    same, other = errors.mean(0)
    assert same > 0.03
    assert abs(other) < 0.015


def test_repeats_of_a_mean_over_gpus_differ_less_on_many():
    seen, wanted = [packed(1, 8), packed(2, 8)], [packed(4, 8), packed(16, 8)]
    _, noise = errors_of(seen, wanted, [0.0, 0.0], is_mean_of_gpus=True)
    assert noise[0] == pytest.approx(2 * noise[1])


@pytest.mark.parametrize(("batch", "placements"), [(64, None), (16, ([8], [8, 16]))])
def test_what_a_session_or_allocation_adds_is_shared_in_its_setting_or_placement(
    monkeypatch, batch, placements
):
    monkeypatch.setattr(model_error, "_SIZES", tuple(((1e-6, 1.0),) for _ in range(4)))
    seen, wanted = [packed(8, 64)], [packed(8, batch), packed(16, 64)]
    luck = np.array([0.05]), np.array([0.05, 0.05])
    errors, _ = errors_of(seen, wanted, [0.1], luck=luck, placements=placements)
    assert errors.mean(0) == pytest.approx([0.1, 0.0], abs=0.004)
    assert errors.std(0) == pytest.approx([0.0, 0.05], abs=0.003)


def test_the_density_of_errors_is_that_of_a_mixture_of_normal_distributions():
    seen = [packed(1, 16), packed(1, 64), packed(4, 64), packed(4, 64)]
    reference = Reference.of([Observation(item, 1.0) for item in seen])
    residuals = np.array([[0.0, 0.01, -0.02, 0.01], [0.1, 0.1, 0.09, 0.12]])
    found = Errors.of(Layout.of(seen, reference), USUAL).log_density(residuals)

    placement, load, same = correlations(seen)
    shape = placement + load + 0.25 * placement * load + 0.0625 * same
    noise = np.diag([(0.5 * USUAL) ** 2 / item.gpus for item in seen])
    parts = [
        stats.multivariate_normal(cov=(size * USUAL) ** 2 * shape + noise).logpdf(residuals)
        for size in (0.2, 0.5, 1.0, 2.0, 4.0)
    ]
    expected = special.logsumexp(parts, axis=0)
    assert np.diff(found) == pytest.approx(np.diff(expected))
