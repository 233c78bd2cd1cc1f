"""Reverse SDE and probability flow with exact scores: laws, orders, densities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import NOISES, asymmetric
from demx.flow import probability_flow
from demx.noise import Geometric
from demx.sde import RULES, Grid, Midpoint, Posterior, reverse, step_variance
from demx.space import Euclidean, MeanFree, log_normal, normal

NOISE = Geometric(0.05, 6.0)


def exact_score(target, noise):
    def score(t, x):
        return jax.grad(target.smoothed(noise.variance(t)).log_density)(x)

    return score


@pytest.mark.parametrize("spacing", ["power", "uniform"])
@pytest.mark.parametrize("name", NOISES)
def test_grids_fall_from_one_to_zero(spacing, name):
    times = np.asarray(Grid(17, spacing, sigma_last=0.01).times(NOISES[name]))
    assert len(times) == 18 and times[0] == 1 and times[-1] == 0
    assert (np.diff(times) < 0).all()


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("rule", RULES)
def test_reverse_sde_with_the_exact_score_gives_the_target(name, rule, key):
    """Moments and mode weights of an asymmetric mixture, started from p_1 itself."""
    target, noise, n = asymmetric(), NOISES[name], 20_000
    key_start, key_path = jax.random.split(key)
    start = target.smoothed(noise.variance(jnp.ones(()))).sample(key_start, n)
    times = Grid(300, sigma_last=0.01).times(noise)
    x = reverse(key_path, exact_score(target, noise), noise, target.space, start, times,
                RULES[rule]())  # fmt: skip
    reference = target.sample(key, n)
    error = 4 * (2 / n) ** 0.5 * jnp.std(reference, axis=0)
    bias = 0.03 * jnp.std(reference, axis=0)  # of 300 steps
    assert (jnp.abs(x.mean(0) - reference.mean(0)) < error + bias).all()
    nearest = jnp.argmin(jnp.sum((x[:, None] - target.means[None]) ** 2, -1), axis=1)
    weights = np.bincount(np.asarray(nearest), minlength=3) / n
    assert (np.abs(weights - [0.6, 0.3, 0.1]) < 4 * (0.25 / n) ** 0.5 + 0.01).all()


def variance_after(rule, steps, s2=0.3, noise=NOISE):
    """The variance that a rule gives a Gaussian target of variance s², by exact recursion.

    Every rule is linear here: x and y are multiples of the x that a step begins with, and noise
    comes in at its end.
    """
    times = Grid(steps, sigma_last=0.01).times(noise)
    v = jax.vmap(noise.variance)(times)
    stages, one = rule.stages(v), jnp.ones(())

    def evaluate(carry, stage):
        variance, y = carry
        level = v[stage.level]
        x, y = stage.apply(level, one, y, -y / (s2 + level), 0 * one)
        ended = x**2 * variance + stage.spread**2
        return (jnp.where(stage.arrived, ended, variance), jnp.where(stage.arrived, one, y)), None

    (variance, _), _ = jax.lax.scan(evaluate, (s2 + v[0], one), stages)
    return float(variance)


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("rule", RULES)
def test_the_spread_of_samples(name, rule, key):
    """Started from p_1 of N(0, 0.3), they have the variance of the recursion: 4√(2/n) of it."""
    noise, space, n, steps = NOISES[name], Euclidean(1), 20_000, 40
    top = float(noise.variance(jnp.ones(())))
    key_start, key_path = jax.random.split(key)
    start = (0.3 + top) ** 0.5 * normal(key_start, space, (n,))
    score = lambda t, x: -x / (0.3 + noise.variance(t))  # noqa: E731
    times = Grid(steps, sigma_last=0.01).times(noise)
    x = reverse(key_path, score, noise, space, start, times, RULES[rule]())
    want = variance_after(RULES[rule](), steps, noise=noise)
    assert float(jnp.var(x)) == pytest.approx(want, rel=4 * (2 / n) ** 0.5)


ORDERS = {"euler": 1, "posterior": 1, "midpoint": 2}


@pytest.mark.parametrize("rule", RULES)
def test_weak_order(rule):
    """The error of the variance falls like steps^-order."""
    sizes = (25, 50, 100) if ORDERS[rule] == 2 else (50, 100, 200)
    with jax.enable_x64(True):  # rounding would hide the second order
        errors = [abs(variance_after(RULES[rule](), n) - 0.3) for n in sizes]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-ORDERS[rule], abs=0.3)


@pytest.mark.parametrize("s2", [0.01, 0.3, 4.0])
def test_fifty_midpoint_steps_against_many_of_one_evaluation(s2):
    """For stiff and soft directions alike: 99 evaluations, and nothing to be known."""
    midpoint = abs(variance_after(Midpoint(), 50, s2) / s2 - 1)
    thousand = abs(variance_after(Posterior(), 1000, s2) / s2 - 1)
    hundred = abs(variance_after(Posterior(), 100, s2) / s2 - 1)
    assert midpoint < 0.015 and midpoint < hundred / 4 and midpoint < 2 * thousand


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_takes_as_many_evaluations_as_it_says(rule):
    v = jax.vmap(NOISE.variance)(Grid(7).times(NOISE))
    stages = RULES[rule]().stages(v)
    assert len(stages.level) == RULES[rule]().calls(7)
    assert int(jnp.sum(stages.arrived)) == 7 and bool(stages.arrived[-1])
    assert int(jnp.max(stages.level)) == 6  # never at t = 0


def test_posterior_step_is_exact_for_a_gaussian_of_known_variance():
    assert variance_after(Posterior(0.3), 10) == pytest.approx(0.3, rel=1e-4)


def test_exploration_scale_widens(key):
    target = asymmetric()
    start = 6 * normal(key, target.space, (4000,))
    times = Grid(60, sigma_last=0.05).times(NOISE)

    def spread(scale):
        score = exact_score(target, NOISE)
        x = reverse(key, score, NOISE, target.space, start, times, Posterior(), scale)
        return float(jnp.std(x))

    assert spread(0.0) < spread(1.0) < spread(1.3)


def flow_of(space, score, prior_variance):
    t_0 = NOISE.time(jnp.asarray(1e-4))
    return probability_flow(score, NOISE, space, t_0, prior_variance, tolerance=1e-6)


@pytest.mark.parametrize("space", [Euclidean(3), MeanFree(3, 2)], ids=str)
def test_flow_density_of_a_gaussian_is_exact(space, key):
    """With the score of N(0, s²), the flow's density is that normal, also on the subspace."""
    s2 = 0.49
    flow = flow_of(
        space, lambda t, x: -space.project(x) / (s2 + NOISE.variance(t)),
        s2 + float(NOISE.variance(jnp.ones(()))),
    )  # fmt: skip
    x = 0.7 * normal(key, space, (5,))
    found = jax.vmap(flow.log_prob)(x)
    want = jax.vmap(lambda y: log_normal(space, y, s2 + 1e-4))(x)
    np.testing.assert_allclose(found, want, atol=2e-3)
    drawn, log_prob = jax.vmap(flow.sample)(jax.random.split(key, 5))
    np.testing.assert_allclose(log_prob, jax.vmap(flow.log_prob)(drawn), atol=2e-3)


def test_flow_of_a_mixture_has_weights_near_one(key):
    """ESS = 1 when q = p; here up to p_1 being only nearly normal."""
    target = asymmetric()
    total = float(NOISE.variance(jnp.ones(())) + jnp.var(target.sample(key, 50_000)))
    flow = flow_of(target.space, exact_score(target, NOISE), total)
    x, log_prob = jax.jit(jax.vmap(flow.sample))(jax.random.split(key, 500))
    log_weight = jax.vmap(target.log_density)(x) - log_prob
    w = jnp.exp(log_weight)
    assert float(jnp.sum(w) ** 2 / (500 * jnp.sum(w**2))) > 0.9
    error = float(jnp.std(w)) / 500**0.5
    assert abs(float(jnp.mean(w)) - 1) < 4 * error + 0.01


def test_impossible_grids():
    with pytest.raises(ValueError, match="num_steps: expected at least 1, got 0"):
        Grid(0)
    with pytest.raises(ValueError, match="spacing: expected 'power' or 'uniform'"):
        Grid(10, "cubic")


@pytest.mark.parametrize("local_variance, share", [(1.0, 1.0), (0.0, 0.9235)])
def test_the_variance_of_a_normal_through_a_grid(local_variance, share):
    """Every step is linear: V' = (1 - (v-v')/(s²+v))² V + its own variance. Kept if s² is known."""
    noise = Geometric(1 / 3, 35.0)
    v = jax.vmap(noise.variance)(Grid(100, sigma_last=0.1).times(noise))
    kept = (1 - (v[:-1] - v[1:]) / (1 + v[:-1])) ** 2
    added = step_variance(v[:-1], v[1:], local_variance)
    through = float(v[0]) + 1
    for keep, add in zip(np.asarray(kept), np.asarray(added), strict=True):
        through = float(keep) * through + float(add)
    assert through == pytest.approx(share, rel=1e-3)
