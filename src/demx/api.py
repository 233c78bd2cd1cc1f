"""demx in Python: fit a target, get an object that samples."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from rich.console import Console

from demx import config as configuration
from demx.assessment import Assessment, Density, assess_target, check_sizes, flow_density, ruler
from demx.energy import energies as energies_of
from demx.errors import UserError
from demx.evaluate import reference as references
from demx.evaluate.evaluation import batched_energies, finite_rows
from demx.evaluate.metrics import energy_w2, w2
from demx.evaluate.reference import Reference
from demx.evaluate.weights import ess, log_z_is
from demx.progress import ProgressLine
from demx.resolve import check_warm_start, resolve, rows
from demx.store import Store
from demx.train import Progress, parse_budget, train
from demx.types import Method, Samples, Target


class LogZ(NamedTuple):
    """log ∫ exp(-E) by importance sampling, its error, and the effective share of the weights."""

    value: float
    standard_error: float
    ess: float
    n: int
    bad: int  # samples without a finite density or energy: their weight is 0


class Fitted:
    """A trained sampler: `sample`, `log_prob`, `log_z`, `evaluate`.

    config: the resolved configuration. progress: steps, seconds and energy calls spent.
    """

    def __init__(
        self,
        target: Target,
        method: Method,
        state: Any,
        config: dict,
        progress: Progress,
        interrupted: bool = False,
    ):
        self.target, self.method, self.state = target, method, state
        self.config, self.progress, self.interrupted = config, progress, interrupted

    def __repr__(self) -> str:
        p = self.progress
        return (
            f"Fitted({self.config['method']} on {self.config['target']}, {p.step} outer loops, "
            f"{p.energy_calls} energy calls, {p.seconds:.0f} s)"
        )

    def sample(self, n: int, *, seed: int = 0, weights: bool = False) -> Samples:
        """n independent samples of the reverse SDE.

        weights: draw from the probability-flow ODE instead, whose density is known, and return
        `log_prob` and importance weights `log_weight` (one energy call a sample).
        """
        if not isinstance(n, int) or n < 1:
            raise UserError(f"n: expected a whole number of at least 1, got {n}")
        key = _key(seed, "sample")
        if not weights:
            return self.method.sample(key, self.state, n)
        if self.method.sample_weighted is None:
            raise UserError(NO_DENSITY)
        return self.method.sample_weighted(key, self.state, n)

    def log_prob(self, x: ArrayLike) -> Float[Array, " n"]:
        """The sampler's own log-density at n points (on the mean-free subspace for particles)."""
        if self.method.log_prob is None:
            raise UserError(NO_DENSITY)
        x = jnp.asarray(x, float)
        if x.shape[1:] != self.target.space.shape:
            raise UserError(f"x: expected shape {rows(self.target)}, got {x.shape}")
        return self.method.log_prob(self.state, x)

    def log_z(self, n: int = 1000, *, seed: int = 0) -> LogZ:
        """log Z ≈ log mean exp(-E(x_i))/q(x_i), x_i ~ q."""
        return log_z(self.sample(n, seed=seed, weights=True))

    def evaluate(
        self,
        n: int = 1000,
        *,
        repeats: int = 10,
        seed: int = 1,
        likelihood: str = "auto",
        likelihood_n: int = 1000,
        mcmc_calls: int = 0,
        reference: Reference | Path | None = None,
    ) -> Assessment:
        """Metrics of n·repeats fresh samples, with standard errors, floors and a verdict.

        likelihood: 'native' adds what the sampler's own density says, of likelihood_n samples,
        'flow' what an OT-CFM flow trained on the samples says (the paper's protocol), 'none'
        nothing; 'auto' is native in up to 16 dimensions. mcmc_calls: add what tuned chains get
        for that many energy calls. reference: sets of your own, or their file.
        """
        check_sizes(n, likelihood_n)
        drawn = self.method.sample(_key(seed, "evaluate"), self.state, n * repeats)
        space = self.target.space
        if likelihood == "auto":
            known = self.method.sample_weighted is not None
            likelihood = "native" if known and space.dof <= 16 else "none"
        density = None
        if likelihood == "native":
            density = self._density(likelihood_n, seed)
        elif likelihood == "flow":
            density = flow_density(self.target, np.asarray(drawn.x), likelihood_n, seed)
        elif likelihood != "none":
            raise UserError(f"likelihood: expected auto, native, flow or none, got {likelihood!r}")
        return assess_target(
            self.target,
            np.asarray(drawn.x),
            reference=ruler(reference) or self.reference(),
            n=n,
            density=density,
            mcmc_calls=mcmc_calls,
            sampling_calls=drawn.energy_calls,
            seed=seed,
        )

    def _density(self, n: int, seed: int) -> Density:
        weighted = self.sample(n, seed=seed, weights=True)
        return Density(
            np.asarray(weighted.log_weight),
            lambda x: np.asarray(self.log_prob(x)),
            weighted.energy_calls,
            "the sampler's probability flow",
        )

    def reference(self) -> Reference | None:
        """The reference sets of the target, if there are any."""
        if "fingerprint" in self.config:
            exact = hasattr(self.target, "sample")
            return references.make(self.target) if exact else None
        about = self.config.get("target_settings", {})
        return references.find(self.config["target"], about, self.target)


def log_z(drawn: Samples) -> LogZ:
    """log Z ≈ log mean w with its error and effective share, from weighted samples."""
    n = len(drawn.x)
    if drawn.bad > 0.05 * n:
        raise UserError(
            f"log_z: {drawn.bad} of {n} samples have no finite density or energy, so the "
            "estimate would be too low; train longer"
        )
    log_weight = np.asarray(drawn.log_weight, float)
    try:
        return LogZ(*log_z_is(log_weight), ess(log_weight).value, n, drawn.bad)
    except ValueError as error:
        raise UserError(f"log_z: {error}") from error


NO_DENSITY = "this sampler does not know its own density (a method without one, or a pinned score)"
# far from the small numbers that training folds into the same seed: the streams never meet
_DOMAINS = {"sample": 0x5A5A5A5A, "evaluate": 0x3C3C3C3C}


def _key(seed: int, domain: str):
    return jax.random.fold_in(jax.random.key(seed), _DOMAINS[domain])


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
