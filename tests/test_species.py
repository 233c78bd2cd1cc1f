"""Particles of several species: only equal ones are exchanged, networks tell them apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases import networks, shaken
from demx import resolve
from demx.errors import UserError
from demx.evaluate.evaluation import comparisons
from demx.evaluate.reference import is_invariant, symmetrise
from demx.space import MeanFree, image, normal
from demx.targets.function import CALLS, FunctionTarget

KINDS = (7, 3, 7, 3, 3)
SPACE = MeanFree(5, 3, KINDS)
CHARGE = jnp.array([1.0, -1.0, 1.0, -1.0, -1.0])


def ionic(x):
    """Charges in a trap: particles of one sign can be exchanged, others not."""
    first, second = np.triu_indices(5, k=1)
    r2 = jnp.sum((x[first] - x[second]) ** 2, axis=-1)
    return jnp.sum(CHARGE[first] * CHARGE[second] / jnp.sqrt(r2 + 0.1)) + jnp.sum(x**2)


def test_a_space_knows_its_species():
    assert SPACE.several == (1, 0, 1, 0, 0)
    assert MeanFree(3, 2, (4, 4, 4)).several is None and MeanFree(3, 2).several is None
    with pytest.raises(ValueError, match="species: expected one for each of 3 particles, got 2"):
        MeanFree(3, 2, (0, 1))


def test_images_keep_the_energy_and_the_species(key):
    x = normal(key, SPACE)
    for i in range(8):
        moved = image(jax.random.fold_in(key, i), SPACE, x)
        assert float(ionic(moved)) == pytest.approx(float(ionic(x)), rel=1e-5)
        for kind in (3, 7):
            where = np.array(KINDS) == kind
            here, there = (np.sort(jnp.sum(a[where] ** 2, axis=1)) for a in (x, moved))
            np.testing.assert_allclose(here, there, rtol=1e-5)
    orders = {tuple(np.round(jnp.sum(image(k, SPACE, x) ** 2, axis=1), 4).tolist())
              for k in jax.random.split(key, 200)}  # fmt: skip
    assert len(orders) == 2 * 6  # 2! · 3!


@pytest.mark.parametrize("name", ["lean", "directed", "relaxing", "egnn"])
def test_networks_respect_the_species_and_no_more(name, key):
    """Equivariant under images, and not under an exchange of different particles."""
    net = shaken(networks(SPACE, key)[name], key)
    x, level = normal(key, SPACE), jnp.asarray(0.3)
    run = jax.jit(lambda x: net(level, x))
    out = run(x)
    same = jnp.array([2, 1, 0, 4, 3])
    np.testing.assert_allclose(run(x[same]), out[same], atol=1e-5)
    turn, _ = jnp.linalg.qr(jax.random.normal(key, (3, 3)))
    np.testing.assert_allclose(run(x @ turn), out @ turn, atol=2e-5)
    other = jnp.array([1, 0, 2, 3, 4])
    assert float(jnp.abs(run(x[other]) - out[other]).max()) > 1e-3


@pytest.mark.parametrize("name", ["lean", "directed", "relaxing", "egnn"])
def test_species_leave_the_other_parameters_as_they_are(name, key):
    def leaves(space):
        found = jax.tree_util.tree_leaves_with_path(networks(space, key)[name])
        return {jax.tree_util.keystr(path): leaf for path, leaf in found}

    equal, several = leaves(MeanFree(5, 3)), leaves(SPACE)
    assert {k for k in several if k not in equal} == {".species.table"}
    for path, leaf in equal.items():
        np.testing.assert_array_equal(leaf, several[path])


def test_references_and_distances_exchange_equals_only(rng):
    target = FunctionTarget(ionic, SPACE)
    x = np.asarray(rng.normal(size=(20, 5, 3)))
    x -= x.mean(axis=1, keepdims=True)
    assert is_invariant(target, x)
    assert not is_invariant(FunctionTarget(ionic, MeanFree(5, 3)), x)
    moved = symmetrise(rng, x, SPACE.several)
    norms = np.linalg.norm(x, axis=2), np.linalg.norm(moved, axis=2)
    for kind in (3, 7):
        where = np.array(KINDS) == kind
        np.testing.assert_allclose(*(np.sort(n[:, where], axis=1) for n in norms), rtol=1e-6)
    aligned = next(c for c in comparisons(target, True) if c.name == "w2_aligned")

    class Cloud:
        def __init__(self, x):
            self.x = x

    swapped = x[:, [1, 0, 2, 3, 4]]
    assert (np.diag(aligned.costs(Cloud(x), Cloud(x))) < 1e-6).all()
    assert (np.diag(aligned.costs(Cloud(x), Cloud(swapped))) > 1e-3).mean() > 0.9


def test_an_energy_that_is_not_symmetric_is_refused():
    with pytest.raises(UserError, match=r"turned, reflected or exchanged, got .*name the species"):
        resolve.open_target(ionic, {}, particles=(5, 3))
    opened = resolve.open_target(ionic, {}, particles=(5, 3), species=KINDS)
    assert opened.target.space == SPACE and opened.energy_calls == CALLS
    with pytest.raises(UserError, match="species: only for particles"):
        resolve.open_target(lambda x: jnp.sum(x**2), {}, dim=5, species=KINDS)
