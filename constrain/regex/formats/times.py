"""Dates, times and durations of RFC 3339 as regular languages."""

from __future__ import annotations

from functools import cache

from ..language import Language
from ..parse.patterns import parse_whole

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    "(?:(?!0000)[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR, _MINUTE = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]+)?"
_DAY_PART = "(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
_TIME_PART = "T(?:[0-9]+S|[0-9]+M(?:[0-9]+S)?|[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?)"


@cache
def date() -> Language:
    """`full-date`, without the year 0, which many readers do not have."""
    return parse_whole(_DATE)


@cache
def time() -> Language:
    """`full-time`; a second 60 only in the last minute of a day in UTC."""
    ordinary = parse_whole(f"{_HOUR}:{_MINUTE}:{_MINUTE}{_FRACTION}(?:[Zz]|[+-]{_HOUR}:{_MINUTE})")
    return ordinary | _leap_seconds()


@cache
def date_time() -> Language:
    """`date-time`."""
    return date() + parse_whole("[Tt]") + time()


@cache
def duration() -> Language:
    """`duration` of appendix A."""
    return parse_whole(f"P(?:[0-9]+W|{_DAY_PART}(?:{_TIME_PART})?|{_TIME_PART})")


def _leap_seconds() -> Language:
    """The times that an offset, of whole or of half hours, takes to 23:59:60."""
    fraction = parse_whole(_FRACTION)
    found = [parse_whole(f"23:59:60{_FRACTION}[Zz]")]
    for offset in range(24):
        for start, end in (
            (f"{(23 + offset) % 24:02}:59", f"+{offset:02}:00"),
            (f"{offset:02}:29", f"+{offset:02}:30"),
            (f"{23 - offset:02}:59", f"-{offset:02}:00"),
            (f"{23 - offset:02}:29", f"-{offset:02}:30"),
        ):
            found.append(Language.literal(f"{start}:60") + fraction + Language.literal(end))
    return Language.union(found)
