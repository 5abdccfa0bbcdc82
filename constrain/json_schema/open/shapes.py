"""What a value of one JSON type may be: conjunctions of constraints that can be merged and found empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias, TypeVar

from ...regex.language import Language
from ...regex.numbers.sets import NumberSet

Node: TypeAlias = frozenset[int]
"""A conjunction of literals (see `literals.py`): what a child must satisfy. The empty one allows every value."""

ANYTHING: Node = frozenset()

Place: TypeAlias = tuple[int, str]
"""A literal and a keyword of its subschema."""

IsEmpty: TypeAlias = Callable[[Node], bool]
"""Whether a conjunction is known to have no value."""


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
    """What several shapes have in common. It may be nothing: that is not looked at."""
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
        """The same set as a language."""
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

    def at(self, name: str) -> Node:
        """What the value of the key `name` must satisfy."""
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
        )
        return merged if merged.is_possible(is_empty) else None

    def is_possible(self, is_empty: IsEmpty) -> bool:
        """Whether there is room for the keys that must be there, and no value of theirs is known to be impossible."""
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
