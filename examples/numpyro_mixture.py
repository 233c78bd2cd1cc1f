"""A mixture of two normals in NumPyro: which is which is not known, so there are two modes."""

import arviz as az
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist

import demx
from demx.targets.probabilistic import from_model

RANDOM = np.random.default_rng(0)
DATA = np.concatenate([RANDOM.normal(-1.5, 1.0, 40), RANDOM.normal(1.5, 1.0, 40)])


def mixture(data):
    share = numpyro.sample("share", dist.Beta(2, 2))
    with numpyro.plate("component", 2):
        mean = numpyro.sample("mean", dist.Normal(0, 3))
        width = numpyro.sample("width", dist.LogNormal(0, 0.5))
    shares = dist.Categorical(jnp.stack([share, 1 - share]))
    parts = dist.MixtureSameFamily(shares, dist.Normal(mean, width))
    with numpyro.plate("point", len(data)):
        numpyro.sample("data", parts, obs=data)


def posterior():
    """Five coordinates: the share of the first, two means and two widths."""
    return from_model(mixture, DATA)


def main(n=2000, **options):
    sampler = demx.fit(posterior(), **{"method": "smc"} | options)
    print(sampler.sample_to("draws.nc", n))
    # both means are nearly the same: each component is either one
    print(az.summary(az.from_netcdf("draws.nc")).to_string())


if __name__ == "__main__":
    main()
