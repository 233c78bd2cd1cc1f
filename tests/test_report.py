"""The report: what it says and shows, from samples with a known law; plots; small tables."""

import dataclasses
import functools
import re
import shlex
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import demx
from cases import asymmetric
from demx import cli, config, resolve
from demx.drawing import Drawing
from demx.errors import UserError
from demx.fitted import Fitted
from demx.report import document, figures, html, sections, tables
from demx.report.plots import Plot
from demx.report.shown import Cloud, Shown
from demx.space import Euclidean, MeanFree
from demx.targets.black_box import black_box
from demx.targets.function import FunctionTarget
from demx.train import Progress
from demx.types import Samples
from hosts import bowls

TINY = {
    "draws": {"num_samples": 4},
    "training": {"outer_steps": 2, "inner_steps": 1, "batch_size": 4, "new_samples": 4},
    "grid": {"num_steps": 2},
    "evaluation": {"every": 1, "n": 20},
    "moves": None,
    "walk": None,
}
HISTORY = [
    {"step": i, "energy_calls": 100 * i, "loss": 1 / i, "evaluation": {"w2": 5.0 / i}}
    for i in range(1, 9)
]


def drawing(target, network, sample, **properties) -> Fitted:
    """A sampler that draws what it is told to."""
    built, full = resolve.resolve(target, settings={**TINY, "network": network})
    made = config.build_method("idem", built, full)
    method = made._replace(sample=lambda key, state, n: sample(built, key, n), **properties)
    return Fitted(built, method, None, full, Progress(step=8, energy_calls=800), history=HISTORY)


@pytest.fixture(scope="module")
def plane():
    """Exact samples of the mixture, with weights that are nearly equal."""

    def draw(built, key, n):
        return Samples(built.sample(key, n))

    def weighted(key, state, n):
        weight = 0.1 * jax.random.normal(key, (n,))
        return Samples(fitted.target.sample(key, n), weight, jnp.zeros(n), energy_calls=n)

    fitted = drawing("gmm40", {"width": 4, "depth": 1, "embedding": 4}, draw, log_prob=None)
    fitted.method = fitted.method._replace(sample_weighted=weighted)
    return fitted


@pytest.fixture(scope="module")
def cluster():
    """Samples of the reference, so that everything is at its floor."""

    def draw(built, key, n):
        return Samples(jnp.asarray(fitted.reference().validation[:n]))

    small = {"kind": "lean", "width": 4, "depth": 1, "num_basis": 4}
    fitted = drawing("dw4", small, draw, sample_weighted=None, log_prob=None)
    return fitted


def headings(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


def whole(page):
    """One file: nothing is loaded, nothing is left open."""
    assert page.startswith("<!doctype html>") and page.endswith("</html>")
    assert "src=" not in page and "@import" not in page
    assert not re.search(r"(href|url)\W{1,3}https?:", page)
    for tag in ("section", "div", "figure", "table", "details", "svg", "script"):
        assert len(re.findall(rf"<{tag}\b", page)) == page.count(f"</{tag}>"), tag
    return True


def test_the_page_of_a_plane(plane, tmp_path):
    page = plane.report(tmp_path / "report.html", 200, coordinate="x1").read_text()
    assert whole(page)
    assert headings(page) == [
        "Samples", "Energies", "Weights", "Free energy", "Modes", "Training", "Metrics", "Made by",
    ]  # fmt: skip
    # plain words first
    assert page.index('class="verdict"') < page.index("<svg") < page.index("<table")
    assert "-log of the density of x1" in page and "k̂ = " in page
    assert "<canvas" not in page
    calls = re.search(r"([\d,]+) for the figures", page)[1]
    assert calls == f"{5000 + figures.GRID**2:,}"
    # figures take the colour of the text around them
    assert figures.INK not in page and "currentColor" in page


def test_the_page_of_a_cluster(cluster, tmp_path):
    def first_apart(x):
        return jnp.linalg.norm(x[0] - x[1])

    path = cluster.report(tmp_path / "report.html", 200, coordinate=first_apart)
    page = path.read_text()
    assert whole(page) and "<canvas" in page and "-log of the density of first apart" in page
    assert headings(page)[:4] == ["Samples", "Energies", "Distances", "Free energy"]
    assert "Modes" not in headings(page) and "Weights" not in headings(page)


def test_a_page_is_the_same_twice(plane):
    shown = Shown.of(plane, None, 300)
    assert sections.energies(shown) == sections.energies(shown)
    assert sections.modes(shown) == sections.modes(shown)


def test_a_sampler_that_is_broken_has_a_page_too(tmp_path):
    draw = lambda built, key, n: Samples(jnp.full((n, 2), jnp.nan))  # noqa: E731
    none = dict(sample_weighted=None, log_prob=None)
    fitted = drawing("gmm40", {"width": 4, "depth": 1, "embedding": 4}, draw, **none)
    page = fitted.report(tmp_path / "report.html", 100).read_text()
    assert "5000 of 5000 samples are not finite" in page and whole(page)
    with pytest.raises(UserError, match="2000 of 2000 samples are not finite"):
        fitted.plot.energies()


def test_a_coordinate_that_is_not_known_is_refused_first(plane, tmp_path, monkeypatch):
    monkeypatch.setattr(Drawing, "block", lambda *_: pytest.fail("drew samples"))
    with pytest.raises(UserError, match="coordinate: expected one of energy, norm, x0 to x1, got"):
        plane.report(tmp_path / "report.html", coordinate="radius_of_gyration")


def test_a_coordinate_that_does_not_vary_has_a_sentence(plane, tmp_path):
    """Not a traceback that costs the whole page."""
    page = plane.report(tmp_path / "x.html", n=20, coordinate=lambda x: 1.0).read_text()
    assert "Coordinate has no profile (all values are the same" in page and "Training" in page
    with pytest.raises(UserError, match="free energy: coordinate is not finite"):
        plane.plot.free_energy(lambda x: np.nan)


def test_weighted_samples_are_shown_by_their_weights():
    """A quarter of the samples carry three quarters of the weight."""

    def draw(built, key, n):
        x = built.sample(key, n)
        left = jnp.arange(n) % 4 == 0
        x = jnp.where(left[:, None], -jnp.abs(x), jnp.abs(x))
        return Samples(x, jnp.where(left, jnp.log(9.0), 0.0), island=jnp.arange(n) // 10)

    fitted = drawing("gmm40", {"width": 4, "depth": 1, "embedding": 4}, draw, weighted=True)
    shown = Shown.of(fitted, None, 4000)
    assert abs((shown.even.x[:, 0] < 0).mean() - 0.75) < 0.01
    _, found, _ = sections.profiles(shown, "x0")
    share = np.nansum(np.exp(-found.free_energy)[found.centres < 0]) * np.diff(found.centres)[0]
    assert abs(share - 0.75) < 0.03


def test_plots_are_axes(plane, cluster):
    import matplotlib
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    matplotlib.use("agg")
    drawn = [
        plane.plot.samples(), plane.plot.energies(), plane.plot.weights(),
        plane.plot.free_energy("energy"), plane.plot.training(), plane.plot.training("w2"),
        cluster.plot.samples(), cluster.plot.distances(), cluster.plot(50).energies(),
    ]  # fmt: skip
    assert all(isinstance(axes, Axes) for axes in drawn)
    mine = plt.figure().add_subplot()
    assert plane.plot.energies(ax=mine) is mine and mine.get_xlabel() == "energy"
    plt.close("all")
    assert plane.plot is plane.plot and isinstance(plane.plot(7), Plot)
    with pytest.raises(UserError, match="this target has no particles"):
        plane.plot.distances()
    with pytest.raises(UserError, match="expected one of loss, w2; got 'speed'"):
        plane.plot.training("speed")
    with pytest.raises(UserError, match="no density and no weights"):
        cluster.plot.weights()


def test_drawing_needs_no_display():
    """pyplot chooses a backend when it is imported: only somebody's own plots may ask for it."""
    code = Path(figures.__file__).read_text()
    assert not re.search(r"^(import|from) .*pyplot", code, re.M)


def test_a_black_box_in_the_plane_has_no_contours():
    """Of a slow one they would take hours: it is asked for the energies of the samples alone."""
    asked = black_box(bowls, dim=2, batched=True)
    settings = {**TINY, "network": {"width": 4, "depth": 1, "embedding": 4}}
    built, full = resolve.resolve(asked, scale=1.0, settings=settings)
    made = config.build_method("idem", built, full)
    method = made._replace(sample=lambda key, state, n: Samples(jax.random.normal(key, (n, 2))))
    fitted = Fitted(built, method, None, full, Progress())
    before = built.points
    axes = fitted.plot(50).samples(Figure().add_subplot())
    page = sections.samples(fitted.plot.shown)
    assert built.points - before == 50 + 2000 and figures.contour_calls(built) == 0
    assert len(axes.collections) == 1  # the samples
    assert "2000 samples, without contours, which would take 40,000 energy calls." in page


def limits(target, x):
    axes = figures.plane(Figure().add_subplot(), target, np.asarray(x))
    return axes, np.array([axes.get_xlim(), axes.get_ylim()])


def test_the_plane_is_where_the_samples_are(rng):
    """Quantiles of a normal at 1/2000 are ±3.3, and beyond them is a margin of 15 % in all."""
    space = Euclidean(2)
    hill = FunctionTarget(lambda x: 0.5 * jnp.sum((x - jnp.array([100.0, 0.0])) ** 2), space)
    x = rng.normal([100, 0], 1.0, size=(4000, 2))
    axes, found = limits(hill, x)
    np.testing.assert_allclose(found.mean(axis=1), [100, 0], atol=0.5)
    np.testing.assert_allclose(np.diff(found)[:, 0], 1.15 * 2 * 3.29, rtol=0.15)
    assert axes.get_aspect() == 1
    narrow = FunctionTarget(lambda x: 0.5 * jnp.sum((x * jnp.array([0.01, 1.0])) ** 2), space)
    axes, found = limits(narrow, (x - [100, 0]) * [100, 1])
    assert axes.get_aspect() == "auto" and 80 < np.diff(found[0])[0] / np.diff(found[1])[0] < 125
    # all modes are seen, also those without samples
    mixture = asymmetric()
    _, found = limits(mixture, np.asarray(mixture.modes)[:1] + 0.1 * rng.normal(size=(100, 2)))
    low, high = np.asarray(mixture.modes).min(axis=0), np.asarray(mixture.modes).max(axis=0)
    assert (found[:, 0] < low).all() and (found[:, 1] > high).all()
    assert np.isfinite(limits(hill, np.full((9, 2), 3.0))[1]).all()


def test_weights_that_are_all_0_are_told_in_words(plane):
    fitted = Fitted(plane.target, plane.method, None, plane.config, plane.progress)
    zero = lambda key, state, n: Samples(jnp.zeros((n, 2)), jnp.full(n, -jnp.inf), jnp.zeros(n))  # noqa: E731
    fitted.method = fitted.method._replace(sample_weighted=zero)
    with pytest.raises(UserError, match="weights above 0, but all of 20 samples have the weight 0"):
        fitted.plot(20).weights()


def test_small_tables(plane):
    """What a notebook shows: a line a fact, and the same as HTML."""
    text = repr(plane)
    assert text.splitlines()[0] == "Fitted: idem on gmm40" and "800 training" in text
    assert all(len(line) < 80 for line in text.splitlines())
    drawn = Samples(jnp.zeros((3, 2)), jnp.asarray([0.0, 0.0, -jnp.inf]), energy_calls=7, bad=1)
    assert "effective share 0.667" in repr(drawn) and "1 samples" in repr(drawn)
    found = plane.evaluate(50, repeats=2, likelihood="none")
    assert "w2" in repr(found) and found.verdict[0] in repr(found)
    for thing in (plane, drawn, found, found.samples):
        assert thing._repr_html_().startswith("<table>")
    # also of what is being traced, where there are no numbers yet
    jax.jit(lambda s: repr(s) and s.x)(drawn._replace(bad=0))
    assert demx.Samples is Samples


def test_the_view_is_small_and_in_order(rng):
    x, energy = rng.normal(size=(300, 13, 3)), rng.normal(size=300)
    text = document.view(x, energy)
    assert len(text) < 60_000
    shown = re.search(r'"energies":\[(.*?)\]', text)[1].replace('"', "").split(",")
    assert len(shown) == document.SHOWN and [*map(float, shown)] == sorted(map(float, shown))


def test_history_of_a_run_in_memory():
    fitted = demx.fit("gmm40", progress=False, settings={
        **TINY, "network": {"width": 4, "depth": 1, "embedding": 4},
    })  # fmt: skip
    assert [line["step"] for line in fitted.history] == [1, 2]
    assert fitted.directory is None and "validation" in figures.training_series(fitted.history)


def test_species_have_colours_and_sizes(rng):
    """The view tells them apart, and says which is which; of equal particles nothing is said."""
    x, energy = rng.normal(size=(50, 3, 3)), rng.normal(size=50)

    def target(*species, **known):
        nothing = {"space": MeanFree(3, 3, species or None), "log_density": lambda x: 0.0}
        return types.SimpleNamespace(**nothing, **known)

    kinds, names = sections.species(target(4, 7, 4))
    assert kinds == (0, 1, 0) and names == ["species 4", "species 7"]
    text = document.view(x, energy, kinds, names)
    assert '"kinds":[0,1,0]' in text and "rgb(224, 129, 38)" in text and "species 7" in text
    plain = sections.species(target())
    assert plain == ((), []) and "legend" not in document.view(x, energy, *plain)
    atoms = target(4, 7, 8, symbols=("Au", "H", "H"))
    assert sections.species(atoms)[1] == ["Au", "H (1)", "H (2)"]


def test_the_axis_of_a_histogram_is_robust(rng):
    """A fifth of energies that are astronomical does not squeeze the others, and is counted; what
    is drawn has the area of the rest."""
    energy = np.concatenate([rng.normal(size=800), np.full(200, 1e9)])
    axes = Figure().add_subplot()
    figures.histogram(axes, "energy", energy, rng.normal(size=500))
    assert -5 < axes.get_xlim()[0] < -2.5 and 2.5 < axes.get_xlim()[1] < 12
    assert axes.get_title() == "200 of 1000 beyond this axis"
    outline = axes.patches[-1].get_xy()  # of the samples: corners of its steps, there and back
    area = np.sum(np.diff(outline[:, 0]) * outline[:-1, 1])
    assert abs(area) == pytest.approx(0.8, rel=1e-6)
    # of a normal nothing is left out; of an exponential law exp(-(log 4 + 3 log 3)) = 1/108
    assert figures.central(energy[:800]) == (energy[:800].min(), energy[:800].max())
    assert figures.central(rng.exponential(size=4000))[1] == pytest.approx(np.log(108), rel=0.1)
    alone = figures.histogram(Figure().add_subplot(), "energy", np.full(9, 3.0))
    assert alone.get_title() == ""


def test_the_floor_is_named_where_it_is_drawn(plane):
    """Dashes belong to w2 of as many samples as training looked at."""
    found = plane.evaluate(20, repeats=2, likelihood="none")
    shown = Shown.of(plane, found, 100)
    assert "Dashed: the floor" in sections.training(shown)
    history = [{"energy_calls": 1, "loss": 2.0}]
    other = Fitted(plane.target, plane.method, None, plane.config, plane.progress, history=history)
    assert "Dashed" not in sections.training(shown._replace(fitted=other))


def test_the_paper_has_a_column_where_it_has_numbers(plane):
    found = plane.evaluate(20, repeats=2, likelihood="none")
    about = tables.About.of_run(plane)
    assert tables.rows(about, found)[0][-1] == "paper"
    header, cells = tables.rows(about._replace(target="mine:energy"), found)
    assert "paper" not in header and {len(line) for line in cells} == {len(header)}


@pytest.mark.parametrize(
    "about, progress, wanted",
    [
        ({"target": "gmm40"}, Progress(step=2), "demx fit gmm40 --method idem --seed 0"),
        (  # by the recipe, where there is a preset, and where there is none
            {"target": "gmm40", "probe": {"spread": 1.0}}, Progress(step=2),
            "demx fit gmm40 --method idem --seed 0 --recipe",
        ),
        (
            {"target": "double_well", "probe": {"spread": 1.0}}, Progress(step=2),
            "demx fit double_well --method idem --seed 0",
        ),
        (
            {"target": "mix:posterior", "source": "/some/mix.py:posterior", "fingerprint": []},
            Progress(step=1, seconds=179.6),
            "demx fit /some/mix.py:posterior --method idem --seed 0 --budget 180s",
        ),
        (
            {
                "target": "mix:posterior", "source": f"{Path.cwd()}/examples/mix.py:posterior",
                "fingerprint": [],
            },
            Progress(step=2),
            "demx fit examples/mix.py:posterior --method idem --seed 0",
        ),
        (
            {
                "target": "mix:salt", "source": "/mix.py:salt", "fingerprint": [], "scale": 2.0,
                "particles": [4, 3], "species": [0, 0, 1, 1], "target_settings": {"kind": "a b"},
            },
            Progress(step=2),
            "demx fit /mix.py:salt --method idem --seed 0 --shape 4,3 --symmetry particles "
            "--species 0,0,1,1 --scale 2.0 --set 'target.kind=\"a b\"'",
        ),
        ({"target": "energy", "fingerprint": []}, Progress(), ""),
    ],
)  # fmt: skip
def test_the_command_of_a_page_can_be_typed(about, progress, wanted, plane, monkeypatch):
    fitted = Fitted(
        plane.target, plane.method, None, {"method": "idem", "seed": 0, **about}, progress
    )
    assert html.command(fitted) == wanted
    if wanted:
        called = []
        nothing = functools.wraps(cli.COMMANDS["fit"])(lambda *a, **o: called.append(a))
        monkeypatch.setitem(cli.COMMANDS, "fit", nothing)
        cli.call(shlex.split(wanted)[1:])
        assert called[0][0] == wanted.split()[2]


def test_the_foot_of_a_page_tells_of_points_that_were_given():
    def foot(target, warm_start):
        built, full = resolve.resolve(target, method="hmc", warm_start=warm_start, scale=1.0)
        method = config.build_method("hmc", built, full)
        return html._made_by(Fitted(built, method, None, full, Progress()))

    hill = FunctionTarget(lambda x: 0.5 * jnp.sum(x**2), Euclidean(2))
    given = "points to begin from that were given (3 of them: --warm-start FILE)"
    assert given in foot(hill, np.zeros((3, 2)))
    assert "points to begin" not in foot("gmm40", None)


def test_the_foot_of_a_page_is_silent_of_points_that_the_target_knows():
    @dataclasses.dataclass(frozen=True)
    class Known:
        space = Euclidean(2)
        start = np.zeros((1, 2))

        def log_density(self, x):
            return -0.5 * jnp.sum(x**2)

    built, full = resolve.resolve(Known(), method="hmc", scale=1.0)
    method = config.build_method("hmc", built, full)
    assert "warm_start" in full
    assert "points" not in html._made_by(Fitted(built, method, None, full, Progress()))


def test_units_of_atoms_are_named(rng):
    """Of other targets an energy is a number, and a length is one of x."""
    x = rng.normal(size=(30, 3, 3)).astype(np.float32)
    cloud = Cloud(x, rng.normal(size=30))
    plain = {"space": MeanFree(3, 3), "log_density": lambda x: 0.0}
    about = {**plain, "temperature": 20.0, "trap": 0.1, "angstrom": 1.0}
    for named in (about, plain):
        fitted = types.SimpleNamespace(target=types.SimpleNamespace(**named))
        shown = Shown(fitted, None, cloud, cloud, None, 0, 0)
        page = sections.energies(shown) + sections.distances(shown)
        told = ["energy / kT", "In units of kT at 20 K, with the trap.", "distance / Å"]
        assert [words in page for words in told] == [named is about] * 3
        for coordinate, unit in (
            ("distance:0,1", " / Å"), ("radius_of_gyration", " / Å"), ("x0", " / Å"),
            ("energy", " / kT"),
        ):  # fmt: skip
            name, _ = sections.named(coordinate, fitted.target)
            assert name == coordinate.replace("_", " ") + unit * (named is about)
    assert sections.named(None, types.SimpleNamespace(**about))[0] == "radius of gyration / Å"
    four = types.SimpleNamespace(**{**plain, "space": MeanFree(4, 3)})
    assert sections.named("dihedral:0,1,2,3", four)[0] == "dihedral:0,1,2,3 / °"
