"""Every method keeps the contract: init, step, sample; one compilation; sound counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demx import api, config
from demx.methods import METHODS
from demx.methods.moves import Moves
from demx.methods.strays import Strays
from demx.recipe import rungs
from demx.space import Euclidean
from demx.targets import TARGETS
from demx.targets.function import FunctionTarget
from demx.targets.many_well import many_well
from demx.types import Info, Samples

SMALL = {
    "draws": {"num_samples": 8},
    "training": {"inner_steps": 2, "batch_size": 8, "new_samples": 8, "outer_steps": 3},
    "buffer": {"capacity": 16},
    "grid": {"num_steps": 4},
    "evaluation": {"every": 0},
    "moves": None,
    "strays": None,
    "walk": None,
}
NETWORK = {
    "gmm40": {"width": 8, "depth": 1},
    "dw4": {"width": 8, "depth": 1, "num_basis": 4},
    "lj13": {"kind": "lean", "width": 8, "depth": 1, "num_basis": 4},
}
MATCHING = [name for name, entry in METHODS.items() if entry.matching]
CASES = [(m, t) for m in MATCHING for t in NETWORK]


def small(method, target, **extra):
    settings = config.merge(SMALL, {"network": NETWORK[target]}, extra)
    built, full = api.resolve(target, method=method, settings=settings)
    return built, config.build_method(method, built, full)


@pytest.mark.parametrize("method, name", CASES)
def test_contract(method, name, key):
    target, made = small(method, name)
    state = made.init(key)
    before = jax.tree.leaves(state)
    for i in range(3):
        state, info = made.step(jax.random.fold_in(key, i), state)
    assert isinstance(info, Info)
    assert all(jnp.isfinite(value) for value in info if value is not None)
    assert info.acceptance is None  # there are no moves by default
    # 2 regressions of 8 points with 8 samples each
    assert made.calls_per_step == 2 * 8 * 8
    after = jax.tree.leaves(state)
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    samples = made.sample(key, state, 5)
    assert isinstance(samples, Samples)
    assert samples.x.shape == (5, *target.space.shape)
    assert jnp.isfinite(samples.x).all()
    np.testing.assert_allclose(target.space.project(samples.x), samples.x, atol=1e-4)


def test_moves_bring_points_closer_and_are_counted(key):
    """Points in the buffer have lower energies than without moves; calls are exact."""
    found = {}
    for name, extra in {
        "with": {"moves": {"num_steps": 10, "num_leapfrog": 3}},
        "without": {},
    }.items():
        target, made = small("idem", "lj13", **extra)
        state = made.init(key)
        traces = set()
        for i in range(2):
            traces.add(jax.tree.structure(state))
            state, info = made.step(jax.random.fold_in(key, i), state)
        assert len(traces) == 1
        filled = int(state.contents.size)
        energies = -jax.vmap(target.log_density)(state.contents.points[:filled])
        found[name] = float(jnp.median(energies)), made.calls_per_step, info.acceptance
    assert found["with"][0] < found["without"][0]
    new = SMALL["training"]["new_samples"]
    assert found["with"][1] - found["without"][1] == new * (1 + 10 * 3)
    assert 0 < float(found["with"][2]) <= 1


def test_moves_at_several_temperatures_leave_a_well(key):
    """Points that all begin in the lighter wells leave them as p_0 does, where one rung stays."""
    target = many_well(dim=32)
    start = jnp.zeros((128, 32)).at[:, 0::2].set(-1.7)
    exact = np.mean(np.asarray(target.sample(key, 10_000))[:, 0::2] < 0)

    def light(count):
        moves = Moves(num_steps=400, num_leapfrog=8, rungs=count)
        moved = jax.jit(lambda key, x: moves(key, target, x, jnp.asarray(0.1)))(key, start)
        assert moves.calls(128) == 128 * (1 + count * 400 * 8)
        return np.mean(np.asarray(moved.points)[:, 0::2] < 0), float(moved.traded)

    stayed, none = light(1)
    assert stayed > 0.9 and np.isnan(none)
    left, traded = light(rungs(32))
    assert 0.2 < traded < 0.5
    # 16 independent wells a point; replicas begin at the point, of which e⁻³ is left at most
    assert abs(left - exact) < 4 * (exact * (1 - exact) / (128 * 16)) ** 0.5 + 0.05 * (1 - exact)


def test_enough_temperatures_to_trade_between(key):
    """As many as the recipe takes, neighbours trade a third of the time in any dimension."""
    shares = []
    for dim in (24, 140):
        target = FunctionTarget(lambda x: 0.5 * jnp.sum(x**2), Euclidean(dim))
        moves = Moves(num_steps=100, num_leapfrog=4, rungs=rungs(dim))
        start = jax.random.normal(key, (32, dim))
        moved = jax.jit(lambda key, x, m=moves, t=target: m(key, t, x, jnp.asarray(0.3)))
        shares.append(float(moved(key, start).traded))
    assert all(0.2 < share < 0.5 for share in shares), shares
    assert rungs(32) == 8 and rungs(146) == 16 and rungs(200) == 1


@pytest.mark.parametrize("method", MATCHING)
def test_the_step_compiles_once(method, key):
    """The energy is traced by the first step and by no later one."""
    traces = []

    def energy(x):
        traces.append(1)
        return jnp.sum(x**2)

    settings = config.merge(SMALL, {"network": NETWORK["gmm40"]})
    built, full = api.resolve(energy, dim=2, method=method, settings=settings)
    made = config.build_method(method, built, full)
    state, _ = made.step(key, made.init(key))
    first = len(traces)
    for i in range(3):
        state, _ = made.step(jax.random.fold_in(key, i), state)
    assert len(traces) == first


def test_samples_do_not_depend_on_how_many_are_asked_for(key):
    _, made = small("idem", "gmm40")
    state = made.init(key)
    few, many = made.sample(key, state, 1024).x, made.sample(key, state, 1030).x
    np.testing.assert_array_equal(few, many[:1024])


def test_the_same_key_gives_the_same_run(key):
    _, made = small("idem", "gmm40")
    runs = [made.step(key, made.init(key))[0] for _ in range(2)]
    for a, b in zip(*map(jax.tree.leaves, runs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_warm_start_fills_the_buffer(key):
    built, full = api.resolve("gmm40", settings=SMALL | {"network": NETWORK["gmm40"]})
    points = np.arange(12.0).reshape(6, 2)
    made = config.build_method("idem", built, full, points)
    contents = made.init(key).contents
    assert int(contents.added) == 6
    np.testing.assert_array_equal(contents.points[:6], points)


@pytest.mark.parametrize("rule, evaluations", [("euler", 4), ("midpoint", 7)])
def test_pinned_sampling_counts_its_energy_calls(rule, evaluations, key):
    pin = {"variance": 0.01, "max_norm": 100.0}
    _, made = small("idem", "lj13", pin=pin, rule={"kind": rule})
    state = made.init(key)
    assert made.calls_per_step == 2 * 8 * 8 + 8 * evaluations
    assert made.sample(key, state, 5).energy_calls == 5 * evaluations
    state, info = made.step(key, state)
    assert float(info.loss) > 0 and int(info.bad) == int(info.unusable) == 0
    assert float(info.skipped) == 0


@pytest.mark.parametrize(
    "extra",
    [
        {"estimator": {"kind": "mixed", "local_variance": 1.0, "wrap": ["conditional"]}},
        {"estimator": {"kind": "log_sum_exp", "wrap": ["richardson"]}},
        {"buffer": {"kind": "prioritised", "capacity": 16}},
        {"precondition": {"kind": "plain"}, "clip": {"max_norm": 70.0}},
        {"noise": {"kind": "linear", "sigma_max": 20.0}},
        {"noise": {"kind": "variance_preserving"}},
        {"rule": {"kind": "euler"}, "training": {"exploration": 0.9}},
        {"draws": {"shared": False, "antithetic": False}},
        {"training": {"prior_fraction": 0.5, "schedule": "cosine"}},
    ],
    ids=lambda e: "-".join(e),
)
def test_every_variant_trains(extra, key):
    _, made = small("idem", "gmm40", **extra)
    _, info = made.step(key, made.init(key))
    assert float(info.loss) > 0 and int(info.bad) == int(info.unusable) == 0
    assert float(info.skipped) == 0


def test_the_papers_own_settings_train(key):
    """EGNN, plain score, Euler with 1000 steps cut to 4, clip 20, loss weight 1."""
    settings = config.merge(
        SMALL,
        {
            "network": {"kind": "egnn", "width": 8, "depth": 2},
            "precondition": {"kind": "plain"},
            "estimator": {"kind": "log_sum_exp"},
            "noise": {"kind": "geometric", "sigma_min": 0.01, "sigma_max": 2.0},
            "clip": {"max_norm": 20.0, "max_sigmas": float("inf")},
            "rule": {"kind": "euler"},
            "grid": {"spacing": "uniform"},
            "training": {"exploration": 0.9, "gradient_clip": 0.5, "prior_fraction": 0.0},
        },
    )
    built, full = api.resolve("lj13", settings=settings)
    made = config.build_method("idem", built, full)
    _, info = made.step(key, made.init(key))
    assert float(info.loss) > 0 and int(info.bad) == int(info.unusable) == 0
    assert float(info.skipped) == 0


def test_log_prob_and_weights_agree(key):
    target, made = small("idem", "gmm40")
    state = made.init(key)
    drawn = made.sample_weighted(key, state, 20)
    again = made.log_prob(state, drawn.x)
    np.testing.assert_allclose(drawn.log_prob, again, atol=2e-2)
    exact = jax.vmap(target.log_density)(drawn.x)
    np.testing.assert_allclose(drawn.log_weight, exact - drawn.log_prob, rtol=1e-3, atol=1e-2)
    # before training the model is the Gaussian N(0, 22²): its density is known
    want = -0.5 * jnp.sum(drawn.x**2, 1) / 22.0**2 - jnp.log(2 * jnp.pi * 22.0**2)
    np.testing.assert_allclose(drawn.log_prob, want, atol=2e-2)


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_resolves(name):
    needed = {"lennard_jones": {"num_particles": 3}, "double_well": {"num_particles": 3}}
    settings = {"target": needed[name]} if name in needed else {}
    built, full = api.resolve(name, settings=settings)
    config.build_method("idem", built, full)


def test_strays_lie_further_out_and_forget_x_0_at_low_noise(key):
    """κ is 1 or between near and far, in the share asked for; x_0 becomes nan only for strays."""
    strays, count = Strays(share=0.3, near=1.5, far=3.0, local_sigma=0.5), 20_000
    factor = np.asarray(strays.factors(key, count))
    out = factor > 1
    assert abs(out.mean() - 0.3) < 4 * (0.3 * 0.7 / count) ** 0.5
    assert factor[out].min() >= 1.5 and factor[out].max() < 3.0
    variance = jnp.where(jnp.arange(count) % 2 == 0, 0.01, 1.0)
    kept = strays.origins(jnp.ones((count, 2)), jnp.asarray(factor), variance)
    forgotten = np.isnan(np.asarray(kept)).all(axis=1)
    assert (forgotten == (out & (np.arange(count) % 2 == 0))).all()


def test_with_strays_every_target_is_still_usable(key):
    _, made = small("idem", "lj13", strays={"share": 0.5}, estimator={"wrap": ["conditional"]})
    _, info = made.step(key, made.init(key))
    assert int(info.unusable) == 0 and int(info.bad) == 0 and jnp.isfinite(info.loss)


def test_points_of_the_prior_are_not_kept(key):
    """Keeping x_0 changes the targets of points of the buffer, not those of points of the prior."""

    def loss(share, wrap):
        training = {"prior_fraction": share}
        # noise of its own for each point, whatever the estimator: only x_0 makes a difference
        changes = {"training": training, "draws": {"shared": False}}
        _, made = small("idem", "dw4", estimator={"wrap": wrap}, **changes)
        return float(made.step(key, made.init(key))[1].loss)

    assert loss(1.0, ["conditional"]) == pytest.approx(loss(1.0, []), rel=1e-5)
    assert loss(0.0, ["conditional"]) != pytest.approx(loss(0.0, []), rel=1e-2)


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: Strays(share=1.5), "share between 0 and 1"),
        (lambda: Strays(near=0.9), "1 < near < far"),
        (lambda: Strays(near=3.0, far=2.0), "near=3.0, far=2.0"),
        (lambda: Moves(num_steps=1), "expected num_steps >= 2"),
        (lambda: Moves(rungs=0), "rungs: expected at least 1, got 0"),
        (lambda: Moves(rungs=2, beta_min=1.0), "beta_min: expected between 0 and 1, got 1.0"),
    ],
)
def test_impossible_moves_and_strays(make, match):
    with pytest.raises(ValueError, match=match):
        make()
