"""The periodic look at a run: energies and one number, `validation`, that says how far it is.

Against a validation set it is energy_w2/σ(E) + distance/σ(x): how far energies and shapes are
off, in units of their own spread (the distance is `w2` in the plane, of interparticle distances
for particles, coordinate by coordinate elsewhere). Without a reference it is the distance, in the
same units, between energies before and after HMC moves, which would change nothing at equilibrium.
A sample that is not finite, or has no energy, is FAR standard deviations off.
"""

import functools
import math
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from demx import correction
from demx.energy import energies as energies_of
from demx.evaluate.evaluation import batched_energies, finite_rows
from demx.evaluate.metrics import distances, energy_w2, w2
from demx.evaluate.reference import Reference
from demx.space import MeanFree
from demx.types import Method, Samples, Target

MOST = 2000  # samples for a distance: the assignment grows with their cube
STEPS = 64  # gradient steps of the moves
FAR = 100.0
MOVED = 0x7E7E7E7E  # far from the numbers that the chunks of a sample fold into the same key


class Glance:
    """`glance(key, state)` draws n samples: metrics by name, and the energy calls they cost."""

    def __init__(self, method: Method, target: Target, n: int, reference: Reference | None):
        self.method, self.target, self.n, self.reference = method, target, n, reference
        self._measure = jax.jit(lambda xs: energies_of(target, xs))

    @property
    def calls(self) -> int:
        """Energy calls of a look, as far as they are known before the first."""
        drawn = 0 if self.method.sample_calls is None else self.method.sample_calls(self.n)
        moved = 0 if self.reference else correction.calls("hmc", STEPS, self.n) + self.n
        return drawn + self.n + moved

    @functools.cached_property
    def _energies(self) -> np.ndarray:
        return batched_energies(self.target, self.reference.validation)

    def __call__(self, key: PRNGKeyArray, state: Any) -> tuple[dict[str, float], int]:
        drawn = self.method.sample(key, state, self.n)
        x, calls = np.asarray(drawn.x), drawn.energy_calls + self.n
        if self.method.weighted:
            log_weight = np.asarray(drawn.log_weight)
            if not np.isfinite(log_weight).any():  # nothing to choose from
                return {"bad_samples": self.n, "validation": FAR}, drawn.energy_calls
            x = x[correction.equal_weights(log_weight, self.n, 0)]
        energies = np.asarray(self._measure(x))
        good = finite_rows(x, energies)
        x, energies = x[good], energies[good]
        values = {"bad_samples": int(self.n - len(x))} if len(x) < self.n else {}
        if len(x) < 2:
            return values | {"validation": FAR}, calls
        values["energy_median"] = float(np.median(energies))
        # W2² is a mean of squares over the samples, and so many of them are far away
        lost = FAR * (1 - len(x) / self.n) ** 0.5
        if self.reference is None:
            moved, cost = self._after_moves(jax.random.fold_in(key, MOVED), x)
            values["validation"] = math.hypot(_relative(energies, moved), lost)
            return values, calls + cost
        values["energy_w2"] = energy_w2(energies, self._energies)
        validation = self.reference.validation[:MOST]
        size = min(len(x), len(validation))
        if self.target.space.dof <= 2:
            values["w2"] = shape = w2(x[:size], validation[:size])
            shape /= float(np.sqrt(np.var(validation, axis=0).sum()))
        elif isinstance(self.target.space, MeanFree):
            shape = _relative(distances(x[:size]).ravel(), distances(validation[:size]).ravel())
        else:
            columns = zip(x.T, validation.T, strict=True)
            shape = float(np.sqrt(np.mean([_relative(a, b) ** 2 for a, b in columns])))
        values["validation"] = math.hypot(_relative(energies, self._energies) + shape, lost)
        return values, calls

    def _after_moves(self, key: PRNGKeyArray, x: np.ndarray) -> tuple[np.ndarray, int]:
        moved = correction.metropolis(key, self.target, Samples(x), "hmc", STEPS)
        found = np.asarray(self._measure(np.asarray(moved.x)))
        return found[np.isfinite(found)], moved.energy_calls + len(x)


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    """Wasserstein-2 between numbers, in standard deviations of b."""
    return energy_w2(a, b) / max(float(np.std(b)), 1e-12)
