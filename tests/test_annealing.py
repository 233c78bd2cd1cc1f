"""Annealed SMC along noise levels: exact weights, whatever the score is."""

from math import erf

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import TARGETS
from demx.errors import UserError
from demx.evaluate.evidence import log_z
from demx.evaluate.weights import log_z_is
from demx.methods.annealing import Annealing, Path, Swarm, log_smoothed, resample
from demx.noise import Geometric
from demx.sde import Grid, Posterior, reverse
from demx.space import Euclidean, normal
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import GaussianMixture
from untrained import FLAT, untrained

MEANS = jnp.asarray([[-6.0, 0.0], [4.0, 3.0], [2.0, -7.0]])
WEIGHTS = np.array([0.6, 0.3, 0.1])
UNEQUAL = GaussianMixture(MEANS, jnp.ones(3), WEIGHTS)
# modes in the wrong places, too wide, of equal weights
WRONG = GaussianMixture(MEANS + 0.5, 1.2 * jnp.ones(3))
NOISE = Geometric(0.05, 12.0)
ISLANDS, ROWS = 32, 256


@pytest.fixture(scope="module")
def annealed(request):
    """Islands of particles that follow the exact score of the wrong mixture."""
    seed = request.config.getoption("--seed")
    times = Grid(num_steps=30, sigma_last=0.1).times(NOISE)
    smc = Annealing(num_samples=8)

    def scores(t, xs):
        return jax.vmap(jax.grad(WRONG.smoothed(NOISE.variance(t)).log_density))(xs)

    path = Path(UNEQUAL, scores, NOISE, times, NOISE.variance(jnp.ones(())) + 30.0)

    @jax.jit
    def run(key):
        key_survey, key_run = jax.random.split(key)
        guide = smc.survey(key_survey, path, 64)
        one = lambda key: smc.run(key, path, guide, ROWS)  # noqa: E731
        return guide, jax.vmap(one)(jax.random.split(key_run, ISLANDS))

    return run(jax.random.key(seed))


def means_of(annealed, values):
    """Self-normalised mean of values (islands, rows), and its error from the islands."""
    weight = np.exp(np.asarray(annealed.log_weight, float))
    value = (weight * values).sum() / weight.sum()
    influence = (weight * (values - value)).mean(axis=1) / weight.mean()
    return value, influence.std(ddof=1) / ISLANDS**0.5


def test_annealing_repairs_a_wrong_score(annealed):
    """Mode weights, means and second moments of the target within 4 standard errors."""
    _, made = annealed
    x = np.asarray(made.x)
    nearest = np.linalg.norm(x[:, :, None] - np.asarray(MEANS), axis=-1).argmin(-1)
    for mode, share in enumerate(WEIGHTS):
        value, error = means_of(made, nearest == mode)
        assert abs(value - share) < 4 * error and error < 0.05, (mode, value, error)
    for axis in range(2):
        value, error = means_of(made, x[..., axis])
        assert abs(value - WEIGHTS @ np.asarray(MEANS)[:, axis]) < 4 * error and error < 0.5
        value, error = means_of(made, x[..., axis] ** 2)
        assert abs(value - WEIGHTS @ (np.asarray(MEANS)[:, axis] ** 2 + 1)) < 4 * error
        assert error < 2.5


def test_annealing_estimates_z_without_bias(annealed):
    _, made = annealed
    number = np.repeat(np.arange(ISLANDS), ROWS)
    value, error = log_z_is(np.asarray(made.log_weight).ravel(), number)
    assert abs(value) < 4 * error and error < 0.1
    assert int(made.bad.sum()) == 0 and int(made.resampled.sum()) > 0


def test_without_correction_the_mode_weights_are_wrong(annealed, key):
    """The check of the check: the same score's own samples give every mode a third."""
    score = lambda t, x: jax.grad(WRONG.smoothed(NOISE.variance(t)).log_density)(x)  # noqa: E731
    times = Grid(num_steps=30, sigma_last=0.1).times(NOISE)
    start = 13.0 * normal(key, UNEQUAL.space, (1000,))
    x = reverse(key, score, NOISE, UNEQUAL.space, start, times, Posterior(1.0))
    nearest = np.linalg.norm(np.asarray(x)[:, None] - np.asarray(MEANS), axis=-1).argmin(-1)
    assert (nearest == 2).mean() > 0.25
    guide, _ = annealed
    assert guide.trust.shape == (30,) and guide.trust[0] < 1 and guide.trust[-1] == 1
    # the modes have variance 1, and the wrong score's samples a spread of 1.44 + that of the means
    assert 0.3 < float(guide.local_variance) < 2
    assert 10 < float(guide.spread) < 40


@pytest.mark.parametrize("variance", [0.04, 1.0, 9.0])
def test_the_estimate_of_a_smoothed_density_is_unbiased(variance, key):
    """Mean over many blocks against the closed form, on both sides of the modes' width."""
    x = MEANS[1] + 0.7
    exact = float(UNEQUAL.smoothed(variance).log_density(x))
    v, spread = jnp.asarray(variance), jnp.asarray(variance / (1 + variance))
    one = lambda k: log_smoothed(k, UNEQUAL, v, x, MEANS[1], spread, 4)[0]  # noqa: E731
    many = jax.jit(jax.vmap(one))(jax.random.split(key, 20_000))
    ratio = np.exp(np.asarray(many, float) - exact)
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / len(ratio) ** 0.5


def z_over_exact(key, target, scores, guide_of, exact, smc):
    """Mean of Z/exact over 64 islands of 64 particles, and its standard error."""
    noise = Geometric(0.05, 3.0)
    path = Path(target, scores, noise, Grid(num_steps=8, sigma_last=0.2).times(noise), 10.0)

    @jax.jit
    def run(key):
        key_survey, key_run = jax.random.split(key)
        guide = guide_of(smc.survey(key_survey, path, 32))
        one = lambda key: smc.run(key, path, guide, 64)  # noqa: E731
        return jax.vmap(one)(jax.random.split(key_run, 64))

    made = run(key)
    z = np.exp(np.asarray(made.log_weight, float) - exact).mean(axis=1)
    return made, z.mean(), z.std(ddof=1) / 8


def test_z_of_a_harmonic_cluster(key):
    """On the mean-free space, with a score that is too weak: E = ½ Σ|x_i|², (n-1)·dim dof."""
    space = TARGETS["lj13"].space
    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x**2), space)
    exact = 0.5 * space.dof * np.log(2 * np.pi)
    wrong = lambda t, xs: -0.8 * xs / (1 + Geometric(0.05, 3.0).variance(t))  # noqa: E731
    made, mean, error = z_over_exact(key, target, wrong, lambda g: g, exact, Annealing())
    assert abs(mean - 1) < 4 * error and error < 0.3, (mean, error)
    np.testing.assert_allclose(made.x.mean(axis=2), 0, atol=1e-4)
    assert np.isfinite(made.log_weight).all()


@pytest.mark.parametrize("trust", [0.0, 0.5, 1.0])
def test_z_of_a_half_normal_behind_a_wall(trust, key):
    """p̂ is often zero beyond the wall: paths that come back count, whatever the trust."""

    def energy(x):
        return jnp.where(x[0] > 0, 0.5 * jnp.sum(x**2), jnp.inf)

    target = FunctionTarget(energy, Euclidean(1))
    free = lambda t, xs: -xs / (1 + Geometric(0.05, 3.0).variance(t))  # noqa: E731
    guide_of = lambda g: g._replace(trust=jnp.full_like(g.trust, trust))  # noqa: E731
    exact = 0.5 * np.log(2 * np.pi) + np.log(0.5)
    smc = Annealing(num_samples=2)
    _, mean, error = z_over_exact(key, target, free, guide_of, exact, smc)
    assert abs(mean - 1) < 4 * error and error < 0.1, (mean, error)


def test_resampling_keeps_the_mean_weight_and_the_particles_value(key):
    x = jnp.arange(64.0)[:, None]
    log_weight = jnp.where(jnp.arange(64) < 60, -jnp.inf, jnp.arange(64.0) / 64)
    swarm = Swarm(x, x, x[:, 0], log_weight)
    new, done = resample(key, swarm, 0.5)
    assert bool(done) and set(np.asarray(new.x[:, 0])) == {60.0, 61.0, 62.0, 63.0}
    np.testing.assert_allclose(
        jax.nn.logsumexp(new.log_weight), jax.nn.logsumexp(log_weight), rtol=1e-5
    )
    np.testing.assert_array_equal(new.log_smoothed, new.x[:, 0])
    same, done = resample(key, swarm._replace(log_weight=jnp.zeros(64)), 0.5)
    assert not bool(done)
    np.testing.assert_array_equal(same.x, x)
    dead, done = resample(key, swarm._replace(log_weight=jnp.full(64, -jnp.inf)), 0.5)
    assert not bool(done) and not np.isnan(dead.log_weight).any()


def in_a_box(edge: float):
    """SMC of an untrained sampler; the energy is `edge` outside |x| < 1, that of a normal inside.

    Z = 2π erf(2^-½)²."""

    def energy(x):
        return jnp.where(jnp.max(jnp.abs(x)) < 1, 0.5 * jnp.sum(x**2), edge)

    target = FunctionTarget(energy, Euclidean(2))
    made = untrained(target, FLAT | {"grid": {"num_steps": 8}}, scale=1.0)
    drawn = made.sample(2048, correct="smc")
    return drawn, int(np.isneginf(drawn.log_weight).sum())


def test_outside_the_support_is_weight_zero_and_not_bad():
    drawn, zero = in_a_box(jnp.inf)
    assert zero > 0.05 * 2048 and drawn.bad == drawn.bad_calls == 0
    found = log_z(drawn)
    exact = np.log(2 * np.pi) + 2 * np.log(erf(0.5**0.5))
    assert abs(found.value - exact) < 4 * found.standard_error and found.standard_error < 0.1


def test_an_energy_that_is_nan_is_bad():
    drawn, zero = in_a_box(jnp.nan)
    assert drawn.bad == zero > 0.05 * 2048 and drawn.bad_calls > zero
    with pytest.raises(UserError, match="samples have no finite density or energy"):
        log_z(drawn)


def test_a_pilot_that_is_lost_does_not_guide_the_others(key):
    """The score of a normal, nan beyond 2.5 standard deviations of the start, where a share of
    exp(-2.5²/2) = 4 % begins: none of 256 pilots with probability 10⁻⁵."""
    noise = Geometric(0.05, 3.0)
    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x**2), Euclidean(2))
    far = 2.5 * 10**0.5

    def scores(t, xs):
        lost = jnp.linalg.norm(xs, axis=1, keepdims=True) > far
        return jnp.where(lost, jnp.nan, -xs / (1 + noise.variance(t)))

    path = Path(target, scores, noise, Grid(num_steps=8, sigma_last=0.2).times(noise), 10.0)
    smc = Annealing()
    key_survey, key_run = jax.random.split(key)
    guide = jax.jit(lambda key: smc.survey(key, path, 256))(key_survey)
    # p has variance 1, and pilots end at noise 0
    assert 0.5 < float(guide.spread) < 1.5 and 0.5 < float(guide.local_variance) < 1.5
    assert (guide.trust > 0.3).all() and (guide.trust < 1).all()
    made = jax.jit(lambda key: smc.run(key, path, guide, 2048))(key_run)
    np.testing.assert_array_equal(made.lost, np.isneginf(made.log_weight))
    assert 0 < int(made.lost.sum()) < 0.2 * 2048
