"""Lines of a key file: rights and limits, and what is wrong with them, without the key."""

from __future__ import annotations

import pytest

from bough.server.config import KeyLimits
from bough.server.http.keys import parse_keys

SECRET = "sk-0123456789abcdef"


def test_rights_and_limits_come_after_the_key() -> None:
    line = (
        f"team {SECRET} metrics urgent requests_per_minute=60 tokens_per_minute=200000 concurrent_requests=8 "
        "body_bytes=1000000 tools=search,add programs= expires=2027-01-31"
    )
    (key,) = parse_keys([line])
    assert (key.name, key.admin, key.metrics, key.urgent) == ("team", False, True, True)
    assert key.limits == KeyLimits(
        requests_per_minute=60,
        tokens_per_minute=200_000,
        concurrent_requests=8,
        body_bytes=1_000_000,
        tools=("search", "add"),
        programs=(),
        expires=1_801_353_600.0,
    )


def test_a_key_alone_has_the_usual_limits() -> None:
    assert parse_keys([f"team {SECRET}"])[0].limits == KeyLimits() == parse_keys([SECRET])[0].limits


def test_a_key_has_a_weight() -> None:
    light, heavy, bounded = parse_keys(
        [f"a {SECRET}a", f"b {SECRET}b weight=100", f"c {SECRET}c weight=3 body_bytes=9"]
    )
    assert [key.weight for key in (light, heavy, bounded)] == [1, 100, 3]
    assert bounded.limits == KeyLimits(body_bytes=9)


@pytest.mark.parametrize("moment", ["2027-01-31T00:00", "2027-01-31T00:00Z", "2027-01-31T02:00+02:00"])
def test_a_moment_without_a_zone_is_utc(moment: str) -> None:
    assert parse_keys([f"team {SECRET} expires={moment}"])[0].limits.expires == 1_801_353_600.0


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("root", "admin, metrics, urgent"),
        ("admin=yes", "admin, metrics, urgent"),
        ("rpm=60", "limits are requests_per_minute, tokens_per_minute"),
        ("requests_per_minute", "limits are requests_per_minute"),
        ("requests_per_minute=6 requests_per_minute=7", "each once"),
        ("requests_per_minute=0", "requests_per_minute is a number above 0"),
        ("tokens_per_minute=-5", "tokens_per_minute is a number above 0"),
        ("concurrent_requests=many", "concurrent_requests is a number above 0"),
        ("body_bytes=" + "9" * 5000, "body_bytes is a number above 0"),
        ("weight=0", "weight is a number from 1 to 100"),
        ("weight=101", "weight is a number from 1 to 100"),
        ("weight=2.5", "weight is a number from 1 to 100"),
        ("weight=2 weight=2", "each once"),
        ("expires=tomorrow", "expires is a day or a moment"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(rest: str, told: str) -> None:
    with pytest.raises(ValueError, match=r"line 2 of the API keys: ") as caught:
        parse_keys(["# people", f"team {SECRET} {rest}"])
    assert told in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "rest",
    ["admin", "metrics urgent", "requests_per_minute=600", "tools=", "rpm=60", "Admin", "weight=2 admin"],
)
def test_what_follows_a_key_without_a_name_is_no_key(rest: str) -> None:
    with pytest.raises(ValueError, match="a key with options needs a name before it") as caught:
        parse_keys([f"{SECRET} {rest}"])
    assert SECRET not in str(caught.value)


def test_a_key_may_end_like_base64() -> None:
    (key,) = parse_keys(["team c2stMDEyMzQ1Njc4OQ=="])
    assert key.name == "team"
