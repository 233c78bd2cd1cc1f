"""Estimators of the smoothed score, against the closed form of mixtures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from at_one_point import VARIANCE, X, batch, exact, repeated
from cases import CONSISTENT, ESTIMATORS, PARTICLES, TARGETS, asymmetric
from demx import estimator as module
from demx.draws import Draws
from demx.estimator import (
    Jensen,
    LogSumExp,
    Mixed,
    Ratio,
)
from demx.space import Euclidean, normal
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import GaussianMixture
from demx.wrappers import Clipped


@pytest.mark.parametrize("name", CONSISTENT)
def test_consistent_estimators_find_the_exact_score(name, key):
    found = repeated(name, key, 20_000, 64).score
    error = np.asarray(jnp.std(found, axis=0)) / 8
    # 4 standard errors, and the remaining O(1/K) bias
    assert (np.abs(np.asarray(jnp.mean(found, axis=0)) - exact()) < 4 * error + 2e-3).all()


@pytest.mark.parametrize("name", CONSISTENT)
def test_error_falls_like_the_root_of_k(name, key):
    """log RMS error against log K has slope -1/2 (paper, proposition 1)."""
    sizes = (64, 256, 1024, 4096)
    errors = []
    for k in sizes:
        found = repeated(name, key, k, 512).score
        errors.append(float(jnp.sqrt(jnp.mean(jnp.sum((found - exact()[None]) ** 2, 1)))))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)


def test_bias_falls_like_one_over_k(key):
    """The paper's Q1: the bias of S_K decays like 1/K."""
    sizes = (4, 8, 16, 32)
    biases, errors = [], []
    for k in sizes:
        found = repeated("log_sum_exp", key, k, 400_000).score
        biases.append(float(jnp.linalg.norm(jnp.mean(found, axis=0) - exact())))
        errors.append(float(jnp.max(jnp.std(found, axis=0))) / 400_000**0.5)
    # every bias is measured to better than 10 %, or the slope would mean nothing
    assert all(b > 10 * e for b, e in zip(biases, errors, strict=True))
    slope = np.polyfit(np.log(sizes), np.log(biases), 1)[0]
    assert slope == pytest.approx(-1, abs=0.2)


def test_own_variance_is_the_variance_over_repeats(key):
    found = repeated("log_sum_exp", key, 4096, 512)
    measured = float(jnp.sum(jnp.var(found.score, axis=0)))
    assert float(jnp.mean(found.variance)) == pytest.approx(measured, rel=0.25)


def test_jensen_is_the_gradient_of_the_mean_energy(key):
    """∇E[-E(x_t + σε)], which is not the score: for E = |x|⁴ it is -(4|x|² + 4(d+2)σ²)x."""
    target = FunctionTarget(lambda x: jnp.sum(x**2) ** 2, Euclidean(2))
    noise = jax.random.normal(key, (2, 400_000))
    found = Jensen()(noise, target, jnp.asarray(0.25), X, X)
    want = -(4 * float(jnp.sum(X**2)) + 4 * 4 * 0.25) * X
    assert (np.abs(found.score - want) < 4 * float(jnp.sqrt(found.variance))).all()


def test_mix_is_noiseless_for_a_gaussian(key):
    target = GaussianMixture(np.array([[1.0, -2.0]]), np.array([0.7]))
    noise = jax.random.normal(key, (2, 8))
    found = Mixed(0.49)(noise, target, VARIANCE, X, X)
    want = jax.grad(target.smoothed(VARIANCE).log_density)(X)
    np.testing.assert_allclose(found.score, want, atol=1e-5)
    assert float(found.variance) < 1e-5  # rounding: a difference of larger numbers


@pytest.mark.parametrize("name", ["log_sum_exp", "mixed", "conditional", "clipped", "jensen"])
@pytest.mark.parametrize("target_name", PARTICLES)
def test_equivariance(name, target_name, key):
    """S_K(g∘x; g∘ε) = g∘S_K(x; ε) for rotations, reflections and permutations (prop. 2)."""
    target, estimator = TARGETS[target_name], ESTIMATORS[name]
    n, dim = target.space.shape
    keys = jax.random.split(key, 4)
    x = 1.5 * normal(keys[0], target.space)
    noise = jnp.moveaxis(normal(keys[1], target.space, (32,)), 0, -1)
    turn, _ = jnp.linalg.qr(jax.random.normal(keys[2], (dim, dim)))
    order = jax.random.permutation(keys[3], n)
    here = estimator(noise, target, jnp.asarray(0.01), x, x).score
    turned = jnp.einsum("idk,de->iek", noise, turn)[order]
    there = estimator(turned, target, jnp.asarray(0.01), (x @ turn)[order],
                      (x @ turn)[order]).score  # fmt: skip
    want = (here @ turn)[order]
    np.testing.assert_allclose(there, want, atol=5e-3 * float(jnp.abs(want).max()))


@pytest.mark.parametrize("name", ["log_sum_exp", "mixed", "ratio"])
def test_streaming_in_blocks_changes_nothing(name, key, monkeypatch):
    target, noise = asymmetric(), jax.random.normal(key, (2, 1000))
    whole = ESTIMATORS[name](noise, target, VARIANCE, X, X)
    monkeypatch.setattr(module, "BLOCK", 2 * 96)  # 10 blocks of 96 and a rest of 40
    blocks = ESTIMATORS[name](noise, target, VARIANCE, X, X)
    np.testing.assert_allclose(whole.score, blocks.score, rtol=1e-4)
    np.testing.assert_allclose(whole.variance, blocks.variance, rtol=1e-3)
    np.testing.assert_allclose(whole.ess, blocks.ess, rtol=1e-4)


def test_a_block_outside_the_support_does_not_erase_the_others(key, monkeypatch):
    """A hard wall and a high energy: the block beyond the wall has no weight, and no say."""
    target = FunctionTarget(
        lambda x: jnp.where(x[0] > 1.0, jnp.inf, jnp.sum(x**2) + 200.0), Euclidean(2)
    )
    noise = jnp.abs(jax.random.normal(key, (2, 64)))
    noise = noise.at[0, :32].multiply(-1.0)  # the second half lies beyond the wall
    whole = LogSumExp()(noise, target, VARIANCE, X, X)
    monkeypatch.setattr(module, "BLOCK", 2 * 32)
    blocks = LogSumExp()(noise, target, VARIANCE, X, X)
    assert jnp.isfinite(whole.score).all()
    np.testing.assert_allclose(whole.score, blocks.score, rtol=1e-4)


def test_memory_does_not_grow_with_k():
    """Temporary memory of the compiled estimate, as XLA reports it."""
    target = TARGETS["lj13"]

    def peak(num_samples):
        def f(key, v, x):
            return batch(key, LogSumExp(), Draws(num_samples), target, v, x).score

        x = jnp.zeros((64, 13, 3))
        compiled = jax.jit(f).lower(jax.random.key(0), jnp.ones(64), x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    block = 13 * 3 * 4 * 16384  # the shared noise itself is the only thing that grows
    assert peak(16384) < 6 * block
    assert peak(16384) - peak(8192) < 2 * block


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("antithetic", [True, False])
def test_draws_keep_the_law_of_each_estimate(shared, antithetic, key):
    """Mean over many batches at one point is E[S_K], whatever way the noise is made."""
    target, draws = asymmetric(), Draws(64, shared, antithetic)
    points, v = jnp.broadcast_to(X[None], (8, 2)), jnp.full(8, VARIANCE)

    @jax.jit
    def mean(keys):
        scores = jax.lax.map(lambda k: batch(k, LogSumExp(), draws, target, v, points).score, keys)
        return scores.mean(axis=1)

    found = mean(jax.random.split(key, 4000))
    plain = repeated("log_sum_exp", key, 64, 40_000).score
    error = jnp.hypot(jnp.std(found, axis=0) / 4000**0.5, jnp.std(plain, axis=0) / 200)
    gap = jnp.abs(jnp.mean(found, axis=0) - jnp.mean(plain, axis=0))
    # antithetic pairs have a smaller O(1/K) bias, not the same one
    assert (gap < 4.5 * error + (0.01 if antithetic else 0)).all()


def test_ratio_overflows_where_log_sum_exp_does_not(key):
    target = FunctionTarget(lambda x: jnp.sum(x**2) + 500.0, Euclidean(2))
    noise = jax.random.normal(key, (2, 64))
    assert jnp.isnan(Ratio()(noise, target, VARIANCE, X, X).score).all()
    assert jnp.isfinite(LogSumExp()(noise, target, VARIANCE, X, X).score).all()


def test_bad_energies_are_counted_and_carry_no_weight(key):
    target = FunctionTarget(lambda x: jnp.where(x[0] > 1.0, jnp.nan, jnp.sum(x**2)), Euclidean(2))
    noise = jax.random.normal(key, (2, 1000))
    found = LogSumExp()(noise, target, VARIANCE, X, X)
    assert int(found.bad) == int(jnp.sum((X[0] + VARIANCE**0.5 * noise[0]) > 1.0))
    assert jnp.isfinite(found.score).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_energy_calls_are_what_the_target_sees(name, key):
    seen = []

    def energy(x):
        jax.debug.callback(lambda y: seen.append(y), x[0])
        return jnp.sum(x**2)

    estimator, target = ESTIMATORS[name], FunctionTarget(energy, Euclidean(2))
    estimator(jax.random.normal(key, (2, 10)), target, VARIANCE, X, X)
    jax.effects_barrier()
    assert len(seen) == estimator.cost * 10


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: Draws(0), "num_samples: expected at least 1, got 0"),
        (lambda: Mixed(-1.0), "local_variance: expected positive"),
        (lambda: Clipped(LogSumExp(), max_norm=-1.0), "expected positive numbers"),
    ],
)
def test_impossible_settings(make, match):
    with pytest.raises(ValueError, match=match):
        make()
