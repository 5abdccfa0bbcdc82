"""The values of `format` that are enforced, as regular languages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ..language import Language
from ..parse.patterns import parse_whole
from . import hosts as format_hosts
from . import regexes as format_syntax
from . import times as format_times
from . import uris as format_uris
from .idn import idn_hostname


def _pattern(text: str) -> Callable[[], Language]:
    return lambda: parse_whole(text)


_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_FORMATS: dict[str, tuple[Callable[[], Language], str]] = {
    "color": (_pattern("#(?:[0-9A-Fa-f]{3}|[0-9A-Fa-f]{6})"), "#000"),
    "date": (format_times.date, "2000-01-01"),
    "date-time": (format_times.date_time, "2000-01-01T00:00:00Z"),
    "duration": (format_times.duration, "P1D"),
    "email": (format_hosts.email, "a@b.c"),
    "hostname": (format_hosts.hostname, "a"),
    "idn-email": (format_hosts.idn_email, "a@b.c"),
    "idn-hostname": (idn_hostname, "a"),
    "ipv4": (format_hosts.ipv4, "0.0.0.0"),
    "ipv6": (format_hosts.ipv6, "::"),
    "iri": (format_uris.iri, "a:"),
    "iri-reference": (format_uris.iri_reference, ""),
    "json-pointer": (_pattern(_POINTER), ""),
    "regex": (format_syntax.regex, ""),
    "relative-json-pointer": (_pattern(f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})"), "0"),
    "time": (format_times.time, "00:00:00Z"),
    "uri": (format_uris.uri, "a:"),
    "uri-reference": (format_uris.uri_reference, ""),
    "uri-template": (format_uris.uri_template, ""),
    "uuid": (_pattern("[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"), "00000000-0000-0000-0000-000000000000"),
}
_OLD_NAMES = {"host-name": "hostname", "ip-address": "ipv4"}

NAMES = frozenset((*_FORMATS, *_OLD_NAMES))
"""The formats that are enforced. All others are annotations, as the standard has it."""

_BOUNDS = {
    "date": "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "date-time": "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9:.+Zz-]+",
    "email": r"[ -~]+@[!-~]+",
    "hostname": "[A-Za-z0-9.-]+",
    "idn-email": r"[^\x00-\x1f]+@[^\x00-\x20]+",
    "idn-hostname": r"[^\x00-,/:-@\[-`{-\x7f]+",
    "iri": r"[A-Za-z][A-Za-z0-9+.-]*:[^\x00-\x20<>\x7f]*",
    "iri-reference": r"[^\x00-\x20<>\x7f]*",
    "regex": r"[\s\S]*",
    "time": "[0-9]{2}:[0-9]{2}:[0-9.]+(?:[Zz]|[+-][0-9:]{5})",
    "uri-template": r"[^\x00-\x20<>\x7f]*",
}
"""Of the formats that have texts which `language` leaves out: what holds them all."""

ONLY_DRAFT_3 = frozenset({"color", "host-name", "ip-address"})
SINCE = {
    **dict.fromkeys(("json-pointer", "uri-reference", "uri-template"), 6),
    **dict.fromkeys(("date", "time", "idn-email", "idn-hostname", "iri", "iri-reference", "regex"), 7),
    "relative-json-pointer": 7,
    **dict.fromkeys(("duration", "uuid"), 2019),
}
"""The drafts that brought a format; those that are not named here have been there since draft 4."""

NARROWED = frozenset(name for name in NAMES if _OLD_NAMES.get(name, name) in _BOUNDS)
"""Formats that have texts which `language` leaves out, so that its complement is not what breaks the format."""


@cache
def language(name: str) -> Language | None:
    """The texts of a format; None if its name is unknown, so that it is an annotation."""
    found = _FORMATS.get(_OLD_NAMES.get(name, name))
    return None if found is None else found[0]()


@cache
def outside(name: str) -> Language | None:
    """Texts that are not of a format: all of them, unless it is one of `NARROWED`; None if its name is unknown."""
    bound = _BOUNDS.get(_OLD_NAMES.get(name, name))
    found = language(name) if bound is None else parse_whole(bound)
    return None if found is None else ~found


def example(name: str) -> str:
    """A short text of a known format. Raises KeyError for others."""
    return _FORMATS[_OLD_NAMES.get(name, name)][1]
