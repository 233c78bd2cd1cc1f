"""How fast demx is here: its parts against plain formulations, as ratios in one run."""
