"""Paths of a controlled process, forward and backward, and their weights.

A process of `demx.methods.processes`, steered by a control f(t, x, score), ends in points whose
weights make them samples of the target, whatever the control.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from demx.energy import evaluate
from demx.methods.control_network import AS_IT_IS, limit
from demx.methods.processes import Process
from demx.methods.steps import Kernels, widened
from demx.space import normal
from demx.types import Target

Drive = Callable[[Kernels, Array, Array], Array]  # f(step, x, score) for one x
LogWidth = Callable[[Array], Array]  # log r(t)


class Path(NamedTuple):
    """Ends of n paths, (n, *shape), their log weights (n,), which of them got lost, and how many
    evaluations were bad. A path that ends outside the support has weight 0, and is not lost."""

    x: Float[Array, "n ..."]
    log_weight: Float[Array, " n"]
    lost: Bool[Array, " n"]
    bad: Int[Array, ""]


class Paths(eqx.Module):
    """The two ways along a process: each is one scan, and n·(K + 1) energy calls for n paths.

    The control is given scores whose vectors (last axis) are at most score_clip/σ long, or so long
    as shifts the normal of a step by push_clip, if that is longer: a first step moves x by about
    σ² f, and the score of a narrow mode would throw it out of all proportion; fine steps can have
    it whole, and need it where particles are close to each other.
    """

    target: Target
    process: Process
    score_clip: float = math.inf
    push_clip: float = 0.0

    def _push(self, kernel: Kernels, drive: Drive, x: Array, score: Array) -> Array:
        """δ of each of n points."""
        fine = self.push_clip * kernel.spread / kernel.gain
        score = limit(score, jnp.maximum(self.score_clip / self.process.scale, fine))
        return kernel.push(jax.vmap(drive, (None, 0, 0))(kernel, x, score))

    def forward(
        self,
        key: PRNGKeyArray,
        drive: Drive,
        n: int,
        *,
        log_width: LogWidth = AS_IT_IS,
        detached: bool = False,
        remat: bool = False,
    ) -> Path:
        """n paths of the sampler.

        log_width: of the noise in units of the process's. detached: x is data; log w depends on
        parameters only through control and width at x. remat: keep only x_k and the scores for a
        derivative, O(K·d), and compute the rest again.
        """
        space = self.target.space
        key_start, key_path = jax.random.split(key)

        def step(carry, now):
            x, total, bad = carry
            key, kernel = now
            found = evaluate(self.target, x)
            score = checkpoint_name(found.score, "score")
            push = self._push(kernel, drive, x, score)
            width = log_width(kernel.time)
            noise = jnp.exp(width) * normal(key, space, (n,))
            drawn = push + noise
            if detached:
                drawn = jax.lax.stop_gradient(drawn)
            x_next = kernel.keep * x + kernel.spread * drawn
            # the noise that leads to x_next, as a function of the parameters
            total = total + self._increments(kernel, x, x_next, drawn - push, push, width)
            return (x_next, total, bad + jnp.sum(found.bad)), None

        if remat:
            keep = jax.checkpoint_policies.save_only_these_names("score")
            step = jax.checkpoint(step, policy=keep, prevent_cse=False)
        x_0 = self.process.start(key_start, space, n)
        keys = jax.random.split(key_path, self.process.num_steps)
        start = (x_0, jnp.zeros(n, x_0.dtype), jnp.zeros((), int))
        (x, total, bad), _ = jax.lax.scan(step, start, (keys, self.process.kernels()))
        return self._weigh(x_0, x, total, bad)

    def backward(
        self,
        key: PRNGKeyArray,
        drive: Drive,
        x: Float[Array, "n ..."],
        *,
        log_width: LogWidth = AS_IT_IS,
    ) -> Path:
        """Paths that end in the given points x_K ~ p: the mean of log w is the EUBO."""
        space, n = self.target.space, x.shape[0]

        def step(carry, now):
            x_next, total, bad = carry
            key, kernel = now
            x = kernel.back * x_next + kernel.back_spread * normal(key, space, (n,))
            found = evaluate(self.target, x)
            push = self._push(kernel, drive, x, found.score)
            noise = (x_next - kernel.keep * x) / kernel.spread - push
            width = log_width(kernel.time)
            total = total + self._increments(kernel, x, x_next, noise, push, width)
            return (x, total, bad + jnp.sum(found.bad)), None

        keys = jax.random.split(key, self.process.num_steps)
        start = (x, jnp.zeros(n, x.dtype), jnp.zeros((), int))
        turns = (keys, self.process.kernels())
        (x_0, total, bad), _ = jax.lax.scan(step, start, turns, reverse=True)
        return self._weigh(x_0, x, total, bad)

    def _increments(
        self, kernel: Kernels, x: Array, x_next: Array, noise: Array, push: Array, width: Array
    ) -> Array:
        of_process = jax.vmap(self.process.increment, (None, 0, 0, 0, 0))
        of_width = jax.vmap(widened, (0, None, None))(noise, width, self.target.space.dof)
        return of_process(kernel, x, x_next, noise, push) + of_width

    def _weigh(self, x_0: Array, x: Array, total: Array, bad: Array) -> Path:
        """log w = log p̃(x_K) - log reference + Σ increments; -∞ for a path that got lost."""
        found = evaluate(self.target, x)
        ends = jax.vmap(self.process.log_reference, (None, 0, 0))(self.target.space, x_0, x)
        log_weight = found.log_density - ends + total
        lost = found.bad | ~jnp.isfinite(total - ends)
        return Path(x, jnp.where(lost, -jnp.inf, log_weight), lost, bad + jnp.sum(lost))
