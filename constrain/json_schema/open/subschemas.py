"""Subschemas and their negations as numbers, what each says at a glance, and what became of each keyword."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

from ...errors import GrammarTooComplexError, InvalidSchemaError, UnsupportedKeywordError
from ...receipt import TOO_MANY_TO_CHECK, Pointers
from ...regex.patterns import PatternError
from ..document import At, Document, Scope, pointer_of
from ..parse import ALL_KINDS, Schema, kind_of, kinds_of, pointer_to, values_of

Node: TypeAlias = frozenset[int]
"""A conjunction of literals (numbers of `Subschemas`): what a child must satisfy. The empty one allows every value."""


REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
COMBINATIONS = ("allOf", "oneOf", "anyOf", "not", "if", "dependentSchemas")
IN_PLACE = frozenset((*REFERENCES, *COMBINATIONS))

_SCALAR = (
    *("type", "enum", "const", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
    *("minLength", "maxLength", "format"),
)
"""Keywords that mean the same wherever they stand."""
_STRUCTURAL = IN_PLACE | {
    *("multipleOf", "pattern", "prefixItems", "items", "contains", "uniqueItems", "minItems", "maxItems"),
    *("properties", "patternProperties", "additionalProperties", "propertyNames", "required", "dependentRequired"),
    *("minProperties", "maxProperties", "unevaluatedItems", "unevaluatedProperties"),
}
_NOT_VALUES = _STRUCTURAL.union(_SCALAR) - {"enum", "const"}


class Facts(NamedTuple):
    """A subschema in the keywords of draft 2020-12, and what follows from it alone.

    kinds       the types that `type`, `enum` and `const` allow
    applied     the keywords in it that apply subschemas in place
    values      those that `enum` and `const` leave; None: any
    """

    schema: Schema
    kinds: frozenset[str]
    applied: tuple[str, ...]
    values: list[Any] | None


_BOOLEANS = {True: Facts(True, ALL_KINDS, (), None), False: Facts(False, frozenset(), (), None)}


def facts_of(schema: Schema) -> Facts:
    """The facts of `schema`."""
    if isinstance(schema, bool):
        return _BOOLEANS[schema]
    applied: tuple[str, ...] = ()
    if not schema.keys().isdisjoint(IN_PLACE):
        applied = tuple([keyword for keyword in (*REFERENCES, *COMBINATIONS) if keyword in schema])
    kinds, values = kinds_of(schema), values_of(schema)
    if values and schema.keys().isdisjoint(_NOT_VALUES):
        kinds = frozenset(map(kind_of, values))
    return Facts(schema, kinds, applied, values)


def scalar_key(schema: Schema) -> str | None:
    """Equal for schemas that say the same of scalars, and nothing else; None if `schema` says more."""
    if isinstance(schema, bool) or not schema.keys().isdisjoint(_STRUCTURAL):
        return None
    return repr([(keyword, schema[keyword]) for keyword in _SCALAR if keyword in schema])


def only_refers(schema: Schema) -> bool:
    """Tells whether `schema` says nothing but `$ref`."""
    return (
        isinstance(schema, dict)
        and "$ref" in schema
        and schema.keys().isdisjoint(_SCALAR)
        and schema.keys() & _STRUCTURAL == {"$ref"}
    )


Policy = Literal["exact", "best_effort"]


class Subschemas:
    """The subschemas of a document.

    A literal is an even number for a subschema (with the dynamic scope it is reached in), and the next odd one for its
    negation.

    never       the node that no value satisfies
    referred    literals that stand for references to them as well
    enforced    keywords met on the way
    checked     places of keywords that the grammar does not hold: its values may be wider
    closes      objects get no keys but those that the schema names
    narrowed    places of subschemas of which some values were left out: they were too many to tell apart
    """

    def __init__(self, document: Document, policy: Policy, *, closes: bool = False) -> None:
        self.document = document
        self.closes = closes
        self.referred: set[int] = set()
        self.enforced: set[str] = set()
        self.checked = Pointers()
        self.narrowed = Pointers()
        self._policy = policy
        self._literals: list[tuple[str, Scope]] = []
        self._facts: list[Facts | None] = []
        self._ids: dict[tuple[str, Scope], int] = {}
        self._scalars: dict[str, int] = {}
        self._referring: set[str] = set()
        self.never: Node = frozenset({self.literal(document.add("never", False), ())})

    def literal(self, location: str, scope: Scope) -> int:
        """The literal of the schema at `location`, which is reached in `scope`."""
        key = (location, self.document.enter(location, scope))
        found = self._ids.get(key)
        if found is None:
            like = self._like(*key)
            found = self._ids[key] = self._new(key) if like is None else like
        return found

    def _new(self, place: tuple[str, Scope]) -> int:
        self._literals.append(place)
        self._facts.append(None)
        return 2 * len(self._literals) - 2

    def _like(self, location: str, scope: Scope) -> int | None:
        """The literal of another schema that says the same: one alike, or the one that this is but a reference to."""
        try:
            schema = self.document.schema(location)
            if only_refers(schema) and location not in self._referring:
                self._referring.add(location)
                target = self.literal(self.document.target(location, "$ref", scope), scope)
                self._referring.discard(location)
                self.referred.add(target)
                if self._facts[target >> 1] is not None:  # it has been opened
                    self.enforced.add("$ref")
                return target
        except InvalidSchemaError:  # it is said where the schema is opened
            return None
        key = scalar_key(schema)
        if key is None:
            return None
        if key not in self._scalars:
            self._scalars[key] = self._new((location, scope))
        return self._scalars[key]

    def facts(self, literal: int) -> Facts:
        """Returns what the subschema of a literal, or of its negation, says at a glance."""
        found = self._facts[literal >> 1]
        if found is None:
            schema = self.document.schema(self._literals[literal >> 1][0])
            found = self._facts[literal >> 1] = facts_of(schema)
        return found

    def place(self, literal: int) -> tuple[str, Scope]:
        """Returns where the subschema of a literal is."""
        return self._literals[literal >> 1]

    def children(self, literal: int, keyword: str) -> dict[str | int, int]:
        """The literals of the subschemas under a keyword that holds a list or a map of them."""
        location, scope = self.place(literal)
        schema = self.facts(literal).schema
        assert isinstance(schema, dict)
        value = schema[keyword]
        at = pointer_to(location, keyword)
        if isinstance(value, At):
            at, value = pointer_to(location, *value.steps), value.value
        items: Iterable[tuple[str | int, Any]] = enumerate(value) if isinstance(value, list) else value.items()
        return {
            name: self.literal(
                pointer_to(location, *item.steps) if isinstance(item, At) else pointer_to(at, name), scope
            )
            for name, item in items
        }

    def child(self, literal: int, keyword: str) -> int:
        """The literal of the subschema under a keyword."""
        location, scope = self.place(literal)
        schema = self.facts(literal).schema
        assert isinstance(schema, dict)
        value = schema[keyword]
        steps: tuple[str | int, ...] = value.steps if isinstance(value, At) else (keyword,)
        return self.literal(pointer_to(location, *steps), scope)

    def either(self, literals: Iterable[int]) -> int:
        """The literal of the union of (positive) literals."""
        places = [self.place(literal) for literal in literals]
        if len(places) == 1:
            return self.literal(*places[0])
        name = "either:" + json.dumps([place[0] for place in places])
        location = self.document.add(name, {"anyOf": [{"$ref": place[0]} for place in places]})
        return self.literal(location, places[0][1])

    # What cannot be written as shapes

    def refuse_pattern(self, literal: int, keyword: str, pattern: str, error: PatternError) -> None:
        """Refuses a pattern that cannot be read as a regular expression, or is none."""
        pointer = pointer_to(pointer_of(self.place(literal)[0]), keyword)
        if keyword == "patternProperties":
            pointer = pointer_to(pointer, pattern)
        if error.invalid:
            raise InvalidSchemaError(f"the pattern is not a regular expression: {error}", path=pointer)
        if self._policy == "exact":
            raise UnsupportedKeywordError(keyword, path=pointer, reason=str(error))
        self._leave(pointer)

    def narrow(self, literals: Iterable[int]) -> None:
        """Takes note that some values of a conjunction were left out."""
        locations = [self.place(literal)[0] for literal in literals]
        known = [location for location in locations if self.document.is_written(location)]
        for location in known or ["#"]:
            self.narrowed.add(pointer_of(location))

    def check(self, literal: int, keyword: str) -> None:
        """Leaves `keyword` to the check of the finished value."""
        self._leave(pointer_to(pointer_of(self.place(literal)[0]), keyword))

    def _leave(self, pointer: str) -> None:
        """Leaves the keyword at `pointer` to the check of the finished value.

        None is a `format`, the only keyword whose places the check has to know: past the limits the root will do.

        Raises:
            GrammarTooComplexError: they are too many, and the policy is exact.
        """
        self.checked.add(pointer)
        if self.checked.whole and self._policy == "exact":
            raise GrammarTooComplexError(TOO_MANY_TO_CHECK, path=pointer)
