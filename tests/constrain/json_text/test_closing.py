"""Every beginning of a JSON text can be closed, and the result parses."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.constrain.json_text.closing import JsonScanner

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(value=VALUES, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_every_prefix_closes_to_json(value: object, ascii_only: bool, indent: int | None) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    scanner = JsonScanner()
    for stop in range(len(data) + 1):
        json.loads(data[:stop] + scanner.closing())
        scanner.feed(data[stop : stop + 1])
    assert scanner.closing() == b""


@pytest.mark.parametrize(
    ("text", "closing"),
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
def test_closing_is_short(text: bytes, closing: bytes) -> None:
    scanner = JsonScanner()
    scanner.feed(text)
    assert scanner.closing() == closing
    json.loads(text + closing)


def test_copy_is_independent() -> None:
    scanner = JsonScanner(b"0")
    scanner.feed(b'{"a": [')
    other = scanner.copy()
    other.feed(b"[[")
    assert scanner.closing() == b"]}"
    assert other.closing() == b"]]]}"
