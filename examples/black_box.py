"""An energy that is not written in JAX: NumPy gives energy and gradient of a whole batch."""

import numpy as np

import demx
from demx.targets.black_box import black_box


def ring(x):
    """Energies (N,) and gradients (N, 2) of points (N, 2): a ring of radius 2, heavier on top."""
    r = np.linalg.norm(x, axis=1)
    slope = 20 * (r - 2)[:, None] * x / np.maximum(r, 1e-9)[:, None]
    return 10 * (r - 2) ** 2 - 0.5 * x[:, 1], slope - [0, 0.5]


target = black_box(ring, dim=2, batched=True)


def main(n=2000, budget="1m", **options):
    sampler = demx.fit(target, budget=budget, **options)
    print(sampler, sampler.log_z(n))
    print(f"the function was called at {target.calls:,} points")


if __name__ == "__main__":
    main()
