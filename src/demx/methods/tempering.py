"""Parallel tempering: replicas at β_0 = 1 > … > β_{R-1} move by HMC and trade places.

    replica r has density p̃(x)^{β_r};
    neighbours trade with probability min(1, exp((β_r - β_{r+1})(log p̃(x_{r+1}) - log p̃(x_r)))).

Even and odd pairs take turns, which carries replicas along the ladder fastest (Syed et al., 2022,
"Non-reversible parallel tempering"); the ladder is spaced so that every pair rejects equally often.
C independent ensembles run side by side and tune together. The moves are BlackJAX's, in orthonormal
coordinates of the space, so they never leave it.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from demx.energy import evaluate, pointwise
from demx.types import Target

ACCEPTANCE = 0.8  # of the HMC moves; near the optimum for trajectories of fixed length
REJECTION = 0.6  # of the trades; beyond it a replica hardly travels


class Ladder(NamedTuple):
    """What is tuned: inverse temperatures, falling from 1, and the step size at each.

    While tuning, every replica has a step size of its own, (C, R).
    """

    beta: Float[Array, " R"]
    step_size: Float[Array, "*C R"]


class Chains(NamedTuple):
    """C ensembles of R replicas: coordinates, log p̃ and its gradient (both at β = 1)."""

    position: Float[Array, "C R dof"]
    log_density: Float[Array, "C R"]
    gradient: Float[Array, "C R dof"]
    turn: Int[Array, ""]


class Moved(NamedTuple):
    """Acceptance of the moves and rejection of the trades, means; and how many proposals had a log
    p̃ that was not finite, a sum."""

    acceptance: Float[Array, "*C R"]
    rejection: Float[Array, "*C pairs"]
    bad: Int[Array, "*C R"]

    def over(
        self, axis: int | tuple[int, ...], counted: Bool[Array, " C"] | None = None
    ) -> "Moved":
        """The same over all ensembles, or those that are counted, or over many transitions."""
        where = None
        if counted is not None:
            where = counted.reshape((1,) * (self.bad.ndim - 2) + (-1, 1))
        means = (jnp.mean(a, axis=axis, where=where) for a in self[:2])
        return Moved(*means, jnp.sum(self.bad, axis=axis, where=where))


def geometric_ladder(num_rungs: int, beta_min: float, step_size: Float[ArrayLike, ""]) -> Ladder:
    """β_r = β_min^{r/(R-1)}, and steps that grow like β^{-1/2}."""
    beta = jnp.asarray(np.geomspace(1.0, beta_min, num_rungs), float)
    return Ladder(beta, step_size / jnp.sqrt(beta))


class Tempering(eqx.Module):
    """The sampler. num_leapfrog: energy calls of one HMC move of one replica.

    acceptance: what the step sizes are tuned to. counted: ensembles whose moves are told (nan
    without any); None: all.
    """

    target: Target
    num_leapfrog: int = 8
    acceptance: float = ACCEPTANCE
    counted: Bool[Array, " C"] | None = None

    def init(self, xs: Float[Array, "C ..."], num_rungs: int) -> Chains:
        """Every replica of ensemble c starts at xs[c]: C energy calls."""
        space = self.target.space
        xs = space.project(xs)
        found = evaluate(self.target, xs)

        def rungs(a: Array) -> Array:
            return jnp.repeat(a[:, None], num_rungs, axis=1)

        coordinates = jax.vmap(space.coordinates)
        return Chains(
            rungs(coordinates(xs)),
            rungs(found.log_density),
            rungs(coordinates(found.score)),
            jnp.zeros((), int),
        )

    def calls(self, chains: Chains) -> int:
        """Energy calls of one `transition`."""
        return chains.log_density.size * self.num_leapfrog

    def move(
        self, key: PRNGKeyArray, chains: Chains, ladder: Ladder
    ) -> tuple[Chains, Array, Array]:
        """One HMC move of every replica; (C, R) acceptances, and which proposals were bad."""
        from blackjax.mcmc import hmc  # takes seconds to import: only when chains are run

        log_density = pointwise(self.target)
        configuration = self.target.space.configuration
        kernel = hmc.build_kernel()
        count, rungs, dof = chains.position.shape
        key_step, key_move = jax.random.split(key)
        # trajectories of varying length cannot resonate with a stiff direction
        jitter = jax.random.uniform(key_step, (count, 1), minval=0.7, maxval=1.3)
        step_size = (jitter * jnp.broadcast_to(ladder.step_size, (count, rungs))).ravel()
        beta = jnp.broadcast_to(ladder.beta[None], (count, rungs)).ravel()

        def one(key, u, value, gradient, beta, step_size):
            state = hmc.HMCState(u, beta * value, beta * gradient)
            tempered = lambda u: beta * log_density(configuration(u))  # noqa: E731
            mass = jnp.ones((dof,), u.dtype)
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                new, info = kernel(key, state, tempered, step_size, mass, self.num_leapfrog)
            return new.position, new.logdensity / beta, new.logdensity_grad / beta, info

        keys = jax.random.split(key_move, count * rungs)
        u, value, gradient, info = jax.vmap(one)(
            keys,
            chains.position.reshape(-1, dof),
            chains.log_density.ravel(),
            chains.gradient.reshape(-1, dof),
            beta,
            step_size,
        )
        moved = Chains(
            u.reshape(count, rungs, dof),
            value.reshape(count, rungs),
            gradient.reshape(count, rungs, dof),
            chains.turn,
        )
        # a trajectory that leaves the finite numbers has acceptance nan: it was rejected
        acceptance = jnp.nan_to_num(info.acceptance_rate, nan=0.0)
        bad = ~jnp.isfinite(info.proposal.logdensity)
        return moved, acceptance.reshape(count, rungs), bad.reshape(count, rungs)

    def trade(self, key: PRNGKeyArray, chains: Chains, ladder: Ladder) -> tuple[Chains, Array]:
        """Even or odd neighbours trade places; returns the rejections of all pairs (C, R-1)."""
        count, rungs = chains.log_density.shape
        gap = ladder.beta[:-1] - ladder.beta[1:]
        difference = chains.log_density[:, 1:] - chains.log_density[:, :-1]
        # nan: both outside the support, nothing to gain; +∞: the colder one is rescued
        log_ratio = gap[None] * jnp.where(jnp.isnan(difference), -jnp.inf, difference)
        turn = jnp.arange(rungs - 1) % 2 == chains.turn % 2
        uniform = jax.random.uniform(key, log_ratio.shape)
        swap = (jnp.log(uniform) < log_ratio) & turn[None]
        zero = jnp.zeros((count, 1), bool)
        up, down = jnp.concatenate([swap, zero], 1), jnp.concatenate([zero, swap], 1)
        source = jnp.arange(rungs)[None] + up.astype(int) - down.astype(int)
        traded = Chains(
            jnp.take_along_axis(chains.position, source[..., None], axis=1),
            jnp.take_along_axis(chains.log_density, source, axis=1),
            jnp.take_along_axis(chains.gradient, source[..., None], axis=1),
            chains.turn + 1,
        )
        return traded, 1 - jnp.exp(jnp.minimum(log_ratio, 0.0))

    def transition(self, key: PRNGKeyArray, chains: Chains, ladder: Ladder) -> tuple[Chains, Moved]:
        """A move of every replica, then a trade."""
        chains, moved = self._transition(key, chains, ladder)
        return chains, moved.over(0, self.counted)

    def _transition(self, key, chains: Chains, ladder: Ladder) -> tuple[Chains, Moved]:
        key_move, key_trade = jax.random.split(key)
        chains, acceptance, bad = self.move(key_move, chains, ladder)
        chains, rejection = self.trade(key_trade, chains, ladder)
        return chains, Moved(acceptance, rejection, bad.astype(int))

    def tune(
        self,
        key: PRNGKeyArray,
        chains: Chains,
        ladder: Ladder,
        num_transitions: int,
        begin: Int[Array, ""] | int = 0,
    ) -> tuple[Chains, Ladder, Moved]:
        """Transitions while step sizes follow the acceptance (Robbins-Monro).

        Every replica adapts on its own, so that one that starts badly can free itself; the ladder
        then gets the median over the ensembles, and acceptances and rejections are means over
        the second half; bad proposals are counted over all. begin: transitions of this round made
        before, as steps adapt ever less.
        """
        rungs = ladder.beta.shape[0]
        log_step = jnp.broadcast_to(jnp.log(ladder.step_size), (chains.position.shape[0], rungs))

        def body(carry, now):
            chains, log_step = carry
            key, index = now
            chains, moved = self._transition(key, chains, Ladder(ladder.beta, jnp.exp(log_step)))
            rate = jnp.sqrt(1 / (1 + index))
            return (chains, log_step + rate * (moved.acceptance - self.acceptance)), moved

        keys = jax.random.split(key, num_transitions)
        index = (begin + jnp.arange(num_transitions)).astype(ladder.beta.dtype)
        (chains, log_step), moved = jax.lax.scan(body, (chains, log_step), (keys, index))
        half = jax.tree.map(lambda a: a[num_transitions // 2 :], moved)
        bad = moved.over((0, 1), self.counted).bad
        moved = half.over((0, 1), self.counted)._replace(bad=bad)
        return chains, Ladder(ladder.beta, jnp.exp(jnp.median(log_step, axis=0))), moved

    def run(
        self, key: PRNGKeyArray, chains: Chains, ladder: Ladder, keep: int, thin: Int[Array, ""]
    ) -> tuple[Chains, Moved, Float[Array, "keep C dof"], Float[Array, "keep C"]]:
        """keep·thin transitions; the coordinates and log p̃ at β = 1 of every thin-th are kept."""

        def body(chains, key):
            def once(i, carry):
                chains, total = carry
                chains, moved = self.transition(jax.random.fold_in(key, i), chains, ladder)
                return chains, jax.tree.map(jnp.add, total, moved)

            rungs = ladder.beta.shape[0]
            none = Moved(jnp.zeros(rungs), jnp.zeros(rungs - 1), jnp.zeros(rungs, int))
            chains, total = jax.lax.fori_loop(0, thin, once, (chains, none))
            means = (a / jnp.maximum(thin, 1).astype(a.dtype) for a in total[:2])
            moved = Moved(*means, total.bad)
            return chains, (moved, chains.position[:, 0], chains.log_density[:, 0])

        chains, (moved, u, value) = jax.lax.scan(body, chains, jax.random.split(key, keep))
        return chains, moved.over(0), u, value


def respace(ladder: Ladder, rejection: np.ndarray, max_rungs: int) -> Ladder:
    """A ladder on which all pairs reject equally often, with twice as many rungs as Λ = Σ r_i.

    Rejections add up along the ladder whatever its spacing (Syed et al., 2022). If even `max_rungs`
    would reject more than `REJECTION` a pair, the hot end is cut off.
    """
    beta, step_size = np.asarray(ladder.beta, float), np.asarray(ladder.step_size, float)
    cumulative = np.concatenate([[0.0], np.cumsum(np.maximum(rejection, 1e-3))])
    top = min(cumulative[-1], REJECTION * (max_rungs - 1))
    rungs = int(np.clip(np.ceil(2 * top) + 1, 2, max_rungs))
    at = np.linspace(0.0, top, rungs)
    log_beta = np.interp(at, cumulative, np.log(beta))
    order = slice(None, None, -1)  # np.interp wants rising abscissae
    log_step = np.interp(log_beta, np.log(beta)[order], np.log(step_size)[order])
    return Ladder(jnp.asarray(np.exp(log_beta), float), jnp.asarray(np.exp(log_step), float))


def resize(chains: Chains, old: Ladder, new: Ladder) -> Chains:
    """The replicas of a new ladder: each starts from the old one nearest in log β."""
    gap = jnp.abs(jnp.log(new.beta)[:, None] - jnp.log(old.beta)[None])
    nearest = jnp.argmin(gap, axis=1)
    pick = lambda a: a[:, nearest]  # noqa: E731
    return Chains(
        pick(chains.position), pick(chains.log_density), pick(chains.gradient), chains.turn
    )
