"""Annealed importance sampling and sequential Monte Carlo: unbiased estimates of Z with samples.

    log w = Σ_k (β_k - β_{k-1}) (log p̃(u_{k-1}) - log N(u_{k-1}; 0, s²)),    Z = E[w]

AIS never resamples, so its particles are independent. SMC resamples within islands; its weights
include what resampling has averaged. Islands are independent, so that their spread tells the
standard error of log Z: `log_z_is(log_weight, island)`. The steps of both are pilot runs
(`demx.classical.bridge`); nothing adapts while samples are drawn.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from demx.classical.bridge import Islands, Path, State, respaced
from demx.classical.importance import log_ess
from demx.classical.kernels import at_least, positive
from demx.types import Info, Method, Samples, Target

CHUNK = 4096  # particles of one compiled call of AIS: bounds memory
MOST, FEWEST, ISLAND = 32, 8, 64  # islands; particles of one, if they are not to be that few


class Annealed(eqx.Module):
    """scale: s, the standard deviation of the start, which must cover p. num_rungs: R.
    num_leapfrog: energy calls of the HMC move at a rung. num_pilot: particles of a pilot run.
    """

    outer_steps: int = 10
    scale: float = 1.0
    num_rungs: int = 64
    num_leapfrog: int = 5
    num_pilot: int = 256

    def __check_init__(self) -> None:
        positive(self, "scale")
        at_least(self, outer_steps=1, num_rungs=2, num_leapfrog=1, num_pilot=8)


class Smc(Annealed):
    """Those of AIS, and resample_below: effective share of an island at which it resamples."""

    resample_below: float = 0.5

    def __check_init__(self) -> None:
        if not 0 <= self.resample_below <= 1:
            raise ValueError(f"resample_below: expected between 0 and 1, got {self.resample_below}")


def ais(target: Target, settings: Annealed) -> Method:
    """Annealed importance sampling from a normal: independent weighted particles."""

    def plan(n: int) -> list[Islands]:
        return [Islands(1, min(n, CHUNK), 0.0)] * -(-n // CHUNK)

    made = _method(target, settings, plan, 0.0)

    def sample(key: PRNGKeyArray, state: State, n: int) -> Samples:
        return made.sample(key, state, n)._replace(island=None)

    return made._replace(sample=sample, sample_weighted=sample)


def smc(target: Target, settings: Smc) -> Method:
    """Sequential Monte Carlo from a normal: particles that resample within islands.

    There are 8 to 32 islands, numbered by `Samples.island`.
    """

    def plan(n: int) -> list[Islands]:
        count = max(FEWEST, min(MOST, n // ISLAND))
        return [Islands(count, -(-n // count), settings.resample_below)]

    return _method(target, settings, plan, settings.resample_below)


def _method(target: Target, settings: Annealed, plan, below: float) -> Method:
    """plan: the islands of each compiled call for n samples."""
    path = Path(target, settings.scale, settings.num_leapfrog)
    calls = 1 + settings.num_rungs * settings.num_leapfrog  # of a particle

    def init(key: PRNGKeyArray) -> State:
        # from a normal to p most happens at small β
        beta = jnp.linspace(0.0, 1.0, settings.num_rungs + 1) ** 3
        return State(beta, jnp.full_like(beta[1:], jnp.log(0.2)), jnp.zeros((), int))

    @eqx.filter_jit
    def step(key: PRNGKeyArray, state: State) -> tuple[State, Info]:
        rate = 1 / jnp.sqrt(1 + state.rounds.astype(state.beta.dtype))
        pilot = Islands(1, settings.num_pilot, below)
        particles, told, bad = path.run(key, state, pilot, rate)
        ess = jnp.exp(log_ess(particles.log_weight)) / settings.num_pilot
        info = Info(
            ess=jnp.nan_to_num(ess),  # nan: all weights are zero
            bad=jnp.sum(bad) + jnp.sum(told.bad),
            acceptance=jnp.mean(told.acceptance),
        )
        return respaced(state, told, rate), info

    @eqx.filter_jit
    def run(key: PRNGKeyArray, state: State, islands: Islands):
        particles, told, bad = path.run(key, state, islands, jnp.zeros_like(state.beta[0]))
        x = jax.vmap(target.space.configuration)(particles.walker.position)
        bad_calls = jnp.sum(bad) + jnp.sum(told.bad)
        # outside the support is weight 0, too. Who has it is in the row where it began, as bad as
        # it was there: an island that resamples leaves out all such
        lost = bad & ~jnp.isfinite(particles.log_weight)
        return x, particles.log_weight, lost, bad_calls, jnp.mean(told.acceptance)

    def sample_calls(n: int) -> int:
        """Of all particles, also those of the last group that nobody asked for."""
        return sum(group.count * group.rows for group in plan(n)) * calls

    def sample(key: PRNGKeyArray, state: State, n: int) -> Samples:
        groups = plan(n)
        made = [run(jax.random.fold_in(key, i), state, g) for i, g in enumerate(groups)]
        *rows, bad_calls, acceptance = zip(*made, strict=True)
        x, log_weight, lost = (jnp.concatenate(part) for part in rows)
        return Samples(
            x[:n],
            log_weight[:n],
            energy_calls=sample_calls(n),
            bad=int(jnp.sum(lost[:n])),
            island=jnp.arange(n) // groups[0].rows,
            acceptance=float(jnp.mean(jnp.stack(acceptance))),
            bad_calls=int(sum(bad_calls)),
        )

    return Method(
        init,
        step,
        sample,
        calls_per_step=settings.num_pilot * calls,
        sample_weighted=sample,
        outer_steps=settings.outer_steps,
        weighted=True,
        sample_calls=sample_calls,
    )
