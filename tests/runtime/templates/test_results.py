"""Values that are kept of a run for its result, and their bounds."""

from __future__ import annotations

import pytest

from bough.runtime.protocol.condition import Ref
from bough.runtime.protocol.errors import EngineError
from bough.runtime.protocol.program import Value
from bough.runtime.protocol.request import TokenLogprob
from bough.runtime.protocol.template import ResultList, ResultText, ResultValue
from bough.runtime.templates import results as module
from bough.runtime.templates.results import Results


def value(text: str, name: str = "x", turn: int = 0) -> Value:
    return Value(branch=0, name=name, text=text, turn=turn, logprobs=(TokenLogprob(1, -1.0),))


def test_only_what_the_result_needs_is_kept() -> None:
    results = Results(ResultList((ResultValue(Ref(0, "x")), ResultValue(Ref(0, "all"), turns=True))))
    for turn in range(100):
        results.feed(value(f"{turn}", turn=turn))
        results.feed(value(f"{turn}", "all", turn))
        results.feed(value("y" * 1000, "other", turn))
    assert results.read() == ["99", [str(turn) for turn in range(100)]]
    assert {ref.name: len(turns) for ref, turns in results._values.items()} == {"x": 1, "all": 100}
    assert all(one.logprobs is None for turns in results._values.values() for one in turns)


def test_what_is_kept_and_what_is_read_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RESULT_CHARS", 1000)
    last = Results(ResultValue(Ref(0, "x")))
    every = Results(ResultValue(Ref(0, "x"), turns=True))
    for turn in range(20):
        last.feed(value("x" * 100, turn=turn))
        if turn < 10:
            every.feed(value("x" * 100, turn=turn))
    assert last.read() == "x" * 100
    with pytest.raises(EngineError, match="more than 1000 characters"):
        every.feed(value("x", turn=10))
    twice = Results(ResultText((Ref(0, "x"), Ref(0, "x"))))
    twice.feed(value("x" * 600))
    with pytest.raises(EngineError, match="more than 1000 characters"):
        twice.read()
    read = Results(ResultValue(Ref(0, "x"), "json"))
    read.feed(value("[" + "1," * 100 + "1]"))
    with pytest.raises(EngineError) as caught:
        read.read()
    assert caught.value.code == "result_too_long"


def test_a_loop_that_begins_anew_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RESULT_CHARS", 1000)
    results = Results(ResultValue(Ref(0, "x"), turns=True))
    for _ in range(50):
        results.feed(value("x" * 300, turn=0))
        results.feed(value("x" * 300, turn=1))
    assert len(results.read()) == 2
