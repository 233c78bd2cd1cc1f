"""The ring, uniform and prioritised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demx.buffer import BUFFERS, Prioritised, Ring
from demx.space import Euclidean

SPACE = Euclidean(1)


def column(values):
    return jnp.asarray(values, float)[:, None]


@pytest.mark.parametrize("name", BUFFERS)
def test_newest_points_stay(name):
    buffer = BUFFERS[name](capacity=5)
    contents = buffer.init(SPACE)
    for start in (0, 3, 6):
        points = column(range(start, start + 3))
        contents = buffer.add(contents, points, points[:, 0])
    assert sorted(contents.points[:, 0].tolist()) == [4, 5, 6, 7, 8]
    contents = buffer.add(contents, column(range(20)), jnp.zeros(20))
    assert sorted(contents.points[:, 0].tolist()) == [15, 16, 17, 18, 19]


@pytest.mark.parametrize("name", BUFFERS)
def test_only_what_was_put_in_comes_out(name, key):
    buffer = BUFFERS[name](capacity=100)
    contents = buffer.add(buffer.init(SPACE), column([3, 4]), jnp.zeros(2))
    drawn = buffer.sample(key, contents, 200)
    assert set(drawn[:, 0].tolist()) == {3.0, 4.0}


def test_counting_never_overflows():
    buffer = Ring(capacity=4)
    contents = buffer.init(SPACE)
    for i in range(50):
        contents = buffer.add(contents, column([i]), jnp.zeros(1))
    assert int(contents.added) < 8
    assert sorted(contents.points[:, 0].tolist()) == [46, 47, 48, 49]


def test_ring_is_uniform(key):
    buffer = Ring(capacity=10)
    contents = buffer.add(buffer.init(SPACE), column(range(10)), jnp.zeros(10))
    drawn = np.asarray(buffer.sample(key, contents, 20_000))[:, 0].astype(int)
    counts = np.bincount(drawn, minlength=10)
    assert (np.abs(counts - 2000) < 4 * (20_000 * 0.1 * 0.9) ** 0.5).all()


def test_priority_follows_rank(key):
    buffer = Prioritised(capacity=6, power=1.0)
    contents = buffer.add(buffer.init(SPACE), column([0, 1, 2]), jnp.array([-5.0, -1.0, -3.0]))
    drawn = np.asarray(buffer.sample(key, contents, 20_000))[:, 0].astype(int)
    want = np.array([1 / 3, 1, 1 / 2]) / (1 + 1 / 2 + 1 / 3)
    error = 4 * (want * (1 - want) / 20_000) ** 0.5
    assert (np.abs(np.bincount(drawn, minlength=3) / 20_000 - want) < error).all()


def test_impossible_buffers():
    with pytest.raises(ValueError, match="capacity: expected at least 1, got 0"):
        Ring(capacity=0)


def test_pure_and_jittable(key):
    buffer = Ring(capacity=8)
    add = jax.jit(buffer.add)
    contents = buffer.init(SPACE)
    after = add(contents, column([1, 2]), jnp.zeros(2))
    assert int(contents.added) == 0 and int(after.added) == 2
