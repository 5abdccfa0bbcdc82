"""Numbers in running text: where one ends is the model's to say, by writing on.

A mask that leaves nothing but digits and the end of the text makes a model that wants to go on with a space or a comma
write digits instead. So anything may follow, and the first of it ends the number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...constrain.spec import GrammarSpec, Regex
from .schema import INTEGER, NUMBER

_ANYTHING = r"(.|\n)*"


class Numeral(NamedTuple):
    """A number and what may follow; `stop_regex` matches what follows."""

    grammar: Regex
    stop_regex: str


_NUMERALS: dict[object, Numeral] = {
    int: Numeral(Regex(f"{INTEGER}([^0-9]{_ANYTHING})?"), "(?<=[0-9])[^0-9]"),
    float: Numeral(
        Regex(rf"{NUMBER}([^0-9.]{_ANYTHING}|\.([^0-9]{_ANYTHING})?)?"),
        r"(?<=[0-9])[^0-9.]|(?<=[0-9])\.[^0-9]|(?<=\.[0-9]+)\.",
    ),
}


def numeral_of(kind: object, options: Mapping[str, Any]) -> Numeral | None:
    """How a number of this type is generated; None: it is no number, or what follows would be part of the text."""
    if not isinstance(kind, type) or options.get("min_tokens") or options.get("include_stop"):
        return None
    return _NUMERALS.get(kind)


def with_stop(options: Mapping[str, Any], numeral: Numeral) -> dict[str, Any]:
    """Options of a generation that ends after the number, or where they say so."""
    own = options.get("stop_regex")
    return {**options, "stop_regex": f"(?:{own})|{numeral.stop_regex}" if own else numeral.stop_regex}


def alone(grammar: GrammarSpec | None, options: Mapping[str, Any]) -> tuple[GrammarSpec | None, dict[str, Any]]:
    """The same with nothing behind the number: for where other text stands before it."""
    for kind, numeral in _NUMERALS.items():
        if grammar == numeral.grammar:
            kept = {name: value for name, value in options.items() if name != "stop_regex"}
            return Regex(INTEGER if kind is int else NUMBER), kept
    return grammar, dict(options)
