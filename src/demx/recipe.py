"""The recipe for an energy that has no preset: a short probe, and the settings that follow.

Points of a wide normal go downhill and then move by HMC for a while. Where they end tells two
lengths: σ_d, how widely the mass is spread about 0, and s, how narrow it is around one place
(`demx.stiffness`). Started wider and wider, points show how far the mass reaches: until what
comes back is clearly narrower than what was sent out.

The sizes that follow are for energies that take less than a microsecond. One whose calls are dear
gets the first of ever smaller sizes of which LOOPS outer loops are affordable; so do chains.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from demx.descent import relax
from demx.energy import evaluate
from demx.errors import GivenUp, UserError
from demx.methods.moves import Moves
from demx.space import MeanFree, Space, normal
from demx.stiffness import local_variance, spread
from demx.types import Target

POINTS, DESCENT = 64, 100
MOVES = Moves(num_steps=40, num_leapfrog=4)
ROUNDS = 10  # of starts each up to twice as wide as the one before
WIDER = 1.8  # a start this much wider than what came back has seen the whole
LOOPS = 20  # outer loops that a budget should have room for
SLACK = 4  # that full sizes of what JAX compiles may miss it by: a clock alone changes no run
PATIENCE = 600.0  # seconds for that many of them, if there is no budget
MOST_RUNGS = 16  # temperatures of moves, enough for 146 dimensions
# degrees of freedom beyond which weights are of no use: particles come together from anywhere
MOST_BY_WEIGHT, MOST_OF_PARTICLES = 4, 20


class Probe(NamedTuple):
    """s² and σ_d, to two digits, and what finding them cost. energy: the median where points ended;
    None of numbers that were kept."""

    local_variance: float
    spread: float
    energy_calls: int
    energy: float | None = None


@eqx.filter_jit
def _look(key: PRNGKeyArray, target: Target, scale: Array) -> tuple[Array, Array, Array]:
    space = target.space
    key_start, key_moves = jax.random.split(key)
    x = relax(target, scale * normal(key_start, space, (POINTS,)), DESCENT, scale)
    x = MOVES(key_moves, target, x, 0.02 * scale).points
    found = evaluate(target, x)
    # points outside the support have no slope to come back by: they say nothing
    inside = jnp.isfinite(found.log_density).astype(x.dtype)
    widest = jnp.maximum(spread(x, space, inside), 1e-6 * scale**2)
    typical = -jnp.nanmedian(jnp.where(inside > 0, found.log_density, jnp.nan))
    # the prior is centred at 0 and has to cover the mass wherever that is
    reach = jnp.maximum(spread(x, space, inside, about=0.0), 1e-6 * scale**2)
    return local_variance(found, space, widest), jnp.sqrt(reach), typical


def least_calls(scale: float | None) -> int:
    """Energy calls of a probe: so many of a scale that is known, at least so many otherwise."""
    return (2 if scale is None else 1) * _calls_of_a_look()


def _calls_of_a_look() -> int:
    return POINTS * (DESCENT + 1) + MOVES.calls(POINTS)


def probe(
    target: Target, scale: float | None = None, over: Callable[[int], bool] = lambda calls: False
) -> Probe:
    """Look around with points spread like `scale`; None: find out how widely to spread them.

    over: asked before a look, with the energy calls there will have been after it; True: give up.
    """
    key, looks = jax.random.key(0), 0

    def look(width: float) -> tuple[float, float, float]:
        nonlocal looks
        if looks and over((looks + 1) * _calls_of_a_look()):
            raise GivenUp("probe: given up")
        looks += 1
        found = _look(jax.random.fold_in(key, looks), target, jnp.asarray(width, float))
        return tuple(float(one) for one in found)

    if scale is None:
        width, reach = 0.5, 1.0
        while looks < ROUNDS and width < WIDER * reach:
            width = 2 * max(reach, width) if looks else 1.0
            _, reach, _ = look(width)
        if not width >= WIDER * reach:
            raise UserError(
                f"scale: points sent out as far as {width:.3g} do not come back, so the width of "
                "the mass could not be found; name a scale, and see that the energy grows outwards"
            )
        # from far away particles have hardly met: what is wanted is where they stay
        variance, reach, typical = look(reach)
    else:
        variance, reach, typical = look(scale)
        reach = max(reach, scale / 2)  # points that came together do not refute the user
    calls = looks * _calls_of_a_look()
    return Probe(_two_digits(variance), _two_digits(reach), calls, typical)


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def settings(space: Space, seen: Probe) -> dict[str, dict[str, Any]]:
    """Sections of a configuration for mass spread over σ_d that is s wide at one place.

    Noise reaches from 3.5 σ_d, where nothing but a normal is left to see, to a third of s; the
    control variate knows s. The sampler begins at a normal about 0; where the mean of the mass is
    m its density is then off by a factor exp(-x·m/σ_max²), and so are the shares of modes. So noise
    reaches twice as far where there are no particles, whose mean is 0.

    x_0 is kept, and the buffer is moved towards p_0 by HMC (without particles parallel tempering):
    where weights collapse the self-normalised mean is biased, towards wide modes. Of particles K
    falls with the degrees of freedom. Where these are many walks on p(x_0 | x_t) take the place of
    weights, for particles or not.
    """
    narrow, wide = math.sqrt(seen.local_variance), seen.spread
    narrow = min(narrow, wide)
    sections = {
        "noise": {
            "kind": "geometric",
            "sigma_min": _two_digits(narrow / 3),
            "sigma_max": _two_digits(3.5 * wide),
        },
        "precondition": {"kind": "denoiser", "sigma_data": wide},
        "grid": {"sigma_last": _two_digits(narrow / 10)},
        "estimator": {"kind": "mixed", "local_variance": seen.local_variance},
        "stopping": {"patience": 10},
    }
    particles = isinstance(space, MeanFree)
    small = space.dof <= (MOST_OF_PARTICLES if particles else MOST_BY_WEIGHT)
    if not particles:
        # angles fine enough to tell one narrow place from the next
        finest = _two_digits(min(max(2 * wide / narrow, 8.0), 50.0))
        network = {"kind": "mlp", "scale": finest}
        sections |= {
            "training": {
                "outer_steps": 200,
                "batch_size": 128,
                "new_samples": 128,
                "prior_fraction": 0.0,
                "schedule": "cosine",
            },
            "noise": sections["noise"] | {"sigma_max": _two_digits(7 * wide)},
            "buffer": {"kind": "ring", "capacity": 2048},
            "moves": {"num_steps": 100, "num_leapfrog": 8, "rungs": rungs(space.dof)},
        }
        if small:
            return sections | {
                "estimator": sections["estimator"] | {"wrap": ["conditional"]},
                "network": network,
                "evaluation": {"every": 4},
            }
        del sections["estimator"]
        return sections | {
            "walk": {"local_variance": seen.local_variance},
            "network": network | {"width": 256, "embedding": 16},
            "evaluation": {"every": 10},
        }
    samples = 2 ** round(math.log2(min(max(2048 / space.dof, 32), 512)))
    by_weight = {
        "estimator": sections.pop("estimator") | {"wrap": ["conditional"]},
        "draws": {"num_samples": samples},
    }
    # in few dimensions strays look like other points, and their targets would spoil those of these
    walk = {
        "walk": {"local_variance": seen.local_variance},
        "strays": {"local_sigma": _two_digits(2.5 * narrow)},
    }
    batch = 128 if space.num_particles <= 24 else 32
    return (
        sections
        | (by_weight if small else walk)
        | {
            "buffer": {"kind": "ring", "capacity": 16 * batch},
            "moves": {"num_steps": 100, "num_leapfrog": 8},
            "network": {"kind": "lean" if small else "relaxing"},
            "training": {
                "outer_steps": 500,
                "batch_size": batch,
                "new_samples": batch,
                "prior_fraction": 0.0,
                "optimiser": "soap",
                "learning_rate": 3e-3,
                "schedule": "cosine",
            },
            "evaluation": {"every": 10, "n": 4 * batch},
        }
    )


def rungs(dof: int) -> int:
    """Temperatures of the moves: nothing else tells the shares of modes that no walk leaves.

    Neighbours trade as often in d dimensions as in 32 if their number grows like √d: 8 trade a
    third of the time there, 4 hardly ever. Where more than MOST_RUNGS were needed there is one.
    """
    found = 1 + math.ceil(7 * math.sqrt(dof / 32))
    return found if found <= MOST_RUNGS else 1


class Sizes(NamedTuple):
    """At most so many of each in an outer loop; walk and moves: HMC moves of a point, and leapfrog
    steps of each. hot: whether moves may have several temperatures; fewer than they need are of no
    use."""

    inner_steps: int
    batch_size: int
    num_samples: int
    walk: tuple[int, int]
    moves: tuple[int, int]
    hot: bool


SMALLER = (  # regression points keep their worth longer than the samples behind each of them
    Sizes(100, 256, 128, (8, 8), (100, 8), True),
    Sizes(100, 128, 64, (8, 8), (100, 8), True),
    Sizes(50, 128, 64, (4, 8), (50, 8), False),
    Sizes(50, 64, 32, (4, 8), (50, 8), False),
    Sizes(25, 64, 32, (4, 4), (25, 8), False),
    Sizes(25, 32, 16, (4, 4), (20, 4), False),
)


def smaller(sections: dict[str, dict[str, Any]], sizes: Sizes) -> dict[str, dict[str, Any]]:
    """The recipe's sections with sizes for an energy whose calls are dear."""
    training = sections.get("training", {})
    batch = min(sizes.batch_size, training.get("batch_size", sizes.batch_size))
    found = sections | {
        "training": training
        | {"inner_steps": sizes.inner_steps, "batch_size": batch, "new_samples": batch},
        "evaluation": sections.get("evaluation", {}) | {"n": 4 * batch},
    }
    if "buffer" in sections:  # stale points leave as soon as they did
        found["buffer"] = sections["buffer"] | {"capacity": 16 * batch}
    for name, (moves, leapfrog), key in (
        ("walk", sizes.walk, "num_moves"),
        ("moves", sizes.moves, "num_steps"),
    ):
        if name in sections:
            found[name] = sections[name] | {key: moves, "num_leapfrog": leapfrog}
    if "moves" in found and not sizes.hot:
        found["moves"]["rungs"] = 1
    if "walk" not in sections:
        drawn = sections.get("draws", {}).get("num_samples", sizes.num_samples)
        found["draws"] = {"num_samples": min(drawn, sizes.num_samples)}
    return found


# of chains: at most so many side by side, and the share of their transitions. A black box gains
# nothing from many at once, and each has to reach equilibrium by itself
FEWER_CHAINS = ((64, 1), (32, 1), (16, 1), (8, 1), (8, 2), (8, 4), (4, 4), (4, 8))


def fewer_chains(sampler: dict[str, Any], most: int, share: int) -> dict[str, dict[str, Any]]:
    """Sections of chains whose calls are dear; sampler: the section with all its entries.

    Looks at their samples on the way would cost as much as the chains themselves.
    """
    count = min(most, sampler["num_chains"])
    length, thin = (max(2, sampler["length"] // share), max(1, sampler["thin"] // share))
    return {
        "sampler": {"num_chains": count, "length": length, "thin": thin},
        "evaluation": {"every": 0},
    }


def affordable(seconds: float, energy_calls: float, seconds_per_call: float) -> int:
    """Energy calls that one of LOOPS outer loops may take, for a budget in time or in calls.

    A power of two, so that what a clock says decides as little as possible.
    """
    if math.isinf(energy_calls):
        time = PATIENCE if math.isinf(seconds) else seconds
        energy_calls = time / max(seconds_per_call, 1e-9)
    return 2 ** math.floor(math.log2(max(1.0, energy_calls / LOOPS)))
