"""Self-checks: right answers in any form are right, near misses are not, and the seal gives nothing away."""

from fractions import Fraction

import numpy as np
import pytest
import sympy

from shiftbound import InputError
from shiftbound.exercises import check, seal

x, y = sympy.symbols("x y")
SAME = [
    (Fraction(6000, 2021), 2.968827),
    (Fraction(1, 3), sympy.Rational(1, 3)),
    (4, 4.0),
    (4, np.int64(4)),
    (0.5, sympy.Rational(1, 2)),
    (sympy.sin(x) ** 2 + sympy.cos(x) ** 2 * y, 1 + (y - 1) * sympy.cos(x) ** 2),
    (sympy.sinh(x), (sympy.exp(x) - sympy.exp(-x)) / 2),
    (sympy.pi / 4, np.pi / 4),
    ("2 Phi( tau/2 ) - 1", "2Phi(tau/2)-1"),
    ([1, Fraction(1, 2)], [1, 0.5]),
]
DIFFERENT = [
    (1 / 3, 0.333),
    (4, 5),
    (x + y, x - y),
    (x, y),
    (sympy.sin(x), x),
    ([1, 2], [2, 1]),
    ("yes", "no"),
    (True, 0),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_answers_have_one_seal(one, other):
    assert seal(one) == seal(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_other_answers_have_another(one, other):
    assert seal(one) != seal(other)


@pytest.mark.parametrize(
    ("answer", "said"), [(..., "No answer yet"), (None, "No answer yet"), (2.5, "Right."), (2.4, "Not yet")]
)
def test_check_says_so(capsys, answer, said):
    check(answer, seal=seal(2.5))
    assert capsys.readouterr().out.startswith(said)


def test_a_seal_does_not_show_its_answer():
    assert len(seal(2.5)) == 18 and seal(2.5) != seal(2.6)


def test_what_has_no_value_is_refused():
    with pytest.raises(InputError, match="answer"):
        check(object(), seal="00")
