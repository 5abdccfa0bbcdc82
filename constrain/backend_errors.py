"""Says in our words what the grammar compiler objects to."""

from __future__ import annotations

from .errors import GrammarError, GrammarTooComplexError, InvalidSchemaError
from .spec import GrammarSpec, JsonSchema

_LIMITS = ("too complex", "limit", "fuel", "too many", "too large", "too deep", "too big")


def to_grammar_error(message: str, spec: GrammarSpec) -> GrammarError:
    """The error to raise for the compiler's `message` about `spec`.

    Of a JSON Schema it sees only the grammar that we wrote for it, which is right but may be more than it can take.
    """
    text = " ".join(message.split())[:300]
    if isinstance(spec, JsonSchema):
        if "nsatisfiable" in text:
            return InvalidSchemaError(f"nothing can satisfy the schema: {text}")
        return GrammarTooComplexError(f"the schema cannot be compiled: {text}")
    kind = GrammarTooComplexError if any(word in text.lower() for word in _LIMITS) else GrammarError
    return kind(f"the grammar cannot be compiled: {text}")
