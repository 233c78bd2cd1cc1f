"""Atoms with an ASE calculator as a target: p(x) ∝ exp(-E(x)/kT)."""

import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from demx.errors import UserError
from demx.space import MeanFree, kinds
from demx.targets.black_box import BlackBox, Host, check_atoms

if TYPE_CHECKING:
    from ase import Atoms


class Atomistic(BlackBox):
    """A black box that knows its atoms; x are positions in units of `length` Å, centred.

    start: where the atoms are, as one x, (1, atoms, 3); chains begin there.
    """

    blank: Callable[[], "Atoms"] = eqx.field(static=True)  # the atoms, without a calculator
    length: float = eqx.field(static=True)
    temperature: float = eqx.field(static=True)  # K
    trap: float = eqx.field(static=True)  # eV/Å²
    start: Float[Array, "1 atoms 3"] | None = None

    @property
    def symbols(self) -> tuple[str, ...]:
        """The elements of the atoms."""
        return tuple(self.blank().get_chemical_symbols())

    @property
    def angstrom(self) -> float:
        return self.length

    def positions(self, x: ArrayLike) -> np.ndarray:
        """Samples (n, atoms, 3) in Å."""
        return self.length * np.asarray(x, float)

    def electronvolts(self, x: ArrayLike, energy: ArrayLike) -> np.ndarray:
        """What the calculator gave, in eV: kT·(E + zero) - ½ trap Σ|length·x|², E = -log p̃ at x."""
        from ase.units import kB

        held = 0.5 * self.trap * np.sum(self.positions(x) ** 2, axis=(1, 2))
        return kB * self.temperature * (np.asarray(energy, float) + self.zero) - held

    def frames(self, x: ArrayLike) -> list["Atoms"]:
        """Samples as ASE atoms, for `ase.io.write` and the viewer; without a calculator."""
        made = []
        for positions in self.positions(x):
            frame = self.blank()
            frame.positions = positions
            frame.info["angstrom"] = self.angstrom  # so that x can be had from a file of them
            made.append(frame)
        return made


def from_atoms(
    atoms: "Atoms",
    calculator: Any = None,
    *,
    temperature: float = 300.0,
    length: float = 1.0,
    trap: float | None = None,
    species: Iterable[SupportsIndex] | None = None,
    failures: tuple[type[Exception], ...] = (),
) -> Atomistic:
    """log p̃(x) = zero - (E(length·x) + ½ trap Σ_i |length·x_i|²)/kT for the energy of a calculator.

    calculator: that of the atoms if None. temperature in K, length in Å, trap in eV/Å² (it keeps
    together what would fly apart: a cluster in a vacuum has no normalisable density without one;
    None is 0, with a warning).
    species: atoms of one number can be exchanged; those of one element if None (a force field with
    fixed bonds needs more of them). One energy call is one of the calculator,
    for energy and forces. Chains begin at the positions of the atoms, unless those are all one;
    `zero` is the energy there in whole thousands of kT, since total energies of millions of kT
    would leave no digits for differences in single precision. A calculation that fails (by ASE's
    CalculationFailed, such as one that does not converge, or one of `failures`) is a bad point, and
    counted as `failed`; whatever else the calculator raises ends what is computed.
    """
    try:
        from ase import Atoms
        from ase.calculators.calculator import CalculationFailed
        from ase.units import kB
    except ImportError as error:
        raise UserError("from_atoms needs ASE; pip install '.[ase]' in demx's directory") from error
    if not isinstance(atoms, Atoms):
        raise UserError(
            f"atoms: expected ase.Atoms, such as ase.build.molecule('H2O'), got {atoms!r}"
        )
    calculator = atoms.calc if calculator is None else calculator
    if calculator is None:
        raise UserError(
            "atoms: expected a calculator, found none; set atoms.calc, or hand one over"
        )
    if isinstance(calculator, type) or not hasattr(calculator, "get_potential_energy"):
        name = calculator.__name__ if isinstance(calculator, type) else repr(calculator)
        raise UserError(
            f"calculator: expected one of ASE's, made, such as EMT(); got {name}"
            f"{', which is a class: call it' if isinstance(calculator, type) else ''}"
        )
    if np.any(atoms.pbc):
        raise UserError(f"atoms: expected no periodic directions, found pbc={atoms.pbc.tolist()}")
    if atoms.constraints:
        raise UserError("atoms: expected no constraints; demx moves every atom")
    species = None if species is None else kinds(species)
    check_atoms(len(atoms), temperature, length, trap or 0.0, species)
    kept, own, unit = atoms.copy(), atoms.copy(), kB * temperature
    own.calc = calculator
    if trap is None:
        _warn_of_no_trap(kept.positions, unit)
        trap = 0.0

    def energy(x: np.ndarray) -> tuple[float, np.ndarray]:
        own.positions = length * x
        slope = trap * own.positions - own.get_forces()
        value = own.get_potential_energy() + 0.5 * trap * np.sum(own.positions**2)
        return value / unit, slope * (length / unit)

    if species is None:
        species = kinds(atoms.numbers)
    space = MeanFree(len(atoms), 3, species if len(set(species)) > 1 else None)
    host = Host(energy, space.shape, False, None, failures=(CalculationFailed, *failures))
    start = None
    if np.ptp(kept.positions, axis=0).any():  # atoms without positions are all at the origin
        start = space.project(jnp.asarray(kept.positions[None] / length, float))
        host.count_from(np.asarray(start[0]))
    return Atomistic(space, host, lambda: kept.copy(), length, temperature, trap, start)


def _warn_of_no_trap(positions: np.ndarray, unit: float) -> None:
    """With the k for which ½ k R² = kT at the radius R of the atoms."""
    radius = float(np.linalg.norm(positions - positions.mean(axis=0), axis=1).max())
    size = f"trap={2 * unit / radius**2:.2g}" if radius else "a trap"
    warnings.warn(
        "from_atoms: without a trap atoms that can fly apart have no normalisable density, and "
        f"nothing holds the samples together; {size} (eV/Å²) is 1 kT for an atom at the radius of "
        "these positions, ½·trap·Σ|x|² in all. Say trap=0 where nothing can fly apart",
        stacklevel=3,
    )
