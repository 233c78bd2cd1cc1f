"""Every target: fused path against autodiff, symmetry, closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import MIXTURES, PARTICLES, TARGETS
from demx.energy import energies, evaluate
from demx.space import Euclidean, normal
from demx.targets import TARGETS as REGISTERED
from demx.targets.double_well import double_well
from demx.targets.function import FunctionTarget, check_energy
from demx.targets.gaussian_mixture import gaussian_mixture, gmm40
from demx.targets.lennard_jones import lennard_jones, lj13, lj55
from demx.targets.many_well import many_well


def test_the_table_covers_the_registry():
    assert set(REGISTERED) <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_the_door_agrees_with_autodiff_in_double_precision(name, key):
    target = TARGETS[name]
    x = 1.5 * normal(key, target.space, (6,))
    found = evaluate(target, x)
    with jax.enable_x64(True):
        double = jax.tree.map(lambda a: a.astype(float) if isinstance(a, jax.Array) else a, target)
        exact, slope = jax.vmap(jax.value_and_grad(double.log_density))(np.asarray(x, float))
        exact, slope = np.asarray(exact), np.asarray(slope)
    assert found.log_density.shape == (6,) and found.score.shape == x.shape
    assert not found.bad.any()
    np.testing.assert_allclose(found.log_density, exact, rtol=2e-4)
    # float32: a force is a sum of large opposite terms, so errors are relative to the largest
    np.testing.assert_allclose(found.score, slope, atol=2e-4 * np.abs(slope).max())


def clouds(target, key, kind):
    """Six configurations: random, with particles on top of each other, far apart, or narrow."""
    x = 1.5 * normal(key, target.space, (6,))
    if kind == "overlapping" and x.ndim == 3:
        x = target.space.project(x.at[:, 1].set(x[:, 0] + 1e-2).at[:, 3].set(x[:, 2]))
    return x * {"far apart": 30.0, "narrow": 0.1}.get(kind, 1.0)


@pytest.mark.parametrize("precision", [64, 32])
@pytest.mark.parametrize("name", TARGETS)
def test_fused_and_generic_paths_agree(name, precision, key):
    """1e-5 in float64, 1e-4 in float32, relative to the largest term of the sum."""
    tolerance = 1e-5 if precision == 64 else 1e-4
    with jax.enable_x64(precision == 64):
        dtype = jnp.float64 if precision == 64 else jnp.float32
        target = jax.tree.map(
            lambda a: a.astype(dtype) if isinstance(a, jax.Array) else a, TARGETS[name]
        )
        generic = FunctionTarget(lambda y: -target.log_density(y), target.space)
        both = jax.jit(lambda x: (evaluate(target, x), evaluate(generic, x)))
        for kind in ("random", "overlapping", "far apart", "narrow"):
            x = jnp.asarray(np.asarray(clouds(TARGETS[name], key, kind)), dtype)
            fused, plain = jax.tree.map(np.asarray, both(x))
            size = 1 + np.abs(plain.log_density)
            assert (np.abs(fused.log_density - plain.log_density) <= tolerance * size).all(), kind
            # forces of one configuration are sums of terms as large as the largest of them
            slope = np.abs(plain.score).reshape(6, -1).max(axis=1)
            gap = np.abs(fused.score - plain.score).reshape(6, -1).max(axis=1)
            assert (gap <= tolerance * (1 + slope)).all(), kind
            assert fused.bad.tolist() == plain.bad.tolist()


@pytest.mark.parametrize("name", PARTICLES)
def test_energy_is_invariant(name, key):
    target = TARGETS[name]
    n, dim = target.space.shape
    key_x, key_turn, key_order = jax.random.split(key, 3)
    x = 1.5 * normal(key_x, target.space)
    turn, _ = jnp.linalg.qr(jax.random.normal(key_turn, (dim, dim)))
    order = jax.random.permutation(key_order, n)
    moved = (x @ turn)[order] + 3.0
    a, b = evaluate(target, x[None]), evaluate(target, moved[None])
    np.testing.assert_allclose(a.log_density, b.log_density, rtol=2e-4)
    want = (a.score[0] @ turn)[order]
    np.testing.assert_allclose(b.score[0], want, atol=3e-3 * float(jnp.abs(want).max()))


def test_lennard_jones_dimer_and_triangle():
    def energy(n, x):
        target = lennard_jones(num_particles=n, trap=1e-9)
        return float(-target.log_density(jnp.asarray(x)))

    pair = [[0.0, 0, 0], [1.0, 0, 0]]
    assert energy(2, pair) == pytest.approx(-2)  # the well: depth ε = 2 at r_m = 1
    triangle = [*pair, [0.5, 3**0.5 / 2, 0]]
    assert energy(3, triangle) == pytest.approx(-6, rel=1e-5)
    with_trap = -lennard_jones(num_particles=2).log_density(jnp.asarray(pair))
    assert float(with_trap) == pytest.approx(-2 + 0.5 * 2 * 0.25)
    papers = lennard_jones(num_particles=2, epsilon=1.0, attraction=1.0, trap=0.5)
    far = jnp.array([[0.0, 0, 0], [2.0, 0, 0]])
    want = 2.0**-12 - 2.0**-6 + 0.5 * 0.5 * 2
    assert float(-papers.log_density(far)) == pytest.approx(want)


def test_double_well_pair():
    target = double_well(num_particles=2, dim=1, a=0.5)
    x = jnp.array([[0.0], [5.0]])  # d - d0 = 1
    assert float(-target.log_density(x)) == pytest.approx(0.5 - 4 + 0.9, rel=1e-5)


@pytest.mark.parametrize("make", [lj13, lj55])
def test_overlapping_particles_stay_finite_and_repel(make):
    target = make()
    x = 1e-3 * normal(jax.random.key(0), target.space, (3,))
    found = evaluate(target, jnp.concatenate([x, jnp.zeros_like(x[:1])]))
    assert not found.bad.any()
    assert (found.log_density < -1e4).all()
    outward = jnp.sum(found.score[:3] * x, axis=(1, 2))
    assert (outward > 0).all()


def test_gmm40_is_the_published_one():
    target = gmm40()
    assert target.modes.shape == (40, 2)
    assert float(jnp.abs(target.modes).max()) <= 40
    assert float(target.scales[0, 0]) == pytest.approx(np.log1p(np.e), rel=1e-6)


@pytest.mark.parametrize("name", [n for n in MIXTURES if TARGETS[n].space.dim == 2])
def test_smoothing_a_mixture_is_convolving_it(name, key):
    """p_v(x) = E p(x + √v ε): the closed form against 200 000 draws, within 4 standard errors."""
    target, v = TARGETS[name], 2.0
    x = target.modes[0] + 1.0
    noise = jax.random.normal(key, (200_000, target.space.dim))
    draws = jnp.exp(-energies(target, x[None] + v**0.5 * noise))
    exact = float(jnp.exp(target.smoothed(v).log_density(x)))
    assert abs(float(jnp.mean(draws)) - exact) < 4 * float(jnp.std(draws)) / len(draws) ** 0.5


@pytest.mark.parametrize("name", [n for n, t in TARGETS.items() if hasattr(t, "sample")])
def test_exact_samples_obey_the_virial_identity(name, key):
    """E[x·∇E] = dof, and any constant shift of the coordinates gives E[∇E] = 0."""
    target, n = TARGETS[name], 20_000
    x = target.sample(key, n)
    score = evaluate(target, x).score
    virial = -jnp.sum(x * score, axis=1)
    assert abs(float(jnp.mean(virial)) - target.space.dof) < 4 * float(jnp.std(virial)) / n**0.5
    error = 4.5 * jnp.std(score, axis=0) / n**0.5
    assert (jnp.abs(jnp.mean(score, axis=0)) < error).all()


def test_many_well_log_z_by_quadrature():
    target, grid = many_well(dim=2), np.linspace(-5, 5, 2001)
    points = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2).astype(np.float32)
    density = np.exp(-np.asarray(energies(target, jnp.asarray(points)), float))
    area = (grid[1] - grid[0]) ** 2
    assert np.log(density.sum() * area) == pytest.approx(target.log_z, abs=1e-4)


def test_a_mixture_in_ten_thousand_dimensions():
    target = gaussian_mixture(dim=10_000)
    found = evaluate(target, target.sample(jax.random.key(0), 3))
    assert not found.bad.any() and jnp.isfinite(found.log_density).all()


def test_bad_points_are_marked_and_weightless():
    target = FunctionTarget(lambda x: jnp.where(x[0] > 0, jnp.nan, x[0] ** 2), Euclidean(1))
    found = evaluate(target, jnp.array([[-1.0], [1.0]]))
    assert found.bad.tolist() == [False, True]
    assert found.log_density.tolist() == [-1.0, -float("inf")]
    assert jnp.isfinite(found.score).all()
    outside = FunctionTarget(lambda x: jnp.where(x[0] > 0, jnp.inf, x[0] ** 2), Euclidean(1))
    assert evaluate(outside, jnp.array([[1.0]])).bad.tolist() == [False]


@pytest.mark.parametrize(
    "energy, match",
    [
        (lambda x: x, r"expected a scalar for one x of shape \(3,\), got shape \(3,\)"),
        (lambda x: jnp.sum(x) * jnp.nan, "expected finite values"),
        (lambda x: float(x[0]), "could not be traced .*wrap it with demx.targets.black_box"),
        (lambda x: jnp.summ(x), r"could not be traced .* in line \d+: module.*; mend it, or name"),
        (lambda x: x[0] ** 2 + x[3] ** 2, r"what one x of shape \(3,\) has not \(IndexError in l"),
        (lambda x: jnp.argmax(x), "floating-point"),
        # seven points of eight have a coordinate below 0
        (lambda x: jnp.sum(jnp.log(x)), r"2[12]\d of 256 .*take a variable that is not"),
    ],
)
def test_energies_that_are_refused(energy, match):
    with pytest.raises(ValueError, match=match):
        check_energy(energy, Euclidean(3))


def test_padded_tables_of_indices_are_no_mistake():
    """An index of N says that there is no neighbour: JAX takes the last one, and it is masked."""
    table = jnp.array([[0, 1, 4, 4], [2, 3, 4, 4]])
    for energy in (
        lambda x: jnp.sum(jnp.where(table < 4, x[table] ** 2, 0)) + x[3],
        lambda x: jnp.sum(jnp.where(table < 4, (2 * jnp.sin(x))[table] ** 2, 0)),
    ):
        check_energy(energy, Euclidean(4))
    with pytest.raises(ValueError, match=r"has not \(IndexError"):
        check_energy(lambda x: jnp.sum(x**2) + jnp.sum(x[:2] * x[4]), Euclidean(4))


def test_some_points_without_a_number_are_warned_of():
    """log(x + 1) at normal points: P(x < -1) = 0.159, of 256 points 41 ± 6."""
    with pytest.warns(UserWarning, match=r"energy: [2-5]\d of 256 .*counted as bad.*logarithm"):
        check_energy(lambda x: x[0] ** 2 + jnp.log(x[0] + 1.0), Euclidean(1))
    # outside the support is no mistake, however much of it
    check_energy(lambda x: jnp.where(x[0] > 1, x[0] ** 2, jnp.inf), Euclidean(1))


@pytest.mark.parametrize("name", ["gmm40", "lj13", "many_well"])
def test_the_door_can_be_differentiated(name, key):
    """Gradients through `evaluate`: of log p̃ it is the score that comes with it."""
    target = TARGETS[name]
    x = normal(key, target.space, (3,))
    slope = jax.grad(lambda x: jnp.sum(evaluate(target, x).log_density))(x)
    score = evaluate(target, x).score
    np.testing.assert_allclose(slope, score, atol=1e-3 * float(jnp.abs(score).max()))


def test_a_fused_path_in_another_layout_is_refused():
    class Rows(FunctionTarget):
        def log_density_and_score(self, xs):  # points first: (N, d)
            return -jnp.sum(xs**2, axis=1), -2 * xs

    target = Rows(lambda x: jnp.sum(x**2), Euclidean(3))
    with pytest.raises(ValueError, match=r"expected shapes \(5,\) and \(3, 5\)"):
        evaluate(target, jnp.ones((5, 3)))
