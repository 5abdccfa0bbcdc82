"""A JSON Schema as a grammar; and as a table, if that grammar is regular."""

from __future__ import annotations

import json
import math
import re
from itertools import product
from typing import TypeAlias

from llguidance import LLMatcher

from ..errors import GrammarTooComplexError, InvalidSchemaError
from ..lowered import Lowered, Tabulate
from ..receipt import Pointers, Receipt
from ..regex.automaton import Conjunction
from ..regex.terminal import escaped
from ..spec import JsonSchema
from .document import Document, pointer_of
from .emit import emit, unseen_places
from .open.expand import Expander
from .open.graph import Graph, shortest_text
from .open.subschemas import Subschemas
from .parse import parse_schema
from .unique_paths import distinct_paths


def lower_schema(spec: JsonSchema) -> Lowered:
    """The grammar of the values that satisfy a schema.

    Raises:
        InvalidSchemaError: it is no schema, or nothing satisfies it.
        UnsupportedKeywordError: a keyword can be neither enforced nor checked under the policy.
        GrammarTooComplexError: it passes a limit.
    """
    document = Document(parse_schema(spec.schema))
    subschemas = Subschemas(document, spec.policy, closes=spec.unnamed == "omit")
    expander = Expander(subschemas)
    graph = Graph(expander, frozenset({subschemas.literal("#", ())}))
    if graph.cost(graph.root) == math.inf:
        if subschemas.narrowed:
            raise GrammarTooComplexError("the schema has too many combinations to be written out")
        raise InvalidSchemaError("no finite value satisfies the schema")
    needed = unseen_places(graph)
    distinct, uncovered = distinct_paths(graph, needed) if needed else (None, needed)
    for literal, keyword in uncovered:
        subschemas.check(literal, keyword)
    source = emit(graph, spec.property_order)
    receipt = Receipt(
        mode=spec.policy,
        enforced=tuple(sorted(subschemas.enforced)),
        checked=subschemas.checked.listed(),
        narrowed=subschemas.narrowed.listed(),
        closed=_closed_places(graph).listed(),
    )
    return Lowered(
        LLMatcher.grammar_from_lark(source),
        json=True,
        growth=graph.growth,
        names=graph.names,
        receipt=receipt,
        witness=shortest_text(graph),
        distinct=distinct,
        table=regular_table(source) if distinct is None else None,
    )


def _closed_places(graph: Graph) -> Pointers:
    """Collects the object schemas of which keys that they do not name are left out."""
    place, found = graph.expander.subschemas.place, Pointers()
    for values in graph.values.values():
        for plan in values.objects:
            for literal, _ in plan.closed:
                found.add(pointer_of(place(literal)[0]))
    return found


MAX_PATTERN = 8_192
"""Longest expression, in characters."""
MAX_PARTS = 16
"""Conjunctions of a union."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:\\.|[^"\\\n])*")|(?P<regex>/(?:\\.|[^/\\\n])+/)|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<count>\{[0-9]+(?:,[0-9]*)?\})|(?P<mark>[()|*+?&~]))"""
)
_CONDITIONAL = re.compile(r"^[a-z]\w*::", re.MULTILINE)
"""A rule with a parameter."""
_DEFINITION = re.compile(r"^([A-Za-z_]\w*):", re.MULTILINE)
_SLASH = re.compile(r"\\(.)", re.DOTALL)

MAX_REPETITIONS = 8
"""Most repetitions of a group: the automaton's compiler takes time in proportion to a high power of it."""

_REPEATED_GROUP = re.compile(r"\)\{([0-9]+)(?:,([0-9]*))?\}")

_Union: TypeAlias = tuple[Conjunction, ...]


class _IrregularError(Exception):
    """The grammar is not regular, or not known to be: something in it repeats without end, or has conditions."""


def regular_table(source: str) -> Tabulate | None:
    """Regular expressions, the texts of any of which are the words of a grammar; None if it says more than that.

    What repeats without end must be within one terminal: where terminals follow each other, each is as long as it can
    be, which is the same as any if what follows it begins otherwise, as it does in JSON.
    """
    if _CONDITIONAL.search(source):
        return None
    places = list(_DEFINITION.finditer(source))
    stops = [*(place.start() for place in places[1:]), len(source)]
    bodies = {place[1]: source[place.end() : stop] for place, stop in zip(places, stops, strict=True)}
    try:
        return Tabulate(parts=_Definitions(bodies).definition("start"))
    except (_IrregularError, RecursionError):
        return None


class _Definitions:
    """Reads definitions, each once."""

    def __init__(self, bodies: dict[str, str]) -> None:
        self._bodies = bodies
        self._known: dict[str, _Union | None] = {}

    def definition(self, name: str) -> _Union:
        """Returns what a rule or terminal stands for."""
        if name not in self._known:
            if name not in self._bodies:
                raise _IrregularError
            self._known[name] = None  # while it is being read
            self._known[name] = _Expression(self, self._bodies[name], is_rule=not name.isupper()).whole()
        found = self._known[name]
        if found is None:
            raise _IrregularError
        return found


class _Expression:
    """The right side of one definition."""

    def __init__(self, reader: _Definitions, text: str, *, is_rule: bool) -> None:
        self._reader = reader
        self._is_rule = is_rule
        self._tokens: list[tuple[str, str]] = []
        self._next = 0
        text = text.rstrip()
        place = 0
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                raise _IrregularError
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            place = match.end()

    def whole(self) -> _Union:
        found = self._union()
        if self._next < len(self._tokens):
            raise _IrregularError
        return found

    def _peek(self) -> str:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    def _union(self) -> _Union:
        found = self._sequence()
        while self._peek() == "|":
            self._next += 1
            found = _either(found, self._sequence())
        return found

    def _sequence(self) -> _Union:
        found = self._conjunction()
        while self._peek() not in ("", "|", ")"):
            found = _plain(f"{_pattern(found)}{_pattern(self._conjunction())}")
        return found

    def _conjunction(self) -> _Union:
        found = self._repeated()
        while self._peek() == "&":
            self._next += 1
            found = _both(found, self._repeated())
        return found

    def _repeated(self) -> _Union:
        found = self._atom()
        while self._next < len(self._tokens):
            kind, text = self._tokens[self._next]
            if text not in ("*", "+", "?") and kind != "count":
                break
            if self._is_rule and (text in ("*", "+") or text.endswith(",}")):
                raise _IrregularError
            self._next += 1
            found = _plain(f"(?:{_pattern(found)}){text}")
        return found

    def _atom(self) -> _Union:
        if self._next == len(self._tokens):
            raise _IrregularError
        kind, text = self._tokens[self._next]
        self._next += 1
        if kind == "string":
            return _plain("".join(map(escaped, json.loads(text))))
        if kind == "regex":
            return _plain(f"(?:{_SLASH.sub(lambda match: '/' if match[1] == '/' else match[0], text[1:-1])})")
        if kind == "name":
            return self._reader.definition(text)
        if text == "~":
            return _not(self._atom())
        if text != "(":
            raise _IrregularError
        found = self._union()
        if self._peek() != ")":
            raise _IrregularError
        self._next += 1
        return found


def _plain(pattern: str) -> _Union:
    return _bounded([Conjunction((pattern,))])


def _pattern(union: _Union) -> str:
    """A union as one regular expression, to stand in a sequence."""
    if len(union) != 1 or len(union[0].all) != 1 or union[0].none:
        raise _IrregularError
    return union[0].all[0] if _binds(union[0].all[0]) else f"(?:{union[0].all[0]})"


def _binds(pattern: str) -> bool:
    return "|" not in pattern


def _either(first: _Union, second: _Union) -> _Union:
    plain = [part.all[0] for part in (*first, *second) if len(part.all) == 1 and not part.none]
    others = [part for part in (*first, *second) if len(part.all) != 1 or part.none]
    return _bounded([*([Conjunction(("|".join(plain),))] if plain else []), *others])


def _both(first: _Union, second: _Union) -> _Union:
    return _bounded([Conjunction(one.all + two.all, one.none + two.none) for one, two in product(first, second)])


def _not(union: _Union) -> _Union:
    """Returns what none of the conjunctions matches: of each, one part must fail."""
    found: _Union = (Conjunction(()),)
    for part in union:
        fails = (*(Conjunction((), (pattern,)) for pattern in part.all), *(Conjunction((one,)) for one in part.none))
        found = _both(found, fails)
    return found


def _bounded(parts: list[Conjunction]) -> _Union:
    patterns = [pattern for part in parts for pattern in (*part.all, *part.none)]
    if len(parts) > MAX_PARTS or not all(map(_is_small, patterns)):
        raise _IrregularError
    return tuple(parts)


def _is_small(pattern: str) -> bool:
    if len(pattern) > MAX_PATTERN:
        return False
    counts = (int(count) for match in _REPEATED_GROUP.finditer(pattern) for count in match.groups() if count)
    return max(counts, default=0) <= MAX_REPETITIONS
