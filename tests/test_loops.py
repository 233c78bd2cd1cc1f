"""Slices that are stored before they are used."""

import jax
import jax.numpy as jnp
import numpy as np

from demx.loops import apart


def test_what_is_stored_is_what_was_made(key):
    x = jax.random.normal(key, (5, 3))

    def total(x):
        def add(i, sums):
            row, square = apart(i, lambda: (x[i], x[i] ** 2))
            return sums[0] + row, sums[1] + square

        return jax.lax.fori_loop(0, 5, add, (jnp.zeros(3), jnp.zeros(3)))

    for found in (
        total(x),
        jax.jit(total)(x),
        jax.tree.map(lambda a: a[0], jax.vmap(total)(x[None])),
    ):
        np.testing.assert_allclose(found[0], x.sum(axis=0), rtol=1e-5)
        np.testing.assert_allclose(found[1], (x**2).sum(axis=0), rtol=1e-5)


def test_nothing_is_fused_across_a_branch(key):
    """The compiled loop computes from a stored slice: no kernel both slices and multiplies."""

    def total(x):
        def add(i, sums):
            row = apart(i, lambda: jax.lax.dynamic_slice_in_dim(x, i, 1)[0])
            return sums + row * row + jnp.sin(row)

        return jax.lax.fori_loop(0, len(x), add, jnp.zeros(x.shape[1]))

    text = jax.jit(total).lower(jnp.ones((50, 300))).compile().as_text()
    kernels = text.split("\n\n")
    slicing = [k for k in kernels if "dynamic-slice(" in k]
    assert slicing and not any("sine(" in k for k in slicing)
