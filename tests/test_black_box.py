"""Energies on the host: values, gradients, and that every call is counted."""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import demx
from demx import cli, devices, resolve
from demx.drawing import How
from demx.energy import energies, evaluate, evaluate_columns, pointwise
from demx.errors import UserError
from demx.space import Euclidean, normal
from demx.targets.black_box import BlackBox, black_box
from demx.targets.function import FunctionTarget
from hosts import CHAINS, SMALL, bowl, bowls
from untrained import FLAT, untrained


@pytest.fixture(autouse=True)
def all_devices_again(monkeypatch):
    monkeypatch.setitem(devices._use, "all", True)


def same(x):
    return 0.5 * jnp.sum((x - 1.0) ** 2) + 0.1 * jnp.sum(x**4)


KINDS = {
    "one": lambda **where: black_box(bowl, **where),
    "batched": lambda **where: black_box(bowls, batched=True, **where),
    "differences": lambda **where: black_box(lambda x: bowl(x)[0], finite_difference=1e-4, **where),
}


@pytest.mark.parametrize("where", [{"dim": 3}, {"particles": (4, 2)}], ids=["flat", "particles"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_jax(kind, where, key):
    target = KINDS[kind](**where)
    plain = FunctionTarget(same, target.space)
    x = normal(key, target.space, (5,))
    found, want = jax.jit(evaluate, static_argnums=0)(target, x), evaluate(plain, x)
    np.testing.assert_allclose(found.log_density, want.log_density, rtol=1e-5)
    np.testing.assert_allclose(found.score, want.score, atol=1e-5)
    assert target.calls == 5 * target.calls_per_point
    size = x[0].size
    assert target.calls_per_point == (2 * size + 1 if kind == "differences" else 1)


def test_one_host_call_however_it_is_asked(key):
    """Under jit, vmap and scan; energy with gradient, by any door: one call a point."""
    target = black_box(bowl, dim=3)
    x = normal(key, target.space, (6,))

    def calls(function, *arguments):
        before = target.calls
        jax.block_until_ready(jax.jit(function)(*arguments))
        return target.calls - before

    assert calls(lambda x: energies(target, x), x) == 6
    assert calls(jax.vmap(jax.value_and_grad(target.log_density)), x) == 6
    assert calls(jax.vmap(jax.value_and_grad(pointwise(target))), x) == 6
    assert calls(jax.vmap(jax.grad(target.log_density)), x) == 6
    block = jnp.moveaxis(x.reshape(2, 3, 3), 1, -1)
    assert calls(jax.vmap(lambda c: evaluate_columns(target, c)), block) == 6
    assert calls(lambda x: jax.lax.map(lambda p: evaluate(target, p[None]), x), x) == 6
    want = jax.vmap(jax.grad(lambda p: -same(p)))(x)
    np.testing.assert_allclose(jax.vmap(jax.grad(target.log_density))(x), want, atol=1e-5)


def test_large_batches_are_asked_point_by_point_once(key):
    """Batches beyond the cache are cut into blocks, whose last one is smaller."""
    target, plain = black_box(bowls, dim=165, batched=True), FunctionTarget(same, Euclidean(165))
    for count in (1024, 1000, 397):
        before, x = target.calls, normal(key, target.space, (count,))
        found = jax.jit(jax.vmap(jax.value_and_grad(pointwise(target))))(x)
        want = jax.jit(jax.vmap(jax.value_and_grad(plain.log_density)))(x)
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        assert target.calls - before == count


def test_what_demx_counts_is_what_the_function_saw():
    """Checks, probe, training, looks, samples with weights, corrections, evaluation."""
    target = black_box(bowls, dim=2, batched=True)
    sampler = demx.fit(target, scale=2.0, settings=SMALL, progress=False)
    p = sampler.progress
    assert target.calls == p.energy_calls + p.evaluation_calls
    for how in ({}, {"weights": True}, {"correct": "mala", "correct_steps": 3}):
        before = target.calls
        drawn = sampler.sample(70, **how)
        jax.block_until_ready(drawn.x)
        assert target.calls - before == drawn.energy_calls, how
    before = target.calls
    found = sampler.evaluate(20, repeats=2, likelihood="none")
    assert target.calls - before == found.samples.energy_calls == 40


@pytest.mark.parametrize("pinned", [True, False])
def test_what_samples_will_take_is_known_before(pinned):
    """Of every number of them, also those that end within a chunk."""
    target = black_box(bowls, dim=2, batched=True)
    pin = {"pin": {"variance": 0.5, "max_norm": 10.0}} if pinned else {}
    sampler = untrained(target, {**FLAT, **pin}, scale=2.0)
    weights = not pinned  # a pinned score has none
    for n in (1, 64, 65, 1024, 1030, 2048, 2200):
        told, before = sampler._drawing.calls(n, How(weights)), target.calls
        drawn = sampler.sample(n, weights=weights)
        jax.block_until_ready(drawn.log_weight if weights else drawn.x)
        assert told == drawn.energy_calls == target.calls - before
        assert len(drawn.x) == n and jnp.isfinite(drawn.x).all()
        most = n if weights else (n + 63) * sampler.calls_of(1)  # what fills up a chunk is paid
        assert told <= most


@pytest.mark.parametrize("method", ["metropolis", "hmc", "nuts", "tempering"])
def test_what_chains_count_is_what_the_function_saw(method):
    """Also of NUTS, whose trajectories are of different lengths."""
    target = black_box(bowl, dim=2)
    options = {"scale": 1.0, "settings": CHAINS, "progress": False, "warm_start": np.ones((1, 2))}
    sampler = demx.fit(target, method=method, **options)
    p = sampler.progress
    assert target.calls == p.energy_calls + p.evaluation_calls
    before = target.calls
    drawn = sampler.sample(10)
    jax.block_until_ready(drawn.x)
    assert target.calls - before == drawn.energy_calls


def test_a_first_call_that_loads_something_says_nothing_of_the_others():
    waits = iter([0.3])

    def slow_at_first(x):
        time.sleep(next(waits, 0.0))
        return bowl(x)

    target = black_box(slow_at_first, dim=2)
    energies(target, jnp.ones((1, 2)))
    assert target.seconds_per_point >= 0.3
    energies(target, jnp.ones((5, 2)))
    assert target.seconds_per_point < 0.1


def test_finite_differences_count_each_call():
    target = black_box(lambda x: bowls(x)[0], dim=2, batched=True, finite_difference=1e-3)
    settings = {"sampler": {"num_samples": 32, "outer_steps": 2}, "evaluation": {"every": 0}}
    sampler = demx.fit(target, method="importance", scale=2.0, settings=settings, progress=False)
    assert target.calls == 5 * sampler.progress.energy_calls


def test_one_device_for_energies_on_the_host():
    assert len(devices.local()) == jax.local_device_count()
    black_box(bowl, dim=2)
    assert len(devices.local()) == 1


@pytest.mark.parametrize(
    "function, options, match",
    [
        (lambda x: 3.0, {}, r"expected \(energy, gradient\), got float; .* finite_difference=1e-3"),
        (lambda x: (3.0, x[:1]), {}, r"gradient of shape \(2,\), got \(\) and \(1,\)"),
        (lambda x: (x, x), {}, r"energy of shape \(\) and .* got \(2,\) and \(2,\)"),
        (bowl, {"batched": True}, r"energy of shape \(3,\)"),
        (lambda x: {}["a"], {}, "the function raised KeyError: 'a'"),
    ],
)
def test_what_a_function_can_get_wrong(function, options, match):
    target = black_box(function, dim=2, **options)
    with pytest.raises((UserError, RuntimeError), match=match):
        jax.block_until_ready(energies(target, jnp.ones((3, 2))))


class Unsolved(Exception):
    pass


@pytest.mark.parametrize("batched", [False, True])
def test_calculations_that_fail_are_bad_points(batched):
    """Those that were named; with batches the whole batch. All are counted."""

    def function(x):
        if np.any(x > 2):
            raise Unsolved("no convergence")
        return (bowls if batched else bowl)(x)

    x = jnp.array([[0.0, 1.0], [3.0, 0.0], [1.0, 1.0]])
    target = black_box(function, dim=2, batched=batched, failures=(Unsolved,))
    found = evaluate(target, x)
    assert np.asarray(found.bad).tolist() == ([True] * 3 if batched else [False, True, False])
    assert (target.calls, target.failed) == ((3, 3) if batched else (3, 1))
    with pytest.raises(Exception, match=r"Unsolved: no convergence; .*failures=\(Unsolved,\)"):
        jax.block_until_ready(energies(black_box(function, dim=2, batched=batched), x))


def test_a_run_whose_energy_raises_keeps_what_was_done(tmp_path):
    """Also the loops since its last checkpoint; with the energy mended the run goes on."""
    whole, allowed = black_box(bowl, dim=2), [10**9]

    def fit(target, where):
        return demx.fit(
            target, method="hmc", scale=1.0, settings=CHAINS, directory=tmp_path / where,
            progress=False, warm_start=np.ones((1, 2)),
        )  # fmt: skip

    done = fit(whole, "whole")

    def failing(x):
        allowed[0] -= 1
        if allowed[0] < 0:
            raise Unsolved("no convergence")
        return bowl(x)

    allowed[0] = whole.calls - 1  # in the last loop
    with pytest.raises(UserError, match="the function raised Unsolved: no convergence; if there"):
        fit(black_box(failing, dim=2), "parts")
    lines = (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == done.progress.step - 1 > 0
    allowed[0] = 10**9
    again = fit(black_box(failing, dim=2), "parts")
    np.testing.assert_array_equal(again.sample(5).x, done.sample(5).x)


def test_a_known_structure_is_where_an_energy_is_told_from_others():
    """A calculator may have none for atoms anywhere."""

    def near_three(x):
        if np.abs(x - 3).max() > 2:
            raise Unsolved("too far from the structure")
        return bowl(x - 3)

    class Known(BlackBox):
        start: jax.Array | None = None

    made = black_box(near_three, dim=2)
    target = Known(made.space, made.host, jnp.full((1, 2), 3.0))
    _, about = resolve.resolve(target, method="hmc", scale=1.0, settings=CHAINS)
    assert len(about["fingerprint"]) == 1 + resolve.FINGERPRINT
    with pytest.raises(UserError, match="black box: the function raised Unsolved: too far"):
        resolve.resolve(made, method="hmc", scale=1.0, settings=CHAINS)


@pytest.mark.parametrize("difference", [None, 1e-3])
def test_a_division_by_zero_is_a_bad_point_and_no_warning(difference):
    """NumPy's warnings, which are errors here, do not reach the terminal."""

    def pole(x):
        energy = np.sum(1.0 / np.abs(x))
        return energy if difference else (energy, -np.sign(x) / x**2 * (0.0 / x * 0 + 1))

    target = black_box(pole, dim=2, finite_difference=difference)
    found = evaluate(target, jnp.asarray([[1.0, 2.0], [0.0, 1.0], [jnp.nan, 1.0]]))
    assert float(found.log_density[0]) == pytest.approx(-1.5)
    assert not found.bad[0] and found.bad[2] and not jnp.isfinite(found.log_density[1:]).any()


@pytest.mark.parametrize("batched", [False, True], ids=["one", "batched"])
@pytest.mark.parametrize("difference", [None, 1e-3], ids=["gradient", "differences"])
def test_points_that_are_not_finite_are_bad_and_not_asked(batched, difference):
    """A function that would raise there, as calculators do, does not see them."""
    seen = []

    def careful(x):
        assert np.isfinite(x).all(), "cannot convert float NaN to integer"
        seen.append(len(x) if batched else 1)
        energy, slope = bowls(x) if batched else bowl(x)
        return energy if difference else (energy, slope)

    target = black_box(careful, dim=2, batched=batched, finite_difference=difference)
    points = jnp.asarray([[1.0, 2.0], [jnp.inf, 0.0], [jnp.nan, 1.0], [0.5, 0.5]])
    found = evaluate(target, points)
    assert found.bad.tolist() == [False, True, True, False]
    np.testing.assert_allclose(found.log_density[0], -same(points[0]), rtol=1e-5)
    each = target.calls_per_point
    assert (target.calls, target.unasked, sum(seen)) == (4 * each, 2 * each, 2 * each)
    assert evaluate(target, jnp.full((3, 2), jnp.nan)).bad.all()
    assert target.calls - target.unasked == sum(seen)


def force(x):
    energy, slope = bowl(x)
    return energy, -slope


def first_alone(x):
    """Held by its first particle: not the same when they are exchanged."""
    return np.sum(x**2) + np.sum(x[0] ** 2), 2 * x + 2 * x * (np.arange(len(x)) == 0)[:, None]


@pytest.mark.parametrize(
    "function, where, match",
    [
        (force, {"dim": 3}, "this is the force; return its negative"),
        (lambda x: (bowl(x)[0], 38.7 * bowl(x)[1]), {"dim": 3}, "in the same units"),
        (lambda x: (bowl(x)[0], 0.0 * x), {"dim": 3}, r"expected the gradient .*got 0"),
        (first_alone, {"particles": (4, 2)}, r"turned, reflected or exchanged, got .*species="),
    ],
    ids=["force", "units", "zero", "symmetry"],
)
def test_what_is_not_the_gradient_or_not_symmetric_is_refused_early(function, where, match):
    target = black_box(function, **where)
    with pytest.raises(UserError, match=match):
        demx.fit(target, progress=False)
    assert target.calls <= 12


@pytest.mark.parametrize("name", ["lj13", "dw4", "gmm40"])
def test_what_is_right_passes_the_first_look(name):
    """Also where normal points of particles overlap, and in single precision."""
    plain = resolve.open_target(name, {}).target

    @jax.jit
    def both(x):
        value, slope = jax.value_and_grad(plain.log_density)(x)
        return -value, -slope

    space = plain.space
    where = {"dim": 2} if name == "gmm40" else {"particles": space.shape}
    function = lambda x: tuple(map(np.asarray, both(jnp.asarray(x, float))))  # noqa: E731
    target = black_box(function, **where)
    opened = resolve.open_target(target, {})
    particles = "particles" in where
    assert opened.energy_calls == target.calls == (12 if particles else 10)
    # walls: nothing can be told there, and nothing is said
    walls = black_box(lambda x: (np.inf, 0 * x), dim=2)
    assert resolve.open_target(walls, {}).energy_calls == 10


@pytest.mark.parametrize("zero", [0.0, -2e7])
@pytest.mark.parametrize("method", ["importance", "hmc"])
def test_energies_too_large_for_single_precision_are_warned_of(zero, method, recwarn):
    """x²/2 - 2·10⁷: neighbouring numbers are 2 apart; what is taken off leaves none of it."""
    target = black_box(lambda x: (0.5 * np.sum(x**2) - 2e7, x), dim=2, zero=zero)
    settings = CHAINS if method == "hmc" else {"sampler": {"num_samples": 32, "outer_steps": 1}}
    start = {"warm_start": np.ones((1, 2))} if method == "hmc" else {}
    demx.fit(
        target, method=method, scale=2.0, settings=settings | {"evaluation": {"every": 0}},
        progress=False, **start,
    )  # fmt: skip
    told = [str(w.message) for w in recwarn if "single precision" in str(w.message)]
    assert len(told) == (zero == 0) and all("differ by 2 kT" in t for t in told)
    assert all("black_box(…, zero=-2e+07)" in t for t in told)
    if zero:
        x = jnp.asarray([[0.0, 0.0], [0.1, 0.0]])
        np.testing.assert_allclose(energies(target, x), [0.0, 0.005], atol=1e-7)


def test_a_space_and_a_width_are_needed():
    with pytest.raises(ValueError, match="needs one of dim"):
        black_box(bowl)
    with pytest.raises(UserError, match="finite_difference: expected a positive number, got -1"):
        black_box(bowl, dim=2, finite_difference=-1)
    with pytest.raises(ValueError, match="species: only for particles"):
        black_box(bowl, dim=2, species=(0, 1))


def test_a_mistake_on_the_host_ends_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "from demx.targets.black_box import black_box\ntarget = black_box(lambda x: [][3], dim=2)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["demx", "fit", "mine.py:target", "--quiet"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == (
        "demx: black box: the function raised IndexError: list index out of range; if there is no "
        "energy at some points, return nan there, or say failures=(IndexError,)"
    )


CONTROL = {"outer_steps": 2, "inner_steps": 1, "batch_size": 4, "num_steps": 3}


@pytest.mark.parametrize("method", ["pis", "dds", "dis"])
def test_controls_train_on_host_energies(method):
    settings = {
        "sampler": CONTROL | ({"beta_max": 4.0} if method == "dis" else {}),
        "network": {"width": 4, "depth": 1, "embedding": 4},
        "evaluation": {"every": 0},
    }
    target = black_box(bowl, dim=3)
    fitted = demx.fit(target, method=method, scale=1.0, settings=settings, progress=False)
    p = fitted.progress
    assert target.calls == p.energy_calls + p.evaluation_calls > 0
    settings["sampler"] |= {"loss": "kl"}
    with pytest.raises(UserError, match="black box has no more than gradients; expected log_var"):
        demx.fit(target, method=method, scale=1.0, settings=settings, progress=False)
