"""Constraints that are regular: patterns that people ask for, each with texts that match it and texts that do not."""

from __future__ import annotations

from .cases import Case, Instance

_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_COUNTRIES = (
    *("Argentina", "Australia", "Austria", "Belgium", "Brazil", "Canada", "Chile", "China", "Colombia",
      "Denmark", "Egypt", "Finland", "France", "Germany", "Greece", "Hungary", "Iceland", "India", "Indonesia",
      "Ireland", "Israel", "Italy", "Japan", "Kenya", "Mexico", "Morocco", "Netherlands", "Norway", "Peru",
      "Poland", "Portugal", "Romania", "Spain", "Sweden", "Switzerland", "Thailand", "Tunisia", "Turkey",
      "Uganda", "Vietnam"),
)  # fmt: skip

PATTERNS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "date": (r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])", ("2026-11-21", "1999-01-31"), ("2026-13-01",)),
    "time": (r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?", ("23:59", "08:30:00"), ("24:00",)),
    "date and time": (
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-9]{2})",
        ("2026-11-21T08:30:00Z", "2026-11-21T08:30:00.25+01:00"),
        ("2026-11-21 08:30:00Z",),
    ),
    "day in words": (rf"(?:{_MONTHS}) [1-9][0-9]?, [0-9]{{4}}", ("November 21, 2026", "May 4, 1977"), ("Mai 4, 1977",)),
    "email": (
        r"[A-Za-z0-9._%+-]{1,32}@[A-Za-z0-9-]{1,32}(?:\.[A-Za-z]{2,8}){1,2}",
        ("jane.doe@example.com", "x@y.co.uk"),
        ("jane@",),
    ),
    "telephone": (r"\+?[1-9][0-9]{1,2}[ -]?[0-9]{3}[ -]?[0-9]{4}", ("+49 555 1234", "155 555 1234"), ("0123",)),
    "uuid": (
        r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        ("9b2d7f34-0c1e-4a5b-8d6f-7e8a9b0c1d2e",),
        ("9b2d7f34-0c1e-4a5b-8d6f",),
    ),
    "ipv4": (
        r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
        ("192.168.0.1", "255.255.255.255"),
        ("256.1.1.1",),
    ),
    "version": (r"(?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*)){2}(?:-[a-z]+)?", ("1.20.3", "0.1.0-beta"), ("1.2",)),
    "colour": (r"#[0-9a-fA-F]{6}", ("#d55e00", "#FFFFFF"), ("#d55e0",)),
    "integer": (r"-?(?:0|[1-9][0-9]{0,8})", ("0", "-12345", "987654321"), ("012",)),
    "number": (r"-?(?:0|[1-9][0-9]{0,5})(?:\.[0-9]{1,4})?", ("3.1416", "-0.5"), ("3.",)),
    "price": (r"\$[1-9][0-9]{0,2}(?:,[0-9]{3})*\.[0-9]{2}", ("$1,299.00", "$5.49"), ("$1299.0",)),
    "yes or no": (r"yes|no|maybe", ("yes", "maybe"), ("perhaps",)),
    "country": ("|".join(_COUNTRIES), ("Netherlands", "Chile", "Switzerland"), ("Neverland",)),
    "url": (
        r"https?://[a-z0-9-]{1,24}(?:\.[a-z]{2,6}){1,2}(?:/[a-z0-9_-]{1,16}){0,3}",
        ("https://example.com/docs/start", "http://a.io"),
        ("ftp://a.io",),
    ),
    "file": (r"(?:[a-z0-9_]{1,12}/){0,3}[a-z0-9_]{1,12}\.(?:py|rs|md|toml)", ("src/main.rs", "readme.md"), ("main.c",)),
    "name": (r"[A-Z][a-z]{1,14}(?: [A-Z][a-z]{1,14}){1,2}", ("Ada Lovelace", "Jean Luc Picard"), ("ada lovelace",)),
    "sentence": (r"[A-Z][a-z]{0,11}(?: [a-z]{1,12}){2,8}\.", ("The cat sat on the mat.",), ("the cat sat",)),
    "latex": (r"\\boxed\{-?[0-9]{1,6}(?:/[1-9][0-9]{0,3})?\}", (r"\boxed{42}", r"\boxed{-3/4}"), (r"\boxed{x}",)),
    "grade": (r"Grade: [A-F][+-]?\nReason: [A-Za-z ,]{10,60}\.", ("Grade: B+\nReason: clear, but short.",), ()),
    "hours": (r"(?:Mon|Tue|Wed|Thu|Fri) (?:[0-9]|1[0-2])(?:am|pm)", ("Mon 9am", "Fri 12pm"), ("Sun 9am",)),
    "greek": (r"[α-ω]{2,12}", ("λογος",), ("logos",)),
    "accents": (r"[A-Za-zÀ-ÿ' -]{2,24}", ("Zoë d'Été", "São Paulo"), ("北京",)),
}  # fmt: skip


REPEATS = 5
"""A server meets a pattern many times: most of its states have been visited before."""


def regular_cases() -> list[Case]:
    """A case for each pattern. Its schema is the pattern."""
    return [
        Case(
            "regular",
            name,
            pattern,
            tuple(Instance(text, text, valid) for texts, valid in ((matching, True), (others, False)) for text in texts)
            * REPEATS,
        )
        for name, (pattern, matching, others) in PATTERNS.items()
    ]


def choices(count: int) -> Case:
    """As many words to choose from, all of which begin like others."""
    words = [f"{country} {number}" for number in range(count // len(_COUNTRIES) + 1) for country in _COUNTRIES][:count]
    picked = tuple(Instance(word, word, True) for word in words[:: max(1, count // 8)])
    return Case("regular", f"{count} choices", "|".join(words), picked * REPEATS)
