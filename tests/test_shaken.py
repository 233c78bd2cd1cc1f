"""Clusters that share a block of noise: the fast path agrees with the plain one, in law too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from at_one_point import batch
from cases import PARTICLES, TARGETS
from demx import draws as draws_module
from demx.draws import Draws, estimate_batch
from demx.energy import evaluate
from demx.estimator import LogSumExp, Mixed
from demx.space import MeanFree, normal, side
from demx.targets import shaken as module
from demx.targets.lennard_jones import lennard_jones
from demx.targets.pair import PairPotential
from demx.wrappers import Clipped, Conditional

# 17 particles are two groups, of which the second overhangs; 2 meet at one offset, half each
CLUSTERS = {name: TARGETS[name] for name in PARTICLES if name != "lj55"} | {
    "seventeen": lennard_jones(num_particles=17, temperature=0.7),
    "two": lennard_jones(num_particles=2),
}
SPREADS = {
    "random": (1.5, 0.5),
    "overlapping": (1e-3, 1e-3),
    "far": (30.0, 0.1),
    "wide": (1.0, 20.0),
}


def gap(found, want):
    """Largest difference of a row, against what the row's largest number is."""
    found, want = (np.asarray(a, float).reshape(len(a), -1) for a in (found, want))
    return np.abs(found - want).max(axis=1) / (1 + np.abs(want).max(axis=1))


def one_by_one(target, x, sigma, noise, weights):
    points = x[:, None] + sigma[:, None, None, None] * jnp.moveaxis(noise, -1, 0)[None]
    found = jax.lax.map(lambda p: evaluate(target, p), points)
    return found.log_density, jnp.einsum("rk,rkid->rid", weights, found.score)


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("spread", SPREADS)
def test_energies_and_pulls_are_those_of_single_points(name, spread, key, monkeypatch):
    monkeypatch.setattr(module, "COLUMNS", 16)  # 40 samples: blocks of 14, the last not full
    target, (width, noise_width) = CLUSTERS[name], SPREADS[spread]
    keys = jax.random.split(key, 3)
    x = width * normal(keys[0], target.space, (3,))
    noise = jnp.moveaxis(normal(keys[1], target.space, (40,)), 0, -1)
    sigma = noise_width * jnp.array([0.5, 1.0, 2.0])
    weights = jax.random.uniform(keys[2], (3, 40))
    for wide, tolerance in ((True, 1e-5), (False, 1e-4)):
        with jax.enable_x64(wide):
            given = [jnp.asarray(np.asarray(a), float) for a in (x, sigma, noise)]
            heavy = jnp.asarray(np.asarray(weights), float)
            log_density, pull = target.shaken(*given)
            want, want_pull = one_by_one(target, *given, heavy)
            assert log_density.dtype == want.dtype
            assert (gap(log_density, want) < tolerance).all()
            assert (gap(pull(heavy), want_pull) < tolerance).all()


@pytest.mark.parametrize("estimator", [LogSumExp(), Mixed(0.1), Clipped(LogSumExp(), max_norm=5.0)])
def test_shared_estimates_are_those_of_single_points(estimator, key):
    target = TARGETS["lennard_jones"]
    x = 1.2 * normal(key, target.space, (4,))
    noise = jnp.moveaxis(normal(jax.random.fold_in(key, 1), target.space, (64,)), 0, -1)
    variance = jnp.array([0.001, 0.01, 0.05, 0.2])
    found = estimator.shared(noise, target, variance, x)
    want = jax.vmap(lambda v, x: estimator(noise, target, v, x, x))(variance, x)
    assert (gap(found.score, want.score) < 1e-4).all()
    np.testing.assert_allclose(found.ess, want.ess, rtol=1e-3)
    np.testing.assert_allclose(found.clipped, want.clipped)
    assert found.bad.tolist() == [0, 0, 0, 0]
    assert jnp.isnan(found.variance).all()  # not known, and not called 0


@pytest.mark.parametrize("antithetic", [True, False])
def test_sharing_keeps_the_law_of_each_estimate(antithetic, key):
    """Mean over batches of 8 neighbours at one point is E[S_K] by noise of their own."""
    target = TARGETS["lennard_jones"]
    x = jnp.broadcast_to(1.2 * normal(key, target.space)[None], (8, *target.space.shape))
    variance = jnp.full(8, 0.02)

    def means(repeats, shared):
        draws = Draws(32, shared, antithetic)
        some = lambda k: batch(k, LogSumExp(), draws, target, variance, x).score.mean(0)  # noqa: E731
        return jax.jit(lambda keys: jax.lax.map(some, keys))(jax.random.split(key, repeats))

    found, plain = means(4000, True), means(2000, False)
    error = jnp.hypot(jnp.std(found, axis=0) / 4000**0.5, jnp.std(plain, axis=0) / 2000**0.5)
    assert (jnp.abs(jnp.mean(found, axis=0) - jnp.mean(plain, axis=0)) < 4.5 * error).all()
    # eight neighbours are worth eight, but for errors that are even in the noise
    assert float(jnp.sum(jnp.var(found, axis=0))) < 2 * float(jnp.sum(jnp.var(plain, axis=0)))


def test_neighbours_see_the_noise_from_sides_of_their_own(key):
    target = TARGETS["lj13"]
    x = jnp.broadcast_to(normal(key, target.space)[None], (16, 13, 3))
    found = batch(key, LogSumExp(), Draws(8), target, jnp.full(16, 0.01), x).score
    assert len({tuple(np.asarray(s).round(4).ravel()) for s in found}) == 16


def test_every_point_gets_its_own_estimate(key):
    """32 points of different places and noises, in two groups, against noise of their own."""
    target = TARGETS["lennard_jones"]
    x = 1.2 * normal(key, target.space, (32,))
    variance = jnp.geomspace(1e-4, 1e-2, 32)

    def means(shared):
        one = lambda k: batch(k, LogSumExp(), Draws(64, shared), target, variance, x)  # noqa: E731
        found = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(key, 400))
        score = np.asarray(found.score)
        return score.mean(0), score.std(0) / 20, np.asarray(found.ess).mean(0)

    (found, error, ess), (want, other, plain_ess) = means(True), means(False)
    # 4.5 standard errors: the largest of 256 differences
    assert (np.abs(found - want) < 4.5 * np.hypot(error, other)).all()
    np.testing.assert_allclose(ess, plain_ess, rtol=0.2)
    # the answers of other points would be seen
    assert not (np.abs(found[::-1] - want) < 4.5 * np.hypot(error, other)).all()


def test_a_symmetry_and_its_inverse(key):
    space = MeanFree(7, 3, (0, 0, 0, 1, 1, 1, 2))
    x = normal(key, space)
    one = side(jax.random.fold_in(key, 1), space)
    turned = one.turn(x)
    np.testing.assert_array_equal(one.back(turned), x)
    assert not (turned == x).all()
    for kind in (slice(0, 3), slice(3, 6), slice(6, 7)):  # only equals are exchanged
        lengths = [np.sort(np.asarray(jnp.linalg.norm(y[kind], axis=1))) for y in (turned, x)]
        np.testing.assert_allclose(*lengths, rtol=1e-6)


@pytest.mark.parametrize("n, width", [(3, 0.7), (17, 3.0)])
def test_a_hard_wall_is_no_bad_energy(n, width, key):
    """φ is +∞ within a distance: log p̃ = -∞ there, also where the last group overhangs."""
    wall = lambda r2: jnp.where(r2 < 0.25, jnp.inf, r2)  # noqa: E731
    target = PairPotential(MeanFree(n, 2), wall, core=1e-6)
    x = width * normal(key, target.space, (2,))
    noise = jnp.moveaxis(normal(jax.random.fold_in(key, 1), target.space, (200,)), 0, -1)
    found = LogSumExp().shared(noise, target, jnp.array([0.01, 0.04]), x)
    log_density, _ = target.shaken(x, jnp.array([0.1, 0.2]), noise)
    assert (log_density == -jnp.inf).any() and jnp.isfinite(log_density).any()
    assert found.bad.tolist() == [0, 0]
    assert jnp.isfinite(found.score).all()


def test_infinite_slopes_without_weight_have_no_say(key):
    """r⁻¹² without a core of its own: where particles meet, energy and slope overflow."""
    target = PairPotential(MeanFree(3, 2), lambda r2: r2**-6)
    x = jnp.array([[[0.0, 0.0], [0.003, 0.0], [2.0, 0.0]]])
    noise = jnp.moveaxis(normal(key, target.space, (200,)), 0, -1)
    sigma = jnp.array([1e-3])
    log_density, pull = target.shaken(x, sigma, noise)
    assert not jnp.isfinite(pull(jnp.ones((1, 200)))).all()
    heaviest = jnp.zeros((1, 200)).at[0, jnp.nanargmax(log_density[0])].set(1.0)
    assert jnp.isfinite(pull(heaviest)).all()


def test_energies_that_are_no_numbers_are_counted(key):
    target = PairPotential(MeanFree(3, 2), lambda r2: jnp.where(r2 < 1, jnp.nan, r2), core=1e-6)
    x = 1.5 * normal(key, target.space, (2,))
    noise = jnp.moveaxis(normal(jax.random.fold_in(key, 1), target.space, (200,)), 0, -1)
    variance = jnp.array([0.04, 0.25])
    found = LogSumExp().shared(noise, target, variance, x)
    want = jax.vmap(lambda v, x: LogSumExp()(noise, target, v, x, x))(variance, x)
    assert found.bad.tolist() == want.bad.tolist()
    assert min(found.bad.tolist()) > 0 and jnp.isfinite(found.score).all()


def test_many_samples_are_shared_by_few(key, monkeypatch):
    """What K weights of all neighbours take is bounded; a point without neighbours is alone."""
    target = TARGETS["lj13"]
    x, v = normal(key, target.space, (4,)), jnp.full(4, 0.01)
    assert jnp.isnan(batch(key, LogSumExp(), Draws(8), target, v, x).variance).all()
    monkeypatch.setattr(draws_module, "WEIGHTS", 15)
    assert jnp.isfinite(batch(key, LogSumExp(), Draws(8), target, v, x).variance).all()


def test_who_keeps_noise_of_its_own(key):
    """An estimator that puts x_0 among the samples has a block for each point, and a variance."""
    target = TARGETS["lj13"]
    x, draws = normal(key, target.space, (4,)), Draws(8)
    keys, pool = jax.random.split(key, 4), draws.pool(key, target.space)
    for estimator in (Conditional(LogSumExp()), Clipped(Conditional(LogSumExp()))):
        found = estimate_batch(keys, pool, estimator, draws, target, jnp.full(4, 0.01), x, x)
        assert jnp.isfinite(found.variance).all()
