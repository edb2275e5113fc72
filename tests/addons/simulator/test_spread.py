"""Waiting for the slowest, against integrals and draws."""

import numpy as np
import pytest
from scipy import integrate, stats

from wattlaw_simulator.simulate_step import (
    deviation_of_maximum,
    expected_maximum,
    slowest_over_mean,
    step_cv,
)
from wattlaw_simulator.simulated_job import Parameters


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16, 100, 424, 10_000])
def test_the_expected_maximum_agrees_with_its_integral(count):
    """E max = integral of x d(Phi(x)^n)."""

    def density(x: float) -> float:
        return float(x * count * stats.norm.pdf(x) * stats.norm.cdf(x) ** (count - 1))

    exact, _ = integrate.quad(density, -10, 10, limit=200)
    assert expected_maximum(count) == pytest.approx(exact, abs=0.026)


def test_the_slowest_of_drawn_ranks_agrees():
    own = Parameters(step_spread=0.03, gpu_spread=0.02)
    dice = np.random.default_rng(1)
    boards = dice.normal(1, 0.02, (2000, 64))
    drawn = (boards + dice.normal(0, 0.03, (2000, 64))).max(axis=1).mean()
    assert slowest_over_mean(own, 0.0, 1, 64) == pytest.approx(drawn, rel=2e-3)


def test_samples_of_different_size_even_out_in_a_batch():
    dice = np.random.default_rng(2)
    work = dice.gamma(4, 0.25, (20_000, 128))  # mean 1, deviation 0.5
    drawn = work.mean(axis=1).std()
    assert step_cv(Parameters(step_spread=0.0), 0.5, 128) == pytest.approx(drawn, rel=0.02)


@pytest.mark.parametrize("count", [1, 2, 8, 64, 424])
def test_the_deviation_of_the_maximum_agrees_with_draws(count):
    drawn = np.random.default_rng(3).standard_normal((40_000, count)).max(axis=1).std()
    assert deviation_of_maximum(count) == pytest.approx(drawn, rel=0.04)
