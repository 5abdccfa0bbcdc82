"""Errors of constraints and of their matchers.

GrammarError(ValueError)            the constraint cannot be used; `path` says where
├── InvalidSchemaError              the JSON Schema is not one, or nothing can satisfy it
├── UnsupportedKeywordError         a JSON Schema keyword that would go unenforced
├── GrammarTooComplexError          it passes a limit of size, depth or processor time
└── CompileLateError                the machine is too busy to compile it in time, or has too little memory
MatcherError(RuntimeError)          a matcher was asked for something impossible in mid-generation
├── SearchLateError                 it needs longer for an answer than it was given
├── BusyMachineError                the machine has no thread or no time left to ask it
└── StepTooComplexError             the constraint takes more effort to follow than a step may
"""

from __future__ import annotations

from typing import Final

MAX_QUOTED = 500
"""Most characters quoted from a client's text in an error."""

MAX_REASON = 1000
"""Most characters of a reason, which may contain several quotations."""


def quoted(text: str) -> str:
    """Returns the text in quotes for an error, shortened to its beginning if it is long."""
    shown = repr(text[: MAX_QUOTED + 1])
    if len(text) <= MAX_QUOTED and len(shown) <= MAX_QUOTED + 2:
        return shown
    return f"{shown[:MAX_QUOTED]}{shown[0]}{_cut_mark(text)}"


def cut(text: str, most: int = MAX_QUOTED) -> str:
    """Returns the text for an error, shortened to `most` characters, the note about that included."""
    if len(text) <= most:
        return text
    mark = _cut_mark(text)
    return f"{text[: most - len(mark)]}{mark}"


def _cut_mark(text: str) -> str:
    return f"... (cut: {len(text)} characters in all)"


class GrammarError(ValueError):
    """The constraint cannot be used. `path` is a JSON pointer into the schema ("" for its root) or "".

    Long messages and paths are cut: they quote clients' texts, and are kept and sent.
    """

    code = "invalid_grammar"

    def __init__(self, reason: str, *, path: str = "") -> None:
        self.reason = cut(reason, MAX_REASON)
        self.path = cut(path)
        super().__init__(self.reason)

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
            f"JSON Schema keyword {quoted(keyword)} is not supported{': ' + reason if reason else ''}", path=path
        )
        self.keyword = keyword


class GrammarTooComplexError(GrammarError):
    """The constraint passes a limit of size, depth or processor time."""

    code = "grammar_too_complex"


class CompileLateError(GrammarError):
    """The machine is too busy to compile the constraint in time, or has too little memory: it may succeed later."""

    code = "engine_overloaded"


REFUSALS: Final[dict[str, type[GrammarError]]] = {
    kind.code: kind for kind in (GrammarError, InvalidSchemaError, UnsupportedKeywordError, GrammarTooComplexError)
}
"""Classes of GrammarErrors by their codes: only the code is sent between processes."""


class MatcherError(RuntimeError):
    """A matcher was asked for something impossible; its generation must end, but no other."""

    code = "grammar_dead_end"


class SearchLateError(MatcherError):
    """The search for a way to the end takes longer than allowed. The matcher is unchanged."""


class BusyMachineError(MatcherError):
    """The machine has no thread or no time left to ask the matcher: it may succeed later."""

    code = CompileLateError.code


class StepTooComplexError(MatcherError):
    """The constraint takes more effort to follow than a step may."""

    code = GrammarTooComplexError.code
