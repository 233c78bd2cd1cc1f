"""At which noise level does a trained run err?

    python benchmarks/levels.py RUN [-n 256] [--local-variance 0.0059]

For exact x_0 of the validation set and x_t = x_0 + σ ε, at several σ:

- error: E|s_θ - s|² σ²/dof, where s is the mean of two long walks on p(x_0 | x_t), each of which is
  unbiased, so that the product of the two differences has no noise of theirs; signal: E|s|² σ²/dof;
- energy_w2 after the rest of the reverse SDE from x_t, against the test set, beside its floor.

Where error is large and energy_w2 jumps, the network (or its training) is at fault. Seed 0.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import demx
from demx.devices import chunk_rows, map_chunks
from demx.evaluate import metrics
from demx.evaluate.evaluation import batched_energies
from demx.methods.walk import Walk
from demx.sde import RULES, Grid, reverse
from demx.space import normal

SIGMAS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("-n", type=int, default=256)
    parser.add_argument("--local-variance", type=float, default=0.0059)
    options = parser.parse_args()
    fitted, n = demx.load(options.run), options.n
    sets, space, model = fitted.reference(), fitted.target.space, fitted.state.average
    x_0 = jnp.asarray(sets.validation[:n])
    of_test = batched_energies(fitted.target, sets.test)
    floor = metrics.energy_w2(batched_energies(fitted.target, sets.validation[:n]), of_test)
    print(f"{options.run}: n = {n}, floor of energy_w2 {floor:.3g}")
    settings = dict(fitted.config["grid"])
    times = np.asarray(Grid(**settings).times(model.noise))
    levels = np.sqrt(np.asarray(jax.vmap(model.noise.variance)(jnp.asarray(times))))
    chosen = dict(fitted.config["rule"])
    rule = RULES[chosen.pop("kind")](**chosen)
    walk = Walk(options.local_variance, num_moves=200, num_leapfrog=16)
    teach = eqx.filter_jit(walk)
    rows = chunk_rows(n, model.rows_in_cache)

    @eqx.filter_jit
    def score(model, t, x):
        return jax.lax.map(lambda one: model(t, one), x, batch_size=rows)

    for sigma in SIGMAS:
        key_noise, key_path, *keys = jax.random.split(jax.random.key(0), 4)
        place = int(np.argmin(np.abs(levels - sigma)))
        sigma = float(levels[place])
        x = x_0 + sigma * normal(key_noise, space, (n,))
        variance = jnp.full(n, sigma**2)
        exact = [
            teach(key, fitted.target, variance, x, x_0, jnp.asarray(0.3)).score for key in keys
        ]
        found = score(model, jnp.asarray(times[place]), x)
        unit = sigma**2 * found[0].size / space.dof
        error = unit * float(jnp.mean((found - exact[0]) * (found - exact[1])))
        signal = unit * float(jnp.mean(exact[0] * exact[1]))

        @eqx.filter_jit
        def finish(model, keys, parts, left):
            def some(model, chunk):
                key, start = chunk
                return reverse(key, model, model.noise, space, start, left, rule, 1.0)

            return map_chunks(some, model, (keys, parts))

        parts = x.reshape(n // rows, rows, *x.shape[1:])
        made = finish(
            model, jax.random.split(key_path, n // rows), parts, jnp.asarray(times[place:])
        )
        energies = batched_energies(fitted.target, np.asarray(made).reshape(x.shape))
        print(
            f"σ {sigma:.3f}  error {error:.4f}  signal {signal:.3f}  energy_w2 from here "
            f"{metrics.energy_w2(energies, of_test):.2f}"
        )


if __name__ == "__main__":
    main()
