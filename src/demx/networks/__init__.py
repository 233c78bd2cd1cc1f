"""Networks by name: a factory (space, key, *, settings) -> net(level, x), for one configuration.

A network says with `activations(space)` how large its largest array for one configuration is:
batches are cut so that they stay in cache.
"""

from demx.networks.directed import directed
from demx.networks.egnn import egnn
from demx.networks.lean import lean
from demx.networks.mlp import mlp
from demx.networks.relaxing import relaxing

NETWORKS = {"mlp": mlp, "egnn": egnn, "lean": lean, "directed": directed,
            "relaxing": relaxing}  # fmt: skip
