"""A budget that ends a run early is planned for: the rate falls to 0 with it."""

import math
import time
from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import demx
from demx.budget import Budget, Plan
from demx.methods.training import Fall, Training, falling
from demx.train import Progress, train
from demx.types import Info, Method, Samples

TINY = {
    "draws": {"num_samples": 8},
    "network": {"width": 8, "depth": 1, "embedding": 4},
    "training": {
        "outer_steps": 6, "inner_steps": 2, "batch_size": 8, "new_samples": 8, "schedule": "cosine"
    },
    "buffer": {"capacity": 16},
    "grid": {"num_steps": 4},
    "evaluation": {"every": 0},
}  # fmt: skip


def telling(pause=0.0):
    """A method whose state is (steps made, planned end), which calls 10 energies a step."""

    def step(key, state):
        time.sleep(pause)
        return (state[0] + 1, state[1]), Info(loss=jnp.ones(()))

    return Method(
        lambda key: (jnp.zeros(()), jnp.asarray(100.0)),
        step,
        lambda key, state, n: Samples(jnp.zeros((n, 1))),
        10,
        plan=lambda state, steps: (state[0], jnp.asarray(float(steps))),
    )


class Kept:
    """A keeper in memory."""

    def __init__(self):
        self.found = None

    def save(self, state, header):
        self.found = state, header

    def load(self, like):
        return self.found

    def append(self, metrics, timing): ...
    def rewind(self, step): ...


@pytest.mark.parametrize("warmup, total", [(1, 20), (10, 100)])
def test_the_rate_is_that_of_optax(warmup, total):
    want = optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup, total)
    rise, fall = optax.linear_schedule(0.0, 1.0, warmup), falling(warmup, total)
    state = fall.init(jnp.zeros(1))
    for count in range(total + 3):
        given, state = fall.update(jnp.asarray([float(rise(count))]), state)
        np.testing.assert_allclose(given[0], want(count), atol=1e-6)


def test_a_plan_compiles_nothing_anew():
    fall, traces = falling(1, 100), []

    @jax.jit
    def update(state):
        traces.append(1)
        return fall.update(jnp.ones(1), state)

    chain = (optax.EmptyState(), fall.init(jnp.zeros(1)))
    _, before = update(chain[1])
    training = Training(outer_steps=50, inner_steps=2, schedule="cosine")
    chain = training.planned((chain[0], before), 3)
    assert int(chain[1].total) == 6
    sizes = []
    for _ in range(6):
        size, later = update(chain[1])
        sizes.append(float(size[0]))
        chain = (chain[0], later)
    assert len(traces) == 1
    want = [0.5 * (1 + math.cos(math.pi * (count - 1) / 5)) for count in range(1, 7)]
    np.testing.assert_allclose(sizes, want, atol=1e-6)


@pytest.mark.parametrize(
    "budget, pace, want",
    [
        (Budget(), 1.0, None),
        (Budget(energy_calls=75.0), None, 5),
        (Budget(seconds=10.0), None, None),
        (Budget(seconds=10.0), 2.0, 4),
        (Budget(seconds=10.0, energy_calls=45.0), 2.0, 2),
        (Budget(seconds=1.0), 2.0, 0),
    ],
)
def test_room(budget, pace, want):
    assert budget.room(3.0, 25, 10, pace) == want


def test_calls_are_planned_for_at_once():
    trained = train(telling(), seed=0, outer_steps=100, budget=Budget(energy_calls=55.0))
    assert trained.ended == "budget"
    assert [float(a) for a in trained.state] == [5, 5]


def test_time_is_planned_for_after_the_second_step():
    trained = train(telling(0.05), seed=0, outer_steps=100, budget=Budget(seconds=0.6))
    made, end = (int(a) for a in trained.state)
    # the machine may be slower later than it was at first, never faster than the pause
    assert 2 < made <= end <= 13
    assert trained.progress.plan == Plan(end, Budget(seconds=0.6))


def test_a_budget_with_room_for_all_changes_nothing():
    trained = train(telling(), seed=0, outer_steps=4, budget=Budget(energy_calls=1e6))
    assert trained.ended == "steps"
    assert [float(a) for a in trained.state] == [4, 4]


def test_another_budget_is_planned_for_anew_and_the_same_is_not():
    keeper = Kept()
    for budget, steps in ((35.0, 3), (35.0, 3), (85.0, 8), (5000.0, 20)):
        trained = train(
            telling(), seed=0, outer_steps=20, budget=Budget(energy_calls=budget), keeper=keeper
        )
        assert [float(a) for a in trained.state] == [steps, steps]
    assert trained.ended == "steps"


def test_a_plan_survives_the_header_of_a_checkpoint():
    progress = replace(Progress(), plan=Plan(7, Budget(seconds=60.0)))
    assert Progress.of(asdict(progress)) == progress
    assert Progress.of(asdict(Progress())) == Progress()


@pytest.mark.parametrize("method", ["idem", "pis"])
def test_the_rate_of_a_sampler_falls_to_the_end_of_its_budget(method):
    settings = TINY
    if method == "pis":
        own = {k: v for k, v in TINY["training"].items() if k != "new_samples"}
        settings = {"sampler": own | {"num_steps": 4}, "network": TINY["network"]}
    first = demx.fit("gmm40", method=method, settings=settings, progress=False)
    calls = 3 * first.method.calls_per_step + first.method.calls_at_init
    fitted = demx.fit(
        "gmm40", method=method, settings=settings, budget=f"{calls}calls", progress=False
    )
    falls = [
        leaf
        for leaf in jax.tree.leaves(
            fitted.state.optimiser, is_leaf=lambda leaf: isinstance(leaf, Fall)
        )
        if isinstance(leaf, Fall)
    ]
    assert [(int(fall.count), int(fall.total)) for fall in falls] == [(6, 6)]
