"""Networks by name: a factory (space, key, *, settings) -> net(level, x), for one configuration."""

from demx.networks.egnn import egnn
from demx.networks.lean import lean
from demx.networks.mlp import mlp

NETWORKS = {"mlp": mlp, "egnn": egnn, "lean": lean}
