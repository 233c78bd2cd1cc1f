"""Free energy along a coordinate: F(s) = -log p(s), in units of kT, with bootstrap errors."""

from typing import NamedTuple

import numpy as np

from demx.evaluate.summary import shares

REPEATS = 200
FEWEST = 3  # samples of a bin that says anything
OUTER = 0.002  # share of the values left to both sides of the bins


class Profile(NamedTuple):
    """centres, free_energy, standard_error: (bins,); nan where a bin has too few samples."""

    centres: np.ndarray
    free_energy: np.ndarray
    standard_error: np.ndarray

    def lowered(self, by: float) -> "Profile":
        return self._replace(free_energy=self.free_energy - by)


def bins_over(*sets: np.ndarray, count: int = 40) -> np.ndarray:
    """Edges (count + 1,) over the central part of all sets."""
    good = [s[np.isfinite(s)] for s in sets]
    low = min(np.quantile(s, OUTER) for s in good)
    high = max(np.quantile(s, 1 - OUTER) for s in good)
    if not high > low:
        raise ValueError("all values are the same: there is no profile of one point")
    return np.linspace(low, high, count + 1)


def profile(
    values: np.ndarray,
    edges: np.ndarray,
    log_weight: np.ndarray | None = None,
    island: np.ndarray | None = None,
    seed: int = 0,
) -> Profile:
    """-log of the density in every bin, normalised over all samples: values, log_weight: (n,).

    The bootstrap draws samples, or whole islands where there are some, with replacement.
    """
    good = np.isfinite(values)
    if log_weight is not None:
        good &= np.isfinite(log_weight)
    values = np.asarray(values, float)[good]
    share = shares(None if log_weight is None else log_weight[good], len(values))
    group = np.arange(len(values)) if island is None else np.unique(
        island[good], return_inverse=True)[1]  # fmt: skip
    place = np.searchsorted(edges, values, side="right") - 1
    inside = (place >= 0) & (place < len(edges) - 1)
    cells, width = len(edges) - 1, np.diff(edges)
    # (groups, cells): what each group adds to each bin; the last column is what lies outside
    table = np.zeros((group.max() + 1, cells + 1))
    np.add.at(table, (group, np.where(inside, place, cells)), share)
    count = np.bincount(place[inside], minlength=cells)

    def free_energy(mass: np.ndarray) -> np.ndarray:
        total = mass.sum(axis=-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            return -np.log(mass[..., :-1] / total / width)

    rng = np.random.default_rng(seed)
    groups = len(table)
    again = np.stack([
        rng.multinomial(groups, np.full(groups, 1 / groups)) @ table for _ in range(REPEATS)
    ])  # fmt: skip
    drawn = free_energy(again)
    drawn = np.where(np.isfinite(drawn), drawn, np.nan)
    told = count >= FEWEST
    error = np.full(cells, np.nan)
    known = told & (np.isfinite(drawn).sum(axis=0) > 1)
    if groups > 1 and known.any():
        error[known] = np.nanstd(drawn[:, known], axis=0, ddof=1)
    found = np.where(told, free_energy(table.sum(axis=0)), np.nan)
    return Profile(0.5 * (edges[1:] + edges[:-1]), found, error)
