"""Reverse diffusion Monte Carlo: the sampler that uses S_K itself as its score."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from demx.methods.reverse_monte_carlo import Settings, carry, reverse_monte_carlo
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
    # and the target itself, up to the steps of Euler's rule
    within(shares[0], 0.3, (0.3 * 0.7 / n) ** 0.5, bound + 0.02)


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
    # a point of a mode is √d away from its centre; so few samples pull too hard, and from the prior
    # it were 4000
    distance = jnp.min(jnp.linalg.norm(samples.x[:, None] - means[None], axis=-1), axis=1)
    np.testing.assert_allclose(distance, 100.0, rtol=0.4)
    particles = gaussian("mean_free")
    made = reverse_monte_carlo(particles, Settings(num_samples=8, num_steps=5, shared=True))
    x = made.sample(key, made.init(key), 70).x
    assert x.shape == (70, 3, 2)
    np.testing.assert_allclose(particles.space.project(x), x, atol=1e-5)
