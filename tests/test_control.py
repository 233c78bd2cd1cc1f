"""PIS, DDS and DIS against closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from demx.evaluate.evidence import log_z
from demx.evaluate.weights import ess
from demx.methods import control
from demx.methods.control import engine
from demx.methods.control_network import KL, LogHuber, LogVariance, limit
from demx.methods.paths import Paths
from demx.methods.processes import (
    Brownian,
    DDSSettings,
    DISSettings,
    OrnsteinUhlenbeck,
    PISSettings,
    Reversal,
)
from demx.methods.reverse_monte_carlo import Settings, reverse_monte_carlo
from demx.networks import mlp
from demx.registry import load
from demx.space import Euclidean, MeanFree, normal
from demx.targets import TARGETS
from demx.targets.function import FunctionTarget
from demx.targets.gaussian_mixture import GaussianMixture
from demx.types import Info

SPACES = {"euclidean": Euclidean(3), "mean_free": MeanFree(3, 2)}
PROCESSES = {
    "pis": lambda n, scale: Brownian(n, scale, 1.5),
    "dds": lambda n, scale: OrnsteinUhlenbeck(n, scale, 0.6),
    "dis": lambda n, scale: Reversal(n, scale, 0.5, 8.0, 1.5),
}
METHODS = {
    "pis": (control.pis, PISSettings),
    "dds": (control.dds, DDSSettings),
    "dis": (control.dis, DISSettings),
}


class Normal(eqx.Module):
    """exp(-|x - m|²/2v), not normalised: Z = (2πv)^{dof/2}."""

    space: Euclidean | MeanFree
    mean: jax.Array
    variance: float

    def log_density(self, x):
        return -0.5 * jnp.sum((x - self.mean) ** 2) / self.variance

    @property
    def log_z(self) -> float:
        return 0.5 * self.space.dof * float(np.log(2 * np.pi * self.variance))

    def sample(self, key, n):
        return self.mean[None] + self.variance**0.5 * normal(key, self.space, (n,))


def gaussian(name, variance=0.7, seed=5):
    space = SPACES[name]
    return Normal(space, 0.5 * normal(jax.random.key(seed), space), variance)


MIXTURE = GaussianMixture([[-1.5, 0.0], [1.5, 0.7]], [0.6, 0.8], [0.7, 0.3])
# by its energy alone, so that derivatives of scores come from JAX
TWO_MODES = FunctionTarget(lambda x: -MIXTURE.log_density(x), MIXTURE.space)


def network(space, **settings):
    sizes = {"width": 16, "depth": 1, "embedding": 8, "scale": 4.0} | settings
    return lambda key: mlp(space, key, **sizes)


def arbitrary(target, name, key, **settings):
    """An engine and a control that nobody trained: every parameter is moved at random."""
    made = engine(target, METHODS[name][1](**settings), network(target.space))
    model = made.init(key).model
    flat, model_of = control.flatten(model)
    return made, model_of(flat + 0.05 * jax.random.normal(key, flat.shape))


def within(value, expected, error, slack=0.0):
    assert abs(value - expected) < 4 * error + slack, (value, expected, error)


def mean_and_error(values):
    values = np.asarray(values, float)
    return values.mean(), values.std(ddof=1) / len(values) ** 0.5


@pytest.mark.parametrize("noise", ["fixed", "learned"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", METHODS)
def test_bounds_and_mean_weight_for_any_control(name, space, noise, key):
    """E[w] = Z exactly in discrete time, and ELBO ≤ log Z ≤ EUBO, whatever control and noise."""
    target, n = gaussian(space), 4000
    # a reference between p and √2 times as wide: the variances of w and of 1/w are finite
    rates = {"beta_max": 8.0} if name == "dis" else {}
    made, model = arbitrary(target, name, key, num_steps=12, scale=0.95, noise=noise, **rates)
    widths = np.asarray([model.log_width(t) for t in jnp.linspace(0.0, 1.0, 5)])
    assert (widths != 0).all() if noise == "learned" else (widths == 0).all()
    path = eqx.filter_jit(made.draw)(key, model, n)
    back = eqx.filter_jit(made.return_from)(key, model, target.sample(key, n))
    assert int(path.bad) == int(back.bad) == 0
    np.testing.assert_allclose(target.space.project(path.x), path.x, atol=1e-4)
    log_w = np.asarray(path.log_weight) - target.log_z
    # and over backward paths E[1/w] = 1/Z
    for weight in (np.exp(log_w), np.exp(target.log_z - np.asarray(back.log_weight))):
        mean, error = mean_and_error(weight)
        within(mean, 1.0, error)
    lower, lower_error = mean_and_error(log_w)
    upper, upper_error = mean_and_error(np.asarray(back.log_weight) - target.log_z)
    assert lower < 4 * lower_error and upper > -4 * upper_error
    assert lower < -0.01 and upper > 0.01  # this control is not the optimal one


@pytest.mark.parametrize("name", METHODS)
def test_long_scores_are_shortened_unless_a_step_is_fine_and_weights_know_it(name, key):
    """To score_clip/σ, or the length that shifts a step by push_clip; still E[w] = Z."""
    target = gaussian("mean_free", 0.3)
    settings = {
        "num_steps": 12, "score_clip": 0.6, "push_clip": 0.3, "scale": 0.6, "score_start": 0.5,
    }  # fmt: skip
    rates = {"pis": {"power": 3.0}, "dis": {"beta_max": 8.0}}.get(name, {})
    made = engine(target, METHODS[name][1](**settings, **rates), network(target.space))
    x = made.paths.process.start(key, target.space, 64)
    x = x + 0.6 * normal(key, target.space, (64,))
    score = jax.vmap(jax.grad(target.log_density))(x)
    found = []
    for k in (0, -1):
        kernel = jax.tree.map(lambda a, k=k: a[k], made.paths.process.kernels())
        push = made.paths._push(kernel, lambda step, x, score: score, x, score)
        length = jnp.linalg.norm(score, axis=-1, keepdims=True)
        most = jnp.maximum(0.6 / 0.6, 0.3 * kernel.spread / kernel.gain)
        want = kernel.push(score * jnp.minimum(1.0, most / length))
        np.testing.assert_allclose(push, want, rtol=1e-4, atol=1e-6)
        found.append(float(jnp.mean((length > most).astype(float))))
    assert found[0] > 0.5 and found[1] < found[0]  # fine steps are bounded less often
    path = eqx.filter_jit(made.paths.forward)(key, made.init(key).model, 4000)
    mean, error = mean_and_error(np.exp(np.asarray(path.log_weight) - target.log_z))
    within(mean, 1.0, error)


def _shift(process, mean):
    """The optimal control to N(m, σ²): f = λ_{k+1} (1 - keep²)/gain · m, λ_K = 1."""
    kernels = process.kernels()
    after = np.append(np.cumprod(np.asarray(kernels.back)[::-1])[::-1], 1.0)[1:]
    table = jnp.asarray(after, float) * (1 - kernels.keep**2) / kernels.gain
    place = lambda step: jnp.round(step.time * process.num_steps).astype(int)  # noqa: E731
    return lambda step, x, score: table[place(step)] * mean


@pytest.mark.parametrize("space", SPACES)
def test_every_weight_is_z_for_the_optimal_control(space, key):
    """From x_0 = 0 to N(m, σ²) the optimal control is constant, also in discrete time."""
    target = gaussian(space, 1.3**2)
    paths = Paths(target, PROCESSES["pis"](10, 1.3))
    drive = lambda step, x, score: target.mean / 1.3**2  # noqa: E731
    forward = paths.forward(key, drive, 50)
    backward = paths.backward(key, drive, target.sample(key, 50))
    for path in (forward, backward):
        np.testing.assert_allclose(path.log_weight, target.log_z, atol=1e-4)


@pytest.mark.parametrize("space", SPACES)
def test_every_weight_is_z_for_the_optimal_control_and_its_noise(space, key):
    """To N(m, s²), s < σ: with N(y; m, s²)/N(y; 0, σ²) ∝ N(y; c, a) and v, v' what is left of the
    reference's variance before and after a step,

        f = (c - x)/(a + v),    r² = (a + v')/(a + v),    1/a = 1/s² - 1/σ²,    c = a m/s².
    """
    target, scale, steps = gaussian(space, 0.5**2), 1.3, 10
    paths = Paths(target, PROCESSES["pis"](steps, scale))
    a = 1 / (1 / target.variance - 1 / scale**2)
    left = jnp.asarray(scale**2 * (1 - np.linspace(0.0, 1.0, steps + 1)) ** 1.5, float)
    place = lambda t: jnp.round(t * steps).astype(int)  # noqa: E731
    centre = a * target.mean / target.variance
    drive = lambda step, x, score: (centre - x) / (a + left[place(step.time)])  # noqa: E731
    width = lambda t: 0.5 * jnp.log((a + left[place(t) + 1]) / (a + left[place(t)]))  # noqa: E731
    forward = paths.forward(key, drive, 50, log_width=width)
    backward = paths.backward(key, drive, target.sample(key, 50), log_width=width)
    for path in (forward, backward):
        np.testing.assert_allclose(path.log_weight, target.log_z, atol=2e-4)
    # with the noise of the process the same control cannot do it
    assert float(jnp.std(paths.forward(key, drive, 50).log_weight)) > 0.1


@pytest.mark.parametrize("name", ["dds", "dis"])
@pytest.mark.parametrize("space", SPACES)
def test_bounds_meet_up_to_the_start(name, space, key):
    """DDS has an exact control to N(m, σ²), DIS at a constant rate to N(m, σ²/(1 - b/4)).

    Only the start N(0, σ²) is off, whose law should be N(λ_0 m, s²). So ELBO = log Z -
    KL(N(0, σ²) | N(λ_0 m, s²)), and EUBO = log Z + the KL the other way round.
    """
    scale, steps, rate, n = 1.3, 20, 4.0, 3000
    if name == "dds":
        process, s2 = OrnsteinUhlenbeck(steps, scale, 0.6), scale**2
    else:
        process, s2 = Reversal(steps, scale, rate, rate), scale**2 / (1 - rate / steps / 4)
    target = gaussian(space, s2)
    first = float(np.prod(np.asarray(process.kernels().back)))
    far = float(jnp.sum((first * target.mean) ** 2))

    def divergence(a, b):
        return 0.5 * (target.space.dof * (a / b - 1 - np.log(a / b)) + far / b)

    paths, drive = Paths(target, process), _shift(process, target.mean)
    forward = paths.forward(key, drive, n)
    backward = paths.backward(key, drive, target.sample(key, n))
    lower, upper = (mean_and_error(p.log_weight - target.log_z) for p in (forward, backward))
    within(lower[0], -divergence(scale**2, s2), lower[1], 1e-4)
    within(upper[0], divergence(s2, scale**2), upper[1], 1e-4)
    assert divergence(s2, scale**2) < 0.02


@pytest.mark.parametrize("name", PROCESSES)
def test_log_variance_has_twice_the_gradient_of_kl(name, key):
    """On its own paths E[∇ Var log w] = 2 ∇ KL (arXiv 2005.05409): two ways to one gradient."""
    target = TWO_MODES
    paths = Paths(target, PROCESSES[name](6, 1.5))

    def gradient(loss, key):
        def value(parameters):
            def drive(step, x, score):
                return parameters[0] * step.time * score + parameters[1] * x + parameters[2]

            width = lambda t: parameters[3] * (1 - t)  # noqa: E731
            path = paths.forward(key, drive, 64, log_width=width, detached=loss.detached)
            return loss(path.log_weight, 64)

        return jax.grad(value)(jnp.asarray([0.3, -0.1, 0.2, -0.3]))

    keys = jax.random.split(key, 400)
    kl = jax.jit(jax.vmap(lambda k: gradient(KL(), k)))(keys)
    variance = jax.jit(jax.vmap(lambda k: gradient(LogVariance(), k)))(keys)
    for a, b in zip(kl.T, variance.T, strict=True):
        mean, error = mean_and_error(2 * a - b)
        within(mean, 0.0, error)


def test_one_lost_path_does_not_decide_an_update(key):
    """Of weights within 3 median deviations it is n/(n-1) of the variance, up to its centre; of one
    that is far away only the sign counts."""
    weight = jax.random.uniform(key, (64,))
    slope = jax.grad(lambda w: LogHuber()(w, 64))
    centred = weight - jnp.median(weight)
    np.testing.assert_allclose(slope(weight), 2 * centred / 64, rtol=1e-5, atol=1e-7)
    far, farther = (slope(weight.at[0].set(-(10.0**k))) for k in (4, 8))
    np.testing.assert_allclose(far, farther, rtol=1e-5, atol=1e-7)
    assert 0 < abs(float(far[0])) < 2 * 3 * 0.5 / 64
    lost = slope(weight.at[0].set(-jnp.inf))
    assert lost[0] == 0 and np.isfinite(lost).all() and (lost[1:] != 0).sum() >= 61


@pytest.mark.parametrize("loss", ["kl", "log_variance", "log_huber"])
def test_rematerialisation_changes_no_gradient(loss, key):
    target, found = TWO_MODES, []
    for remat in (False, True):
        settings = {"num_steps": 6, "beta_max": 4.0, "batch_size": 8, "loss": loss}
        made, model = arbitrary(
            target, "dis", key, detach_score=False, score_clip=10.0, remat=remat, **settings
        )
        flat, model_of = control.flatten(model)
        found.append(made.gradient(key, flat, model_of))
    np.testing.assert_allclose(found[0].gradient, found[1].gradient, rtol=1e-3, atol=1e-4)
    assert float(jnp.linalg.norm(found[0].gradient)) > 0.01


TRAINED = {
    "pis": {"power": 2.0},
    "dds": {"alpha_max": 0.7, "loss": "log_variance"},
    "dis": {"beta_min": 0.5, "beta_max": 8.0, "loss": "log_variance"},
}


@pytest.mark.parametrize("name", METHODS)
def test_training_raises_the_effective_share(name, key):
    target = TWO_MODES
    factory, settings = METHODS[name]
    common = {"num_steps": 12, "batch_size": 64, "inner_steps": 100, "outer_steps": 2}
    rates = {"learning_rate": 1e-2, "schedule": "cosine", "ema": 0.9, "scale": 1.8}
    made = factory(target, settings(**common, **rates, **TRAINED[name]), network(target.space))
    state = made.init(key)
    before = made.sample_weighted(key, state, 2000).log_weight
    for i in range(2):
        state, info = made.step(jax.random.fold_in(key, i), state)
    after = made.sample_weighted(key, state, 2000).log_weight
    shares = [ess(np.asarray(w)) for w in (before, after)]
    print(name, shares, info)
    error = np.hypot(*(share.standard_error for share in shares))
    assert shares[1].value - shares[0].value > 4 * error
    assert float(info.skipped) == 0 and int(info.bad) == 0


class Counted(eqx.Module):
    """A normal target that counts on the host how many points were evaluated."""

    space: Euclidean
    seen: list = eqx.field(static=True)

    def log_density(self, x):
        return -0.5 * jnp.sum(x**2)

    def log_density_and_score(self, xs):
        def count(a):
            self.seen.append(a.shape[-1])
            return np.zeros((), np.float32)

        # without side effects for JAX: what needs no energy does not evaluate one
        @jax.custom_jvp
        def both(xs):
            shape = jax.ShapeDtypeStruct((), xs.dtype)
            zero = jax.pure_callback(count, shape, xs, vmap_method="sequential")
            return -0.5 * jnp.sum(xs**2, axis=0) + zero, -xs + zero

        both.defjvp(lambda x, dx: (both(*x), (-jnp.sum(x[0] * dx[0], axis=0), -dx[0])))
        return both(xs)


@pytest.mark.parametrize("extra", [{}, {"remat": True}, {"remat": True, "loss": "log_variance"}])
def test_energy_calls_are_counted_exactly(extra, key):
    seen = []
    target = Counted(Euclidean(2), seen)
    settings = DDSSettings(num_steps=5, batch_size=8, inner_steps=3, **extra)
    made = control.dds(target, settings, network(target.space))

    def spent(call):
        seen.clear()
        out = call()
        jax.block_until_ready(eqx.filter(out, eqx.is_array))
        jax.effects_barrier()
        return out, sum(seen)

    state = made.init(key)
    _, calls = spent(lambda: made.step(key, state))
    assert calls == made.calls_per_step == 3 * 8 * 6
    for draw in (made.sample, made.sample_weighted):
        for n, drawn in ((70, 128), (1030, 1030)):  # the last compiled call is filled up by 64s
            samples, calls = spent(lambda draw=draw, n=n: draw(key, state, n))
            assert calls == samples.energy_calls == made.sample_calls(n) == drawn * 6
    sampler = reverse_monte_carlo(target, Settings(num_samples=4, num_steps=3, sigma_max=2.0))
    samples, calls = spent(lambda: sampler.sample(key, sampler.init(key), 6))
    assert calls == samples.energy_calls == sampler.sample_calls(6) == 6 * 3 * 4


@pytest.mark.parametrize("name", METHODS)
def test_contract_on_particles(name, key):
    """Mean-free, one compilation, fixed shapes, nothing that depends on how many are drawn."""
    target, traces = load(TARGETS["dw4"])(), []

    def energy(x):
        traces.append(1)
        return -target.log_density(x)

    factory, settings = METHODS[name]
    small = settings(num_steps=11, batch_size=8, inner_steps=2, scale=2.0, score_clip=20.0)
    made = factory(FunctionTarget(energy, target.space), small, network(target.space))
    state = made.init(key)
    shapes = [leaf.shape for leaf in jax.tree.leaves(state) if hasattr(leaf, "shape")]
    expected = jax.tree.leaves(eqx.filter_eval_shape(made.init, key))
    assert shapes == [leaf.shape for leaf in expected if hasattr(leaf, "shape")]
    state, info = made.step(key, state)
    first = len(traces)
    for i in range(2):
        state, info = made.step(jax.random.fold_in(key, i), state)
    assert len(traces) == first
    assert isinstance(info, Info) and float(info.skipped) == 0 and jnp.isfinite(info.loss)
    assert shapes == [leaf.shape for leaf in jax.tree.leaves(state) if hasattr(leaf, "shape")]
    few, many = made.sample(key, state, 60), made.sample_weighted(key, state, 60)
    np.testing.assert_array_equal(few.x, many.x)
    assert few.log_weight is None and jnp.isfinite(many.log_weight).all()
    back = made.weigh_backward(key, state, few.x)
    assert back.energy_calls == 60 * 12 and back.log_weight.shape == (60,) and back.bad == 0
    np.testing.assert_allclose(target.space.project(few.x), few.x, atol=1e-4)


def test_updates_that_are_not_finite_are_skipped_and_counted(key):
    space = Euclidean(2)
    broken = FunctionTarget(lambda x: jnp.where(x[0] > -100, jnp.nan, x[1]), space)
    settings = PISSettings(num_steps=3, batch_size=4, inner_steps=2)
    made = control.pis(broken, settings, network(space))
    state = made.init(key)
    after, info = made.step(key, state)
    assert float(info.skipped) == 1 and int(info.bad) == 2 * 4 * 4
    assert eqx.tree_equal(state.model, after.model)
    samples = made.sample_weighted(key, state, 4)
    assert samples.bad == 4 and jnp.isneginf(samples.log_weight).all()


def test_a_path_that_ends_behind_a_wall_has_weight_zero(key):
    """E = ∞ for x_0 > 0: half of the plane. No path is lost, and log Z is that of a half."""
    space = Euclidean(2)
    wall = FunctionTarget(lambda x: jnp.where(x[0] > 0, jnp.inf, 0.5 * jnp.sum(x**2)), space)
    made = control.pis(wall, PISSettings(num_steps=8, scale=1.5), network(space))
    drawn = made.sample_weighted(key, made.init(key), 2000)
    assert drawn.bad == 0 and 0.2 < float(jnp.mean(jnp.isneginf(drawn.log_weight))) < 0.8
    found = log_z(drawn)
    assert abs(found.value - np.log(np.pi)) < 4 * found.standard_error


def test_limit_shortens_and_has_a_derivative_everywhere():
    long = limit(jnp.asarray([[3e25, 4e25], [0.3, 0.4], [0.0, 0.0]]), 1.0)
    np.testing.assert_allclose(long, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], rtol=1e-5)
    for x in ([0.0, 0.0], [3.0, 4.0]):
        assert jnp.isfinite(jax.jacobian(limit)(jnp.asarray(x), 1.0)).all()


@pytest.mark.parametrize(
    "settings, given, message",
    [
        (PISSettings, {"power": 0.0}, "power: expected a positive number, got 0.0"),
        (PISSettings, {"num_steps": 0}, "num_steps: expected at least 1, got 0"),
        (PISSettings, {"noise": "none"}, "noise: expected fixed or learned, got 'none'"),
        (PISSettings, {"loss": "elbo"}, "loss: expected kl, log_variance, log_huber, got 'elbo'"),
        (DDSSettings, {"alpha_max": 1.5}, r"alpha_max: expected in \(0, 1\], got 1.5"),
        (DISSettings, {"num_steps": 5}, "beta_max: expected .* stable, got 20.0"),
        (
            Settings,
            {"rule": "heun"},
            "rule: expected one of euler, posterior, midpoint, got 'heun'",
        ),
        (Settings, {"sigma_min": 4.0}, "sigma_max: expected more than sigma_min = 4.0, got 3.5"),
    ],
)
def test_settings_say_what_is_wrong(settings, given, message):
    with pytest.raises(ValueError, match=message):
        settings(**given)
