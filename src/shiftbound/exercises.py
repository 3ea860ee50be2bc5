"""Self-checks: right or wrong, without giving the answer away.

A chapter writes ``check(answer, seal="...")`` below an exercise. The seal is a salted digest of the right answer in a
normal form, so a reader can be told "right" or "not yet" and cannot read the answer off the page.

    numbers       four significant digits decide (whole numbers: all of them)
    expressions   two expressions are equal when they agree to eight digits at fixed points of their symbols
    sequences     element by element

An author makes a seal with ``seal(answer)``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from numbers import Integral, Real

from shiftbound import InputError


def _normal(answer: object) -> str:
    """The normal form that the digest is taken of; one string a value, however it was typed."""
    if isinstance(answer, str):
        return "s:" + "".join(answer.split()).lower()
    if isinstance(answer, bool):
        return f"b:{answer}"
    if isinstance(answer, Sequence):
        return "[" + ",".join(_normal(item) for item in answer) + "]"
    if isinstance(answer, Integral):
        return f"n:{int(answer)}"
    if isinstance(answer, Real) and not hasattr(answer, "free_symbols"):
        value = float(answer)
        return f"n:{int(value)}" if value.is_integer() else f"r:{value:.3e}"
    import sympy

    try:
        expression = sympy.sympify(answer)
    except sympy.SympifyError as error:
        raise InputError(
            f"answer = {answer!r} is not allowed; it must be a number, a SymPy expression, a string or a list of these"
        ) from error
    symbols = sorted(expression.free_symbols, key=str)
    drawn = {s: int(hashlib.sha256(str(s).encode()).hexdigest()[:4], 16) for s in symbols}
    points = {s: sympy.Rational(70000 + number, 65537) for s, number in drawn.items()}
    value = sympy.N(expression.subs(points), 30)
    if not value.is_number:
        raise InputError(f"answer = {answer!r} is not allowed; it must have a value at every point")
    value = complex(value)
    if not symbols and value.imag == 0:
        return _normal(value.real)
    return f"e:{','.join(map(str, symbols))}:{value.real:.7e}:{value.imag:.7e}"


def seal(answer: object) -> str:
    """The digest of ``answer`` that ``check`` compares with; for authors.

    >>> seal(0.5) == seal("0.5"), seal(0.5) == seal(0.50001)
    (False, True)
    """
    return hashlib.scrypt(_normal(answer).encode(), salt=b"shiftbound", n=2**12, r=8, p=1, dklen=9).hex()


def check(answer: object, *, seal: str) -> None:
    """Say whether ``answer`` is right; ``...`` or ``None`` stand for "not answered yet".

    >>> check(..., seal="9f")
    No answer yet: replace the dots and run this cell again.
    """
    if answer is ... or answer is None:
        print("No answer yet: replace the dots and run this cell again.")
    elif globals()["seal"](answer) == seal:
        print("Right.")
    else:
        print("Not yet. Check the signs and the hypotheses, and give at least four significant digits.")
