"""python -m demx."""

from demx.cli import main

main()
