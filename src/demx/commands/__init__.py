"""The subcommands of `demx`: functions whose signatures and docstrings are the help."""
