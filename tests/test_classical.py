"""Classical samplers: the contract, moments and log Z within their own errors, exact counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, norm, t

from cases import asymmetric
from demx.classical.annealed import Annealed, Smc, ais, smc
from demx.classical.bridge import Islands, Particles, resample
from demx.classical.chains import Hmc, Mala, Metropolis, Nuts, hmc, mala, metropolis, nuts
from demx.classical.importance import Importance, importance, log_ess, tempered
from demx.classical.kernels import Walker
from demx.classical.nested import SHRINKAGES, Nested, evidence, nested, volumes
from demx.classical.tempering import ParallelTempering, parallel_tempering, respaced
from demx.evaluate.evidence import log_z
from demx.evaluate.weights import log_z_is
from demx.methods.tempering import Ladder, geometric_ladder
from demx.space import Euclidean, MeanFree
from demx.targets.function import FunctionTarget
from demx.types import Info, Samples

CHAINS = {"outer_steps": 6, "scale": 1.5, "num_chains": 16, "relax_steps": 10}
PATH = {"outer_steps": 4, "scale": 2.0, "num_rungs": 16, "num_leapfrog": 4, "num_pilot": 64}
# a factory, small settings, and how many samples to draw for their moments
METHODS = {
    "metropolis": (metropolis, Metropolis(**CHAINS, length=40, thin=20), 640),
    "mala": (mala, Mala(**CHAINS, length=40, thin=10), 640),
    "hmc": (hmc, Hmc(**CHAINS, length=20, thin=2, num_leapfrog=4), 640),
    "nuts": (nuts, Nuts(**CHAINS, length=20, thin=1, max_doublings=4), 640),
    "parallel_tempering": (
        parallel_tempering,
        ParallelTempering(**CHAINS, length=20, thin=2, num_rungs=4, beta_min=0.2, num_leapfrog=4),
        640,
    ),
    "importance": (importance, Importance(outer_steps=4, scale=2.0, num_samples=512), 1000),
    "ais": (ais, Annealed(**PATH), 600),
    "smc": (smc, Smc(**PATH), 1030),
    "nested": (nested, Nested(scale=1.0, num_live=64, num_delete=16, moves_per_dof=4.0), 100),
}
EVIDENCE = {
    "ais": lambda scale: (ais, Annealed(outer_steps=5, scale=scale)),
    "smc": lambda scale: (smc, Smc(outer_steps=5, scale=scale)),
    "nested": lambda scale: (nested, Nested(scale=scale / 2)),
}
STIFFNESS = 4.0  # of the cluster: every degree of freedom has variance 1/4


def gaussian(mean, covariance) -> FunctionTarget:
    precision = jnp.asarray(np.linalg.inv(covariance), float)
    centre = jnp.asarray(mean, float)

    def energy(x):
        return 0.5 * (x - centre) @ precision @ (x - centre)

    return FunctionTarget(energy, Euclidean(len(mean)))


def log_z_of(covariance) -> float:
    return 0.5 * np.linalg.slogdet(2 * np.pi * np.asarray(covariance))[1]


MEAN = np.array([1.0, -0.5, 0.3])
COVARIANCE = np.array([[1.0, 0.5, -0.2], [0.5, 2.0, 0.3], [-0.2, 0.3, 0.5]])
TARGETS = {
    "gaussian": gaussian(MEAN, COVARIANCE),
    "cluster": FunctionTarget(lambda x: 0.5 * STIFFNESS * jnp.sum(x**2), MeanFree(3, 2)),
}


def trained(made, key):
    state = made.init(key)
    for i in range(made.outer_steps):
        state, info = made.step(jax.random.fold_in(key, i), state)
    return state, info


def drawn_with_groups(name, made, settings, n, key, state):
    """Samples and the number of the independent group that each belongs to."""
    if name == "nested":  # draws of one run depend on each other
        runs = [made.sample(jax.random.fold_in(key, i), state, n) for i in range(10)]
        x = jnp.concatenate([run.x for run in runs])
        return runs[0]._replace(x=x), np.repeat(np.arange(10), n)
    drawn = made.sample(key, state, n)
    if hasattr(settings, "num_chains"):
        return drawn, np.arange(n) % settings.num_chains
    return drawn, np.arange(n) if drawn.island is None else np.asarray(drawn.island)


def check_means(values, log_weight, groups, want):
    """Weighted means of (n, k) values are `want` (k,): as sure as 4 standard errors are.

    Groups are independent; few of them follow Student's t.
    """
    weight = np.ones(len(values)) if log_weight is None else np.exp(np.asarray(log_weight))
    weight = weight / weight.sum()
    mean = weight @ values
    count = groups.max() + 1
    parts = np.stack([np.bincount(groups, weight * v) for v in (values - mean).T])
    error = np.sqrt((parts**2).sum(axis=1) * count / (count - 1))
    far = t.isf(norm.sf(4), count - 1)
    np.testing.assert_array_less(np.abs(mean - want) / error, far)
    return error


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", METHODS)
def test_contract_and_moments(name, target, key):
    factory, settings, n = METHODS[name]
    space, made = TARGETS[target].space, factory(TARGETS[target], settings)
    shapes = jax.eval_shape(made.init, key)
    state, info = trained(made, key)
    same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), shapes, state)
    assert all(jax.tree.leaves(same))
    assert isinstance(info, Info) and int(info.bad) == 0
    assert all(jnp.isfinite(value) for value in info if value is not None)
    drawn, groups = drawn_with_groups(name, made, settings, n, key, state)
    assert isinstance(drawn, Samples) and drawn.bad == drawn.bad_calls == 0
    assert drawn.x.shape[1:] == space.shape and len(drawn.x) == len(groups)
    np.testing.assert_allclose(space.project(drawn.x), drawn.x, atol=1e-5)
    x = np.asarray(drawn.x, float).reshape(len(groups), -1)
    if target == "gaussian":
        values = np.concatenate([x, (x - MEAN) ** 2], axis=1)
        want = np.concatenate([MEAN, np.diag(COVARIANCE)])
    else:
        values, want = (x**2).sum(axis=1, keepdims=True), np.array([space.dof / STIFFNESS])
    error = check_means(values, drawn.log_weight, groups, want)
    assert (error < 0.5 * np.sqrt(1 + want**2)).all()  # the check above must mean something


@pytest.mark.parametrize("name", METHODS)
def test_the_step_compiles_once(name, key):
    traces = []

    def energy(x):
        traces.append(1)
        return jnp.sum(x**2)

    factory, settings, _ = METHODS[name]
    made = factory(FunctionTarget(energy, Euclidean(2)), settings)
    state, _ = made.step(key, made.init(key))
    first = len(traces)
    for i in range(3):
        state, _ = made.step(jax.random.fold_in(key, i), state)
    assert len(traces) == first


COUNTED = {
    "metropolis": (metropolis, Metropolis(num_chains=3, length=4, thin=2, relax_steps=3)),
    "mala": (mala, Mala(num_chains=3, length=4, thin=2, relax_steps=3)),
    "hmc": (hmc, Hmc(num_chains=3, length=4, thin=2, relax_steps=3, num_leapfrog=2)),
    # one chain: side by side the machine computes, and throws away, what nobody asked for
    "nuts": (nuts, Nuts(num_chains=1, length=6, thin=2, relax_steps=3, max_doublings=3)),
    "parallel_tempering": (
        parallel_tempering,
        ParallelTempering(
            num_chains=2, num_rungs=2, num_leapfrog=2, length=3, thin=2, relax_steps=3
        ),
    ),
    "importance": (importance, Importance(num_samples=4)),
    "ais": (ais, Annealed(num_rungs=3, num_leapfrog=2, num_pilot=8)),
    "smc": (smc, Smc(num_rungs=3, num_leapfrog=2, num_pilot=8)),
    "nested": (nested, Nested(num_live=8, num_delete=1, remaining=0.3, prior_width=2.0)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_energy_calls_are_exact(name, key):
    """Every energy that is evaluated is counted, at init, in a step and while sampling."""
    seen = []

    def energy(x):
        jax.debug.callback(lambda first: seen.append(first), x[0])
        return jnp.sum(x**2)

    def evaluated():
        jax.effects_barrier()
        count = len(seen)
        seen.clear()
        return count

    factory, settings = COUNTED[name]
    made = factory(FunctionTarget(energy, Euclidean(2)), settings)
    state = made.init(key)
    assert evaluated() == made.calls_at_init
    state, info = made.step(key, state)
    calls = made.calls_per_step if info.energy_calls is None else int(info.energy_calls)
    assert evaluated() == calls <= made.calls_per_step
    assert made.sample(key, state, 5).energy_calls == evaluated()


def estimate(name, drawn):
    if name == "nested":
        return drawn.log_z
    island = None if drawn.island is None else np.asarray(drawn.island)
    return log_z_is(np.asarray(drawn.log_weight), island)


@pytest.mark.parametrize("target", ["gaussian", "mixture"])
@pytest.mark.parametrize("name", EVIDENCE)
def test_log_z_within_its_own_error(name, target, key):
    """Of 16 islands (SMC) 4 standard errors mean somewhat more: Student's t."""
    built, want, scale = (
        (TARGETS["gaussian"], log_z_of(COVARIANCE), 2.0)
        if target == "gaussian"
        else (asymmetric(), 0.0, 3.0)
    )
    factory, settings = EVIDENCE[name](scale)
    made = factory(built, settings)
    state, _ = trained(made, key)
    drawn = made.sample(key, state, 1024)
    value, error = estimate(name, drawn)
    far = t.isf(norm.sf(4), 15) if name == "smc" else 4
    assert 0 < error < 0.2 and abs(value - want) < far * error
    if name == "smc":
        assert len(np.unique(drawn.island)) == 16


def test_importance_knows_its_density(key):
    target = TARGETS["cluster"]
    made = importance(target, METHODS["importance"][1])
    state, info = trained(made, key)
    drawn = made.sample_weighted(key, state, 700)  # more than one compiled call has
    assert drawn.energy_calls == 1024 and float(info.ess) > 0.8
    np.testing.assert_allclose(made.log_prob(state, drawn.x), drawn.log_prob, rtol=1e-4, atol=1e-4)
    want = jax.vmap(target.log_density)(drawn.x) - drawn.log_prob
    np.testing.assert_allclose(drawn.log_weight, want, rtol=1e-4, atol=1e-4)
    value, error = log_z_is(np.asarray(drawn.log_weight))
    assert abs(value - 2 * np.log(2 * np.pi / STIFFNESS)) < 4 * error


def test_tempered_weights_have_the_share_asked_for(key):
    log_weight = 8 * jax.random.normal(key, (1000,)).at[:10].set(-jnp.inf)
    share = tempered(log_weight, 0.2)
    assert float(log_ess(log_weight)) < np.log(0.05 * 1000)
    assert abs(1 / float(jnp.sum(share**2)) / 990 - 0.2) < 1e-3
    assert float(jnp.sum(share[:10])) == 0
    even = jnp.zeros(50)
    np.testing.assert_allclose(tempered(even, 0.2), jnp.full(50, 0.02), rtol=1e-6)


def test_resampling_keeps_the_mean_weight_of_an_island(key):
    """And leaves alone an island whose weights are even; nobody of weight 0 survives."""
    log_weight = jnp.concatenate([jnp.asarray([0.0, -jnp.inf, 3.0, -9.0]), 0.1 * jnp.ones(4)])
    u = jnp.arange(8.0)[:, None]
    before = Particles(Walker(u, log_weight, u), log_weight)
    after = resample(key, before, Islands(2, 4, 0.5))
    mean = jax.nn.logsumexp(log_weight[:4]) - jnp.log(4.0)
    np.testing.assert_allclose(after.log_weight[:4], jnp.full(4, mean), rtol=1e-6)
    np.testing.assert_array_equal(after.walker.position[4:], u[4:])
    assert set(np.asarray(after.walker.position[:4, 0])) <= {0.0, 2.0}
    never = resample(key, before, Islands(2, 4, 0.0))
    np.testing.assert_array_equal(never.walker.position, u)


def test_a_respaced_ladder_keeps_its_ends_and_size():
    ladder = geometric_ladder(5, 0.1, 0.3)
    new = respaced(ladder, jnp.asarray([0.6, 0.2, 0.1, 0.1]))
    assert isinstance(new, Ladder) and new.beta.shape == (5,)
    np.testing.assert_allclose(new.beta[jnp.asarray([0, -1])], jnp.asarray([1.0, 0.1]), rtol=1e-5)
    # most rungs go where most was rejected, and step sizes still go like β^{-1/2}
    assert (np.diff(new.beta) < 0).all() and float(new.beta[2]) > float(ladder.beta[1])
    np.testing.assert_allclose(new.step_size, 0.3 / jnp.sqrt(new.beta), rtol=1e-4)


def test_bad_energies_are_counted(key):
    """Half of the plane has no energy: weights are zero there, chains never end there."""
    target = FunctionTarget(
        lambda x: jnp.where(x[0] > 0, jnp.nan, 0.5 * jnp.sum(x**2)), Euclidean(2)
    )
    want = np.log(2 * np.pi) + np.log(0.5)
    for name in ("importance", "ais", "smc"):
        factory, settings, _ = METHODS[name]
        made = factory(target, settings)
        state, info = trained(made, key)
        assert int(info.bad) > 0
        drawn = made.sample(key, state, 1024)
        # resampling leaves out what has no weight
        assert drawn.bad_calls > 0 if name == "smc" else drawn.bad > 0
        assert not np.isnan(np.asarray(drawn.log_weight)).any()
        value, error = estimate(name, drawn)
        # as sure as 4 standard errors are: 1024 samples of SMC are 16 islands, of Student's t
        far = t.isf(norm.sf(4), 15) if name == "smc" else 4
        assert abs(value - want) < far * error
    for name in ("hmc", "parallel_tempering"):
        factory, settings, _ = METHODS[name]
        made = factory(target, settings)
        state, info = trained(made, key)
        drawn = made.sample(key, state, 64)
        assert int(info.bad) > 0 and drawn.bad_calls > 0
        assert (drawn.x[:, 0] <= 0).sum() == 64 - drawn.bad


@pytest.mark.parametrize("name", ["importance", "ais", "smc"])
def test_a_hard_wall_is_no_bad_energy(name, key):
    """E = ∞ on half of the plane: weights of 0 there are right, and so is log Z."""
    target = FunctionTarget(
        lambda x: jnp.where(x[0] > 0, jnp.inf, 0.5 * jnp.sum(x**2)), Euclidean(2)
    )
    factory, settings, _ = METHODS[name]
    made = factory(target, settings)
    state, _ = trained(made, key)
    drawn = made.sample(key, state, 1024)
    assert drawn.bad == 0
    found = log_z(drawn)
    far = t.isf(norm.sf(4), 15) if name == "smc" else 4
    assert abs(found.value - np.log(np.pi)) < far * found.standard_error


def test_volumes_agree_with_blackjax(seed, rng):
    from blackjax.ns.base import NSInfo, StateWithLogLikelihood
    from blackjax.ns.utils import log_weights

    death = np.sort(rng.normal(size=100)).astype(np.float32)
    birth = np.concatenate([np.full(80, np.nan), death[:20]]).astype(np.float32)
    points = StateWithLogLikelihood(*map(jnp.asarray, (death, death, death, birth)))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        theirs = log_weights(jax.random.key(seed), NSInfo(points, None), SHRINKAGES)
    theirs = np.asarray(jax.nn.logsumexp(theirs, axis=0), float)
    ours = np.log(np.exp(volumes(birth, death, seed) + death[:, None]).sum(axis=0))
    # theirs leaves out half of the first shell
    allowed = 1 / len(death) + 4 * np.hypot(ours.std(), theirs.std()) / SHRINKAGES**0.5
    assert abs(ours.mean() - theirs.mean()) < allowed
    assert 0.5 < ours.std() / theirs.std() < 2


def test_a_plateau_has_the_volume_of_its_points(seed):
    """50 of 100 points of the prior lie at -∞; 50 others are born above it, in turn."""
    death = np.concatenate([np.full(50, -np.inf), np.arange(100.0)])
    birth = np.concatenate([np.full(100, np.nan), np.full(50, -np.inf)])
    volume = np.exp(volumes(birth, death, seed))
    np.testing.assert_allclose(volume.sum(axis=0), 1.0)
    plateau = volume[:50].sum(axis=0)
    allowed = 0.5 / 100 + 1 / 101 + 4 * plateau.std() / SHRINKAGES**0.5
    assert abs(plateau.mean() - 0.5) < allowed


def test_points_that_never_left_their_birth_are_among_the_living(seed):
    """Of 2 points one dies at 0; 3 born there never leave: among 2, 4, 3, 2 and 1 living."""
    birth = np.array([np.nan, np.nan, 0.0, 0.0, 0.0])
    death = np.array([0.0, 1.0, 0.0, 0.0, 0.0])
    volume = np.exp(volumes(birth, death, seed))
    np.testing.assert_allclose(volume.sum(axis=0), 1.0)
    # E[U^{1/m}] = m/(m+1); shells end half-way between the neighbours' X
    left = np.cumprod([2 / 3, 4 / 5, 3 / 4, 2 / 3, 1 / 2])
    want = (left[-2] + left[-1]) / 2
    last = volume[1]
    assert abs(last.mean() - want) < 4 * last.std() / SHRINKAGES**0.5


@pytest.mark.parametrize("name", ["metropolis", "mala", "hmc", "nuts"])
def test_a_steep_energy_is_not_a_bad_one(name, key):
    """Proposals that cannot be accepted, at energies that are finite, are no bad calls."""
    target = FunctionTarget(lambda x: 0.5 * jnp.sum((x / 0.02) ** 2), Euclidean(2))
    factory, settings, _ = METHODS[name]
    made = factory(target, settings)
    _, info = made.step(key, made.init(key))
    assert int(info.bad) == 0


def test_evidence_of_a_constant_likelihood():
    """Σ ΔX = 1: log Z is the constant, and every point weighs as its volume."""
    volume = np.log(np.full((4, 3), 0.25))
    value, error, posterior = evidence(volume + 2.0)
    assert abs(value - 2) < 1e-12 and error < 1e-12
    np.testing.assert_allclose(posterior, np.log(np.full(4, 0.25)))


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: Metropolis(scale=0.0), "scale: expected a positive number, got 0.0"),
        (lambda: Mala(num_chains=0), "num_chains: expected at least 1, got 0"),
        (lambda: Hmc(num_leapfrog=0), "num_leapfrog: expected at least 1, got 0"),
        (lambda: Hmc(outer_steps=0), "outer_steps: expected at least 1, got 0"),
        (lambda: Nuts(max_doublings=0), "max_doublings: expected at least 1, got 0"),
        (lambda: ParallelTempering(beta_min=1.0), "beta_min: expected between 0 and 1, got 1.0"),
        (lambda: ParallelTempering(num_rungs=1), "num_rungs: expected at least 2, got 1"),
        (lambda: Importance(least_ess=1.0), "least_ess: expected between 0 and 1, got 1.0"),
        (lambda: Importance(inflation=0.5), "inflation: expected at least 1.0, got 0.5"),
        (lambda: Annealed(num_pilot=1), "num_pilot: expected at least 8, got 1"),
        (lambda: Smc(resample_below=2.0), "resample_below: expected between 0 and 1, got 2.0"),
        (lambda: Smc(num_rungs=1), "num_rungs: expected at least 2, got 1"),
        (lambda: Nested(num_live=10), "num_delete: expected at most half of num_live=10, got 50"),
        (lambda: Nested(remaining=0.0), "remaining: expected between 0 and 1, got 0.0"),
    ],
)
def test_impossible_settings(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_nested_sampling_gives_up_openly(key):
    made = nested(TARGETS["gaussian"], Nested(num_live=20, num_delete=5, max_rounds=1))
    with pytest.raises(Exception, match="after 1 rounds; raise max_rounds"):
        made.sample(key, made.init(key), 5)


def wide_gaussian(dim=10):
    """Standard deviations from 0.4 to 1.6 along random directions, off-centre."""
    rng = np.random.default_rng(7)
    basis, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    covariance = basis @ np.diag(np.linspace(0.4, 1.6, dim) ** 2) @ basis.T
    return gaussian(0.5 * rng.normal(size=dim), covariance), log_z_of(covariance)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gaussian", "mixture"])
@pytest.mark.parametrize("name, runs", [("ais", 100), ("smc", 100), ("nested", 20)])
def test_standard_errors_of_log_z_are_honest(name, runs, target, seed):
    """Within 2 standard errors as often as a normal is, trained anew for every 20 runs.

    An honest method fails in one of 1000 such tests.
    """
    built, want, scale = (
        (*wide_gaussian(), 1.5) if target == "gaussian" else (asymmetric(), 0.0, 3.0)
    )
    factory, settings = EVIDENCE[name](scale)
    made = factory(built, settings)
    scores = []
    for i in range(runs):
        key_train, key_sample = jax.random.split(jax.random.key(1000 * (seed + 1) + i))
        if i % 20 == 0:
            state, _ = trained(made, key_train)
        value, error = estimate(name, made.sample(key_sample, state, 2048))
        scores.append((value - want) / error)
    scores = np.array(scores)
    inside = (np.abs(scores) < 2).sum()
    print(
        f"{name} on {target}: {inside} of {runs} runs within 2 standard errors, "
        f"{scores.mean():.2f} ± {scores.std():.2f}; the last {value:.4f} ± {error:.4f}"
    )
    assert inside >= binom.ppf(1e-3, runs, 1 - 2 * norm.sf(2))
