"""Samplers that need no training, and what their files say."""

import csv
from pathlib import Path

import jax

from demx import config, resolve
from demx.fitted import Fitted
from demx.train import Progress

SMALL = {
    "draws": {"num_samples": 8},
    "training": {"outer_steps": 1, "inner_steps": 2, "batch_size": 8, "new_samples": 8},
    "grid": {"num_steps": 2},
    "evaluation": {"every": 0},
}


FLAT = {**SMALL, "network": {"width": 8, "depth": 1, "embedding": 4}}


CLUSTER = {
    **SMALL,
    "network": {"kind": "lean", "width": 4, "depth": 1, "num_basis": 4},
    "moves": None,
    "walk": None,
}


def untrained(target, settings, method="idem", **options):
    built, full = resolve.resolve(target, method=method, settings=settings, **options)
    made = config.build_method(method, built, full)
    state, progress = made.init(jax.random.key(0)), Progress(energy_calls=321)
    return Fitted(built, made, state, full, progress, directory=Path("runs/here"))


def told(path):
    with path.open() as file:
        lines = file.read().splitlines()
    about = dict(line[2:].split(": ", 1) for line in lines if line.startswith("#"))
    return about, list(csv.DictReader(line for line in lines if not line.startswith("#")))
