"""Two clouds of samples, and the metrics between them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

from demx.evaluate import metrics
from demx.evaluate.alignment import aligned_costs
from demx.space import MeanFree
from demx.types import Target

PARTS = 5
MOST = 20  # blocks: a standard error needs no more


class Cloud(NamedTuple):
    """Samples (N, *shape) with their energies (N,) and, where there are some, islands (N,)."""

    x: np.ndarray
    energy: np.ndarray
    island: np.ndarray | None = None

    def __getitem__(self, rows) -> "Cloud":
        return Cloud(*(None if a is None else a[rows] for a in self))

    def fifths(self) -> dict[int, np.ndarray]:
        """Rows of parts that do not depend on each other, by number; of whole islands."""
        if self.island is None:
            return dict(enumerate(np.array_split(np.arange(len(self.energy)), PARTS)))
        parts = {i: np.flatnonzero(self.island % PARTS == i) for i in range(PARTS)}
        return {i: rows for i, rows in parts.items() if len(rows) > 1}


class Comparison(NamedTuple):
    """A metric between two clouds; of a transport metric the matrix of costs is made once."""

    name: str
    measure: Callable[[Cloud, Cloud], float]
    costs: Callable[[Cloud, Cloud], np.ndarray] | None = None
    worst: Callable[[Cloud], float] | None = None  # of a reference
    work: float = 0.0  # of one pair of samples, in units of about 10 ns

    def affordable(self, blocks: list[Cloud], limit: float) -> list[Cloud]:
        """As many of the blocks as the work allows, one at least and `MOST` at most."""
        blocks = blocks[:MOST]
        work = self.work * len(blocks[0].energy) ** 2
        return blocks if work == 0 else blocks[: max(1, int(limit / work))]

    def values(self, samples: Cloud, reference: Cloud) -> tuple[float, dict[int, float]]:
        """The value of one block and of its fifths."""
        parts = samples.fifths()
        if self.costs is None:
            fifths = {i: self.measure(samples[p], reference[p]) for i, p in parts.items()}
            return self.measure(samples, reference), fifths
        cost = self.costs(samples, reference)
        fifths = {i: metrics.exact_w2(cost[np.ix_(p, p)]) for i, p in parts.items()}
        return metrics.exact_w2(cost), fifths


def _flat(cloud: Cloud) -> np.ndarray:
    return cloud.x.reshape(len(cloud.x), -1)


def _transport(
    name: str, costs: Callable[[Cloud, Cloud], np.ndarray], work: float = 0.0
) -> Comparison:
    def spread(reference: Cloud) -> float:  # all mass in one point, the mean
        x = _flat(reference)
        return float(np.sqrt(((x - x.mean(axis=0)) ** 2).sum(axis=1).mean()))

    return Comparison(name, lambda s, r: metrics.exact_w2(costs(s, r)), costs, spread, work)


def comparisons(target: Target, invariant: bool, workers: int = 1) -> list[Comparison]:
    """The metrics between samples and reference that make sense for a target."""
    one = lambda reference: 1.0  # noqa: E731
    found = [
        _transport("w2", lambda s, r: cdist(_flat(s), _flat(r), "sqeuclidean")),
        Comparison("energy_w2", lambda s, r: metrics.energy_w2(s.energy, r.energy)),
        Comparison("energy_w1", lambda s, r: metrics.energy_w1(s.energy, r.energy)),
    ]
    if invariant:
        several = target.space.several
        kinds = None if several is None else np.array(several)
        aligned = lambda s, r: aligned_costs(s.x, r.x, workers, species=kinds)  # noqa: E731
        # one assignment a pair of clusters: the square of the number of particles
        found.insert(1, _transport("w2_aligned", aligned, float(target.space.shape[0] ** 2)))
    if isinstance(target.space, MeanFree):
        found += [
            Comparison("distance_w2", lambda s, r: metrics.distance_w2(s.x, r.x)),
            Comparison("distance_tv", lambda s, r: metrics.distance_tv(s.x, r.x), worst=one),
        ]
    if target.space.shape == (2,):
        found.append(Comparison("tv", lambda s, r: metrics.tv(s.x, r.x), worst=one))
    return found
