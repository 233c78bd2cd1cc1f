"""A budget that ends a run early is planned for: the rate falls to 0 with it."""

import itertools
import math
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import demx
from demx import interruption
from demx import train as training_loop
from demx.budget import Budget, Looks
from demx.methods.training import Fall, Training, falling
from demx.train import train
from demx.types import Info, Method, Samples
from demx.watch import Stopping

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


def telling(clock=None, first=()):
    """A method whose state is (steps made, planned ends), which calls 10 energies a step.

    On the clock its first steps take the given seconds, later ones 1 s.
    """

    def step(key, state):
        made, ends = state
        if clock is not None:
            clock[0] += first[made] if made < len(first) else 1.0
        return (made + 1, ends), Info(loss=jnp.ones(()))

    return Method(
        lambda key: (0, ()),
        step,
        lambda key, state, n: Samples(jnp.zeros((n, 1))),
        10,
        plan=lambda state, steps: (state[0], (*state[1], steps)),
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
    want = [0.5 * (1 + math.cos(math.pi * count / 6)) for count in range(1, 7)]
    np.testing.assert_allclose(sizes, want, atol=1e-6)


@pytest.mark.parametrize(
    "budget, pace, grace, want",
    [
        (Budget(), 1.0, None, math.inf),
        (Budget(energy_calls=75.0), None, None, 5),
        (Budget(seconds=10.0), None, None, math.inf),
        (Budget(seconds=10.0, energy_calls=75.0), None, None, 5),
        (Budget(seconds=10.0), 2.0, None, 4),  # the fourth ends after 11 s
        (Budget(seconds=10.0), 2.0, 0.1, 4),
        (Budget(seconds=10.0), 2.1, 0.1, 3),  # a fourth would be given up
        (Budget(seconds=10.0, energy_calls=45.0), 2.0, None, 2),
        (Budget(seconds=1.0), 2.0, None, 0),
    ],
)
def test_room(budget, pace, grace, want):
    assert budget.room(3.0, 25, 10, pace, grace) == want


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `telling` moves."""
    now = [0.0]
    monkeypatch.setattr(interruption, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def ends(trained):
    """The planned ends that the steps were made with."""
    return [int(end) for end in trained.state[1]]


def test_calls_are_planned_for_at_once():
    trained = train(telling(), seed=0, outer_steps=100, budget=Budget(energy_calls=55.0))
    assert trained.ended == "budget"
    assert ends(trained) == [5] * 5


def test_time_is_planned_for_by_the_pace_so_far(clock):
    """The first step compiles, 5 s; then each takes 1 s, but for the second, 4 s."""
    method = telling(clock, [5.0, 4.0])
    trained = train(method, seed=0, outer_steps=100, budget=Budget(seconds=30.0))
    found = ends(trained)
    # until the second step has shown a pace no end is known; its slowness is soon forgotten
    assert found[:2] == [100, 100]
    assert found[2] == 2 + math.ceil((30 - 9) / 4)
    assert found[3] == 3 + math.ceil((30 - 10) / 2.5)
    assert trained.ended == "budget" and len(found) == found[-1] == 23
    assert clock[0] == 30.0  # all of it was used


def test_a_larger_budget_is_planned_for_at_once(clock):
    keeper = Kept()
    method = telling(clock, [5.0])
    for seconds, last in ((20.0, 16), (30.0, 26)):
        trained = train(
            method, seed=0, outer_steps=100, budget=Budget(seconds=seconds), keeper=keeper
        )
        assert len(ends(trained)) == last
    # the first of the second run is planned by the pace of the first run
    assert ends(trained)[16:] == [26] * 10


def test_a_step_that_would_be_given_up_is_not_begun(clock):
    class Stoppable:
        points = 0

        def stopping(self, over):
            return nullcontext()

    trained = train(
        telling(clock, [3.3] * 9), seed=0, outer_steps=9, budget=Budget(seconds=11.5),
        energy=Stoppable(),
    )  # fmt: skip
    assert trained.ended == "budget" and ends(trained) == [9, 9, 3]


def test_without_a_budget_all_steps_are_the_plan_also_if_there_are_more_than_before():
    keeper = Kept()
    for steps in (4, 10):
        trained = train(telling(), seed=0, outer_steps=steps, keeper=keeper)
    assert trained.ended == "steps" and ends(trained) == [4] * 4 + [10] * 6


@pytest.mark.parametrize("method, last", [(telling(), 22), (telling()._replace(plan=None), 20)])
def test_a_run_that_has_converged_lets_its_rate_fall(method, last):
    looks = lambda key, state: ({"validation": 1.0}, 0)  # noqa: E731
    trained = train(
        method, seed=0, outer_steps=100, evaluate=looks, every=2, stopping=Stopping(patience=7)
    )
    # the third look is the first with a mean; seven more bring nothing
    assert trained.ended == "converged" and trained.progress.step == last
    if method.plan is not None:
        assert ends(trained) == [100] * 20 + [22] * 2


def test_the_end_is_looked_at():
    steps = []

    def look(key, state):
        steps.append(int(state[0]))
        return {"validation": 1.0}, 0

    budget = Budget(energy_calls=75.0)
    train(telling(), seed=0, outer_steps=100, budget=budget, evaluate=look, every=5)
    assert steps == [5, 7]


def looked_at(calls, known, every=2, keeper=None, cost=15):
    """A training of 10 calls a step, with looks that take so many, in a budget of `calls`."""
    looks = lambda key, state: ({"validation": 1.0}, cost)  # noqa: E731
    return train(
        telling(), seed=0, outer_steps=100, budget=Budget(energy_calls=float(calls)),
        evaluate=looks, every=every, look_calls=cost if known else 0, keeper=keeper,
    )  # fmt: skip


@pytest.mark.parametrize("calls", [39, 40, 60, 193, 199, 200, 207, 210, 214])
def test_looks_are_within_the_budget(calls):
    for known in (True, False):
        trained = looked_at(calls, known)
        p, steps = trained.progress, trained.progress.step
        assert trained.ended == "budget" and p.kept == steps
        assert p.energy_calls == 10 * steps and p.evaluation_calls == 15 * math.ceil(steps / 2)
        # neither more than that, nor room for another step and what it changes of the looks
        assert p.all_calls <= calls < 10 * (steps + 1) + 15 * math.ceil((steps + 1) / 2)
        before = 2 if not known else 0  # nothing is known of looks before the first
        assert ends(trained)[before:] == [steps] * (steps - before)


@pytest.mark.parametrize("cost", [3, 15, 40, 90])
def test_a_larger_budget_trains_hardly_less(cost):
    """Not by more than half where looks begin to be affordable, and a step is always made."""
    steps = [looked_at(calls, True, cost=cost).progress.step for calls in range(10, 400, 10)]
    assert min(steps) >= 1
    assert all(after >= before // 2 for before, after in itertools.pairwise(steps))


def test_a_budget_may_be_larger_than_numbers_of_the_machine():
    assert Budget(energy_calls=1e30).room(0.0, 0, 10, None, None, Looks(5, 100)) > 1e12


def test_looks_that_would_take_most_of_a_budget_are_not_made():
    p = looked_at(65, True, cost=40).progress
    assert (p.step, p.kept, p.evaluation_calls) == (6, 6, 0)
    # of which nothing was known: the one that was made decides what is kept
    p = looked_at(65, False, cost=40).progress
    assert (p.step, p.kept, p.evaluation_calls) == (2, 2, 40)


def test_a_run_that_a_budget_ended_between_two_looks_goes_on_as_far_as_one_at_once():
    """It has had one look more: at the end of the first budget."""
    keeper = Kept()
    assert looked_at(65, True, every=20, keeper=keeper, cost=30).progress.step == 3
    for _ in range(2):  # the second time there is nothing to do
        later = looked_at(2030, True, every=20, keeper=keeper, cost=30)
        at_once = looked_at(2000, True, every=20, cost=30)
        assert later.progress.step == at_once.progress.step
        assert later.progress.end == later.progress.step
    assert set(ends(later)[3:]) == {later.progress.step}


def test_a_run_with_a_budget_of_calls_that_is_interrupted_goes_on_to_the_bit(tmp_path, monkeypatch):
    settings = TINY | {"evaluation": {"every": 2, "n": 20}}
    free = demx.fit("gmm40", settings=settings, progress=False)
    calls = 5 * free.method.calls_per_step + free.progress.evaluation_calls  # of three looks

    def fit(directory):
        return demx.fit(
            "gmm40", settings=settings, directory=directory, budget=f"{calls}calls", progress=False
        )

    whole = fit(tmp_path / "whole")
    asked = []

    @contextmanager
    def impatient(acknowledge):
        begun = len(asked)
        yield lambda: asked.append(1) or len(asked) - begun > 2

    monkeypatch.setattr(training_loop, "stop_requested", impatient)
    ended = []
    while not ended or ended[-1] == "interrupted":
        parts = fit(tmp_path / "parts")
        ended.append(parts.ended)
    assert len(ended) > 2 and ended[-1] == whole.ended == "budget"
    for a, b in zip(*(jax.tree.leaves(f.state) for f in (whole, parts)), strict=True):
        np.testing.assert_array_equal(a, b)
    metrics = [(tmp_path / d / "metrics.jsonl").read_bytes() for d in ("whole", "parts")]
    assert metrics[0] == metrics[1]
    loaded = demx.load(tmp_path / "parts")
    np.testing.assert_array_equal(loaded.sample(5).x, whole.sample(5).x)


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
