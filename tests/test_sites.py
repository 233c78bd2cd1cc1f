"""Samples of a probabilistic model are known by the names of its sites."""

import jax.numpy as jnp
import numpy as np
import pytest

from demx import samples
from demx.errors import UserError
from untrained import told, untrained


def schools(effect):
    """A mean, a spread > 0, two shifts, and what follows from them."""
    import numpyro
    from numpyro import distributions as dist

    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("school", 2):
        shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
        numpyro.deterministic("group/level", mean + spread * shift)
    numpyro.sample("effect", dist.Normal(mean + spread * shift, 1.0), obs=effect)


@pytest.fixture(scope="module")
def model():
    from demx.targets.probabilistic import from_model

    target = from_model(schools, jnp.asarray([0.5, -0.2]))
    weighted = {"sampler": {"num_samples": 64, "outer_steps": 1}}
    return untrained(target, weighted, "importance", scale=1.0)


def test_a_model_is_written_by_the_names_of_its_sites(model, tmp_path):
    """Weighted draws are resampled for ArviZ; what was drawn is in the file too, and read again."""
    import arviz

    drawn = model.sample(500, seed=4)
    written = model.sample_to(tmp_path / "draws.nc", 500, seed=4, chunk=128)
    found = arviz.from_netcdf(tmp_path / "draws.nc")
    sites = model.target.constrain(drawn.x)
    assert set(found.posterior.data_vars) == {"mean", "spread", "shift", "group.level"}
    assert found.posterior["shift"].dims == ("chain", "draw", "shift_dim_0")
    np.testing.assert_allclose(found.weighted_posterior["spread"][0], sites["spread"], rtol=1e-6)
    np.testing.assert_array_equal(found.weighted_unconstrained_posterior["x"][0], drawn.x)
    np.testing.assert_array_equal(
        found.weighted_sample_stats["log_weight"][0], np.asarray(drawn.log_weight)
    )
    rows = found.sample_stats["row"].values[0]
    np.testing.assert_allclose(
        found.posterior["group.level"][0], sites["group/level"][rows], rtol=1e-6
    )
    np.testing.assert_array_equal(found.unconstrained_posterior["x"][0], drawn.x[rows])
    assert "log_weight" not in found.sample_stats
    assert "weighted by log_weight" in found.weighted_posterior.attrs["draws"]
    assert "resampled from" in found.posterior.attrs["draws"]
    assert "500 equally weighted draws, resampled" in written.told and written.told in repr(written)
    stored = samples.read(tmp_path / "draws.nc")
    np.testing.assert_array_equal(stored.x, drawn.x)
    np.testing.assert_array_equal(stored.log_weight, drawn.log_weight)


def test_arviz_summarises_weighted_draws(model, tmp_path, seed):
    """Means of the resampled draws are the weighted ones, within 4 of their standard errors; the
    effective sample size is near that of the weights, not near n."""
    import arviz

    print("seed", seed)
    n = 4000
    model.sample_to(tmp_path / "draws.nc", n, seed=seed)
    model.sample_to(tmp_path / "draws.csv", n, seed=seed)
    table = arviz.summary(arviz.from_netcdf(tmp_path / "draws.nc"), round_to="none")
    about, lines = told(tmp_path / "draws.csv")
    of_weights = {line["quantity"]: line for line in lines}
    assert [*of_weights][:3] == ["energy", "group/level[0]", "group/level[1]"]
    share = float(about["effective_share"])
    assert share < 0.7  # otherwise nothing is tested
    for name in ("mean", "spread", "shift[0]", "shift[1]"):
        found, weighted = table.loc[name], of_weights[name]
        error = float(weighted["mean_se"])
        # systematic resampling adds less than independent draws would: sd/√n
        allowed = 4 * (error + float(weighted["sd"]) / n**0.5)
        assert abs(found["mean"] - float(weighted["mean"])) < allowed
        assert found["ess_bulk"] < 1.5 * share * n
        assert found["mcse_mean"] == pytest.approx(error, rel=0.5)


def test_sites_are_coordinates(model):
    from demx.report import sections

    x = np.asarray(model.sample(7).x)
    title, shift = sections.named("shift[1]", model.target)
    assert title == "shift[1]"
    np.testing.assert_allclose(shift(x, None), model.target.named(x)["shift"][:, 1])
    assert sections.named(None, model.target)[0] == "group/level[0]"
    with pytest.raises(UserError, match=r"expected one of .*mean, shift\[0\], .* got 'shift'"):
        sections.named("shift", model.target)
    shown = model.plot.samples()
    assert shown.get_xlabel() == "group/level[0]"
