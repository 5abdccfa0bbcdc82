"""Regular languages of Unicode texts: cheap to build and combine, decided on request within a budget."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from . import algebra as language_algebra
from . import decisions
from .algebra import Intersection, Node, Words
from .charsets import ALL, CharSet
from .decisions import OutOfBudgetError

BUDGET = 20_000
"""Derivatives that a decision may take, some 0.2 s at most."""
MAX_FILTERED = 64
"""A list of up to this many texts is filtered as soon as it is intersected."""


class Language:
    """A set of texts of code points. Equal structure is equal, whatever way it was built.

    A text with a surrogate is in no language, not even in `ANY`: it has no encoding.

    What a decision returns as None was not decided within its budget.
    """

    __slots__ = ("node",)

    ANY: Language
    EMPTY: Language
    EPSILON: Language

    def __init__(self, node: Node) -> None:
        self.node = node

    @staticmethod
    def literal(text: str) -> Language:
        """`text` alone."""
        return Language(language_algebra.words((text,)))

    @staticmethod
    def one_of(texts: Iterable[str]) -> Language:
        """Exactly `texts`."""
        return Language(language_algebra.words(texts))

    @staticmethod
    def length(low: int, high: int | None = None) -> Language:
        """The texts of `low` to `high` code points (None: no bound); none at all if `high` is less than `low`."""
        if high is not None and high < low:
            return Language.EMPTY
        return Language(language_algebra.repeat(language_algebra.chars(ALL), max(low, 0), high))

    @staticmethod
    def chars(members: CharSet) -> Language:
        """The texts of one character of `members`."""
        return Language(language_algebra.chars(members))

    @staticmethod
    def union(languages: Iterable[Language]) -> Language:
        """The texts of any of `languages`."""
        return Language(language_algebra.union(language.node for language in languages))

    @staticmethod
    def intersection(languages: Iterable[Language]) -> Language:
        """The texts of all of `languages`."""
        node = language_algebra.intersection(language.node for language in languages)
        if isinstance(node, Intersection):
            for item in node.items:
                if isinstance(item, Words) and len(item.texts) <= MAX_FILTERED:
                    return Language.one_of(text for text in item.texts if decisions.matches(node, text))
        return Language(node)

    def __and__(self, other: Language) -> Language:
        return Language.intersection((self, other))

    def __or__(self, other: Language) -> Language:
        return Language(language_algebra.union((self.node, other.node)))

    def __invert__(self) -> Language:
        return Language(language_algebra.complement(self.node))

    def __sub__(self, other: Language) -> Language:
        return self & ~other

    def __add__(self, other: Language) -> Language:
        return Language(language_algebra.concat((self.node, other.node)))

    def repeat(self, low: int, high: int | None = None) -> Language:
        """Words of `low` to `high` (None: no bound) words of this one. Raises ValueError unless 0 <= low <= high."""
        return Language(language_algebra.repeat(self.node, low, high))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Language) and self.node is other.node

    def __hash__(self) -> int:
        return hash(self.node)

    def __repr__(self) -> str:
        return f"Language({self.node!r})"

    @property
    def finite_texts(self) -> tuple[str, ...] | None:
        """The texts, sorted, if the language is built as a list of them; else None, though it may be finite."""
        return self.node.texts if isinstance(self.node, Words) else None

    def contains(self, text: str) -> bool:
        """`text` is in the language."""
        return decisions.matches(self.node, text)

    def is_empty(self, budget: int = BUDGET) -> bool | None:
        """Tells whether the language has no text."""
        return _is_empty(self.node, budget)

    def sample(self, budget: int = BUDGET) -> str | None:
        """Some text that is found when `is_empty` is decided; None if there is none, or none was found so."""
        return decisions.sample(self.node, budget)

    def disjoint(self, other: Language, budget: int = BUDGET) -> bool | None:
        """Tells whether no text is in both."""
        return (self & other).is_empty(budget)

    def subset_of(self, other: Language, budget: int = BUDGET) -> bool | None:
        """Every text of this language is in `other`."""
        return (self & ~other).is_empty(budget)

    def strings(self, limit: int, budget: int = BUDGET) -> list[str] | None:
        """All texts, sorted, if there are at most `limit`; None if there are more, or if it was not decided."""
        try:
            return decisions.enumerate_words(self.node, limit, budget)
        except OutOfBudgetError:
            return None

    def shortest(self, budget: int = BUDGET) -> str | None:
        """A shortest text, of letters and digits where it can be; None if there is none, or if it was not decided."""
        try:
            return decisions.shortest(self.node, budget)
        except OutOfBudgetError:
            return None

    def bounds(self) -> tuple[int, int | None]:
        """Bounds on the length of a text in code points; they hold, but need not be tight (None: no bound)."""
        return self.node.minimum, self.node.maximum


@lru_cache(maxsize=4_096)
def _is_empty(node: Node, budget: int) -> bool | None:
    """Schemas ask it of the same ones again and again."""
    try:
        return decisions.is_empty(node, budget)
    except OutOfBudgetError:
        return None


Language.ANY = Language(language_algebra.ANY)
Language.EMPTY = Language(language_algebra.EMPTY)
Language.EPSILON = Language(language_algebra.EPSILON)
