"""Constraints on what is generated: specs, their compiler, and the token masks it makes."""

from .accepts import accepts, grammar_accepts
from .compiler import GrammarCompiler
from .errors import GrammarError, GrammarTooComplexError, InvalidSchemaError, MatcherError, UnsupportedKeywordError
from .grammar import Grammar, MaskRow, Matcher
from .masks import MaskFiller, fill_masks
from .spec import Choice, GrammarSpec, JsonSchema, Lark, Regex
from .vocabulary import Vocabulary

__all__ = [
    "Choice",
    "Grammar",
    "GrammarCompiler",
    "GrammarError",
    "GrammarSpec",
    "GrammarTooComplexError",
    "InvalidSchemaError",
    "JsonSchema",
    "Lark",
    "MaskFiller",
    "MaskRow",
    "Matcher",
    "MatcherError",
    "Regex",
    "UnsupportedKeywordError",
    "Vocabulary",
    "accepts",
    "fill_masks",
    "grammar_accepts",
]
