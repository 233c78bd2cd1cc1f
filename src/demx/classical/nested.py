"""Nested sampling (Skilling, 2006) with BlackJAX's slice sampler: samples and log Z from one run.

    Z = ∫ L(u) N(u; 0, s²) du,    L = p̃/N,    s = prior_width · scale

Live points of the normal prior climb L: those with the lowest L die, and the volume left shrinks
by a known factor on average; new ones come from slice moves above the dead ones' L. A run ends when
the live points hold less than `remaining` of Z. The standard error of log Z is the spread over
simulated shrinkages; it does not see lost modes, or slice moves too short to forget their start.
If p had longer tails than the prior, L would grow outwards without end: a wide prior is safe.
"""

import warnings
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from demx.classical.kernels import at_least, in_coordinates, lenient, positive
from demx.correction import equal_weights
from demx.errors import UserError
from demx.space import log_normal, normal
from demx.types import Info, Method, Samples, Target

SHRINKAGES = 200  # simulated sequences of volumes, for the standard error
TOGETHER = 10  # deaths between two looks at the remaining evidence, in units of num_delete


class Nested(eqx.Module):
    """scale: rough standard deviation of a coordinate. prior_width: of the prior, in scales.
    num_live: live points. num_delete: how many die, and are replaced, together. remaining: share of
    Z in the live points at which to end. moves_per_dof: slice moves of a new point for each degree
    of freedom (5 moves at least). max_rounds: give up after so many deaths/num_delete.
    """

    outer_steps: int = 1
    scale: float = 1.0
    prior_width: float = 3.0
    num_live: int = 500
    num_delete: int = 50
    remaining: float = 1e-3
    moves_per_dof: float = 3.0
    max_rounds: int = 20_000

    def __check_init__(self) -> None:
        positive(self, "scale", "prior_width", "moves_per_dof")
        at_least(self, outer_steps=1, num_live=4, num_delete=1, max_rounds=1)
        if self.num_delete > self.num_live // 2:
            raise ValueError(
                f"num_delete: expected at most half of num_live={self.num_live}, "
                f"got {self.num_delete}"
            )
        if not 0 < self.remaining < 1:
            raise ValueError(f"remaining: expected between 0 and 1, got {self.remaining}")


class State(NamedTuple):
    """Nothing is tuned beforehand: how many steps were made."""

    rounds: Int[Array, ""]


def nested(target: Target, settings: Nested) -> Method:
    """Nested sampling with slice moves; log Z with its error.

    `sample` makes a whole run. More samples than its effective number repeat points; copies of a
    point are an island, so that standard errors do not take them for new ones.
    """
    space = target.space
    width = settings.prior_width * settings.scale
    log_density = in_coordinates(target)

    def log_prior(u: Array) -> Array:
        return log_normal(space, u, width**2)

    def algorithm():
        from blackjax import nss

        return nss(
            log_prior,
            lambda u: log_density(u) - log_prior(u),
            num_inner_steps=max(5, round(settings.moves_per_dof * space.dof)),
            num_delete=settings.num_delete,
        )

    @eqx.filter_jit
    def begin(key: PRNGKeyArray):
        xs = width * normal(key, space, (settings.num_live,))
        with lenient():
            return algorithm().init(jax.vmap(space.coordinates)(xs))

    @eqx.filter_jit
    def advance(key: PRNGKeyArray, live):
        """Some rounds: the live points after, the dead, calls, log share of Z of the living."""

        def body(live, key):
            with lenient():
                live, info = algorithm().step(key, live)
            moves = info.update_info
            # a slice move looks at both ends of its first interval, too
            return live, (info.particles, jnp.sum(2 + moves.num_expansions + moves.num_shrink))

        live, (dead, calls) = jax.lax.scan(body, live, jax.random.split(key, TOGETHER))
        dead = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), dead)
        found = live.integrator
        log_share = found.logZ_live - jnp.logaddexp(found.logZ_live, found.logZ)
        return live, dead, jnp.sum(calls), log_share

    def climb(key: PRNGKeyArray):
        """All points, dead and in the end alive, and the energy calls of the run."""
        key_begin, key_rounds = jax.random.split(key)
        live, points, calls = begin(key_begin), [], settings.num_live
        for i in range(-(-settings.max_rounds // TOGETHER)):
            live, dead, spent, log_share = advance(jax.random.fold_in(key_rounds, i), live)
            points.append(jax.tree.map(np.asarray, dead))
            calls += int(spent)
            if float(log_share) < np.log(settings.remaining):
                points.append(jax.tree.map(np.asarray, live.particles))
                return jax.tree.map(lambda *parts: np.concatenate(parts), *points), calls
        raise UserError(
            f"nested: the live points still hold more than {settings.remaining} of the evidence "
            f"after {settings.max_rounds} rounds; raise max_rounds or num_delete, or check that "
            "the energy is finite somewhere in the prior and the prior is wide enough"
        )

    def init(key: PRNGKeyArray) -> State:
        return State(jnp.zeros((), int))

    def step(key: PRNGKeyArray, state: State) -> tuple[State, Info]:
        return State(state.rounds + 1), Info(bad=jnp.zeros((), int))

    def sample(key: PRNGKeyArray, state: State, n: int) -> Samples:
        key_climb, key_volume, key_choose = jax.random.split(key, 3)
        points, calls = climb(key_climb)
        seed = int(jax.random.bits(key_volume))
        log_weight = volumes(points.loglikelihood_birth, points.loglikelihood, seed)
        log_weight += np.asarray(points.loglikelihood, float)[:, None]
        value, error, posterior = evidence(log_weight)
        rows = equal_weights(posterior, n, int(jax.random.bits(key_choose)))
        copies = np.unique(rows, return_inverse=True)[1]
        x = jax.vmap(space.configuration)(jnp.asarray(points.position[rows]))
        stuck = int(np.sum(points.loglikelihood_birth >= points.loglikelihood))
        if stuck:
            warnings.warn(
                f"nested: {stuck} of {len(points.loglikelihood)} points never left the one they "
                "were born of, so log Z is in doubt; raise moves_per_dof or num_live",
                stacklevel=2,
            )
        # those that are born of others lie where the energy is finite
        bad_calls = int(np.isneginf(points.loglikelihood).sum())
        return Samples(
            x, energy_calls=calls, bad_calls=bad_calls, island=jnp.asarray(copies),
            log_z=(value, error),
        )  # fmt: skip

    return Method(init, step, sample, outer_steps=settings.outer_steps)


def volumes(birth: np.ndarray, death: np.ndarray, seed: int) -> np.ndarray:
    """log ΔX, (points, S), for S simulated sequences of prior volumes X.

    birth, death: (points,) log-likelihoods above which a point was born (nan: of the prior), and
    its own. A death among m live points shrinks X by a factor U^{1/m}; many born at one level count
    only after all deaths at that level, which is also right for plateaus (Fowlie et al., 2021). One
    whose moves never left its birth dies where it was born, after those and among its like.
    """
    death = np.fmax(birth, death)  # rounding may put it below
    stuck = birth == death
    order = np.lexsort((stuck, death))
    first, later = np.isnan(birth).sum(), np.sort(birth[~np.isnan(birth)])
    before, after = (np.searchsorted(later, death[order], side=side) for side in ("left", "right"))
    alive = first + np.where(stuck[order], after, before) - np.arange(len(death))
    uniform = np.random.default_rng(seed).random((len(death), SHRINKAGES))
    log_x = np.cumsum(np.log1p(-uniform) / alive[:, None], axis=0)
    # shells end half-way between neighbours; the first begins at X = 1, the last ends at 0
    ends = np.logaddexp(log_x[:-1], log_x[1:]) - np.log(2.0)
    none = np.zeros((1, SHRINKAGES))
    ends = np.concatenate([none, ends, none - np.inf])
    found = np.empty_like(log_x)
    found[order] = ends[:-1] + np.log(-np.expm1(np.diff(ends, axis=0)))
    return found


def evidence(log_weight: np.ndarray) -> tuple[float, float, np.ndarray]:
    """log Z, its standard error and the log posterior weight of every point.

    log_weight: (points, S) log(L ΔX) for S simulated sequences of volumes; log Z is the mean of
    theirs, which are nearly normal.
    """
    largest = log_weight.max(axis=0)
    log_z = np.log(np.exp(log_weight - largest).sum(axis=0)) + largest
    with np.errstate(divide="ignore"):  # points outside the support have weight 0
        posterior = np.log(np.exp(log_weight - log_z).mean(axis=1))
    return float(log_z.mean()), float(log_z.std(ddof=1)), posterior
