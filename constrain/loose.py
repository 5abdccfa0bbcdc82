"""What is kept of a schema that is too much for us."""

from __future__ import annotations

import json

import msgspec

from .json_schema.parse import parse_schema
from .lower import lower
from .lowered import Lowered
from .receipt import Receipt
from .spec import JsonSchema


def lower_loosely(spec: JsonSchema) -> Lowered:
    """The grammar of its type alone; all else is left to the check of the value.

    Raises:
        GrammarError: it is no schema, or passes a limit of size.
    """
    schema = parse_schema(spec.schema)
    kept = {"type": schema["type"]} if isinstance(schema, dict) and "type" in schema else {}
    lowered = lower(msgspec.structs.replace(spec, schema=json.dumps(kept)))
    receipt = Receipt(mode="best_effort", enforced=tuple(kept), checked=("",))
    return msgspec.structs.replace(lowered, receipt=receipt)
