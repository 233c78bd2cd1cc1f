"""Reverse diffusion Monte Carlo (rDMC): the estimate S_K itself as the score, nothing to train.

    x' = x + (v - v') S_K(x, v) + √(v - v') z,      v = σ²(t) falling from σ²(1) to 0

with K fresh energies at each step of each sample (paper, app. G.6, where it samples a mixture in
10 000 dimensions; Huang et al. 2023, arXiv 2307.02037).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from demx.devices import call_sizes, chunk_rows, everywhere, home, map_chunks
from demx.draws import Draws, estimate_batch
from demx.estimator import LogSumExp
from demx.noise import Geometric
from demx.sde import RULES, Grid
from demx.space import normal
from demx.types import Info, Method, Samples, Target
from demx.wrappers import Clipped

ROWS = 64  # samples that are carried together; estimates take as many of them as fit the cache


class Settings(eqx.Module):
    """scale: rough standard deviation of a coordinate, the unit of sigma_min and sigma_max.
    num_samples: K. num_steps, spacing: of the grid of times (see `Grid`). max_norm, max_sigmas:
    each vector of an estimate is cut to min(max_norm, max_sigmas/σ). rule: a name in `sde.RULES`.
    shared: a step draws one pool of normals, of which samples take windows.

    One sample holds K·d normals at a time, or the batch one pool of at least as many.
    """

    scale: float = 1.0
    num_samples: int = 256
    num_steps: int = 100
    sigma_min: float = 0.01
    sigma_max: float = 3.5
    max_norm: float = float("inf")
    max_sigmas: float = float("inf")
    rule: str = "euler"
    spacing: str = "uniform"
    shared: bool = False

    def __check_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule: expected one of {', '.join(RULES)}, got {self.rule!r}")
        if not self.scale > 0:
            raise ValueError(f"scale: expected a positive number, got {self.scale}")
        # each part checks its own numbers
        self.draws, self.noise, self.grid, self.estimator  # noqa: B018

    @property
    def draws(self) -> Draws:
        return Draws(self.num_samples, shared=self.shared)

    @property
    def noise(self) -> Geometric:
        return Geometric(self.scale * self.sigma_min, self.scale * self.sigma_max)

    @property
    def grid(self) -> Grid:
        return Grid(
            self.num_steps, self.spacing, sigma_last=min(1e-3, 0.1 * self.sigma_max) * self.scale
        )

    @property
    def estimator(self) -> Clipped:
        return Clipped(LogSumExp(), self.max_norm, self.max_sigmas)


class State(eqx.Module):
    """How many steps were made; none of them changes anything."""

    step: Int[Array, ""]


class Carried(eqx.Module):
    """Samples (n, *shape), and how many energies on the way were not finite."""

    x: Float[Array, "n ..."]
    bad: Int[Array, "*chunks"]


def carry(
    key: PRNGKeyArray, target: Target, settings: Settings, x: Float[Array, "n ..."]
) -> Carried:
    """A batch x ~ p_1 along the reverse SDE to t = 0: K energy calls for each point and evaluation.

    Where all K energies are infinite there is no estimate; the score is then 0, and the point only
    diffuses.
    """
    rule, draws, noise = RULES[settings.rule](), settings.draws, settings.noise
    times = settings.grid.times(noise)
    variances = jax.vmap(noise.variance)(times)
    n = x.shape[0]

    stages = rule.stages(variances)

    def step(carried, now):
        x, y, bad = carried
        key, stage = now
        key_noise, key_pool, key_score = jax.random.split(key, 3)
        keys = jax.random.split(key_score, n)
        pool = draws.pool(key_pool, target.space)
        v = variances[stage.level]
        level = jnp.full(n, v)
        found = estimate_batch(keys, pool, settings.estimator, draws, target, level, y, y)
        score = jnp.where(jnp.isfinite(found.score), found.score, 0.0)
        x, y = stage.apply(v, x, y, score, normal(key_noise, target.space, (n,)))
        return (x, y, bad + jnp.sum(found.bad)), None

    turns = (jax.random.split(key, len(stages.level)), stages)
    (x, _, bad), _ = jax.lax.scan(step, (x, x, jnp.zeros((), int)), turns)
    return Carried(x, bad)


def reverse_monte_carlo(target: Target, settings: Settings) -> Method:
    """Reverse diffusion Monte Carlo: the estimate S_K itself as the score, nothing to train.

    Started from N(0, σ²(1)); `step` does nothing, at no cost.
    """
    space, evaluations = target.space, RULES[settings.rule]().calls(settings.num_steps)

    @eqx.filter_jit
    def draw(key: PRNGKeyArray, n: int) -> Carried:
        rows = chunk_rows(n, ROWS)

        def some(_, key):
            key_prior, key_path = jax.random.split(key)
            top = jnp.sqrt(settings.noise.variance(jnp.ones(())))
            return carry(key_path, target, settings, top * normal(key_prior, space, (rows,)))

        made = map_chunks(some, None, jax.random.split(key, n // rows))
        return Carried(made.x.reshape(n, *space.shape), jnp.sum(made.bad))

    def init(key: PRNGKeyArray) -> State:
        return State(jnp.zeros((), int))

    def step(key: PRNGKeyArray, state: State) -> tuple[State, Info]:
        return State(state.step + 1), Info()

    def sample(key: PRNGKeyArray, state: State, n: int) -> Samples:
        sizes = call_sizes(n)
        keys = everywhere([jax.random.fold_in(key, i) for i in range(len(sizes))])
        made = [home(draw(k, size)) for k, size in zip(keys, sizes, strict=True)]
        x = jnp.concatenate([m.x for m in made])
        return Samples(
            x[:n],
            energy_calls=sample_calls(n),
            bad=int(jnp.sum(~jnp.isfinite(jnp.sum(x[:n].reshape(n, -1), axis=1)))),
            bad_calls=int(sum(m.bad for m in made)),
        )

    def sample_calls(n: int) -> int:
        """What was drawn is paid for, also the end of the last call."""
        return sum(call_sizes(n)) * evaluations * settings.num_samples

    settings.grid.check(settings.noise)
    return Method(init, step, sample, sample_calls=sample_calls)
