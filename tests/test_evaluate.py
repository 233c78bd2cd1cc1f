"""Metrics: closed forms; floors; a sampler that is known to be bad is seen to be."""

import jax
import numpy as np
import pytest

from demx.evaluate import metrics
from demx.evaluate.evaluation import evaluate
from demx.targets.gaussian_mixture import gmm40


def test_w2_of_a_shift_is_the_shift(seed):
    x = np.random.default_rng(seed).normal(size=(200, 3))
    assert metrics.w2(x, x) == 0
    assert metrics.w2(x, x[::-1] + np.array([3.0, 4.0, 0.0])) == pytest.approx(5)
    with pytest.raises(ValueError, match="expected sets of equal size, got 200 and 100"):
        metrics.w2(x, x[:100])


def test_energy_distances_of_normals(seed):
    """W2(N(0,1), N(m, s²)) = √(m² + (s-1)²), W1 of a shift is the shift."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=200_000), rng.normal(2.0, 3.0, size=200_000)
    assert metrics.energy_w2(a, b) == pytest.approx(8**0.5, rel=0.02)
    assert metrics.energy_w1(a, a + 0.7) == pytest.approx(0.7)
    assert metrics.energy_w1(a, a[:50_000] + 0.7) == pytest.approx(0.7, abs=0.03)


def test_mode_metrics_by_hand():
    modes = np.array([[0.0, 0.0], [10.0, 0.0]])
    x = np.array([[0.1, 0.0], [0.2, 0.0], [-0.1, 0.0], [4.0, 0.0]])
    scale = np.ones(2)
    assert metrics.mode_histogram(x, modes).tolist() == [1, 0]
    assert metrics.modes_hit(x, modes, scale) == 1
    assert metrics.mode_tv(x, modes, np.array([0.5, 0.5])) == 0.5
    assert metrics.outside_share(x, modes, scale) == 0.25


def test_perfect_samples_are_at_the_floor(key):
    target = gmm40()
    x = np.asarray(target.sample(key, 4000))
    found = evaluate(target, x, jax.random.fold_in(key, 1), repeats=8)
    for name in ("w2", "energy_w2", "energy_w1", "mode_tv", "outside_share"):
        metric = found.metrics[name]
        joint = np.hypot(metric.standard_error, metric.floor_standard_error)
        assert abs(metric.value - metric.floor) < 4.5 * joint, name
    assert found.metrics["modes_hit"].value == 40
    assert found.bad == 0 and found.energy_calls == 3 * 4000


def test_a_missing_mode_and_a_bad_sample_are_seen(key):
    target = gmm40()
    x = np.array(target.sample(key, 4000))
    modes = np.asarray(target.modes)
    apart = np.linalg.norm(modes[:, None] - modes[None], axis=2) + 1e9 * np.eye(40)
    lonely = apart.min(axis=1).argmax()  # no neighbour's samples reach this one
    nearest = np.linalg.norm(x[:, None] - modes[None], axis=2).argmin(1)
    x[nearest == lonely] = modes[(lonely + 1) % 40]
    x[0] = np.nan
    found = evaluate(target, x, jax.random.fold_in(key, 1), repeats=8)
    assert found.metrics["modes_hit"].value == 39
    tv = found.metrics["mode_tv"]
    assert tv.value > tv.floor + 4 * np.hypot(tv.standard_error, tv.floor_standard_error)
    assert found.bad == 1


def test_too_few_samples():
    with pytest.raises(ValueError, match="at least 2 repeats of at least 2 samples"):
        evaluate(gmm40(), np.zeros((5, 2)), jax.random.key(0), repeats=4)


def test_only_bad_samples_give_no_metrics():
    found = evaluate(gmm40(), np.full((40, 2), np.nan), jax.random.key(0), repeats=4)
    assert found.metrics == {} and found.bad == 40
