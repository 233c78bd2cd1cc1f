"""Networks and the preconditioned, pinned, averaged model."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import TARGETS, networks, shaken
from demx.energy import evaluate
from demx.model import Denoiser, Pinned, Plain, ScoreModel, average
from demx.networks import NETWORKS, pairs
from demx.networks.directed import exchange
from demx.noise import Geometric
from demx.space import Euclidean, MeanFree, normal

SPACES = {"euclidean": Euclidean(3), "particles_3d": MeanFree(5, 3), "particles_2d": MeanFree(4, 2)}
CASES = [
    (space, name) for space, value in SPACES.items() for name in networks(value, jax.random.key(0))
]
NOISE = Geometric(0.1, 3.0)


@eqx.filter_jit
def build(space, key):
    return {name: shaken(net, key) for name, net in networks(space, key).items()}


def make(space, name, key):
    return build(SPACES[space], key)[name]


@pytest.mark.parametrize("space, name", CASES)
def test_shapes_gradients_and_dependence(space, name, key):
    net, where = make(space, name, key), SPACES[space]
    x = normal(key, where)
    call = eqx.filter_jit(net)
    out = call(jnp.asarray(0.3), x)
    assert out.shape == where.shape and jnp.isfinite(out).all()
    assert not np.allclose(out, call(jnp.asarray(-0.5), x))  # the noise level matters
    loss = eqx.filter_grad(lambda n: jnp.sum(n(jnp.asarray(0.3), x) ** 2))
    slope = eqx.filter_jit(loss)(net)
    for leaf in jax.tree.leaves(slope):
        assert jnp.isfinite(leaf).all()


@pytest.mark.parametrize("space, name", [c for c in CASES if c[0] != "euclidean"])
def test_equivariance(space, name, key):
    net, where = make(space, name, key), SPACES[space]
    n, dim = where.shape
    keys = jax.random.split(key, 3)
    x = normal(keys[0], where)
    turn, _ = jnp.linalg.qr(jax.random.normal(keys[1], (dim, dim)))
    order = jax.random.permutation(keys[2], n)
    level = jnp.asarray(0.1)
    call = eqx.filter_jit(net)
    want = (call(level, x) @ turn)[order]
    np.testing.assert_allclose(call(level, (x @ turn)[order]), want, atol=2e-5, rtol=1e-3)
    np.testing.assert_allclose(jnp.mean(want, axis=0), 0, atol=1e-5)


@pytest.mark.parametrize("space, name", [c for c in CASES if c[0] != "euclidean"])
def test_overlapping_particles(space, name, key):
    net, where = make(space, name, key), SPACES[space]
    x = jnp.zeros(where.shape)
    size = jax.value_and_grad(lambda x: jnp.sum(net(jnp.asarray(0.0), x) ** 2))
    value, slope = jax.jit(size)(x)
    assert jnp.isfinite(value) and jnp.isfinite(slope).all()


@pytest.mark.parametrize("name", ["lean", "directed", "relaxing"])
def test_no_jump_where_particles_meet(name, key):
    """Through a place where two particles meet the output changes by as little as they move.

    A direction x_ij/|x_ij| would turn round within the step of 1e-3; softened at 0.35 (half the
    noise of level 0) it changes by some 1e-3/0.35 of the turn, so that a tenth of what the output
    changes over a whole softening length bounds the change of one step.
    """
    net, where = make("particles_2d", name, key), SPACES["particles_2d"]
    x, call = normal(key, where), eqx.filter_jit(net)

    def apart(gap):
        return call(jnp.asarray(0.0), where.project(x.at[1].set(x[0]).at[1, 0].add(gap)))

    step = jnp.linalg.norm(apart(5e-4) - apart(-5e-4))
    across = jnp.linalg.norm(apart(0.35) - apart(-0.35))
    assert step < 0.1 * across


def test_particle_networks_refuse_other_spaces(key):
    for name in ("egnn", "lean", "directed", "relaxing"):
        with pytest.raises(ValueError, match="expected a space of particles"):
            NETWORKS[name](Euclidean(3), key)


@pytest.mark.parametrize("space, name", CASES)
def test_an_untrained_denoiser_is_exact_for_a_gaussian(space, name, key):
    where = SPACES[space]
    net = eqx.filter_jit(networks)(where, key)[name]
    if name == "egnn":
        net = jax.tree.map(lambda a: 0 * a if eqx.is_inexact_array(a) else a, net)
    model = ScoreModel(net, Denoiser(1.5), NOISE, where)
    x, t = normal(key, where), jnp.asarray(0.4)
    want = -x / (NOISE.variance(t) + 1.5**2)
    np.testing.assert_allclose(eqx.filter_jit(model)(t, x), want, atol=1e-5)


def test_denoiser_weight_makes_the_loss_one_on_the_network(key):
    """weight·|s - S|² = |F - F*|²: the two ways to write the regression agree."""
    rule, v = Denoiser(0.7), jnp.asarray(0.3)
    f, f_star = jax.random.normal(key, (2, 4))
    difference = rule.out(v) * (f - f_star)
    weighted = rule.weight(v) * jnp.sum(difference**2)
    assert float(weighted) == pytest.approx(float(jnp.sum((f - f_star) ** 2)), rel=1e-5)


def test_plain_is_the_network_itself(key):
    net = make("euclidean", "mlp", key)
    model = ScoreModel(net, Plain(1.0, 1e-3), NOISE, Euclidean(3))
    x, t = jax.random.normal(key, (3,)), jnp.asarray(0.4)
    np.testing.assert_allclose(model(t, x), net(t, x), rtol=1e-6)
    assert float(model.precondition.weight(jnp.asarray(2.0))) == pytest.approx(2.001)


def test_pinning_gives_the_exact_score_as_noise_vanishes(key):
    target = TARGETS["lj13"]
    model = ScoreModel(networks(target.space, key)["lean"], Denoiser(1.0), NOISE, target.space)
    pinned = Pinned(model, target, 0.01, 1e9)
    x = 2 * normal(key, target.space)
    exact = evaluate(target, x[None]).score[0]
    # taking out the mean of 13 forces rounds like 13 of the largest
    rounding = 13 * float(jnp.finfo(exact.dtype).eps * jnp.abs(exact).max())
    np.testing.assert_allclose(pinned(jnp.zeros(()), x), exact, rtol=1e-5, atol=rounding)
    far = pinned(jnp.ones(()), x)
    np.testing.assert_allclose(far, model(jnp.ones(()), x), atol=2e-3 * float(jnp.abs(exact).max()))


def test_average_forgets_its_start_and_then_moves_slowly():
    old, new = jnp.zeros(2), jnp.ones(2)
    assert float(average(old, new, 0.999, jnp.asarray(0))[0]) == pytest.approx(0.9)
    assert float(average(old, new, 0.999, jnp.asarray(10**6))[0]) == pytest.approx(0.001, rel=1e-3)


def close(naive, paired, *arguments):
    """The same values, and the same slopes of a scalar made of them, in every argument."""
    flat = lambda made: jnp.concatenate([a.ravel() for a in jax.tree.leaves(made)])  # noqa: E731
    np.testing.assert_allclose(flat(paired(*arguments)), flat(naive(*arguments)), atol=1e-5)
    for place in range(len(arguments)):
        a, b = (
            jax.grad(lambda *p, f=f: jnp.sum(jnp.sin(flat(f(*p)))), place)(*arguments)
            for f in (naive, paired)
        )
        np.testing.assert_allclose(b, a, atol=1e-4, rtol=1e-4)


def dense(x, weight):
    """All ordered pairs: filters cos(r²) w, 0 on the diagonal, and x_ij."""
    n, difference = x.shape[0], x[:, None] - x[None]
    r2 = jnp.sum(difference**2, axis=-1, keepdims=True)
    apart = (1 - jnp.eye(n))[..., None]
    return apart * jnp.cos(r2) * weight[None, None], difference


def once(x, weight):
    """The same of every pair once."""
    difference = pairs.differences(x)
    r2 = jnp.sum(difference**2, axis=-1, keepdims=True)
    share = pairs.shares(x.shape[0])[:, None, None]
    return jnp.cos(r2) * weight[None, None] * share, difference


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 13])
def test_every_pair_is_met_once(n, key):
    """Messages and read-outs over cyclic offsets are those over all i ≠ j, and so their slopes."""
    keys = jax.random.split(key, 4)
    x, weight = jax.random.normal(keys[0], (n, 3)), jax.random.normal(keys[1], (5,))
    v, w = jax.random.normal(keys[2], (n, 5)), jax.random.normal(keys[3], (n, 5))

    def naive_messages(x, weight, v):
        return jnp.sum(dense(x, weight)[0] * v[None], axis=1)

    def paired_messages(x, weight, v):
        return pairs.messages(once(x, weight)[0], v)

    def naive_forces(x, weight, v, w):
        filters, difference = dense(x, weight)
        strength = jnp.sum(filters * v[:, None] * w[None], axis=-1, keepdims=True)
        return jnp.sum(strength * difference, axis=1)

    def paired_forces(x, weight, v, w):
        filters, difference = once(x, weight)
        return pairs.forces(filters, v, w, difference)

    close(naive_messages, paired_messages, x, weight, v)
    close(naive_forces, paired_forces, x, weight, v, w)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_features_pushes_and_vectors_are_exchanged_in_one_walk(n, key):
    """m = Σ f a_j, w = Σ f' b_j x_ij + Σ f'' v_j, with f, f', f'' side by side."""
    keys = jax.random.split(key, 5)
    x, weight = jax.random.normal(keys[0], (n, 3)), jax.random.normal(keys[1], (4 + 2 + 2,))
    a, b = jax.random.normal(keys[2], (n, 4)), jax.random.normal(keys[3], (n, 2))
    v = jax.random.normal(keys[4], (n, 3, 2))

    def naive(x, weight, a, b, v):
        filters, difference = dense(x, weight)
        said, push, passed = jnp.split(filters, [4, 6], axis=-1)
        pushed = jnp.sum((push * b[None])[:, :, None] * difference[..., None], axis=1)
        return jnp.sum(said * a[None], axis=1), pushed + jnp.sum(
            passed[:, :, None] * v[None], axis=1
        )

    def paired(x, weight, a, b, v):
        return pairs.gathered(exchange, once(x, weight), (a, b, v))

    close(naive, paired, x, weight, a, b, v)


def test_slopes_of_the_radial_basis(key):
    """By hand, against those of the same exponentials by autodiff."""
    u = jax.random.uniform(key, (3, 7))

    def plain(u):
        centres = jnp.linspace(0.0, 1.0, 6)[None, None]
        return jnp.exp(-0.5 * ((u[..., None] - centres) * 6) ** 2)

    close(plain, lambda u: pairs._gaussians(u, 6), u)
