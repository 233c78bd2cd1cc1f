"""Regression targets from a walk on the posterior: x_0 is moved, x_t stays where it is.

If x_0 ~ p_0 and x_t = x_0 + σ ε, then x_0 is an exact draw of p(y | x_t) ∝ p̃(y) N(x_t; y, σ²), and
HMC moves that leave this density invariant give more draws of it, y_0 = x_0, y_1, …, y_M. The score
is their mean of the mixed identity (`estimator.Mixed`),

    S = mean_m [ (1-c) ∇log p̃(y_m) + c (y_m - x_t)/σ² ],   c = σ²/(σ² + s²).

Importance samples x_t + σ ε_i miss the posterior of a cluster as soon as σ is no longer small
against s, and all that is left of S_K is x_0; a walk starts inside it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from demx.energy import evaluate
from demx.estimator import Estimate
from demx.sde import posterior_variance
from demx.space import normal
from demx.types import Target

ACCEPTANCE = 0.8
FOLLOW = 0.05  # how fast the step size follows the acceptance of a batch


class Walk(eqx.Module):
    """num_moves HMC moves of num_leapfrog steps for each regression point.

    local_variance: s², of the target around one place. step: where the adaptation of the leapfrog
    steps starts, in units of the posterior's standard deviation √(s²σ²/(s²+σ²)).
    """

    local_variance: float
    num_moves: int = 8
    num_leapfrog: int = 8
    step: float = 0.3

    def __check_init__(self) -> None:
        if self.num_moves < 1 or self.num_leapfrog < 1:
            raise ValueError(
                "expected num_moves >= 1 and num_leapfrog >= 1, "
                f"got {self.num_moves} and {self.num_leapfrog}"
            )
        if not (self.local_variance > 0 and self.step > 0):
            raise ValueError(
                "local_variance, step: expected positive numbers, "
                f"got {self.local_variance} and {self.step}"
            )

    @property
    def calls(self) -> int:
        """Energy calls for one point."""
        return 1 + self.num_moves * self.num_leapfrog

    def __call__(
        self,
        key: PRNGKeyArray,
        target: Target,
        variance: Float[Array, " B"],
        x: Float[Array, "B ..."],
        x_0: Float[Array, "B ..."],
        step: Float[Array, ""],
    ) -> Estimate:
        """Estimates at x_t = x, (B, *shape); their `ess` is the share of the moves accepted.

        A point whose x_0 is nan walks from x_t: the first half of its moves does not count.
        """
        count, axes = x.shape[0], tuple(range(1, x.ndim))
        column = lambda a: a.reshape((-1,) + (1,) * (x.ndim - 1))  # noqa: E731
        known = jnp.all(jnp.isfinite(x_0), axis=axes)
        start = jnp.where(column(known), x_0, x)
        v, s2 = column(variance), self.local_variance
        c = v / (v + s2)
        length = step * jnp.sqrt(column(posterior_variance(variance, s2)))

        def look(y):
            """log p(y|x_t), its gradient, the mixed identity, and whether log p̃ was bad."""
            found, pull = evaluate(target, y), (y - x) / v
            value = found.log_density - jnp.sum((y - x) * pull, axis=axes) / 2
            mixed = (1 - c) * found.score + c * pull
            return value, found.score - pull, mixed, found.bad

        def move(carry, now):
            y, value, gradient, mixed, total, weight, bad, accepted = carry
            key, turn = now
            key_momentum, key_length, key_accept = jax.random.split(key, 3)
            momentum = normal(key_momentum, target.space, (count,))
            # trajectories of varying length cannot resonate with a stiff direction
            jitter = jax.random.uniform(key_length, (count,), minval=0.7, maxval=1.3)
            e = length * column(jitter)

            def leap(_, state):
                y, p, _, gradient, _, bad = state
                p = p + 0.5 * e * gradient
                y = y + e * p
                value, gradient, mixed, wrong = look(y)
                return y, p + 0.5 * e * gradient, value, gradient, mixed, bad + wrong.astype(int)

            begin = (y, momentum, value, gradient, mixed, bad)
            new = jax.lax.fori_loop(0, self.num_leapfrog, leap, begin)
            kinetic = jnp.sum(momentum**2, axis=axes) - jnp.sum(new[1] ** 2, axis=axes)
            log_ratio = new[2] - value + 0.5 * kinetic
            # nan: the trajectory left the finite numbers; it is rejected
            accept = jnp.log(jax.random.uniform(key_accept, (count,))) < log_ratio
            pick = column(accept)
            y, gradient = jnp.where(pick, new[0], y), jnp.where(pick, new[3], gradient)
            mixed, value = jnp.where(pick, new[4], mixed), jnp.where(accept, new[2], value)
            counts = (known | (2 * turn + 1 >= self.num_moves)).astype(x.dtype)
            total = total + column(counts) * mixed
            accepted = accepted + accept.astype(x.dtype)
            return (y, value, gradient, mixed, total, weight + counts, new[5], accepted), None

        value, gradient, mixed, bad = look(start)
        first = known.astype(x.dtype)
        begin = (
            start, value, gradient, mixed, column(first) * mixed, first, bad.astype(int),
            jnp.zeros_like(variance),
        )  # fmt: skip
        turns = (jax.random.split(key, self.num_moves), jnp.arange(self.num_moves))
        (*_, total, weight, bad, accepted), _ = jax.lax.scan(move, begin, turns)
        share = accepted / self.num_moves
        score = target.space.project(total / column(weight))
        unknown = jnp.full_like(variance, jnp.nan)
        return Estimate(score, unknown, share, bad, jnp.zeros_like(variance))

    def adapted(self, step: Float[Array, ""], acceptance: Float[Array, ""]) -> Float[Array, ""]:
        """The step for the next batch: log step += FOLLOW · (acceptance - 0.8)."""
        return step * jnp.exp(FOLLOW * (acceptance - ACCEPTANCE))
