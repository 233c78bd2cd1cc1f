"""demx in Python: fit a target, get an object that samples."""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsIndex

import equinox as eqx
import jax
from jaxtyping import Array, ArrayLike
from rich.console import Console

from demx import config as configuration
from demx.beginning import beginning
from demx.budget import Budget, Looks, parse_budget
from demx.errors import UserError
from demx.fitted import Fitted, LogZ, log_z
from demx.glance import Glance
from demx.interruption import Inside
from demx.pace import cost, duration, short
from demx.progress import ProgressLine
from demx.recipe import LOOPS, PATIENCE
from demx.resolve import reopen, resolve
from demx.samples import Stored
from demx.space import dim_of
from demx.store import Store
from demx.targets.black_box import BlackBox
from demx.train import Progress, train
from demx.types import Method, Target
from demx.watch import Stopping
from demx.whole import check_seed

HARMLESS = 1e-3  # share of energies that are not finite

__all__ = ["Fitted", "LogZ", "fit", "load", "log_z"]


def fit(
    target: str | Target | Callable[[Array], Array],
    *,
    method: str = "idem",
    seed: SupportsIndex = 0,
    budget: str | None = None,
    directory: str | Path | None = None,
    dim: SupportsIndex | None = None,
    particles: Iterable[SupportsIndex] | None = None,
    species: Iterable[SupportsIndex] | None = None,
    shape: Iterable[SupportsIndex] | None = None,
    scale: float | None = None,
    recipe: bool = False,
    warm_start: ArrayLike | Stored | None = None,
    progress: bool = True,
    checkpoint_seconds: float = 15.0,
    settings: Mapping[str, Any] | None = None,
) -> Fitted:
    """Train a sampler on a target: a name, FILE.py:NAME, a Target, or an energy function of one
    configuration.

    budget: '10m', '90s' of probe and training or '5e6calls'; an outer loop that has begun is
    finished, unless the energy is a black box and it would take a tenth longer. directory: keep a
    run there, and go on from it when called again. dim / particles / species: the space of an
    energy function; species are whole numbers, one for each particle, where they are not all equal.
    shape: (10,) is another word for dim=10; of two numbers it must be said that they are particles.
    scale: the rough width of its mass, if it is known; a probe finds it otherwise. recipe: let the
    probe decide also where demx has a preset. warm_start: points (n, *shape) to begin from, or what
    `demx.samples.read` has found in a file: chains take them in turn, the first for the first chain
    (without any, those of `target.start`, if it has that), idem and pdem put them into the buffer;
    other methods refuse them. checkpoint_seconds: how much work a kill may cost; the result is the
    same whatever it is (but with a budget in time, by which the clock has a say).
    settings: sections that change the preset, e.g. {"draws": {"num_samples": 512}}.
    """
    begun, limit, seed = time.perf_counter(), parse_budget(budget), check_seed(seed)
    store = None if directory is None else Store(directory)
    before = store.config() if store and store.config_file.exists() else None
    built, config = resolve(
        target, method=method, seed=seed, dim=dim_of(shape, dim, particles), particles=particles,
        species=species, scale=scale, recipe=recipe, warm_start=warm_start, settings=settings,
        budget=limit, before=before, quiet=not progress,
    )  # fmt: skip
    if not checkpoint_seconds > 0:
        raise UserError(f"checkpoint_seconds: expected a positive number, got {checkpoint_seconds}")
    made = configuration.build_method(method, built, config, beginning(method, built, warm_start))
    # everything a user can get wrong is refused before the directory is touched
    jax.eval_shape(made.init, jax.random.key(seed))
    outer_steps = made.outer_steps
    every, n = config["evaluation"]["every"], config["evaluation"]["n"]
    fitted = Fitted(built, made, None, config, Progress())
    sets = fitted.reference()
    console = Console(stderr=True, quiet=not progress)
    _say_cost(built, made, config, limit, console)
    glance = Glance(made, built, n, sets)
    looks = Looks(every, glance.calls)
    if limit.looks(looks, made.calls_at_init, made.calls_per_step, outer_steps) != looks:
        console.print(
            f"the samples are not looked at while training: a look takes {short(glance.calls)} "
            "energy calls, and looks would cost more than half of the training",
            highlight=False,
        )
    with contextlib.ExitStack() as stack:
        if store:
            stack.enter_context(store.lock())
            store.open(config)
        dear = isinstance(built, BlackBox)
        asked = (lambda: built.points) if dear else None
        line = stack.enter_context(
            ProgressLine(outer_steps, limit, made.calls_per_step, console, asked)
        )
        trained = train(
            made,
            seed=seed,
            outer_steps=outer_steps,
            budget=limit,
            spent=time.perf_counter() - begun,
            keeper=store,
            evaluate=glance,
            every=every,
            look_calls=glance.calls,
            observe=line,
            checkpoint_seconds=checkpoint_seconds,
            stopping=Stopping(**config["stopping"]),
            energy=built if dear else Inside(),
            acknowledge=line.stopping,
        )
    share = line.bad / max(1, trained.progress.energy_calls)
    # a trajectory that is refused now and then is what Metropolis is for: progress counts it
    if line.unusable or share > HARMLESS:
        warnings.warn(
            f"{line.bad:,} energies or new samples ({100 * share:.2g} % of the energy calls) were "
            f"not finite while training, and {line.unusable:,} regression points could not be "
            "used: the energy is not finite where the sampler goes",
            stacklevel=2,
        )
    if trained.ended == "budget" and trained.progress.step == 0:
        learns = configuration.method_entry(method).network
        advice = ", and for a slow energy a classical method (hmc) is the right one"
        warnings.warn(
            "not one outer loop was done within the budget, so the sampler is untrained; a larger "
            f"budget goes on{advice if learns else ''}",
            stacklevel=2,
        )
    elif (
        trained.ended == "budget"
        and configuration.method_entry(method).network
        and trained.progress.step < LOOPS <= outer_steps
    ):
        warnings.warn(
            f"only {trained.progress.step} of {outer_steps} outer loops were done within the "
            f"budget, and {method} needs {LOOPS} at least: this sampler is hardly trained; the "
            "same call with a larger budget goes on",
            stacklevel=2,
        )
    fitted.state, fitted.progress, fitted.ended = trained.kept, trained.progress, trained.ended
    fitted.directory = None if store is None else store.directory
    fitted.history = store.history() if store else line.history
    return fitted


def _say_cost(
    target: Target, method: Method, config: Mapping[str, Any], budget: Budget, console: Console
) -> None:
    """What an outer loop takes, of a black box or in sizes that the budget decided; a warning
    where it has room for too few of a black box."""
    calls = method.calls_per_step
    said = cost(target, calls)
    if said is None and "loop_calls" in config:
        console.print(
            f"one outer loop: {short(calls)} energy calls, by sizes smaller than the recipe's own "
            "for the sake of the budget",
            highlight=False,
        )
    if said is None or not calls:
        return
    console.print(f"one outer loop: {said}", highlight=False)
    if calls <= config.get("loop_calls", math.inf):
        return
    seconds = budget.seconds if budget != Budget() else PATIENCE
    left = max(0.0, budget.energy_calls - method.calls_at_init)
    loops = min(seconds / (calls * target.seconds_per_point), left / calls)
    needed = min(LOOPS, method.outer_steps)
    if loops >= needed:  # the sizes leave some room
        return
    where = "the budget" if budget != Budget() else duration(PATIENCE)
    learns = configuration.method_entry(config["method"]).network
    short_of = "an energy this slow" if math.isinf(budget.energy_calls) else "so few calls"
    advice = (
        f"for {short_of} a classical method (method hmc: --method hmc) is the right one"
        if learns
        else "what it cannot reach within the budget, it does not sample"
    )
    warnings.warn(
        f"{where} has room for about {loops:.2g} outer loops of {said}, and {config['method']} "
        f"needs {needed} at least: {advice}",
        stacklevel=3,
    )


def load(directory: str | Path) -> Fitted:
    """A run from its directory; the file of a FILE.py:NAME is read again.

    For a run of an energy that was handed over in Python call `fit` again.
    """
    store = Store(directory)
    config = store.config()
    if "fingerprint" in config and "source" not in config:
        raise UserError(
            f"{directory}: a run of an energy given in Python ({config['target']}), which is not "
            "stored; call demx.fit with the same energy and directory"
        )
    for name in ("target", "method", "seed", *(["fingerprint"] if "source" in config else [])):
        if name not in config:
            raise UserError(f"{store.config_file}: expected an entry {name!r}, found none")
    if "source" in config:
        target = reopen(config, directory)
    else:
        target = configuration.build_target(config["target"], config.get("target_settings", {}))
    method = configuration.build_method(config["method"], target, config)
    # not init itself: what that would cost is not spent
    like = eqx.filter_eval_shape(method.init, jax.random.key(0))
    found = store.load((like, like))
    if found is None:
        raise UserError(f"{directory}: no checkpoint yet; run demx fit first")
    (_, kept), header = found
    return Fitted(
        target, method, kept, config, Progress.of(header),
        ended=header.get("ended"), directory=store.directory, history=store.history(),
    )  # fmt: skip
