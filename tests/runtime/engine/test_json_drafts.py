"""Parts that answers share are found again whatever their values hold, in bounded memory; no answer does harm."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.constrain.spec import Choice, GrammarSpec, JsonSchema
from bough.runtime.engine.speculation import MAX_CONSTRAINTS, MAX_CONTENT, MAX_STREAK, Place, Skeleton, Skeletons
from bough.runtime.protocol.request import Request

TEXTS = [*(bytes([byte]) for byte in range(256)), None, b'", "', b'":', b"long enough to be no value", b"}]", b"\xff\\"]


def taught(*texts: str, times: int = 1, max_links: int = 8192) -> Skeleton:
    skeleton = Skeleton(TEXTS, max_links)
    for text in texts * times:
        skeleton.start.teach(text.encode())
    return skeleton


def goes_on(skeleton: Skeleton, text: str, length: int = 40) -> str:
    """Returns what follows `text` as far as anything is known."""
    place, found = skeleton.start, bytearray()
    for token in text.encode():
        place = place.follow(token)
    while place.chance > 0.0 and len(found) < length:
        found.append(place.token)
        place = place.follow(place.token)
    return found.decode()


def record(name: str, age: int, tags: list[str]) -> str:
    return json.dumps({"name": name, "age": age, "home": {"town": name}, "tags": tags})


def test_what_follows_a_value_does_not_depend_on_it() -> None:
    skeleton = taught(record("a name that is far too long to be of a few", 17, ["x"]))
    for name in ("Ann", 'a "b" \\', "other names, of some { length } here", "ä" * 40):
        begun = json.dumps({"name": name})[:-1]
        assert goes_on(skeleton, begun, 9) == ', "age": '
    assert goes_on(skeleton, '{"name": "Ann", "age": 2', 10) == '7, "home":'  # only digits are taken for each other
    assert goes_on(skeleton, '{"name": "Ann", "age": 25, "home": {"town": "a, b', 0) == ""


def test_within_a_value_only_few_bytes_are_known() -> None:
    long = "one of many texts that are free"
    skeleton = taught(json.dumps({"role": "hero", "text": long}))
    assert goes_on(skeleton, '{"role": "h', 3) == "ero"
    assert goes_on(skeleton, '{"role": "hero", "text": "') == long[: MAX_CONTENT + 1]


def test_keys_and_values_are_told_apart() -> None:
    skeleton = taught('{"a": ["b", "c"], "b": {"a": true}}')
    assert goes_on(skeleton, '{"a": ["x", "yyyy"', 3) == "], "
    assert goes_on(skeleton, '{"a": ["x", "y, z"], "b"', 4) == ': {"'


def test_what_comes_often_outlasts_what_comes_once() -> None:
    often, once = '{"a": 1, "b"', '{"a": 1, "c"'
    skeleton = taught(often, times=20)
    skeleton.start.teach(once.encode())
    assert goes_on(skeleton, '{"a": 1, "', 1) == "b"
    for _ in range(4):
        skeleton.start.teach(once.encode())
    assert goes_on(skeleton, '{"a": 1, "', 1) == "c"


def test_chances_are_what_came_true() -> None:
    rng, skeleton = random.Random(1), Skeleton(TEXTS)
    for _ in range(600):
        skeleton.start.teach(f'{{"a": {"true" if rng.random() < 0.5 else "false"}}}'.encode())
    assert skeleton.chances[5] > 0.98  # all but one byte
    assert skeleton.chances[1] < 0.6
    assert all(0.0 <= chance <= 1.0 for chance in skeleton.chances)


HOSTILE = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from(
            [b"{" * 300, b"[{" * 200, b"}]" * 200, b'{"' + b"k" * 400, b'"' * 99, b"\\" * 99, b":,", b'\\"']
        ),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=200)
@given(HOSTILE, st.lists(st.integers(-2, len(TEXTS) + 2), max_size=40))
def test_anything_may_be_taught(parts: list[bytes], tokens: list[int]) -> None:
    skeleton = Skeleton(TEXTS, max_links=64)
    followed = skeleton.start
    taught_at = skeleton.start
    for part in [*map(list, parts), tokens, *map(list, parts[:1])]:
        for token in part:
            followed = followed.follow(token)
        taught_at = taught_at.teach(part)
        assert followed._shape == taught_at._shape  # it follows what is taught
        assert_bounded(skeleton, 64)
    for place in skeleton._places.values():
        assert 0 <= place.streak <= MAX_STREAK
        assert 0.0 <= place.chance <= 1.0


def test_the_places_in_bytes_are_those_in_tokens() -> None:
    text = '{"a": "x y", "b": [1, {"c\\"": null}], "d": "long enough to be no value"}'
    for seed in range(20):
        rng, by_bytes, rest = random.Random(seed), Skeleton(TEXTS).start, text.encode()
        in_tokens = by_bytes
        while rest:
            token = rng.choice([index for index, known in enumerate(TEXTS) if known and rest.startswith(known)])
            in_tokens, by_bytes = in_tokens.follow(token), _through(by_bytes, TEXTS[token] or b"")
            rest = rest[len(TEXTS[token] or b"") :]
            assert in_tokens is by_bytes


def _through(place: Place, data: bytes) -> Place:
    for byte in data:
        place = place.follow(byte)
    return place


def assert_bounded(skeleton: Skeleton, max_links: int) -> None:
    places = skeleton._places.values()
    assert len(places) <= max_links
    assert sum(len(place._after) for place in places) <= max_links


def test_memory_is_bounded_and_what_comes_often_is_kept() -> None:
    rng, skeleton = random.Random(0), Skeleton(TEXTS, max_links=500)
    for number in range(300):
        name = "".join(rng.choices("abcdefgh", k=rng.randrange(1, 12)))
        skeleton.start.teach(f'{{"name": "{name}", "age": {number}}}'.encode())
        assert_bounded(skeleton, 500)
    assert goes_on(skeleton, '{"name": "Zoe"', 8) == ', "age":'


def request(grammar: GrammarSpec | None, namespace: str = "") -> Request:
    return Request(id="r", prompt=(1,), grammar=grammar, namespace=namespace)


def test_requests_share_within_a_constraint_and_a_namespace() -> None:
    skeletons, schema = Skeletons(TEXTS), JsonSchema('{"type":"object"}')
    place = skeletons.start(request(schema))
    assert place is skeletons.start(request(JsonSchema('{"type":"object"}')))
    assert place is not skeletons.start(request(schema, "other"))
    assert place is not skeletons.start(request(JsonSchema('{"type":"object"}', property_order="schema")))
    assert skeletons.start(request(None)) is skeletons.start(request(Choice(("a",)))) is None


def test_constraints_are_bounded() -> None:
    skeletons = Skeletons(TEXTS)
    kept = skeletons.start(request(JsonSchema("0")))
    for number in range(3 * MAX_CONSTRAINTS):
        skeletons.start(request(JsonSchema(str(number))))
        assert skeletons.start(request(JsonSchema("0"))) is kept
        assert len(skeletons._of) <= MAX_CONSTRAINTS


@pytest.mark.parametrize("depth", [1, 15, 16, 17, 40])
def test_deep_containers_are_followed(depth: int) -> None:
    """Deeper than what is told apart it takes keys for values at worst."""
    text = '{"a":[' * depth + "1" + "]}" * depth
    place = Skeleton(TEXTS).start.teach(text.encode())
    assert place._shape[1] == 1
