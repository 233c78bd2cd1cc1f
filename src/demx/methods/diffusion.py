"""What turns a score model into samples and densities: reverse SDE, probability flow, SMC."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from demx.devices import chunk_rows, map_chunks
from demx.flow import Flow, probability_flow
from demx.methods.annealing import Annealed, Annealing, Path
from demx.model import Pinned, Precondition, ScoreModel
from demx.noise import Noise
from demx.sde import Grid, Rule, reverse
from demx.space import normal
from demx.types import Target

PILOTS = 64  # paths that tell how narrow the modes are, and how far estimates can be trusted


class Pin(eqx.Module):
    """Pin the score to -∇E where σ² is below about `variance`; vectors are cut to `max_norm`."""

    variance: float
    max_norm: float

    def __check_init__(self) -> None:
        if not (self.variance > 0 and self.max_norm > 0):
            raise ValueError(
                "variance, max_norm: expected positive numbers, "
                f"got {self.variance} and {self.max_norm}"
            )


class Diffusion(eqx.Module):
    """What turns a model into samples: where it starts, the grid, the step rule."""

    target: Target
    noise: Noise
    precondition: Precondition
    grid: Grid
    rule: Rule
    pin: Pin | None = None

    @property
    def prior_variance(self) -> Array:
        return self.precondition.prior_variance(self.noise.variance(jnp.ones(())))

    def prior(self, key: PRNGKeyArray, n: int) -> Array:
        """n draws of p_1, N(0, prior_variance) on the space."""
        return jnp.sqrt(self.prior_variance) * normal(key, self.target.space, (n,))

    def score(self, model: ScoreModel) -> Callable[[Array, Array], Array]:
        if self.pin is None:
            return model
        return Pinned(model, self.target, self.pin.variance, self.pin.max_norm)

    def run(self, key: PRNGKeyArray, model: ScoreModel, n: int, noise_scale: float) -> Array:
        rows = chunk_rows(n, model.rows_in_cache)

        def some(model, key):
            key_prior, key_path = jax.random.split(key)
            start, times = self.prior(key_prior, rows), self.grid.times(self.noise)
            space, score = self.target.space, self.score(model)
            return reverse(key_path, score, self.noise, space, start, times, self.rule, noise_scale)

        made = map_chunks(some, model, jax.random.split(key, n // rows))
        return made.reshape(n, *self.target.space.shape)

    def flow(
        self, model: ScoreModel, *, tolerance: float = 1e-4, probes: int | None = None
    ) -> Flow:
        """The sampler's own density, at the last noise level of the grid (see `Flow`)."""
        return probability_flow(
            self.score(model),
            self.noise,
            self.target.space,
            self.noise.time(jnp.asarray(self.grid.sigma_last**2)),
            self.prior_variance,
            tolerance=tolerance,
            probes=probes,
        )

    @property
    def calls_per_sample(self) -> int:
        return 0 if self.pin is None else self.rule.calls(self.grid.num_steps)

    @property
    def annealing_grid(self) -> Grid:
        """As many levels as a sample takes scores: the kernel of annealed SMC takes one a step."""
        return dataclasses.replace(self.grid, num_steps=self.rule.calls(self.grid.num_steps))

    def path(self, model: ScoreModel) -> Path:
        rows, score = model.rows_in_cache, self.score(model)

        def scores(t, xs):
            return jax.lax.map(lambda x: score(t, x), xs, batch_size=rows)

        times = self.annealing_grid.times(self.noise)
        return Path(self.target, scores, self.noise, times, self.prior_variance)

    def anneal(
        self, key: PRNGKeyArray, model: ScoreModel, smc: Annealing, islands: int, rows: int
    ) -> Annealed:
        """Independent islands of `rows` weighted particles, along the grid: (islands, rows, …)."""
        key_survey, key_islands = jax.random.split(key)
        guide = smc.survey(key_survey, self.path(model), PILOTS)

        def island(tree, key):
            model, guide = tree
            return smc.run(key, self.path(model), guide, rows)

        return map_chunks(island, (model, guide), jax.random.split(key_islands, islands))

    def anneal_calls(self, smc: Annealing, n: int) -> int:
        """Energy calls of `anneal` for n particles in all, pilots included."""
        steps = self.annealing_grid.num_steps
        pilots = PILOTS * (1 + 2 * steps * smc.num_samples)
        pinned = 0 if self.pin is None else steps  # a path asks for one score a step
        return smc.calls(n, steps) + pilots + (n + PILOTS) * pinned
