"""The paper's protocol for likelihoods: an OT-CFM flow trained on any sampler's samples.

With x_0 ~ N(0, s²), x_1 a sample, the two paired by optimal transport within each minibatch, and
t uniform in [0, 1], the velocity is fitted to x_1 - x_0 at x_t = (1-t) x_0 + t x_1 (Tong et al.
2023, with σ = 0). Its flow's density stands for the sampler's own (paper, app. F.2). Of particles,
whose density no symmetry changes, x_1 is the image of its sample that lies on x_0 (Klein et al.
2023, arXiv 2306.15030): paths are shorter, and hardly ever cross.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray
from scipy.optimize import linear_sum_assignment

from demx.evaluate.alignment import laid_onto
from demx.flow import Flow, log_probs, probes_for
from demx.methods.training import Training
from demx.model import average, flatten
from demx.networks import directed, mlp
from demx.space import MeanFree, Space, normal

Pairing = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (x_0, x_1) -> x_1, row by row

EDGE = 1e-3  # from t = 0 and 1, where levels end
BLOCK = 50  # minibatches paired on the host in one go, then learned from in one compiled call


class Velocity(eqx.Module):
    """v = m + V'/(2V) (x - tm) + s√((1-ρ²)/V) F(l(t), (x - tm)/(s√V)), V(t) = 1 - 2t(1-t)(1-ρ).

    s²V is the variance of x_t when data of mean m and variance s² are paired with correlation ρ.
    With F = 0 it is the best guess for isotropic data, and the flow's end is N(m, s²) exactly.
    The regression for F has targets of unit variance at every t. l(t) = ½ log((1-t)/t) is the level
    of a denoiser, x_t being t times data with noise of (1-t)/t of their width: networks of
    particles soften distances by it. Without that, where two of them meet on the way to the
    normal, x_ij/|x_ij| would throw the flow off.
    """

    network: Callable[[Array, Array], Array]
    mean: Float[Array, "..."]
    scale: Float[Array, ""]
    correlation: Float[Array, ""]

    def _variance(self, t: Array) -> Array:
        return 1 - 2 * t * (1 - t) * (1 - self.correlation)

    def residual(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """s√((1-ρ²)/V): the size of what the guess leaves to the network."""
        return self.scale * jnp.sqrt((1 - self.correlation**2) / self._variance(t))

    def __call__(self, t: Float[Array, ""], x: Float[Array, "..."]) -> Float[Array, "..."]:
        v, centred = self._variance(t), x - t * self.mean
        guess = self.mean + (2 * t - 1) * (1 - self.correlation) / v * centred
        within = jnp.clip(t, EDGE, 1 - EDGE)
        level = 0.5 * jnp.log((1 - within) / within)
        return guess + self.residual(t) * self.network(level, centred / (self.scale * jnp.sqrt(v)))


def default_network(space: Space) -> Callable[[PRNGKeyArray], eqx.Module]:
    """directed for particles, which makes the density invariant; mlp in R^d."""
    factory = directed if isinstance(space, MeanFree) else mlp
    return lambda key: factory(space, key)


def transported(x_0: np.ndarray, x_1: np.ndarray) -> np.ndarray:
    """x_1 in the order that makes Σ_i |x_0i - x_1i|² least: exact, flattened, nothing aligned."""
    # the squared distance, without what no order changes
    cost = -x_0.reshape(len(x_0), -1) @ x_1.reshape(len(x_1), -1).T
    return x_1[linear_sum_assignment(cost)[1]]


def default_pairing(space: Space) -> Pairing:
    """`transported`; of particles each one is then laid onto its partner."""
    if not isinstance(space, MeanFree):
        return transported
    species = None if space.several is None else np.array(space.several)
    return lambda x_0, x_1: laid_onto(x_0, transported(x_0, x_1), species)


def fit_flow(
    key: PRNGKeyArray,
    samples: ArrayLike,
    space: Space,
    *,
    network: Callable[[PRNGKeyArray], eqx.Module] | None = None,
    pairing: Pairing | None = None,
    steps: int = 4000,
    batch_size: int = 128,
    learning_rate: float = 3e-3,
    optimiser: str = "soap",
    ema: float = 0.999,
    tolerance: float = 1e-5,
    progress: Callable[[int, float], None] | None = None,
) -> Flow:
    """The OT-CFM flow of samples (n, *space.shape), from N(0, s²) at t = 0 to the data at t = 1.

    s²: the samples' variance per degree of freedom. network: a function of a key; pairing: of
    a minibatch; both by the space, if they are not given. steps: rounded up to whole blocks of 50.
    SOAP (or 'adam') with a cosine decay to 0; the flow has the moving average of the parameters.
    progress(steps done, loss): isotropic normal data have a loss of 1, and less means that
    something was learned. The same key gives the same flow.
    """
    data = _usable(samples, space)
    if steps < 1 or batch_size < 2:
        raise ValueError(f"expected steps >= 1, batch_size >= 2, got {steps} and {batch_size}")
    key_network, key_pairs, key_times = jax.random.split(key, 3)
    # for particles 0 by symmetry: the mean of a finite sample would break it
    mean = np.zeros(space.shape) if isinstance(space, MeanFree) else data.mean(axis=0, dtype=float)
    scale = float(np.sqrt(np.sum((data - mean) ** 2) / (len(data) * space.dof)))
    size, blocks = min(steps, BLOCK), -(-steps // BLOCK)
    pair = pairing or default_pairing(space)

    @jax.jit
    def draw(key):
        key_prior, key_row = jax.random.split(key)
        x_0 = scale * normal(key_prior, space, (size, batch_size))
        return x_0, jax.random.randint(key_row, (size, batch_size), 0, len(data))

    def minibatches(block: int) -> tuple[np.ndarray, np.ndarray]:
        x_0, rows = jax.device_get(draw(jax.random.fold_in(key_pairs, block)))
        return x_0, np.stack([pair(a, data[r]) for a, r in zip(x_0, rows, strict=True)])

    x_0, x_1 = minibatches(0)
    covariance = np.sum(x_0 * (x_1 - mean.astype(x_1.dtype))) / (size * batch_size * space.dof)
    velocity = Velocity(
        (network or default_network(space))(key_network),
        jnp.asarray(mean, x_0.dtype),
        jnp.asarray(scale, x_0.dtype),
        # 1 would leave nothing to the network
        jnp.asarray(np.clip(covariance / scale**2, 0.0, 0.99), x_0.dtype),
    )
    plan = Training(
        outer_steps=blocks, inner_steps=size, batch_size=batch_size, learning_rate=learning_rate,
        schedule="cosine", optimiser=optimiser, ema=ema,
    )  # fmt: skip
    flat, network_of = flatten(velocity.network)
    state = (flat, flat, plan.transformation(network_of).init(flat), jnp.zeros((), int))
    for block in range(blocks):
        key_block = jax.random.fold_in(key_times, block)
        state, loss = _learn(state, velocity, space, plan, key_block, x_0, x_1)
        if block + 1 < blocks:
            x_0, x_1 = minibatches(block + 1)  # on the host, while the device learns
        if progress is not None:
            progress((block + 1) * size, float(loss))
    fitted = _with_network(velocity, network_of(state[1]))
    return Flow(fitted, space, 1.0, 0.0, velocity.scale**2, tolerance, probes_for(space))


def _usable(samples: ArrayLike, space: Space) -> np.ndarray:
    """The samples on the host, on the space; what cannot be learned from stops here."""
    data = jnp.asarray(samples, float)
    if data.shape[1:] != space.shape or len(data) < 2:
        raise ValueError(f"samples: expected shape (n, *{space.shape}), n > 1, got {data.shape}")
    data = np.asarray(space.project(data))
    if not np.isfinite(data).all():
        raise ValueError("samples: expected finite numbers; leave out the rows that are not")
    if not np.ptp(data, axis=0).any():
        raise ValueError("samples: expected more than one distinct configuration")
    return data


@eqx.filter_jit
def _learn(state, velocity: Velocity, space: Space, plan: Training, key: PRNGKeyArray, x_0, x_1):
    """One block: (parameters, their average, optimiser's state, step) after it; its mean loss."""
    _, network_of = flatten(velocity.network)
    optimiser = plan.transformation(network_of)

    def loss(flat, t, x_0, x_1):
        model = _with_network(velocity, network_of(flat))

        def squared(t, x_0, x_1):
            error = model(t, (1 - t) * x_0 + t * x_1) - (x_1 - x_0)
            return jnp.sum((space.project(error) / model.residual(t)) ** 2)

        return jnp.mean(jax.vmap(squared)(t, x_0, x_1)) / space.dof

    def step(state, minibatch):
        flat, mean, opt_state, count = state
        key, x_0, x_1 = minibatch
        # one time in each of B equal intervals: uniform, with less noise between batches
        size = x_0.shape[0]
        t = (jnp.arange(size, dtype=x_0.dtype) + jax.random.uniform(key, (size,))) / size
        value, gradient = jax.value_and_grad(loss)(flat, t, x_0, x_1)
        # optax mixes integers and floats; under strict promotion that has to be allowed
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimiser.update(gradient, opt_state, flat)
        flat = flat + updates
        return (flat, average(mean, flat, plan.ema, count), opt_state, count + 1), value

    keys = jax.random.split(key, x_0.shape[0])
    state, losses = jax.lax.scan(step, state, (keys, x_0, x_1))
    return state, jnp.mean(losses)


def _with_network(velocity: Velocity, network: eqx.Module) -> Velocity:
    return eqx.tree_at(lambda v: v.network, velocity, network)


def likelihoods(
    flow: Flow, x: Float[ArrayLike, "n ..."], key: PRNGKeyArray | None = None
) -> Float[Array, " n"]:
    """log q(x_i) of n points in bounded memory; nan where the solver did not finish.

    key: of the probes, if the flow has any (beyond 200 degrees of freedom).
    """
    return log_probs(flow, jnp.asarray(x, float), jax.random.key(0) if key is None else key)
