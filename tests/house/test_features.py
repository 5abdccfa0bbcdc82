"""No feature is lost: the facade, the command line, HTTP, the wire's structs, against the record in `features.json`."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

import bough

from .features import RECORD, collect, merged

TAKEN_BY_REST = {
    "facade/Engine/generate": "its options are those of async_generate: tests/lang/sglang/test_engine.py asks for each",
}
"""Functions that now take options by `**others` which had names of their own."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text())


@pytest.fixture(scope="module")
def collected() -> dict[str, Any]:
    return collect()


def lost(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yields what `before` has and `now` lacks or has changed."""
    if isinstance(before, dict) and "places" in before and isinstance(now, dict):
        yield from lost_parameters(before, now, path)
    elif isinstance(before, dict) and isinstance(now, dict):
        for name, value in before.items():
            if name in now:
                yield from lost(value, now[name], f"{path}/{name}" if path else name)
            else:
                yield f"{path}/{name}"
    elif isinstance(before, list) and isinstance(now, list):
        yield from (f"{path}: {entry}" for entry in before if entry not in now)
    elif before != now:
        yield f"{path}: {before} became {now}"


def lost_parameters(before: dict[str, Any], now: dict[str, Any], path: str) -> Iterator[str]:
    """Calls that were accepted and are not, or mean something else."""
    places, places_now = list(before["places"].items()), list(now["places"].items())
    for place, (name, default) in enumerate(places):
        if place >= len(places_now) or places_now[place] != (name, default):
            yield f"{path}({name}={default}) at place {place}"
    by_name = now["places"] | now["names"]
    for name, default in before["names"].items():
        taken = path in TAKEN_BY_REST and now["rest"].endswith("**")
        if by_name.get(name) != default and not (name not in by_name and taken):
            yield f"{path}({name}={default})"
    if not set(before["rest"]) <= set(now["rest"]):
        yield f"{path}({before['rest']})"
    needed = [
        name for name, default in by_name.items() if default == "" and name not in before["places"] | before["names"]
    ]
    yield from (f"{path}: {name} must be given now" for name in needed)


def test_nothing_is_lost(recorded: dict[str, Any], collected: dict[str, Any]) -> None:
    assert list(lost(recorded, collected)) == []


def test_what_is_new_is_recorded(recorded: dict[str, Any], collected: dict[str, Any]) -> None:
    """`python -m tests.house.features` records it; from then on it is kept, too."""
    kept = copy.deepcopy(recorded)
    for table in ("facade", "commands", "routes"):
        assert list(lost(merged(kept, collected)[table], recorded[table], table)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("facade", "gen"), None),
        (("facade", "gen", "()", "names", "seed"), None),
        (("facade", "select", "()", "places", "temperature"), "0.5"),
        (("facade", "State", "fork"), None),
        (("commands", "serve", "--max-num-seqs"), None),
        (("commands", "bench", "name", "choices"), ["programs"]),
        (("routes", "/v1/chat/completions"), []),
        (("wire", "SamplingParams", "temperature"), None),
        (("wire", "ChatBody", "messages"), "[]"),
    ],
)
def test_a_loss_is_seen(recorded: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """The entry is replaced by `value`, or removed if that is None."""
    now = copy.deepcopy(recorded)
    *way, last = path
    table = now
    for step in way:
        table = table[step]
    assert last in table
    if value is None:
        del table[last]
    else:
        table[last] = value
    assert len(list(lost(recorded, now))) >= 1


def test_a_changed_order_of_places_and_a_new_necessity_are_seen(recorded: dict[str, Any]) -> None:
    before = recorded["facade"]["select"]["()"]
    swapped = before | {"places": dict(reversed(before["places"].items()))}
    assert len(list(lost_parameters(before, swapped, "select"))) == len(before["places"])
    needing = before | {"names": {"mood": ""}}
    assert list(lost_parameters(before, needing, "select")) == ["select: mood must be given now"]


# Options by place, which a signature may only claim to take

SAMPLES: dict[str, Any] = {
    "max_tokens": 7,
    "min_tokens": 2,
    "n": 1,
    "stop": ["\n"],
    "stop_token_ids": [5],
    "stop_regex": "[.!]",
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 12,
    "min_p": 0.125,
    "frequency_penalty": 0.75,
    "presence_penalty": 0.375,
    "ignore_eos": True,
    "return_logprob": True,
    "logprob_start_len": -1,
    "top_logprobs_num": 3,
    "return_text_in_logprobs": True,
    "dtype": int,
    "choices": ["a", "b"],
    "choices_method": "token_length_normalized",
    "regex": "a+",
    "json_schema": {"type": "integer"},
}
"""A value for each place of SGLang's `gen`, other than the default."""
SILENT = {"n", "logprob_start_len", "return_text_in_logprobs"}
"""Those whose value changes nothing: others are refused, or it is always so."""


@pytest.mark.parametrize("word", ["gen", "gen_int", "gen_string"])
def test_each_place_means_its_name(recorded: dict[str, Any], word: str) -> None:
    function = getattr(bough, word)
    places = list(recorded["facade"][word]["()"]["places"])
    assert places[0] == "name" and set(places[1:]) <= set(SAMPLES)
    for place, name in enumerate(places[1:], start=1):
        needs = {"top_logprobs_num": "return_logprob", "choices_method": "choices", "min_tokens": "max_tokens"}.get(
            name
        )
        values = [SAMPLES[other] if other in (name, needs) else None for other in places[1 : place + 1]]
        named = {other: SAMPLES[other] for other in (name, needs) if other is not None}
        by_place, by_name = function("x", *values), function("x", **named)
        assert described(by_place) == described(by_name), name
        assert name in SILENT or described(by_place) != described(function("x")), name


def described(expression: Any) -> str:
    """Spells out an expression without its place in the source and without functions, which are made anew."""
    fields = {
        name: getattr(expression, name) for name in expression.__dataclass_fields__ if name not in ("place", "convert")
    }
    return f"{type(expression).__name__} {fields}"
