"""The parts that are timed: score estimates, networks, inner steps, sampling.

Each function prepares one part and returns a function without arguments that runs it once.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from demx import config, resolve
from demx.devices import chunk_rows, everywhere, map_chunks, sum_chunks
from demx.draws import Draws, estimate_batch
from demx.estimator import LogSumExp
from demx.methods.regression import TOGETHER
from demx.model import ScoreModel
from demx.space import normal
from demx.types import Target

Run = Callable[[], Any]

NOISE = 0.25  # σ² of the estimates that are timed; their cost does not depend on it


def _points(target: Target, batch: int) -> Array:
    return 1.5 * normal(jax.random.key(0), target.space, (batch,))


def estimate(target: Target, batch: int, num_samples: int, own_noise: bool = False) -> Run:
    """S_K as training computes it: fused, chunked, on all devices.

    own_noise: every point draws K normals of its own, as the plain formulation does.
    """
    draws = Draws(num_samples, shared=not own_noise, antithetic=not own_noise)
    x, rows = _points(target, batch), chunk_rows(batch, TOGETHER)
    variance = jnp.full((batch // rows, rows), NOISE)
    xs = x.reshape(batch // rows, rows, *x.shape[1:])

    @eqx.filter_jit
    def run(target, key, xs, variance):
        key_pool, key_points = jax.random.split(key)
        pool = draws.pool(key_pool, target.space)
        keys = jax.random.split(key_points, (batch // rows, rows))

        def some(tree, chunk):
            target, pool = tree
            keys, v, x = chunk
            return estimate_batch(keys, pool, LogSumExp(), draws, target, v, x, x).score

        return map_chunks(some, (target, pool), (keys, variance, xs))

    given = everywhere((target, jax.random.key(1), xs, variance))
    return lambda: run(*given)


def plain_estimate(target: Target, batch: int, num_samples: int) -> Run:
    """S_K as one would first write it: vmap of vmap of value_and_grad, own noise a point."""
    x = _points(target, batch)

    @jax.jit
    def run(key, x):
        noise = jax.random.normal(key, (batch, num_samples, *target.space.shape))
        points = x[:, None] + NOISE**0.5 * target.space.project(noise)
        value, score = jax.vmap(jax.vmap(jax.value_and_grad(target.log_density)))(points)
        return jnp.einsum("bk,bk...->b...", jax.nn.softmax(value, axis=1), score)

    return lambda: run(jax.random.key(1), x)


def _settings(name: str, changes: dict[str, Any], network: dict[str, Any] | None):
    """The preset with changes; another network comes with its own defaults."""
    other = {} if network is None else {"network": network}
    return resolve.resolve(name, settings=changes | other)


def network_gradient(name: str, batch: int, network: dict[str, Any] | None = None) -> Run:
    """One forward and backward pass of the preset's network (or another) over a batch."""
    target, full = _settings(name, {}, network)
    model = config.build_method("idem", target, full).init(jax.random.key(0)).model
    x, rows = _points(target, batch), chunk_rows(batch, model.rows_in_cache)
    xs = x.reshape(batch // rows, rows, *x.shape[1:])

    @eqx.filter_jit
    def run(model: ScoreModel, xs: Array):
        trainable, static = eqx.partition(model, eqx.is_inexact_array)

        def loss(trainable, x):
            score = jax.vmap(eqx.combine(trainable, static), (None, 0))(jnp.asarray(0.5), x)
            return jnp.sum(score**2)

        return sum_chunks(jax.grad(loss), trainable, xs)

    given = everywhere((model, xs))
    return lambda: run(*given)


def inner_step(
    name: str, batch: int, num_samples: int, network: dict[str, Any] | None = None
) -> tuple[Run, int]:
    """A few whole inner steps (noise, estimate, gradient, update); and how many they are."""
    inner = 10
    sizes = {"batch_size": batch, "inner_steps": inner, "new_samples": 2}
    changes = {
        # what is timed is the paper's step: S_K with K samples, Adam
        "walk": None,
        "draws": {"num_samples": num_samples},
        "training": sizes | {"optimiser": "adam"},
        "grid": {"num_steps": 1},
    }
    target, full = _settings(name, changes, network)
    full.pop("moves", None)
    method = config.build_method("idem", target, full)
    state = method.init(jax.random.key(0))
    return (lambda: method.step(jax.random.key(1), state)), inner


def sampling(name: str, n: int) -> Run:
    """n points with the preset's network and grid."""
    target, full = _settings(name, {}, None)
    method = config.build_method("idem", target, full)
    state = method.init(jax.random.key(0))
    return lambda: method.sample(jax.random.key(1), state, n).x
