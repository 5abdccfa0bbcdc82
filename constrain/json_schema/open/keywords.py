"""The keywords that say something of a value itself, as shapes and as what their negations allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from ...regex.formats import formats
from ...regex.language import Language
from ...regex.numbers.sets import NumberSet
from ...regex.parse.patterns import PatternError, parse_pattern
from ..values import kind_of, only_integers
from .shapes import (
    ALL_KEYS,
    ANYTHING,
    ArrayShape,
    BooleanShape,
    Count,
    KeySet,
    Node,
    NullShape,
    NumberShape,
    ObjectShape,
    SeenItems,
    Shape,
    StringShape,
    string_shape,
)
from .subschemas import Subschemas

_NUMBERS, _INTEGERS = NumberSet(), NumberSet.of(integers=True)
_NUMBER = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")


class Shapes(Protocol):
    """Opens nodes into shapes."""

    def shapes(self, node: Node, kind: str) -> list[Shape]:
        """The shapes of one type of the values of `node`."""

    def is_empty(self, node: Node) -> bool:
        """Whether `node` is known to have no value."""


class _Strings(NamedTuple):
    """What a keyword says of strings: those it allows, those it is known to refuse, and what holds all that are valid
    (None: the first)."""

    allowed: Language
    refused: Language
    bound: Language | None = None

    def widest(self) -> Language:
        return self.allowed if self.bound is None else self.bound


class Keywords:
    """Reads the keywords of one subschema, type by type."""

    def __init__(self, subschemas: Subschemas, opened: Shapes) -> None:
        self._subschemas = subschemas
        self._opened = opened

    # As shapes

    def shape(self, literal: int, schema: dict[str, Any], kind: str, annotate: bool) -> Shape | None:
        """What the keywords about type `kind` leave of it; None if nothing. `annotate`: with what they evaluate."""
        if kind == "number":
            numbers = self._numbers(schema)
            return NumberShape(numbers) if _has_numbers(numbers) else None
        if kind == "string":
            parts = self._languages(literal, schema)
            language = Language.intersection(part.allowed for part in parts)
            if len(parts) < 2 and "pattern" not in schema and parts and parts[0].bound is None:
                return None if language == Language.EMPTY else StringShape(language)
            bounded = any(part.bound is not None for part in parts)
            return string_shape(language, Language.intersection(map(_Strings.widest, parts)) if bounded else None)
        if kind == "array":
            return self._array(literal, schema, annotate)
        if kind == "object":
            return self._object(literal, schema, annotate)
        return NullShape() if kind == "null" else BooleanShape()

    def of_values(self, values: list[Any], kind: str) -> Shape | None:
        """The scalars of type `kind` among `values`."""
        found = [value for value in values if kind_of(value) == kind]
        if not found:
            return None
        if kind == "number":
            return NumberShape(values=tuple(found))
        if kind == "string":
            return StringShape(Language.one_of(found))
        return BooleanShape(frozenset(found)) if kind == "boolean" else NullShape()

    def _numbers(self, schema: dict[str, Any]) -> NumberSet:
        if schema.keys().isdisjoint(_NUMBER):
            return _INTEGERS if only_integers(schema) else _NUMBERS
        self._subschemas.enforced.update([keyword for keyword in _NUMBER if keyword in schema])
        return _number_set(only_integers(schema), *[schema.get(keyword) for keyword in _NUMBER])

    def _languages(self, literal: int, schema: dict[str, Any]) -> list[_Strings]:
        """What each keyword says of strings."""
        result: list[_Strings] = []
        if "minLength" in schema or "maxLength" in schema:
            low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
            language = Language.length(low, None if high is None else int(high))
            self._subschemas.enforced.update({"minLength", "maxLength"} & schema.keys())
            result.append(_Strings(language, ~language))
        if "pattern" in schema:
            language = self._pattern(literal, "pattern", schema["pattern"])
            result.append(_Strings(language, Language.ANY if _is_unread(schema["pattern"]) else ~language))
        if "format" in schema:
            result += self._format(schema["format"])
        return result

    def _format(self, name: str) -> list[_Strings]:
        allowed, refused = formats.language(name), formats.outside(name)
        if allowed is None or refused is None or name in formats.ONLY_DRAFT_3:
            return []
        self._subschemas.enforced.add("format")
        if self._subschemas.document.draft.year < formats.SINCE.get(name, 0):
            # To this draft it is an annotation: nobody minds that it is kept, but its negation holds for nothing.
            return [_Strings(allowed, Language.EMPTY, Language.ANY)]
        return [_Strings(allowed, refused, ~refused if name in formats.NARROWED else None)]

    def _pattern(self, literal: int, keyword: str, pattern: str) -> Language:
        found = _parsed(pattern)
        if isinstance(found, PatternError):
            self._subschemas.refuse_pattern(literal, keyword, pattern, found)
            return Language.ANY
        self._subschemas.enforced.add(keyword)
        return found

    def _array(self, literal: int, schema: dict[str, Any], annotate: bool) -> ArrayShape | None:
        subschemas = self._subschemas
        present = {"prefixItems", "items", "minItems", "maxItems", "contains", "uniqueItems"} & schema.keys()
        if not present:
            return ArrayShape()
        subschemas.enforced.update(present)
        prefix: tuple[Node, ...] = ()
        if "prefixItems" in schema:
            prefix = tuple(frozenset({child}) for child in subschemas.children(literal, "prefixItems").values())
        rest = frozenset({subschemas.child(literal, "items")}) if "items" in schema else ANYTHING
        counts: tuple[Count, ...] = ()
        contained: tuple[int, ...] = ()
        if "contains" in schema:
            child = subschemas.child(literal, "contains")
            low, high = _contains(schema)
            counts = (Count(0, frozenset({child}), low, high),) if low or high is not None else ()
            contained = (child,) if subschemas.document.draft.contains_evaluates else ()
        unique = frozenset({(literal, "uniqueItems")} if schema.get("uniqueItems") else ())
        top = schema.get("maxItems")
        shape = ArrayShape(
            prefix, rest, int(schema.get("minItems", 0)), None if top is None else int(top), counts, unique
        )
        checked = ArrayShape().merge(shape, self._opened.is_empty)
        if checked is None or not annotate:
            return checked
        return replace(shape, seen=SeenItems(len(prefix), "items" in schema, contained))

    def _object(self, literal: int, schema: dict[str, Any], annotate: bool) -> ObjectShape | None:
        subschemas = self._subschemas
        present = _OBJECT & schema.keys()
        if not present:
            return ObjectShape()
        subschemas.enforced.update(present)
        properties: dict[str, Node] = {}
        if "properties" in schema:
            children = subschemas.children(literal, "properties")
            properties = {str(name): frozenset({child}) for name, child in children.items()}
        rules: list[tuple[KeySet, Node]] = []
        patterns: list[Language] = []
        if "patternProperties" in schema:
            for pattern, child in subschemas.children(literal, "patternProperties").items():
                patterns.append(self._pattern(literal, "patternProperties", str(pattern)))
                if not _is_unread(str(pattern)):
                    rules.append((KeySet(languages=(patterns[-1],)), frozenset({child})))
        seen = KeySet(frozenset(properties), tuple(patterns))
        if "additionalProperties" in schema:
            rules.append((~seen, frozenset({subschemas.child(literal, "additionalProperties")})))
            seen = ALL_KEYS
        if "propertyNames" in schema:
            rules.append((~self._names(subschemas.child(literal, "propertyNames")), subschemas.never))
        implications = tuple((name, tuple(keys)) for name, keys in schema.get("dependentRequired", {}).items() if keys)
        top = schema.get("maxProperties")
        shape = ObjectShape(
            properties,
            tuple(dict.fromkeys(rules)),
            frozenset(schema.get("required", ())),
            int(schema.get("minProperties", 0)),
            None if top is None else int(top),
            (),
            implications,
            seen if annotate else KeySet(),
            frozenset({(literal, "minProperties")} if schema.get("minProperties", 0) > 1 else ()),
        )
        return shape if shape.is_possible(self._opened.is_empty) else None

    def _names(self, literal: int) -> KeySet:
        """The keys that a schema of `propertyNames` allows."""
        shapes = self._opened.shapes(frozenset({literal}), "string")
        names: set[str] = set()
        languages: list[Language] = []
        for shape in shapes:
            assert isinstance(shape, StringShape)
            texts = shape.language.finite_texts
            if texts is None:
                languages.append(shape.language)
            else:
                names.update(texts)
        return KeySet(frozenset(names), tuple(languages))

    # What subschemas in place have left over

    def close(self, literal: int, keyword: str, shape: Shape, annotate: bool) -> Shape | None:
        """`shape`, which has annotations, with `unevaluatedItems` or `unevaluatedProperties` applied to the rest."""
        subschemas = self._subschemas
        subschemas.enforced.add(keyword)
        child = subschemas.child(literal, keyword)
        if isinstance(shape, ArrayShape):
            result: Shape | None = shape
            if not shape.seen.all:
                rest = subschemas.either((*shape.seen.contained, child)) if shape.seen.contained else child
                closed = ArrayShape((ANYTHING,) * shape.seen.count, frozenset({rest}))
                result = shape.merge(closed, self._opened.is_empty)
            return _with_seen(result, SeenItems(all=True) if annotate else SeenItems())
        assert isinstance(shape, ObjectShape)
        closed_object = ObjectShape(rules=((~shape.seen, frozenset({child})),))
        return _with_seen(shape.merge(closed_object, self._opened.is_empty), ALL_KEYS if annotate else KeySet())

    def open(self, literal: int, keyword: str, shape: Shape) -> Iterator[Shape]:
        """The values of `shape`, which has annotations, that break `keyword`."""
        subschemas = self._subschemas
        fails: Node = frozenset({subschemas.child(literal, keyword) ^ 1})
        broken: Shape
        if isinstance(shape, ArrayShape):
            if shape.seen.all:
                return
            outside = frozenset(contained ^ 1 for contained in shape.seen.contained)
            broken = ArrayShape(counts=(Count(shape.seen.count, fails | outside, 1, None),))
        else:
            assert isinstance(shape, ObjectShape)
            broken = ObjectShape(some=((~shape.seen, fails),), counted=frozenset({(literal, keyword)}))
        nothing = SeenItems() if isinstance(shape, ArrayShape) else KeySet()
        found = _with_seen(shape.merge(broken, self._opened.is_empty), nothing)  # type: ignore[arg-type]
        if found is not None:
            yield found

    # Negations

    def without_values(self, values: list[Any], kind: str) -> Iterator[Shape]:
        """The scalars of type `kind` that are not among `values`."""
        found = [value for value in values if kind_of(value) == kind]
        if kind == "number":
            yield NumberShape(NumberSet.of(excluded=tuple(found)))
        elif kind == "string":
            yield StringShape(~Language.one_of(found) if found else Language.ANY)
        elif kind == "boolean" and set(found) != {False, True}:
            yield BooleanShape(frozenset((False, True)) - set(found))
        elif kind == "null" and not found:
            yield NullShape()

    def negate(self, literal: int, schema: dict[str, Any], kind: str) -> Iterator[Shape]:
        """Shapes whose union are the values of type `kind` that break a keyword about that type."""
        if kind == "number":
            place = frozenset({(literal, "multipleOf" if "multipleOf" in schema else "type")})
            for numbers in self._numbers(schema).complement():
                yield NumberShape(numbers, excluding=place if numbers.others else frozenset())
        elif kind == "string":
            rest = Language.union(part.refused for part in self._languages(literal, schema))
            if not rest.is_empty():
                yield StringShape(rest)
        elif kind == "array":
            yield from self._negate_array(literal, schema)
        elif kind == "object":
            yield from self._negate_object(literal, schema)

    def _negate_array(self, literal: int, schema: dict[str, Any]) -> Iterator[Shape]:
        subschemas = self._subschemas
        prefix: list[int] = []
        if "prefixItems" in schema:
            prefix = list(subschemas.children(literal, "prefixItems").values())
        for index, child in enumerate(prefix):
            yield ArrayShape((ANYTHING,) * index + (frozenset({child ^ 1}),), low=index + 1)
        if "items" in schema:
            yield ArrayShape(counts=(Count(len(prefix), frozenset({subschemas.child(literal, "items") ^ 1}), 1, None),))
        if schema.get("minItems", 0) > 0:
            yield ArrayShape(high=int(schema["minItems"]) - 1)
        if "maxItems" in schema:
            yield ArrayShape(low=int(schema["maxItems"]) + 1)
        if "contains" in schema:
            node = frozenset({subschemas.child(literal, "contains")})
            low, high = _contains(schema)
            if low == 1:
                yield ArrayShape(rest=frozenset({subschemas.child(literal, "contains") ^ 1}))
            elif low > 1:
                yield ArrayShape(counts=(Count(0, node, 0, low - 1),))
            if high is not None:
                yield ArrayShape(counts=(Count(0, node, high + 1, None),))
        if schema.get("uniqueItems"):
            subschemas.check(literal, "uniqueItems")
            yield ArrayShape(low=2)

    def _negate_object(self, literal: int, schema: dict[str, Any]) -> Iterator[Shape]:
        subschemas = self._subschemas
        names: list[str] = []
        required = frozenset(schema.get("required", ()))
        if "properties" in schema:
            for name, child in subschemas.children(literal, "properties").items():
                names.append(str(name))
                # A required key is absent or wrong: one shape for both.
                present = frozenset[str]() if name in required else frozenset({str(name)})
                yield ObjectShape({str(name): frozenset({child ^ 1})}, required=present)
        patterns: list[Language] = []
        if "patternProperties" in schema:
            for pattern, child in subschemas.children(literal, "patternProperties").items():
                language = self._pattern(literal, "patternProperties", str(pattern))
                patterns += [] if _is_unread(str(pattern)) else [language]
                yield self._some(literal, "patternProperties", KeySet(languages=(language,)), child ^ 1)
        if "additionalProperties" in schema:
            others = ~KeySet(frozenset(names), tuple(patterns))
            yield self._some(
                literal, "additionalProperties", others, subschemas.child(literal, "additionalProperties") ^ 1
            )
        if "propertyNames" in schema:
            broken = self._names(subschemas.child(literal, "propertyNames") ^ 1)
            yield ObjectShape(some=((broken, ANYTHING),))
        for name in sorted(required.difference(names)):
            yield ObjectShape({name: subschemas.never})
        for name, keys in schema.get("dependentRequired", {}).items():
            for key in keys:
                if key != name:
                    yield ObjectShape({key: subschemas.never}, required=frozenset({name}))
        if schema.get("minProperties", 0) > 0:
            yield ObjectShape(high=int(schema["minProperties"]) - 1)
        if "maxProperties" in schema:
            yield ObjectShape(low=int(schema["maxProperties"]) + 1, counted=frozenset({(literal, "maxProperties")}))

    @staticmethod
    def _some(literal: int, keyword: str, keys: KeySet, child: int) -> ObjectShape:
        """At least one key of a set has a value of `child`."""
        return ObjectShape(some=((keys, frozenset({child})),), counted=frozenset({(literal, keyword)}))


def _is_unread(pattern: str) -> bool:
    """Whether a pattern is no regular expression that we can read."""
    return isinstance(_parsed(pattern), PatternError)


@lru_cache(maxsize=1_024, typed=True)  # of a large float and an equal integer, the digits differ
def _number_set(integers: bool, *limits: int | float | None) -> NumberSet:
    given: dict[str, Any] = {
        keyword: limit for keyword, limit in zip(_NUMBER, limits, strict=True) if limit is not None
    }
    return NumberSet.of(integers=integers, **given)


@lru_cache(maxsize=1_024)
def _has_numbers(numbers: NumberSet) -> bool:
    return not numbers.is_empty()


@lru_cache(maxsize=256)
def _parsed(pattern: str) -> Language | PatternError:
    try:
        return parse_pattern(pattern)
    except PatternError as error:
        return error.with_traceback(None)


_OBJECT = frozenset(
    {"properties", "patternProperties", "additionalProperties", "propertyNames", "required", "dependentRequired"}
    | {"minProperties", "maxProperties"}
)


def _contains(schema: dict[str, Any]) -> tuple[int, int | None]:
    """How many items must and may match `contains`."""
    high = schema.get("maxContains")
    return int(schema.get("minContains", 1)), None if high is None else int(high)


def _with_seen(shape: Shape | None, seen: SeenItems | KeySet) -> Shape | None:
    if isinstance(shape, ArrayShape) and isinstance(seen, SeenItems):
        return replace(shape, seen=seen)
    if isinstance(shape, ObjectShape) and isinstance(seen, KeySet):
        return replace(shape, seen=seen)
    return shape
