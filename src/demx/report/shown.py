"""What a report shows: samples as they were drawn, their energies, and the reference."""

from typing import NamedTuple

import numpy as np

from demx.assessment import Assessment
from demx.correction import equal_weights
from demx.evaluate.evaluation import batched_energies, finite_rows
from demx.fitted import Fitted
from demx.pace import watched
from demx.samples import Stored


class Cloud(NamedTuple):
    """Finite samples (n, *shape), their energies, and weights and islands if they have some."""

    x: np.ndarray
    energy: np.ndarray
    log_weight: np.ndarray | None = None
    island: np.ndarray | None = None


class Shown(NamedTuple):
    """What a page shows: samples as they were drawn, `even` ones without weights, the reference.

    bad: samples that are not finite. energy_calls: what the samples and their energies have cost,
    where they were made for the figures alone. opening_calls: what opening the run has cost.
    file: that the samples come from, if they were not drawn for the page.
    """

    fitted: Fitted
    found: Assessment | None
    cloud: Cloud
    even: Cloud
    reference: Cloud | None
    bad: int
    energy_calls: int
    file: str = ""
    opening_calls: int = 0

    @classmethod
    def of(cls, fitted: Fitted, found: Assessment | None, n: int, seed: int = 2) -> "Shown":
        drawn = fitted.sample(n, seed=seed)
        kept = (None if a is None else np.asarray(a) for a in (drawn.log_weight, drawn.island))
        stored = Stored(np.asarray(drawn.x), *kept)
        with watched(fitted.target, "figures", n):
            energies = batched_energies(fitted.target, stored.x)
        shown = cls.of_samples(fitted, found, stored, energies, seed)
        return shown._replace(energy_calls=drawn.energy_calls + n)

    @classmethod
    def of_samples(
        cls,
        fitted: Fitted,
        found: Assessment | None,
        stored: Stored,
        energies: np.ndarray,
        seed: int = 2,
    ) -> "Shown":
        """Of samples that are there, and their energies."""
        cloud = Cloud(stored.x, energies, stored.log_weight, stored.island)
        good = finite_rows(cloud.x, cloud.energy)
        cloud = Cloud(*(None if a is None else a[good] for a in cloud))
        even = cloud
        if cloud.log_weight is not None and len(cloud.x):
            rows = equal_weights(cloud.log_weight, len(cloud.x), seed)
            even = Cloud(cloud.x[rows], cloud.energy[rows])
        sets = fitted.reference()
        # energies of the reference are the ruler, and not counted
        reference = None
        if sets is not None:
            with watched(fitted.target, "energies of the reference", len(sets.test)):
                reference = Cloud(sets.test, batched_energies(fitted.target, sets.test))
        return cls(fitted, found, cloud, even, reference, int((~good).sum()), 0)
