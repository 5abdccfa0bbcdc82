"""Code that looks at an argument is refused at the line of the program, with the way to give it."""

import math
from dataclasses import dataclass

import pytest

import bough


@dataclass
class Order:
    number: int

    def total(self):
        return self.number


def adds(s, n):
    s += f"{n + 1}"


def adds_to_a_number(s, n):
    s += f"{1 + n}"


def adds_a_list(s, n):
    s += f"{n + ['a']}"  # noqa: RUF005


def subtracts(s, n):
    s += f"{10 - n}{n - 1}"


def divides(s, n):
    s += f"{10 / n}"


def raises_to_a_power(s, n):
    s += f"{2**n}"


def negates(s, n):
    s += f"{-n}"


def rounds(s, n):
    s += f"{round(n)}"


def compares(s, n):
    if n > 3:
        s += "x"


def compares_from_the_right(s, n):
    if n > 3:
        s += "x"


def decides(s, n):
    s += "a" if n else "b"


def takes_the_larger(s, n):
    s += f"{max(n, 3)}"


def repeats(s, n):
    for _ in range(n):
        s += "x"


def iterates(s, n):
    s += ", ".join(n)


def indexes(s, n):
    s += n[0]


def measures(s, n):
    s += f"{len(n)}"


def limits(s, n):
    s += "x" + bough.gen("a", max_tokens=n)


def heats(s, n):
    s += "x" + bough.gen("a", temperature=n)


def stops(s, n):
    s += "x" + bough.gen("a", stop=[n, "b"])


def matches(s, n):
    s += "x" + bough.gen("a", regex=n)


def waits(s, n):
    s += "x" + bough.gen("a", timeout_s=n)


def forks(s, n):
    s.fork(n)


def loops(s, n):
    s += bough.repeat_until(bough.var("a") == "x", bough.gen("a"), at_most=n)


def formats_a_number(s, n):
    s += "%d" % n  # noqa: UP031


def formats_several(s, n):
    s += "%s %d" % ("a", n)  # noqa: UP031


def calls_c(s, n):
    s += f"{math.sqrt(n)}"


def opens(s, n):
    with open(n) as file:
        s += file.read()


def uses_a_field(s, n: Order):
    s += f"{n.number + 1}"


def calls_a_method(s, n: Order):
    s += f"{n.total()}"


def compares_an_object(s, n: Order):
    if n == Order(1):
        s += "x"


def writes_an_object(s, n: Order):
    s += f"{n}"


BODIES = [
    adds, adds_to_a_number, adds_a_list, subtracts, divides, raises_to_a_power, negates, rounds, compares,
    compares_from_the_right, decides, takes_the_larger, repeats, iterates, indexes, measures, limits, heats, stops,
    matches, waits, forks, loops, formats_a_number, formats_several, calls_c, opens, uses_a_field, calls_a_method,
    compares_an_object, writes_an_object,
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_it_is_refused_at_its_line(body):
    with pytest.raises(bough.CompileError) as caught:
        bough.function(body).compile()
    place = caught.value.place
    assert place is not None and place.file == __file__ and place.function == body.__name__
    assert "compile(" in caught.value.message and "s[name]" not in caught.value.message
    assert str(caught.value)


@pytest.mark.parametrize("body", [compares, limits, repeats, decides])
def test_it_works_with_a_known_argument(body):
    assert bough.function(body).compile(n=4).template.parameters == ()


def test_values_are_decided_by_the_engine():
    def looks(s):
        s += "x" + bough.gen("a", int)
        if s["a"] > 3:
            s += "y"

    def decides_by_both(s, n: int):
        s += "x" + bough.gen("a", int)
        if (s["a"] > 3) & (s["a"] < n):
            s += "y"

    for body in (looks, decides_by_both):
        with pytest.raises(bough.CompileError, match=r"use bough.when or bough.repeat_until") as caught:
            bough.function(body).compile()
        assert "s[name]" not in caught.value.message
        assert caught.value.place is not None and caught.value.place.function == body.__name__


def test_errors_of_the_body_itself_pass_through():
    def wrong(s, n: Order):
        s += f"{n.colour}"  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'Order' object has no attribute 'colour'"):
        bough.function(wrong).compile()

    def broken(s, n):
        raise TypeError("own")

    with pytest.raises(TypeError, match="own"):
        bough.function(broken).compile()
