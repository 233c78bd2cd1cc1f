"""Reverse diffusion Monte Carlo: the sampler that uses S_K itself as its score."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demx.methods.reverse_monte_carlo import Settings, carry, reverse_monte_carlo
from demx.sde import RULES, reverse
from demx.space import normal
from demx.targets.gaussian_mixture import GaussianMixture
from demx.types import Info
from test_control import MIXTURE, gaussian, within


def test_reverse_monte_carlo_is_near_the_chain_of_the_exact_score(key):
    """Mode shares differ from the exact score's by no more than the errors of S_K allow.

    A step of S_K is a mixture of normals of variance Δv around that of the exact score; so the KL
    between the two chains is at most ½ Σ Δv E|S_K - s|², along the paths of the exact score, and by
    Pinsker the total variation, hence any share, at most ½ √(Σ Δv E|S_K - s|²).
    """
    target, n = MIXTURE, 1000
    settings = Settings(num_samples=1024, num_steps=20, sigma_min=0.05, sigma_max=1.5)
    noise, times = settings.noise, settings.grid.times(settings.noise)
    variances = jax.vmap(noise.variance)(times)
    key_start, key_path, key_noise = jax.random.split(key, 3)
    start = target.smoothed(variances[0]).sample(key_start, n)
    ends = eqx.filter_jit(carry)(key_path, target, settings, start)
    assert int(ends.bad) == 0

    def step(x, now):
        key, v, v_next = now
        key_error, key_step = jax.random.split(key)
        exact = jax.vmap(jax.grad(target.smoothed(v).log_density))(x)
        # an estimate of its own for 200 of the points says how large the errors are there
        keys = jax.random.split(key_error, 200)

        def estimate(key, x):
            block = settings.draws.block(key, target.space)
            return settings.estimator(block, target, v, x, x).score

        made = jax.vmap(estimate)(keys, x[:200])
        error = (v - v_next) * jnp.mean(jnp.sum((made - exact[:200]) ** 2, axis=1))
        z = normal(key_step, target.space, (n,))
        return x + (v - v_next) * exact + jnp.sqrt(v - v_next) * z, error

    keys = jax.random.split(key_noise, len(times) - 1)
    exact, errors = jax.jit(lambda x: jax.lax.scan(step, x, (keys, variances[:-1], variances[1:])))(
        start
    )
    bound = 0.5 * float(jnp.sum(errors)) ** 0.5
    shares = [float(jnp.mean(x[:, 0] > 0)) for x in (ends.x, exact)]
    print(f"shares {shares}, bound {bound}")
    assert bound < 0.15
    within(shares[0], shares[1], (2 * 0.3 * 0.7 / n) ** 0.5, bound)
    # and the target itself, up to the steps of Euler's rule, whose error is of first order: twice
    # what half the steps change
    many = 20_000
    few, more = (exact_share(key, settings.num_steps * k, many) for k in (1, 2))
    error = (0.3 * 0.7 * (1 / n + 2 * 4 / many)) ** 0.5
    within(shares[0], 0.3, error, bound + 2 * abs(few - more))


def exact_share(key, num_steps: int, n: int) -> float:
    """Share of the first mode among the ends of n paths along the exact score."""
    settings = Settings(num_steps=num_steps, sigma_min=0.05, sigma_max=1.5)
    variances = jax.vmap(settings.noise.variance)(settings.grid.times(settings.noise))
    key_start, key_path = jax.random.split(key)

    def step(x, now):
        key, v, v_next = now
        score = jax.vmap(jax.grad(MIXTURE.smoothed(v).log_density))(x)
        z = normal(key, MIXTURE.space, (n,))
        return x + (v - v_next) * score + jnp.sqrt(v - v_next) * z, None

    turns = jax.random.split(key_path, num_steps), variances[:-1], variances[1:]
    start = MIXTURE.smoothed(variances[0]).sample(key_start, n)
    x, _ = jax.jit(lambda x: jax.lax.scan(step, x, turns))(start)
    return float(jnp.mean(x[:, 0] > 0))


def distance_by_one_sample(dim: int) -> float:
    """|y| = |x - m| in the end. In many dimensions one of the K samples has all of the weight, so
    S_K = -(y + σε), cut to max_norm, and with its parts at right angles

        |y'|² = |y|² - 2Δv c|y|² + (Δv c)² (|y|² + v d) + Δv d,   c = min(1, max_norm/|S_K|):

    less than the √d of a perfect sample, because S_K pulls as if there were no noise.
    """
    settings = Settings(num_steps=60, sigma_max=40.0)
    variances = jax.vmap(settings.noise.variance)(settings.grid.times(settings.noise))
    variances = np.asarray(variances, float)
    squared = variances[0] * dim
    for v, v_next in itertools.pairwise(variances):
        force = squared + v * dim
        pull = (v - v_next) * min(1.0, 1e4 / force**0.5)
        squared += -2 * pull * squared + pull**2 * force + (v - v_next) * dim
    return squared**0.5


def test_reverse_monte_carlo_in_many_dimensions_and_on_particles(key):
    means = np.random.default_rng(0).uniform(-40, 40, (4, 10_000))
    target = GaussianMixture(means, np.ones(4))
    sampler = reverse_monte_carlo(
        target, Settings(num_samples=4, num_steps=60, sigma_max=40.0, max_norm=1e4)
    )
    state, info = sampler.step(key, sampler.init(key))
    assert int(state.step) == 1 and info == Info() and sampler.calls_per_step == 0
    samples = sampler.sample(key, state, 4)
    assert samples.energy_calls == 4 * 60 * 4 and samples.bad == samples.bad_calls == 0
    distance = jnp.min(jnp.linalg.norm(samples.x[:, None] - means[None], axis=-1), axis=1)
    # a norm scatters by 1/√2d, here 4 of that; and one of K normals is chosen by its part along y
    allowed = 4 / (2 * 10_000) ** 0.5 + (2 * np.log(4) / 10_000) ** 0.5
    np.testing.assert_allclose(distance, distance_by_one_sample(10_000), rtol=allowed)
    particles = gaussian("mean_free")
    made = reverse_monte_carlo(particles, Settings(num_samples=8, num_steps=5, shared=True))
    x = made.sample(key, made.init(key), 70).x
    assert x.shape == (70, 3, 2)
    np.testing.assert_allclose(particles.space.project(x), x, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_reverse_monte_carlo_by_every_rule(rule, key):
    """For N(0, 1) from N(0, 3²): what the exact score gives, and every evaluation is counted.

    S_K of a normal is -x/(1+v) but for an error of 1/√K, whose share in x is below that of K
    independent points: 4 of √(2/n) and 4/√K.
    """
    target, n, samples = GaussianMixture(np.zeros((1, 2)), np.ones(1)), 2000, 512
    settings = Settings(num_samples=samples, num_steps=30, sigma_max=3.0, rule=rule)
    made = reverse_monte_carlo(target, settings)
    found = made.sample(key, made.init(key), n)
    evaluations = RULES[rule]().calls(30)
    assert found.energy_calls >= n * evaluations * samples
    assert found.energy_calls % (evaluations * samples) == 0
    noise, times = settings.noise, settings.grid.times(settings.noise)
    exact = lambda t, x: -x / (1 + noise.variance(t))  # noqa: E731
    start = jnp.sqrt(noise.variance(jnp.ones(()))) * normal(key, target.space, (n,))
    want = reverse(key, exact, noise, target.space, start, times, RULES[rule]())
    allowed = 4 * (2 * 2 / (2 * n)) ** 0.5 + 4 / samples**0.5
    np.testing.assert_allclose(jnp.var(found.x), jnp.var(want), rtol=allowed)
