"""SOAP: Adam for vectors, unchanged by rotations of a matrix, quick where Adam is slow."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

from demx.methods.soap import EVERY, MEAN, SQUARE, soap
from demx.methods.training import Training

SHAPES = ((6, 4), (5,), (1, 3))


def arrays_of(flat):
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1]
    return [a.reshape(shape) for a, shape in zip(jnp.split(flat, ends), SHAPES, strict=True)]


def constant(rate):
    return lambda count: jnp.asarray(rate, float)


def run(optimiser, gradients, flat):
    state = optimiser.init(flat)
    path = []
    for gradient in gradients:
        with jax.numpy_dtype_promotion("standard"):
            updates, state = jax.jit(optimiser.update)(gradient, state, flat)
        path.append(updates)
    return jnp.stack(path), state


def test_what_is_no_matrix_gets_adam(key):
    gradients = jax.random.normal(key, (2 * EVERY + 3, 32))
    ours, _ = run(soap(constant(0.1), arrays_of), gradients, jnp.zeros(32))
    assert not ours[0].any()  # the first step only makes bases
    ours = ours[1:]
    adams, _ = run(optax.adam(0.1, b1=MEAN, b2=SQUARE), gradients[1:], jnp.zeros(32))
    np.testing.assert_allclose(ours[:, 24:], adams[:, 24:], rtol=1e-4, atol=1e-6)
    assert float(jnp.abs(ours - adams)[:, :24].max()) > 1e-2


def test_a_rotated_matrix_takes_the_rotated_path(key):
    """G → A G B with orthogonal A, B gives A U B; Adam's updates do not turn with it."""
    keys = jax.random.split(key, 3)
    turn_a, turn_b = (jnp.linalg.qr(jax.random.normal(k, (4, 4)))[0] for k in keys[:2])
    # every direction of a size of its own: eigenvectors are well defined
    sizes = jnp.diag(jnp.asarray([1.0, 2.0, 4.0, 8.0]))
    plain = sizes @ jax.random.normal(keys[2], (2 * EVERY, 4, 4)) @ sizes
    turned = turn_a @ plain @ turn_b

    def path(gradients, optimiser):
        updates, _ = run(optimiser, gradients.reshape(-1, 16), jnp.zeros(16))
        return updates.reshape(-1, 4, 4)

    ours, adam = soap(constant(0.1), lambda flat: [flat.reshape(4, 4)]), optax.adam(0.1)
    want = turn_a @ path(plain, ours) @ turn_b
    np.testing.assert_allclose(path(turned, ours), want, atol=1e-3)
    wrong = turn_a @ path(plain, adam) @ turn_b
    assert float(jnp.abs(path(turned, adam) - wrong).max()) > 0.05


def test_quick_where_directions_are_unequal(key):
    """|A (θ - θ*) B|² with eigenvalues over three decades, in a basis that is not the axes'."""
    keys = jax.random.split(key, 4)

    def factor(key, size):
        basis = jnp.linalg.qr(jax.random.normal(key, (size, size)))[0]
        return basis * jnp.logspace(0, -1.5, size)[None] @ basis.T

    a, b = factor(keys[0], 12), factor(keys[1], 8)
    goal = jax.random.normal(keys[2], (12, 8))

    def loss(flat):
        return jnp.sum((a @ (flat.reshape(12, 8) - goal) @ b) ** 2)

    def descend(optimiser):
        def step(carry, _):
            flat, state = carry
            with jax.numpy_dtype_promotion("standard"):
                updates, state = optimiser.update(jax.grad(loss)(flat), state, flat)
            return (flat + updates, state), loss(flat)

        start = jnp.zeros(96)
        return jax.jit(lambda: jax.lax.scan(step, (start, optimiser.init(start)), length=300)[1])()

    rate = optax.cosine_decay_schedule(0.05, 300)
    ours = descend(soap(rate, lambda flat: [flat.reshape(12, 8)]))
    adams = descend(optax.adam(rate))
    assert float(ours[-1]) < 0.1 * float(adams[-1])


def test_an_unknown_optimiser():
    with pytest.raises(ValueError, match="expected 'adam' or 'soap', got 'sgd'"):
        Training(optimiser="sgd")


def matrices_of(jaxpr):
    """Ranks of what is decomposed, in a program and in the programs inside it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("eigh", "geqrf", "householder_product", "qr"):
            yield equation.invars[0].aval.ndim
        for inner in jaxprs_in_params(equation.params):
            yield from matrices_of(inner)


def test_matrices_are_decomposed_one_at_a_time():
    """A batch is shared out over threads, which on several devices may all wait for each other."""
    optimiser = soap(constant(0.1), arrays_of)
    state = optimiser.init(jnp.zeros(32))
    with jax.numpy_dtype_promotion("standard"):
        made = jax.make_jaxpr(optimiser.update)(jnp.zeros(32), state, jnp.zeros(32))
    ranks = list(matrices_of(made.jaxpr))
    assert len(ranks) >= 4 and set(ranks) == {2}
