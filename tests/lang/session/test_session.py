"""Waiting, failing, aborting: what reaches a program while its submissions run."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from bough.lang.api import assistant, function, gen, user
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import BackendError, ProgramError
from bough.lang.observe import otel
from bough.lang.run.run import PullDriver
from bough.lang.session.session import Session
from bough.runtime.protocol.errors import EngineStoppedError, ErrorInfo, RequestError
from bough.runtime.protocol.program import Delta, Done, Failed

from ..fakes import FakeBackend, value


def test_a_read_returns_before_the_submission_has_ended():
    gate = threading.Event()

    def script(program):
        yield value(1, "x", "first")
        yield gate
        yield value(2, "x", "second")
        yield Done()

    backend = FakeBackend(script)

    @function
    def two(s):
        left, right = s.fork(2)
        left += gen("x")
        right += gen("x")
        assert left["x"] == "first"
        gate.set()
        assert right["x"] == "second"

    two.run(backend=backend)
    assert len(backend.requests) == 1


def test_a_submission_may_be_sent_while_an_earlier_one_runs():
    first_may_end = threading.Event()

    def script(program):
        if not program.resume:
            yield value(1, "a", "A")
            yield first_may_end
            yield value(2, "b", "B")
        else:
            yield value(1, "c", "C")
        yield Done()

    backend = FakeBackend(script)

    @function
    def two(s):
        left, right = s.fork(2)
        left += gen("a")
        right += gen("b")
        assert left["a"] == "A"
        left += gen("c")
        assert left["c"] == "C"
        first_may_end.set()
        assert right["b"] == "B"

    two.run(backend=backend)
    assert [program.resume for program in backend.requests] == [False, True]
    assert backend.dropped == [backend.requests[0].id]


def failing(index: int, branch: int = 0):
    error = ErrorInfo(code="context_length_exceeded", message="too long", param="max_tokens")
    return FakeBackend(lambda p: iter([value(0, "a", "A"), Failed(error=error, branch=branch, index=index)]))


def test_a_failure_names_the_line_the_branch_and_the_cause():
    @function
    def longer(s):
        s += user("Q")
        s += assistant(
            gen("a")  #
            + gen("b", max_tokens=7)
        )

    backend = failing(5)
    with pytest.raises(ProgramError, match="too long") as caught:
        longer.run(backend=backend)
    error: Any = caught.value
    assert (error.code, error.param, error.branch) == ("context_length_exceeded", "max_tokens", 0)
    assert error.instruction == backend.requests[0].ops[5]
    assert error.place.file == __file__ and error.place.function == "longer"
    source = Path(__file__).read_text().splitlines()[error.place.line - 1]
    assert 'gen("b"' in source
    assert f"{__file__}:{error.place.line}" in str(error) and "gen 'b', branch 0" in str(error)
    assert source.strip() in str(error)
    assert error.state["a"] == "A"
    with pytest.raises(ProgramError, match="too long"):
        error.state["b"]


def test_a_failure_is_raised_at_the_read():
    seen = []

    @function
    def reads(s):
        s += gen("a") + gen("b")
        seen.append(s["a"])
        try:
            s["b"]
        except ProgramError as error:
            seen.append(error.code)
            raise

    with pytest.raises(ProgramError):
        reads.run(backend=failing(1))
    assert seen == ["A", "context_length_exceeded"]


def test_nothing_can_be_appended_after_a_failure():
    @function
    def goes_on(s):
        s += gen("a") + gen("b")
        try:
            s["b"]
        except ProgramError:
            s += "and on"

    with pytest.raises(ProgramError, match="too long"):
        goes_on.run(backend=failing(1))


def test_a_swallowed_failure_is_still_raised_at_the_end():
    @function
    def swallows(s):
        s += gen("a") + gen("b")
        with contextlib.suppress(ProgramError):
            s["b"]

    with pytest.raises(ProgramError, match="too long"):
        swallows.run(backend=failing(1))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("no such role", param="role"), "invalid_value"),
        (EngineStoppedError("gone"), "engine_dead"),
        (BackendError("no connection", code="connection_error"), "connection_error"),
    ],
)
def test_a_refusal_is_raised_as_a_program_error(error, code):
    backend = FakeBackend(lambda p: iter([error]))
    with pytest.raises(ProgramError) as caught:
        function(lambda s: s.__iadd__(gen("x"))).run(backend=backend)
    assert caught.value.code == code
    assert caught.value.param == error.param
    assert caught.value.__cause__ is error


def test_a_stream_that_ends_in_the_middle_is_an_error():
    backend = FakeBackend(lambda p: iter([Delta(0, "x", "ha")]))
    with pytest.raises(ProgramError, match="broke off") as caught:
        function(lambda s: s.__iadd__(gen("x"))).run(backend=backend)
    assert caught.value.code == "broken_stream"


def test_a_value_that_never_came_is_an_error():
    state = function(lambda s: s.__iadd__(gen("x"))).run(backend=FakeBackend(lambda p: iter([Done()])))
    with pytest.raises(ProgramError, match="no value for 'x'"):
        state["x"]


def test_an_exception_of_the_body_aborts_what_runs():
    backend = FakeBackend(lambda p: iter([value(0, "a", "A"), Delta(0, "b", "B"), Done()]))
    kept = []

    @function
    def raises(s):
        s += gen("a") + gen("b")
        kept.append(s)
        raise ValueError(s["a"])

    with pytest.raises(ValueError, match="A"):
        raises.run(backend=backend)
    assert backend.aborted == [backend.requests[0].id]
    assert backend.dropped == []
    assert kept[0]["a"] == "A"
    assert isinstance(kept[0].error(), ValueError)
    with pytest.raises(ProgramError, match="stopped by ValueError: A"):
        kept[0]["b"]


def test_an_exception_of_the_body_drops_a_kept_state():
    backend = MockBackend()

    @function
    def raises(s):
        s += gen("a")
        s.sync()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        raises.run(backend=backend)
    assert backend.dropped == [backend.requests[0].id]


def test_an_exception_before_anything_was_sent_needs_no_abort():
    backend = MockBackend()

    @function
    def raises(s):
        s += gen("a")
        raise KeyError

    with pytest.raises(KeyError):
        raises.run(backend=backend)
    assert backend.requests == [] and backend.dropped == []


def test_an_interrupt_while_waiting_aborts():
    def script(program):
        yield Delta(0, "x", "h")
        raise KeyboardInterrupt

    backend = FakeBackend(script)
    with pytest.raises(KeyboardInterrupt):
        function(lambda s: s.__iadd__(gen("x"))).run(backend=backend)
    assert len(backend.aborted) == 1


def test_a_submission_that_is_not_to_blame_names_no_line():
    error = ErrorInfo(code="generation_timeout", message="too slow")
    may_fail = threading.Event()

    def script(program):
        if program.resume:
            yield Failed(error=error, branch=1, index=None)
        else:
            yield value(1, "a", "A")
            yield may_fail
            yield Failed(error=error, branch=2, index=3)

    @function
    def two(s):
        left, right = s.fork(2)
        left += gen("a")
        right += "x" + gen("b")
        assert left["a"] == "A"
        left += gen("c")
        may_fail.set()
        left["c"]

    with pytest.raises(ProgramError, match="too slow") as caught:
        two.run(backend=FakeBackend(script))
    assert caught.value.place is None


def test_without_a_backend_it_says_how_to_get_one():
    with pytest.raises(ProgramError, match="set_default_backend") as caught:
        function(lambda s: None).run()
    assert caught.value.code == "no_backend"


def test_a_refusal_names_the_line_if_only_one_instruction_generates():
    backend = FakeBackend(lambda p: iter([RequestError("bad pattern", code="invalid_grammar")]))

    @function
    def one(s):
        s += "text"
        s += gen("x")

    @function
    def two(s):
        s += gen("x") + gen("y")

    with pytest.raises(ProgramError, match="bad pattern") as caught:
        one.run(backend=backend)
    assert caught.value.instruction is not None and caught.value.instruction == backend.requests[0].ops[1]
    assert "gen 'x', branch 0" in str(caught.value)
    with pytest.raises(ProgramError, match="bad pattern") as caught:
        two.run(backend=backend)
    assert caught.value.place is None


def test_a_drop_that_fails_loses_no_result():
    class Forgetful(FakeBackend):
        def drop(self, program_id: str) -> None:
            raise BackendError("gone")

    @function
    def reads(s):
        s += gen("x")
        s.sync()

    assert reads.run(backend=Forgetful(lambda p: iter([value(0, "x", "X"), Done()])))["x"] == "X"


def test_values_that_came_before_a_failure_can_be_read():
    @function
    def reads(s):
        s += gen("a") + gen("b")

    with pytest.raises(ProgramError) as caught:
        reads.run(backend=failing(1))
    state = caught.value.state
    assert state["a"] == "A"
    assert state.error() is caught.value
    assert (state.text(), state.values()) == ("A", {"a": "A"})
    with pytest.raises(ProgramError, match="too long"):
        state["b"]


def test_an_error_shows_the_lines_that_led_to_it():
    @function
    def outer(s):
        middle(s)

    def middle(s):
        with s.user():
            inner(s)

    @function
    def inner(s):
        s += gen("a") + gen("b")

    backend = failing(2)
    with pytest.raises(ProgramError, match="too long") as caught:
        outer.run(backend=backend)
    error: Any = caught.value
    assert [place.function for place in error.stack] == ["outer", "middle", "inner"]
    assert error.stack[-1] == error.place._replace(callers=())
    assert error.request_id == backend.requests[0].id
    lines = str(error).splitlines()
    assert lines[0] == "too long"
    assert [line.split(", in ")[1] for line in lines if line.startswith("  at")] == [
        "outer",
        "middle",
        "inner: gen 'b', branch 0",
    ]
    assert lines[2] == "    middle(s)"
    assert lines[-1] == f"  request {error.request_id}"


def test_an_expression_is_blamed_where_it_was_written_and_where_it_was_appended():
    def make():
        return gen("a") + gen("b")

    @function
    def body(s):
        s += make()

    with pytest.raises(ProgramError, match="too long") as caught:
        body.run(backend=failing(1))
    assert [place.function for place in caught.value.stack] == ["body", "make"]


def test_what_stands_between_two_messages_names_the_line():
    @function
    def body(s):
        with s.user(), s.user():
            pass

    with pytest.raises(ProgramError, match="cannot begin inside") as caught:
        body.run(backend=MockBackend())
    assert caught.value.place is not None and caught.value.place.file == __file__


def test_text_after_the_last_read_is_not_lost():
    @function
    def chat(s):
        s += user("Hi") + assistant(gen("a"))
        assert s["a"] == "A"
        s += "!"

    state = chat.run(backend=MockBackend({"a": "A"}))
    assert state.text().endswith("A<|end|>\n!")


def test_a_run_whose_spans_cannot_be_ended_wakes_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            return lambda *arguments: contextlib.nullcontext()

        def end(self, error: BaseException | None) -> None:
            raise MemoryError

    monkeypatch.setattr(otel.switch, "begin", lambda *arguments: Broken())
    woken: list[bool] = []
    notify = Session.notify

    def counted(self: Session) -> None:
        woken.append(self.finished)
        notify(self)

    monkeypatch.setattr(Session, "notify", counted)

    @function
    def body(s):
        s += gen("x")

    with pytest.raises(MemoryError):
        body.run(backend=MockBackend())
    assert woken[-1]


def test_a_submission_is_closed_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is stopped while a thread that waits for its values closes what it has pulled."""
    waits, goes_on, closes, stopped = (threading.Event() for _ in range(4))

    def script(program):
        try:
            yield value(0, "x", "x")
            waits.set()
            yield goes_on
            yield value(0, "y", "y")
        finally:
            closes.set()
            stopped.wait(0.3)

    stop = PullDriver.stop

    def stop_late(self: PullDriver, session: Session) -> None:
        goes_on.set()
        assert closes.wait(10.0)
        stop(self, session)
        stopped.set()

    monkeypatch.setattr(PullDriver, "stop", stop_late)
    readers: list[threading.Thread] = []

    @function
    def body(s):
        s += gen("x") + gen("y")
        assert s["x"] == "x"

        def read() -> None:
            with contextlib.suppress(ProgramError):
                s["y"]

        readers.append(threading.Thread(target=read))
        readers[0].start()
        assert waits.wait(10.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body.run(backend=FakeBackend(script))
    readers[0].join(10.0)
    assert not readers[0].is_alive()
