"""Regular expressions of ECMA-262 whose groups are nested but a little, as a regular language."""

from __future__ import annotations

from functools import cache

from ..language import Language
from ..parse.patterns import parse_whole

MAX_GROUPS = 2
"""How deep groups may be nested."""

_NAME = "[A-Za-z_$][A-Za-z0-9_$]*"
_ESCAPE = r"\\(?:[dDwWsStnvfr^$\\.*+?()\[\]{}|/]|c[A-Za-z]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
_ASSERTION = r"[\^$|]|\\[bB]"


@cache
def regex() -> Language:
    """Expressions that are valid with and without the flag `u`, with one named group at most and without references."""
    atom = parse_whole(rf"[^\^$\\.*+?()\[\]{{}}|]|\.|{_ESCAPE}") | _class()
    repeats = parse_whole(rf"(?:(?:[*+?]|{_counts()})\??)?")
    flat = ((atom + repeats) | parse_whole(_ASSERTION)).repeat(0)
    others = parse_whole(_ASSERTION) | (parse_whole(r"\(\?<?[=!]") + flat + Language.literal(")"))
    level = flat
    for _ in range(MAX_GROUPS):
        group = parse_whole(r"\((?:\?:)?") + level + Language.literal(")")
        level = (((atom | group) + repeats) | others).repeat(0)
    named = parse_whole(rf"\(\?<{_NAME}>") + flat + Language.literal(")") + repeats
    return level + (named + level).repeat(0, 1)


def _counts() -> str:
    """Numbers of repeats: the second is not less than the first."""
    ones = [f"{low}(?:,(?:[{low}-9]|[1-9][0-9])?)?" for low in range(10)]
    tens = [f"{low}[0-9](?:,(?:[{low + 1}-9][0-9])?)?" for low in range(1, 9)]
    return rf"\{{(?:{'|'.join([*ones, *tens, '9[0-9],?', '[1-9][0-9]{2},?'])})\}}"


def _class() -> Language:
    """A class of characters: its ranges go upwards."""
    ranges = [f"{low}-[{low}-9]" for low in range(10)] + ["a-[a-z]", "A-[A-Z]"]
    member = parse_whole(rf"[^\\\]\[-]|{_ESCAPE}|\\[b-]|{'|'.join(ranges)}")
    return parse_whole(r"\[\^?-?") + member.repeat(0) + parse_whole(r"-?\]")
