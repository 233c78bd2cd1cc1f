"""Any number of samples in the memory of a few: blocks that are drawn, chunks that are handed on.

A block is what one call of a sampler gives, with a key of its own; how large it is follows from
the space alone. So samples do not depend on the chunks in which somebody asks for them.
"""

from collections.abc import Iterable, Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from demx.space import Space
from demx.types import Samples

FLOATS = 1 << 18  # of a block: a megabyte
ROWS = 1024  # of a block at least, and what its size is a multiple of: samplers cut it well


def block_rows(space: Space) -> int:
    return ROWS * max(1, FLOATS // (ROWS * int(np.prod(space.shape))))


def numbered(blocks: Iterable[Samples]) -> Iterator[Samples]:
    """The same blocks, their islands numbered on from block to block."""
    begun = 0
    for block in blocks:
        if block.island is not None:
            block = block._replace(island=block.island + begun)
            begun = int(block.island.max()) + 1
        yield block


def chunks(blocks: Iterable[Samples], size: int) -> Iterator[Samples]:
    """At most `size` samples at a time; what a block has cost comes with its first ones."""
    for block in blocks:
        for start in range(0, len(block.x), size):
            part = block._replace(
                **{
                    name: column[start : start + size]
                    for name in ("x", "log_weight", "log_prob", "island")
                    if (column := getattr(block, name)) is not None
                }
            )
            yield part if start == 0 else part._replace(energy_calls=0, bad=0, bad_calls=0)


def merged(blocks: Sequence[Samples]) -> Samples:
    """One set of samples of all blocks: costs and bad points are added."""
    if len(blocks) == 1:
        return blocks[0]

    def together(name: str):
        columns = [getattr(block, name) for block in blocks]
        return None if columns[0] is None else jnp.concatenate(columns)

    moved = None if blocks[0].acceptance is None else [block.acceptance for block in blocks]
    return Samples(
        together("x"), together("log_weight"), together("log_prob"),
        energy_calls=sum(block.energy_calls for block in blocks),
        bad=sum(block.bad for block in blocks),
        island=together("island"),
        acceptance=moved and float(np.average(moved, weights=[len(block.x) for block in blocks])),
        bad_calls=sum(block.bad_calls for block in blocks),
    )  # fmt: skip
