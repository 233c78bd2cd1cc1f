"""Continuous normalising flows: dx/dt = v(t, x) carries a normal to a density that is known.

    log q(x(t_data)) = log N(x(t_prior); 0, prior_variance) + ∫_{t_data}^{t_prior} div v(t, x(t)) dt

On the mean-free space v is projected, div is the trace over the subspace, and q is a density on its
(n-1)·dim dimensions.
"""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from demx.devices import everywhere, home, map_chunks
from demx.noise import Noise
from demx.space import Space, log_normal, normal

Velocity = Callable[[Array, Array], Array]

EXACT_DOF = 200  # beyond it the exact trace, one derivative a degree of freedom, costs too much
PROBES = 8  # the noise of log q falls like 1/√probes, the cost grows with them


def probes_for(space: Space) -> int | None:
    """None, the exact trace, up to 200 degrees of freedom; a few Hutchinson probes beyond."""
    return None if space.dof <= EXACT_DOF else PROBES


class Flow(eqx.Module):
    """x(t_prior) ~ N(0, prior_variance) carried to t_data by Dopri5 with adaptive steps.

    velocity: v(t, x) for one x. probes: None for the exact trace; m for Hutchinson's estimate
    div v ≈ (1/m) Σ_k ε_kᵀ (∂v/∂x) ε_k with random signs ε_k, drawn once a point and projected to
    the space: the option beyond about 200 dimensions. It leaves log q unbiased, but not q: by
    Jensen's inequality importance weights p̃/q made with it are too large on average.
    """

    velocity: Velocity
    space: Space
    t_data: Float[Array, ""] | float
    t_prior: Float[Array, ""] | float
    prior_variance: Float[Array, ""] | float
    tolerance: float = 1e-4
    probes: int | None = None

    def __check_init__(self) -> None:
        if not self.tolerance > 0:
            raise ValueError(f"tolerance: expected a positive number, got {self.tolerance}")
        if self.probes is not None and self.probes < 1:
            raise ValueError(f"probes: expected at least 1, or None, got {self.probes}")

    def _directions(self, key: PRNGKeyArray | None) -> Float[Array, "m ..."]:
        """Vectors with Σ_k e_kᵀ J e_k = tr J on the space: a basis, or probes (in expectation)."""
        space = self.space
        if self.probes is None:
            return jax.vmap(space.configuration)(jnp.eye(space.dof))
        if key is None:
            raise ValueError("log_prob: expected a key for the random probes of Hutchinson's trace")
        signs = jax.random.rademacher(key, (self.probes, *space.shape), float)
        return space.project(signs) / self.probes**0.5

    def carry(
        self, x: Float[Array, "..."], key: PRNGKeyArray | None, start: Array, end: Array
    ) -> tuple[Float[Array, "..."], Float[Array, ""]]:
        """x moved from one time to another, and ∫ div v dt; nan if the solver did not finish."""
        directions = self._directions(key)

        def field(t, state, _):
            value, pull = jax.vjp(lambda y: self.space.project(self.velocity(t, y)), state[0])
            # pulling back is a little faster than pushing forward; the trace is the same
            (rows,) = jax.vmap(pull)(directions)
            return value, jnp.sum(rows * directions)

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Dopri5(),
            start,
            end,
            None,
            (x, jnp.zeros((), x.dtype)),
            stepsize_controller=diffrax.PIDController(rtol=self.tolerance, atol=self.tolerance),
            max_steps=4096,
            throw=False,
        )
        x, gained = solution.ys
        done = solution.result == diffrax.RESULTS.successful
        return x[0], jnp.where(done, gained[0], jnp.nan)

    def log_prob(self, x: Float[Array, "..."], key: PRNGKeyArray | None = None) -> Float[Array, ""]:
        """log q(x) for one x; nan if the solver did not finish. key: needed with probes."""
        x_prior, gained = self.carry(self.space.project(x), key, *self.times)
        return log_normal(self.space, x_prior, self.prior_variance) + gained

    def sample(self, key: PRNGKeyArray) -> tuple[Float[Array, "..."], Float[Array, ""]]:
        """One x ~ q with its log q(x)."""
        key_prior, key_probes = jax.random.split(key)
        x_prior = jnp.sqrt(self.prior_variance) * normal(key_prior, self.space)
        x, gained = self.carry(x_prior, key_probes, *self.times[::-1])
        return x, log_normal(self.space, x_prior, self.prior_variance) - gained

    @property
    def times(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """From the data to the prior."""
        return jnp.asarray(self.t_data, float), jnp.asarray(self.t_prior, float)


class FromScore(eqx.Module):
    """v(t, x) = -½ g(t)² s(t, x): the probability-flow ODE of dx = g(t) dw (paper, app. C)."""

    score: Velocity
    noise: Noise

    def __call__(self, t: Float[Array, ""], x: Float[Array, "..."]) -> Float[Array, "..."]:
        return -0.5 * self.noise.diffusion(t) ** 2 * self.score(t, x)


def probability_flow(
    score: Velocity,
    noise: Noise,
    space: Space,
    t_data: Float[Array, ""] | float,
    prior_variance: Float[Array, ""] | float,
    *,
    tolerance: float = 1e-4,
    probes: int | None = None,
) -> Flow:
    """The flow of a score s(t, x), from N(0, prior_variance) at t = 1 to t_data > 0."""
    velocity = FromScore(score, noise)
    return Flow(velocity, space, t_data, 1.0, prior_variance, tolerance, probes)


def log_probs(
    flow: Flow, xs: Float[Array, "n ..."], key: PRNGKeyArray | None = None
) -> Float[Array, " n"]:
    """log q(x_i) of n points in bounded memory, nan where the solver did not finish.

    The i-th point's probes, if there are any, come from the key folded with i.
    """
    keys = None if key is None else _keys(key, len(xs))
    x_prior, gained = _carry_many(flow, flow.space.project(xs), keys, *flow.times)
    return _log_prior(flow, x_prior) + gained


def samples(
    flow: Flow, key: PRNGKeyArray, n: int
) -> tuple[Float[Array, "n ..."], Float[Array, " n"]]:
    """n draws of q and their log q, in bounded memory; a draw does not depend on n."""
    key_prior, key_probes = (_keys(k, n) for k in jax.random.split(key))
    unit = jax.vmap(lambda k: normal(k, flow.space))(key_prior)
    x_prior = jnp.sqrt(flow.prior_variance) * unit
    x, gained = _carry_many(flow, x_prior, key_probes, *flow.times[::-1])
    return x, _log_prior(flow, x_prior) - gained


def _keys(key: PRNGKeyArray, n: int) -> Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n))


def _log_prior(flow: Flow, xs: Array) -> Array:
    return jax.vmap(lambda x: log_normal(flow.space, x, flow.prior_variance))(xs)


def _carry_many(flow: Flow, xs: Array, keys: Array | None, start: Array, end: Array):
    """`carry` for n points, by compiled calls of one size (the last is filled up).

    Both directions are the same compiled call. Few points go in lockstep: in many dimensions
    one alone is fastest, since the derivatives of one fill the cache.
    """
    n, batch = len(xs), max(1, 256 // flow.space.dof**2)
    if n < 1:
        raise ValueError(f"expected at least 1 point, got {n}")
    # whole batches: a remainder would be compiled for itself
    size = batch * min(16, -(-n // batch))

    def chunk(first: int):
        rows = np.minimum(np.arange(first, first + size), n - 1)
        own = None if flow.probes is None or keys is None else keys[rows]
        given = everywhere((flow, xs[rows], own, start, end))
        return home(_carry_chunk(*given, batch))

    xs = home(xs)
    made = [chunk(first) for first in range(0, n, size)]
    return tuple(jnp.concatenate(parts)[:n] for parts in zip(*made, strict=True))


@eqx.filter_jit
def _carry_chunk(flow: Flow, xs: Array, keys: Array | None, start: Array, end: Array, batch: int):
    def some(tree, chunk):
        flow, start, end = tree
        return jax.vmap(lambda x, key: flow.carry(x, key, start, end))(*chunk)

    split = lambda a: a.reshape(-1, batch, *a.shape[1:])  # noqa: E731
    made = map_chunks(some, (flow, start, end), jax.tree.map(split, (xs, keys)))
    return jax.tree.map(lambda a: a.reshape(len(xs), *a.shape[2:]), made)
