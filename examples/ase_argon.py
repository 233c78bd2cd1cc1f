"""Thirteen argon atoms at 20 K, by ASE's Lennard-Jones calculator: samples in argon.extxyz."""

from ase.calculators.lj import LennardJones
from ase.cluster import Icosahedron

import demx
from demx.targets.atomistic import from_atoms


def argon():
    """An icosahedron, kept together by a weak trap: in a vacuum an atom would fly away some day."""
    atoms = Icosahedron("Ar", 2, latticeconstant=5.4)  # Å
    calculator = LennardJones(sigma=3.4, epsilon=0.0104, rc=100.0)  # Å, eV; every pair
    return from_atoms(atoms, calculator, temperature=20, trap=1e-4)


def main(n=1000, budget="3m", **options):
    target = argon()
    # a call takes a millisecond: what idem wants, millions of them, would take hours
    sampler = demx.fit(target, budget=budget, **{"method": "hmc"} | options)
    print(sampler.sample_to("argon.extxyz", n))  # elements, Å, eV: `ase gui argon.extxyz`
    print(*sampler.evaluate(n).verdict, sep="\n")
    print(f"{target.calls:,} calls of the calculator")


if __name__ == "__main__":
    main()
