"""Loops over slices that XLA can make fast on a CPU.

XLA fuses a slice at a loop's counter into what is computed from it, and the kernel then reads
the counter again for every element: LLVM cannot know that the store of a result does not change
it, and gives up vector instructions. What a branch returns is never fused with what uses it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


def apart(counter: Int[Array, ""], make: Callable[[], Any]) -> Any:
    """make(), stored before it is used. counter: a loop's, at least 0.

    make: without arguments, of arrays that it closes over. Costs a store, and some memory of the
    compiler's: for loops with much arithmetic on long rows.
    """
    shapes = jax.eval_shape(make)
    never = lambda: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)  # noqa: E731
    # always true, but XLA does not know
    return jax.lax.cond(counter >= 0, make, never)
