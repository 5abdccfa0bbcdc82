"""Formats against what their standards allow, against the parsers of the standard library, and compiled."""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
import re
import uuid

import pytest

from bough.constrain import GrammarCompiler, Lark, Vocabulary
from bough.constrain.accepting import grammar_accepts
from bough.constrain.regex import formats
from bough.constrain.regex.language import Language
from bough.constrain.regex.terminal import to_terminal

_SAMPLES = {
    "color": ("#fff #00FFaa", "fff #ffff #ggg"),
    "date": ("2024-02-29 2000-02-29 0001-01-01 1999-12-31", "2023-02-29 1900-02-29 2024-04-31 24-01-01 2024-1-01"),
    "date-time": (
        "2024-02-29T12:00:00Z 2024-02-29t12:00:00.123456z 1998-12-31T15:59:60.5-08:00",
        "2024-02-30T12:00:00Z 2024-02-29 2024-02-29T12:00:00 2024-02-29T24:00:00Z 1998-12-31T22:59:60Z",
    ),
    "duration": ("P1Y2M3DT4H5M6S P2W PT1H P1DT12H", "P PT P1Y2D P1W1D PT0.5S 1D P1S"),
    "email": (
        'a@b.c joe.bloggs+x@mail.example.com j@[127.0.0.1] j@[IPv6:::1] ".."@b.c',
        "a @b.c a@ .a@b.c a..b@c.d a@b_c.d a@[127.0.0.300] a@-b.c",
    ),
    "hostname": (
        f"a a-b.c xa xn x-1 xn-1 a--b {'a' * 63} {'a' * 63}.com 1.2.3.4.5.6",
        f"-a a- a_b a. .a {'a' * 64} xn--a XN--b",
    ),
    "idn-email": ("실례@실례.테스트 a@b.c δοκιμή@example.com", "a 실례 실례@ @실례"),
    "idn-hostname": ("실례.테스트 a。b אב.גד l·l example.com", "a· -실례 실례- א1a 1.א"),
    "ipv4": ("0.0.0.0 255.255.255.255 10.20.30.4", "256.0.0.1 1.2.3 01.2.3.4 1.2.3.4.5"),
    "ipv6": (
        ":: ::1 1:: 1:2:3:4:5:6:7:8 1:2:3:4:5:6:7:: ::ffff:1.2.3.4 1::8",
        ":::  1 1:2:3:4:5:6:7 1::2::3 12345:: ::1.2.3",
    ),
    "iri": ("http://ƒøø.ßår/?∂éœ=πîx#πîüx urn:é", "é //é http://a\\b http://[é]"),
    "iri-reference": ("é /é //é ?é #é", "é\\ a[b"),
    "json-pointer": ("/ /a/b~0/~1 /%", "a /~ /~2 #"),
    "regex": (
        r"([abc])+\s+$ ^(a|b)*?[^-a-z\]]{2,3}$ (?<name>x) (?=a)b \cA []",
        r"( ) [z-a] a{2,1} \a (?P<n>a) * (?i)a [a",
    ),
    "relative-json-pointer": ("0 1# 12/a/b~0", "-1 01 0## /a 0/~"),
    "time": (
        "12:00:00Z 23:59:60+00:00 01:29:60+01:30 08:30:06.5-08:00",
        "12:00Z 24:00:00Z 12:00:00 23:58:60Z 23:59:60+01:00",
    ),
    "uri": (
        "http://a.b/c?d=e#f mailto:a@b urn:x:y a: ldap://[2001:db8::7]/c",
        "a /a //a http://é a:b%zz http://[::1 1a:b",
    ),
    "uri-reference": ("a /a //a ?a #a a:b ./a:b a%20", "a|b [::1] 1:b a%2 é"),
    "uri-template": ("a{b} {+a,b*,c:3} {?x} é %41", "{ {} {a {a:0} {a,} }"),
    "uuid": (
        "2eb8aa08-AA98-11ea-b4aa-73b441d16380",
        "2eb8aa08aa9811eab4aa73b441d16380 2eb8aa08-aa98-11ea-b4ga-73b441d16380",
    ),
}


def _language(name: str) -> Language:
    found = formats.language(name)
    assert found is not None
    return found


def test_every_format_has_samples_and_an_example() -> None:
    assert set(_SAMPLES) == {name for name in formats.NAMES if name not in ("host-name", "ip-address")}
    for name in formats.NAMES:
        assert _language(name).contains(formats.example(name))
    assert formats.language("int32") is None
    assert formats.outside("int32") is None


@pytest.mark.parametrize("name", sorted(_SAMPLES))
def test_samples(name: str) -> None:
    right, wrong = (texts.split() for texts in _SAMPLES[name])
    assert [text for text in right if not _language(name).contains(text)] == []
    assert [text for text in wrong if _language(name).contains(text)] == []


_LEFT_OUT = {
    "date": "0000-01-01",
    "date-time": "0000-01-01T00:00:00Z 2016-12-31T23:44:60-00:15",
    "email": f"a@{'.'.join('abcdefghijk')} {'aa.' * 16}a@b.c",
    "hostname": "xn--9n2bp8q.xn--9t4b11yi5a a.b.c.d.e.f.g.h.i.j",
    "idn-email": f"{'é' * 30}@é.é a@é｡é",
    "idn-hostname": "xn--4dbc5h ഒരു.com",
    "iri": "a:\U00040000",
    "iri-reference": "\U00040000",
    "regex": r"((((a)))) (?<n>a)\k<n>",
    "time": "23:44:60-00:15",
    "uri-template": "{=a}",
}


@pytest.mark.parametrize("name", sorted(formats.NAMES))
def test_what_is_outside_breaks_the_format(name: str) -> None:
    outside = formats.outside(name)
    assert outside is not None
    assert outside.disjoint(_language(name)) is not False
    assert (name in formats.NARROWED) == (outside != ~_language(name))
    right = _SAMPLES[name][0].split() if name in _SAMPLES else []
    for text in [*right, *_LEFT_OUT.get(name, "").split()]:
        assert not outside.contains(text)
    assert not any(_language(name).contains(text) for text in _LEFT_OUT.get(name, "").split())
    assert outside.contains(" \n") or name in ("regex", "json-pointer")


@pytest.mark.parametrize("name", sorted(_SAMPLES))
def test_nothing_may_follow_or_precede(name: str) -> None:
    for text in _SAMPLES[name][0].split():
        assert not _language(name).contains(f"{text}\n") or name in ("json-pointer", "relative-json-pointer", "regex")
        assert not _language(name).contains(f"\ud7ff\x00{text}") or name in ("json-pointer", "regex")


def _mutated(text: str, rng: random.Random) -> str:
    """`text` with some characters changed, left out or doubled."""
    characters = list(text)
    for _ in range(rng.randint(0, 3)):
        place = rng.randrange(len(characters) or 1)
        characters[place : place + rng.randint(0, 1)] = rng.choice([*text, *"0129:-.Tfg%", ""])
    return "".join(characters)


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text) is not None


def _is_address(text: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return "%" not in text


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


_ORACLES = {
    "date": _is_date,
    "ipv4": lambda text: _is_address(text, ipaddress.IPv4Address),
    "ipv6": lambda text: _is_address(text, ipaddress.IPv6Address),
    "uuid": _is_uuid,
}


@pytest.mark.parametrize("name", sorted(_ORACLES))
def test_they_agree_with_parsers(name: str) -> None:
    rng, language, oracle = random.Random(name), _language(name), _ORACLES[name]
    seeds = _SAMPLES[name][0].split()
    verdicts = []
    for _ in range(600):
        text = _mutated(rng.choice(seeds), rng)
        verdicts.append(language.contains(text))
        assert verdicts[-1] == oracle(text), text
    assert 30 < sum(verdicts) < 570


def test_every_date_of_four_centuries() -> None:
    language, day = _language("date"), datetime.date(1799, 12, 30)
    while day.year < 2201:
        assert language.contains(day.isoformat())
        day += datetime.timedelta(days=61)
    assert [
        year
        for year in (*range(1, 10_000, 97), *range(100, 10_000, 300))
        if language.contains(f"{year:04}-02-29") != (_is_leap(year))
    ] == []


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def test_leap_seconds_are_the_last_of_a_day_in_utc() -> None:
    language, accepted = _language("time"), 0
    for hour in range(24):
        for offset in range(-23, 24):
            text = f"{hour:02}:59:60{offset:+03}:00"
            assert language.contains(text) == ((hour - offset) % 24 == 23)
            accepted += language.contains(text)
    assert accepted == 47


def test_names_are_never_too_long() -> None:
    language, rng = _language("hostname"), random.Random(0)
    for _ in range(200):
        lengths = [rng.choice((1, 2, 14, 30, 31, 60, 61, 62, 63, 64)) for _ in range(rng.randint(1, 10))]
        text = ".".join("a" * length for length in lengths)
        if language.contains(text):
            assert len(text) <= 253
            assert max(lengths) <= 63
        elif len(lengths) <= 3:
            assert max(lengths) > 63


@pytest.mark.parametrize("name", sorted(set(_SAMPLES) - {"idn-email", "idn-hostname", "iri-reference"}))
def test_they_compile_to_what_they_say(name: str, compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = compiler.compile(Lark(f"start: TEXT\nTEXT: {to_terminal(_language(name))}"))
    right, wrong = (texts.split() for texts in _SAMPLES[name])
    assert [text for text in right if not grammar_accepts(grammar, json.dumps(text), vocabulary)] == []
    assert [text for text in wrong if grammar_accepts(grammar, json.dumps(text), vocabulary)] == []
