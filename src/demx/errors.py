"""Errors a user can mend. The command prints them in one line and exits with code 2."""


class UserError(ValueError):
    """What was asked for cannot be done: says what was expected, what came, what to do."""


class Diverged(RuntimeError):
    """Training met values that are not finite; the last good state is kept."""
