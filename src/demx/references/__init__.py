"""Reference sets of the benchmark targets: made by `demx reference`, see docs/metrics.md."""
