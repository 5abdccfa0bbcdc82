"""Limits of tokens that have no room for any value of a type."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from bough import MockBackend, ProgramError, function, gen
from bough.constrain.spec import GrammarSpec
from bough.lang.types.room import too_small
from bough.lang.types.schema import typed


@dataclass
class Person:
    name: str
    age: int


class Pairs:
    """Tokens of two characters."""

    def fewest_tokens(self, text: str) -> int:
        return math.ceil(len(text) / 2)


class Local(MockBackend):
    tokenizer = Pairs()


PERSON = '{"name": "", "age": 0}'  # 22 characters
Mood = enum.Enum("Mood", {"GOOD": "good", "BAD": "awful"})


@pytest.mark.parametrize(
    ("kind", "max_tokens", "said"),
    [
        (Person, 10, f"the shortest, {PERSON}, takes 11 tokens"),
        (Person, 11, None),
        (list[Person], 1, None),  # "[]"
        (Mood, 1, "the shortest, good, takes 2 tokens"),
        (Mood, 2, None),
        (Literal["a", "long"], 1, None),
        (int, 1, None),
    ],
)
def test_the_least_that_a_type_takes(kind: Any, max_tokens: int, said: str | None) -> None:
    grammar: GrammarSpec = typed(kind).grammar
    assert too_small(grammar, max_tokens, Pairs()) == said


def test_what_strings_hold_is_not_counted() -> None:
    kind = {"type": "object", "properties": {"a": {"enum": ["seven letters"]}}, "required": ["a"]}
    assert too_small(typed(kind).grammar, 4, Pairs()) is not None
    assert too_small(typed(kind).grammar, 5, Pairs()) is None  # {"a": ""}


@pytest.mark.parametrize("retries", [None, 1])
def test_it_is_said_when_the_program_is_recorded(retries: int | None) -> None:
    def body(s: Any) -> None:
        s += "x" + gen("who", Person, max_tokens=4, retries=retries)

    backend = Local()
    with pytest.raises(ProgramError, match="max_tokens=4 is too small for any value of Person") as e:
        function(body).run(backend=backend)
    assert "takes 11 tokens" in e.value.message and e.value.place is not None
    assert (e.value.param, e.value.place.function, backend.requests) == ("max_tokens", "body", [])
    assert function(body).run(backend=MockBackend()).error() is None
