"""Says what is wrong with a finished JSON value, by its schema: the judge of what no mask can enforce."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import jsonschema
import regex
from jsonschema import FormatChecker, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import SPECIFICATIONS, extend, validator_for
from referencing.exceptions import Unresolvable

from ..errors import GrammarTooComplexError, InvalidSchemaError, UnsupportedKeywordError, cut, quoted
from ..receipt import Violation
from .parse import pointer_to, value_key

MAX_VIOLATIONS = 20
MAX_MESSAGE = 300
MAX_DIGITS = 5_000
"""Digits of a number that is still looked at: arithmetic on more could take very long."""
REGEX_TIMEOUT_S = 2.0

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)
"""End of the check that is under way; validators are made anew for each place, so that they cannot hold it."""


def violations(
    schema_text: str, value_text: str, *, formats: Iterable[str] = (), timeout_s: float = math.inf
) -> list[Violation]:
    """Lists violations in the JSON text of a value, at most `MAX_VIOLATIONS`; empty if it satisfies the schema.

    The draft is the one that `$schema` names, else 2020-12. References lead to places in the schema; nothing is
    fetched. Numbers are exact: 0.3 is a multiple of 0.1. Of `format` the names in `formats` are looked at.

    Raises:
        InvalidSchemaError: the schema is not one, or a reference leads nowhere.
        GrammarTooComplexError: its references do not end, a pattern takes too long, or all of it more than `timeout_s`
            of the processor's time.
    """
    try:
        schema = json.loads(schema_text, parse_float=_decimal)
    except ValueError as error:
        raise InvalidSchemaError(f"the schema is not JSON: {error}") from None
    try:
        value = json.loads(value_text, parse_float=_decimal, parse_constant=_refuse)
    except ValueError as error:
        return [Violation("", f"the text is not JSON: {error}")]
    before = _deadline.set(time.thread_time() + timeout_s)
    try:
        found = validator(schema, frozenset(formats)).iter_errors(value)
        return [_violation(error) for error, _ in zip(found, range(MAX_VIOLATIONS), strict=False)]
    except Unresolvable as error:
        raise InvalidSchemaError(f"a reference has no target: {quoted(error.ref)}") from None
    except RecursionError:
        raise GrammarTooComplexError("checking the value does not end: references form a cycle") from None
    except re.error as error:  # of `unevaluatedProperties`, which looks at patterns by itself
        raise UnsupportedKeywordError("patternProperties", reason=f"it cannot be checked: {cut(str(error))}") from None
    except _LateError:
        raise GrammarTooComplexError("checking the value takes too long") from None
    except TimeoutError:
        raise GrammarTooComplexError("a pattern takes too long on the value") from None
    finally:
        _deadline.reset(before)


def validator(schema: Any, formats: frozenset[str] = frozenset()) -> Validator:
    """A validator for `schema` as a value, of the draft that it names."""
    default = jsonschema.Draft202012Validator
    base = validator_for(schema, default=default) if isinstance(schema, dict) else default
    kind = _extended(base)
    # Of documents other than the schema itself only the standard's own are known; nothing can be fetched.
    return kind(schema, registry=SPECIFICATIONS, format_checker=_format_checker(formats))


@lru_cache(maxsize=16)
def _extended(base: type[Validator]) -> type[Validator]:
    """`base` with exact numbers, ECMA's regular expressions, and `1.0` an integer in each draft."""
    types = base.TYPE_CHECKER.redefine_many({"integer": _is_integer, "number": _is_number})
    keywords = {"pattern": _pattern, "patternProperties": _pattern_properties}
    keywords |= {"multipleOf": _multiple_of, "uniqueItems": _unique_items}
    known = {name: check for name, check in keywords.items() if name in base.VALIDATORS}
    additional = base.VALIDATORS.get("additionalProperties")
    if additional is not None:
        known["additionalProperties"] = _additional_properties
    timed = {name: _timed(check) for name, check in {**base.VALIDATORS, **known}.items()}
    return extend(base, validators=timed, type_checker=types)  # type: ignore[no-any-return]


class _LateError(TimeoutError):
    """The time for a value is over."""


def _timed(check: Callable[..., Any]) -> Callable[..., Any]:
    """A keyword's check that looks at the time first."""

    def timed(validator: Validator, wanted: Any, value: Any, schema: Any) -> Any:
        if time.thread_time() > _deadline.get():
            raise _LateError
        return check(validator, wanted, value, schema)

    return timed


def _format_checker(formats: frozenset[str]) -> FormatChecker | None:
    known = formats & FormatChecker.checkers.keys()
    return FormatChecker(formats=sorted(known)) if known else None


def _violation(error: ValidationError) -> Violation:
    where = pointer_to("", *error.absolute_path)
    by = pointer_to("", *error.absolute_schema_path)
    return Violation(where, f"{error.message[:MAX_MESSAGE]} (by {by[:MAX_MESSAGE]})")


# Numbers


class _Exact(Decimal):
    """A number with a point or an exponent, which a message shows as it is."""

    __repr__ = Decimal.__str__


def _decimal(text: str) -> Decimal:
    value = _Exact(text)
    if value and abs(value.adjusted()) > MAX_DIGITS:
        raise ValueError(f"the number {text[:40]} is out of range")
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _is_number(_: object, value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _is_integer(checker: object, value: object) -> bool:
    return _is_number(checker, value) and value == int(value)  # type: ignore[call-overload]


def _multiple_of(validator: Validator, divisor: int | Decimal, value: Any, schema: object) -> Iterator[ValidationError]:
    if validator.is_type(value, "number") and Fraction(value) % Fraction(divisor) != 0:
        yield ValidationError(f"{value} is not a multiple of {divisor}")


def _unique_items(validator: Validator, wanted: Any, value: Any, schema: object) -> Iterator[ValidationError]:
    if wanted and validator.is_type(value, "array"):
        keys = {value_key(item, _exact_key) for item in value}
        if len(keys) < len(value):
            yield ValidationError(f"{repr(value[:100])[:MAX_MESSAGE]} has non-unique elements")


def _exact_key(value: int | Decimal) -> str:
    """The number with one digit before the point, no zeros at the end, and its exponent; exact."""
    if not value:
        return "0"
    digits, _, exponent = format(Decimal(value), "E").partition("E")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}E{exponent}"


# Regular expressions


def _matches(pattern: str, text: str) -> bool:
    found = compile_pattern(pattern)
    if found is None:  # it is not the value's fault: whether it can be kept is decided before generation
        return True
    left_s = _deadline.get() - time.thread_time()
    if left_s <= 0:
        raise _LateError
    return found.search(text, timeout=min(REGEX_TIMEOUT_S, left_s)) is not None


@lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> regex.Pattern[str] | None:
    """An ECMA-262 pattern for Python; None if it cannot be said there."""
    try:
        return regex.compile(_translate(pattern), regex.VERSION0)
    except regex.error:
        return None


_SPACE = r" \t\n\v\f\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACE}
_BOUNDARY = r"(?:(?<=[0-9A-Za-z_])(?![0-9A-Za-z_])|(?<![0-9A-Za-z_])(?=[0-9A-Za-z_]))"
_ESCAPES = regex.compile(
    r"\\(?:u\{(?P<hex>[0-9A-Fa-f]{1,6})\}|c(?P<control>[A-Za-z])|(?P<char>.))"
    r"|(?P<open>\[\^?)(?P<literal>\])?|(?P<close>\])|(?P<end>\$)|(?P<dot>\.)",
    regex.DOTALL,
)


def _translate(pattern: str) -> str:
    r"""`\d`, `\w`, `\s`, `.` and `$` mean less in ECMA-262 than in Python; `[]` and `[^]` are classes there."""
    within = False

    def replaced(match: regex.Match[str]) -> str:
        nonlocal within
        if match["hex"] or match["control"]:
            code = int(match["hex"], 16) if match["hex"] else ord(match["control"]) % 32
            return str(regex.escape(chr(code)))
        if match["char"]:
            return _escape(match["char"], within=within)
        if match["open"] and not within:
            if match["literal"]:
                return r"[\s\S]" if match["open"] == "[^" else r"(?!)"
            within = True
        elif match["open"]:
            within = not match["literal"]
            return "\\" + str(match[0])  # a bracket in a class stands for itself
        elif match["close"]:
            within = False
        elif match["end"] and not within:
            return r"\Z"
        elif match["dot"] and not within:
            return r"[^\n\r\u2028\u2029]"
        return str(match[0])

    return str(_ESCAPES.sub(replaced, pattern))


def _escape(char: str, *, within: bool) -> str:
    if char.lower() in _CLASSES:
        listed = _CLASSES[char.lower()]
        if char.islower():
            return listed if within else f"[{listed}]"
        # The complement cannot be written inside a class as a list; it is its two sides.
        return _complement(char) if within else f"[^{listed}]"
    if char in "bB" and not within:
        return _BOUNDARY if char == "b" else f"(?!{_BOUNDARY})"
    return "\\" + char if char in "bfnrtvxu0pP123456789" or not char.isalnum() else char


def _complement(char: str) -> str:
    return {
        "D": r"\x00-/:-\U0010ffff",
        "W": r"\x00-/:-@\[-\^`\{-\U0010ffff",
        "S": r"\x00-\x08\x0e-\x1f!-\u009f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff"
        r"\u3001-\ufefe\uff00-\U0010ffff",
    }[char]


def _pattern(validator: Validator, pattern: str, value: Any, schema: object) -> Iterator[ValidationError]:
    if validator.is_type(value, "string") and not _matches(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Validator, patterns: dict[str, Any], value: Any, schema: object
) -> Iterator[ValidationError]:
    if validator.is_type(value, "object"):
        for pattern, subschema in patterns.items():
            for name, item in value.items():
                if _matches(pattern, name):
                    yield from validator.descend(item, subschema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Validator, additional: Any, value: Any, schema: dict[str, Any]
) -> Iterator[ValidationError]:
    if not validator.is_type(value, "object"):
        return
    patterns = schema.get("patternProperties", {})
    for name, item in value.items():
        if name in schema.get("properties", {}) or any(_matches(pattern, name) for pattern in patterns):
            continue
        if additional is False:
            yield ValidationError(f"the property {name!r} is not allowed")
        else:
            yield from validator.descend(item, additional, path=name)
