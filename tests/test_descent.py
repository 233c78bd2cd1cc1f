"""Chains get away from where they begin: overlapping particles, energies beyond all squares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demx.classical.chains import Hmc, Metropolis, hmc, metropolis
from demx.classical.kernels import start
from demx.descent import relax
from demx.energy import energies, evaluate
from demx.space import Euclidean, MeanFree
from demx.targets.function import FunctionTarget


def bare(num_particles: int = 3) -> FunctionTarget:
    """Lennard-Jones particles in a trap, as a user writes them: no core, so energies overflow."""

    def energy(x):
        first, second = jnp.triu_indices(num_particles, k=1)
        inverse6 = jnp.sum((x[first] - x[second]) ** 2, axis=-1) ** -3
        return jnp.sum(inverse6 * (inverse6 - 2)) + 0.5 * jnp.sum(x**2)

    return FunctionTarget(energy, MeanFree(num_particles, 3))


def overlapping(apart: float):
    """Two of three particles `apart` from each other."""
    x = jnp.asarray([[[0.0, 0.0, 0.0], [apart, 0.5 * apart, 0.0], [0.0, 1.2, 0.0]]])
    return bare().space.project(x)


@pytest.mark.parametrize("apart", [0.3, 0.02, 0.002])
def test_descent_knows_no_force_that_is_too_large(apart):
    """At 0.02 the force is 1e24, whose square no float32 can hold; at 0.002 it is 1e37."""
    target, x = bare(), overlapping(apart)
    force = float(jnp.max(jnp.abs(evaluate(target, x).score)))
    assert np.isfinite(force) and (apart > 0.1 or force > 2e19)
    found = energies(target, relax(target, x, 200, 1.0))
    assert float(found[0]) < 10  # three bonds are -3, the trap of a relaxed cluster is below 1


def test_descent_stays_where_nothing_pulls():
    target = FunctionTarget(lambda x: 0.0 * jnp.sum(x), Euclidean(2))
    x = jnp.asarray([[1.0, 2.0]])
    np.testing.assert_array_equal(relax(target, x, 10, 1.0), x)


@pytest.mark.parametrize("apart", [0.02, 1e-5])
def test_a_lost_chain_begins_again_where_another_is(apart, key):
    """One of four begins where hardly a proposal leads out of; at 1e-5 its energy is infinite."""
    settings = Hmc(num_chains=4, scale=0.5, length=30, num_leapfrog=4)
    fine = relax(bare(), bare().space.project(jax.random.normal(key, (3, 3, 3))), 200, 1.0)
    begin = jnp.concatenate([fine, overlapping(apart)])
    made = hmc(bare(), settings, warm_start=begin)
    state = made.init(key)
    state, info = made.step(key, state)
    assert int(info.restarted) == 1 and float(jnp.min(state.walker.log_density)) > -50
    assert any((state.walker.position[3] == state.walker.position[i]).all() for i in range(3))
    state, info = made.step(jax.random.fold_in(key, 1), state)
    assert int(info.restarted) == 0


def test_other_chains_are_left_alone(key):
    """Also where one is far from the others, or all are outside the support."""
    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x**2), Euclidean(2))
    begin = jnp.zeros((4, 2)).at[3].set(12.0)  # E = 144 there, which may be: 2 · 100 would not
    made = metropolis(target, Metropolis(num_chains=4, length=2), warm_start=begin)
    assert int(made.step(key, made.init(key))[1].restarted) == 0
    nowhere = FunctionTarget(lambda x: jnp.inf + 0.0 * jnp.sum(x), Euclidean(2))
    made = metropolis(nowhere, Metropolis(num_chains=4, length=2, relax_steps=1))
    assert int(made.step(key, made.init(key))[1].restarted) == 0


def test_crowded_starts_are_all_freed(key):
    """13 particles in a ball that is too small for them: some pairs begin on top of each other."""
    settings = Hmc(num_chains=500, scale=0.35)
    raw = start(key, bare(13), Hmc(num_chains=500, scale=0.35, relax_steps=1), None)
    assert float(jnp.max(energies(bare(13), raw))) > 1e12
    begun = start(key, bare(13), settings, None)
    # far above equilibrium, about dof/2 over the minimum of -44, but chains come down from there
    assert float(jnp.max(energies(bare(13), begun))) < 1e4
