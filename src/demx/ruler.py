"""Reference sets as a user asks for them: made, kept, or found in a file."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Array, ArrayLike

from demx import config
from demx.beginning import check_energies, known, points
from demx.errors import UserError
from demx.evaluate import reference as references
from demx.evaluate.equilibrium import Equilibrium, least_calls
from demx.evaluate.evaluation import floors
from demx.evaluate.reference import Reference
from demx.pace import watched
from demx.resolve import open_target, reference_key
from demx.samples import Stored
from demx.space import dim_of
from demx.types import Target
from demx.whole import check_seed

WORKERS = 2  # processes for aligned distances


def ruler(reference: Reference | str | Path | None) -> Reference | None:
    """The sets themselves, where a file is named."""
    named = isinstance(reference, str | Path)
    return references.load(Path(reference)) if named else reference


def reference(
    target: str | Target | Callable[[Array], Array],
    *,
    n: int = references.SIZE,
    output: str | Path | None = None,
    seed: SupportsIndex = 0,
    dim: SupportsIndex | None = None,
    particles: Iterable[SupportsIndex] | None = None,
    species: Iterable[SupportsIndex] | None = None,
    shape: Iterable[SupportsIndex] | None = None,
    settings: Sequence[str] = (),
    warm_start: ArrayLike | Stored | None = None,
    report: Callable[[str], None] = lambda text: None,
    **equilibrium: Any,
) -> tuple[Reference, Path | None]:
    """Two near-exact sets of n samples of a target, kept in `output` or, of a name, the cache.

    settings: of the target, such as ["target.num_particles=7"]. warm_start: points (rows, *shape)
    to begin from, in turn: half of the chains as they are, half after moves at the hottest
    temperature; without any, those of `target.start`, if it has that. equilibrium: `scale`,
    `num_chains` and the other sizes of `demx.evaluate.equilibrium.Equilibrium`.
    """
    seed, about = check_seed(seed), target_settings(settings)
    try:
        sizes = Equilibrium(**equilibrium)
    except (TypeError, ValueError) as error:
        raise UserError(str(error)) from error
    opened = open_target(
        target, about, dim=dim_of(shape, dim, particles), particles=particles, species=species,
        scale=sizes.scale,
    )  # fmt: skip
    built = opened.target
    path = Path(output) if output else None
    if path is None and isinstance(target, str):
        path = references.cache_file(*reference_key(opened.head(about)))
    if path is not None:
        _check_writable(path)
    start = _start(built, warm_start, sizes.num_chains)
    with watched(built, "reference", 2 * least_calls(n, sizes), least=True):
        made = references.make(built, seed=seed, n=n, settings=sizes, report=report, start=start)
    if path is not None:
        made.save(path)  # floors take their time too, and can be done without
    for size in (1000, 2000):
        if n >= 2 * size:
            report(f"floors at n = {size}")
            made = made.with_floors(size, floors(built, made, size, WORKERS))
    if path is not None:
        made.save(path)
    return made, path


def _check_writable(path: Path) -> None:
    """Refuse, before hours are spent on them, a place where the sets could not be kept."""
    if path.is_dir():
        raise UserError(
            f"{path}: expected the name of an npz file, found a directory; name a file in it, "
            f"such as {path / 'reference.npz'}"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(
            f"{path}: expected a place for a file, but nothing can be written to {path.parent} "
            f"({error.strerror}); name another"
        ) from error


def _start(
    target: Target, warm_start: ArrayLike | Stored | None, num_chains: int
) -> np.ndarray | None:
    """Points that the chains of a reference begin from; None: they find some themselves."""
    if hasattr(target, "sample"):
        if warm_start is not None:
            raise UserError("warm start: of no use here, this target draws exact samples")
        return None
    found = known(target) if warm_start is None else points(warm_start, target, "warm start")
    if found is not None:
        check_energies(target, found[:num_chains])
    return found


def target_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Those of the section `target`, which alone are allowed where nothing is trained."""
    sections = config.parse_set(tuple(settings))
    about = sections.pop("target", {})
    if sections:
        raise UserError(f"--set: expected settings of the target here, got {', '.join(sections)}")
    return about
