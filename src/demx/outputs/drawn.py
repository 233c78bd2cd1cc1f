"""Samples of a sampler streamed into a file, and what is to be told of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from demx import outputs
from demx.correction import LEAPFROG
from demx.display import html_table, text_table, with_error
from demx.drawing import How
from demx.errors import UserError
from demx.evaluate.evaluation import Energies
from demx.fitted import Fitted, LogZ, log_z
from demx.types import Samples


class Written(NamedTuple):
    """A file of n samples; bad: with an energy that is not finite. energy_calls: of drawing them
    and of their energies. log_z: where there are weights; no_log_z: why they give none. told: what
    else there is to know of the file."""

    path: Path
    n: int
    bad: int
    energy_calls: int
    bad_calls: int = 0
    acceptance: float | None = None
    log_z: LogZ | None = None
    no_log_z: str = ""
    told: str = ""

    def _rows(self) -> list[list[str]]:
        found = [["samples", f"{self.n:,}"], ["energy calls", f"{self.energy_calls:,}"]]
        if self.bad or self.bad_calls:
            told = f"{self.bad} samples, {self.bad_calls} energies on the way"
            found.append(["not finite", told])
        if self.acceptance is not None:
            found.append(["acceptance", f"{self.acceptance:.2f}"])
        if (z := self.log_z) is not None:
            found.append(["log Z", with_error(z.value, z.standard_error)])
            if z.of_weights:
                found.append(["weights", z.of_weights])
        if self.no_log_z:
            found.append(["no log Z", self.no_log_z])
        if self.told:
            found.append(["note", self.told])
        return found

    def __repr__(self) -> str:
        return text_table(f"Written: {self.path}", self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows(), header=False, title=f"Written: {self.path}")


class _Drawing:
    """Chunks as columns for a file; counts what goes by. Of each sample its weight is kept."""

    def __init__(self, fitted: Fitted):
        self.energies = Energies(fitted.target)
        self.energy_calls = self.bad = self.bad_calls = self.without_density = 0
        self.moved: list[tuple[float, int]] = []  # acceptance, samples
        self.weights: list[np.ndarray] = []
        self.islands: list[np.ndarray] = []
        self.known: tuple[float, float] | None = None

    def columns(self, chunks: Iterator[Samples]) -> Iterator[outputs.Columns]:
        for chunk in chunks:
            x = np.asarray(chunk.x)
            energy = self.energies(x)
            self.energy_calls += chunk.energy_calls + len(x)
            self.bad += int((~np.isfinite(energy)).sum())
            self.bad_calls += chunk.bad_calls
            self.without_density += chunk.bad
            if chunk.acceptance is not None:
                self.moved.append((chunk.acceptance, len(x)))
            found = {"x": x, "energy": energy}
            for name in ("log_weight", "log_prob", "island"):
                if getattr(chunk, name) is not None:
                    found[name] = np.asarray(getattr(chunk, name))
            if chunk.log_weight is not None:
                self.weights.append(found["log_weight"])
            if chunk.island is not None:
                self.islands.append(found["island"])
            self.known = chunk.log_z
            yield found

    def evidence(self) -> dict[str, float]:
        """log Z for the provenance, of a method that knows it other than by weights."""
        names = ("log_z", "log_z_standard_error")
        return {} if self.known is None else dict(zip(names, self.known, strict=True))

    def log_z(self, n: int) -> LogZ | None:
        if not self.weights and self.known is None:
            return None
        weight = np.concatenate(self.weights) if self.weights else None
        island = np.concatenate(self.islands) if self.islands else None
        # of the samples themselves log Z needs only how many they are
        return log_z(Samples(np.empty((n, 0)), weight, bad=self.without_density, island=island,
                             log_z=self.known))  # fmt: skip


def draw(fitted: Fitted, path: Path, n: int, how: How, *, seed: int, chunk: int) -> Written:
    """n samples into a file, at most `chunk` of them in memory (see `Fitted.stream`)."""
    outputs.check(path, fitted.target)
    seen = _Drawing(fitted)
    chunks = seen.columns(fitted.stream(n, chunk=chunk, seed=seed, **how._asdict()))

    def provenance() -> dict[str, Any]:
        told = {k: v for k, v in how._asdict().items() if v}
        if how.correct not in LEAPFROG:
            told.pop("correct_steps")
        return {
            **fitted.provenance(),
            "n": n,
            "sampling_seed": seed,
            **told,
            "sampling_energy_calls": seen.energy_calls,
            **seen.evidence(),
        }

    told = outputs.write(path, chunks, n, fitted.target, provenance)
    acceptance = None
    if seen.moved:
        rates, rows = zip(*seen.moved, strict=True)
        acceptance = float(np.average(rates, weights=rows))
    try:
        evidence, doubt = seen.log_z(n), ""
    except UserError as error:  # the samples are there all the same
        evidence, doubt = None, str(error)
    return Written(path, n, seen.bad, seen.energy_calls, seen.bad_calls, acceptance, evidence,
                   doubt, told)  # fmt: skip
