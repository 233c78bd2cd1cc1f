"""Summaries with standard errors, and the quantities they are of."""

import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest

from demx.errors import UserError
from demx.evaluate.observables import entries, measured, observable, of_function
from demx.evaluate.summary import summarise
from demx.outputs import table
from demx.outputs.spool import Turned
from demx.space import Euclidean, MeanFree
from demx.targets.function import FunctionTarget
from untrained import told


def test_summaries_against_closed_form(seed, rng):
    """A normal tilted by exp(x) is a normal moved by 1: errors cover, 4σ."""
    print("seed", seed)
    n = 40_000
    f = rng.normal(size=n)
    plain, tilted = summarise(f), summarise(f, f)
    for found, mean in ((plain, 0.0), (tilted, 1.0)):
        assert abs(found.mean.value - mean) < 4 * found.mean.standard_error
        assert abs(found.sd.value - 1.0) < 4 * found.sd.standard_error
        for p, true in ((0.05, -1.6449), (0.5, 0.0), (0.95, 1.6449)):
            q = found.quantiles[p]
            assert abs(q.value - true - mean) < 4 * q.standard_error
    # of a normal: σ/√n, σ/√2n, and √(p(1-p)/n)/φ of the median
    assert plain.mean.standard_error == pytest.approx(n**-0.5, rel=0.05)
    assert plain.sd.standard_error == pytest.approx((2 * n) ** -0.5, rel=0.05)
    median = plain.quantiles[0.5].standard_error
    assert median == pytest.approx(0.5 / n**0.5 * (2 * np.pi) ** 0.5, rel=0.1)
    # E[w²(f-1)²]/E[w]² = e² E_{N(2,1)}[(f-1)²]/e = 2e
    assert tilted.mean.standard_error == pytest.approx((2 * np.e / n) ** 0.5, rel=0.3)


def test_errors_of_islands_and_of_bad_values(rng):
    f = np.repeat(rng.normal(size=100), 50)  # islands of equal samples: worth 100, not 5000
    island = np.repeat(np.arange(100), 50)
    found = summarise(f, None, island)
    assert found.mean.standard_error == pytest.approx(f[::50].std(ddof=1) / 10, rel=1e-6)
    assert np.isnan(summarise(f, None, 0 * island).mean.standard_error)
    f[3] = np.inf
    assert summarise(f).bad == 1 and summarise(f).n == 4999
    with pytest.raises(ValueError, match="no value is finite"):
        summarise(np.full(3, np.nan))
    with pytest.raises(ValueError, match="all weights are zero"):
        summarise(np.ones(3), np.full(3, -np.inf))


def test_observables(rng):
    space, x = MeanFree(3, 2), rng.normal(size=(5, 3, 2))
    energy = rng.normal(size=5)
    np.testing.assert_array_equal(observable("energy", space)(x, energy), energy)
    apart = np.linalg.norm(x[:, 2] - x[:, 0], axis=1)
    np.testing.assert_allclose(observable("distance:2,0", space)(x, energy), apart)
    np.testing.assert_allclose(observable("x3", space)(x, energy), x[:, 1, 1])
    for name in ("distance:0,0", "distance:0,3", "x6", "speed"):
        with pytest.raises(UserError, match="coordinate: expected one of energy, norm"):
            observable(name, space)
    with pytest.raises(UserError, match="coordinate"):
        observable("radius_of_gyration", Euclidean(2))
    twice = of_function(lambda x: 2 * jnp.sum(x))
    np.testing.assert_allclose(twice(x, energy), 2 * x.sum(axis=(1, 2)), rtol=1e-5)
    plain = of_function(lambda x: float(np.sum(np.asarray(x))))  # JAX cannot trace it
    np.testing.assert_allclose(plain(x, energy), x.sum(axis=(1, 2)))
    with pytest.raises(UserError, match="gives one number"):
        of_function(lambda x: x)(x, energy)


@pytest.mark.parametrize("named", [None, lambda x: {"shift": x}], ids=["coordinate", "site"])
def test_one_number_does_not_copy_the_others(named, rng):
    """What one coordinate of a thousand costs is its own column, not the cast of all."""
    n, dim = 500, 1000
    x, energy = rng.normal(size=(n, dim)).astype(np.float32), np.zeros(n)
    measure = observable("x7" if named is None else "shift[7]", Euclidean(dim), named)
    tracemalloc.start()
    found = measure(x, energy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(found, x[:, 7].astype(float))
    assert found.dtype == float and found.base is None
    assert peak < n * dim * x.itemsize / 2


def test_numbers_of_sites_in_order(rng):
    sites = {"mean": np.arange(3), "on": rng.normal(size=(3, 2, 2)) > 0}
    found = entries(sites)
    assert [*found] == ["mean", "on[0,0]", "on[0,1]", "on[1,0]", "on[1,1]"]
    assert all(column.dtype == float for column in found.values())
    np.testing.assert_array_equal(found["on[0,1]"], sites["on"][:, 0, 1])


def test_rows_turned_into_columns(tmp_path, rng):
    """A column stands in one piece: reading all of them reads the file once."""
    x = rng.normal(size=(11, 3))
    with Turned(tmp_path / "x.csv", len(x)) as turned:
        for rows in (x[:4], x[4:5], x[5:]):
            turned.add([*rows.T])
        for i in range(3):
            np.testing.assert_array_equal(turned.column(i), x[:, i])
        turned._file.seek(0)
        assert turned._file.read() == np.ascontiguousarray(x.T).tobytes()
    assert not [*tmp_path.iterdir()]


def test_a_summary_is_the_same_in_any_chunks(tmp_path, rng):
    target = FunctionTarget(lambda x: 0.5 * jnp.sum(x * x), Euclidean(4))
    n, x = 50, rng.normal(size=(50, 4)).astype(np.float32)
    columns = {"x": x, "energy": 0.5 * (x * x).sum(axis=1), "log_weight": x[:, 0],
               "island": np.arange(n) // 5}  # fmt: skip
    written = []
    for size in (n, 7):
        cuts = (slice(start, start + size) for start in range(0, n, size))
        chunks = ({name: column[cut] for name, column in columns.items()} for cut in cuts)
        table.write(tmp_path / "s.csv", chunks, n, target, lambda: {"demx": "test"})
        written.append((tmp_path / "s.csv").read_text())
    assert written[0] == written[1]
    about, lines = told(tmp_path / "s.csv")
    assert "effective_share" in about
    values = measured(x, columns["energy"], target.space)
    assert [line["quantity"] for line in lines] == [*values]
    for line, value in zip(lines, values.values(), strict=True):
        own = summarise(value, columns["log_weight"], columns["island"])
        assert float(line["mean"]) == pytest.approx(own.mean.value, rel=1e-7)
        assert float(line["q95_se"]) == pytest.approx(own.quantiles[0.95].standard_error, rel=1e-7)
