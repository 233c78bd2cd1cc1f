"""iDEM, Iterated Denoising Energy Matching, and pDEM, which samples only the prior (paper, §3)."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from demx.buffer import Buffer
from demx.devices import CALL, call_sizes, everywhere, home
from demx.draws import Draws
from demx.energy import evaluate
from demx.estimator import Estimator
from demx.flow import log_probs, probes_for, samples
from demx.methods.annealing import Annealing
from demx.methods.diffusion import Diffusion, Pin
from demx.methods.matching import Matching, State
from demx.methods.moves import Moves
from demx.methods.regression import Regression
from demx.methods.strays import Strays
from demx.methods.training import Training
from demx.methods.walk import Walk
from demx.model import Precondition, ScoreModel
from demx.noise import Noise
from demx.sde import Grid, Rule
from demx.types import Method, Samples, Target


class Parts(NamedTuple):
    """What iDEM and pDEM are made of.

    network: a function of a key. warm_start: (n, *shape) points to put into the buffer first, the
    paper's option of existing data.
    """

    noise: Noise
    estimator: Estimator
    draws: Draws
    network: Callable[[PRNGKeyArray], eqx.Module]
    precondition: Precondition
    buffer: Buffer
    grid: Grid
    rule: Rule
    training: Training
    pin: Pin | None = None
    moves: Moves | None = None
    strays: Strays | None = None
    walk: Walk | None = None
    warm_start: ArrayLike | None = None


def idem(target: Target, parts: Parts) -> Method:
    """A diffusion sampler learned from energies, on its own samples (paper, algorithm 1)."""
    diffusion = _diffusion(target, parts)
    new = parts.training.new_samples

    def collect(key, model):
        return diffusion.run(key, model, new, parts.training.exploration)

    return _method(parts, diffusion, collect, new * diffusion.calls_per_sample)


def pdem(target: Target, parts: Parts) -> Method:
    """iDEM on samples of the prior p_1: no simulation while training (paper, §4)."""
    diffusion = _diffusion(target, parts)

    def collect(key, model):
        return diffusion.prior(key, parts.training.new_samples)

    return _method(parts, diffusion, collect, 0)


def _diffusion(target: Target, parts: Parts) -> Diffusion:
    return Diffusion(target, parts.noise, parts.precondition, parts.grid, parts.rule, parts.pin)


def _method(parts: Parts, diffusion: Diffusion, collect, collect_calls: int) -> Method:
    target, space = diffusion.target, diffusion.target.space
    training = parts.training
    regression = Regression(
        target,
        parts.noise,
        parts.estimator,
        parts.draws,
        parts.buffer,
        training.batch_size,
        training.prior_fraction,
        diffusion.prior,
        diffusion.precondition.weight,
        parts.strays,
        parts.walk,
    )
    engine = Matching(regression, training, collect, collect_calls, parts.moves)

    @eqx.filter_jit  # one program, not one for each of its dozens of small operations
    def init(key: PRNGKeyArray) -> State:
        model = ScoreModel(parts.network(key), diffusion.precondition, diffusion.noise, space)
        contents = parts.buffer.init(space)
        if parts.warm_start is not None:
            points = space.project(jnp.asarray(parts.warm_start, float))
            log_density = jnp.zeros(len(points))
            if parts.buffer.needs_energy:
                log_density = evaluate(target, points).log_density
            contents = parts.buffer.add(contents, points, log_density)
        return engine.init(model, contents)

    @eqx.filter_jit
    def draw(key: PRNGKeyArray, model: ScoreModel, n: int) -> Array:
        return diffusion.run(key, model, n, 1.0)

    @eqx.filter_jit
    def weigh(x: Array, log_prob: Array):
        log_density, _, bad = evaluate(target, x)
        bad = bad | ~jnp.isfinite(log_prob)
        return x, log_prob, jnp.where(bad, -jnp.inf, log_density - log_prob), bad

    def draw_weighted(key: PRNGKeyArray, model: ScoreModel, n: int):
        """Beyond 200 degrees of freedom log q is noisy, and weights too large on average."""
        return weigh(*samples(diffusion.flow(model, probes=probes_for(space)), key, n))

    def density(model: ScoreModel, xs: Array) -> Array:
        # the same points get the same probes, if there are any: a density does not change by call
        key = jax.random.key(0)
        return log_probs(diffusion.flow(model, probes=probes_for(space)), xs, key)

    each = diffusion.calls_per_sample

    def sizes(n: int) -> list[int]:
        return call_sizes(n, free=not each)

    def sample(key: PRNGKeyArray, state: State, n: int) -> Samples:
        model = everywhere(state.average)
        # a full call's draws do not depend on n
        drawn = [
            home(draw(jax.random.fold_in(key, i), model, size)) for i, size in enumerate(sizes(n))
        ]
        return Samples(jnp.concatenate(drawn)[:n], energy_calls=sample_calls(n))

    def sample_calls(n: int) -> int:
        """What was drawn is paid for, also the end of the last call."""
        return sum(sizes(n)) * each

    def sample_weighted(key: PRNGKeyArray, state: State, n: int) -> Samples:
        model = everywhere(state.average)
        made = [
            draw_weighted(jax.random.fold_in(key, i), model, min(n - start, CALL))
            for i, start in enumerate(range(0, n, CALL))
        ]
        x, log_prob, log_weight, bad = (jnp.concatenate(m) for m in zip(*made, strict=True))
        return Samples(x, log_weight, log_prob, energy_calls=n, bad=int(jnp.sum(bad)))

    @eqx.filter_jit
    def swarm(key: PRNGKeyArray, model: ScoreModel, smc: Annealing, islands: int, rows: int):
        return diffusion.anneal(key, model, smc, islands, rows)

    def anneal(key: PRNGKeyArray, state: State, n: int, smc: Annealing) -> Samples:
        islands = max(1, round(n / smc.island))
        rows = -(-n // islands)
        made = home(swarm(*everywhere((key, state.average)), smc, islands, rows))
        number = jnp.repeat(jnp.arange(islands), rows)
        x = made.x.reshape(islands * rows, *space.shape)
        calls = diffusion.anneal_calls(smc, islands * rows)
        weight = made.log_weight.ravel()
        lost = int(jnp.sum(made.lost.ravel()[:n]))
        return Samples(
            x[:n], weight[:n], energy_calls=calls, bad=lost, island=number[:n],
            bad_calls=int(jnp.sum(made.bad)),
        )  # fmt: skip

    def log_prob(state: State, xs: Array) -> Array:
        return density(everywhere(state.average), xs)

    at_init = 0
    if parts.warm_start is not None and parts.buffer.needs_energy:
        at_init = len(parts.warm_start)
    parts.grid.check(parts.noise)
    made = Method(
        init, engine.stepper(), sample, engine.calls_per_step, at_init, anneal=anneal,
        outer_steps=parts.training.outer_steps,
        sample_calls=sample_calls,
        plan=engine.plan if parts.training.falls else None,
    )  # fmt: skip
    if diffusion.pin is not None:
        # every stage of the solver would call the energy, uncounted: no density with a pin
        return made
    return made._replace(log_prob=log_prob, sample_weighted=sample_weighted)
