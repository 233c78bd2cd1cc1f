"""Every registered method, as the command line builds it, does what its properties say."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demx import config, registry, resolve
from demx.drawing import How
from demx.errors import UserError
from demx.evaluate import reference
from demx.fitted import Fitted
from demx.methods import METHODS
from demx.train import Progress, train

# as little as possible of everything
SIZES = {
    "outer_steps": 2, "inner_steps": 1, "batch_size": 4, "num_steps": 3, "num_chains": 4,
    "length": 4, "thin": 1, "relax_steps": 5, "num_samples": 8, "num_rungs": 4, "num_pilot": 8,
    "num_live": 20, "num_delete": 5, "remaining": 0.9, "moves_per_dof": 0.1, "max_doublings": 2,
    "num_leapfrog": 2, "beta_max": 4.0,
}  # fmt: skip
MATCHING = {
    "draws": {"num_samples": 4},
    "training": {"inner_steps": 1, "batch_size": 4, "new_samples": 4, "outer_steps": 2},
    "grid": {"num_steps": 3},
    "buffer": {"capacity": 8},
    "moves": None,
    "strays": None,
    "walk": None,
}
NETWORK = {"gmm40": {"width": 4, "depth": 1, "embedding": 4}}
CLUSTER = {"width": 4, "depth": 1, "num_basis": 4}


def small(method, target):
    entry = METHODS[method]
    settings = {"evaluation": {"every": 0}}
    if entry.matching:
        settings |= MATCHING
    else:
        fields = inspect.signature(registry.load(entry.settings)).parameters
        settings["sampler"] = {k: v for k, v in SIZES.items() if k in fields}
    if entry.network:
        settings["network"] = NETWORK.get(target, CLUSTER)
    built, full = resolve.resolve(target, method=method, settings=settings)
    return Fitted(built, config.build_method(method, built, full), None, full, Progress())


# one of each kind on clusters; all on all of them behind the mark
QUICK = {(m, "gmm40") for m in METHODS} | {(m, "dw4") for m in ("pis", "hmc", "smc", "rdmc")}
CLUSTERS = [(m, t) for m in METHODS for t in ("dw4", "lj13")]
CLUSTERS += [(m, "lj55") for m, entry in METHODS.items() if not entry.network]
CASES = [
    *sorted(QUICK),
    *(pytest.param(*c, marks=pytest.mark.slow) for c in CLUSTERS if c not in QUICK),
]


# twenty live points and hardly a move
@pytest.mark.filterwarnings("ignore:nested")
@pytest.mark.parametrize("method, target", CASES)
def test_a_preset_runs_and_properties_are_true(method, target):
    fitted, entry = small(method, target), METHODS[method]
    trained = train(fitted.method, seed=0, outer_steps=fitted.method.outer_steps)
    assert trained.progress.step == fitted.method.outer_steps
    bound = fitted.method.calls_at_init + trained.progress.step * fitted.method.calls_per_step
    assert trained.progress.energy_calls <= bound
    fitted.state = trained.kept
    drawn = fitted.sample(6)
    space = fitted.target.space
    assert drawn.x.shape == (6, *space.shape) and jnp.isfinite(drawn.x).all()
    np.testing.assert_allclose(space.project(drawn.x), drawn.x, atol=1e-4)
    assert drawn.energy_calls > 0 or entry.matching
    made = fitted.method
    if made.sample_calls is not None:  # said before, of most methods exactly
        spare = made.sample_calls(6) - drawn.energy_calls
        assert 0 <= spare <= (math.inf if method == "nuts" else 0)
    if made.sample_calls is not None and (made.weighted or made.sample_weighted):
        told = fitted._drawing.calls(6, How(weights=True))
        assert told == fitted.sample(6, weights=True).energy_calls
    assert entry.log_prob == (made.log_prob is not None)
    assert entry.weights == (made.weighted or made.sample_weighted is not None)
    assert entry.log_z == (entry.weights or drawn.log_z is not None)
    if not entry.log_z:
        with pytest.raises(UserError, match="no density and no weights"):
            fitted.log_z(6)


@pytest.mark.parametrize("target", ["gmm40", "dw4"])
def test_rdmc_stays_where_the_target_is(target):
    """With its own sizes; S_K alone throws points far out. It is biased, and has no law to be held
    against: half of its samples have energies as low as three quarters of perfect ones."""
    built, full = resolve.resolve(target, method="rdmc")
    made = config.build_method("rdmc", built, full)
    key = jax.random.key(0)
    x = made.sample(key, made.init(key), 128).x
    energies = -jax.vmap(built.log_density)(x)
    assert jnp.isfinite(energies).all()
    perfect = -jax.vmap(built.log_density)(reference.find(target, {}, built).validation)
    assert jnp.median(energies) < jnp.quantile(perfect, 0.75)


@pytest.mark.parametrize("method", [m for m, entry in METHODS.items() if not entry.gradient])
def test_methods_that_need_no_gradient_do_without(method):
    """Steps of a staircase have no slope."""

    def energy(x):
        return jnp.floor(jnp.sum(x**2))

    fields = inspect.signature(registry.load(METHODS[method].settings)).parameters
    settings = {"sampler": {k: v for k, v in SIZES.items() if k in fields}}
    built, full = resolve.resolve(energy, dim=2, scale=1.0, method=method, settings=settings)
    made = config.build_method(method, built, full)
    state, _ = made.step(jax.random.key(1), made.init(jax.random.key(0)))
    assert jnp.isfinite(made.sample(jax.random.key(2), state, 5).x).all()


def test_a_method_has_only_its_own_sections():
    with pytest.raises(UserError, match="unknown section 'noise' of method hmc"):
        resolve.resolve("gmm40", method="hmc", settings={"noise": {"sigma_max": 1.0}})
    with pytest.raises(UserError, match=r"unknown setting 'sampler\.chains'.*num_chains"):
        resolve.resolve("gmm40", method="hmc", settings={"sampler": {"chains": 3}})
    with pytest.raises(UserError, match="unknown method 'hcm'; did you mean 'hmc'"):
        resolve.resolve("gmm40", method="hcm")
    for method, entry in METHODS.items():
        if not entry.warm_start:
            with pytest.raises(UserError, match=f"method {method} has no use for points.*hmc"):
                resolve.resolve("gmm40", method=method, warm_start=np.zeros((3, 2)))
