"""The type checker of the tests: beartype, with an integer accepted where a float is meant."""

from beartype import BeartypeConf, beartype

typecheck = beartype(conf=BeartypeConf(is_pep484_tower=True))
