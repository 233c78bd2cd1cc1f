"""The batches of the inner loop: made before it, in as many parts as memory asks for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demx import config, resolve
from demx.methods import regression
from demx.targets.black_box import black_box

SMALL = {
    "buffer": {"kind": "ring", "capacity": 32},
    "network": {"kind": "lean", "width": 8, "depth": 1},
    "grid": {"num_steps": 4},
    "moves": None,
    "training": {"outer_steps": 2, "inner_steps": 6, "batch_size": 8, "new_samples": 8},
}


def made(walk):
    settings = SMALL if walk else SMALL | {"walk": None, "draws": {"num_samples": 8}}
    target, full = resolve.resolve("lj13", settings=settings)
    return config.build_method("idem", target, full)


@pytest.mark.parametrize("walk", [False, True])
def test_parts_change_nothing(monkeypatch, walk):
    """Six inner steps whose batches are made two at a time: the same numbers, but for rounding.

    Not bit for bit: loops of two and of six turns are other programs. A difference of one in the
    last place, 1.2e-7, grows over walks of a few moves; other draws would differ by order one.
    """

    def stepped():
        method = made(walk)
        return method.step(jax.random.key(1), method.init(jax.random.key(0)))

    whole = stepped()
    numbers = 8 * (2 * 13 * 3 + 5)
    monkeypatch.setattr(regression, "MOST", 2 * numbers + 1)
    calls = []
    batches = regression.Regression.batches
    monkeypatch.setattr(
        regression.Regression,
        "batches",
        lambda self, keys, *rest: calls.append(len(keys)) or batches(self, keys, *rest),
    )
    parts = stepped()
    assert calls == [2]  # traced once, for two batches
    leaves = (jax.tree.leaves(eqx.filter(found, eqx.is_array)) for found in (whole, parts))
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def of_gmm40(size, energy=None):
    target, full = resolve.resolve("gmm40", settings={"draws": {"num_samples": 4}})
    parts = config._parts(target, full)
    same = (energy or target, parts.noise, parts.estimator, parts.draws, parts.buffer)
    prior = lambda key, n: jax.random.normal(key, (n, 2))  # noqa: E731
    return regression.Regression(*same, size, 0.0, prior, lambda v: v)


def test_as_many_together_as_memory_allows(monkeypatch):
    parts = of_gmm40(4)
    monkeypatch.setattr(regression, "MOST", 4 * (2 * 2 + 5) * 10)  # ten batches
    assert [parts.at_once(steps) for steps in (1, 7, 10, 12, 30)] == [1, 7, 10, 6, 10]
    monkeypatch.setattr(regression, "MOST", 3)
    assert parts.at_once(12) == 1


def test_a_function_on_the_host_is_asked_before_every_step():
    """Else a loop could not be stopped while the network learns from batches made before."""
    energy = black_box(lambda x: (0.5 * (x**2).sum(), x), dim=2)
    assert of_gmm40(4, energy).at_once(100) == 1


def test_times_are_stratified_over_the_whole_batch(monkeypatch):
    """One t in each of B equal intervals, although a batch is made in chunks."""
    monkeypatch.setattr(regression, "TOGETHER", 4)
    made = of_gmm40(16)
    points = made.prior(jax.random.key(0), 32)
    contents = made.buffer.add(made.buffer.init(made.target.space), points, jnp.zeros(32))
    batch = made.batch(jax.random.key(1), contents, jnp.zeros(()))
    np.testing.assert_array_equal(np.floor(16 * np.asarray(batch.t)), np.arange(16))
    assert made.calls == 16 * 4 * made.estimator.cost
