"""Walks on the posterior: unbiased targets from an exact x_0, less noisy than x_0 alone."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demx import api, config
from demx.methods.walk import Walk
from demx.space import Euclidean, normal
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import GaussianMixture

MEANS = jnp.array([[-2.0, 0.0], [1.0, 1.5], [2.0, -1.0]])
WEIGHTS = jnp.array([0.5, 0.3, 0.2])
MIXTURE = GaussianMixture(MEANS, 0.4, WEIGHTS)
COUNT = 4000


def noised(key, sigma, count=COUNT):
    key_0, key_t = jax.random.split(key)
    x_0 = MIXTURE.sample(key_0, count)
    return x_0, x_0 + sigma * normal(key_t, MIXTURE.space, (count,))


# at σ = 1.5 the posterior has several modes, between which a walk does not travel; with the width
# of the modes, 0.16, the mixed identity is the same wherever the walk goes, with 0.02 it is not
@pytest.mark.parametrize(
    "sigma, local_variance, share",
    [(0.1, 0.16, 0.5), (0.5, 0.16, 0.5), (1.5, 0.16, 1.0), (0.1, 0.02, 1.0), (0.5, 0.02, 1.0)],
)
def test_targets_are_unbiased_and_less_noisy(sigma, local_variance, share, key, seed):
    """E[(S - ∇log p_t(x_t)) g(x_t)] = 0 for any g; asymmetric ones, within 4 standard errors."""
    x_0, x = noised(key, sigma)
    variance = jnp.full(COUNT, sigma**2)
    walk = Walk(local_variance=local_variance, num_moves=6, num_leapfrog=4)
    found = eqx.filter_jit(walk)(
        jax.random.key(seed + 1), MIXTURE, variance, x, x_0, jnp.asarray(0.5)
    )
    exact = jax.vmap(jax.grad(MIXTURE.smoothed(sigma**2).log_density))(x)
    error = np.asarray(found.score - exact, float)
    for name, g in {"1": np.ones(COUNT), "x": x[:, 0], "xy": x[:, 0] * x[:, 1] + 1}.items():
        terms = error * np.asarray(g)[:, None]
        standard_error = terms.std(axis=0, ddof=1) / COUNT**0.5
        assert (np.abs(terms.mean(axis=0)) < 4 * standard_error).all(), (seed, sigma, name)
    alone = np.asarray((x_0 - x) / sigma**2 - exact, float)
    assert (error**2).mean() < share * (alone**2).mean()
    assert 0.5 < float(found.ess.mean()) <= 1 and int(found.bad.sum()) == 0


def crooked(x):
    """A well that is no normal: steep on one side."""
    return jnp.sum(jnp.exp(2.0 * x) - 2.0 * x)


GRID = np.linspace(-6.0, 2.5, 2001)
WELL = np.exp(-(np.exp(2.0 * GRID) - 2.0 * GRID))


def exact_score(x, sigma):
    """∇log p_t(x) = E[x_0 - x_t | x_t]/σ² by quadrature."""
    weight = WELL * np.exp(-((x - GRID) ** 2) / (2 * sigma**2))
    return (
        (weight * (GRID - x)).sum(axis=1, keepdims=True)
        / weight.sum(axis=1, keepdims=True)
        / (sigma**2)
    )


def crooked_points(seed, sigma, count):
    rng = np.random.default_rng(seed)
    x_0 = rng.choice(GRID, (count, 1), p=WELL / WELL.sum()) + np.diff(GRID)[0] * (
        rng.random((count, 1)) - 0.5
    )
    return x_0, x_0 + sigma * rng.normal(size=(count, 1))


def test_moves_that_are_often_refused_leave_the_posterior_as_it_is(seed):
    """Steps so long that a third is refused: without the right share of refusals S is biased."""
    target, sigma, count = FunctionTarget(crooked, Euclidean(1)), 1.0, 40_000
    x_0, x = crooked_points(seed, sigma, count)
    walk = Walk(local_variance=0.05, num_moves=8, num_leapfrog=2)
    found = eqx.filter_jit(walk)(
        jax.random.key(seed), target, jnp.full(count, sigma**2), jnp.asarray(x, jnp.float32),
        jnp.asarray(x_0, jnp.float32), jnp.asarray(3.2),
    )  # fmt: skip
    assert 0.4 < float(found.ess.mean()) < 0.8
    error = np.asarray(found.score, float) - exact_score(x, sigma)
    for name, g in {"1": np.ones_like(x), "x": x, "x²": x**2}.items():
        terms = (error * g)[:, 0]
        assert abs(terms.mean()) < 4 * terms.std(ddof=1) / count**0.5, (seed, name)


def test_the_first_half_of_a_walk_from_elsewhere_does_not_count(key, seed):
    """A normal of variance 1 and x_t = 6 at σ = 1: the walk begins at 6, the posterior is N(3, ½).

    A move keeps 0.4 of what is left of the start: all moves together would keep 3 · 0.4/0.6/20, of
    which S has two thirds, 0.07 or more than ten standard errors; the second half has 10⁻⁴ of it.
    """
    count = 4000
    target = GaussianMixture(jnp.zeros((1, 1)), 1.0, jnp.ones(1))
    x, lost = jnp.full((count, 1), 6.0), jnp.full((count, 1), jnp.nan)
    walk = Walk(local_variance=0.2, num_moves=20, num_leapfrog=8)
    found = walk(key, target, jnp.ones(count), x, lost, jnp.asarray(0.25))
    error = np.asarray(found.score, float) + 3.0
    assert abs(error.mean()) < 4 * error.std(ddof=1) / count**0.5, seed


def test_a_normal_of_the_right_width_has_no_noise(key):
    target = GaussianMixture(jnp.zeros((1, 3)), 0.5, jnp.ones(1))
    x_0 = target.sample(key, 50)
    x = x_0 + 0.7 * jax.random.normal(jax.random.key(5), x_0.shape)
    walk = Walk(local_variance=0.25)
    found = walk(key, target, jnp.full(50, 0.49), x, x_0, jnp.asarray(0.3))
    np.testing.assert_allclose(found.score, -x / (0.25 + 0.49), rtol=2e-4, atol=2e-4)


def test_a_point_without_origin_walks_from_where_it_is(key):
    x_0, x = noised(key, 0.3, 200)
    lost = jnp.full_like(x_0, jnp.nan)
    walk = Walk(local_variance=0.16, num_moves=20, num_leapfrog=8)
    found = walk(key, MIXTURE, jnp.full(200, 0.09), x, lost, jnp.asarray(0.4))
    exact = jax.vmap(jax.grad(MIXTURE.smoothed(0.09).log_density))(x)
    assert jnp.isfinite(found.score).all()
    # posteriors of one mode each, nearly: half of the walk is enough to forget its start
    assert float(jnp.median(jnp.linalg.norm(found.score - exact, axis=1))) < 1.0


def test_one_move_is_enough(key):
    """Also for a point that walks from where it is."""
    x = normal(key, MIXTURE.space, (5,))
    given = (jnp.full(5, 0.09), x, jnp.full_like(x, jnp.nan), jnp.asarray(0.4))
    assert jnp.isfinite(Walk(0.16, num_moves=1)(key, MIXTURE, *given).score).all()


def test_the_step_follows_the_acceptance_and_calls_are_counted(key):
    settings = {
        "training": {"inner_steps": 3, "batch_size": 8, "new_samples": 8, "outer_steps": 3},
        "walk": {"local_variance": 0.006, "num_moves": 2, "num_leapfrog": 3},
        "network": {"width": 8, "depth": 1, "num_basis": 4},
        "grid": {"num_steps": 4},
        "moves": None,
        "strays": None,
    }
    target, full = api.resolve("lj13", settings=settings)
    made = config.build_method("idem", target, full)
    assert made.calls_per_step == 3 * 8 * (1 + 2 * 3)
    state = made.init(key)
    new, info = made.step(key, state)
    assert float(new.walk_step) != float(state.walk_step) > 0
    assert 0 <= float(info.ess) <= 1 and float(info.skipped) == 0


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"num_moves": 0}, "num_moves >= 1"),
        ({"num_leapfrog": 0}, "num_leapfrog >= 1"),
        ({"local_variance": -1.0}, "expected positive numbers"),
    ],
)
def test_wrong_sizes_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        Walk(**{"local_variance": 1.0} | settings)
