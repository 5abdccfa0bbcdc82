"""Parts made once for all constraints hold up nobody, are of no constraint's time, and can be made ahead."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLTokenizer

from bough.constrain import Choice, GrammarCompiler, JsonSchema, Regex, Vocabulary
from bough.constrain.spec import Structural, Tag
from bough.constrain.vocabulary import token_table as tokens_module
from bough.constrain.vocabulary.token_table import TokenTable
from bough.constrain.workers.process import Processes

HEAVY = JsonSchema('{"type": "string", "maxLength": 9}')
SLOW_S = 0.6

Slow = Callable[[Callable[[], Any]], None]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Makes the tokenizer take long; what it is given is called meanwhile."""

    def slow(meanwhile: Callable[[], Any]) -> None:
        def make(*arguments: Any, **options: Any) -> LLTokenizer:
            meanwhile()
            time.sleep(SLOW_S)
            return LLTokenizer(*arguments, **options)

        monkeypatch.setattr(tokens_module, "LLTokenizer", make)

    return slow


def test_who_submits_does_not_wait_for_the_tokenizer(vocabulary: Vocabulary, slow: Slow) -> None:
    slow(lambda: None)
    compiler = GrammarCompiler(vocabulary)
    started = time.monotonic()
    future = compiler.submit(Regex("[a-z]+"))
    assert time.monotonic() - started < SLOW_S / 2
    assert not future.done()
    assert future.result(timeout=10)
    compiler.close()


def test_the_tokenizer_is_of_no_constraints_time(vocabulary: Vocabulary, slow: Slow) -> None:
    slow(lambda: None)
    compiler = GrammarCompiler(vocabulary, num_threads=1, timeout_s=SLOW_S / 4)
    futures = [compiler.submit(spec) for spec in (Regex("[a-z]"), Choice(("a", "b")), Regex("[0-9]"))]
    for future in futures:
        assert future.result(timeout=10)
    compiler.close()


@pytest.mark.parametrize(
    ("spec", "num_processes"),
    [
        (Regex("[a-z]+"), 0),
        (HEAVY, 1),
        (Structural((Tag("<a>", Regex("[a-z]"), "</a>"),)), 0),
        (Structural((Tag("<a>", HEAVY, "</a>"),)), 1),
    ],
    ids=("light", "heavy", "light part", "heavy part"),
)
def test_a_process_starts_beside_if_it_is_needed(
    spec: Any, num_processes: int, vocabulary: Vocabulary, slow: Slow
) -> None:
    seen: list[list[int]] = []
    compiler = GrammarCompiler(vocabulary)
    slow(lambda: seen.append(compiler.process_ids))
    compiler.compile(spec)
    assert [len(processes) for processes in seen] == [num_processes]
    assert compiler.process_ids == seen[0]  # it is the one that was used
    compiler.close()


def test_a_tokenizer_that_cannot_be_made_fails_the_constraint(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("too many tokens")

    compiler = GrammarCompiler(vocabulary)
    with monkeypatch.context() as patch:
        patch.setattr(tokens_module, "LLTokenizer", fail)
        with pytest.raises(ValueError, match="too many tokens"):
            compiler.submit(Regex("[a-z]+")).result(timeout=10)
    assert compiler.compile(Regex("[a-z]+"))
    compiler.close()


def test_a_warm_compiler_has_all_but_the_constraint(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    assert not wait([compiler.warm()], timeout=30).not_done
    processes = compiler.process_ids
    assert compiler.tokens.has_tokenizer
    assert len(processes) == 1
    assert (compiler.compiled, compiler.cache_hits, compiler.cached_bytes) == (0, 0, 0)
    compiler.compile(HEAVY)
    assert compiler.process_ids == processes
    compiler.close()


def test_after_a_constraint_nothing_is_warmed(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary)
    compiler.compile(Regex("[a-z]+"))
    assert compiler.warm().done()
    assert compiler.process_ids == []
    compiler.close()


def test_closing_does_not_wait_for_what_is_warmed(vocabulary: Vocabulary, slow: Slow) -> None:
    seen: list[list[int]] = []
    compiler = GrammarCompiler(vocabulary)
    slow(lambda: seen.append(compiler.process_ids))
    warmed = compiler.warm()
    deadline = time.monotonic() + 10
    while not seen and time.monotonic() < deadline:
        time.sleep(0.01)
    started = time.monotonic()
    compiler.close()
    assert time.monotonic() - started < SLOW_S + 1.0
    assert warmed.exception() is not None
    assert seen[0] and not Path(f"/proc/{seen[0][0]}").exists()
    assert compiler.process_ids == []


def test_a_process_that_comes_after_the_end_ends_at_once() -> None:
    processes = Processes(2, 1.0)
    processes.close()
    processes.start_ahead()
    assert processes.idle_ids() == []


def test_whole_characters_need_no_tokenizer(vocabulary: Vocabulary) -> None:
    tokens = TokenTable(vocabulary)
    texts = ["", "plain", "é", "日本語 x", '{"a": 1}\n', "\0", "<|im_end|>"]
    found = [tokens.encode(text.encode()) for text in texts]
    assert not tokens.has_tokenizer
    assert found == [list(tokens.tokenizer.tokenize_bytes(text.encode())) for text in texts]
    assert tokens.text(tokens.encode(b"a\xc3")) == b"a\xc3"
