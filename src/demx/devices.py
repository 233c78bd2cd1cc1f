"""Work in chunks that stay in cache, shared out over the local devices.

A batch is cut into equal chunks, each with a key of its own. A device works through its share
of the chunks one after the other: memory is that of one chunk, and who works on a chunk
changes nothing but the order of a sum.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

AXIS = "device"


def chunk_rows(rows: int, limit: int) -> int:
    """Rows of a chunk: the largest divisor of `rows` that is at most `limit`.

    There are at least two chunks, so that one device and two do the same work, and one for
    each device. A number of rows without divisors of some size is left whole.
    """
    most = max(1, min(limit, rows // max(2, jax.local_device_count())))
    best = max(d for d in range(1, most + 1) if rows % d == 0)
    return best if 4 * best >= most else rows


def sharing(chunks: int) -> int:
    """How many of the local devices can share `chunks` equally."""
    return max(d for d in range(1, jax.local_device_count() + 1) if chunks % d == 0)


def _mesh(count: int) -> jax.sharding.Mesh:
    devices = jax.local_devices()[:count]
    return jax.make_mesh((count,), (AXIS,), devices=devices, axis_types=(AxisType.Auto,))


def everywhere(tree: Any) -> Any:
    """The arrays of a tree on every device: jitted functions then compile for one placement."""
    if jax.local_device_count() == 1:
        return tree
    placement = NamedSharding(_mesh(jax.local_device_count()), PartitionSpec())
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return eqx.combine(jax.device_put(arrays, placement), rest)


def _shared(f: Callable[[Any, Any], Any], tree: Any, chunks: Any, out: PartitionSpec) -> Any:
    """f(tree, my chunks) on each of the devices that can share the chunks."""
    count = sharing(jax.tree.leaves(chunks)[0].shape[0])
    if count == 1:
        return f(tree, chunks)
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return jax.shard_map(
        lambda arrays, chunks: f(eqx.combine(arrays, rest), chunks),
        mesh=_mesh(count),
        in_specs=(PartitionSpec(), PartitionSpec(AXIS)),
        out_specs=out,
        check_vma=False,
    )(arrays, chunks)


def map_chunks(f: Callable[[Any, Any], Any], tree: Any, chunks: Any) -> Any:
    """f(tree, chunk) for the chunks along the leading axis of `chunks`, stacked."""

    def mine(tree, chunks):
        return jax.lax.map(lambda chunk: f(tree, chunk), chunks)

    return _shared(mine, tree, chunks, PartitionSpec(AXIS))


def sum_chunks(f: Callable[[Any, Any], Any], tree: Any, chunks: Any) -> Any:
    """Σ f(tree, chunk) over the chunks along the leading axis of `chunks`: a tree of arrays."""
    parallel = sharing(jax.tree.leaves(chunks)[0].shape[0]) > 1

    def mine(tree, chunks):
        shapes = jax.eval_shape(f, tree, jax.tree.map(lambda c: c[0], chunks))
        zero = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

        def add(total, chunk):
            return jax.tree.map(jnp.add, total, f(tree, chunk)), None

        total, _ = jax.lax.scan(add, zero, chunks)
        return jax.lax.psum(total, AXIS) if parallel else total

    return _shared(mine, tree, chunks, PartitionSpec())
