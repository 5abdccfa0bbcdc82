"""Numbers in running text: what ends one, and what its text may be."""

from __future__ import annotations

import pytest
import regex

from bough.constrain.spec import Regex, Structural
from bough.lang.api import gen, separate_reasoning
from bough.lang.record.expression import Generate, Series
from bough.lang.record.reasoning import Reasoned
from bough.lang.types.schema import INTEGER, numeral_of


def written(kind: type, text: str) -> str:
    """The value's text, of what a model writes: cut where the stop matches first as the text grows."""
    numeral = numeral_of(kind, {})
    assert numeral is not None
    for stop in range(1, len(text) + 1):
        if (found := regex.search(numeral.stop_regex, text[:stop])) is not None:
            text = text[: found.start()]
            break
    assert regex.fullmatch(numeral.grammar.pattern, text)
    return text


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "24 hours", 24),
        (int, "0", 0),
        (int, "-5-3", -5),
        (int, "1,000", 1),
        (int, "7.", 7),
        (int, "12\n", 12),
        (float, "3.14 or so", 3.14),
        (float, "3. Then", 3.0),
        (float, "3.14. Then", 3.14),
        (float, "3.", 3.0),
        (float, "-2,", -2.0),
        (float, "0.5e", 0.5),
    ],
)
def test_what_ends_a_number(kind: type, text: str, value: float) -> None:
    assert kind(written(kind, text)) == value


@pytest.mark.parametrize("text", ["x", "", "-", "-x", " 1", "007", "1" * 19, ".5"])
def test_what_is_no_number(text: str) -> None:
    for kind in (int, float):
        numeral = numeral_of(kind, {})
        assert numeral is not None
        assert not regex.fullmatch(numeral.grammar.pattern, text)


def generation(**options) -> Generate:
    expression = gen("x", **options)
    assert isinstance(expression, Generate)
    return expression


def test_a_stop_of_one_s_own_counts_too():
    assert generation(type=int).options == {"stop_regex": "(?<=[0-9])[^0-9]"}
    assert generation(type=int, stop_regex="7").options == {"stop_regex": "(?:7)|(?<=[0-9])[^0-9]"}
    assert generation(type=int, regex="[0-9]{4}").options == {}
    assert generation(type=bool).options == {}


@pytest.mark.parametrize("options", [{"min_tokens": 3}, {"include_stop": True}])
def test_where_the_rest_would_be_text_a_number_stands_alone(options):
    assert generation(type=int, **options).options == options
    assert generation(type=int, **options).grammar == Regex(INTEGER)


def test_after_reasoning_a_number_stands_alone():
    expression = separate_reasoning(gen("x", int, max_tokens=9))
    assert isinstance(expression, Series)
    (item,) = expression.items
    assert isinstance(item, Reasoned)
    assert item.generate.grammar == Structural(reasoning_end="</think>", then=Regex(INTEGER))
    assert item.generate.options == {"max_tokens": 9}
