"""A whole assessment of samples: metrics beside floors, weights, an MCMC row, a verdict."""

import dataclasses
import html
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from demx.beginning import known
from demx.correction import equal_weights
from demx.errors import UserError
from demx.evaluate import densities, verdict
from demx.evaluate import reference as references
from demx.evaluate.equilibrium import Equilibrium, fewest_calls, samples_within
from demx.evaluate.evaluation import Evaluation, Metric, batched_energies, compare
from demx.evaluate.reference import Reference
from demx.evaluate.weights import effective_share, weighted_mean
from demx.pace import watched
from demx.resolve import open_target, reference_key
from demx.ruler import WORKERS, ruler, target_settings
from demx.samples import Stored, fitting
from demx.space import dim_of
from demx.types import Samples, Target
from demx.whole import check_seed, whole

# fewer ensembles than for a reference: each must reach equilibrium within the same calls
MCMC = Equilibrium(num_chains=16, max_rungs=8, beta_min=0.1)
FEWEST_MCMC = fewest_calls(MCMC)
NO_MCMC = (
    "The column of tuned chains is left out: it takes at least {} energy calls, and {} are "
    "allowed, by --mcmc-calls or by what training and these samples took."
)


class Density(NamedTuple):
    """A density q: log p̃/q at its own samples, log q anywhere, and what they have cost; the
    energies of its samples, if they are known."""

    log_weight: np.ndarray
    log_prob: Callable[[np.ndarray], np.ndarray] | None
    energy_calls: int
    name: str
    island: np.ndarray | None = None  # groups of weights that depend on each other
    backward: Callable[[np.ndarray], Samples] | None = None  # weighs paths that end in points
    energies: np.ndarray | None = None


class Assessment(NamedTuple):
    """samples: their metrics. mcmc: the same of tuned chains, for `mcmc_calls` energy calls.
    log_weight: (n,) of the density, if there is one."""

    samples: Evaluation
    density: str | None = None
    mcmc: Evaluation | None = None
    mcmc_calls: int = 0
    log_weight: np.ndarray | None = None

    @property
    def metrics(self):
        return self.samples.metrics

    @property
    def verdict(self) -> list[str]:
        return verdict.sentences(self.samples)

    def noted(self, *notes: str) -> "Assessment":
        """The same, with more that the reader must know first."""
        return self._replace(samples=self.samples._replace(notes=(*self.samples.notes, *notes)))

    def __repr__(self) -> str:
        return f"{self.samples!r}\n\n" + "\n".join(self.verdict)

    def _repr_html_(self) -> str:
        words = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.verdict)
        return self.samples._repr_html_() + words


def assess_target(
    target: Target,
    x: np.ndarray,
    *,
    reference: Reference | None,
    n: int = 1000,
    density: Density | None = None,
    mcmc_calls: int | None = None,
    sampling_calls: int = 0,
    seed: int = 1,
    island: np.ndarray | None = None,
    log_z: tuple[float, float] | None = None,
    energies: np.ndarray | None = None,
) -> Assessment:
    """Every metric of samples x that the target, the reference and the density allow.

    mcmc_calls: what the column of tuned chains may take; None: there is to be none.
    island, log_z: of the samples, see `demx.types.Samples`. energies: theirs, if they are known.
    """
    if reference is not None:
        references.check(reference, target)
    found = compare(
        target, x, reference, n=n, workers=WORKERS, energies=energies, island=island
    )  # fmt: skip
    calls = found.energy_calls + sampling_calls + (density.energy_calls if density else 0)
    found = found._replace(energy_calls=calls)
    true = getattr(target, "log_z", None)
    if density is not None and found.metrics:
        log_prob = energies = backward = None
        if reference is not None and density.log_prob is not None:
            held_out = reference.test[: len(density.log_weight)]
            log_prob, energies = density.log_prob(held_out), batched_energies(target, held_out)
        if reference is not None and density.backward is not None:
            returned = density.backward(reference.test[: len(density.log_weight)])
            backward = np.asarray(returned.log_weight)
            found = found._replace(energy_calls=found.energy_calls + returned.energy_calls)
        more, notes = densities.judge(
            density.log_weight, log_prob, energies, true, density.island, backward
        )
        if reference is None and density.energies is not None and "ess" in more:
            by_weight = weighted_mean(density.log_weight, density.energies)
            more["energy_mean_weighted"] = Metric(*by_weight, n=len(density.log_weight))
        found = found._replace(metrics=found.metrics | more, notes=(*found.notes, *notes))
    if log_z is not None and found.metrics:
        own = {"log_z": densities.evidence_metric(log_z, len(x), true)}
        found = found._replace(metrics=found.metrics | own)
    judged = Assessment(
        found, density and density.name, log_weight=density and density.log_weight
    )  # fmt: skip
    if mcmc_calls is None:
        return judged
    if mcmc_calls < FEWEST_MCMC:
        said = NO_MCMC.format(f"{FEWEST_MCMC:,}", f"{mcmc_calls:,}")
        return judged._replace(samples=judged.samples._replace(left_out=(said,)))
    spread = x if reference is None else reference.validation
    scale = float(np.sqrt(np.nanmean(spread[np.isfinite(spread)] ** 2)))
    settings = dataclasses.replace(MCMC, scale=scale)
    key = jax.random.fold_in(jax.random.key(seed), 0x3C3C)
    chains = samples_within(key, target, len(x), mcmc_calls, settings, known(target))
    mcmc = compare(
        target, chains.x, reference, n=n, workers=WORKERS, energies=-chains.log_density,
        island=np.arange(len(chains.x)) % settings.num_chains,
    )  # fmt: skip
    return judged._replace(mcmc=mcmc, mcmc_calls=chains.energy_calls)


def column_calls(allowed: int | None) -> int:
    """Energy calls of the column of tuned chains, at most."""
    return allowed if allowed is not None and allowed >= FEWEST_MCMC else 0


def assess(
    target: str | Target | Callable[[Array], Array],
    samples: Stored | ArrayLike,
    *,
    n: SupportsIndex = 1000,
    seed: SupportsIndex = 1,
    dim: SupportsIndex | None = None,
    particles: Iterable[SupportsIndex] | None = None,
    species: Iterable[SupportsIndex] | None = None,
    shape: Iterable[SupportsIndex] | None = None,
    settings: Sequence[str] = (),
    likelihood: str = "auto",
    likelihood_n: SupportsIndex = 1000,
    mcmc_calls: int = 0,
    reference: Reference | str | Path | None = None,
) -> Assessment:
    """Metrics, floors and a verdict for samples from anywhere: arrays or `demx.samples.read`.

    Weights that come with the samples are judged as they are; likelihood='flow' trains an OT-CFM
    flow on the samples instead. mcmc_calls: add what tuned chains get for that many energy calls.
    """
    about = target_settings(settings)
    opened = open_target(
        target, about, dim=dim_of(shape, dim, particles), particles=particles, species=species,
        look=False,
    )  # fmt: skip
    built = opened.target
    stored = samples if isinstance(samples, Stored) else Stored(np.asarray(samples))
    stored = on_space(stored, built)
    found = ruler(reference)
    head = opened.head(about)
    if found is None and (isinstance(target, str) or hasattr(built, "sample")):
        found = references.find(*reference_key(head), built)
    judged = assess_stored(
        built, stored, n=n, seed=seed, likelihood=likelihood, likelihood_n=likelihood_n,
        mcmc_calls=mcmc_calls, reference=found,
    )  # fmt: skip
    if stored.origin is None or stored.origin.target == head["target"]:
        return judged
    return judged.noted(
        f"The file says that its samples are of {stored.origin.target}; they are judged as samples "
        f"of {head['target']}."
    )


def on_space(stored: Stored, target: Target, where: Path | str = "samples") -> Stored:
    """Samples from anywhere in the shape of a target, without what its space has not."""
    stored = fitting(stored, target, where)
    return stored._replace(x=np.asarray(target.space.project(jnp.asarray(stored.x))))


def assess_stored(
    target: Target,
    stored: Stored,
    *,
    reference: Reference | None,
    n: SupportsIndex = 1000,
    seed: SupportsIndex = 1,
    likelihood: str = "auto",
    likelihood_n: SupportsIndex = 1000,
    mcmc_calls: int = 0,
    sampling_calls: int = 0,
    energies: np.ndarray | None = None,
) -> Assessment:
    """`assess` for a target and samples of its shape. sampling_calls: what drawing them took,
    and their energies, if they are known."""
    (n, likelihood_n), seed = check_sizes(n, likelihood_n), check_seed(seed)
    if likelihood not in ("auto", "flow", "none"):
        raise UserError(
            "likelihood: native needs a run; of samples alone only 'flow', 'auto' (weights that "
            f"come with them) or 'none' can be had, got {likelihood!r}"
        )
    density = None
    if likelihood == "flow":
        density = flow_density(target, stored.x, likelihood_n, seed)
    elif likelihood == "auto" and stored.log_weight is not None:
        density = Density(stored.log_weight, None, 0, "the file", stored.island)
    x, island = stored.x, stored.island
    if stored.log_weight is not None:  # what they are samples of, they are with their weights
        rows = equal_weights(stored.log_weight, len(x), seed)
        # copies of one are no new samples
        x, island = x[rows], rows if island is None else island[rows]
        energies = None if energies is None else energies[rows]
    calls = (len(x) if energies is None else 0) + column_calls(mcmc_calls)
    try:
        with watched(target, "evaluate", calls):
            judged = assess_target(
                target, x, reference=reference, n=n, density=density,
                mcmc_calls=mcmc_calls or None, seed=seed, island=island,
                sampling_calls=sampling_calls, energies=energies,
            )  # fmt: skip
    except ValueError as error:
        raise UserError(str(error)) from error
    if stored.log_weight is None:
        return judged
    share = effective_share(stored.log_weight, stored.island)
    return judged.noted(drawn_by_weight(len(x), share * len(x)))


def drawn_by_weight(n: int, worth: float) -> str:
    """What the reader must know of n samples that were drawn by their weights."""
    return (
        f"The samples were drawn by their weights, and are worth at most about {worth:.0f} "
        f"independent ones; floors, where there are some, are those of {n}, a little too low."
    )


def check_sizes(n: SupportsIndex, likelihood_n: SupportsIndex) -> tuple[int, int]:
    """Refuse what no standard error could be given for: blocks of n, likelihood_n weights."""
    return whole("n", n, 10), whole("likelihood_n", likelihood_n, densities.FEWEST)


def flow_density(target: Target, x: np.ndarray, n: int, seed: int) -> Density:
    """The paper's protocol: an OT-CFM flow trained on x; weights at n of its own samples."""
    from demx.evaluate.flow_matching import fit_flow, likelihoods
    from demx.flow import samples as draw

    key_fit, key_sample = jax.random.split(jax.random.fold_in(jax.random.key(seed), 0xF10))
    good = np.isfinite(x.reshape(len(x), -1)).all(axis=1)
    try:
        flow = fit_flow(key_fit, x[good], target.space)
    except ValueError as error:
        raise UserError(f"likelihood: no flow can be trained on these samples ({error})") from error
    drawn, log_prob = (np.asarray(a) for a in draw(flow, key_sample, n))
    log_weight = -batched_energies(target, drawn) - log_prob
    # outside the support, or where the solver gave up: weight 0
    log_weight = np.where(np.isfinite(log_weight), log_weight, -np.inf)
    return Density(log_weight, lambda y: np.asarray(likelihoods(flow, y)), n, "an OT-CFM flow")
