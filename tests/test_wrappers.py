"""Wrappers of estimators: no bias with x_0 kept, less with Richardson, clipping counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from at_one_point import VARIANCE, X, exact, posterior, repeated
from cases import TARGETS, asymmetric
from demx.draws import Draws
from demx.estimator import LogSumExp, Mixed
from demx.space import normal
from demx.targets.gaussian_mixture import GaussianMixture
from demx.wrappers import Clipped, Conditional, shorten


@pytest.mark.parametrize("antithetic", [True, False])
@pytest.mark.parametrize("num_samples", [3, 4])
def test_conditional_sampling_has_no_bias_at_any_k(antithetic, num_samples, key):
    """With x_0 ~ p(x_0 | x_t) kept, the mean over repeats is exact even for K = 3 and 4."""
    target, draws, repeats = asymmetric(), Draws(num_samples, True, antithetic), 400_000
    key_origin, key_noise = jax.random.split(key)
    origin = posterior(target).sample(key_origin, repeats)

    @jax.jit
    def run(keys, origin):
        def one(args):
            key_pool, x_0 = args
            noise = draws.block(key_pool, target.space)
            return Conditional(LogSumExp())(noise, target, VARIANCE, X, x_0).score

        return jax.lax.map(one, (keys, origin), batch_size=4096)

    kept = run(jax.random.split(key_noise, repeats), origin)
    error = np.asarray(jnp.std(kept, axis=0)) / repeats**0.5
    assert (np.abs(np.asarray(jnp.mean(kept, axis=0)) - exact()) < 4.5 * error).all()
    plain = repeated("log_sum_exp", key, 4, repeats).score
    assert np.linalg.norm(np.asarray(jnp.mean(plain, axis=0)) - exact()) > 0.1


def test_richardson_takes_out_most_of_the_bias(key):
    gaps = {
        name: np.linalg.norm(
            np.asarray(jnp.mean(repeated(name, key, 32, 100_000).score, 0)) - exact()
        )
        for name in ("log_sum_exp", "richardson")
    }
    assert gaps["richardson"] < 0.5 * gaps["log_sum_exp"]


def test_clipping_shortens_and_counts(key):
    target = TARGETS["lj13"]
    x = 0.1 * normal(key, target.space)
    noise = jnp.moveaxis(normal(key, target.space, (16,)), 0, -1)
    clipped = Clipped(LogSumExp(), max_norm=5.0)(noise, target, jnp.asarray(1e-4), x, x)
    assert float(clipped.clipped) == 1
    assert np.allclose(jnp.mean(clipped.score, axis=0), 0, atol=1e-5)
    by_sigma = Clipped(LogSumExp(), max_sigmas=2.0)(noise, target, jnp.asarray(1e-4), x, x)
    # projecting out the mean after clipping can lengthen a vector, at most to twice
    assert float(jnp.max(jnp.linalg.norm(by_sigma.score, axis=-1))) <= 2 * 2.0 / 1e-2


def test_clipping_keeps_the_direction_of_huge_vectors():
    shortened, over = shorten(jnp.array([[3e25, 4e25], [0.3, 0.4], [0.0, 0.0]]), 10.0)
    np.testing.assert_allclose(shortened, [[6.0, 8.0], [0.3, 0.4], [0.0, 0.0]], rtol=1e-5)
    assert over[:, 0].tolist() == [True, False, False]


def test_conditional_keeps_x_0_among_the_samples(key):
    """At a noise level where every other sample is hopeless, x_0 carries all the weight."""
    target = GaussianMixture(np.zeros((1, 2)), np.array([1e-3]))
    x, x_0 = jnp.array([3.0, 0.0]), jnp.zeros(2)
    noise = jax.random.normal(key, (2, 64))
    found = Conditional(Mixed(1e-6))(noise, target, jnp.asarray(4.0), x, x_0)
    np.testing.assert_allclose(found.score, (x_0 - x) / 4.0, rtol=1e-3, atol=1e-5)


def test_without_x_0_conditional_is_plain(key):
    """An x_0 of nan: no point made x_t, nothing is kept."""
    noise = jax.random.normal(key, (2, 16))
    noise = jnp.concatenate([noise, -noise], axis=1)
    plain = LogSumExp()(noise, asymmetric(), VARIANCE, X, X)
    kept = Conditional(LogSumExp())(noise, asymmetric(), VARIANCE, X, jnp.full(2, jnp.nan))
    np.testing.assert_array_equal(plain.score, kept.score)
