"""The forms of running a program: alone, nested, bound, streaming."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from bough.lang.api import assistant, function, gen, select, set_default_backend, user
from bough.lang.backend import use_backend
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError
from bough.lang.function import Function
from bough.lang.state.streaming import described_stream
from bough.runtime.protocol.errors import ErrorInfo, RequestError
from bough.runtime.protocol.program import Delta, Done, Failed, Value
from bough.runtime.protocol.request import TokenLogprob

from .fakes import FakeBackend, ops_of, value


@function
def capital(s, country):
    """Asks for a capital."""
    s += user(f"Capital of {country}?") + assistant(gen("city"))
    return country.upper()


def test_run_and_call_give_the_state():
    backend = MockBackend({"city": lambda prompt, name: "Paris" if "France" in prompt else "Tokyo"})
    state = capital.run("France", backend=backend)
    assert (state["city"], state.ret_value) == ("Paris", "FRANCE")
    assert capital(country="Japan", backend=backend)["city"] == "Tokyo"
    assert capital.__name__ == "capital" and capital.__doc__ == "Asks for a capital."


def test_the_default_backend_is_the_process_s():
    backend = MockBackend()
    with pytest.raises(ProgramError, match="no backend"):
        capital.run("France")
    set_default_backend(backend)
    thread = threading.Thread(target=capital.run, args=("France",))
    thread.start()
    thread.join()
    capital.run("France")
    assert len(backend.requests) == 2


def test_another_backend_is_used_in_a_block():
    outside, inside, given = MockBackend(), MockBackend(), MockBackend()
    set_default_backend(outside)
    with use_backend(inside) as used:
        assert used is inside
        capital.run("France")
        capital.run("France", backend=given)
        asyncio.run(capital.arun("France"))
        capital.run_batch([("France",)])
        capital.run_batch([("France",)], num_threads=1)
        capital.run("France", stream=True).sync()
        other = threading.Thread(target=capital.run, args=("France",))  # its context is its own
        other.start()
        other.join()
    capital.run("France")
    assert [len(backend.requests) for backend in (outside, inside, given)] == [2, 5, 1]


def test_bind_fills_in_what_a_call_may_override():
    backend = MockBackend()
    bound = capital.bind(country="France", temperature=0.25, backend=backend)
    assert bound.run().ret_value == "FRANCE"
    assert bound.run(country="Japan", temperature=0.75).ret_value == "JAPAN"
    temperatures = [ops_of(program)[-2].sampling.temperature for program in backend.requests]
    assert temperatures == [0.25, 0.75]


def test_a_parameter_of_the_body_comes_before_an_option():
    @function
    def numbered(s, n):
        s += f"{n}" + gen("x")

    backend = MockBackend()
    numbered.run(n=5, backend=backend)
    text, generation = ops_of(backend.requests[0])
    assert text.parts == ("5",)
    assert generation.sampling.n == 1


def test_a_body_needs_a_state_and_no_reserved_names():
    with pytest.raises(ProgramError, match="needs a first parameter"):
        function(lambda: None)
    with pytest.raises(ProgramError, match="'backend'"):
        function(lambda s, backend: None)
    assert isinstance(function()(lambda s: None), Function)


def test_an_unknown_argument_is_the_body_s_type_error():
    with pytest.raises(TypeError, match="temperatur"):
        capital.run("France", temperatur=0.5, backend=MockBackend())


def test_an_option_out_of_range_is_refused_before_any_work():
    backend = MockBackend()
    with pytest.raises(RequestError, match="temperature") as caught:
        capital.run("France", temperature=-1.0, backend=backend)
    assert caught.value.param == "temperature"
    with pytest.raises(RequestError, match="timeout_s"):
        capital.run("France", timeout_s=0.0, backend=backend)
    assert backend.requests == []


# Nested


@function
def examples(s, topic):
    s += f"Example of {topic}: " + gen("example") + "\n"
    return topic


def test_a_call_that_is_appended_records_in_the_caller():
    @function
    def outer(s):
        s += examples("cats")
        returned = examples(s, "dogs")
        s += returned + gen("last")

    backend = MockBackend({"example": ["Tom", "Rex"]})
    state = outer.run(backend=backend)
    assert state.text() == "Example of cats: Tom\nExample of dogs: Rex\ndogs(last)"
    assert state["example"] == "Rex"
    assert len(backend.requests) == 1


def test_a_call_that_is_read_runs_on_its_own_with_the_caller_s_settings():
    @function
    def outer(s):
        s += "outer" + gen("x")
        inner = examples("cats")
        s += inner["example"]
        with pytest.raises(ProgramError, match="cannot be appended"):
            s += inner
        s += gen("y")

    backend = MockBackend({"example": "Tom"})
    assert outer.run(backend=backend, temperature=0.5).text() == "outer(x)Tom(y)"
    inner, outer_program = backend.requests
    assert inner.id != outer_program.id
    assert ops_of(inner)[1].sampling.temperature == 0.5


def test_the_state_of_another_program_cannot_be_appended():
    backend = MockBackend()
    other = capital.run("France", backend=backend)
    with pytest.raises(ProgramError, match="read from it"):
        function(lambda s: s.__iadd__(other)).run(backend=backend)


# Streaming


def test_stream_yields_all_events_in_order():
    @function
    def two(s):
        s += "a " + gen("x")
        s += s["x"] + select("y", ["b", "c"])

    events = list(two.stream(backend=MockBackend({"x": "one two"})))
    shown = [e.text if isinstance(e, (Delta, Value)) else type(e).__name__ for e in events]
    assert sorted(shown) == sorted(["one", " two", "one two", "Done", "b", "Done"])
    assert shown[:3] == ["one", " two", "one two"]


def test_leaving_the_stream_aborts_the_program():
    def script(program):
        for _ in range(1000):
            yield Delta(0, "x", "ha")
            time.sleep(0.001)
        yield Done()

    backend = FakeBackend(script)
    stream = function(lambda s: s.__iadd__(gen("x"))).stream(backend=backend)
    assert next(stream) == Delta(0, "x", "ha")
    stream.close()
    deadline = time.monotonic() + 5.0
    while not backend.aborted and time.monotonic() < deadline:
        time.sleep(0.005)
    assert backend.aborted == [backend.requests[0].id]


def test_a_failure_is_raised_by_the_stream():
    failed = Failed(error=ErrorInfo(code="x", message="broke"))
    stream = function(lambda s: s.__iadd__(gen("x"))).stream(backend=FakeBackend(lambda p: iter([failed])))
    assert next(stream) == failed
    with pytest.raises(ProgramError, match="broke"):
        next(stream)


def test_run_with_stream_returns_at_once():
    gate, read_too_early = threading.Event(), threading.Event()

    def script(program):
        if program.resume:
            yield value(0, "y", "done")
        else:
            yield Delta(0, "x", "he")
            yield gate
            yield Delta(0, "x", "llo")
            yield value(0, "x", "hello")
        yield Done()

    @function
    def two(s):
        s += "Say " + gen("x")
        s += s["x"].upper() + gen("y")
        read_too_early.wait(5.0)

    state = two.run(backend=FakeBackend(script), stream=True)
    deltas = state.text_iter("x")
    assert next(deltas) == "he"
    gate.set()
    assert "".join(deltas) == "llo"
    read_too_early.set()
    assert state["y"] == "done"
    assert "".join(state.text_iter()) == "Say helloHELLOdone"
    assert state.error() is None


def told(backend):
    """Pieces of a text with what is known of them, and the error that ended them."""
    found: list[Any] = []

    @function
    def one(s):
        s += "Say " + gen("x", logprobs=0)
        found.extend(described_stream(s._branch, "x"))

    try:
        one.run(backend=backend)
    except ProgramError as error:
        return found, error
    return found, None


def entry(token):
    return TokenLogprob(token, -0.5)


def test_pieces_come_with_what_is_known_of_them():
    def script(program):
        yield Delta(0, "x", "he", (entry(1), entry(2)), {1: "h", 2: "e"})
        yield Delta(0, "x", "llo", (entry(3),), {3: "llo"})
        yield value(0, "x", "hello", logprobs=(entry(1), entry(2), entry(3), entry(9)), token_texts={9: ""})
        yield Done()

    (first, last), error = told(FakeBackend(script))
    assert (error, first[0], last[0]) == (None, "he", "llo")
    assert first[1]["output_token_logprobs"][0] == (-0.5, 1, "h")
    assert (first[1]["completion_tokens"], first[1]["finish_reason"]) == (2, None)
    assert last[1]["output_token_logprobs_length"] == 4 and last[1]["finish_reason"]["type"] == "stop"


def test_what_had_come_of_a_value_that_fails_is_told_before_the_error():
    def script(program):
        yield Delta(0, "x", "he", (entry(1),), {1: "he"})
        yield Failed(error=ErrorInfo(code="out_of_memory", message="no room"), index=1)

    ((text, meta),), error = told(FakeBackend(script))
    assert error is not None and error.code == "out_of_memory"
    assert (text, meta["completion_tokens"]) == ("he", 1)


def test_of_a_backend_that_tells_no_log_probabilities_the_last_piece_has_all():
    found, _ = told(MockBackend({"x": "one two three"}))
    assert len(found) == 3
    assert "".join(text for text, _ in found) == "one two three" and all(text for text, _ in found)
    assert all(meta.keys() == {"id", "finish_reason"} for _, meta in found[:-1])
    assert found[-1][1]["completion_tokens"] == 3


def test_text_iter_of_the_whole_branch_follows_a_running_body():
    gate = threading.Event()

    @function
    def slow(s):
        s += "one "
        gate.wait(5.0)
        s += gen("x") + " three"

    state = slow.run(backend=MockBackend({"x": "two"}), stream=True)
    texts = state.text_iter()
    assert next(texts) == "one "
    gate.set()
    assert "".join(texts) == "two three"


def test_reading_at_once_waits_for_a_slow_body():
    @function
    def slow(s):
        time.sleep(0.05)
        s += "a "
        time.sleep(0.05)
        s += gen("x")
        s += s["x"]

    assert slow.run(backend=MockBackend({"x": "two"}), stream=True)["x"] == "two"
    state = slow.run(backend=MockBackend({"x": "two"}), stream=True)
    assert state.error() is None
    assert state.text() == "a twotwo"
    with pytest.raises(ProgramError, match="no variable 'y'"):
        slow.run(backend=MockBackend(), stream=True)["y"]


def test_text_iter_shows_plain_text_as_soon_as_it_is_recorded():
    seen = threading.Event()

    @function
    def slow(s):
        s += "one "
        assert seen.wait(5.0)
        s += "two"

    texts = slow.run(backend=MockBackend(), stream=True).text_iter()
    assert next(texts) == "one "
    seen.set()
    assert list(texts) == ["two"]


def test_an_error_of_a_streamed_body_is_raised_where_it_is_read():
    @function
    def raises(s):
        raise ValueError("oops")

    state = raises.run(backend=MockBackend(), stream=True)
    with pytest.raises(ProgramError, match="stopped by ValueError: oops"):
        state["x"]
    with pytest.raises(ProgramError, match="oops"):
        list(state.text_iter())
    assert isinstance(state.error(), ValueError)


def test_a_body_can_stream_what_it_generates():
    seen = []

    @function
    def prints(s):
        s += gen("x")
        seen.extend(s.stream("x"))
        s += gen("y")

    prints.run(backend=MockBackend({"x": "one two three"}))
    assert seen == ["one", " two", " three"]


def test_the_time_limit_is_of_the_whole_program():
    @function
    def two(s):
        s += gen("x")
        s += s["x"] + gen("y")

    backend = MockBackend()
    two.run(backend=backend, timeout_s=5.0)
    first, second = (program.timeout_s or 0.0 for program in backend.requests)
    assert 0.0 < second < first <= 5.0

    @function
    def slow(s):
        s += gen("x")
        s["x"]
        time.sleep(0.02)
        s += gen("y")

    for run in (slow.run, lambda **options: asyncio.run(slow.arun(**options))):
        with pytest.raises(ProgramError, match=r"not done within 0\.01 s") as caught:
            run(backend=MockBackend(), timeout_s=0.01)
        assert caught.value.code == "generation_timeout"
    with pytest.raises(RequestError, match="timeout_s"):
        slow.run(backend=backend, timeout_s=float("nan"))


def test_a_body_that_waits_for_something_else_is_ended_with_its_time(monkeypatch):
    monkeypatch.setattr("bough.lang.run.run._GRACE_S", 0.01)
    ended = []

    @function
    async def waits(s):
        try:
            await asyncio.sleep(60.0)
        finally:
            ended.append(True)

    with pytest.raises(ProgramError, match=r"not done within 0\.01 s") as caught:
        asyncio.run(waits.arun(backend=MockBackend(), timeout_s=0.01))
    assert caught.value.code == "generation_timeout" and ended == [True]

    @function
    def reads(s):
        s += gen("x")
        s["x"]

    silent = FakeBackend(lambda p: iter([threading.Event(), Done()]))
    with pytest.raises(ProgramError, match="not done within"):
        asyncio.run(reads.arun(backend=silent, timeout_s=0.01))
    assert silent.aborted == [silent.requests[0].id]


def test_a_program_within_another_has_what_is_left_of_its_time():
    @function
    def outer(s):
        s += capital("France")["city"]

    backend = MockBackend()
    outer.run(backend=backend, timeout_s=5.0)
    assert 4.0 < (backend.requests[0].timeout_s or 0.0) < 5.0
