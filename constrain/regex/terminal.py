"""Writes a language of texts as a Lark terminal: its words are the JSON strings, in quotes, of those texts.

Printable ASCII stands for itself but for `"` and `\\`, which are escaped. A control character has one escape: its
short one, or `\\u00xx`. Every other character, delete among them, is written raw or, as ASCII-only writers do, as
`\\uxxxx` in lower case, beyond the basic plane as a surrogate pair. Each writing has one reading, so complements are
exact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from ..errors import GrammarTooComplexError
from .algebra import (
    ANY,
    EMPTY,
    EPSILON,
    Chars,
    Complement,
    Concat,
    Intersection,
    Node,
    Repeat,
    Union,
    Words,
    chars,
    concat,
    counted,
    parts,
    repeat,
    union,
    words,
)
from .charsets import ALL, SURROGATES, CharSet
from .decisions import matches
from .language import Language

Spans = tuple[tuple[int, int], ...]
"""Half-open ranges, ascending."""

SHORT_ESCAPES: Final = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
RAW: Final = ~(CharSet.of((0, 0x20)) | CharSet.of('"\\'))
"""Characters that can stand for themselves."""
PLAIN: Final = CharSet.of((0x20, 0x7F)) & RAW
"""Characters that are written as themselves only."""
ESCAPED: Final = ~CharSet.of((0x20, 0x7F), "\b\f\n\r\t")
"""Characters that can be written as `\\uxxxx`."""
BASIC: Final = CharSet.of((0, 0x10000))

_META: Final = frozenset("\\.+*?()|[]{}^$#&-~/")


def literal(text: str) -> str:
    """An expression for how `text` may be written."""
    return "".join(map(_one_character, text))


@lru_cache(maxsize=1024)
def _one_character(char: str) -> str:
    if char in SHORT_ESCAPES:
        return "\\\\" + escaped(SHORT_ESCAPES[char])
    return escaped(char) if " " <= char <= "~" else f"(?:{alternatives(CharSet.of(char))})"


def escaped(char: str) -> str:
    """An expression for `char` itself."""
    if char in _META:
        return "\\" + char
    if " " <= char <= "~":
        return char
    return f"\\x{ord(char):02x}" if char < "\x80" else f"\\x{{{ord(char):x}}}"


@lru_cache(maxsize=1024)
def alternatives(members: CharSet) -> str:
    """An expression for how one of `members` may be written, to be put in parentheses."""
    found = []
    raw = members & RAW
    if raw:
        found.append(character_class(raw, ALL - RAW))
    short = "".join(escape for char, escape in SHORT_ESCAPES.items() if char in members)
    codes = _code_escapes(members & ESCAPED)
    escapes = [_class_of(short)] if short else []
    if codes:
        escapes.append("u" + (codes[0] if len(codes) == 1 else f"(?:{'|'.join(codes)})"))
    if escapes:
        found.append("\\\\" + (escapes[0] if len(escapes) == 1 else f"(?:{'|'.join(escapes)})"))
    return "|".join(found)


@lru_cache(maxsize=1024)
def is_single(members: CharSet) -> bool:
    """All of `members` are written in one way only: as themselves."""
    return members <= PLAIN


def character_class(members: CharSet, never: CharSet) -> str:
    """`[...]` or `[^...]` for `members`, whichever is shorter. `never` are always outside of it."""
    if len(members) == 1:
        return escaped(members.first())
    inside = _listed(members)
    outside = _listed(~members | never)
    return f"[{inside}]" if len(inside) <= len(outside) else f"[^{outside}]"


def _listed(members: CharSet) -> str:
    """Ranges in brackets; one that leads up to the surrogates goes on behind them."""
    gap = CharSet(SURROGATES)
    boundaries = members.boundaries
    if SURROGATES[0] in boundaries and SURROGATES[1] in boundaries:
        boundaries = tuple(point for point in boundaries if point not in gap.boundaries)
    found = []
    for start, stop in zip(boundaries[::2], boundaries[1::2], strict=True):
        first, last = _in_class(chr(start)), _in_class(chr(stop - 1))
        found.append(first if stop - start == 1 else first + ("-" if stop - start > 2 else "") + last)
    return "".join(found)


def _in_class(char: str) -> str:
    return "\\" + char if char in "\\]^[-&~/" else escaped(char) if char not in _META else char


def _class_of(chars: str) -> str:
    return escaped(chars) if len(chars) == 1 else "[" + "".join(map(_in_class, chars)) + "]"


def _code_escapes(members: CharSet) -> list[str]:
    """Returns what follows `\\u` for `members`: four digits, or those of a high surrogate, `\\u` and a low one's."""
    found = []
    basic = tuple((members & BASIC).ranges())
    if basic:
        found.append(_digits(basic, 4))
    for lows, highs in _pairs((members - BASIC).ranges()).items():
        found.append(rf"{_digits(_joined(highs), 4)}\\u{_digits(lows, 4)}")
    return found


def _pairs(spans: Iterable[tuple[int, int]]) -> dict[Spans, list[tuple[int, int]]]:
    """The high surrogates, as ranges, by the low ones that may follow them."""
    lows: dict[int, list[tuple[int, int]]] = {}
    full: list[tuple[int, int]] = []
    for start, stop in spans:
        start, stop = start - 0x10000, stop - 0x10000
        first, last = -(-start // 0x400), stop // 0x400
        if first < last:
            full.append((0xD800 + first, 0xD800 + last))
        for low, high in ((start, min(stop, first * 0x400)), (max(start, last * 0x400), stop)):
            if low < high:
                span = (0xDC00 + low % 0x400, 0xDC00 + (high - 1) % 0x400 + 1)
                if span not in lows.setdefault(low // 0x400, []):
                    lows[low // 0x400].append(span)
    found: dict[Spans, list[tuple[int, int]]] = {((0xDC00, 0xE000),): full} if full else {}
    for high_index, ends in sorted(lows.items()):
        found.setdefault(tuple(ends), []).append((0xD800 + high_index, 0xD801 + high_index))
    return found


def _joined(spans: Iterable[tuple[int, int]]) -> Spans:
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)


@lru_cache(maxsize=4096)
def _digits(spans: Spans, width: int) -> str:
    """An expression for the hexadecimal numbers of `width` digits in `spans`."""
    if spans == ((0, 16**width),):
        return "[0-9a-f]" + (f"{{{width}}}" if width > 1 else "")
    if width == 1:
        return _hex_class([digit for start, stop in spans for digit in range(start, stop)])
    size = 16 ** (width - 1)
    by_rest: dict[Spans, list[int]] = {}
    for digit in range(16):
        rest = tuple(_clipped(spans, digit * size, size))
        if rest:
            by_rest.setdefault(rest, []).append(digit)
    found = [_hex_class(digits) + _digits(rest, width - 1) for rest, digits in by_rest.items()]
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


def _clipped(spans: Spans, base: int, size: int) -> Iterator[tuple[int, int]]:
    for start, stop in spans:
        start, stop = max(start - base, 0), min(stop - base, size)
        if start < stop:
            yield start, stop


def _hex_class(digits: list[int]) -> str:
    members = CharSet.of("".join(f"{digit:x}" for digit in digits))
    return members.first() if len(members) == 1 else f"[{_listed(members)}]"


MAX_LENGTH = 1_000_000
"""Longest regular expression, in characters."""
MAX_PARTS = 50_000
"""Most parts of an expression, each counted as often as it is written."""
MAX_DEPTH = 150
"""Limit of the depth of intersections and complements within others."""
MAX_REMEMBERED = 2_048
MAX_REMEMBERED_LENGTH = 4_096
MAX_COMPARED = 1_000
"""Listed texts that are compared with what else is allowed, at most."""
MAX_BRANCHINGS = 16
"""Limit of how often in a row texts are parted by their next character."""

_ONE_WRITING: Final = re.compile(r"[\0-~]*").fullmatch
"""Tells whether a text is written in one way only."""

_HIGH = r"[dD][89abAB][0-9a-fA-F]{2}"
_LOW = r"[dD][c-fC-F][0-9a-fA-F]{2}"
_BASIC = r"[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"

ANY_STRING: Final = rf'/"(?:[^"\\\x00-\x1f]|\\(?:["\\\/bfnrt]|u(?:{_BASIC}|{_HIGH}\\u{_LOW})))*"/'
"""A JSON string, its escapes written in any way, but for surrogates that stand alone: no encoding can hold them."""


def to_terminal(language: Language, after: str = "") -> str:
    """A Lark expression that can be the body of a terminal, or part of one.

    `after`, a name of a terminal without quotes in its words, is what must follow. It is put within intersections and
    complements: what is free is then still seen to be free by llguidance, which makes masks of such strings in no time.

    What is free in all of its characters may be escaped in any way that JSON has; all else is written as `json_text`
    says. Raises ValueError if `language` is the empty one, and GrammarTooComplexError.
    """
    node = _filtered(language.node)
    if node is EMPTY:
        raise ValueError("no text is in the language")
    _check_size(node)
    return _followed(ANY_STRING, after) if node is ANY else _expression(node, '"', after)


def _filtered(node: Node) -> Node:
    """`node`; if it is an intersection with a list of texts, the list of those that are in it.

    Of alternatives, those texts are left out that another one has: they would only make masks slow.
    """
    if isinstance(node, Intersection):
        for item in node.items:
            if isinstance(item, Words):
                return words(text for text in item.texts if matches(node, text))
    if isinstance(node, Union):
        rest = union(item for item in node.items if not isinstance(item, Words))
        listed = next((item for item in node.items if isinstance(item, Words)), EMPTY)
        if isinstance(listed, Words) and len(listed.texts) <= MAX_COMPARED and rest is not EMPTY:
            return union((rest, words(text for text in listed.texts if not matches(rest, text))))
    return node


def _sooner(node: Node) -> Node:
    """`.*x.*` as `[^x]*x.*`: after the first x it is plain that anything may come. `.*x?.*` is `.*`."""
    if not isinstance(node, Concat):
        return node
    items = list(node.items)
    for at, run in enumerate(zip(items, items[1:], items[2:], strict=False)):
        (before, *times), (middle, least, most), (after, *later) = map(counted, run)
        members = _characters(middle)
        if (
            (isinstance(before, Chars) and isinstance(after, Chars) and times == later == [0, None])
            and (members is not None and (least == 0 or (least == 1 and most in (1, None))))
            and (before.chars | members) <= after.chars
        ):
            some = [repeat(chars(before.chars - members), 0, None), chars(members)]
            items[at : at + 2] = some if least else [EPSILON, EPSILON]
    return concat(items)


def _turned(node: Node) -> Node:
    """`(xy){n}x` as `x(yx){n}`: within the first x it is then plain that all of x may come."""
    if not isinstance(node, Concat):
        return node
    items = list(node.items)
    for at in range(len(items) - 1):
        inner, least, most = counted(items[at])
        if isinstance(inner, Concat) and most != 1 and inner.items[0] is items[at + 1]:
            first, rest = inner.items[0], concat(inner.items[1:])
            items[at : at + 2] = [first, repeat(concat((rest, first)), least, most)]
    return concat(items)


def _characters(node: Node) -> CharSet | None:
    if isinstance(node, Words) and len(node.texts) == 1 and len(node.texts[0]) == 1:
        return CharSet.of(node.texts[0])
    return node.chars if isinstance(node, Chars) else None


def _check_size(node: Node) -> None:
    """Raises GrammarTooComplexError. A part that an expression shares is written once for each use."""
    known: dict[Node, tuple[int, int]] = {}
    pending = [node]
    while pending:
        top = pending[-1]
        needed = [item for item in parts(top) if item not in known]
        pending += needed
        if needed:
            continue
        below = [known[item] for item in parts(top)]
        size = 1 + sum(item_size for item_size, _ in below)
        depth = 0 if top.plain else 1 + max(item_depth for _, item_depth in below)
        if size > MAX_PARTS or depth > MAX_DEPTH:
            raise GrammarTooComplexError(f"a string's grammar takes more than {MAX_PARTS} parts or {MAX_DEPTH} levels")
        known[top] = size, depth
        pending.pop()


def _expression(node: Node, quote: str, after: str = "") -> str:
    """A Lark expression for `node` between two of `quote`, and then `after`; it binds as a name does."""
    if node.plain:
        written = _remembered.get((node, quote))
        if written is None:
            written = _plain(node, quote)
            if len(written) <= MAX_REMEMBERED_LENGTH:
                if len(_remembered) >= MAX_REMEMBERED:
                    _remembered.clear()
                _remembered[node, quote] = written
        return _followed(written, after)
    match node:
        case Union(items=items):
            return f"({' | '.join(_expression(item, quote, after) for item in items)})"
        case Intersection(items=items):
            return f"({' & '.join(_conjunct(item, quote, after) for item in items)})"
        case Complement():
            return f"({_expression(ANY, quote, after)} & {_conjunct(node, quote, after)})"
        case Concat(items=items):
            return _followed(_in_sequence(items, quote), after)
    return _followed(_in_sequence((node,), quote), after)


_remembered: dict[tuple[Node, str], str] = {}
"""Terminals of parts that many expressions share: key sets, formats, patterns."""


def _plain(node: Node, quote: str) -> str:
    if isinstance(node, Words) and len(node.texts) > 1 and all(map(_ONE_WRITING, node.texts)):
        return f"({' | '.join(_lark_string(text, quote) for text in node.texts)})"
    alternatives = [_turned(_sooner(item)) for item in (node.items if isinstance(node, Union) else (node,))]
    return f"/{quote}{_regex(union(alternatives)).within(_SEQUENCE)}{quote}/"


def _followed(expression: str, after: str) -> str:
    return f"({expression} {after})" if after else expression


def _conjunct(node: Node, quote: str, after: str) -> str:
    if isinstance(node, Complement):
        return f"~{_expression(node.item, quote, after)}"
    return _expression(node, quote, after)


def _in_sequence(items: Iterable[Node], quote: str) -> str:
    """One after another: what is plain in one regular expression, the rest by itself."""
    found: list[str] = []
    run = quote
    for item in items:
        if item.plain:
            run += _regex(item).within(_SEQUENCE)
            continue
        if run:
            found.append(f"/{run}/")
        base, low, high = counted(item)
        found.append(_expression(base, "") + _count(low, high))
        run = ""
    if run + quote:
        found.append(f"/{run}{quote}/")
    return f"({' '.join(found)})"


def _lark_string(text: str, quote: str) -> str:
    return json.dumps(quote + json.dumps(text)[1:-1] + quote)


_CHOICE, _SEQUENCE, _ATOM = range(3)


class _Regex(NamedTuple):
    """A regular expression and how tight it binds."""

    text: str
    level: int

    def within(self, level: int) -> str:
        """The text, in parentheses where it binds less tight than `level`."""
        return self.text if self.level >= level else f"(?:{self.text})"


def _regex(node: Node) -> _Regex:
    """A regular expression for a plain node, whose parts are written before it: it may be deeper than Python recurs."""
    known: dict[Node, _Regex] = {}
    pending = [node]
    while pending:
        top = pending[-1]
        needed = [item for item in parts(top) if item not in known]
        if needed:
            pending += needed
            continue
        known[top] = _written(top, known)
        if len(known[top].text) > MAX_LENGTH:
            raise GrammarTooComplexError(f"an expression takes more than {MAX_LENGTH} characters of grammar")
        pending.pop()
    return known[node]


def _written(node: Node, known: dict[Node, _Regex]) -> _Regex:
    match node:
        case Words(texts=texts):
            return _trie(list(texts), MAX_BRANCHINGS)
        case Chars(chars=members):
            return _Regex(alternatives(members), _ATOM if is_single(members) else _CHOICE)
        case Concat(items=items):
            return _Regex("".join(known[item].within(_SEQUENCE) for item in items), _SEQUENCE)
        case Union(items=items):
            return _Regex("|".join(known[item].within(_SEQUENCE) for item in items), _CHOICE)
        case Repeat(item=item, low=low, high=high):
            return _Regex(known[item].within(_ATOM) + _count(low, high), _SEQUENCE)
    raise TypeError(f"not a plain expression: {node!r}")


def _trie(texts: list[str], branchings: int) -> _Regex:
    """An expression for sorted texts, those of one beginning together."""
    if len(texts) == 1:
        atom = len(texts[0]) == 1 and texts[0] not in SHORT_ESCAPES
        return _Regex(literal(texts[0]), _ATOM if atom else _SEQUENCE)
    pairs = enumerate(zip(texts[0], texts[-1], strict=False))
    shared = next((at for at, (one, other) in pairs if one != other), len(texts[0]))
    prefix = texts[0][:shared]
    rests = [text[shared:] for text in texts]
    if branchings == 0:
        return _Regex("|".join(map(literal, texts)), _CHOICE)
    groups: dict[str, list[str]] = {}
    for rest in rests:
        groups.setdefault(rest[:1], []).append(rest)
    optional = groups.pop("", None) is not None
    found = _Regex("|".join(_trie(group, branchings - 1).within(_SEQUENCE) for group in groups.values()), _CHOICE)
    if optional:
        found = _Regex(f"(?:{found.text})?", _SEQUENCE)
    return _Regex(literal(prefix) + found.within(_SEQUENCE), _SEQUENCE) if prefix else found


def _count(low: int, high: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}.get((low, high))
    if short is not None:
        return short
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


ANY_WORDS: Final = _expression(ANY, '"')
"""Terminal that `to_terminal` writes for any string that others are taken from."""
