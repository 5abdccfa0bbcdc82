"""Which values of `format` are enforced, and how: the rest are annotations, as the standard has it by default."""

from __future__ import annotations

NATIVE = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})
"""Formats that the grammar compiler knows."""

_CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_PATH = rf"(?:/?{_CHARACTER}+(?:/{_CHARACTER}*)*|/)"
_QUERY = rf"(?:\?(?:{_CHARACTER}|[/?])*)?"
_FRAGMENT = rf"(?:#(?:{_CHARACTER}|[/?])*)?"

PATTERNS = {
    "json-pointer": r"^(?:/(?:[^~/]|~[01])*)*$",
    "relative-json-pointer": r"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)$",
    "uri-reference": rf"^{_PATH}?{_QUERY}{_FRAGMENT}$",
    "iri-reference": rf"^{_PATH}?{_QUERY}{_FRAGMENT}$",
    "uri-template": rf"^(?:{_CHARACTER}|[/?#]|\{{[A-Za-z0-9_]+\}})*$",
    "regex": r"^[A-Za-z0-9_ -]*$",
}
"""Patterns for standard formats that it does not know. They may be narrower than the format, never wider."""

SYNONYMS = {"idn-email": "email", "idn-hostname": "hostname", "iri": "uri"}
"""Formats that hold every value of a narrower one."""
