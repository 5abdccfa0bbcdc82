"""Limits of tokens that have no room for any value of a type."""

from __future__ import annotations

import enum
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from bough import MockBackend, ProgramError, function, gen
from bough.constrain.spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural
from bough.lang.types.schema import typed
from bough.runtime.programs.room import check_room, too_small
from bough.runtime.protocol.condition import Compare, Ref
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Gen, When
from bough.runtime.protocol.sampling_params import SamplingParams


@dataclass
class Person:
    name: str
    age: int


class Pairs:
    """Tokens of two characters."""

    def __init__(self) -> None:
        self.num_chars = 0

    def fewest_tokens(self, text: str, most: int | None = None) -> int:
        self.num_chars += len(text)
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
    assert too_small(grammar, SamplingParams(max_tokens=max_tokens), Pairs()) == said


def test_what_strings_hold_is_not_counted() -> None:
    kind = {"type": "object", "properties": {"a": {"enum": ["seven letters"]}}, "required": ["a"]}
    assert too_small(typed(kind).grammar, SamplingParams(max_tokens=4), Pairs()) is not None
    assert too_small(typed(kind).grammar, SamplingParams(max_tokens=5), Pairs()) is None  # {"a": ""}


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


def gen_of(kind: Any, max_tokens: int, **options: Any) -> Gen:
    return Gen(0, "v", sampling=SamplingParams(max_tokens=max_tokens, **options), grammar=typed(kind).grammar)


def test_all_instructions_of_a_program_are_looked_at() -> None:
    inner = When(0, Compare(Ref(0, "v"), "eq", "x"), then=(gen_of(Person, 10),))
    with pytest.raises(RequestError, match=r"instruction 2: max_tokens=10 .* the shortest, .*, takes 11 tokens") as e:
        check_room((gen_of(Person, 11), inner), Pairs())
    assert (e.value.code, e.value.param) == ("invalid_value", "max_tokens")
    check_room((gen_of(Person, 10, token_healing=True), gen_of(int, 1)), Pairs())


@pytest.mark.parametrize(
    "grammar", [Choice(()), Choice(("x" * 10_000,)), JsonSchema("["), JsonSchema('{"a":' * 5000), Regex("(")]
)
def test_what_others_refuse_or_what_takes_long_is_left_to_them(grammar: GrammarSpec) -> None:
    check_room((Gen(0, "v", sampling=SamplingParams(max_tokens=1), grammar=grammar),), Pairs())


@pytest.mark.parametrize(
    "kind",
    [
        Lark,
        Gbnf,
        Regex,
        JsonSchema,
        lambda text: Choice((text,)),
        lambda text: Structural(triggers=(text,)),
        lambda text: Structural(then=Lark(text)),
    ],
)
@pytest.mark.parametrize("num_chars", [8192, 1 << 22])
def test_nothing_that_is_long_is_kept(kind: Callable[[str], GrammarSpec], num_chars: int) -> None:
    text = "x" * num_chars
    before = sys.getrefcount(text)
    check_room((Gen(0, "v", sampling=SamplingParams(max_tokens=1), grammar=kind(text)),), Pairs())
    assert sys.getrefcount(text) == before


@pytest.mark.parametrize(
    "grammars",
    [
        [Choice((f"{index:04000}",)) for index in range(500)],
        [JsonSchema(json.dumps({"const": {"x" * 3000 + str(index): 1}})) for index in range(20)],
    ],
)
def test_no_more_is_counted_than_takes_a_moment(grammars: list[GrammarSpec]) -> None:
    ops = [Gen(0, "v", sampling=SamplingParams(max_tokens=2500), grammar=grammar) for grammar in grammars]
    tokenizer = Pairs()
    check_room(ops, tokenizer)
    assert 0 < tokenizer.num_chars <= 1 << 14


def test_a_compiled_program_is_refused_where_it_is_run() -> None:
    program = function(lambda s: s.__iadd__("x" + gen("who", Person, max_tokens=4))).compile()
    for run in (program.run, lambda **where: list(program.stream(**where))):
        with pytest.raises(RequestError, match="max_tokens=4 is too small for any value of its constraint"):
            run(backend=Local())
    program.run(backend=MockBackend())
