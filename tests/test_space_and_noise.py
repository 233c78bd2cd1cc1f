"""Spaces and noise: closed forms and laws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import NOISES
from demx.noise import Geometric, VariancePreserving
from demx.space import Euclidean, MeanFree, distances, log_normal, normal


@pytest.mark.parametrize("space", [Euclidean(5), MeanFree(4, 3)], ids=str)
def test_normal_has_one_unit_of_variance_a_degree_of_freedom(space, key):
    x = normal(key, space, (20_000,))
    squared = jnp.sum(x.reshape(len(x), -1) ** 2, axis=1)
    error = 4 * (2 * space.dof / len(x)) ** 0.5
    assert abs(float(jnp.mean(squared)) - space.dof) < error
    assert np.allclose(space.project(x), x, atol=1e-6)


def test_log_normal_integrates_to_one_on_the_subspace():
    # two particles on a line: the mean-free subspace is a line, x = (u, -u)/√2
    space, grid = MeanFree(2, 1), jnp.linspace(-8.0, 8.0, 4001)
    points = jnp.stack([grid, -grid], axis=1)[..., None] / jnp.sqrt(2.0)
    density = jnp.exp(jax.vmap(lambda x: log_normal(space, x, 1.7))(points))
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=1e-5)


def test_distances_of_a_triangle():
    x = jnp.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    assert np.allclose(jnp.sort(distances(x)), [3, 4, 5])


@pytest.mark.parametrize("make", [lambda: Euclidean(0), lambda: MeanFree(1, 3)])
def test_impossible_spaces(make):
    with pytest.raises(ValueError, match="expected at least"):
        make()


@pytest.mark.parametrize("name", NOISES)
def test_diffusion_is_the_root_of_the_derivative_of_the_variance(name):
    noise = NOISES[name]
    for t in jnp.array([0.05, 0.3, 0.7, 1.0]):
        slope = jax.grad(noise.variance)(t)
        assert float(noise.diffusion(t) ** 2) == pytest.approx(float(slope), rel=2e-4)


@pytest.mark.parametrize("name", NOISES)
def test_noise_starts_at_zero_and_time_inverts_variance(name):
    noise = NOISES[name]
    assert float(noise.variance(jnp.zeros(()))) == 0
    for t in jnp.array([0.02, 0.4, 0.9]):
        assert float(noise.time(noise.variance(t))) == pytest.approx(float(t), abs=2e-4)


@pytest.mark.parametrize("name", ["variance_preserving", "linear_sde"])
def test_change_of_variable_matches_a_simulated_sde(name, key):
    """x_t = scale(t)·(x_0 + σ_t ε) against Euler-Maruyama of dx = -αx dt + g dw (appendix B)."""
    noise, steps, n = NOISES[name], 400, 20_000
    if name == "variance_preserving":
        rate = lambda t: noise.beta_min + (noise.beta_max - noise.beta_min) * t  # noqa: E731
        alpha, g = lambda t: 0.5 * rate(t), lambda t: jnp.sqrt(rate(t))
    else:
        alpha, g = noise.alpha, noise.g
    x = jnp.full(n, 2.0)

    def step(x, now):
        t, key = now
        dt = 1 / steps
        return x - alpha(t) * x * dt + g(t) * dt**0.5 * jax.random.normal(key, (n,)), None

    times = (jnp.arange(steps, dtype=float) + 0.5) / steps
    x, _ = jax.lax.scan(step, x, (times, jax.random.split(key, steps)))
    scale, v = noise.scale(jnp.ones(())), noise.variance(jnp.ones(()))
    spread = float(scale * jnp.sqrt(v))
    assert float(jnp.mean(x)) == pytest.approx(float(2 * scale), abs=4 * spread / n**0.5 + 0.02)
    # 4 standard errors of a standard deviation, and the O(1/steps) of Euler
    assert float(jnp.std(x)) == pytest.approx(spread, rel=4 * (0.5 / n) ** 0.5 + 4 / steps)


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: Geometric(-1.0, 2.0), "sigma_min: expected a positive number, got -1"),
        (lambda: Geometric(2.0, 1.0), "sigma_max: expected more than"),
        (lambda: VariancePreserving(1.0, 0.5), "beta_max: expected more than"),
    ],
)
def test_impossible_noise(make, match):
    with pytest.raises(ValueError, match=match):
        make()
