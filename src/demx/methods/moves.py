"""Metropolis moves on points that a model drew, for the buffer or for a user: closer to p_0.

Local moves cannot repair the weights of far modes, but they take a cluster from nearly right to
right for a small share of the energy calls that the regression spends. With rungs of higher
temperatures beside them points travel between modes too.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from demx.devices import chunk_rows, map_chunks
from demx.methods.tempering import ACCEPTANCE, Tempering, geometric_ladder
from demx.types import Target

CHUNK = 128  # replicas moved together: wide enough for long rows, few enough for the cache


class Moved(eqx.Module):
    """Points after the moves, their log p̃, the step size for the next time, the acceptance, how
    many proposals were not finite, and the share of trades between temperatures that were made
    (nan with one)."""

    points: Float[Array, "..."]
    log_density: Float[Array, "..."]
    step_size: Float[Array, "..."]
    acceptance: Float[Array, "..."]
    bad: Int[Array, "..."]
    traded: Float[Array, "..."]


MALA = 0.574  # the acceptance that is best for one step, in many dimensions


class Moves(eqx.Module):
    """num_steps HMC transitions of num_leapfrog steps each (1: MALA), while step sizes adapt.

    step_size: where the adaptation starts, in units of the coordinates. settled: transitions
    after those with the step size found; only such leave p_0 exactly invariant. rungs: replicas of
    each point at β from 1 to beta_min, which trade places after every transition (parallel
    tempering); all begin at the point, and the one at β = 1 is taken. p̃^β must have a finite
    integral: hot replicas of heavy tails drift away, and are of no use.
    """

    num_steps: int = 20
    num_leapfrog: int = 8
    step_size: float = 0.01
    settled: int = 0
    rungs: int = 1
    beta_min: float = 0.1

    def __check_init__(self) -> None:
        if self.rungs < 1:
            raise ValueError(f"rungs: expected at least 1, got {self.rungs}")
        if not 0 < self.beta_min < 1:
            raise ValueError(f"beta_min: expected between 0 and 1, got {self.beta_min}")
        if self.settled < 0:
            raise ValueError(f"settled: expected at least 0, got {self.settled}")
        if self.num_steps < 2 or self.num_leapfrog < 1 or not self.step_size > 0:
            raise ValueError(
                "expected num_steps >= 2, num_leapfrog >= 1 and step_size > 0, got "
                f"{self.num_steps}, {self.num_leapfrog} and {self.step_size}"
            )

    def __call__(
        self,
        key: PRNGKeyArray,
        target: Target,
        points: Array,
        step_size: Array,
        counted: Bool[Array, " n"] | None = None,
    ) -> Moved:
        """One ensemble a point; each chunk of the points adapts its steps.

        counted: points that acceptance and bad proposals are told of; None: all.
        """
        rows = chunk_rows(len(points), max(1, CHUNK // self.rungs))

        def some(tree, chunk):
            target, step_size = tree
            key, points, counted = chunk
            acceptance = MALA if self.num_leapfrog == 1 else ACCEPTANCE
            sampler = Tempering(target, self.num_leapfrog, acceptance, counted)
            chains = sampler.init(points, self.rungs)
            ladder = geometric_ladder(self.rungs, self.beta_min, step_size)
            key_tune, key_run = jax.random.split(key)
            chains, tuned, moved = sampler.tune(key_tune, chains, ladder, self.num_steps)
            bad = jnp.sum(moved.bad)
            if self.settled > 0:
                chains, moved, *_ = sampler.run(
                    key_run, chains, tuned, 1, jnp.asarray(self.settled)
                )
                bad += jnp.sum(moved.bad)
            return Moved(
                jax.vmap(target.space.configuration)(chains.position[:, 0]),
                chains.log_density[:, 0],
                tuned.step_size[0],
                moved.acceptance[0],
                bad,
                1 - jnp.mean(moved.rejection),
            )

        chunks = (
            jax.random.split(key, len(points) // rows),
            points.reshape(-1, rows, *points.shape[1:]),
            None if counted is None else counted.reshape(-1, rows),
        )
        moved = map_chunks(some, (target, step_size), chunks)
        return Moved(
            moved.points.reshape(points.shape),
            moved.log_density.ravel(),
            jnp.exp(jnp.mean(jnp.log(moved.step_size))),
            _mean(moved.acceptance, chunks[2]),
            jnp.sum(moved.bad),
            _mean(moved.traded, chunks[2]),
        )

    def calls(self, n: int) -> int:
        """Energy calls for n points."""
        return n * (1 + self.rungs * (self.num_steps + self.settled) * self.num_leapfrog)


def _mean(values: Float[Array, " chunks"], counted: Bool[Array, "chunks rows"] | None) -> Array:
    """The mean over chunks, each as much as it counts; one that does not may be nan."""
    if counted is None:
        return jnp.mean(values)
    share = jnp.mean(counted.astype(values.dtype), axis=1)
    return jnp.sum(jnp.where(share > 0, share * values, 0.0)) / jnp.sum(share)
