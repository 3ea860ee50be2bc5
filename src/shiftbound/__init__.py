"""shiftbound: a reproducible companion to two papers on reasoning out of distribution.

The modules, lower floors first (each imports only from those above it):

    transport, words, tasks, positions, transformer, constructions   the mathematics
    runs, training, evaluation, statistics, store, engine            the experiments
    claims, figures, exercises, book, cli                            the book
"""

__version__ = "0.1.0"


class InputError(ValueError):
    """Bad input, said in one sentence: the argument, what was given, what is allowed."""


def require(condition: bool, name: str, given: object, allowed: str) -> None:
    """Refuse bad input in one sentence.

    >>> require(3 >= 1, "k", 3, "a whole number of at least 1")
    >>> require(0 >= 1, "k", 0, "a whole number of at least 1")
    Traceback (most recent call last):
    shiftbound.InputError: k = 0 is not allowed; it must be a whole number of at least 1
    """
    if not condition:
        raise InputError(f"{name} = {given!r} is not allowed; it must be {allowed}")
