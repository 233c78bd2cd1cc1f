"""Energies far above the bulk of the others: samples where p hardly is."""

from typing import NamedTuple

import numpy as np

FAR = 10  # widths above the upper quartile, where p has 4 in a million of ½χ² with one dof


class Outliers(NamedTuple):
    """count: energies that are far above the bulk. raised: by how much they move the mean away from
    the median; width: that of the bulk."""

    count: int
    raised: float
    width: float

    @property
    def telling(self) -> bool:
        """The mean energy is theirs, not that of the others."""
        return self.raised > self.width


def outliers(energy: np.ndarray) -> Outliers:
    """E_i > q₇₅ + 10 width, and Σ (E_i - median)/n over them: energy (n,), in units of kT.

    The width is q₇₅ - q₂₅, or 1 kT where that is less: p knows energies that far apart. It is the
    bulk's own and no error of a mean, which few chains hardly know.
    """
    low, median, high = np.quantile(energy.astype(float), [0.25, 0.5, 0.75])
    width = max(high - low, 1.0)
    far = energy[energy > high + FAR * width].astype(float)
    return Outliers(len(far), float((far - median).sum() / len(energy)), float(width))
