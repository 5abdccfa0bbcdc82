"""Every beginning of a JSON text can be closed, and the result parses."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.constrain.json_text.reader import READER, START, closing

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(value=VALUES, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_every_prefix_closes_to_json(value: object, ascii_only: bool, indent: int | None) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    scan = START
    for stop in range(len(data) + 1):
        json.loads(data[:stop] + closing(scan, data[max(stop - 3, 0) : stop]))
        scan = READER.feed(scan, data[stop : stop + 1])
    assert closing(scan, data[-3:]) == b""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", b"null"),
        (b"{", b"}"),
        (b'{"a', b'":null}'),
        (b'{"a"', b":null}"),
        (b'{"a": ', b"null}"),
        (b'{"a": 1', b"}"),
        (b'{"a": 1,', b'"":null}'),
        (b'{"a": -', b"0}"),
        (b"[1.", b"0]"),
        (b"[1e+", b"0]"),
        (b"[tr", b"ue]"),
        (b'["x\\', b'""]'),
        (b'["\\u12', b'00"]'),
        (b'["\xe2', b'\x80\x80"]'),
        (b'["\xf0', b'\x90\x80\x80"]'),
        (b'[{"a": ["', b'"]}]'),
    ],
)
def test_closing_is_short(text: bytes, expected: bytes) -> None:
    assert closing(READER.feed(START, text), text[-3:]) == expected
    json.loads(text + expected)


def test_one_state_goes_on_in_several_ways() -> None:
    scan = READER.feed(START, b'{"a": [')
    other = READER.feed(scan, b"[[")
    assert closing(scan, b": [", b"0") == b"]}"
    assert closing(other, b"[[[", b"0") == b"]]]}"
