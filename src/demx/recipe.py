"""A short probe of an energy that has no preset: how narrow is it where its mass may be?

The control variate of `estimator.Mixed` needs s², the variance around a mode. Points of a wide
normal go downhill and then move by HMC for a while; the slopes where they end tell s².
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from demx.energy import evaluate
from demx.evaluate.equilibrium import relax
from demx.methods.moves import Moves
from demx.space import normal
from demx.stiffness import local_variance, spread
from demx.types import Target

POINTS, DESCENT = 64, 100
MOVES = Moves(num_steps=40, num_leapfrog=4)


class Probe(NamedTuple):
    """What was found, to two digits, and what finding it cost."""

    local_variance: float
    energy_calls: int


@eqx.filter_jit
def _look(key: PRNGKeyArray, target: Target, scale: Array) -> Array:
    space = target.space
    key_start, key_moves = jax.random.split(key)
    x = relax(target, scale * normal(key_start, space, (POINTS,)), DESCENT, scale)
    x = MOVES(key_moves, target, x, 0.02 * scale).points
    widest = jnp.maximum(spread(x, space), 1e-6 * scale**2)
    return local_variance(evaluate(target, x), space, widest)


def probe(target: Target, scale: float) -> Probe:
    """The same target and scale give the same answer: a run that goes on must find it again."""
    found = float(_look(jax.random.key(0), target, jnp.asarray(scale, float)))
    return Probe(float(f"{found:.2g}"), POINTS * (DESCENT + 1) + MOVES.calls(POINTS))
