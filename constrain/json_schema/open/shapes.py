"""Shapes of values of one JSON type: conjunctions of constraints that can be merged and found empty.

Keywords that say something of a value itself are read as such shapes, and their negations as what they allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from ...regex import formats
from ...regex.language import Language
from ...regex.numbers import NumberSet
from ...regex.patterns import PatternError, parse_pattern
from ..parse import kind_of, only_integers
from .subschemas import Node, Subschemas

ANYTHING: Node = frozenset()

Place: TypeAlias = tuple[int, str]
"""A literal and a keyword of its subschema."""

IsEmpty: TypeAlias = Callable[[Node], bool]
"""Tells whether a conjunction is known to have no value."""


@dataclass(frozen=True, slots=True)
class NullShape:
    """null."""

    def merge(self, other: NullShape, is_empty: IsEmpty) -> NullShape | None:
        return self


@dataclass(frozen=True, slots=True)
class BooleanShape:
    """One of `values`."""

    values: frozenset[bool] = frozenset((False, True))

    def merge(self, other: BooleanShape, is_empty: IsEmpty) -> BooleanShape | None:
        values = self.values & other.values
        return BooleanShape(values) if values else None


@dataclass(frozen=True, slots=True)
class NumberShape:
    """A number of `numbers`; of `values` only, if they are given. `excluding`: the places that exclude multiples."""

    numbers: NumberSet = field(default_factory=NumberSet)
    values: tuple[int | float, ...] | None = None
    excluding: frozenset[Place] = frozenset()

    def merge(self, other: NumberShape, is_empty: IsEmpty) -> NumberShape | None:
        if self.values is None and other.values is None:
            numbers = self.numbers & other.numbers
            return None if numbers.is_empty() else NumberShape(numbers, None, self.excluding | other.excluding)
        first, second = (self, other) if self.values is not None else (other, self)
        assert first.values is not None
        values = tuple(value for value in first.values if second.contains(value) and first.numbers.contains(value))
        return NumberShape(values=values) if values else None

    def contains(self, value: int | float) -> bool:
        return (self.values is None or value in self.values) and self.numbers.contains(value)


@dataclass(frozen=True, slots=True)
class StringShape:
    """A string of `language`.

    A format that is not regular has strings that `language` leaves out; `bound` (None: `language` itself) holds them
    all. What is proved to be impossible is proved of that.
    """

    language: Language = Language.ANY
    bound: Language | None = None

    def merge(self, other: StringShape, is_empty: IsEmpty) -> StringShape | None:
        return string_shape(
            self.language & other.language,
            None if self.bound is None and other.bound is None else self.widest & other.widest,
        )

    @property
    def widest(self) -> Language:
        return self.language if self.bound is None else self.bound


def string_shape(language: Language, bound: Language | None) -> StringShape | None:
    """The shape; None if it is known to have no string at all."""
    if bound is None:
        return None if language.is_empty() else StringShape(language)
    if bound.is_empty():
        return None
    return StringShape(Language.EMPTY if language.is_empty() else language, bound)


def common_strings(shapes: Sequence[StringShape]) -> StringShape:
    """Intersects several shapes. Whether the result is empty is not looked at."""
    language = Language.intersection(shape.language for shape in shapes)
    bounded = any(shape.bound is not None for shape in shapes)
    return StringShape(language, Language.intersection(shape.widest for shape in shapes) if bounded else None)


@dataclass(frozen=True)
class KeySet:
    """A set of object keys: `names` and all of `languages`; or, with `inverted`, every key but those."""

    names: frozenset[str] = frozenset()
    languages: tuple[Language, ...] = ()
    inverted: bool = False

    def contains(self, name: str) -> bool:
        return self.inverted != (name in self.names or any(language.contains(name) for language in self.languages))

    def __invert__(self) -> KeySet:
        return replace(self, inverted=not self.inverted)

    def __or__(self, other: KeySet) -> KeySet:
        if self.inverted and other.inverted:
            return ~KeySet(names=self._within(other), languages=self._meet(other))
        if self.inverted or other.inverted:
            return KeySet(languages=(self.language | other.language,))
        return KeySet(self.names | other.names, tuple(dict.fromkeys(self.languages + other.languages)))

    def _within(self, other: KeySet) -> frozenset[str]:
        """Names that neither of two inverted sets contains."""
        return frozenset(
            name for name in self.names | other.names if not self.contains(name) and not other.contains(name)
        )

    def _meet(self, other: KeySet) -> tuple[Language, ...]:
        if not self.languages or not other.languages:
            return ()
        return ((~self.language) & (~other.language),)

    @cached_property
    def language(self) -> Language:
        """Returns the set as a language."""
        parts = [Language.one_of(sorted(self.names))] if self.names else []
        parts += self.languages
        union = Language.union(parts)
        return ~union if self.inverted else union


ALL_KEYS = KeySet(inverted=True)


@dataclass(frozen=True, slots=True)
class Count:
    """Between `low` and `high` (None: any number) of the elements from index `start` on are of `node`."""

    start: int
    node: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class SeenItems:
    """Items that subschemas in place have evaluated: the first `count`, all of them, those that match `contained`."""

    count: int = 0
    all: bool = False
    contained: tuple[int, ...] = ()

    def __or__(self, other: SeenItems) -> SeenItems:
        contained = tuple(dict.fromkeys(self.contained + other.contained))
        return SeenItems(max(self.count, other.count), self.all or other.all, contained)


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Element i is of `prefix[i]`, or of `rest`; there are `low` to `high` of them.

    unique    the places of `uniqueItems` that hold: no two are equal
    seen      the annotations collected for `unevaluatedItems`
    """

    prefix: tuple[Node, ...] = ()
    rest: Node = ANYTHING
    low: int = 0
    high: int | None = None
    counts: tuple[Count, ...] = ()
    unique: frozenset[Place] = frozenset()
    seen: SeenItems = SeenItems()

    def at(self, index: int) -> Node:
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def merge(self, other: ArrayShape, is_empty: IsEmpty) -> ArrayShape | None:
        length = max(len(self.prefix), len(other.prefix))
        prefix = tuple(self.at(index) | other.at(index) for index in range(length))
        low, high = max(self.low, other.low), lesser(self.high, other.high)
        rest = self.rest | other.rest
        for index in range(min(low, length)):
            if is_empty(prefix[index]):
                return None
        if low > length and is_empty(rest):
            return None
        if high is not None and (
            low > high or any(count.low > max(high - count.start, 0) for count in self.counts + other.counts)
        ):
            return None
        counts = tuple(dict.fromkeys(self.counts + other.counts))
        return ArrayShape(prefix, rest, low, high, counts, self.unique | other.unique, self.seen | other.seen)


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """An object.

    properties      what the value of a key must satisfy
    rules           the same for sets of keys; all that hold for a key apply
    required        keys that must be there
    low, high       how many keys there are
    some            of each: at least one key of the set has a value of the node
    implications    (key, keys): with the first, the others are required
    seen            the keys evaluated in place, for `unevaluatedProperties`
    counted         the places of keywords that a key written twice could satisfy by itself
    listing         the places of `properties` that list all keys, save those that rules are about; empty if none does
    """

    properties: dict[str, Node] = field(default_factory=dict)
    rules: tuple[tuple[KeySet, Node], ...] = ()
    required: frozenset[str] = frozenset()
    low: int = 0
    high: int | None = None
    some: tuple[tuple[KeySet, Node], ...] = ()
    implications: tuple[tuple[str, tuple[str, ...]], ...] = ()
    seen: KeySet = KeySet()
    counted: frozenset[Place] = frozenset()
    listing: frozenset[Place] = frozenset()

    def at(self, name: str) -> Node:
        """Returns what the value of the key `name` must satisfy."""
        node = self.properties.get(name, ANYTHING)
        for keys, extra in self.rules:
            if keys.contains(name):
                node = node | extra
        return node

    def merge(self, other: ObjectShape, is_empty: IsEmpty) -> ObjectShape | None:
        for name, node in other.properties.items():  # most objects that exclude each other do so by one key
            own = self.properties.get(name, node)
            if own != node and (name in self.required or name in other.required) and is_empty(own | node):
                return None
        properties = dict(self.properties)
        for name, node in other.properties.items():
            properties[name] = properties[name] | node if name in properties else node
        merged = ObjectShape(
            properties,
            _joined(self.rules, other.rules),
            self.required | other.required,
            max(self.low, other.low),
            lesser(self.high, other.high),
            _joined(self.some, other.some),
            _joined(self.implications, other.implications),
            self.seen | other.seen if self.seen != other.seen else self.seen,
            self.counted | other.counted,
            self.listing | other.listing,
        )
        return merged if merged.is_possible(is_empty) else None

    def is_possible(self, is_empty: IsEmpty) -> bool:
        """Tells whether the required keys have room, and no value of theirs is known to be impossible."""
        if self.high is not None and max(self.low, len(self.required)) > self.high:
            return False
        said = self.required if self.rules else self.required & self.properties.keys()
        return not any(is_empty(self.at(name)) for name in sorted(said))


Shape: TypeAlias = NullShape | BooleanShape | NumberShape | StringShape | ArrayShape | ObjectShape

ItemT = TypeVar("ItemT")


def _joined(first: tuple[ItemT, ...], second: tuple[ItemT, ...]) -> tuple[ItemT, ...]:
    """Both, each item once."""
    return tuple(dict.fromkeys(first + second)) if first or second else ()


TOPS: dict[str, Shape] = {
    "null": NullShape(),
    "boolean": BooleanShape(),
    "number": NumberShape(),
    "string": StringShape(),
    "array": ArrayShape(),
    "object": ObjectShape(),
}
"""Every value of a type, by its name. Numbers are one type; integers are some of them."""


def lesser(first: int | None, second: int | None) -> int | None:
    """The smaller of two upper bounds, of which None is the largest."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


_NUMBERS, _INTEGERS = NumberSet(), NumberSet.of(integers=True)
_NUMBER = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")


class Shapes(Protocol):
    """Opens nodes into shapes."""

    def shapes(self, node: Node, kind: str) -> list[Shape]:
        """The shapes of one type of the values of `node`."""

    def is_empty(self, node: Node) -> bool:
        """Tells whether `node` is known to have no value."""


class _Strings(NamedTuple):
    """A keyword's constraint on strings: those it allows, those it is known to refuse, and a language that holds all
    valid ones (None: the first)."""

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
        """Applies the keywords about type `kind`; None if nothing is left. `annotate`: with what they evaluate."""
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
        """Returns each keyword's constraint on strings."""
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
            frozenset({(literal, "properties")} if subschemas.closes and "properties" in schema else ()),
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
        """Demands that at least one key of a set has a value of `child`."""
        return ObjectShape(some=((keys, frozenset({child})),), counted=frozenset({(literal, keyword)}))


def _is_unread(pattern: str) -> bool:
    """Tells whether a pattern is no regular expression that we can read."""
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
    """Returns how many items must and may match `contains`."""
    high = schema.get("maxContains")
    return int(schema.get("minContains", 1)), None if high is None else int(high)


def _with_seen(shape: Shape | None, seen: SeenItems | KeySet) -> Shape | None:
    if isinstance(shape, ArrayShape) and isinstance(seen, SeenItems):
        return replace(shape, seen=seen)
    if isinstance(shape, ObjectShape) and isinstance(seen, KeySet):
        return replace(shape, seen=seen)
    return shape
