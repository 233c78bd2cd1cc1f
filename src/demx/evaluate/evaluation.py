"""How good are samples? Every metric with its standard error, its n and its floor.

The floor of a metric is its value between two independent reference sets of the same size: what
perfect samples would get. Samples are cut into blocks of n and compared with blocks of the test
set; a value is the mean over the blocks. Its standard error is the spread of the blocks or, of
fewer than five, the spread of fifths of them: a fifth's values scatter √5 times as widely. Where
samples depend on each other (`Samples.island`, such as the states of a chain), a fifth is one of
whole islands, in all blocks: the blocks would hold the same chains, and their spread tell nothing.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from demx import energy
from demx.display import html_table, text_table, with_error
from demx.evaluate import metrics
from demx.evaluate.clouds import PARTS, Cloud, Comparison, comparisons
from demx.evaluate.convergence import mixing
from demx.evaluate.outliers import Outliers, outliers
from demx.evaluate.reference import Reference
from demx.evaluate.summary import summarise
from demx.types import Target

WORK = 4e9  # of one metric: about a minute; fewer blocks are taken where it would be more


class Metric(NamedTuple):
    """A value, its standard error, and the same for perfect samples (None: not known).

    worst: what no sampler can exceed (1 of a total variation, the number of modes) or what one
    without any spread gets.
    """

    value: float
    standard_error: float
    floor: float | None = None
    floor_standard_error: float | None = None
    n: int = 0
    two_sided: bool = False  # a mean, which can be too low as well as too high
    worst: float | None = None

    @property
    def gap(self) -> float | None:
        """(value - floor) in joint standard errors; None: one of them is not known."""
        if self.floor is None or np.isnan(self.standard_error):
            return None
        joint = float(np.hypot(self.standard_error, self.floor_standard_error or 0.0))
        difference = self.value - self.floor
        return difference / joint if joint else (np.inf * difference if difference else 0.0)

    @property
    def at_floor(self) -> bool | None:
        """Within two joint standard errors of the floor, or (unless two-sided) better."""
        gap = self.gap
        if gap is None:
            return None
        return bool((abs(gap) if self.two_sided else gap) <= 2)

    @property
    def saturated(self) -> bool:
        """Perfect samples score hardly better than the worst: the metric says little at this n."""
        return self.floor is not None and self.worst is not None and self.floor > 0.7 * self.worst


SHIFTED = "Chains with samples that are not finite cannot be compared with each other."
ALONE = "All samples depend on each other, as those of one chain: there are no standard errors."
UNMET = "The reference itself did not meet its diagnostics: read what follows with care."


class Evaluation(NamedTuple):
    """Metrics by name; bad: samples that are not finite, left out and shown. outliers: energies far
    above the others'. of_chains: the samples are states of chains that take turns."""

    metrics: dict[str, Metric]
    n: int
    repeats: int
    bad: int
    energy_calls: int
    notes: tuple[str, ...] = ()  # what the reader must know first
    left_out: tuple[str, ...] = ()  # what was not computed, and how to get it
    outliers: Outliers | None = None
    of_chains: bool = False

    def _rows(self) -> list[list[str]]:
        lines = [["metric", "n", "value", "floor"]]
        for name, m in self.metrics.items():
            floor = with_error(m.floor, m.floor_standard_error)
            lines.append([name, str(m.n), with_error(m.value, m.standard_error), floor])
        return lines

    def __repr__(self) -> str:
        bad = f", {self.bad} bad samples" if self.bad else ""
        blocks = f"{self.repeats} blocks of {self.n} samples"
        return text_table(f"{blocks}, {self.energy_calls:,} energy calls{bad}", self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows())


def _blocks(cloud: Cloud, n: int) -> list[Cloud]:
    return [cloud[i : i + n] for i in range(0, len(cloud.energy) - n + 1, n)]


def _assess(comparison: Comparison, samples: list[Cloud], reference: list[Cloud]):
    """Mean over the blocks and its standard error; reference blocks are used in turn."""
    pairs = [(s, reference[i % len(reference)]) for i, s in enumerate(samples)]
    if samples[0].island is None and len(samples) >= PARTS:
        values = [comparison.measure(s, r) for s, r in pairs]
        return float(np.mean(values)), _error(values)
    values, parts = zip(*(comparison.values(s, r) for s, r in pairs), strict=True)
    if samples[0].island is None:
        return float(np.mean(values)), _error([value for part in parts for value in part.values()])
    # a fifth of the islands is in all blocks
    found = ([part[i] for part in parts if i in part] for i in range(PARTS))
    return float(np.mean(values)), _error([np.mean(of_one) for of_one in found if of_one])


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean; nan: a single value does not tell it."""
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


class Energies:
    """E(x_i) of (n, *shape), in blocks of bounded memory; compiled once for each size."""

    def __init__(self, target: Target, size: int = 4096):
        self.size = size
        self._some = jax.jit(lambda xs: energy.energies(target, xs))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        starts = range(0, len(x), self.size)
        return np.concatenate([np.asarray(self._some(x[i : i + self.size])) for i in starts])


def batched_energies(target: Target, x: np.ndarray, size: int = 4096) -> np.ndarray:
    """E(x_i) in blocks of bounded memory."""
    return Energies(target, size)(x)


def finite_rows(x: np.ndarray, energies: np.ndarray) -> np.ndarray:
    """Which samples have finite coordinates and a finite energy."""
    return np.isfinite(energies) & np.isfinite(x.reshape(len(x), -1)).all(axis=1)


def floors(target: Target, reference: Reference, n: int, workers: int = 1) -> dict[str, list]:
    """[floor, standard error] of every comparison at block size n: validation against test."""
    clouds = [Cloud(x, batched_energies(target, x)) for x in (reference.validation, reference.test)]
    validation, test = (_blocks(cloud, n) for cloud in clouds)
    return {
        c.name: list(_assess(c, c.affordable(validation, 5 * WORK), test))
        for c in comparisons(target, reference.invariant, workers)
    }


def compare(
    target: Target,
    x: np.ndarray,
    reference: Reference | None = None,
    *,
    n: int = 1000,
    workers: int = 1,
    energies: np.ndarray | None = None,
    island: np.ndarray | None = None,
) -> Evaluation:
    """All metrics of len(x) samples, in blocks of n (or one, of all, if there are fewer).

    energies: (N,) of the samples, where they are known. Otherwise they cost one energy call a
    sample; those of the reference are not counted, they are the ruler. island: (N,) of samples that
    depend on each other, see `demx.types.Samples`.
    Bad samples are counted and left out; without two good ones there are no metrics.
    """
    if n < 2 * PARTS:
        raise ValueError(f"n: expected blocks of at least {2 * PARTS} samples, got {n}")
    if len(x) < 2 * PARTS:
        raise ValueError(f"expected at least {2 * PARTS} samples, got {len(x)}")
    calls = 0 if energies is not None else len(x)
    energies = batched_energies(target, x) if energies is None else energies
    good = finite_rows(x, energies)
    cloud, bad = Cloud(x[good], energies[good], _numbers(island, good)), int((~good).sum())
    count, notes = len(cloud.energy), ()
    if count < 2 * PARTS:
        return Evaluation({}, 0, 0, bad, calls)
    if cloud.island is not None and cloud.island.max() == 0:
        notes += (ALONE,)
    elif cloud.island is not None and bad:
        notes += (SHIFTED,)
    found = _means(cloud) | _chain_metrics(target, cloud, bad)
    about = {"outliers": outliers(cloud.energy), "of_chains": _chains(island) > 0}
    if reference is None:
        return Evaluation(found, min(n, count), max(1, count // n), bad, calls, notes, **about)
    n = min(n, count, len(reference.test), len(reference.validation))
    truth = Cloud(reference.test, batched_energies(target, reference.test))
    for name, true in _means(truth).items():
        found[name] = found[name]._replace(
            floor=true.value, floor_standard_error=true.standard_error, two_sided=True
        )
    known = reference.provenance.get("floors", {}).get(str(n), {})
    if not {c.name for c in comparisons(target, reference.invariant)} <= set(known):
        known = floors(target, reference, n, workers)
    samples, test = _blocks(cloud, n), _blocks(truth, n)
    for c in comparisons(target, reference.invariant, workers):
        worst = c.worst(truth) if c.worst else None
        found[c.name] = Metric(
            *_assess(c, c.affordable(samples, WORK), test), *known[c.name], n, worst=worst
        )
    if all(hasattr(target, name) for name in ("modes", "mode_scale", "log_weights", "sample")):
        found |= _mode_metrics(target, cloud)
    notes += () if reference.passed else (UNMET,)
    return Evaluation(found, n, len(samples), bad, calls, notes, **about)


def _numbers(island: np.ndarray | None, good: np.ndarray) -> np.ndarray | None:
    """Islands of good samples, numbered from 0 on."""
    return None if island is None else np.unique(island[good], return_inverse=True)[1]


def _means(cloud: Cloud) -> dict[str, Metric]:
    found = summarise(cloud.energy, None, cloud.island, (0.5,))
    return {
        "energy_mean": Metric(*found.mean, n=found.n),
        "energy_median": Metric(*found.quantiles[0.5], n=found.n),
    }


def _chains(island: np.ndarray | None) -> int:
    """How many chains take turns in the samples; 0: they are not of chains."""
    if island is None:
        return 0
    count = int(island.max()) + 1
    return count if np.array_equal(island, np.arange(len(island)) % count) else 0


def _chain_metrics(target: Target, cloud: Cloud, bad: int) -> dict[str, Metric]:
    """R-hat, beside what chains that agree are below, and effective samples of chains that take
    turns; a state left out would shift turns."""
    count = 0 if bad else _chains(cloud.island)
    if not count:
        return {}
    told = mixing(target, cloud.x, cloud.energy, count)
    if told is None:
        return {}
    n, unknown = len(cloud.x), float("nan")
    return {
        "rhat": Metric(told.rhat, unknown, told.bound, 0.0, n=n),
        "effective_samples": Metric(told.effective, unknown, n=n),
    }


def _mode_metrics(target: Target, cloud: Cloud) -> dict[str, Metric]:
    """Modes found, their weights and outliers, of all samples; floors by exact sets of that size.

    The weights' total variation is read against the true weights, so its floor shrinks like n^-½.
    """
    modes, scale = np.asarray(target.modes), np.asarray(target.mode_scale)
    weight, count = np.exp(np.asarray(target.log_weights)), len(cloud.x)
    exact = [np.asarray(target.sample(jax.random.key(i), count)) for i in range(2 * PARTS)]

    def judge(measure: Callable[[np.ndarray], float], worst: float | None = None) -> Metric:
        fifths = [measure(cloud.x[rows]) for rows in cloud.fifths().values()]
        of_exact = [measure(e) for e in exact]
        return Metric(
            measure(cloud.x),
            _error(fifths),
            float(np.mean(of_exact)),
            _error(of_exact),
            count,
            worst=worst,
        )

    hits = [metrics.modes_hit(e, modes, scale) for e in exact]
    hit = metrics.modes_hit(cloud.x, modes, scale)
    spread = float(np.std(hits, ddof=1))  # of one set, as the samples are
    found = Metric(hit, spread, float(np.mean(hits)), 0.0, count, True, float(len(modes)))
    return {
        "modes_hit": found,
        "mode_tv": judge(lambda x: metrics.mode_tv(x, modes, weight), 1.0),
        "outside_share": judge(lambda x: metrics.outside_share(x, modes, scale))._replace(
            two_sided=True
        ),
    }
