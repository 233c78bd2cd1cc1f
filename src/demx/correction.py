"""Correction of samples by Metropolis moves, and of weighted ones by resampling.

Moves repair what is wrong near a sample, not how many samples a mode has; annealed SMC
(`demx.methods.annealing`) repairs both. Both are exact in the limit of many steps or particles.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from demx.devices import everywhere, home
from demx.energy import evaluate
from demx.errors import UserError
from demx.methods.moves import Moves
from demx.stiffness import local_variance, spread
from demx.types import Samples, Target

LEAPFROG = {"mala": 1, "hmc": 8}
PROBE = 256  # samples whose slopes tell a first step size


@eqx.filter_jit
def _move(key: PRNGKeyArray, target: Target, x: Array, counted: Array, moves: Moves):
    space = target.space
    # one sample that is nan must not be the spread of all
    finite = jnp.all(jnp.isfinite(x.reshape(len(x), -1)), axis=1).astype(x.dtype)
    some = jnp.where(jnp.sum(finite) > 0, spread(x, space, finite), 0.0)
    widest = jnp.maximum(some, jnp.finfo(x.dtype).tiny)
    narrow = local_variance(evaluate(target, x[:PROBE]), space, widest)
    # what keeps the acceptance in many dimensions (Beskos et al., 2013)
    step_size = jnp.sqrt(narrow) * space.dof**-0.25
    return moves(key, target, x, step_size, counted), step_size


def _moves(kind: str, num_steps: int) -> Moves:
    leapfrog = LEAPFROG[kind]
    transitions = max(3, round(num_steps / leapfrog))
    adapting = max(2, transitions // 2)
    return Moves(adapting, leapfrog, settled=transitions - adapting)


def _rows(n: int) -> int:
    """n, or a number with many divisors above it, so that the points can be cut into chunks."""
    return n if n <= 64 else 64 * -(-n // 64)


def calls(kind: str, num_steps: int, n: int) -> int:
    """Energy calls that `metropolis` takes for n samples."""
    return _moves(kind, num_steps).calls(_rows(n)) + min(PROBE, _rows(n))


def metropolis(
    key: PRNGKeyArray, target: Target, drawn: Samples, kind: str, num_steps: int
) -> Samples:
    """Every sample moved by num_steps gradient steps of 'mala' or 'hmc' (8 to a move; 3 moves at
    least).

    Half of the moves adapt the step size, half keep it. Weights stay valid as far as moves leave
    p as it is, and those that adapt do so only nearly; the density of the sampler is lost.
    """
    moves, n = _moves(kind, num_steps), len(drawn.x)
    size = _rows(n)
    x = drawn.x[np.arange(size) % n]
    counted = jnp.arange(size) < n
    moved, step_size = home(_move(*everywhere((key, target, x, counted)), moves))
    if not np.isfinite(step_size):
        raise UserError(
            f"correct: expected samples whose spread tells a step size, got {step_size}: some are "
            "too far away to be squared; train longer"
        )
    inside = np.isfinite(np.asarray(moved.log_density))[:n]
    keep = inside.reshape(n, *(1,) * (drawn.x.ndim - 1))
    return drawn._replace(
        x=jnp.where(keep, moved.points[:n], drawn.x),
        log_prob=None,
        energy_calls=drawn.energy_calls + calls(kind, num_steps, n),
        # a weighted sample that is bad stays so, of weight 0
        bad=int((~inside).sum()) if drawn.log_weight is None else drawn.bad,
        acceptance=float(moved.acceptance),
        bad_calls=drawn.bad_calls + int(moved.bad),
    )


def equal_weights(log_weight: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Rows of n samples drawn by their weights (systematic resampling), in random order."""
    rng = np.random.default_rng(seed)
    log_weight = np.asarray(log_weight, float)
    if not np.isfinite(log_weight).any():
        raise UserError("all weights are zero: no sample has a finite energy where it ended")
    weight = np.exp(log_weight - log_weight.max())
    places = (np.arange(n) + rng.random()) / n
    rows = np.searchsorted(np.cumsum(weight) / weight.sum(), places)
    return rng.permutation(np.minimum(rows, len(weight) - 1))
