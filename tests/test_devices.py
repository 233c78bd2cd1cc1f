"""Chunks and devices: what is cut, and that nobody's results depend on who computes them."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demx import devices


@pytest.mark.parametrize(
    ("rows", "limit", "expected"),
    [
        (512, 8, 8),
        (512, 1000, 128),
        (128, 1, 1),
        (1000, 16, 10),
        (2, 100, 1),
        (1, 5, 1),
        (997, 16, 1),
    ],
)
def test_chunks_divide_the_rows(rows, limit, expected):
    assert devices.chunk_rows(rows, limit) == expected


def test_mapped_and_summed_chunks():
    numbers = jnp.arange(12.0).reshape(4, 3)
    tripled = devices.map_chunks(lambda factor, c: factor * c, jnp.asarray(3.0), numbers)
    np.testing.assert_allclose(tripled, 3 * numbers)
    total = devices.sum_chunks(lambda f, c: {"sum": f * c}, jnp.asarray(2.0), numbers)
    np.testing.assert_allclose(total["sum"], 2 * numbers.sum(axis=0))


STEP = """
import json, logging, jax, numpy as np
from demx import config, resolve
from demx.methods import regression
regression.MOST = 2 * 8 * (2 * 2 + 5)  # the batches of two of the four inner steps
settings = {
    "draws": {"num_samples": 8}, "buffer": {"kind": "ring", "capacity": 32},
    "training": {"outer_steps": 2, "inner_steps": 4, "batch_size": 8, "new_samples": 8},
    "network": {"width": 8, "depth": 1, "embedding": 8}, "grid": {"num_steps": 4},
    "moves": {"num_steps": 2, "num_leapfrog": 2},
}
target, full = resolve.resolve("gmm40", settings=settings)
method = config.build_method("idem", target, full)
state = method.init(jax.random.key(0))
jax.config.update("jax_log_compiles", True)
programs = {"fill": 0, "prepare": 0, "descend": 0}
class Count(logging.Handler):
    def emit(self, record):
        for name in programs:
            start = f"Finished XLA compilation of jit({name})"
            programs[name] += record.getMessage().startswith(start)
logging.getLogger("jax").addHandler(Count())
for i in range(2):
    state, info = method.step(jax.random.key(i), state)
jax.config.update("jax_log_compiles", False)
drawn = method.sample(jax.random.key(5), state, 8).x
density = method.log_prob(state, drawn[:2])
assert len(drawn.devices()) == 1
print(json.dumps({"devices": jax.local_device_count(), "loss": float(info.loss),
                  "norm": float(info.gradient_norm), "x": np.asarray(drawn).tolist(),
                  "log_prob": np.asarray(density).tolist(), "programs": programs}))
"""


def test_three_devices_give_what_one_gives():
    """Steps, moves, samples and densities, to rounding: a sum over devices has its own.

    Three devices cannot share the chunks equally, which is harder than two. The programs of a
    step, whose batches are made in two parts, are compiled once.
    """
    found = {}
    for count in (1, 3):
        environment = {"JAX_NUM_CPU_DEVICES": str(count), "PATH": ""}
        done = subprocess.run(
            [sys.executable, "-c", STEP], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found[count] = json.loads(done.stdout)
        assert found[count]["devices"] == count
    one, three = found[1], found[3]
    assert three["loss"] == pytest.approx(one["loss"], rel=1e-4)
    assert three["norm"] == pytest.approx(one["norm"], rel=1e-3)
    assert three["log_prob"] == pytest.approx(one["log_prob"], abs=1e-2)
    np.testing.assert_allclose(three["x"], one["x"], atol=1e-3)
    assert one["programs"] == three["programs"] == {"fill": 1, "prepare": 1, "descend": 1}


def test_one_device_needs_no_placement():
    tree = {"a": jnp.ones(3), "b": "text"}
    if jax.local_device_count() == 1:
        assert devices.everywhere(tree) is tree


NESTED = """
import jax, jax.numpy as jnp
from demx import devices
double = devices.compiled(lambda x: 2 * x)
assert jax.local_device_count() == 2
x = jnp.arange(3.0)
inside = jax.jit(lambda x: double(x) + 1)(x)
scanned, _ = jax.lax.scan(lambda c, _: (double(c), None), x, None, length=2)
devices.only_one()
print([a.tolist() for a in (double(x), inside, scanned)])
"""


def test_programs_of_several_devices_may_be_parts_of_others():
    """What is compiled with options of its own is also traced by jit and scan."""
    environment = {"JAX_NUM_CPU_DEVICES": "2", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", NESTED], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[0, 2, 4], [1, 3, 5], [0, 4, 8]]
