"""The cache of grammars: least recently used first, bounded in bytes, and what it counts is what memory holds."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.constrain import Grammar, GrammarCompiler, GrammarError, JsonSchema, Matcher, Vocabulary
from bough.constrain.errors import CompileLateError, GrammarTooComplexError
from bough.constrain.receipt import Receipt
from bough.constrain.workers import cache as cache_module
from bough.constrain.workers.cache import GrammarCache

FULL = os.environ.get("BOUGH_ACCEPTANCE") == "full"


class Sized:
    """A grammar that is only a size."""

    receipt: Receipt | None = None
    tabulation = None

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def matcher(self) -> Matcher:
        raise NotImplementedError

    def min_tokens(self) -> int | None:
        return None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60)), max_size=60))
def test_it_never_holds_more_than_its_bound(steps: list[tuple[int, int]]) -> None:
    cache = GrammarCache(100)
    order: list[bytes] = []
    for number, size in steps:
        key = bytes([number])
        if cache.get(key) is None:
            cache.put(key, Sized(size))
        order = [*(other for other in order if other != key), key]
        held = [key for key in order if key in cache._grammars]
        assert cache.num_bytes == sum(cache._grammars[key].num_bytes for key in held) <= 100
        assert held == list(cache._grammars) == order[len(order) - len(held) :]  # what was dropped is the oldest


def test_one_that_is_larger_than_the_bound_is_not_kept_but_shared_while_used() -> None:
    cache = GrammarCache(100)
    cache.put(b"small", Sized(50))
    large: Grammar | None = Sized(200)
    assert large is not None
    cache.put(b"large", large)
    assert cache.num_bytes == 0
    assert cache.get(b"large") is large
    large = None
    gc.collect()
    assert cache.get(b"large") is None


def test_errors_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("bough.constrain.workers.cache.time.monotonic", lambda: now)
    cache = GrammarCache(100)
    error = GrammarError("no")
    cache.put_error(b"a", error)
    now = 6.0
    cache.put_error(b"b", error)
    assert cache.get(b"a") is cache.get(b"b") is error
    now = 31.0
    assert (cache.get(b"a"), cache.get(b"b")) == (None, error)
    for number in range(cache_module.MAX_ERRORS + 10):
        cache.put_error(str(number).encode(), error)
    assert len(cache._errors) == cache_module.MAX_ERRORS


def test_what_is_late_is_not_remembered() -> None:
    cache = GrammarCache(100)
    for error, known in ((CompileLateError("busy"), None), (refusal := GrammarTooComplexError("large"), refusal)):
        future, is_new = cache.share(b"a")
        assert is_new
        future.set_exception(error)
        assert cache.get(b"a") is known


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def distinct(number: int) -> JsonSchema:
    """A schema like no other; some are large."""
    names = [f"field_{number}_{index}" for index in range(1 + number % 12)]
    kinds = ({"type": "integer"}, {"type": "string", "maxLength": 20}, {"enum": ["x", "y"]}, {"type": "boolean"})
    properties = {name: kinds[index % 4] for index, name in enumerate(names)}
    return JsonSchema(json.dumps({"type": "object", "properties": properties, "required": names[:3]}))


@pytest.mark.timeout(3600 if FULL else 120)
def test_memory_is_bounded_under_many_distinct_schemas(vocabulary: Vocabulary) -> None:
    count, megabytes = (20_000, 256) if FULL else (300, 20)
    compiler = GrammarCompiler(vocabulary, cache_bytes=megabytes << 20)
    compiler.compile(distinct(0))
    before = resident_bytes()
    for number in range(1, count):
        compiler.compile(distinct(number))
    grown = resident_bytes() - before
    assert compiler.compiled == count
    assert compiler.cached_bytes <= megabytes << 20
    compiler.close()
    assert grown < (300 if FULL else 2 * megabytes) << 20, f"{grown / 2**20:.0f} MiB"


def test_what_a_grammar_says_it_holds_is_about_what_it_holds(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    compiler.compile(distinct(0))
    before = resident_bytes()
    kept = [compiler.compile(distinct(number)) for number in range(1, 120)]
    grown = resident_bytes() - before
    counted = sum(grammar.num_bytes for grammar in kept)
    compiler.close()
    assert grown < 2 * counted, f"{grown / len(kept) / 1000:.0f} kB each, {counted / len(kept) / 1000:.0f} kB counted"
