"""Eight schools in NumPyro: the posterior by demx, by the names of the model's sites."""

import numpy as np
import numpyro
from numpyro import distributions as dist

import demx
from demx.targets.probabilistic import from_model

EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools(effect, error):
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    spread = numpyro.sample("spread", dist.HalfCauchy(5))
    with numpyro.plate("school", len(effect)):
        shift = numpyro.sample("shift", dist.Normal(0, 1))
        numpyro.sample("effect", dist.Normal(mean + spread * shift, error), obs=effect)


def posterior():
    """Ten coordinates: mean, log spread, and a shift for each school."""
    return from_model(schools, EFFECT, ERROR)


def main(n=2000, budget="3m", **options):
    target = posterior()
    sampler = demx.fit(target, budget=budget, **options)
    drawn = sampler.sample(n, weights=True)
    weight = np.exp(drawn.log_weight - np.max(drawn.log_weight))
    for name, values in target.constrain(drawn.x).items():
        print(name, np.round(np.average(values, axis=0, weights=weight), 2))


if __name__ == "__main__":
    main()
