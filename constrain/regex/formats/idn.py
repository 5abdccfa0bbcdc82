"""Internationalised host names (RFC 5890 to 5893) of the most used alphabets, as a regular language."""

from __future__ import annotations

from functools import cache

from ..language import Language
from ..parse.patterns import parse_whole
from .hosts import names, unreserved_label

LONGEST_LABEL = 13
"""A label of so many characters is shorter than 63 in Punycode, and a name of four of them shorter than 254."""

_LEFT = (
    r"a-z\xdf-\xf6\xf8-\xff\u03ac-\u03ce\u0430-\u045f\u0561-\u0586\u0904-\u0939\u0985-\u098c\u0e01-\u0e30\u0e32"
    r"\u0e40-\u0e46\u0f0b\u10d0-\u10fa\u3005-\u3007\u3041-\u3096\u309d\u309e\u30a1-\u30fa\u30fc-\u30fe"
    r"\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
)
"""Letters, written from the left, that are allowed in every place."""

_MARKS = r"\u0900-\u0903\u093a-\u093c\u093e-\u094d\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"
_DIGITS = r"0-9\u06f0-\u06f9"
_HEBREW = r"\u05d0-\u05ea"
_RIGHT = rf"{_HEBREW}\u0620-\u063f\u0641-\u064a\u0671-\u0674\u0679-\u06d3\u06fd\u06fe"
_RIGHT_MARKS = r"\u064b-\u065f"
_KANA_OR_HAN = r"\u3041-\u3096\u30a1-\u30fa\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff"

_JOINED = r"\u094d[\u200c\u200d][\u0904-\u0939]"
_BETWEEN = r"l\xb7l|[\u03ac-\u03ce]\u0375[\u03ac-\u03ce]"
"""What is allowed only beside certain characters: joiners, the middle dot, the keraia; they bring these with them."""

_DOT = r"[.\u3002\uff0e\uff61]"


@cache
def idn_hostname() -> Language:
    """Names in which each label is ASCII or a U-label; narrower than the standard in length and in alphabets."""
    latin = parse_whole("[a-z](?:-?[a-z0-9])*")
    return names(unreserved_label) | _name(_left_label()) | _name(_right_label() | latin)


def _name(label: Language) -> Language:
    short = label & Language.length(1, LONGEST_LABEL)
    return short + (parse_whole(_DOT) + short).repeat(0, 3)


def _left_label() -> Language:
    """A label without letters written from the right."""
    first = rf"(?:[{_LEFT}{_DIGITS}]|{_BETWEEN})"
    part = rf"(?:[{_LEFT}{_DIGITS}{_MARKS}]|{_BETWEEN}|{_JOINED})"
    japanese = rf"[\u30fb{_LEFT}]*[{_KANA_OR_HAN}][\u30fb{_LEFT}]*"
    return parse_whole(rf"{first}{part}*(?:-{first}{part}*)*|{japanese}")


def _right_label() -> Language:
    """A label of Hebrew or Arabic letters; digits are of one kind. No label beside it may begin with a digit."""
    letter = rf"(?:[{_RIGHT}{_RIGHT_MARKS}]|[{_HEBREW}][\u05f3\u05f4])"
    labels = [
        parse_whole(rf"(?:[{_RIGHT}]|[{_HEBREW}][\u05f3\u05f4])(?:{letter}|[{digits}]|-[{_RIGHT}{digits}])*")
        for digits in (_DIGITS, r"\u0660-\u0669")
    ]
    return Language.union(labels)
