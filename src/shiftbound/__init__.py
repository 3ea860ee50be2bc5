"""shiftbound: a reproducible companion to two papers on reasoning out of distribution.

The modules, lower floors first; each imports only from those above it:

    transport, traces, words, samples            W1 with certificates; searches; bracket words; a reader's own samples
    tasks                                        what a model reads and answers, and the graded shifts
    stick_breaking, positions, transformer       another attention; the encodings; the causal decoder
    wiring, constructions, exact_form            Transformers whose weights are set by hand
    approximation, moduli                        exact counts for the chapters on width and on arithmetic
    runs, optimiser, training                    one run; how it is trained
    evaluation, answers, error_rates, statistics   what is measured; what that says
    monitor, comparisons, costs                  W1 while a model trains; runs in pairs; what training costs
    store, published, engine                     results on disk; the shipped rows; grids on Dask
    claims, figures, exercises                   what a notebook records, shows and asks
    plan, notebooks, pages, book, doctor, cli    which runs, one notebook, the pages, the build, the commands
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
