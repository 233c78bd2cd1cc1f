"""The control engine: a network steers a process to the target; PIS, DDS and DIS are its cases.

`demx.methods.paths` runs a process forward or backward and weighs the paths; `Control` trains the
control on the weights.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from demx.devices import call_sizes, chunk_rows, everywhere, home, map_chunks, sum_chunks
from demx.methods.control_network import LOSSES, NOISES, Gate, Guided, effective_share
from demx.methods.paths import Path, Paths
from demx.methods.processes import DDSSettings, DISSettings, PISSettings, Settings
from demx.model import average, flatten
from demx.targets.black_box import BlackBox
from demx.types import Info, Method, Samples, Target

Network = Callable[[PRNGKeyArray], eqx.Module]


class State(eqx.Module):
    """All that the next step needs: parameters, their average, optimiser, number of updates."""

    model: Guided
    average: Guided
    optimiser: optax.OptState
    step: Int[Array, ""]


class Batch(NamedTuple):
    """Sums over the chunks of a batch: gradient, loss, log weights (chunks, rows), bad energies."""

    gradient: Float[Array, " P"]
    loss: Float[Array, ""]
    log_weight: Float[Array, "chunks rows"]
    bad: Int[Array, ""]


class Control(eqx.Module):
    """The engine: one `step` is a scan of `inner_steps` updates."""

    paths: Paths
    settings: Settings
    network: Network

    def model(self, key: PRNGKeyArray) -> Guided:
        key_network, key_gate = jax.random.split(key)
        s, space = self.settings, self.paths.target.space
        gate = Gate(key_gate, s.score_start)
        width = NOISES[s.noise](jax.random.fold_in(key_gate, 1))
        return Guided(self.network(key_network), gate, width, space, s.scale, s.detach_score)

    def init(self, key: PRNGKeyArray) -> State:
        model = self.model(key)
        flat, model_of = flatten(model)
        opt_state = self.settings.training().transformation(model_of).init(flat)
        return State(model, model, opt_state, jnp.zeros((), int))

    def draw(self, key: PRNGKeyArray, model: Guided, n: int) -> Path:
        """n forward paths, in chunks that stay in cache and are shared out over the devices."""
        rows = chunk_rows(n, model.rows_in_cache)

        def some(model, key):
            return self.paths.forward(key, model, rows, log_width=model.log_width)

        made = map_chunks(some, model, jax.random.split(key, n // rows))
        x = made.x.reshape(n, *self.paths.target.space.shape)
        return Path(x, made.log_weight.ravel(), made.lost.ravel(), jnp.sum(made.bad))

    def return_from(self, key: PRNGKeyArray, model: Guided, x: Float[Array, "n ..."]) -> Path:
        """A backward path from each of n points, in chunks as in `draw`."""
        rows = chunk_rows(len(x), model.rows_in_cache)

        def some(model, chunk):
            key, x = chunk
            return self.paths.backward(key, model, x, log_width=model.log_width)

        keys = jax.random.split(key, len(x) // rows)
        made = map_chunks(some, model, (keys, x.reshape(-1, rows, *x.shape[1:])))
        return Path(x, made.log_weight.ravel(), made.lost.ravel(), jnp.sum(made.bad))

    def gradient(self, key: PRNGKeyArray, flat: Array, model_of) -> Batch:
        """Of one batch, chunk by chunk if the loss is a sum over paths.

        flat: all parameters in one vector, of which `model_of` makes a model.
        """
        size, loss = self.settings.batch_size, LOSSES[self.settings.loss]()
        rows = size if loss.whole else chunk_rows(size, model_of(flat).rows_in_cache)
        count = size // rows

        def value(flat, key):
            model = model_of(flat)
            path = self.paths.forward(
                key, model, rows, log_width=model.log_width,
                detached=loss.detached, remat=self.settings.remat,
            )  # fmt: skip
            return loss(path.log_weight, size), path

        def one(flat, chunk):
            key, place = chunk
            (value_here, path), slope = jax.value_and_grad(value, has_aux=True)(flat, key)
            # every chunk in its own row, so that the sum holds them all
            own = jnp.zeros((count, rows), flat.dtype).at[place].set(path.log_weight)
            return Batch(slope, value_here, own, path.bad)

        return sum_chunks(one, flat, (jax.random.split(key, count), jnp.arange(count)))

    def step(self, key: PRNGKeyArray, state: State) -> tuple[State, Info]:
        flat, model_of = flatten(state.model)
        optimiser = self.settings.training().transformation(model_of)
        mean, _ = flatten(state.average)

        def inner(carry, key):
            flat, mean, opt_state, step = carry
            batch = self.gradient(key, flat, model_of)
            norm = jnp.linalg.norm(batch.gradient)
            finite = jnp.isfinite(norm) & jnp.isfinite(batch.loss)
            # optax mixes integers and floats; under strict promotion that has to be allowed
            with jax.numpy_dtype_promotion("standard"):
                updates, new_opt_state = optimiser.update(batch.gradient, opt_state, flat)
            new_flat = flat + updates
            new = new_flat, average(mean, new_flat, self.settings.ema, step), new_opt_state
            kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, (flat, mean, opt_state))
            share = effective_share(batch.log_weight.ravel())
            return (*kept, step + 1), (batch.loss, norm, share, batch.bad, finite)

        start = (flat, mean, state.optimiser, state.step)
        keys = jax.random.split(key, self.settings.inner_steps)
        end, (loss, norm, share, bad, made) = jax.lax.scan(inner, start, keys)
        info = Info(
            # updates that were skipped do not enter the means; they are counted in `skipped`
            loss=jnp.mean(loss, where=made),
            gradient_norm=jnp.mean(norm, where=made),
            ess=jnp.mean(share),
            bad=jnp.sum(bad),
            skipped=jnp.mean((~made).astype(norm.dtype)),
        )
        return State(model_of(end[0]), model_of(end[1]), end[2], end[3]), info

    def plan(self, state: State, outer_steps: int) -> State:
        """The state of a run that is to end after so many outer steps."""
        optimiser = self.settings.training().planned(state.optimiser, outer_steps)
        return eqx.tree_at(lambda s: s.optimiser, state, optimiser)

    @property
    def calls_per_step(self) -> int:
        """K scores and one end for each path; K more if derivatives of the scores are remade."""
        s = self.settings
        again = s.remat and not s.detach_score and not LOSSES[s.loss].detached
        return s.inner_steps * s.batch_size * ((2 if again else 1) * s.num_steps + 1)


def engine(target: Target, settings: Settings, network: Network) -> Control:
    """What `pis`, `dds` and `dis` are made from; its `paths.backward` gives the EUBO."""
    if isinstance(target, BlackBox) and not LOSSES[settings.loss].detached:
        raise ValueError(
            f"loss: {settings.loss} differentiates through the energies of a path, of which a "
            "black box has no more than gradients; expected log_variance or log_huber"
        )
    paths = Paths(target, settings.process(), settings.score_clip, settings.push_clip)
    return Control(paths, settings, network)


def pis(target: Target, settings: PISSettings, network: Network) -> Method:
    """The path integral sampler (Zhang & Chen 2021, arXiv 2111.15141)."""
    return _method(engine(target, settings, network))


def dds(target: Target, settings: DDSSettings, network: Network) -> Method:
    """The denoising diffusion sampler (Vargas et al. 2023, arXiv 2302.13834)."""
    return _method(engine(target, settings, network))


def dis(target: Target, settings: DISSettings, network: Network) -> Method:
    """The time-reversed diffusion sampler (Berner et al. 2022, arXiv 2211.01364)."""
    return _method(engine(target, settings, network))


def _method(control: Control) -> Method:
    num_steps = control.settings.num_steps
    compiled, draw = eqx.filter_jit(control.step), eqx.filter_jit(control.draw)
    go_back = eqx.filter_jit(control.return_from)

    def step(key: PRNGKeyArray, state: State) -> tuple[State, Info]:
        return compiled(*everywhere((key, state)))

    def run(key: PRNGKeyArray, state: State, n: int) -> Path:
        model = everywhere(state.average)
        made = [
            home(draw(jax.random.fold_in(key, i), model, size))
            for i, size in enumerate(call_sizes(n))
        ]
        *rows, bad = zip(*made, strict=True)
        return Path(*(jnp.concatenate(part) for part in rows), sum(bad))

    def sample_weighted(key: PRNGKeyArray, state: State, n: int) -> Samples:
        path = run(key, state, n)
        weight = path.log_weight[:n]
        return Samples(
            path.x[:n], weight, energy_calls=sample_calls(n),
            bad=int(jnp.sum(path.lost[:n])), bad_calls=int(path.bad),
        )  # fmt: skip

    def sample_calls(n: int) -> int:
        """What was drawn is paid for, also the end of the last call."""
        return sum(call_sizes(n)) * (num_steps + 1)

    def sample(key: PRNGKeyArray, state: State, n: int) -> Samples:
        # the weights come with the paths, for one energy a path
        return sample_weighted(key, state, n)._replace(log_weight=None)

    def weigh_backward(key: PRNGKeyArray, state: State, x: Array) -> Samples:
        path = home(go_back(*everywhere((key, state.average, jnp.asarray(x)))))
        return Samples(
            path.x, path.log_weight, energy_calls=len(x) * (num_steps + 1),
            bad=int(jnp.sum(path.lost)), bad_calls=int(path.bad),
        )  # fmt: skip

    return Method(
        eqx.filter_jit(control.init), step, sample, control.calls_per_step,
        sample_weighted=sample_weighted, outer_steps=control.settings.outer_steps,
        weigh_backward=weigh_backward, sample_calls=sample_calls,
        plan=control.plan if control.settings.training().falls else None,
    )  # fmt: skip
