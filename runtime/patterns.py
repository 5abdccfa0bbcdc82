"""Matches whole texts against regular expressions, in time linear in the text, with bounded automata."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache

from llguidance import LLMatcher, LLParserLimits

from ..constrain.errors import GrammarError
from ..constrain.lower import lower
from ..constrain.spec import Regex
from ..constrain.tokens import TokenTable
from ..constrain.vocabulary import Vocabulary
from .errors import EngineError, RequestError

MAX_PATTERN_CHARS = 1024
MAX_MATCHED_CHARS = 32_768
"""A text that is longer is not looked at: a character takes about a microsecond."""

MAX_KEPT = 256

_LIMITS = LLParserLimits(
    verbose_errors=False,
    initial_lexer_fuel=200_000,
    step_lexer_fuel=50_000,
    max_lexer_states=10_000,
    precompute_large_lexemes=False,
)


class Pattern:
    """A compiled regular expression, of the syntax that constrains what is generated. Not thread-safe.

    Raises:
        RequestError: it is none, or too large.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        if len(source) > MAX_PATTERN_CHARS:
            raise _refused(source, f"it has more than {MAX_PATTERN_CHARS} characters")
        try:
            grammar = lower(Regex(source)).source
        except (GrammarError, ValueError) as error:
            raise _refused(source, str(error)) from error
        self._start = LLMatcher(_bytes_table().tokenizer, grammar, log_level=0, limits=_LIMITS)
        if self._start.is_error():
            raise _refused(source, self._start.get_error())

    def matches(self, text: str) -> bool:
        """Whether it matches the whole of `text`.

        Raises:
            EngineError: the text is too long, or the pattern too complex for it.
        """
        if len(text) > MAX_MATCHED_CHARS:
            message = f"a text of {len(text)} characters is compared with the pattern {_shown(self._source)}, but "
            raise EngineError(f"{message}{MAX_MATCHED_CHARS} is the limit", code="condition_too_complex", param="ops")
        state = self._start.deep_copy()
        tokens = list(text.encode(errors="replace"))
        whole = state.try_consume_tokens(tokens) == len(tokens)
        if state.is_error():
            message = f"the pattern {_shown(self._source)} is too complex for the text it is compared with"
            raise EngineError(message, code="condition_too_complex", param="ops")
        return whole and state.is_accepting()


class PatternCache:
    """The patterns that were used last. Not thread-safe."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Pattern] = OrderedDict()

    def get(self, source: str) -> Pattern:
        """Raises RequestError."""
        found = self._found.get(source)
        if found is None:
            found = self._found[source] = Pattern(source)
            if len(self._found) > MAX_KEPT:
                self._found.popitem(last=False)
        self._found.move_to_end(source)
        return found


@cache
def _bytes_table() -> TokenTable:
    tokens = (*(bytes([byte]) for byte in range(256)), None)
    return TokenTable(Vocabulary(tokens, (256,), 257, lambda text: list(text.encode())))


def _refused(source: str, reason: str) -> RequestError:
    message = f"the pattern {_shown(source)} cannot be compiled: {' '.join(reason.split())[:300]}"
    return RequestError(message, code="invalid_pattern", param="ops")


def _shown(source: str) -> str:
    return repr(source if len(source) <= 100 else source[:100] + "...")
