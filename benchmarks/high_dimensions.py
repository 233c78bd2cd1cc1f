"""The estimate itself as the score, in 10 000 dimensions: the paper's last figure (app. G.6).

    python benchmarks/high_dimensions.py --plot docs/high_dimensions.png

Forty equal modes in [-40, 40]^10000, reverse diffusion Monte Carlo with S_K clipped to a norm of
1e4 and of 1e8, beside exact samples, along the first two principal components of the latter.
Printed for each: how many of the modes own a sample, total variation between the shares of the
modes and equal ones beside the floor of as many exact samples, how far samples lie from their mode
in units of what exact ones do (s √d), samples lost, energy calls, and the peak of memory. Seed 0.
"""

import argparse
import resource
import time

import jax
import numpy as np

from demx.methods.reverse_monte_carlo import Settings, reverse_monte_carlo
from demx.targets.gaussian_mixture import gaussian_mixture

CLIPS = (1e4, 1e8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=512)
    parser.add_argument("--dim", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("-K", type=int, default=8)
    parser.add_argument("--plot")
    options = parser.parse_args()
    target = gaussian_mixture(dim=options.dim)
    modes, n = np.asarray(target.modes), options.n
    width = float(np.asarray(target.mode_scale).ravel()[0])
    exact = np.asarray(target.sample(jax.random.key(1), n))

    def shares(x):
        squared = np.stack([((x - mode) ** 2).sum(axis=1) for mode in modes], axis=1)
        nearest = squared.argmin(axis=1)
        count = np.bincount(nearest, minlength=len(modes))
        off = np.sqrt(squared.min(axis=1)) / (width * options.dim**0.5)
        return (count > 0).sum(), np.abs(count / len(x) - 1 / len(modes)).sum() / 2, np.median(off)

    print("exact: {} modes, mode_tv {:.3f}, distance {:.3f}".format(*shares(exact)), flush=True)
    found = {}
    for clip in CLIPS:
        settings = Settings(
            scale=23.0, num_samples=options.K, num_steps=options.steps, sigma_min=1e-4,
            sigma_max=3.5, max_norm=clip,
        )  # fmt: skip
        start = time.perf_counter()
        method = reverse_monte_carlo(target, settings)
        drawn = method.sample(jax.random.key(0), method.init(jax.random.key(0)), n)
        x = np.asarray(drawn.x)
        found[clip] = x[np.isfinite(x).all(axis=1)]
        gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        hit, tv, off = shares(found[clip])
        print(
            f"clip {clip:.0e}: {hit} modes, mode_tv {tv:.3f}, distance {off:.3f}, "
            f"lost {drawn.bad}, {drawn.energy_calls} calls, {time.perf_counter() - start:.0f} s, "
            f"peak {gigabytes:.2f} GB",
            flush=True,
        )
    if options.plot:
        draw(exact, found, options.plot)


def draw(exact: np.ndarray, found: dict[float, np.ndarray], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    centre = exact.mean(axis=0)
    _, _, axes = np.linalg.svd(exact - centre, full_matrices=False)
    plane = axes[:2].T
    figure, panels = plt.subplots(1, len(found), figsize=(5 * len(found), 4.6), sharey=True)
    for panel, (clip, x) in zip(panels, found.items(), strict=True):
        panel.scatter(*((exact - centre) @ plane).T, s=26, c="0.75", label="exact", linewidths=0)
        panel.scatter(*((x - centre) @ plane).T, s=5, c="tab:blue", label="rDMC", linewidths=0)
        panel.set(title=f"norm of the estimate ≤ {clip:.0e}", xlabel="first component")
    panels[0].set_ylabel("second component")
    panels[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
