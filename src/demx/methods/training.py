"""Sizes, rates and optimiser of the matching engine's two loops."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from demx.methods.soap import soap


class Fall(NamedTuple):
    """Updates made, and those of the whole plan."""

    count: Int[Array, ""]
    total: Int[Array, ""]


def falling(warmup: int, total: int) -> optax.GradientTransformation:
    """Updates times ½(1 + cos πu), u = (count - w)/(total - w) within [0, 1].

    w: the warmup, or a tenth of the plan, if that is less. The plan is part of the state: another
    one compiles nothing anew.
    """

    def init(flat: Array) -> Fall:
        return Fall(jnp.zeros((), int), jnp.asarray(total, int))

    def update(updates: Array, state: Fall, params: Array | None = None):
        begin = jnp.minimum(warmup, state.total // 10)
        done = (state.count - begin).astype(updates.dtype)
        whole = jnp.maximum(state.total - begin, 1).astype(updates.dtype)
        share = 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip(done / whole, 0.0, 1.0)))
        return share * updates, state._replace(count=state.count + 1)

    return optax.GradientTransformation(init, update)


class Training(eqx.Module):
    """Sizes and rates of the two loops.

    outer_steps: outer loops of a whole run. inner_steps: regressions in each (a number with
    many divisors is best: large batches are made for a part of them at a time). new_samples: points
    put into the buffer each time. prior_fraction: share of x_0 drawn from the prior instead of the
    buffer, so that no region is forgotten. exploration: scale of the noise in the outer loop's
    reverse SDE (samples for users are drawn with 1). schedule: 'cosine' falls to zero over the
    whole run, or what its budget has room for, 'constant' stays. optimiser: 'adam', or 'soap'
    (`methods/soap.py`), which needs fewer steps where matrices are small. ema: decay of the
    parameter average that samples are drawn with.
    """

    outer_steps: int = 100
    inner_steps: int = 100
    batch_size: int = 512
    new_samples: int = 512
    prior_fraction: float = 0.0
    exploration: float = 1.0
    learning_rate: float = 1e-3
    schedule: str = "constant"
    gradient_clip: float = 1.0
    optimiser: str = "adam"
    ema: float = 0.999

    def __check_init__(self) -> None:
        for name in ("outer_steps", "inner_steps", "batch_size", "new_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "gradient_clip", "exploration"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a positive number, got {getattr(self, name)}")
        for name in ("prior_fraction", "ema"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected between 0 and 1, got {getattr(self, name)}")
        if self.schedule not in ("cosine", "constant"):
            raise ValueError(f"schedule: expected 'cosine' or 'constant', got {self.schedule!r}")
        if self.optimiser not in ("adam", "soap"):
            raise ValueError(f"optimiser: expected 'adam' or 'soap', got {self.optimiser!r}")

    def transformation(self, model_of: Callable[[Array], eqx.Module]):
        """Of the flat vector of all parameters, of which `model_of` makes a model."""

        def arrays_of(flat: Array) -> list[Array]:
            return jax.tree.leaves(eqx.filter(model_of(flat), eqx.is_inexact_array))

        total = self.outer_steps * self.inner_steps
        warmup = min(100, max(1, total // 10))
        rate = optax.linear_schedule(0.0, self.learning_rate, warmup)
        chosen = soap(rate, arrays_of) if self.optimiser == "soap" else optax.adam(rate)
        chain = [optax.clip_by_global_norm(self.gradient_clip), chosen]
        if self.falls:
            chain.append(falling(warmup, total))
        return optax.chain(*chain)

    @property
    def falls(self) -> bool:
        return self.schedule == "cosine"

    def planned(self, optimiser: optax.OptState, outer_steps: int) -> optax.OptState:
        """The state of the optimiser in a run of so many outer loops."""

        def change(state):
            if not isinstance(state, Fall):
                return state
            total = jnp.asarray(outer_steps * self.inner_steps, state.total.dtype)
            return state._replace(total=total)

        return jax.tree.map(change, optimiser, is_leaf=lambda state: isinstance(state, Fall))
