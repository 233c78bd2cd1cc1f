"""Free energy along a coordinate: F(s) = -log p(s), in units of kT, with standard errors."""

from typing import NamedTuple

import numpy as np

from demx.evaluate.summary import cells, student

FEWEST = 3  # samples of a bin that says anything; islands with some, of one that has an error
OUTER = 0.002  # share of the values left to both sides of the bins


class Profile(NamedTuple):
    """centres, free_energy, standard_error: (bins,); nan where a bin has too few samples, and the
    error also where they are of too few islands."""

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
) -> Profile:
    """-log of the density in every bin, normalised over all samples: values, log_weight: (n,).

    Of a share p of the samples -log p has the error of p, divided by p. With few islands it is
    enlarged as Student's t asks for.
    """
    good = np.isfinite(values)
    if log_weight is not None:
        good &= np.isfinite(log_weight)
    log_weight, island = (None if a is None else a[good] for a in (log_weight, island))
    values, bins = np.asarray(values, float)[good], len(edges) - 1
    place = np.searchsorted(edges, values, side="right") - 1
    place[(place < 0) | (place >= bins)] = bins  # what lies outside is one cell more
    found = cells(place, bins + 1, log_weight, island)
    share, enough = found.share[:-1], np.bincount(place, minlength=bins + 1)[:-1] >= FEWEST
    with np.errstate(divide="ignore", invalid="ignore"):
        free_energy = -np.log(share / np.diff(edges))
        error = found.standard_error[:-1] / share * student(found.groups - 1)
    told = enough & (found.reached[:-1] >= FEWEST)
    return Profile(
        0.5 * (edges[1:] + edges[:-1]),
        np.where(enough, free_energy, np.nan),
        np.where(told, error, np.nan),
    )
