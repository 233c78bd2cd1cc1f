"""Samples of a trained method: blocks with keys of their own, corrected, weighted, resampled."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from demx import correction, stream
from demx.errors import UserError
from demx.evaluate.weights import effective_share
from demx.methods import METHODS
from demx.methods.annealing import Annealing
from demx.types import Method, Samples, Target
from demx.whole import whole

NO_DENSITY = "this sampler has no density and no weights (chains, or a pinned score)"
_WEIGHTED = ", ".join(name for name, entry in METHODS.items() if entry.weights)
WITH_WEIGHTS = f"{NO_DENSITY}; methods with weights are {_WEIGHTED}"
# far from the small numbers that training folds into the same seed: the streams never meet
DOMAINS = {"sample": 0x5A5A5A5A, "evaluate": 0x3C3C3C3C, "correct": 0x66666666,
           "block": 0x11111111, "backward": 0x22222222}  # fmt: skip


def stream_key(seed: int, domain: str) -> PRNGKeyArray:
    """The key of one use of a seed."""
    return jax.random.fold_in(jax.random.key(seed), DOMAINS[domain])


class How(NamedTuple):
    """weights: from the density that is known. correct: 'mala', 'hmc' or 'smc', None: not at all;
    correct_steps: gradient steps of the first two."""

    weights: bool = False
    correct: str | None = None
    correct_steps: int = 300


class Drawing(NamedTuple):
    """What samples are drawn with: a method of that name, and its state."""

    target: Target
    method: Method
    state: Any
    name: str

    def how(self, weights: bool, correct: str | None, correct_steps: Any) -> How:
        """As a user asks for it: what this method cannot do is refused before it costs anything."""
        if correct not in (None, "smc", *correction.LEAPFROG):
            raise UserError(f"correct: expected mala, hmc or smc, got {correct!r}")
        if correct == "smc" and self.method.anneal is None:
            raise UserError(
                f"correct: {self.name} has no learned noise levels for smc to go along; idem and "
                "pdem have; mala and hmc correct the samples of every method"
            )
        if weights and correct != "smc" and not self.weighs:
            raise UserError(WITH_WEIGHTS)
        return How(bool(weights), correct, whole("correct_steps", correct_steps, 1))

    @property
    def weighs(self) -> bool:
        """Whether its samples have weights, or can be drawn with them."""
        return self.method.weighted or self.method.sample_weighted is not None

    def calls(self, n: int, how: How) -> int | None:
        """Energy calls that n samples will take, if that can be said before."""
        known = how.correct in (None, *correction.LEAPFROG)  # others: told by `block`
        if not known or self.method.sample_calls is None:
            return None
        sizes = self._sizes(n)
        found = sum(map(self.method.sample_calls, sizes))
        if how.weights and self.method.log_prob is not None and not self.method.weighted:
            found += n  # weights of paths come with them, those of a density take an energy each
        if how.correct is None:
            return found
        return found + sum(correction.calls(how.correct, how.correct_steps, size) for size in sizes)

    def _sizes(self, n: int) -> list[int]:
        """Of the blocks that n samples are drawn in."""
        entry = METHODS[self.name]
        independent = entry.mcmc_free or entry.weights
        rows = stream.block_rows(self.target.space) if independent else n
        return [min(rows, n - start) for start in range(0, n, rows)]

    def draw(self, key: PRNGKeyArray, n: int, how: How) -> Samples:
        """n samples in one piece."""
        return stream.merged(list(self.blocks(key, n, how)))

    def blocks(self, key: PRNGKeyArray, n: int, how: How) -> Iterator[Samples]:
        """n samples in independent blocks, if what the method draws twice is independent."""
        sizes = self._sizes(n)
        # the first block has the key itself: a few samples are the first of many
        keys = (jax.random.fold_in(key, DOMAINS["block"] + i) if i else key
                for i in range(len(sizes)))  # fmt: skip
        made = (self.block(k, size, how) for k, size in zip(keys, sizes, strict=True))
        return stream.numbered(made)

    def block(self, key: PRNGKeyArray, n: int, how: How) -> Samples:
        """n samples of one call."""
        if how.correct == "smc":
            return self.method.anneal(key, self.state, n, Annealing())
        draw = self.method.sample
        if how.weights and not self.method.weighted:
            draw = self.method.sample_weighted
        drawn = draw(key, self.state, n)
        if how.correct is None:
            return drawn
        key_moves = jax.random.fold_in(key, DOMAINS["correct"])
        return correction.metropolis(key_moves, self.target, drawn, how.correct, how.correct_steps)

    def unweighted(self, key: PRNGKeyArray, n: int, repeats: int, how: How) -> "Unweighted":
        """n·repeats samples without weights, in independent blocks of n."""
        if how.correct != "smc" and not self.method.weighted:
            return Unweighted(self.draw(key, n * repeats, how))
        parts, swarms, worth = [], [], 0.0
        for i in range(repeats):  # particles of one swarm are not independent
            swarm = self.draw(jax.random.fold_in(key, i), n, how)
            log_weight = np.asarray(swarm.log_weight)
            rows = correction.equal_weights(log_weight, n, i)
            # copies of one are no new samples
            island = jnp.asarray(rows) if swarm.island is None else swarm.island[rows]
            plain = swarm._replace(x=swarm.x[rows], island=island, log_weight=None, log_prob=None)
            parts.append(plain)
            swarms.append(swarm)
            worth += n * effective_share(log_weight, swarm.island)
        samples, weighted = (stream.merged(list(stream.numbered(a))) for a in (parts, swarms))
        return Unweighted(samples, weighted, worth)


class Unweighted(NamedTuple):
    """Samples without weights. If they were drawn by their weights, also the weighted ones
    themselves, and how many independent ones the samples are worth, at most."""

    samples: Samples
    weighted: Samples | None = None
    worth: float | None = None
