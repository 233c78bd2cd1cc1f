"""demx: samples from p(x) ∝ exp(-E(x)) when all you have is the energy.

sampler = demx.fit("gmm40", budget="2m")
samples = sampler.sample(1000)
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
_LAZY = {
    "fit": "demx.api",
    "load": "demx.api",
    "assess": "demx.assessment",
    "reference": "demx.ruler",
    "Fitted": "demx.api",
    "Samples": "demx.types",
    "UserError": "demx.errors",
    "Diverged": "demx.errors",
}
__all__ = [*_LAZY]

if TYPE_CHECKING:
    from demx.api import Fitted as Fitted
    from demx.api import fit as fit
    from demx.api import load as load
    from demx.assessment import assess as assess
    from demx.errors import Diverged as Diverged
    from demx.errors import UserError as UserError
    from demx.ruler import reference as reference
    from demx.types import Samples as Samples


def __dir__() -> list[str]:
    return [*_LAZY, "__version__"]


if not TYPE_CHECKING:  # to a type checker it would mean that every name exists

    def __getattr__(name: str):
        """Import on first use, so that `demx --help` does not wait for JAX."""
        if name in _LAZY:
            import importlib

            return getattr(importlib.import_module(_LAZY[name]), name)
        raise AttributeError(f"module 'demx' has no attribute {name!r}")
