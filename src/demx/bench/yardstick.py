"""The same mathematics in plain eager PyTorch, as one would first write it: only a yardstick.

Needs torch, which demx never depends on. The network for particles is the paper's EGNN
(5 rounds of width 128, 3 for dw4), that for mixtures the multilayer perceptron of the preset. An
inner step here does less than ours: its points and times are drawn once, there is no buffer.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

NOISE = 0.25


def lennard_jones(x: torch.Tensor) -> torch.Tensor:
    """(…, n, 3) → (…): the energy behind the published numbers."""
    first, second = torch.triu_indices(x.shape[-2], x.shape[-2], 1)
    r2 = ((x[..., first, :] - x[..., second, :]) ** 2).sum(-1).clamp_min(0.3)
    inverse6 = r2**-3
    centred = x - x.mean(-2, keepdim=True)
    return (2 * inverse6 * (inverse6 - 2)).sum(-1) + 0.5 * (centred**2).sum((-2, -1))


def double_well(x: torch.Tensor) -> torch.Tensor:
    """(…, 4, 2) → (…)."""
    first, second = torch.triu_indices(x.shape[-2], x.shape[-2], 1)
    d = ((x[..., first, :] - x[..., second, :]) ** 2).sum(-1).sqrt() - 4
    return (0.9 * d**4 - 4 * d**2).sum(-1)


def mixture(means: np.ndarray) -> Callable[[torch.Tensor], torch.Tensor]:
    """(…, 2) → (…), standard deviation 1.3133."""
    centres = torch.tensor(means, dtype=torch.float32)

    def energy(x):
        square = ((x[..., None, :] - centres) ** 2).sum(-1)
        return -torch.logsumexp(-0.5 * square / 1.3132617**2, -1)

    return energy


class Round(nn.Module):
    """One round of messages of the EGNN."""

    def __init__(self, width: int, reach: float):
        super().__init__()
        act = nn.SiLU
        self.edge = nn.Sequential(
            nn.Linear(2 * width + 2, width), act(), nn.Linear(width, width), act()
        )
        self.gate = nn.Sequential(nn.Linear(width, 1), nn.Sigmoid())
        self.push = nn.Sequential(nn.Linear(width, width), act(), nn.Linear(width, 1), nn.Tanh())
        self.node = nn.Sequential(nn.Linear(2 * width, width), act(), nn.Linear(width, width))
        self.reach = reach

    def forward(self, h, x, initial, first, second):
        difference = x[:, first] - x[:, second]
        square = (difference**2).sum(-1, keepdim=True)
        message = self.edge(torch.cat([h[:, first], h[:, second], square, initial], -1))
        message = message * self.gate(message)
        moved = difference / ((square + 1e-8).sqrt() + 1) * self.push(message) * self.reach
        x = x + torch.zeros_like(x).index_add(1, first, moved)
        total = torch.zeros_like(h).index_add(1, first, message)
        return h + self.node(torch.cat([h, total], -1)), x


class EGNN(nn.Module):
    """Fully connected; the node input is the time."""

    def __init__(self, n: int, width: int = 128, depth: int = 5):
        super().__init__()
        self.embed = nn.Linear(1, width)
        self.rounds = nn.ModuleList(Round(width, 15.0 / depth) for _ in range(depth))
        first, second = np.nonzero(~np.eye(n, dtype=bool))
        self.first, self.second = torch.tensor(first), torch.tensor(second)

    def forward(self, t, x):
        h = self.embed(t[:, None])[:, None].expand(-1, x.shape[1], -1)
        initial = ((x[:, self.first] - x[:, self.second]) ** 2).sum(-1, keepdim=True)
        moved = x
        for layer in self.rounds:
            h, moved = layer(h, moved, initial, self.first, self.second)
        out = moved - x
        return out - out.mean(1, keepdim=True)


class MLP(nn.Module):
    """Sinusoidal embeddings of the coordinates and of the time, residual layers."""

    def __init__(self, dim: int = 2, width: int = 128, depth: int = 4, embedding: int = 64):
        super().__init__()
        self.first = nn.Linear(dim * (embedding + 1) + embedding, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, dim)
        self.register_buffer("angles", torch.logspace(0, 2, embedding // 2))

    def embed(self, u):
        angle = u[..., None] * self.angles
        return torch.cat([angle.sin(), angle.cos()], -1).flatten(1)

    def forward(self, t, x):
        h = torch.cat([x, self.embed(x), self.embed(t[:, None])], -1)
        h = nn.functional.gelu(self.first(h))
        for layer in self.hidden:
            h = h + nn.functional.gelu(layer(h))
        return self.last(h)


class Yardstick:
    """One target's energy and network, and the parts that are timed."""

    def __init__(self, name: str, means: np.ndarray | None = None):
        torch.manual_seed(0)
        self.shape = {"gmm40": (2,), "dw4": (4, 2), "lj13": (13, 3), "lj55": (55, 3)}[name]
        if means is not None:
            self.energy, self.network = mixture(means), MLP()
        else:
            self.energy = double_well if name == "dw4" else lennard_jones
            self.network = EGNN(self.shape[0], depth=3 if name == "dw4" else 5)

    def points(self, batch: int) -> torch.Tensor:
        return self._project(1.5 * torch.randn(batch, *self.shape))

    def _project(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(-2, keepdim=True) if len(self.shape) == 2 else x

    def score(self, x: torch.Tensor, num_samples: int) -> torch.Tensor:
        """S_K = ∇ log Σ_k exp(-E(x + σ ε_k)) for a batch, by automatic differentiation."""
        x = x.detach().requires_grad_()
        noise = self._project(torch.randn(len(x), num_samples, *self.shape))
        value = torch.logsumexp(-self.energy(x[:, None] + NOISE**0.5 * noise), 1)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        return gradient

    def estimate(self, batch: int, num_samples: int) -> Callable[[], object]:
        x = self.points(batch)
        return lambda: self.score(x, num_samples)

    def inner_step(self, batch: int, num_samples: int) -> Callable[[], object]:
        x, t = self.points(batch), torch.rand(batch)
        optimiser = torch.optim.Adam(self.network.parameters(), 1e-3)
        mean = [p.detach().clone() for p in self.network.parameters()]

        def run():
            target = self.score(x, num_samples).nan_to_num().clamp(-20, 20)
            optimiser.zero_grad()
            ((self.network(t, x) - target) ** 2).mean().backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            optimiser.step()
            with torch.no_grad():
                for old, new in zip(mean, self.network.parameters(), strict=True):
                    old.lerp_(new, 1e-3)

        return run

    def euler_steps(self, n: int, steps: int) -> Callable[[], object]:
        """`steps` of the reverse SDE's Euler steps for n points."""
        x = self.points(n)

        def run():
            with torch.no_grad():
                y = x
                for i in range(steps):
                    t = torch.full((n,), 1 - i / 1000)
                    y = y + 1e-3 * self.network(t, y) + 0.03 * self._project(torch.randn_like(y))

        return run
