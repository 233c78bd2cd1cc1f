"""A cluster of gold and copper at 800 K, by ASE's EMT calculator: samples in cluster.extxyz."""

from ase import Atoms
from ase.calculators.emt import EMT

import demx
from demx.targets.atomistic import from_atoms


def cluster():
    """AuCu3, kept together by a weak trap: in a vacuum it would fly apart."""
    corners = [[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]
    atoms = Atoms("AuCu3", positions=[[0.9 * c for c in corner] for corner in corners])
    return from_atoms(atoms, EMT(), temperature=800, trap=0.1)


def main(n=1000, budget="3m", **options):
    target = cluster()
    sampler = demx.fit(target, budget=budget, **{"method": "tempering"} | options)
    print(sampler.sample_to("cluster.extxyz", n))  # elements, Å, eV: `ase gui cluster.extxyz`
    print(*sampler.evaluate(n).verdict, sep="\n")
    print(f"{target.calls:,} calls of the calculator")


if __name__ == "__main__":
    main()
