"""The recipe: a probe finds two lengths of an energy, and settings follow from them."""

import jax.numpy as jnp
import pytest

from demx import config, resolve
from demx.budget import Budget
from demx.errors import UserError
from demx.measurement import BATCH
from demx.noise import Geometric
from demx.recipe import LOOPS, Probe, affordable, probe, settings
from demx.resolve import _affordable_sections, named_target
from demx.sde import Grid, Midpoint, reverse
from demx.space import Euclidean, MeanFree
from demx.space import normal as gaussian
from demx.targets.function import CALLS, FunctionTarget

ONE_LOOK = 64 * (100 + 1 + 1 + 40 * 4)  # descent, slopes, start of the moves, moves
TIMED = 3 * BATCH  # what a call takes


def normal(x):
    """Standard deviation 0.3, off the origin."""
    return jnp.sum((x - 1.0) ** 2) / (2 * 0.09)


def test_a_probe_finds_the_width_of_modes_and_is_counted():
    built, full = resolve.resolve(normal, dim=3, scale=2.0)
    assert full["estimator"]["kind"] == "mixed"
    # 64 points: the median of χ²_3/3 has a relative error of about 0.1; two digits are kept
    median = (1 - 2 / 27) ** 3
    assert full["estimator"]["local_variance"] == pytest.approx(0.09 / median, rel=0.45)
    assert full["probe_calls"] == ONE_LOOK + CALLS + resolve.FINGERPRINT + TIMED
    made = config.build_method("idem", built, full)
    assert made.calls_at_init == full["probe_calls"]
    plain = {"estimator": {"kind": "log_sum_exp"}}
    assert resolve.resolve(normal, dim=3, settings=plain)[1]["estimator"]["kind"] == "log_sum_exp"


@pytest.mark.parametrize("mean", [0.0, 10.0])
def test_samples_of_a_normal_anywhere(mean, key):
    """Exact score, the settings of the recipe: mean and standard deviation within 4σ and 1 %."""
    n, space = 20_000, Euclidean(2)
    target = FunctionTarget(lambda x: 0.5 * jnp.sum((x - mean) ** 2), space)
    found = settings(space, probe(target))
    noise = Geometric(found["noise"]["sigma_min"], found["noise"]["sigma_max"])
    grid, rule = Grid(**found["grid"]), Midpoint()
    top = noise.variance(jnp.ones(())) + found["precondition"]["sigma_data"] ** 2
    start = jnp.sqrt(top) * gaussian(key, space, (n,))
    score = lambda t, x: (mean - x) / (1 + noise.variance(t))  # noqa: E731
    x = reverse(key, score, noise, space, start, grid.times(noise), rule)
    assert jnp.max(jnp.abs(jnp.mean(x, axis=0) - mean)) < 0.01 + 4 / n**0.5
    assert jnp.max(jnp.abs(jnp.std(x, axis=0) - 1)) < 0.01 + 4 / (2 * n) ** 0.5


@pytest.mark.parametrize(
    "name, spread, narrow",
    # of the exact mixture; of the shipped reference sets; around a mode, over both
    [
        ("gmm40", 23.7, 1.31), ("dw4", 1.95, 0.237), ("lj13", 0.60, 0.077), ("lj55", 1.0, 0.05),
        ("many_well", 1.5, 0.27),
    ],
)  # fmt: skip
def test_the_lengths_of_the_benchmarks_are_found_untold(name, spread, narrow):
    """Within a factor of 1.5: what training forgives."""
    target, full = resolve.resolve(name, recipe=True)
    found = full["precondition"]["sigma_data"]
    assert spread / 1.5 < found < 1.5 * spread
    uses = full["walk"] if name in ("lj13", "lj55", "many_well") else full["estimator"]
    assert narrow / 1.5 < uses["local_variance"] ** 0.5 < 1.5 * narrow
    looks = full["probe_calls"] - TIMED
    assert looks % ONE_LOOK == 0 and looks <= 11 * ONE_LOOK
    assert full["stopping"]["patience"] > 0
    assert config.build_method("idem", target, full).calls_at_init == full["probe_calls"]


def test_points_behind_a_wall_say_nothing():
    """A uniform density in a disc of radius 2: a coordinate has standard deviation 1."""
    inside = lambda x: jnp.where(jnp.sum(x**2) < 4.0, 0.0, jnp.inf)  # noqa: E731
    _, target = named_target(inside, {}, dim=2)
    assert 0.5 < probe(target).spread < 1.5


def test_an_energy_that_does_not_grow_outwards_is_refused():
    _, flat = named_target(lambda x: 0.0 * jnp.sum(x), {}, dim=2)
    with pytest.raises(UserError, match=r"do not come back.*name a scale"):
        probe(flat)


@pytest.mark.parametrize("space", [Euclidean(2), Euclidean(32), MeanFree(13, 3)], ids=str)
def test_settings_scale_with_the_energy(space):
    """All lengths in other units: the same numbers times the unit."""
    one, ten = (settings(space, Probe(0.01 * u**2, 2.0 * u, 0)) for u in (1.0, 10.0))
    assert ten["noise"]["sigma_max"] == pytest.approx(10 * one["noise"]["sigma_max"])
    assert ten["noise"]["sigma_min"] == pytest.approx(10 * one["noise"]["sigma_min"])
    assert ten["grid"]["sigma_last"] == pytest.approx(10 * one["grid"]["sigma_last"])
    assert ten["network"] == one["network"]


def test_calls_of_a_loop_that_a_budget_affords():
    """15 minutes at 0.4 ms are 2.25 million calls, a twentieth 112 500; the power of two below."""
    inf = float("inf")
    assert affordable(900.0, inf, 4e-4) == 2**16
    assert affordable(inf, 20 * 2**16, 1.0) == 2**16  # a budget in calls needs no clock
    assert affordable(inf, inf, 4e-4) == 2**16  # ten minutes
    assert affordable(1.0, inf, 10.0) == 1


def test_loops_of_a_slow_function_in_jax_fit_the_budget(monkeypatch):
    """100 s of 0.1 ms are 50 000 calls a loop, and the power of two below is 2^15."""
    fast = resolve.resolve(normal, dim=3, scale=1.0, budget=Budget(3600.0))[1]
    monkeypatch.setattr(resolve, "seconds_per_call", lambda target, scale: (1e-4, TIMED))
    slow = resolve.resolve(normal, dim=3, scale=1.0, budget=Budget(100.0))[1]
    assert "loop_calls" not in fast and slow["loop_calls"] == 2**15
    calls = lambda full: config.build_method("idem", FunctionTarget(normal, Euclidean(3)), full)  # noqa: E731
    assert calls(slow).calls_per_step <= 2**15 < calls(fast).calls_per_step
    # 60 s of 0.2 µs would be 2^23 calls a loop: full ones, of 2^23.6, are within the slack
    monkeypatch.setattr(resolve, "seconds_per_call", lambda target, scale: (2e-7, TIMED))
    assert "loop_calls" not in resolve.resolve(normal, dim=3, scale=1.0, budget=Budget(60.0))[1]
    again = resolve.resolve(normal, dim=3, scale=1.0, budget=Budget(9000.0), before=slow)[1]
    assert again == slow
    assert resolve.resolve(normal, dim=3, scale=1.0, before=fast)[1] == fast


@pytest.mark.parametrize(
    "space",
    [Euclidean(3), Euclidean(32), MeanFree(4, 3), MeanFree(13, 3), MeanFree(38, 3)],
    ids=str,
)
def test_loops_of_a_black_box_fit_what_it_affords(space):
    target, preset = FunctionTarget(normal, space), settings(space, Probe(0.01, 2.0, 0))

    def sizes(room, given=None):
        full = _affordable_sections("idem", target, preset, given or {}, room)
        return full, config.build_method("idem", target, full).calls_per_step

    largest, most = sizes(10**9)
    assert largest == config.resolve_sections("idem", space, [preset, {}])
    last = most
    for room in (2**18, 2**17, 2**16, 2**15):
        full, calls = sizes(room)
        assert calls <= room and calls <= last
        assert full["training"]["batch_size"] <= largest["training"]["batch_size"]
        last = calls
    _, smallest = sizes(1)
    assert LOOPS * smallest * 4e-4 < 5 * 60  # 20 loops at 0.4 ms a call within five minutes
    full, _ = sizes(1, {"training": {"batch_size": 48}})
    assert full["training"]["batch_size"] == 48  # what a user sets stays
