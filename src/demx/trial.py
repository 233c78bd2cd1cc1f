"""A trained sampler on trial: fresh samples, and the weights and densities that belong to them.

What weights say must be of the sampler whose samples stand beside it. Annealed SMC makes its own,
and they are what its samples were drawn by; Metropolis moves leave no density that is known.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from demx.assessment import (
    Assessment,
    Density,
    assess_target,
    column_calls,
    drawn_by_weight,
    flow_density,
)
from demx.correction import LEAPFROG
from demx.drawing import NO_DENSITY, Drawing, How, Unweighted, stream_key
from demx.errors import UserError
from demx.evaluate.reference import Reference
from demx.pace import watched
from demx.targets.black_box import BlackBox

LIKELIHOODS = ("auto", "native", "flow", "none")
CHEAP_DOF = 16  # up to here the density of a thousand samples takes seconds
TOO_DEAR = (
    "The sampler's own density, and with it ESS, k̂, log Z and NLL, is left out: in {} dimensions "
    "it can take hours. `demx evaluate RUN --likelihood native --likelihood-n 200`, or "
    "evaluate(likelihood='native', likelihood_n=200), computes it."
)
MOVED = (
    "ESS, k̂, log Z and NLL are left out: after moves of {} the density of these samples is not "
    "known. `--likelihood native`, or evaluate(likelihood='native'), tells those of the "
    "uncorrected sampler."
)
OF_UNCORRECTED = (
    "ESS, k̂, log Z and NLL, and what is said of weights, are of the uncorrected sampler; all else "
    "is of its samples after moves of {}."
)


class Told(NamedTuple):
    """The density that is judged beside samples, what must be known of it first, and what to say
    in its place."""

    density: Density | None
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def trial(
    drawing: Drawing,
    how: How,
    *,
    n: int,
    repeats: int | None,
    seed: int,
    likelihood: str,
    likelihood_n: int,
    mcmc_calls: Callable[[int], int | None],
    reference: Reference | None,
) -> Assessment:
    """n·repeats fresh samples judged (see `Fitted.evaluate`). mcmc_calls: what tuned chains may
    take, if they are asked for, from what drawing the samples took."""
    target = drawing.target
    if likelihood not in LIKELIHOODS:
        wanted = ", ".join(LIKELIHOODS)
        raise UserError(f"likelihood: expected one of {wanted}, got {likelihood!r}")
    if likelihood == "native" and how.correct != "smc" and not drawing.weighs:
        raise UserError(
            f"likelihood: {NO_DENSITY}, so none is native; flow trains a density on its samples, "
            "auto and none do without"
        )
    if repeats is None:
        dear = isinstance(target, BlackBox) and drawing.calls(n, how) != 0
        repeats = 1 if dear else 10
    calls = drawing.calls(n * repeats, how)
    if calls is not None:
        calls += n * repeats + column_calls(mcmc_calls(calls))
    with watched(target, "evaluate", calls):
        made = drawing.unweighted(stream_key(seed, "evaluate"), n, repeats, how)
        drawn = made.samples
        told = _density(drawing, made, how, likelihood, likelihood_n, seed)
        judged = assess_target(
            target,
            np.asarray(drawn.x),
            reference=reference,
            n=n,
            density=told.density,
            mcmc_calls=mcmc_calls(drawn.energy_calls),
            sampling_calls=drawn.energy_calls,
            seed=seed,
            island=None if drawn.island is None else np.asarray(drawn.island),
            log_z=drawn.log_z,
        )
    if made.worth is not None:
        # bad ones have weight 0, and were never drawn
        found = judged.samples._replace(bad=judged.samples.bad + drawn.bad)
        judged = judged._replace(samples=found)
        judged = judged.noted(drawn_by_weight(len(drawn.x), made.worth))
    left_out = (*told.left_out, *judged.samples.left_out)
    judged = judged._replace(samples=judged.samples._replace(left_out=left_out))
    return judged.noted(*told.notes)


def _density(
    drawing: Drawing, made: Unweighted, how: How, likelihood: str, n: int, seed: int
) -> Told:
    """The density that a likelihood names, of samples as they were made."""
    method, dof = drawing.method, drawing.target.space.dof
    if likelihood == "flow":
        return Told(flow_density(drawing.target, np.asarray(made.samples.x), n, seed))
    if likelihood == "none":
        return Told(None)
    if how.correct == "smc":
        return Told(_of_swarms(made))
    if likelihood == "auto":
        if not drawing.weighs:
            return Told(None)
        if how.correct in LEAPFROG:
            return Told(None, left_out=(MOVED.format(how.correct),))
        # a density by a flow takes hours in many dimensions; weights alone are there anyway
        if dof > CHEAP_DOF and method.log_prob is not None:
            return Told(None, left_out=(TOO_DEAR.format(dof),))
    own = _own(drawing, n, seed)
    if how.correct is None:
        return Told(own)
    name = f"{own.name}, without correction"
    return Told(own._replace(name=name), notes=(OF_UNCORRECTED.format(how.correct),))


def _of_swarms(made: Unweighted) -> Density:
    """Annealed SMC's weights, those that the samples were drawn by: they cost nothing more."""
    swarms = made.weighted
    return Density(
        np.asarray(swarms.log_weight), None, 0, "the weights of annealed SMC",
        None if swarms.island is None else np.asarray(swarms.island),
    )  # fmt: skip


def _own(drawing: Drawing, n: int, seed: int) -> Density:
    """What the method's own weights, at n of its samples, and its density say."""
    method, state = drawing.method, drawing.state
    weighted = drawing.draw(stream_key(seed, "sample"), n, How(weights=True))
    log_prob, weigh = method.log_prob, method.weigh_backward
    key = stream_key(seed, "backward")
    return Density(
        np.asarray(weighted.log_weight),
        log_prob and (lambda x: np.asarray(log_prob(state, jnp.asarray(x, float)))),
        weighted.energy_calls,
        "the sampler's own density" if log_prob else "the sampler's weights",
        None if weighted.island is None else np.asarray(weighted.island),
        weigh and (lambda x: weigh(key, state, x)),
        None
        if weighted.log_prob is None
        # log w = -E - log q
        else -np.asarray(weighted.log_weight) - np.asarray(weighted.log_prob),
    )
