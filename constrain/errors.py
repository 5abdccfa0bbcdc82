"""Errors of constraints and of their matchers.

GrammarError(ValueError)            the constraint cannot be used; `path` says where
├── InvalidSchemaError              the JSON Schema is not one, or nothing can satisfy it
├── UnsupportedKeywordError         a JSON Schema keyword that would go unenforced
├── GrammarTooComplexError          it passes a limit of size, depth or processor time
└── CompileLateError                the machine is too busy to compile it in time
MatcherError(RuntimeError)          a matcher was asked for something impossible in mid-generation
├── SearchLateError                 it needs longer for an answer than it was given
└── StepTooComplexError             the constraint takes more effort to follow than a step may
"""

from __future__ import annotations

from typing import Final


class GrammarError(ValueError):
    """The constraint cannot be used. `path` is a JSON pointer into the schema ("" for its root) or ""."""

    code = "invalid_grammar"

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def __str__(self) -> str:
        return f"{self.reason} (at {self.path})" if self.path else self.reason


class InvalidSchemaError(GrammarError):
    """The JSON Schema is not one, or nothing can satisfy it."""

    code = "invalid_json_schema"


class UnsupportedKeywordError(GrammarError):
    """A JSON Schema keyword that would go unenforced."""

    code = "unsupported_json_schema"

    def __init__(self, keyword: str, *, path: str = "", reason: str = "") -> None:
        super().__init__(
            f"JSON Schema keyword {keyword!r} is not supported{': ' + reason if reason else ''}", path=path
        )
        self.keyword = keyword


class GrammarTooComplexError(GrammarError):
    """The constraint passes a limit of size, depth or processor time."""

    code = "grammar_too_complex"


class CompileLateError(GrammarError):
    """The machine is too busy to compile the constraint in time: it may succeed later."""

    code = "engine_overloaded"


REFUSALS: Final[dict[str, type[GrammarError]]] = {
    kind.code: kind for kind in (GrammarError, InvalidSchemaError, UnsupportedKeywordError, GrammarTooComplexError)
}
"""Kinds of GrammarErrors by their codes, which are all that travels of them."""


class MatcherError(RuntimeError):
    """A matcher was asked for something impossible; its generation must end, and nothing else."""

    code = "grammar_dead_end"


class SearchLateError(MatcherError):
    """The search for a way to the end takes longer than was allowed. The matcher is as before."""


class StepTooComplexError(MatcherError):
    """The constraint takes more effort to follow than a step may."""

    code = GrammarTooComplexError.code
