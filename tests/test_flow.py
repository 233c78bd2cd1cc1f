"""Continuous flows: densities that integrate to one, traces, the subspace, flow matching."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import shaken
from demx import api, config
from demx.evaluate.flow_matching import default_pairing, fit_flow, likelihoods, transported
from demx.flow import PROBES, Flow, log_probs, probes_for, samples
from demx.networks import lean, mlp
from demx.space import Euclidean, MeanFree, log_normal, normal
from demx.targets.gaussian_mixture import GaussianMixture

SPACES_39 = [Euclidean(39), MeanFree(14, 3)]


def two_modes() -> GaussianMixture:
    return GaussianMixture(
        np.array([[1.5, -0.5], [-1.5, 1.0]]), np.array([[0.5, 0.7], [0.8, 0.5]]), [0.7, 0.3]
    )


def tangled(space, key, **options) -> Flow:
    """A velocity that mixes all coordinates, changes with t and has a Jacobian without symmetry."""
    size = int(np.prod(space.shape))
    weight = jax.random.normal(key, (size, size)) / size**0.5

    def velocity(t, x):
        return 0.7 * jnp.sin((1 + t) * (weight @ x.ravel()) + 3 * t).reshape(x.shape)

    return Flow(velocity, space, 1.0, 0.0, 0.8, **options)


def fit_in_the_plane(key, x, progress=None) -> Flow:
    """A short fit with a small network; the same shapes each time, so compiled only once."""
    space = Euclidean(2)
    small = lambda k: mlp(space, k, width=32, depth=2, embedding=8, scale=4.0)  # noqa: E731
    return fit_flow(
        key, x, space, network=small, steps=270, batch_size=128, learning_rate=3e-3,
        tolerance=1e-4, progress=progress,
    )  # fmt: skip


def integral(flow: Flow, reach: float, count: int) -> float:
    """∫ q over a square, by the trapezoidal rule (which is exact to all orders here)."""
    axis = np.linspace(-reach, reach, count)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    values = np.exp(np.asarray(log_probs(flow, jnp.asarray(grid, float)), float))
    return values.sum() * (axis[1] - axis[0]) ** 2


def test_the_density_of_a_random_flow_integrates_to_one(key):
    space = Euclidean(2)
    network = shaken(mlp(space, key, width=16, depth=2, embedding=8, scale=1.0), key)
    flow = Flow(network, space, 1.0, 0.0, 0.8, tolerance=1e-5)
    assert integral(flow, 6.0, 61) == pytest.approx(1, abs=1e-3)


def test_the_density_of_a_fitted_flow_integrates_to_one_and_fits(key):
    target = two_modes()
    flow = fit_in_the_plane(key, target.sample(jax.random.fold_in(key, 1), 20_000))
    assert integral(flow, 6.0, 61) == pytest.approx(1, abs=1e-3)
    x = target.sample(key, 500)
    gained = jax.vmap(target.log_density)(x) - likelihoods(flow, x)
    normal_fit = log_normal_of(flow, x) - likelihoods(flow, x)
    assert -0.02 < float(jnp.mean(gained)) < 0.1
    assert float(jnp.mean(normal_fit)) < -0.2  # it learned more than mean and variance


def log_normal_of(flow: Flow, x):
    centred = x - flow.velocity.mean[None]
    return jax.vmap(lambda y: log_normal(flow.space, y, flow.prior_variance))(centred)


@pytest.mark.parametrize("space", SPACES_39, ids=str)
def test_likelihood_of_a_gaussian_in_39_dimensions(space, key):
    """x = (1-t) z + t a z carries N(0, 1) to N(0, a²), also on the (n-1)·dim-dimensional subspace.

    What the velocity does to the centre of mass must not count.
    """
    a = jnp.linspace(0.4, 2.5, space.shape[-1]).reshape((1,) * (len(space.shape) - 1) + (-1,))
    off = 3.0 if isinstance(space, MeanFree) else 0.0

    def velocity(t, x):
        outside = off + 7 * (x - space.project(x))
        return (a - 1) / (1 + t * (a - 1)) * x + outside

    flow = Flow(velocity, space, 1.0, 0.0, 1.0, tolerance=1e-6)
    x = a[None] * normal(key, space, (30,))
    copies = space.dof / space.shape[-1]
    log_volume = copies * jnp.sum(jnp.log(a))
    want = jax.vmap(lambda y: log_normal(space, y / a, 1.0))(x) - log_volume
    found = likelihoods(flow, x)
    np.testing.assert_allclose(found, want, atol=1e-3)
    assert float(jnp.mean(found)) == pytest.approx(float(jnp.mean(want)), abs=2e-4)


UNLEARNED = 1e-12  # a rate of learning that leaves the network as it is made: 0


@pytest.mark.parametrize("learning_rate", [UNLEARNED, 1e-3])
@pytest.mark.parametrize("space", SPACES_39, ids=str)
def test_a_flow_fitted_to_a_gaussian_in_39_dimensions(space, learning_rate, key):
    """E_p[q/p] = 1, whatever was learned; without the network KL(p|q) is that of mean and variance.

    2n KL has then a χ² law with a degree of freedom for each number fitted, dof + 1 of them, of
    particles, whose mean is known, one. (Particles are not laid onto each other here: that makes a
    flow from a normal to a normal one that has to be learned.)
    """
    key_fit, key_data, key_test = jax.random.split(key, 3)
    n, variance = 100_000, 1.7**2
    x = 1.7 * normal(key_data, space, (n,))
    if isinstance(space, MeanFree):
        x = x + 5.0  # off-centre samples are projected first
        small = lambda k: lean(space, k, width=8, depth=1, num_basis=4)  # noqa: E731
    else:
        small = lambda k: mlp(space, k, width=32, depth=2, embedding=4, scale=1.0)  # noqa: E731
    flow = fit_flow(
        key_fit, x, space, network=small, pairing=transported, steps=200, batch_size=128,
        learning_rate=learning_rate, optimiser="adam",
    )  # fmt: skip
    per_degree = float(jnp.sum(space.project(x) ** 2)) / (n * space.dof)
    assert float(flow.prior_variance) == pytest.approx(per_degree, rel=1e-3)
    y = 1.7 * normal(key_test, space, (32,))
    log_ratio = likelihoods(flow, y) - jax.vmap(lambda z: log_normal(space, z, variance))(y)
    over = np.expm1(np.asarray(log_ratio, float))
    # no term of KL(p|q) = E_p[q/p - 1 - log q/p] is negative
    kl = float(np.mean(over - np.asarray(log_ratio)))
    print(f"E q/p - 1 = {over.mean():.2g} ± {over.std(ddof=1) / 32**0.5:.2g}, KL {kl:.2g}")
    # 1e-4: what the solver's tolerance leaves
    assert abs(over.mean()) < 4 * over.std(ddof=1) / 32**0.5 + 1e-4
    if learning_rate == UNLEARNED:
        fitted = 1 if isinstance(space, MeanFree) else space.dof + 1
        at_most = (fitted + 4 * (2 * fitted) ** 0.5) / (2 * n)
        # 32 terms, each half the square of a nearly normal log ratio
        assert 0 <= kl < at_most * (1 + 4 * (2 / 32) ** 0.5)
    else:
        assert kl > 1e-6  # something was learned, if only noise


@pytest.mark.parametrize("space", [Euclidean(5), MeanFree(4, 2)], ids=str)
def test_hutchinson_is_unbiased(space, key):
    """The mean over 400 draws of two probes is the exact log q within 4 standard errors."""
    exact = tangled(space, key, tolerance=1e-5)
    x = 0.5 * normal(key, space)
    want = float(jax.jit(exact.log_prob)(x))
    noisy = tangled(space, key, tolerance=1e-5, probes=2)
    draws = jax.jit(jax.vmap(noisy.log_prob, (None, 0)))(x, jax.random.split(key, 400))
    spread = float(jnp.std(draws))
    assert spread > 0.01
    assert abs(float(jnp.mean(draws)) - want) < 4 * spread / 20 + 1e-4


def test_hutchinson_needs_a_key():
    flow = Flow(lambda t, x: x, Euclidean(3), 1.0, 0.0, 1.0, probes=2)
    with pytest.raises(ValueError, match="expected a key for the random probes"):
        flow.log_prob(jnp.zeros(3))


def test_a_sampler_of_more_than_200_dimensions_knows_its_density(key):
    """An untrained model is a Gaussian, for which probes of random signs make no error."""
    assert probes_for(Euclidean(200)) is None and probes_for(Euclidean(201)) == PROBES
    settings = {
        "target": {"num_modes": 2, "dim": 201},
        "network": {"width": 4, "depth": 1, "embedding": 2},
        "precondition": {"kind": "denoiser", "sigma_data": 2.0},
        "noise": {"kind": "geometric", "sigma_min": 0.02, "sigma_max": 4.0},
        "grid": {"sigma_last": 0.01},
    }
    target, full = api.resolve("gaussian_mixture", settings=settings)
    made = config.build_method("idem", target, full)
    state = made.init(key)
    drawn = made.sample_weighted(key, state, 3)
    np.testing.assert_allclose(drawn.log_prob, made.log_prob(state, drawn.x), atol=0.05)
    want = jax.vmap(lambda x: log_normal(target.space, x, 4.0))(drawn.x)
    np.testing.assert_allclose(drawn.log_prob, want, atol=0.05)


def test_log_z_of_a_correlated_gaussian(seed, key):
    """log Z = ½ log det 2πΣ + c by the flow's own samples, between ELBO and EUBO."""
    key_fit, key_data, key_own, key_exact = jax.random.split(key, 4)
    factor, space = jnp.asarray([[1.0, 0.0], [0.8, 0.6]]), Euclidean(2)
    inverse = jnp.linalg.inv(factor)
    truth = float(jnp.linalg.slogdet(factor)[1] + jnp.log(2 * jnp.pi)) + 0.7

    def log_density(x):
        return 0.7 - 0.5 * jnp.sum((inverse @ x) ** 2)

    def exact(key, n):
        return normal(key, space, (n,)) @ factor.T

    flow = fit_in_the_plane(key_fit, exact(key_data, 20_000))
    n = 20_000
    x, log_q = samples(flow, key_own, n)
    log_weight = np.asarray(jax.vmap(log_density)(x) - log_q, float)
    weight = np.exp(log_weight - truth)
    error = weight.std() / weight.mean() / n**0.5
    allowed = 2 if seed == 0 else 4
    assert abs(np.log(weight.mean())) < allowed * error
    assert weight.sum() ** 2 / (n * (weight**2).sum()) > 0.9
    y = exact(key_exact, 2000)
    upper = np.asarray(jax.vmap(log_density)(y) - likelihoods(flow, y), float)
    assert log_weight.mean() < truth + 4 * log_weight.std() / n**0.5
    assert upper.mean() > truth - 4 * upper.std() / len(y) ** 0.5
    assert log_weight.mean() < upper.mean()


@pytest.mark.parametrize("space", [Euclidean(2), MeanFree(4, 2)], ids=str)
def test_samples_know_their_density(space, key):
    flow = tangled(space, key, tolerance=1e-6)
    x, log_q = samples(flow, key, 14)
    np.testing.assert_allclose(log_q, log_probs(flow, x), atol=1e-3)
    np.testing.assert_allclose(space.project(x), x, atol=1e-5)
    fewer, _ = samples(flow, key, 8)
    np.testing.assert_allclose(fewer, x[:8], atol=1e-5)


def test_an_unfinished_solution_is_nan_and_alone():
    """dx/dt = 50 x³ leaves every bound in finite time, except from 0."""
    flow = Flow(lambda t, x: 50 * x**3, Euclidean(2), 0.0, 1.0, 1.0)
    found = np.asarray(likelihoods(flow, np.array([[0.0, 0.0], [2.0, 1.0], [0.0, 0.0]])))
    assert np.isnan(found).tolist() == [False, True, False]
    assert found[0] == pytest.approx(-np.log(2 * np.pi), abs=1e-3)


def test_fits_are_determined_by_the_key(key):
    x = two_modes().sample(key, 500)
    seen = []
    report = lambda step, loss: seen.append((step, loss))  # noqa: E731
    one, two = fit_in_the_plane(key, x, report), fit_in_the_plane(key, x, report)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [step for step, _ in seen[:6]] == [50, 100, 150, 200, 250, 300]
    assert seen[:6] == seen[6:]


def test_pairs_are_optimal():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 2, 3)), rng.normal(size=(5, 2, 3))
    least = min(np.sum((x - y[list(p)]) ** 2) for p in itertools.permutations(range(5)))
    assert np.sum((x - transported(x, y)) ** 2) == pytest.approx(least)


@pytest.mark.parametrize("species", [None, (0, 1, 0, 1)])
def test_particles_are_laid_onto_their_partners(species):
    """Shorter paths, and each of a sample's image: the same distances between the same species."""
    rng = np.random.default_rng(0)
    space = MeanFree(4, 3, species)
    x, y = (np.asarray(space.project(jnp.asarray(v))) for v in rng.normal(size=(2, 5, 4, 3)))
    found, plain = default_pairing(space)(x, y), transported(x, y)
    assert (np.sum((x - found) ** 2, (1, 2)) < np.sum((x - plain) ** 2, (1, 2))).all()

    def shape(cluster):
        kinds = np.zeros(4) if species is None else np.array(species)
        first, second = np.triu_indices(4, k=1)
        length = np.linalg.norm(cluster[first] - cluster[second], axis=-1)
        return np.sort(length + 100 * (kinds[first] + kinds[second]))

    for a, b in zip(found, plain, strict=True):
        np.testing.assert_allclose(shape(a), shape(b), atol=1e-5)


def test_impossible_requests(key):
    space = Euclidean(2)
    with pytest.raises(ValueError, match=r"samples: expected shape \(n, \*\(2,\)\), n > 1"):
        fit_flow(key, np.zeros((5, 3)), space)
    with pytest.raises(ValueError, match="samples: expected finite numbers"):
        fit_flow(key, np.array([[0.0, 1.0], [np.nan, 2.0]]), space)
    with pytest.raises(ValueError, match="more than one distinct configuration"):
        fit_flow(key, np.ones((5, 2)), space)
    with pytest.raises(ValueError, match="steps >= 1"):
        fit_flow(key, np.eye(2), space, steps=0)
    with pytest.raises(ValueError, match="probes: expected at least 1"):
        Flow(lambda t, x: x, space, 1.0, 0.0, 1.0, probes=0)
    with pytest.raises(ValueError, match="expected at least 1 point"):
        samples(Flow(lambda t, x: x, space, 1.0, 0.0, 1.0), key, 0)
