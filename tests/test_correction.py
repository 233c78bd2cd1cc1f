"""Correction of samples: Metropolis moves, and annealed SMC with a score that is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import demx
from cases import TARGETS
from demx.correction import equal_weights, metropolis
from demx.energy import Evaluation
from demx.errors import UserError
from demx.evaluate.weights import log_z_is
from demx.glance import Glance
from demx.methods.annealing import Annealing, Path, Swarm, log_smoothed, resample
from demx.noise import Geometric
from demx.resolve import named_target
from demx.samples import Stored
from demx.sde import Grid, Posterior, reverse
from demx.space import Euclidean, log_normal, normal
from demx.stiffness import local_variance
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import GaussianMixture
from demx.types import Method, Samples

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


def evaluation(score, log_density=0.0):
    count = len(score)
    return Evaluation(jnp.full(count, log_density), score, jnp.zeros(count, bool))


def test_local_variance_of_a_normal(key):
    space = TARGETS["lj13"].space
    x = 0.3 * normal(key, space, (2000,))
    found = float(local_variance(evaluation(-x / 0.09), space, 1e3))
    # the median of χ²_36/36 is 1 - 2/(9·36) cubed; four standard errors of 2000 draws
    median = (1 - 2 / (9 * 36)) ** 3
    assert found == pytest.approx(0.09 / median, rel=4 * 1.25 * (2 / 36 / 2000) ** 0.5)


def test_local_variance_of_a_flat_energy_is_the_widest():
    space = TARGETS["lj13"].space
    flat = jnp.zeros((10, 13, 3))
    assert float(local_variance(evaluation(flat), space, 2.5)) == pytest.approx(2.5)
    outside = evaluation(flat + 1.0, -jnp.inf)
    assert float(local_variance(outside, space, 2.5)) == pytest.approx(2.5)


@pytest.mark.parametrize("kind", ["mala", "hmc"])
def test_moves_carry_samples_to_the_target(kind, key, seed):
    """From a normal far too wide to a correlated one: energy of the right mean, 4 s.e."""

    def energy(x):
        return -log_normal(TARGETS["gmm40"].space, jnp.stack([x[0] * 4, x[1] - x[0]]), 1.0)

    target = named_target(energy, {}, dim=2)[1]
    start = Samples(5 * normal(key, target.space, (2048,)), energy_calls=7)
    moved = metropolis(key, target, start, kind, 320)
    energies = jax.vmap(energy)(moved.x)
    # E - log 2π is half a χ² of two degrees of freedom: mean 1, variance 1
    assert abs(float(energies.mean()) - np.log(2 * np.pi) - 1) < 4 / 2048**0.5
    assert 0.4 < moved.acceptance <= 1 and moved.bad == 0
    per_sample = 1 + (320 if kind == "mala" else 40 * 8)
    assert moved.energy_calls == 7 + 256 + 2048 * per_sample


@pytest.mark.parametrize("kind", ["mala", "hmc"])
def test_a_sample_that_is_nan_does_not_stop_the_others(kind, key):
    """They move as far as they would without it, it is counted, and so is what it proposed."""
    target = TARGETS["many_well"]
    x = 3 * normal(key, target.space, (64,))
    whole = metropolis(key, target, Samples(x), kind, 32)
    drawn = Samples(x.at[5].set(jnp.nan), bad_calls=2)
    moved = metropolis(key, target, drawn, kind, 32)
    others = np.delete(np.arange(64), 5)
    far = [np.linalg.norm(np.asarray(m.x - x)[others], axis=1).mean() for m in (whole, moved)]
    assert far[1] > 0.5 * far[0] > 0
    assert moved.bad == 1 and whole.bad == 0 and jnp.isnan(moved.x[5]).all()
    transitions = 32 if kind == "mala" else 4
    assert moved.bad_calls == 2 + transitions and whole.bad_calls == 0


def test_a_step_size_that_is_not_finite_is_refused(key):
    target = FunctionTarget(lambda x: 0.0 * jnp.sum(x), Euclidean(2))
    nothing = metropolis(key, target, Samples(jnp.full((8, 2), jnp.nan)), "hmc", 16)
    assert nothing.bad == 8
    x = 1e30 * jnp.arange(16.0).reshape(8, 2)
    with pytest.raises(UserError, match="correct: expected samples whose spread tells a step size"):
        metropolis(key, target, Samples(x), "hmc", 16)


def test_a_look_at_weights_that_are_all_zero(key):
    """It says so, instead of ending the run."""
    target = TARGETS["gmm40"]
    nothing = Samples(jnp.zeros((20, 2)), jnp.full(20, -jnp.inf), energy_calls=7)
    method = Method(lambda key: 0, lambda key, s: (0, None), lambda *_: nothing, weighted=True)
    assert Glance(method, target, 20, None)(key, 0) == ({"bad_samples": 20, "validation": 100.0}, 7)


def test_moved_samples_of_weight_zero_stay_bad(key):
    target = TARGETS["gmm40"]
    weight = jnp.where(jnp.arange(64) < 10, -jnp.inf, 0.0)
    drawn = Samples(target.sample(key, 64), log_weight=weight, bad=10)
    assert metropolis(key, target, drawn, "mala", 4).bad == 10


def test_resampled_rows_follow_the_weights(seed):
    with pytest.raises(UserError, match="all weights are zero"):
        equal_weights(np.full(3, -np.inf), 5, seed)
    rows = equal_weights(np.log([0.5, 0.3, 0.2, 1e-30]), 1000, seed)
    counts = np.bincount(rows, minlength=4)
    assert np.abs(counts - [500, 300, 200, 0]).max() <= 1


SMALL = {
    "draws": {"num_samples": 8},
    "network": {"width": 8, "depth": 1, "embedding": 4},
    "training": {"outer_steps": 1, "inner_steps": 2, "batch_size": 8, "new_samples": 8},
    "grid": {"num_steps": 5},
    "evaluation": {"every": 0},
}


def test_corrected_samples_of_a_run(seed):
    """Counts, weights and islands of all kinds; what is not known is refused."""
    fitted = demx.fit("gmm40", seed=seed, settings=SMALL, progress=False)
    moved = fitted.sample(20, correct="mala", correct_steps=10)
    assert moved.x.shape == (20, 2) and moved.log_weight is None
    assert moved.energy_calls == 20 * (1 + 10) + 20
    weighted = fitted.sample(20, correct="hmc", correct_steps=32, weights=True)
    before = fitted.sample(20, weights=True)
    np.testing.assert_array_equal(weighted.log_weight, before.log_weight)
    assert weighted.log_prob is None
    swarm = fitted.sample(600, correct="smc")
    assert swarm.log_weight.shape == (600,) and set(np.asarray(swarm.island)) == {0, 1}
    assert swarm.energy_calls == 600 * (5 * 16 + 1) + 64 * (1 + 2 * 5 * 16)
    with pytest.raises(UserError, match="correct: expected mala, hmc or smc, got 'gibbs'"):
        fitted.sample(5, correct="gibbs")
    with pytest.raises(UserError, match="correct_steps: expected at least 1, got 0"):
        fitted.sample(5, correct="hmc", correct_steps=0)
    found = fitted.evaluate(50, repeats=2, likelihood="none", correct="smc")
    assert found.metrics["w2"].value > 0


def test_weighted_files_are_judged_with_their_weights(seed):
    """Two modes with a quarter and three quarters, made right by weights."""
    target = GaussianMixture(jnp.asarray([[-5.0, 0.0], [5.0, 0.0]]), jnp.ones(2))
    x = np.array(target.sample(jax.random.key(seed), 4000))
    keep = (x[:, 0] > 0) | (np.arange(4000) % 3 == 0)
    x = x[keep]
    weight = np.where(x[:, 0] > 0, 0.0, np.log(3.0)).astype(np.float32)
    plain = demx.assess(target, x, n=500, likelihood="none")
    fair = demx.assess(target, Stored(x, weight), n=500, likelihood="none")
    assert plain.metrics["mode_tv"].value > 0.2 > 0.06 > fair.metrics["mode_tv"].value
    assert any("drawn by their weights" in note for note in fair.samples.notes)
