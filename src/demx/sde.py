"""From a score to samples: the reverse SDE on a fixed grid."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demx.noise import Noise
from demx.space import Space, normal

Score = Callable[[Array, Array], Array]


class Euler(eqx.Module):
    """Euler-Maruyama in σ²: x' = x + (v - v') s + √(v - v') z (paper, eq. 2)."""

    def __call__(self, v: Array, v_next: Array, x: Array, score: Array, z: Array) -> Array:
        return x + (v - v_next) * score + jnp.sqrt(v - v_next) * z


class Posterior(eqx.Module):
    """A Gaussian step through x_0: exact if x_0 given x_t is normal with variance Σ.

        x' = x + (v - v') s + √(v'(v - v')/v + ((v - v')/v)² Σ) z,   Σ = s² v/(s² + v)

    s² (`local_variance`) is the variance of the target around one of its modes. With 0, x_0 is
    taken to be its mean: the last step, to v' = 0, then gives the denoised point.
    """

    local_variance: float = 0.0

    def __check_init__(self) -> None:
        if not self.local_variance >= 0:
            raise ValueError(f"local_variance: expected at least 0, got {self.local_variance}")

    def __call__(self, v: Array, v_next: Array, x: Array, score: Array, z: Array) -> Array:
        return (
            x + (v - v_next) * score + jnp.sqrt(step_variance(v, v_next, self.local_variance)) * z
        )


def posterior_variance(v: Array, local_variance: Array | float) -> Array:
    """Σ = s² v/(s² + v): of x_0 given x_t around one mode of variance s²."""
    return local_variance * v / (local_variance + v)


def step_variance(v: Array, v_next: Array, local_variance: Array | float) -> Array:
    """v'(v - v')/v + ((v - v')/v)² Σ: of x' given x (see `Posterior`)."""
    share = (v - v_next) / v
    return v_next * share + share**2 * posterior_variance(v, local_variance)


Rule = Euler | Posterior
RULES = {"euler": Euler, "posterior": Posterior}


class Grid(eqx.Module):
    """num_steps + 1 falling times from 1 to 0.

    power: σ_i^{1/ρ} falls linearly from σ(1) to `sigma_last`, then one step to 0 (EDM's grid;
    ρ = 7 crowds the steps at low noise). uniform: equal steps in t (the paper's).
    """

    num_steps: int = 100
    spacing: str = "power"
    rho: float = 7.0
    sigma_last: float = 1e-3

    def __check_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"num_steps: expected at least 1, got {self.num_steps}")
        if self.spacing not in ("power", "uniform"):
            raise ValueError(f"spacing: expected 'power' or 'uniform', got {self.spacing!r}")
        if not (self.rho > 0 and self.sigma_last > 0):
            raise ValueError("rho, sigma_last: expected positive numbers")

    def check(self, noise: Noise) -> None:
        """The grid must fall: its last level lies below the noise's highest."""
        with jax.ensure_compile_time_eval():
            top = float(noise.variance(jnp.ones(()))) ** 0.5
        if not self.sigma_last < top:
            raise ValueError(f"sigma_last: expected below σ(1) = {top:.4g}, got {self.sigma_last}")

    def times(self, noise: Noise) -> Float[Array, " steps"]:
        fraction = jnp.linspace(0.0, 1.0, self.num_steps + 1)
        if self.spacing == "uniform":
            return 1 - fraction
        fraction = fraction[:-1] * (self.num_steps / max(1, self.num_steps - 1))
        self.check(noise)
        top = noise.variance(jnp.ones(())) ** (0.5 / self.rho)
        sigma = (top + fraction * (self.sigma_last ** (1 / self.rho) - top)) ** self.rho
        times = jax.vmap(noise.time)(sigma**2)
        return jnp.concatenate([times.at[0].set(1.0), jnp.zeros(1)])


def reverse(
    key: PRNGKeyArray,
    score: Score,
    noise: Noise,
    space: Space,
    x: Float[Array, "n ..."],
    times: Float[Array, " steps"],
    rule: Rule,
    noise_scale: float = 1.0,
) -> Float[Array, "n ..."]:
    """Carry a batch from t = times[0] to times[-1] along the reverse SDE (paper, eq. 2).

    noise_scale multiplies g(t) dw: the paper's other diffusion coefficient, for more or less
    exploration. A step evaluates the score at the upper time, so no score is asked for at t = 0.
    """
    variances = jax.vmap(noise.variance)(times)

    def step(x, now):
        key, t, v, v_next = now
        z = noise_scale * normal(key, space, (x.shape[0],))
        s = jax.vmap(score, (None, 0))(t, x)
        return rule(v, v_next, x, s, z), None

    keys = jax.random.split(key, times.shape[0] - 1)
    x, _ = jax.lax.scan(step, x, (keys, times[:-1], variances[:-1], variances[1:]))
    return x
