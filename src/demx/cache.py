"""Where demx keeps what it can make again: reference sets and compiled programs."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """$DEMX_CACHE, or demx in $XDG_CACHE_HOME or ~/.cache."""
    if "DEMX_CACHE" in os.environ:
        return Path(os.environ["DEMX_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "demx"
