"""Constraints on generated text: specs, the compiler that turns them into grammars, and matchers that mask tokens.

A name is imported when it is first used, so that a client that only sends constraints loads no compiler.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .accepting import accepts, grammar_accepts
    from .compiler import GrammarCompiler
    from .errors import GrammarError, GrammarTooComplexError, InvalidSchemaError, MatcherError, UnsupportedKeywordError
    from .matchers.interface import Grammar, Matcher
    from .spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural, Tag
    from .vocabulary.vocabulary import MaskRow, Vocabulary

__all__ = [
    "Choice",
    "Gbnf",
    "Grammar",
    "GrammarCompiler",
    "GrammarError",
    "GrammarSpec",
    "GrammarTooComplexError",
    "InvalidSchemaError",
    "JsonSchema",
    "Lark",
    "MaskRow",
    "Matcher",
    "MatcherError",
    "Regex",
    "Structural",
    "Tag",
    "UnsupportedKeywordError",
    "Vocabulary",
    "accepts",
    "grammar_accepts",
]

_HOMES = {
    "accepting": ("accepts", "grammar_accepts"),
    "compiler": ("GrammarCompiler",),
    "errors": (
        "GrammarError",
        "GrammarTooComplexError",
        "InvalidSchemaError",
        "MatcherError",
        "UnsupportedKeywordError",
    ),
    "matchers.interface": ("Grammar", "Matcher"),
    "spec": ("Choice", "Gbnf", "GrammarSpec", "JsonSchema", "Lark", "Regex", "Structural", "Tag"),
    "vocabulary.vocabulary": ("MaskRow", "Vocabulary"),
}

if not TYPE_CHECKING:  # hidden from type checkers: to them it would make every misspelt name an object

    def __getattr__(name: str) -> object:
        home = next((module for module, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{home}", __name__), name)
        globals()[name] = value
        return value
