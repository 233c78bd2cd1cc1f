"""Shares of modes and free energies: their standard errors cover, of islands and few chains too."""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from demx import resolve
from demx.evaluate.evaluation import Metric
from demx.evaluate.profile import bins_over, profile
from demx.report import figures, sections
from demx.report.shown import Cloud, Shown
from demx.space import Euclidean
from demx.targets.function import FunctionTarget


def test_modes_of_weighted_islands_are_not_accused(seed):
    """Of shares that are exact up to chance, |z| > 2 in 4.6 %: of 40 modes in 40 sets 73 ± 9 (the
    shares of one set hardly depend on each other). By errors of as many independent samples as
    there are rows it would be two of five, and shares without the weights would be wrong.
    """
    print("seed", seed)
    target, rng = resolve.resolve("gmm40", settings={})[0], np.random.default_rng(seed)
    fitted = types.SimpleNamespace(target=target)
    far, rows = 0, 800  # 200 samples, four times each, in 16 islands
    island = np.arange(rows) // 50
    for i in range(40):
        x = np.asarray(target.sample(jax.random.key(100 * seed + i), 4 * rows))
        kept = rng.random(len(x)) < np.where(x[:, 0] > 0, 0.25, 1.0)  # drawn from another law
        x, weight = x[kept][: rows // 4], np.where(x[kept][: rows // 4, 0] > 0, 4.0, 1.0)
        x, weight = np.repeat(x, 4, axis=0), np.repeat(weight, 4)  # an island has copies
        cloud = Cloud(x, np.zeros(rows), np.log(weight), island)
        page = sections.modes(Shown(fitted, None, cloud, cloud, None, 0, 0))
        far += int(re.search(r"(\d+) are more than two standard errors", page)[1])
    assert "800 samples, by their weights, nearest to each of 40" in page
    assert far < 0.0455 * 1600 + 4 * (0.0455 * 1600) ** 0.5
    # a mode is missed by weights of zero
    near = np.linalg.norm(x[:, None] - np.asarray(target.modes), axis=2).argmin(axis=1)
    cloud = cloud._replace(log_weight=np.where(near == near[0], -np.inf, 0.0))
    page = sections.modes(Shown(fitted, None, cloud, cloud, None, 0, 0))
    assert int(re.search(r"(\d+) modes have no sample", page)[1]) == 41 - len(np.unique(near))
    # and of one chain nothing can be said
    page = sections.modes(Shown(fitted, None, cloud._replace(island=0 * island), cloud, None, 0, 0))
    assert "without standard errors: all samples depend" in page and "nan" not in page.lower()


def test_free_energy_of_a_normal(seed, rng):
    """F = x²/2 + log √2π, within 4 standard errors; these are √((1-p)/np) of a bin of mass p."""
    print("seed", seed)
    n = 20_000
    x = rng.normal(size=n)
    edges = bins_over(x)
    assert edges[0] < -2.5 and edges[-1] > 2.5 and len(edges) == 41
    found = profile(x, edges)
    exact = 0.5 * found.centres**2 + 0.5 * np.log(2 * np.pi)
    # the bins have a width h: the mean density of a bin is off by about h²/24 F''
    h = edges[1] - edges[0]
    assert (np.abs(found.free_energy - exact) < 4 * found.standard_error + h**2 / 4).all()
    p = np.exp(-found.free_energy) * h
    np.testing.assert_allclose(found.standard_error, np.sqrt((1 - p) / (n * p)), rtol=0.35)
    tilted = profile(x, edges, x)  # exp(x) tilts it to a normal about 1
    exact = 0.5 * (found.centres - 1) ** 2 + 0.5 * np.log(2 * np.pi)
    middle = np.abs(found.centres) < 2
    error = 4 * tilted.standard_error + h**2 / 4
    assert (np.abs(tilted.free_energy - exact) < error)[middle].all()
    with pytest.raises(ValueError, match="all values are the same"):
        bins_over(np.ones(10))


def test_errors_of_a_profile_know_islands(rng):
    x = np.repeat(rng.normal(size=200), 25)
    edges = np.linspace(-2, 2, 5)
    plain, grouped = profile(x, edges), profile(x, edges, None, np.repeat(np.arange(200), 25))
    np.testing.assert_allclose(grouped.standard_error / plain.standard_error, 5, rtol=0.5)


def test_errors_of_a_profile_cover_with_few_chains(seed, rng):
    """Four slow chains, each about a centre of its own: two errors cover as two of a normal do,
    95.4 %, by Student's t of a share; of its logarithm within what 400 sets tell, 4σ. Three chains
    are the fewest that have an error."""
    print("seed", seed)
    edges, chains = np.linspace(-2, 2, 9), 4
    exact = -np.log(np.diff(stats.norm.cdf(edges)) / np.diff(edges))
    island, covered = np.repeat(np.arange(chains), 200), []
    for _ in range(400):
        centre = 0.3 * rng.normal(size=(chains, 1))
        x = (centre + 0.91**0.5 * rng.normal(size=(chains, 200))).ravel()
        found = profile(x, edges, None, island)
        covered.append((abs(found.free_energy - exact) < 2 * found.standard_error).mean())
    assert abs(np.mean(covered) - 0.954) < 4 * np.std(covered) / len(covered) ** 0.5
    x[(x > 1.5) & (island > 1)] = 0.0  # the last bin: two chains have samples in it
    found = profile(x, edges, None, island)
    assert np.isfinite(found.free_energy[-1]) and np.isnan(found.standard_error[-1])
    assert np.isfinite(found.standard_error[:-1]).all()
    assert np.isnan(profile(x, edges, None, 0 * island).standard_error).all()


def test_a_band_is_drawn_where_there_are_errors_and_the_caption_says_so(rng):
    """Not one of width 0 where nothing is known."""
    x = rng.normal(size=(4000, 2)).astype(np.float32)
    x[(np.arange(4000) % 4 > 1) & (x[:, 0] > 1), 0] = 0.0  # there are two of four chains
    hill = FunctionTarget(lambda x: 0.5 * jnp.sum(x * x), Euclidean(2))
    fitted = types.SimpleNamespace(target=hill)
    for chains, told in (
        (None, "with two standard errors."),
        (4, "with two standard errors, but for bins where fewer than three chains or swarms have"),
        (1, "without standard errors, which take three chains or swarms"),
    ):
        island = None if chains is None else np.arange(4000) % chains
        cloud = Cloud(x, np.zeros(4000), None, island)
        shown = Shown(fitted, None, cloud, cloud, None, 0, 0)
        assert f"-log of the density of x0, {told}" in sections.free_energy(shown, None)
        axes = figures.free_energy(Figure().add_subplot(), *sections.profiles(shown, None))
        band = [path.vertices[:, 0].max() for path in axes.collections[0].get_paths()]
        assert bool(band) == (chains != 1)
        if chains == 4:
            assert max(band) < 1.1 < axes.lines[0].get_xdata().max()


@pytest.mark.parametrize(
    "weighted, gap, told", [(2.0, None, True), (1.1, None, False), (2.0, 0.0, False)]
)
def test_a_profile_that_the_weights_deny_says_so(weighted, gap, told, rng):
    """Not of samples that have weights themselves, here all the same."""
    x = rng.normal(size=(400, 2)).astype(np.float32)
    hill = FunctionTarget(lambda x: 0.5 * jnp.sum(x * x), Euclidean(2))
    found = types.SimpleNamespace(
        metrics={
            "energy_mean": Metric(1.0, 0.1),
            "energy_mean_weighted": Metric(weighted, 0.01),
            "psis_k": Metric(0.2, 0.1),
        }
    )
    log_weight = None if gap is None else np.full(400, gap)
    cloud = Cloud(x, np.zeros(400), log_weight)
    page = sections.free_energy(
        Shown(types.SimpleNamespace(target=hill), found, cloud, cloud, None, 0, 0), None
    )
    assert ("the weights disagree with them" in page) == told
