"""A trained sampler in the user's hands: samples, densities, log Z, and how good they are."""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

import demx
from demx import stream
from demx.assessment import Assessment, check_sizes
from demx.display import html_table, text_table
from demx.drawing import WITH_WEIGHTS, Drawing, How, stream_key
from demx.errors import UserError
from demx.evaluate import reference as references
from demx.evaluate.evidence import LogZ, log_z
from demx.evaluate.reference import Reference
from demx.methods import METHODS
from demx.pace import watched
from demx.resolve import reference_key, rows
from demx.ruler import ruler
from demx.train import Progress
from demx.trial import trial
from demx.types import Method, Samples, Target
from demx.whole import check_seed, whole

if TYPE_CHECKING:
    from demx.outputs.drawn import Written
    from demx.report.plots import Plot
    from demx.report.sections import Coordinate


class Fitted:
    """A trained sampler: `sample`, `log_prob`, `log_z`, `evaluate`, `report`, `plot`.

    config: the resolved configuration. progress: steps, seconds and energy calls spent. ended: why
    training ended: 'steps', 'budget', 'converged' or 'interrupted'; None: killed.
    directory: of its run, if it is kept. history: what training told, one entry an outer loop.
    """

    def __init__(
        self,
        target: Target,
        method: Method,
        state: Any,
        config: dict,
        progress: Progress,
        ended: str | None = None,
        directory: Path | None = None,
        history: list[dict[str, Any]] | None = None,
    ):
        self.target, self.method, self.state = target, method, state
        self.config, self.progress, self.ended = config, progress, ended
        self.directory, self.history = directory, history or []

    def _rows(self) -> list[list[str]]:
        p, ended = self.progress, f", ended by {self.ended}" if self.ended else ""
        return [
            ["outer loops", f"{p.step} of {self.method.outer_steps}{ended}"],
            ["energy calls", f"{p.energy_calls:,} training, {p.evaluation_calls:,} watching it"],
            ["time", f"{p.seconds:.0f} s"],
            ["samples", f"of shape {rows(self.target)}"],
            ["kept in", "memory" if self.directory is None else str(self.directory)],
        ]

    @property
    def _title(self) -> str:
        return f"Fitted: {self.config['method']} on {self.config['target']}"

    def __repr__(self) -> str:
        return text_table(self._title, self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows(), header=False, title=self._title)

    @cached_property
    def plot(self) -> "Plot":
        """Figures as matplotlib Axes: `plot.energies()`, `plot.samples()`, …"""
        from demx.report.plots import Plot

        return Plot(self)

    @property
    def _drawing(self) -> Drawing:
        return Drawing(self.target, self.method, self.state, self.config["method"])

    def report(
        self,
        path: str | Path,
        n: int = 1000,
        coordinate: "Coordinate | None" = None,
        samples: str | Path | None = None,
    ) -> Path:
        """One HTML file that shows this sampler. n: size of one block of samples for the metrics.
        coordinate: what the free energy is shown along, as in `plot.free_energy`. samples: a file
        of its samples to show, instead of drawing some."""
        from demx.report.html import write_fitted

        file = None if samples is None else Path(samples)
        return write_fitted(self, Path(path), n, coordinate, file)

    def calls_of(self, n: int) -> int | None:
        """Energy calls that n samples will take; None: that cannot be said before."""
        return self._drawing.calls(n, How())

    def sample(
        self,
        n: SupportsIndex,
        *,
        seed: SupportsIndex = 0,
        weights: bool = False,
        correct: str | None = None,
        correct_steps: SupportsIndex = 300,
    ) -> Samples:
        """n samples. What they are depends on the method:

        - idem, pdem, rdmc, pis, dds, dis: independent, of the learned (rdmc: estimated) process;
        - importance, ais, smc: they follow the target only with their `log_weight`, which are
          always there; those of one `island` depend on each other;
        - metropolis, mala, hmc, nuts, tempering: states of chains that take turns; those of one
          `island` are of one chain, and depend on each other;
        - nested: drawn by weight from the points of one run, some of them more than once.

        weights: of idem and pdem, draw from the probability-flow ODE instead, whose density is
        known, and return `log_prob` and importance weights `log_weight` (one energy call a sample);
        of pis, dds and dis, return the weights of the paths. Chains, nested and rdmc have none.
        correct: 'mala' or 'hmc' moves every sample by correct_steps gradient steps (weights stay
        valid); 'smc' anneals weighted particles along the learned noise levels, which repairs
        mode weights too: use its `log_weight`.
        """
        n, how = whole("n", n, 1), self._drawing.how(weights, correct, correct_steps)
        key = stream_key(check_seed(seed), "sample")
        with watched(self.target, "samples", self._drawing.calls(n, how)):
            return self._drawing.draw(key, n, how)

    def stream(
        self,
        n: SupportsIndex,
        *,
        chunk: SupportsIndex = 4096,
        seed: SupportsIndex = 0,
        weights: bool = False,
        correct: str | None = None,
        correct_steps: SupportsIndex = 300,
    ) -> Iterator[Samples]:
        """The samples of `sample`, at most `chunk` at a time: any number in bounded memory.

        (Of chains and nested sampling all are drawn first: one sample follows from another.)
        """
        n, size = whole("n", n, 1), whole("chunk", chunk, 1)
        how = self._drawing.how(weights, correct, correct_steps)
        blocks = self._drawing.blocks(stream_key(check_seed(seed), "sample"), n, how)
        return stream.chunks(blocks, size)

    def sample_to(
        self,
        path: str | Path,
        n: SupportsIndex,
        *,
        chunk: SupportsIndex = 4096,
        seed: SupportsIndex = 0,
        weights: bool = False,
        correct: str | None = None,
        correct_steps: SupportsIndex = 300,
    ) -> "Written":
        """`stream` into a file: .npz, .extxyz, .nc or .csv, with energies and provenance.

        What is not said here is as in `stream`. A csv is a summary.
        """
        from demx.outputs.drawn import draw

        n, seed, size = whole("n", n, 1), check_seed(seed), whole("chunk", chunk, 1)
        how = self._drawing.how(weights, correct, correct_steps)
        calls = self._drawing.calls(n, how)
        with watched(self.target, "samples", None if calls is None else calls + n):
            return draw(self, Path(path), n, how, seed=seed, chunk=size)

    def provenance(self) -> dict[str, Any]:
        """Where samples of this sampler come from."""
        about = {k: self.config[k] for k in ("target", "target_settings", "method")
                 if k in self.config}  # fmt: skip
        return {
            "demx": demx.__version__,
            **about,
            **({} if self.directory is None else {"run": str(self.directory)}),
            **({"energy_zero": zero} if (zero := getattr(self.target, "zero", 0.0)) else {}),
            "training_seed": self.config["seed"],
            "training_energy_calls": self.progress.energy_calls,
        }

    def log_prob(self, x: ArrayLike) -> Float[Array, " n"]:
        """The sampler's own log-density at n points (on the mean-free subspace for particles)."""
        if self.method.log_prob is None:
            raise UserError(WITH_WEIGHTS)
        x = jnp.asarray(x, float)
        if x.shape[1:] != self.target.space.shape:
            raise UserError(f"x: expected shape {rows(self.target)}, got {x.shape}")
        return self.method.log_prob(self.state, x)

    def log_z(self, n: SupportsIndex = 1000, *, seed: SupportsIndex = 0) -> LogZ:
        """log Z ≈ log mean exp(-E(x_i))/q(x_i), x_i ~ q; or what else the method knows it by."""
        weighs, entry = self._drawing.weighs, METHODS[self.config["method"]]
        # what never has weights may know it otherwise
        if not weighs and (entry.weights or not entry.log_z):
            raise UserError(WITH_WEIGHTS)
        return log_z(self.sample(n, seed=seed, weights=weighs))

    def evaluate(
        self,
        n: SupportsIndex = 1000,
        *,
        repeats: SupportsIndex | None = None,
        seed: SupportsIndex = 1,
        likelihood: str = "auto",
        likelihood_n: SupportsIndex = 1000,
        mcmc_calls: int = 0,
        mcmc_at_most: int = 0,
        reference: Reference | str | Path | None = None,
        correct: str | None = None,
        correct_steps: SupportsIndex = 300,
    ) -> Assessment:
        """Metrics of n·repeats fresh samples, with standard errors, floors and a verdict.

        repeats: 10, or 1 of a black box whose calls the samples take, if it is None.
        likelihood: 'native' adds what the sampler's own density says, of likelihood_n samples,
        'flow' what an OT-CFM flow trained on the samples says (the paper's protocol), 'none'
        nothing; 'auto' is native in up to 16 dimensions, and else says that it is none.
        Of corrected samples: 'smc' has weights of its own, which 'auto' and 'native' take; after
        'mala' and 'hmc' 'auto' says that it is none, 'native' is of the uncorrected sampler.
        mcmc_calls: add what tuned chains get for that many energy calls, never more; mcmc_at_most:
        for as many as training and these samples took, or that many if they took more. Where they
        are too few for chains, that is said. reference: sets of your own, or their file. correct:
        as in `sample`; samples with weights are resampled.
        """
        n, likelihood_n = check_sizes(n, likelihood_n)
        seed, how = check_seed(seed), self._drawing.how(False, correct, correct_steps)
        truth = ruler(reference)  # a file that is not there is told of before anything is drawn

        def allowed(drawing: int) -> int | None:
            if not mcmc_at_most:
                return mcmc_calls or None
            return mcmc_calls or min(mcmc_at_most, self.progress.energy_calls + drawing)

        judged = trial(
            self._drawing,
            how,
            n=n,
            repeats=None if repeats is None else whole("repeats", repeats, 1),
            seed=seed,
            likelihood=likelihood,
            likelihood_n=likelihood_n,
            mcmc_calls=allowed,
            reference=truth or self.reference(),
        )
        return judged.noted(*self.caveats())

    def caveats(self) -> Iterator[str]:
        """What must be known of a training that did not simply end."""
        p, entry = self.progress, METHODS[self.config["method"]]
        # of chains that a budget ended nothing is half learned: how far they came, they say
        simply = ("converged", "budget") if entry.warm_start == "chains" else ("converged",)
        if p.step == 0:
            if entry.trains:
                yield "Not one outer loop was done: the sampler is untrained."
        elif p.step < self.method.outer_steps and self.ended not in simply:
            how = {"budget": "ended by its budget", "interrupted": "was interrupted"}
            told = how.get(self.ended or "", "had not ended")
            yield f"Training {told}, after {p.step} of {self.method.outer_steps} outer loops."
            if 0 < p.kept < p.step and p.watch.good:
                yield f"The samples are of outer loop {p.kept}, the last that was looked at."
        if not p.watch.good:
            yield (
                f"The state of outer loop {p.kept} was kept, not that of the last, {p.step}: "
                "samples had become clearly worse."
            )

    def reference(self) -> Reference | None:
        """The reference sets of the target, if there are any."""
        if "fingerprint" in self.config and "source" not in self.config:
            exact = hasattr(self.target, "sample")
            return references.make(self.target) if exact else None
        return references.find(*reference_key(self.config), self.target)
