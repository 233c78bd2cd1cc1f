"""demx in Python: fit a target, get an object that samples."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, ArrayLike
from rich.console import Console

from demx import config as configuration
from demx.energy import energies as energies_of
from demx.errors import UserError
from demx.evaluate.evaluation import batched_energies, finite_rows
from demx.evaluate.metrics import energy_w2, w2
from demx.evaluate.reference import Reference
from demx.fitted import Fitted, LogZ, log_z
from demx.progress import ProgressLine
from demx.resolve import check_warm_start, resolve
from demx.store import Store
from demx.train import Progress, parse_budget, train
from demx.types import Method, Target

__all__ = ["Fitted", "LogZ", "fit", "load", "log_z"]


def fit(
    target: str | Target | Callable[[Array], Array],
    *,
    method: str = "idem",
    seed: int = 0,
    budget: str | None = None,
    directory: str | Path | None = None,
    dim: int | None = None,
    particles: tuple[int, int] | None = None,
    scale: float = 1.0,
    warm_start: ArrayLike | None = None,
    progress: bool = True,
    checkpoint_seconds: float = 15.0,
    settings: Mapping[str, Any] | None = None,
) -> Fitted:
    """Train a sampler on a target: a name, a Target, or an energy function of one configuration.

    budget: '10m', '90s' of training or '5e6calls'. directory: keep a run there, and go on from
    it when called again. dim / particles / scale: the space of an energy function and the rough
    width of its mass. warm_start: existing samples for the buffer. checkpoint_seconds: how much
    work a kill may cost; the result is the same whatever it is. settings: sections that
    change the preset, e.g. {"draws": {"num_samples": 512}}.
    """
    built, config = resolve(
        target, method=method, seed=seed, dim=dim, particles=particles, scale=scale,
        settings=settings,
    )  # fmt: skip
    limit = parse_budget(budget)
    if not checkpoint_seconds > 0:
        raise UserError(f"checkpoint_seconds: expected a positive number, got {checkpoint_seconds}")
    if warm_start is not None:
        warm_start, config["warm_start"] = check_warm_start(warm_start, built)
    made = configuration.build_method(method, built, config, warm_start)
    # everything a user can get wrong is refused before the directory is touched
    jax.eval_shape(made.init, jax.random.key(seed))
    outer_steps = config["training"]["outer_steps"]
    every, n = config["evaluation"]["every"], config["evaluation"]["n"]
    fitted = Fitted(built, made, None, config, Progress())
    sets = fitted.reference()
    store = None if directory is None else Store(directory)
    console = Console(stderr=True, quiet=not progress)
    with contextlib.ExitStack() as stack:
        if store:
            stack.enter_context(store.lock())
            store.open(config)
        line = stack.enter_context(ProgressLine(outer_steps, limit, made.calls_per_step, console))
        state, reached, interrupted = train(
            made,
            seed=seed,
            outer_steps=outer_steps,
            budget=limit,
            keeper=store,
            evaluate=_glance(made, built, n, sets),
            every=every,
            observe=line,
            checkpoint_seconds=checkpoint_seconds,
        )
    if line.bad:
        warnings.warn(
            f"{line.bad} energies or new samples were not finite while training, and "
            f"{line.unusable} regression points could not be used: the energy is not finite where "
            "the sampler goes",
            stacklevel=2,
        )
    fitted.state, fitted.progress, fitted.interrupted = state, reached, interrupted
    return fitted


def load(directory: str | Path) -> Fitted:
    """A run from its directory. For a run of an energy function call `fit` again."""
    store = Store(directory)
    config = store.config()
    if "fingerprint" in config:
        raise UserError(
            f"{directory}: a run of an energy given in Python ({config['target']}), which is not "
            "stored; call demx.fit with the same energy and directory"
        )
    for name in ("target", "method"):
        if name not in config:
            raise UserError(f"{store.config_file}: expected an entry {name!r}, found none")
    target = configuration.build_target(config["target"], config.get("target_settings", {}))
    method = configuration.build_method(config["method"], target, config)
    found = store.load(method.init(jax.random.key(0)))
    if found is None:
        raise UserError(f"{directory}: no checkpoint yet; run demx fit first")
    state, header = found
    return Fitted(target, method, state, config, Progress(**header))


def _glance(method: Method, target: Target, n: int, reference: Reference | None):
    """The periodic look at a run: energies and, in 2-D, W2, against the validation set.

    In many dimensions W2 is mostly its own floor; there energies tell more.
    """
    measure = jax.jit(lambda xs: energies_of(target, xs))

    @functools.cache
    def of_validation() -> np.ndarray:
        return batched_energies(target, reference.validation)

    def look(key, state) -> tuple[dict[str, float], int]:
        samples = method.sample(key, state, n)
        x = np.asarray(samples.x)
        energies = np.asarray(measure(x))
        good = finite_rows(x, energies)
        x, energies = x[good], energies[good]
        values = {"bad_samples": int(n - len(x))} if len(x) < n else {}
        if len(x) == 0:
            return values, samples.energy_calls + n
        values["energy_median"] = float(np.median(energies))
        if reference is not None:
            values["energy_w2"] = energy_w2(energies, of_validation())
            if target.space.dof <= 2 and len(x) <= 2000:
                size = min(len(x), len(reference.validation))
                values["w2"] = w2(x[:size], reference.validation[:size])
        return values, samples.energy_calls + n

    return look
