"""What ends a command. Errors a user can mend are printed in one line, with exit code 2."""


class UserError(ValueError):
    """What was asked for cannot be done: says what was expected, what came, what to do."""


class Diverged(RuntimeError):
    """Training met values that are not finite; the last good state is kept."""


class GivenUp(RuntimeError):
    """An energy refused to be asked any more: what asked it did not end, and has no result."""
