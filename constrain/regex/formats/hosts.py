"""Host names, addresses and mailboxes as regular languages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ..language import Language
from ..parse.patterns import parse_whole

_AT, _DOT = Language.literal("@"), Language.literal(".")
_LONG, _SHORT = 63, 30
"""Of labels, in characters; names have at most 253."""

_TEXT = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_QUOTED = r"[ !#-\[\]-~]|\\[ -~]"
_BEYOND_ASCII = r"\x80-\u{10ffff}"
_LETTER = r"[A-Za-z0-9\xc0-\u1fff\u3005-\ud7a3]"


@cache
def ipv4() -> Language:
    """Four numbers without leading zeros."""
    octet = parse_whole("25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9]")
    return (octet + Language.literal(".")).repeat(3, 3) + octet


@cache
def ipv6(most: int = 7) -> Language:
    """All forms of RFC 4291, without a zone; at most `most` groups stand beside a `::`."""
    group, colon = parse_whole("[0-9A-Fa-f]{1,4}"), Language.literal(":")
    last, then = (group + colon + group) | ipv4(), group + colon
    forms = [then.repeat(6, 6) + last]
    for before in range(most + 1):
        left = group + (colon + group).repeat(before - 1, before - 1) if before else Language.EPSILON
        after = [Language.EPSILON, group] if most > before else [Language.EPSILON]
        if most - before >= 2:
            after.append(then.repeat(0, most - before - 2) + last)
        forms.append(left + colon + colon + Language.union(after))
    return Language.union(forms)


@cache
def hostname() -> Language:
    """Names of RFC 1123, but for labels in Punycode: only decoding them says whether they are right."""
    return names(_plain_label)


@cache
def email() -> Language:
    """A `Mailbox` of RFC 5321."""
    many, few = rf"{_TEXT}(?:\.?{_TEXT}){{0,31}}", rf"{_TEXT}{{1,31}}\.{_TEXT}{{1,32}}|{_TEXT}{{1,64}}"
    local = parse_whole(rf'{many}|{few}|"(?:{_QUOTED}){{0,31}}"')
    literal = Language.literal("[") + (ipv4() | (Language.literal("IPv6:") + ipv6(6))) + Language.literal("]")
    return local + _AT + (names(_label) | literal)


@cache
def idn_email() -> Language:
    """Mailboxes of RFC 6531; where not ASCII they are short, as the limits are in bytes."""
    text = f"(?:{_TEXT}|[{_BEYOND_ASCII}])"
    local = parse_whole(rf'{text}(?:\.?{text}){{0,12}}|"(?:{_QUOTED}|[{_BEYOND_ASCII}]){{0,15}}"')
    domain = parse_whole(rf"{_LETTER}(?:[.-]?{_LETTER}){{0,15}}")
    return email() | (local + _AT + (names(_label) | domain))


def names(label: Callable[[int], Language]) -> Language:
    """Names of up to four labels, or of up to eight that are shorter: by counting characters masks would be slow."""
    few = (label(_LONG) + _DOT).repeat(0, 2) + (label(_LONG) | (label(_LONG) + _DOT + label(_LONG - 2)))
    return few | ((label(_SHORT) + _DOT).repeat(0, 7) + label(_SHORT))


@cache
def _label(longest: int) -> Language:
    """At most so many letters, digits and inner hyphens."""
    return parse_whole(f"[A-Za-z0-9](?:[A-Za-z0-9-]{{0,{longest - 2}}}[A-Za-z0-9])?")


@cache
def _plain_label(longest: int) -> Language:
    """The same, but for what begins with `xn--`."""
    after = [f"(?:[A-Za-z0-9-]{{0,{longest - length - 1}}}[A-Za-z0-9])" for length in range(5)]
    text = f"[A-WYZa-wyz0-9]{after[1]}?"
    text += f"|[Xx](?:[A-Za-z0-9]|[A-MO-Za-mo-z0-9-]{after[2]}"
    text += f"|[Nn](?:[A-Za-z0-9]{after[3]}?|-[A-Za-z0-9]{after[4]}?))?"
    return parse_whole(text)


@cache
def unreserved_label(longest: int) -> Language:
    """The same, but for what has hyphens in its third and fourth place."""
    text = f"[A-Za-z0-9-](?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,{longest - 4}}}[A-Za-z0-9])?"
    text += f"|-[A-Za-z0-9](?:[A-Za-z0-9-]{{0,{longest - 5}}}[A-Za-z0-9])?)"
    return parse_whole(f"[A-Za-z0-9](?:[A-Za-z0-9]|{text})?")
