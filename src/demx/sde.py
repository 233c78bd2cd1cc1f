"""From a score to samples: the reverse SDE on a fixed grid."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from demx.noise import Noise
from demx.space import Space, normal

Score = Callable[[Array, Array], Array]


class Stages(NamedTuple):
    """What a rule does on a grid, one row for each evaluation of the score s at (v, y), v = σ²:

        y ← x + (1 - ρ) (y - x + v s(v, y)) + c z,     then x ← y where it has arrived.

    y + v s is the denoised point; y = x at the start of a step. level: the number of the grid's
    time. kept: ρ. spread: c. arrived: whether this ends a step.
    """

    level: Int[Array, " stages"]
    kept: Float[Array, " stages"]
    spread: Float[Array, " stages"]
    arrived: Bool[Array, " stages"]

    def apply(self, v: Array, x: Array, y: Array, score: Array, z: Array) -> tuple[Array, Array]:
        """x and y after one row; `self` holds that row alone."""
        y = x + (1 - self.kept) * (y - x + v * score) + self.spread * z
        return jnp.where(self.arrived, y, x), y


def _whole_steps(v: Array, spread: Array) -> Stages:
    """One evaluation a step: x' = x + (v - v') s + c z."""
    count = v.shape[0] - 1
    return Stages(jnp.arange(count), v[1:] / v[:-1], spread, jnp.ones(count, bool))


class Euler(eqx.Module):
    """Euler-Maruyama in σ²: x' = x + (v - v') s + √(v - v') z (paper, eq. 2)."""

    def stages(self, v: Float[Array, " levels"]) -> Stages:
        return _whole_steps(v, jnp.sqrt(v[:-1] - v[1:]))

    def calls(self, num_steps: int) -> int:
        return num_steps


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

    def stages(self, v: Float[Array, " levels"]) -> Stages:
        return _whole_steps(v, jnp.sqrt(step_variance(v[:-1], v[1:], self.local_variance)))

    def calls(self, num_steps: int) -> int:
        return num_steps


class Midpoint(eqx.Module):
    """Down the probability flow from σ to σ'²/σ by a midpoint step, then noise up to σ'.

        x_m = x + (1 - σ'/σ) v s(v, x),   D = x_m + v' s(v', x_m)
        x'  = (v'/v) x + (1 - v'/v) D + √(v'(v - v')/v) z

    σ' is the geometric mean of σ and σ'²/σ, so that D is the denoised point half-way down. Noise
    is added exactly; what is left is the flow's error, of second order in the steps. Nothing has to
    be known of the spread of x_0, which may differ from direction to direction. Two evaluations a
    step, but for the last one, x' = x + ½ (v - v') s along the flow: its level should lie well
    below the spread of x_0.
    """

    def stages(self, v: Float[Array, " levels"]) -> Stages:
        share = v[1:-1] / v[:-2]
        steps = share.shape[0]
        level = jnp.arange(steps)[:, None] + jnp.arange(2)[None]
        kept = jnp.stack([jnp.sqrt(share), share], axis=1)
        added = jnp.sqrt(step_variance(v[:-2], v[1:-1], 0.0))
        spread = jnp.stack([jnp.zeros_like(added), added], axis=1)
        end = lambda value, like: jnp.full(1, value, like.dtype)  # noqa: E731
        return Stages(
            jnp.append(level.ravel(), end(steps, level)),
            jnp.append(kept.ravel(), 0.5 * (1 + v[-1:] / v[-2:-1])),
            jnp.append(spread.ravel(), end(0.0, spread)),
            jnp.append(jnp.arange(2 * steps) % 2 == 1, jnp.ones(1, bool)),
        )

    def calls(self, num_steps: int) -> int:
        return 2 * num_steps - 1


def posterior_variance(v: Array, local_variance: Array | float) -> Array:
    """Σ = s² v/(s² + v): of x_0 given x_t around one mode of variance s²."""
    return local_variance * v / (local_variance + v)


def step_variance(v: Array, v_next: Array, local_variance: Array | float) -> Array:
    """v'(v - v')/v + ((v - v')/v)² Σ: of x' given x (see `Posterior`)."""
    share = (v - v_next) / v
    return v_next * share + share**2 * posterior_variance(v, local_variance)


Rule = Euler | Posterior | Midpoint
RULES = {"euler": Euler, "posterior": Posterior, "midpoint": Midpoint}


class Grid(eqx.Module):
    """num_steps + 1 falling times from 1 to 0.

    power: σ_i^{1/ρ} falls linearly from σ(1) to `sigma_last`, then one step to 0 (EDM's grid;
    ρ = 7 crowds the steps at low noise). uniform: equal steps in t (the paper's).
    """

    num_steps: int = 50
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
    exploration. No score is asked for at t = 0.
    """
    variances = jax.vmap(noise.variance)(times)
    stages = rule.stages(variances)

    def evaluate(carry, now):
        x, y = carry
        key, stage = now
        t, v = times[stage.level], variances[stage.level]
        z = noise_scale * normal(key, space, (x.shape[0],))
        s = jax.vmap(score, (None, 0))(t, y)
        return stage.apply(v, x, y, s, z), None

    keys = jax.random.split(key, stages.level.shape[0])
    (x, _), _ = jax.lax.scan(evaluate, (x, x), (keys, stages))
    return x
