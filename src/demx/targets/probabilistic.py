"""A NumPyro model as a target: its posterior, on unconstrained coordinates."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from demx.errors import UserError
from demx.space import Euclidean
from demx.types import check_sites


class Posterior(eqx.Module):
    """log p̃(u) = log p(θ(u), data) + log|∂θ/∂u|, u in R^d: all latent sites in one vector."""

    space: Euclidean
    potential: Callable = eqx.field(static=True)
    unravel: Callable = eqx.field(static=True)
    postprocess: Callable = eqx.field(static=True)

    def log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        with _as_numpyro_has_it():
            return -jnp.asarray(self.potential(self.unravel(x)), x.dtype)

    def constrain(self, samples: ArrayLike) -> dict[str, Array]:
        """Samples (n, d) by the names of the model's sites, each (n, …), with deterministic sites.

        Also of `Samples`: what belongs to `constrain(drawn.x)` has the weights of `drawn`.
        """
        samples = jnp.asarray(samples, float)
        if samples.ndim != 2 or samples.shape[1:] != self.space.shape:
            raise UserError(f"samples: expected shape (n, {self.space.dim}), got {samples.shape}")
        with _as_numpyro_has_it():
            return _constrained(self, samples)

    def named(self, x: ArrayLike) -> dict[str, np.ndarray]:
        """`constrain` in NumPy, for files and reports."""
        return {name: np.asarray(values) for name, values in self.constrain(x).items()}


@eqx.filter_jit
def _constrained(target: Posterior, samples: Float[Array, "n d"]) -> dict[str, Array]:
    return jax.vmap(lambda u: target.postprocess(target.unravel(u)))(samples)


def from_model(model: Callable, *args: Any, **kwargs: Any) -> Posterior:
    """The posterior of model(*args, **kwargs); data stand in `obs` of the model's own sites."""
    try:
        from numpyro.infer.util import initialize_model
    except ImportError as error:
        raise UserError(
            "from_model needs NumPyro; pip install '.[numpyro]' in demx's directory"
        ) from error
    with _as_numpyro_has_it():
        _check(model, *args, **kwargs)
        found = initialize_model(
            jax.random.key(0), model, model_args=args, model_kwargs=kwargs, dynamic_args=False
        )
    start = found.param_info.z
    if not start:
        raise UserError("model: expected latent sites, found none")
    flat, unravel = jax.flatten_util.ravel_pytree(start)
    return Posterior(Euclidean(flat.size), found.potential_fn, unravel, found.postprocess_fn)


def _check(model: Callable, *args: Any, **kwargs: Any) -> None:
    """Refuse sites that have no unconstrained coordinates, or a name that is taken."""
    from numpyro import handlers
    from numpyro.infer import init_to_uniform

    begun = handlers.substitute(handlers.seed(model, 0), substitute_fn=init_to_uniform())
    sites = handlers.trace(begun).get_trace(*args, **kwargs).items()
    latent = {name: s for name, s in sites if s["type"] == "sample" and not s["is_observed"]}
    discrete = [name for name, site in latent.items() if site["fn"].support.is_discrete]
    if discrete:
        raise UserError(
            f"model: sites {', '.join(discrete)} are discrete; sum them out, as MixtureSameFamily "
            "does with the components of a mixture"
        )
    check_sites(name for name, site in sites if name in latent or site["type"] == "deterministic")


class _as_numpyro_has_it:
    """NumPyro mixes precisions and ranks as NumPy does, whatever is asked of demx itself."""

    def __enter__(self) -> None:
        self._promotion = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
        for context in self._promotion:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._promotion):
            context.__exit__(*error)
