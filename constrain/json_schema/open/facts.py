"""What a subschema says at a glance: read once, and asked again for each type of values."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..parse import Schema
from ..values import ALL_KINDS, kind_of, kinds_of, values_of

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
    """Whether `schema` says nothing but `$ref`."""
    return (
        isinstance(schema, dict)
        and "$ref" in schema
        and schema.keys().isdisjoint(_SCALAR)
        and schema.keys() & _STRUCTURAL == {"$ref"}
    )
