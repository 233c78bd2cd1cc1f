"""Molecules with a force field of OpenMM as a target: p(x) ∝ exp(-E(x)/kT)."""

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
    import openmm

# positions (atoms, 3) in nm -> energy in kJ/mol and forces (atoms, 3) in kJ/mol/nm
Ask = Callable[[np.ndarray], tuple[float, np.ndarray]]

ROUNDING = 1e-10  # of an energy in double precision, summed in another order
GAS = 8.31446261815324e-3  # kJ/mol/K
ELECTRONVOLT = 96.48533212331  # kJ/mol
SPACING, JITTER = 0.4, 0.1  # nm; atoms that are near, and do not overlap


class Molecular(BlackBox):
    """A black box of a molecule; x are positions in units of `length` nm, centred.

    elements: of the atoms, if a topology was given. start: a structure that was given, as one x,
    (1, atoms, 3); chains begin there.
    """

    length: float = eqx.field(static=True)
    temperature: float = eqx.field(static=True)  # K
    trap: float = eqx.field(static=True)  # kJ/mol/nm²
    elements: tuple[str, ...] | None = eqx.field(static=True, default=None)
    start: Float[Array, "1 atoms 3"] | None = None

    @property
    def symbols(self) -> tuple[str, ...]:
        """The elements of the atoms; there is no such attribute without a topology."""
        if self.elements is None:
            raise AttributeError("symbols: no topology was given")
        return self.elements

    @property
    def angstrom(self) -> float:
        return 10 * self.length

    def positions(self, x: ArrayLike) -> np.ndarray:
        """Samples (n, atoms, 3) in nm, as OpenMM has them."""
        return self.length * np.asarray(x, float)

    def electronvolts(self, x: ArrayLike, energy: ArrayLike) -> np.ndarray:
        """What OpenMM gave, in eV: kT·(E + zero) - ½ trap Σ|length·x|², for E = -log p̃ at x."""
        held = 0.5 * self.trap * np.sum(self.positions(x) ** 2, axis=(1, 2))
        whole = GAS * self.temperature * (np.asarray(energy, float) + self.zero)
        return (whole - held) / ELECTRONVOLT


def from_system(
    system: "openmm.System",
    *,
    positions: Any = None,
    topology: Any = None,
    temperature: Any = 300.0,
    length: float = 0.1,
    trap: float = 0.0,
    species: Iterable[SupportsIndex] | None = None,
    platform: str = "Reference",
    failures: tuple[type[Exception], ...] = (),
) -> Molecular:
    """log p̃(x) = zero - (E(length·x) + ½ trap Σ_i |length·x_i|²)/kT for the energy of a system.

    positions: of a structure, (atoms, 3) in nm or with OpenMM's unit, such as `PDBFile.positions`:
    chains begin there, and `zero` is the energy there in whole thousands of kT (0 without one).
    topology: OpenMM's, such as `PDBFile.topology`: files of samples then have the elements.
    temperature in K (or with OpenMM's unit), length in nm (x is in Å by
    default), trap in kJ/mol/nm² (molecules that no bond holds together have no normalisable density
    without one). species: atoms of one number can be exchanged; those that the energy cannot tell
    apart if None, such as the hydrogens of one methyl. platform: of OpenMM; `Reference` is in
    double precision, and for small molecules often the fastest. One energy call is one of OpenMM,
    for energy and forces. failures: exceptions that say that there is no energy at a point.
    """
    try:
        from openmm import unit
    except ImportError as error:
        raise UserError(
            "from_system needs OpenMM; pip install '.[openmm]' in demx's directory"
        ) from error
    if unit.is_quantity(temperature):
        temperature = temperature.value_in_unit(unit.kelvin)
    species = None if species is None else kinds(species)
    check_atoms(system.getNumParticles(), temperature, length, trap, species)
    _check(system)
    exact = _asking(system, "Reference")
    apart = _apart(system.getNumParticles())
    if not _same(exact(apart)[0], exact(-apart)[0]):
        raise UserError(
            "system: expected the same energy for a configuration and its mirror image, which "
            "CMAP terms do not give; take a force field without them, such as amber14"
        )
    if species is None:
        species = kinds(_species(system, exact, apart))
    ask = exact if platform == "Reference" else _asking(system, platform)
    temperature = float(temperature)
    kt = GAS * temperature

    def energy(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = length * x
        found, forces = ask(at)
        held = 0.5 * trap * np.sum(at**2)
        return (found + held) / kt, (trap * at - forces) * (length / kt)

    space = MeanFree(len(apart), 3, species if len(set(species)) > 1 else None)
    host, start = Host(energy, space.shape, False, None, failures=failures), None
    if positions is not None:
        start = space.project(jnp.asarray(_structure(positions, len(apart)) / length, float))
        host.count_from(np.asarray(start[0]))
    elements = None if topology is None else _elements(topology, len(apart))
    return Molecular(space, host, length, temperature, trap, elements, start)


def _elements(topology: Any, count: int) -> tuple[str, ...]:
    """One symbol for each of `count` atoms; X of those that are none, such as virtual sites."""
    found = tuple(atom.element.symbol if atom.element else "X" for atom in topology.atoms())
    if len(found) != count:
        raise UserError(f"topology: expected one of {count} atoms, got one of {len(found)}")
    return found


def _structure(positions: Any, count: int) -> np.ndarray:
    """Positions as (1, count, 3) in nm."""
    from openmm import unit

    if unit.is_quantity(positions):
        positions = positions.value_in_unit(unit.nanometer)
    found = np.asarray(positions, float)
    if found.shape != (count, 3):
        raise UserError(f"positions: expected shape ({count}, 3), got {found.shape}")
    return found[None]


def _check(system: "openmm.System") -> None:
    """Stop if not every atom is free to move everywhere."""
    atoms = range(system.getNumParticles())
    if system.usesPeriodicBoundaryConditions():
        raise UserError(
            "system: expected no periodic box, found one; say nonbondedMethod=NoCutoff, and "
            "implicit solvent if any"
        )
    if system.getNumConstraints():
        raise UserError(
            f"system: expected no constraints, found {system.getNumConstraints()}; say "
            "constraints=None, rigidWater=False"
        )
    if any(system.isVirtualSite(i) for i in atoms):
        raise UserError("system: expected no virtual sites; demx moves every atom")
    if any(system.getParticleMass(i)._value == 0 for i in atoms):
        raise UserError("system: expected masses above 0 (0 holds an atom); demx moves every atom")


def _asking(system: "openmm.System", platform: str) -> Ask:
    """Energy and forces by one evaluation of OpenMM."""
    import openmm

    known = [openmm.Platform.getPlatform(i) for i in range(openmm.Platform.getNumPlatforms())]
    names = [one.getName() for one in known]
    if platform not in names:
        raise UserError(f"platform: expected one of {', '.join(names)}, got {platform!r}")
    # a context wants an integrator; it makes no step
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), known[names.index(platform)])

    def ask(positions: np.ndarray) -> tuple[float, np.ndarray]:
        context.setPositions(positions)
        state = context.getState(getEnergy=True, getForces=True)
        return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value

    return ask


def _apart(count: int) -> np.ndarray:
    """Positions (count, 3) in nm with nothing symmetric about them, on a grid shaken a little."""
    side = int(np.ceil(count ** (1 / 3)))
    grid = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)[:count]
    rng = np.random.default_rng(0)
    return SPACING * rng.permutation(grid) + rng.uniform(-JITTER, JITTER, (count, 3))


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= ROUNDING * max(abs(one), abs(other))


def _species(system: "openmm.System", ask: Ask, positions: np.ndarray) -> tuple[int, ...]:
    """The same number for atoms whose exchange leaves the energy as it is.

    Such exchanges make up all permutations of a class, since (i j)(j k)(i j) = (i k). Only atoms of
    one mass with bonds to the same atoms are tried.
    """
    import openmm

    count = len(positions)
    partners = [set() for _ in range(count)]
    for force in system.getForces():
        if isinstance(force, openmm.HarmonicBondForce):
            for bond in range(force.getNumBonds()):
                i, j, *_ = force.getBondParameters(bond)
                partners[i].add(j)
                partners[j].add(i)
    mass = [system.getParticleMass(i)._value for i in range(count)]
    here, kind = ask(positions)[0], list(range(count))
    for i in range(count):
        for j in range(i):
            alike = mass[i] == mass[j] and partners[i] - {j} == partners[j] - {i}
            if kind[j] != j or not alike:
                continue
            order = np.arange(count)
            order[[i, j]] = j, i
            if _same(here, ask(positions[order])[0]):
                kind[i] = j
                break
    return tuple(sorted(set(kind)).index(one) for one in kind)
