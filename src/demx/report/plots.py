"""`sampler.plot`: figures of a sampler as matplotlib Axes, in a notebook or a script."""

from typing import TYPE_CHECKING, Any

import numpy as np

from demx.errors import UserError
from demx.evaluate import metrics
from demx.report import figures, sections
from demx.report.figures import Axes
from demx.report.shown import Shown
from demx.space import MeanFree

if TYPE_CHECKING:
    from demx.fitted import Fitted


class Plot:
    """Draws n fresh samples, once, and shows them; every method takes `ax` and returns the Axes."""

    def __init__(self, fitted: "Fitted", n: int = 2000, seed: int = 2):
        self.fitted, self.n, self.seed = fitted, n, seed
        self._shown: Shown | None = None

    def __call__(self, n: int, *, seed: int = 2) -> "Plot":
        """The same of another number of samples: `sampler.plot(10_000).energies()`."""
        return Plot(self.fitted, n, seed)

    def __repr__(self) -> str:
        return "plot.samples(), .energies(), .distances(), .weights(), .free_energy(), .training()"

    @property
    def shown(self) -> Shown:
        """The samples behind the figures."""
        if self._shown is None:
            shown = Shown.of(self.fitted, None, self.n, self.seed)
            if len(shown.even.x) < 2:
                raise UserError(f"plot: {shown.bad} of {self.n} samples are not finite")
            self._shown = shown
        return self._shown

    def samples(self, ax: Axes | None = None) -> Axes:
        """The plane with contours (of a black box without), the configuration of lowest energy, or
        two coordinates."""
        target, even = self.fitted.target, self.shown.even
        if target.space.shape == (2,):
            return figures.plane(ax or figures.new_axes(6, 6), target, even.x)
        if isinstance(target.space, MeanFree) and target.space.dim in (2, 3):
            kind = "3d" if target.space.dim == 3 else None
            lowest = even.x[np.argmin(even.energy)]
            kinds, _ = sections.species(target)
            return figures.particles(ax or figures.new_axes(5, 5, kind), lowest, kinds)
        columns = sections.coordinates(target, even.x)
        return figures.scatter(ax or figures.new_axes(5, 5), columns)

    def energies(self, ax: Axes | None = None) -> Axes:
        """Their distribution, beside the reference's."""
        true = self.shown.reference and self.shown.reference.energy
        name = sections.energy_axis(self.fitted.target)
        return figures.histogram(ax or figures.new_axes(), name, self.shown.even.energy, true)

    def distances(self, ax: Axes | None = None) -> Axes:
        """Of all pairs of particles, beside the reference's."""
        if not isinstance(self.fitted.target.space, MeanFree):
            raise UserError("plot.distances: this target has no particles")
        x, reference = self.shown.even.x, self.shown.reference
        true = None if reference is None else metrics.distances(reference.x[: len(x)]).ravel()
        pairs = metrics.distances(x).ravel()
        name = sections.length_axis("interparticle distance", self.fitted.target)
        return figures.histogram(ax or figures.new_axes(), name, pairs, true)

    def weights(self, ax: Axes | None = None) -> Axes:
        """Importance weights: of a perfect sampler all are on the dashed line."""
        drawn = self.fitted.sample(self.n, seed=self.seed, weights=True)
        log_weight = np.asarray(drawn.log_weight)
        if not np.isfinite(log_weight).any():
            raise UserError(
                f"plot.weights: expected weights above 0, but all of {self.n} samples have the "
                "weight 0: the sampler is not where the target is; train it longer, or take a "
                "larger scale"
            )
        return figures.weights(ax or figures.new_axes(), log_weight)

    def free_energy(
        self, coordinate: sections.Coordinate | None = None, ax: Axes | None = None
    ) -> Axes:
        """-log density of a coordinate: a name as in `demx report --coordinate`, or a function of
        one configuration."""
        found = sections.profiles(self.shown, coordinate)
        return figures.free_energy(ax or figures.new_axes(), *found)

    def training(self, name: str = "loss", ax: Axes | None = None) -> Axes:
        """A number while training, against energy calls."""
        series: dict[str, Any] = figures.training_series(self.fitted.history)
        if name not in series:
            known = ", ".join(series) or "nothing: this sampler has no history"
            raise UserError(f"plot.training: expected one of {known}; got {name!r}")
        return figures.curve(ax or figures.new_axes(), name, *series[name])
