"""Near-exact samples of any target: long parallel-tempering chains that must prove themselves.

Half of the ensembles start from a compact cluster (a relaxed one), half from a dispersed gas. From
given points half start as they are, half after they were heated: far from the others, but only as
far as the hottest temperature leads. The ladder and the steps are tuned, then segments of doubling
length run until split R-hat of every observable is below 1.01 over a whole segment: all of that is
burn-in. Its last segment measures the autocorrelation time τ; samples are then kept every 2τ
transitions.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from demx.descent import in_turn, relax
from demx.evaluate.convergence import (
    RHAT,
    autocorrelation_time,
    diagnose,
    observables,
    passes,
    rhat,
)
from demx.methods.tempering import Chains, Ladder, Tempering, geometric_ladder, resize, respace
from demx.space import normal
from demx.types import Target

SEGMENT = 128  # transitions of the first burn-in segment
TUNING = 100  # transitions of the first of four rounds, each twice as long as the one before
COMPACT, DISPERSED = 500, 100  # descent steps of the two kinds of start
HEATING = 100  # transitions at the hottest temperature that disperse given points
STARTING, ADAPTING = 0.1, 0.3  # shares of a number of energy calls for start and tuning
ROUNDS = 3  # of that tuning, which are of 2, 4 and 8 transitions at least


class Equilibrium(eqx.Module):
    """Sizes of the search for equilibrium.

    num_chains: ensembles side by side. beta_min: hottest rung asked for. scale: rough width of the
    target's mass. max_segment: longest burn-in segment, in transitions.
    """

    num_chains: int = 64
    max_rungs: int = 16
    beta_min: float = 0.05
    num_leapfrog: int = 8
    scale: float = 1.0
    max_segment: int = 16384

    def __check_init__(self) -> None:
        if self.num_chains < 8 or self.num_chains % 2:
            raise ValueError(f"num_chains: expected an even number >= 8, got {self.num_chains}")
        if not 0 < self.beta_min < 1:
            raise ValueError(f"beta_min: expected between 0 and 1, got {self.beta_min}")
        if not self.scale > 0:
            raise ValueError(f"scale: expected a positive number, got {self.scale}")
        for name in ("max_rungs", "num_leapfrog", "max_segment"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name}: expected at least 2, got {getattr(self, name)}")


class Drawn(NamedTuple):
    """Samples (n, *shape), the chains in turn, and what vouches for them."""

    x: np.ndarray
    log_density: np.ndarray
    diagnostics: dict
    energy_calls: int


class Sampler:
    """A tuned ladder and chains at equilibrium, and what getting there has cost."""

    def __init__(
        self,
        target: Target,
        settings: Equilibrium,
        key: PRNGKeyArray,
        start: ArrayLike | None = None,
        share: float = 1.0,
    ):
        """share: of the steps that a start takes, for those who cannot afford them all."""
        self.target, self.settings = target, settings
        self.tempering = Tempering(target, settings.num_leapfrog)
        self.energy_calls = 0
        self._run = eqx.filter_jit(self.tempering.run)
        # state after state: all distances of all states at once would take gigabytes
        self._observe = jax.jit(lambda u, v: jax.lax.map(lambda a: jax.vmap(self._one)(*a), (u, v)))
        self.key = key
        self.chains, self.ladder = self._start(start, share)
        self.acceptance = self.rejection = None

    def _one(self, u: Array, value: Array) -> Array:
        x = self.target.space.configuration(u)
        return jnp.concatenate([-value[None], observables(self.target)(x)])

    def _next_key(self) -> PRNGKeyArray:
        self.key, key = jax.random.split(self.key)
        return key

    def _start(self, given: ArrayLike | None, share: float) -> tuple[Chains, Ladder]:
        s = self.settings
        begin = self._scattered(share) if given is None else self._from(given, share)
        ladder = geometric_ladder(min(8, s.max_rungs), s.beta_min, 0.02 * s.scale)
        self.energy_calls += s.num_chains
        return self.tempering.init(jnp.concatenate(begin), len(ladder.beta)), ladder

    def _scattered(self, share: float) -> tuple[Array, Array]:
        """Compact and dispersed points, half as many as chains each."""
        s = self.settings
        compact, dispersed = _part(COMPACT, share), _part(DISPERSED, share)
        half = s.num_chains // 2
        move = eqx.filter_jit(relax)
        near = 0.5 * s.scale * normal(self._next_key(), self.target.space, (half,))
        near = move(self.target, near, compact, s.scale)
        far = 3 * s.scale * normal(self._next_key(), self.target.space, (half,))
        self.energy_calls += (compact + dispersed) * half
        return near, move(self.target, far, dispersed, s.scale)

    def _from(self, given: ArrayLike, share: float) -> tuple[Array, Array]:
        """Given points in turn: for half of the chains as they are, for the others heated."""
        s = self.settings
        near, cold = jnp.split(in_turn(given, self.target, s.num_chains), 2)
        hot = jnp.full((1,), s.beta_min)
        ladder = Ladder(hot, 0.02 * s.scale / jnp.sqrt(hot))
        tune, chains = eqx.filter_jit(self.tempering.tune), self.tempering.init(cold, 1)
        heating = _part(HEATING, share)
        chains, _, _ = tune(self._next_key(), chains, ladder, heating)
        self.energy_calls += len(cold) + heating * self.tempering.calls(chains)
        return near, jax.vmap(self.target.space.configuration)(chains.position[:, 0])

    def tune(self, rounds: int = 4, length: int = TUNING) -> None:
        """Rounds of doubling length; the ladder is spaced anew after each but the last."""
        tune = eqx.filter_jit(self.tempering.tune)
        for i in range(rounds):
            for piece in range(2**i):  # of one length, so that only a new ladder is compiled anew
                begin = jnp.asarray(piece * length)
                self.chains, self.ladder, moved = tune(
                    self._next_key(), self.chains, self.ladder, length, begin
                )
            self.energy_calls += length * 2**i * self.tempering.calls(self.chains)
            if i < rounds - 1:
                new = respace(self.ladder, np.asarray(moved.rejection), self.settings.max_rungs)
                self.chains, self.ladder = resize(self.chains, self.ladder, new), new

    def advance(self, keep: int, thin: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Kept coordinates (C, keep, dof), log p̃ (C, keep), observables (C, keep, k)."""
        self.chains, moved, u, value = self._run(
            self._next_key(), self.chains, self.ladder, keep, jnp.asarray(thin)
        )
        self.energy_calls += keep * thin * self.tempering.calls(self.chains)
        self.acceptance, self.rejection = np.asarray(moved.acceptance), np.asarray(moved.rejection)
        seen = self._observe(u, value)
        return tuple(np.swapaxes(np.asarray(a), 0, 1) for a in (u, value, seen))

    def burn_in(self, report=lambda text: None) -> tuple[float, int, bool]:
        """Segments of doubling length until R-hat < 1.01: (τ, transitions spent, converged)."""
        length, spent = SEGMENT, 0
        while True:
            # in pieces of one length, which are compiled once
            pieces = [self.advance(SEGMENT, 1)[2] for _ in range(length // SEGMENT)]
            seen = np.concatenate(pieces, axis=1)
            spent += length
            worst = float(np.max(rhat(seen)))
            tau = max(autocorrelation_time(seen[..., i]) for i in range(seen.shape[-1]))
            report(f"burn-in: {spent} transitions, R-hat {worst:.4f}, τ {tau:.1f}")
            if worst < RHAT:
                return tau, spent, True
            if 2 * length > self.settings.max_segment:
                return tau, spent, False
            length *= 2


def _part(steps: int, share: float) -> int:
    return max(1, int(share * steps))


def least_calls(n: int, settings: Equilibrium) -> int:
    """Energy calls of `equilibrium_samples` if one segment is all of the burn-in and τ is 1."""
    keep = _states(n, settings.num_chains)
    transitions = 15 * TUNING + SEGMENT + 2 * keep
    each = min(8, settings.max_rungs) * settings.num_leapfrog
    return settings.num_chains * (transitions * each + keep)


def _states(n: int, count: int) -> int:
    """Of each chain: R-hat's own noise, about 1/(keep √C), lies well below the 0.01 asked for."""
    return max(math.ceil(n / count), math.ceil(600 / count**0.5))


def equilibrium_samples(
    key: PRNGKeyArray,
    target: Target,
    n: int,
    settings: Equilibrium,
    report=lambda text: None,
    start: ArrayLike | None = None,
) -> Drawn:
    """n samples at equilibrium, or as near as `max_segment` allows: look at `passes`.

    start: points (n, *shape) to begin from, instead of a compact cluster and a gas. If a demand is
    not met the chains go on with twice the thinning, three times at most.
    """
    sampler = Sampler(target, settings, key, start)
    sampler.tune()
    report(f"ladder: β = {', '.join(f'{b:.2g}' for b in np.asarray(sampler.ladder.beta))}")
    tau, burned, converged = sampler.burn_in(report)
    keep = _states(n, settings.num_chains)
    thin = max(1, math.ceil(2 * tau))
    for attempt in range(1, 5):
        u, value, seen = sampler.advance(keep, thin)
        found = diagnose(target, u, seen)
        sampler.energy_calls += u.shape[0] * u.shape[1]
        report(f"{keep} states of each chain, every {thin}: {passes(found)}")
        if all(passes(found).values()) or attempt == 4:
            break
        thin *= 2
    diagnostics = found | {
        "tau": tau,
        "thin": thin,
        "burn_in": burned,
        "burn_in_converged": converged,
        "attempts": attempt,
        "ladder": [round(float(b), 4) for b in np.asarray(sampler.ladder.beta)],
        "acceptance": [round(float(a), 3) for a in sampler.acceptance],
        "rejection": [round(float(r), 3) for r in sampler.rejection],
    }
    return _drawn(sampler, n, u, value, diagnostics)


def _drawn(sampler: Sampler, n: int, u: np.ndarray, value: np.ndarray, diagnostics: dict) -> Drawn:
    """n of the kept states (C, keep, dof): the first of every chain, then the second, and so on."""
    u, value = np.swapaxes(u, 0, 1).reshape(-1, u.shape[-1])[:n], value.T.ravel()[:n]
    x = np.asarray(jax.jit(jax.vmap(sampler.target.space.configuration))(u))
    return Drawn(x, value, diagnostics, sampler.energy_calls)


def fewest_calls(settings: Equilibrium) -> int:
    """Energy calls below which `samples_within` has no room for tuning, burn-in and a state."""
    transitions = 2 * (2**ROUNDS - 1) + 2
    energies = 2 * settings.num_chains  # of where chains begin
    return math.ceil((energies + transitions * _dearest(settings)) / (1 - STARTING))


def _dearest(settings: Equilibrium) -> int:
    """Energy calls of a transition on the longest ladder."""
    return settings.num_chains * settings.max_rungs * settings.num_leapfrog


def samples_within(
    key: PRNGKeyArray,
    target: Target,
    n: int,
    energy_calls: int,
    settings: Equilibrium,
    start: ArrayLike | None = None,
) -> Drawn:
    """What tuned chains make of a number of energy calls, never more, all told: a tenth at most
    the start, 30 % tuning, a fifth of the rest burn-in, then n states at equal intervals, or as
    many as there are calls for.
    """
    fewest = fewest_calls(settings)
    if energy_calls < fewest:
        raise ValueError(f"energy_calls: expected at least {fewest}, got {energy_calls}")
    half = settings.num_chains // 2
    heating = 1 + HEATING * settings.num_leapfrog
    usual = half * (COMPACT + DISPERSED if start is None else heating)
    sampler = Sampler(target, settings, key, start, min(1.0, STARTING * energy_calls / usual))
    tuning = ADAPTING * energy_calls / _dearest(settings)
    sampler.tune(ROUNDS, max(2, int(tuning / (2**ROUNDS - 1))))
    left = (energy_calls - sampler.energy_calls) // sampler.tempering.calls(sampler.chains)
    sampler.advance(1, max(1, left // 5))
    keep = min(math.ceil(n / settings.num_chains), max(1, left * 4 // 5))
    u, value, _ = sampler.advance(keep, max(1, left * 4 // 5 // keep))
    return _drawn(sampler, n, u, value, {})
