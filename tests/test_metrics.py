"""Distances between sets: against POT and closed forms."""

import warnings

import numpy as np
import pytest
from scipy.stats import ortho_group

from demx.evaluate import metrics

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # announces missing backends
    import ot


def test_w2_agrees_with_pot(rng):
    x, y = rng.normal(size=(120, 5, 2)), 0.3 + 1.4 * rng.normal(size=(120, 5, 2))
    cost = ot.dist(x.reshape(120, -1), y.reshape(120, -1))
    assert metrics.w2(x, y) == pytest.approx(ot.emd2([], [], cost) ** 0.5, rel=1e-9)
    with pytest.raises(ValueError, match="expected sets of equal size"):
        metrics.exact_w2(cost[:50])


def test_energy_distances_agree_with_pot(rng):
    a, b = rng.normal(size=400), rng.gumbel(size=400)
    assert metrics.energy_w1(a, b) == pytest.approx(ot.wasserstein_1d(a, b, p=1), rel=1e-9)
    assert metrics.energy_w2(a, b) == pytest.approx(ot.emd2_1d(a, b) ** 0.5, rel=1e-9)


def test_distances_of_a_right_triangle():
    triangle = np.array([[[0, 0], [3, 0], [0, 4]]], dtype=np.float32)
    assert metrics.distances(triangle).tolist() == [[3, 4, 5]]
    assert metrics.distances(np.zeros((2, 55, 3))).shape == (2, 55 * 54 // 2)
    with pytest.raises(ValueError, match=r"2 or more particles, dim\), got \(7, 1, 3\)"):
        metrics.distances(np.zeros((7, 1, 3)))


def test_distance_w2_of_scaled_clusters(rng):
    """Scaling by s scales all distances: W2 = |s - 1| √(mean distance²)."""
    x = rng.normal(size=(50, 6, 3))
    size = np.sqrt((metrics.distances(x) ** 2).mean())
    assert metrics.distance_w2(x, 1.2 * x) == pytest.approx(0.2 * size)
    turned = x[:, rng.permutation(6)] @ ortho_group.rvs(3, random_state=rng) + 5
    assert metrics.distance_w2(x, turned) == pytest.approx(0, abs=1e-12)


def dimers(lengths):
    """Two particles each, `lengths` apart."""
    return np.stack([np.zeros(len(lengths)), lengths], axis=1)[:, :, None]


def test_distance_tv_by_hand():
    reference = dimers(np.linspace(1, 2, 201))
    assert metrics.distance_tv(reference, reference) == 0
    assert metrics.distance_tv(dimers(np.full(7, 9.0)), reference) == pytest.approx(1)
    half = dimers(np.array([0.5, 1.0025, 2.5, 1.9975]))  # two outside, two in bins of 1 and 2 / 201
    assert metrics.distance_tv(half, reference) == pytest.approx(1 - 3 / 201)
    bad = dimers(np.array([1.0025, np.nan]))
    assert metrics.distance_tv(bad, reference) == pytest.approx(1 - 1 / 201)
    with pytest.raises(ValueError, match="reference is not finite"):
        metrics.distance_tv(reference, bad)


def test_tv_by_hand():
    corners = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert metrics.tv(corners, corners) == 0
    assert metrics.tv(corners + 3, corners) == 1
    assert metrics.tv(np.array([[0.001, 0.999], [2.0, 0.5]]), corners) == pytest.approx(0.75)
    with pytest.raises(ValueError, match="expected points in the plane"):
        metrics.tv(np.zeros((4, 3)), np.zeros((4, 3)))


def test_tv_of_two_uniforms(rng):
    """Uniform on [0, 1]² and on [0, ½] × [0, 1] differ by ½; few bins, so that noise is small.

    Noise of a histogram: E|h - p| ≤ √(p/n), so TV rises by at most ½ · 2 · cells · √(p/n).
    """
    x, y = rng.random((100_000, 2)), rng.random((100_000, 2))
    noise = (64 / 100_000) ** 0.5
    assert abs(metrics.tv(x * [0.5, 1], y, bins=8) - 0.5) < 2 * noise
    assert metrics.tv(x, y, bins=8) < 2 * noise
