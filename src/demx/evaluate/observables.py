"""Numbers of a configuration by name: coordinates, distances, dihedrals, radius of gyration, …"""

import re
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np

from demx.errors import UserError
from demx.evaluate.metrics import distances
from demx.space import MeanFree, Space
from demx.types import check_sites

# (samples (n, *shape), energies (n,)) -> (n,)
Observable = Callable[[np.ndarray, np.ndarray], np.ndarray]
Named = Callable[[np.ndarray], Mapping[str, np.ndarray]]  # see `demx.types.Target`

ANYWHERE: dict[str, Observable] = {
    "energy": lambda x, energy: energy,
    "norm": lambda x, energy: np.linalg.norm(_flat(x).astype(float), axis=1),
}
OF_PARTICLES: dict[str, Observable] = {
    "radius_of_gyration": lambda x, energy: _radius(x),
    "smallest_distance": lambda x, energy: distances(x).min(axis=1),
    "mean_distance": lambda x, energy: distances(x).mean(axis=1),
    "largest_distance": lambda x, energy: distances(x).max(axis=1),
}


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)


def _in_three(space: Space) -> bool:
    return isinstance(space, MeanFree) and space.dim == 3


def _radius(x: np.ndarray) -> np.ndarray:
    """√(mean over particles of |x_i - centre|²)."""
    x = x.astype(float)
    return np.sqrt(((x - x.mean(axis=1, keepdims=True)) ** 2).sum(axis=2).mean(axis=1))


def dihedral(x: np.ndarray, i: int, j: int, k: int, l: int) -> np.ndarray:  # noqa: E741
    """Angles (n,) in degrees, from -180 to 180, by which x: (n, particles, 3) is turned about j-k.

    0 where i and l are on one side, and above it where l is clockwise of i, seen from j to k
    (IUPAC). Its mirror image has the negative angle.
    """
    x = x.astype(float)
    first, axis, last = x[:, j] - x[:, i], x[:, k] - x[:, j], x[:, l] - x[:, k]
    one, other = np.cross(first, axis), np.cross(axis, last)
    along = np.linalg.norm(axis, axis=1) * np.sum(first * other, axis=1)
    return np.degrees(np.arctan2(along, np.sum(one * other, axis=1)))


def _columns(sites: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    for site, values in sites.items():
        values = np.asarray(values)
        for place in np.ndindex(values.shape[1:]):
            at = f"[{','.join(map(str, place))}]" if place else ""
            yield site + at, values[:, *place]


def entries(sites: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every number of named arrays (n, …) as (n,): mean, or shift[0], shift[1], matrix[0,1]."""
    check_sites(sites)
    return {name: column.astype(float) for name, column in _columns(sites)}


def entry_names(space: Space, named: Named | None) -> list[str]:
    """Of a target that names its numbers, in order; of others none."""
    return [] if named is None else [*entries(named(np.zeros((1, *space.shape), np.float32)))]


def observable(name: str, space: Space, named: Named | None = None) -> Observable:
    """By name: energy, norm, x3 (a coordinate, counted over the flat array), and of particles
    radius_of_gyration, smallest_, mean_ and largest_distance, distance:0,1; in three dimensions
    dihedral:0,1,2,3. Of a target that names its numbers those, which come first."""
    own = entry_names(space, named)
    if name in own:
        return lambda x, energy: dict(_columns(named(x)))[name].astype(float)
    known = ANYWHERE | (OF_PARTICLES if isinstance(space, MeanFree) else {})
    if name in known:
        return known[name]
    size = int(np.prod(space.shape))
    if (found := re.fullmatch(r"x(\d+)", name)) and int(found[1]) < size:
        # one column is cast, not all of them once for each
        return lambda x, energy: _flat(x)[:, int(found[1])].astype(float)
    if isinstance(space, MeanFree) and (found := re.fullmatch(r"distance:(\d+),(\d+)", name)):
        first, second = int(found[1]), int(found[2])
        if first != second and max(first, second) < space.num_particles:
            apart = lambda x: x[:, first].astype(float) - x[:, second]  # noqa: E731
            return lambda x, energy: np.linalg.norm(apart(x), axis=1)
    if _in_three(space) and (found := re.fullmatch(r"dihedral:(\d+),(\d+),(\d+),(\d+)", name)):
        four = [int(one) for one in found.groups()]
        if len(set(four)) == 4 and max(four) < space.num_particles:
            return lambda x, energy: dihedral(x, *four)
    listed = [*own, *known, f"x0 to x{size - 1}"]
    if isinstance(space, MeanFree):
        listed.append(f"distance:I,J with I and J from 0 to {space.num_particles - 1}")
    if _in_three(space):
        listed.append("dihedral:I,J,K,L")
    raise UserError(f"coordinate: expected one of {', '.join(listed)}, got {name!r}")


def of_function(function: Callable) -> Observable:
    """A function of one configuration, as an observable: batched by JAX where JAX can trace it."""

    def values(x: np.ndarray, energy: np.ndarray) -> np.ndarray:
        try:
            found = np.asarray(jax.jit(jax.vmap(function))(x), float)
        except (jax.errors.JAXTypeError, TypeError):  # it is not made of JAX operations
            found = np.array([np.asarray(function(row), float) for row in x])
        if found.shape != (len(x),):
            raise UserError(
                f"coordinate: expected a function of one configuration that gives one number, got "
                f"shape {found.shape[1:]}"
            )
        return found

    return values


def usual(space: Space) -> list[str]:
    """What a summary of samples tells: of particles what does not depend on how they lie."""
    if isinstance(space, MeanFree):
        return ["energy", *OF_PARTICLES]
    return [*ANYWHERE, *(f"x{i}" for i in range(space.shape[0]))]


def measured(
    x: np.ndarray, energy: np.ndarray, space: Space, named: Named | None = None
) -> dict[str, np.ndarray]:
    """What a summary tells of samples, (n,) each: the usual, or the energy and what has a name."""
    if named is not None:
        return {"energy": energy} | entries(named(x))
    return {name: observable(name, space)(x, energy) for name in usual(space)}
