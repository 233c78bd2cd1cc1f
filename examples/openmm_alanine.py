"""Alanine dipeptide in implicit solvent at 300 K, by OpenMM: samples in alanine_samples.pdb."""

from pathlib import Path

import numpy as np
from openmm import app, unit

import demx
from demx.evaluate.observables import observable
from demx.targets.molecular import from_system

PDB = app.PDBFile(str(Path(__file__).with_name("alanine.pdb")))
PHI, PSI = "dihedral:4,6,8,14", "dihedral:6,8,14,16"
HAND = "dihedral:8,6,14,10"  # its sign is that of the carbon in the middle: above 0 for L


def alanine(temperature: float = 300.0):
    """ACE-ALA-NME, 22 atoms, amber99sb with OBC; x in Å."""
    field = app.ForceField("amber99sb.xml", "amber99_obc.xml")
    about = {"positions": PDB.positions, "topology": PDB.topology, "temperature": temperature}
    return from_system(field.createSystem(PDB.topology), **about)


def main(n=1000, method="tempering", budget="5m", **options):
    target = alanine()
    sampler = demx.fit(target, method=method, budget=budget, **options)
    x = np.asarray(sampler.sample(n).x)
    phi, psi, hand = (observable(name, target.space)(x, None) for name in (PHI, PSI, HAND))
    # mirror images have the same energy, and are as frequent: all of them as L
    x, phi, psi = (
        np.where(hand.reshape(-1, *[1] * (a.ndim - 1)) > 0, a, -a) for a in (x, phi, psi)
    )
    print(sampler, f"{target.calls:,} calls of OpenMM; phi < 0: {np.mean(phi < 0):.0%}")
    with open("alanine_samples.pdb", "w") as file:
        for number, positions in enumerate(target.positions(x), 1):
            app.PDBFile.writeModel(PDB.topology, positions * unit.nanometer, file, number)


if __name__ == "__main__":
    main()
