"""Constraints on what is generated: specs, their compiler, and the token masks it makes."""

from .accepts import accepts, grammar_accepts
from .compiler import GrammarCompiler
from .errors import GrammarError, GrammarTooComplexError, InvalidSchemaError, MatcherError, UnsupportedKeywordError
from .grammar import Grammar, MaskRow, Matcher
from .masks import fill_along
from .spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural, Tag
from .vocabulary import Vocabulary

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
    "fill_along",
    "grammar_accepts",
]
