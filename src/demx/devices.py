"""Work in chunks that stay in cache, shared out over the local devices.

A batch is cut into equal chunks, each with a key of its own. A device works through its share
of the chunks one after the other: memory is that of one chunk, and how many devices there are
changes nothing but the order of a sum.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

AXIS = "device"
_use = {"all": True}
IN_ORDER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
FEWEST = 4  # chunks of a batch that has so many rows: work for as many devices
CALL = 1024  # samples drawn by one compiled call: bounds memory, compiles once


def chunk_rows(rows: int, limit: int) -> int:
    """Rows of a chunk: the largest divisor of `rows` that is at most `limit` and rows/4.

    Sizes with many divisors are best: a prime number of rows is taken row by row.
    """
    most = max(1, min(limit, rows // FEWEST))
    return max(d for d in range(1, most + 1) if rows % d == 0)


def call_sizes(n: int, free: bool = False) -> list[int]:
    """Of the compiled calls that n samples take: as many, or more that are thrown away.

    free: a sample costs no energy call.
    """
    full, rest = divmod(n, CALL)
    # a number with many divisors, so that a large call can be cut into chunks
    last = rest if rest <= 64 else 64 * -(-rest // 64)
    # what costs nothing rather fills the program that is there than compiles another
    return [CALL] * full + [CALL if full and free else last] * (rest > 0)


def only_one() -> None:
    """From now on this process computes on its first device.

    For energies on the host: a device that waits for another which waits for the host gives up
    after 40 seconds, and the process with it.
    """
    _use["all"] = False


def local() -> list[jax.Device]:
    """The devices that share the work."""
    return jax.local_devices() if _use["all"] else jax.local_devices()[:1]


def _mesh() -> jax.sharding.Mesh:
    devices = local()
    return jax.make_mesh((len(devices),), (AXIS,), devices=devices, axis_types=(AxisType.Auto,))


def compiled(f: Callable) -> Callable:
    """filter_jit for a program that keeps all devices busy.

    On several CPU devices the operations of one are scheduled one after the other: XLA would
    rather have independent ones run side by side, on cores that work for the other devices.
    Within another program, which has a schedule of its own, it is filter_jit.
    """
    as_xla_likes = eqx.filter_jit(f)
    in_order = eqx.filter_jit(f, compiler_options=IN_ORDER)

    def run(*given):
        several = len(local()) > 1 and jax.default_backend() == "cpu"
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(given))
        return (in_order if several and not traced else as_xla_likes)(*given)

    return run


def everywhere(tree: Any) -> Any:
    """The arrays of a tree on every device: jitted functions then compile for one placement."""
    if len(local()) == 1:
        return tree
    arrays, rest = eqx.partition(tree, eqx.is_array)
    placed = jax.device_put(arrays, NamedSharding(_mesh(), PartitionSpec()))
    return eqx.combine(placed, rest)


def home(tree: Any) -> Any:
    """The arrays of a tree back in one piece on the first device, to be used with any other."""
    if len(local()) == 1:
        return tree
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.tree.map(lambda a: jnp.asarray(np.asarray(a)), arrays), rest)


def _share(f: Callable[[Any, Any], Any], tree: Any, chunks: Any, loop: Callable, out) -> Any:
    """loop(work, (chunks, valid)) on every device, where work does one chunk.

    If the devices cannot share the chunks equally, some get an empty turn: nothing is computed
    in it, and no energy is called.
    """
    count, devices = jax.tree.leaves(chunks)[0].shape[0], len(local())
    turns = -(-count // devices)
    index = jnp.arange(turns * devices)
    valid, index = index < count, jnp.minimum(index, count - 1)
    whole = turns * devices == count
    arrays, rest = eqx.partition(tree, eqx.is_array)

    def mine(arrays, chunks, valid):
        own = eqx.combine(arrays, rest)
        first = jax.tree.map(lambda c: c[0], chunks)
        shapes = jax.eval_shape(lambda chunk: f(own, chunk), first)
        nothing = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

        def work(turn):
            chunk, valid = turn
            if whole:
                return f(own, chunk)
            return jax.lax.cond(valid, lambda c: f(own, c), lambda c: nothing, chunk)

        return loop(work, nothing, (chunks, valid))

    if not whole:
        chunks = jax.tree.map(lambda c: c[index], chunks)
    if devices == 1:
        return mine(arrays, chunks, valid)
    specs = (PartitionSpec(), PartitionSpec(AXIS), PartitionSpec(AXIS))
    made = jax.shard_map(mine, mesh=_mesh(), in_specs=specs, out_specs=out, check_vma=False)
    return made(arrays, chunks, valid)


def map_chunks(f: Callable[[Any, Any], Any], tree: Any, chunks: Any) -> Any:
    """f(tree, chunk) for the chunks along the leading axis of `chunks`, stacked."""
    count = jax.tree.leaves(chunks)[0].shape[0]
    made = _share(f, tree, chunks, lambda work, _, c: jax.lax.map(work, c), PartitionSpec(AXIS))
    return jax.tree.map(lambda a: a[:count], made)


def sum_chunks(f: Callable[[Any, Any], Any], tree: Any, chunks: Any) -> Any:
    """Σ f(tree, chunk) over the chunks along the leading axis of `chunks`: a tree of arrays."""

    def add(work, nothing, turns):
        def body(total, turn):
            return jax.tree.map(jnp.add, total, work(turn)), None

        total, _ = jax.lax.scan(body, nothing, turns)
        return jax.lax.psum(total, AXIS) if len(local()) > 1 else total

    return _share(f, tree, chunks, add, PartitionSpec())
