"""Tools beside the engine: what they get, how long they may take, and that nobody waits for those who do not return."""

from __future__ import annotations

import asyncio
import errno
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest

from bough.runtime.protocol.condition import Compare
from bough.runtime.protocol.errors import EngineError, ErrorInfo, OverloadedError, RequestError
from bough.runtime.protocol.program import BranchFailed, Fork, Gen, Join, Op, Piece, Ref, Repeat, Text, Use, Value
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.tools.arguments import check_names, read_arguments
from bough.runtime.tools.quotas import Owner
from bough.runtime.tools.registry import MAX_THREADS, MAX_TOOLS, Ticket, ToolRegistry, ToolRunner

from ..asking import wait_until
from ..programs.place import GREEDY
from ..programs.tool_place import ToolPlace


class Tool:
    """Whatever `function` does."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        timeout_s: float | None = 30.0,
        max_chars: int = 1000,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.timeout_s = timeout_s
        self.max_chars = max_chars
        self.parameters = parameters

    def call(self, arguments: dict[str, Any]) -> str | Awaitable[str]:
        result: str | Awaitable[str] = self.function(**arguments)
        return result


async def later(text: str = "later") -> str:
    await asyncio.sleep(0.01)
    return text


def calls(name: str, **arguments: str) -> list[Op]:
    parts = tuple((key, (text,)) for key, text in arguments.items())
    return [Text(0, ("x",)), Use(0, "u", name, parts)]


@pytest.fixture
def place() -> Iterator[ToolPlace]:
    made = ToolPlace()
    yield made
    made.close()


def test_what_a_tool_returns_is_kept_and_appended(place: ToolPlace) -> None:
    ops: list[Op] = [
        Text(0, ("x",)),
        Use(0, "a", "upper", (("text", ("one ", "two")),)),
        Use(0, "b", "upper", (("text", (Ref(0, "a"),)),), append=False),
        Gen(0, "g", GREEDY),
        Text(0, (Ref(0, "b"),)),
    ]
    heard = place.run(ops, trace=True)
    assert heard.texts | {(0, "g"): ""} == {(0, "a"): "ONE TWO!", (0, "b"): "ONE TWO!!", (0, "g"): ""}
    assert heard.done.texts[0] == f"xONE TWO!{heard.texts[0, 'g']}ONE TWO!!"
    assert heard.done.requests == 1
    pieces = [(piece.kind, piece.name, piece.op, "".join(piece.texts)) for piece in heard.pieces]
    assert [piece for piece in pieces if piece[0] == "tool"] == [("tool", "a", 1, ""), ("tool", "b", 2, "")]
    assert ("text", "", 1, "ONE TWO!") in pieces
    assert all(isinstance(piece, Piece) and piece.stop_s >= piece.start_s for piece in heard.pieces)


def test_the_engine_goes_on_while_tools_run(place: ToolPlace) -> None:
    gate = threading.Event()
    place.registry.register(Tool("slow", lambda: str(gate.wait(10.0))))
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1, 2)),
        Use(1, "u", "slow"),
        Text(2, ("so ", Ref(1, "u"))),
        Gen(0, "g", SamplingParams(max_tokens=50, temperature=0.0, ignore_eos=True)),
        Join(0, (1,)),
    ]
    heard = place.start(ops)
    place.drive(lambda: (0, "g") in heard.values)
    assert not heard.over
    gate.set()
    place.drive(lambda: heard.over)
    assert heard.done.texts[2] == "xso True"


def test_coroutines_run_on_one_loop(place: ToolPlace) -> None:
    loops = set()

    async def which() -> str:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0.01)
        return "."

    place.registry.register(Tool("which", which))
    branches = tuple(range(1, 301))
    ops: list[Op] = [Text(0, ("x",)), Fork(0, branches), *(Use(branch, "u", "which") for branch in branches)]
    before = set(threading.enumerate())
    heard = place.run([*ops, Join(0, branches, "append")])
    assert heard.done.texts[0] == "x" + "." * 300
    assert len(loops) == 1
    begun = [thread.name for thread in threading.enumerate() if thread not in before]
    assert begun.count("bough-tool") <= MAX_THREADS and begun.count("bough-async-tools") == 1, begun


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 1 / 0, "the tool 'bad' failed: ZeroDivisionError: division by zero"),
        (lambda: sys.exit(3), "SystemExit: 3"),
        (lambda: 7, "it returned a int, not a text"),
        (lambda: "a" * 1001, "it returned 1001 characters, but max_chars is 1000"),
        (lambda: "\ud800", "not Unicode"),
        (lambda: later("a" * 1001), "it returned 1001 characters"),
        (lambda: later("a", "b"), "TypeError"),  # type: ignore[call-arg]
        (lambda x: x, "missing 1 required positional argument"),
    ],
)
def test_a_tool_that_fails_ends_the_program_by_name(
    place: ToolPlace, function: Callable[..., object], message: str
) -> None:
    place.registry.register(Tool("bad", function))
    heard = place.run(calls("bad"))
    assert (heard.failed.error.code, heard.failed.error.param, heard.failed.index) == ("tool_failed", "bad", 1)
    assert message in heard.failed.error.message
    assert place.run([Text(0, ("still here",))]).done


def test_a_tool_that_fails_ends_the_isolated_branch_alone(place: ToolPlace) -> None:
    place.registry.register(Tool("bad", lambda: 1 / 0))
    ops: list[Op] = [Text(0, ("x",)), Fork(0, (1, 2), isolated=True), Use(1, "u", "bad"), Use(2, "u", "upper")]
    ops[-1] = Use(2, "u", "upper", (("text", ("a",)),))
    heard = place.run([*ops, Join(0, (1, 2), "append")])
    assert [event.error.code for event in heard.events if isinstance(event, BranchFailed)] == ["tool_failed"]
    assert heard.done.texts[0] == "xA!"


def test_a_result_that_no_context_holds(place: ToolPlace) -> None:
    place.registry.register(Tool("long", lambda: "word " * 2000, max_chars=100_000))
    assert place.run(calls("long")).failed.error.code == "context_length_exceeded"
    kept = place.run([Text(0, ("x",)), Use(0, "u", "long", append=False)])
    assert len(kept.texts[0, "u"]) == 10_000


# Time


@pytest.mark.parametrize(("own_s", "asked_s", "limit"), [(5.0, None, "5 s"), (50.0, 5.0, "5 s"), (None, 5.0, "5 s")])
def test_a_tool_past_its_time_fails(place: ToolPlace, own_s: float | None, asked_s: float | None, limit: str) -> None:
    gate = threading.Event()
    place.registry.register(Tool("slow", lambda: str(gate.wait(10.0)), timeout_s=own_s))
    heard = place.start([Text(0, ("x",)), Use(0, "u", "slow", timeout_s=asked_s)])
    place.drive(lambda: place.machine.sleep_s() is not None)  # on a busy machine it is read by and by
    assert place.machine.sleep_s() == 5.0
    place.clock.now += 4.9
    place.machine.expire()
    assert not heard.over
    place.clock.now += 0.2
    place.machine.expire()
    assert (heard.failed.error.code, heard.failed.index) == ("tool_timeout", 1)
    assert heard.failed.error.message == f"the tool 'slow' was not done within {limit}"
    assert place.machine.sleep_s() is None
    gate.set()
    wait_until(lambda: place.runner._left_alone.total == 0)
    assert place.posted.empty()  # what comes too late is not heard of


def test_the_time_of_the_program_bounds_its_tools(place: ToolPlace) -> None:
    gate = threading.Event()
    place.registry.register(Tool("slow", lambda: str(gate.wait(10.0))))
    heard = place.start([Text(0, ("x",)), Use(0, "u", "slow")], timeout_s=2.0)
    place.drive(lambda: place.machine.sleep_s() is not None)  # on a busy machine it is read by and by
    assert place.machine.sleep_s() == 2.0
    place.clock.now += 3.0
    place.machine.expire()
    assert heard.failed.error.code == "generation_timeout"
    assert heard.failed.error.message == "the program was not done within 2 s"
    gate.set()


def test_a_dropped_program_leaves_its_tools(place: ToolPlace) -> None:
    cancelled = threading.Event()

    async def endless() -> str:
        try:
            await asyncio.sleep(60.0)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    place.registry.register(Tool("endless", endless))
    heard = place.start(calls("endless"), keep=True)
    wait_until(lambda: place.runner._awaited.total == 1)
    place.executor.drop("p")
    assert heard.failed.error.code == "aborted"
    assert cancelled.wait(5.0)
    wait_until(lambda: place.runner._awaited.total == 0)


def test_a_deadlock_behind_a_tool_is_seen_once_it_has_ended(place: ToolPlace) -> None:
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1, 2)),
        Use(1, "u", "upper", (("text", ("a",)),)),
        Text(1, (Ref(2, "b"),)),
        Text(2, (Ref(1, "a"),)),
        Gen(2, "b", GREEDY),
        Gen(1, "a", GREEDY),
    ]
    heard = place.start(ops)
    assert not heard.over
    place.drive(lambda: heard.over)
    assert heard.failed.error.code == "invalid_program"


def test_a_tool_in_a_loop(place: ToolPlace) -> None:
    count = iter(range(100))
    place.registry.register(Tool("count", lambda: f"{next(count)};"))

    until = Compare(Ref(0, "n"), "contains", "4")
    heard = place.run([Text(0, ("x",)), Repeat(0, (Use(0, "n", "count"),), until, 50)])
    assert heard.done.texts[0] == "x0;1;2;3;4;"
    assert [event.turn for event in heard.events if isinstance(event, Value)] == [0, 1, 2, 3, 4]


# Names


def test_an_unknown_tool_is_refused_by_name(place: ToolPlace) -> None:
    error = place.refusal(calls("nothing"))
    assert "uses the tool 'nothing', which is not registered; there are: 'upper'" in error.message
    assert (error.code, error.param) == ("unknown_tool", "ops")
    late = place.refusal([Use(0, "u", "upper", (("text", ("a",)),), timeout_s=-1.0)])
    assert "timeout_s must be a positive" in late.message


def test_a_program_brings_its_own_tools(place: ToolPlace) -> None:
    own = {"mine": Tool("mine", lambda: "mine"), "upper": Tool("upper", lambda text: f"my {text}")}
    ops: list[Op] = [*calls("mine"), Use(0, "v", "upper", (("text", ("a",)),))]
    heard = place.start(ops, tools=own)
    place.drive(lambda: heard.over)
    assert heard.texts == {(0, "u"): "mine", (0, "v"): "my a"}
    assert "'mine', which is not registered" in place.refusal(calls("mine")).message


def test_the_registry_is_bounded_and_takes_no_name_twice() -> None:
    registry = ToolRegistry()
    first = Tool("first", str)
    registry.register(first)
    registry.register(first)
    with pytest.raises(RequestError, match="registered already"):
        registry.register(Tool("first", str))
    for bad in ("", "a b", "1st", "a" * 65, "a\n"):
        with pytest.raises(RequestError, match="a tool's name"):
            registry.register(Tool(bad, str))
    with pytest.raises(RequestError, match="timeout_s"):
        registry.register(Tool("late", str, timeout_s=0.0))
    with pytest.raises(RequestError, match="max_chars"):
        registry.register(Tool("mute", str, max_chars=0))
    for number in range(MAX_TOOLS - 1):
        registry.register(Tool(f"tool{number}", str))
    with pytest.raises(RequestError, match="at most 256"):
        registry.register(Tool("last", str))
    assert len(registry.tools) == MAX_TOOLS


# Arguments

SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "items": {"type": "array"},
        "kind": {"enum": ["a", "b"]},
        "level": {"enum": [1, 2]},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "number": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "point": {"$ref": "#/$defs/Point"},
        "place": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
        "any": {},
    },
    "required": ["query"],
    "$defs": {"Point": {"type": "object"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}},
}
SEARCH = Tool("search", str, parameters=SCHEMA)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("query", " 3 ", " 3 "),
        ("count", " 3\n", 3),
        ("count", "3.0", 3),
        ("ratio", "1.5", 1.5),
        ("ratio", "2", 2),
        ("flag", "true", True),
        ("items", '["a", 1]', ["a", 1]),
        ("kind", "a", "a"),
        ("level", "2", 2),
        ("maybe", "null", "null"),
        ("number", "null", None),
        ("point", '{"x": 1}', {"x": 1}),
        ("place", '{"x": 1}', {"x": 1}),
        ("any", "1", "1"),
    ],
)
def test_texts_are_read_as_their_parameters_say(name: str, text: str, value: object) -> None:
    read = read_arguments(SEARCH, {name: text})[name]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("count", "three", "the argument 'count' of tool 'search' is 'three', which is not JSON"),
        ("count", "NaN", "not JSON"),
        ("count", "1.5", "must be of type integer, but is 1.5"),
        ("count", "true", "must be of type integer"),
        ("flag", "1", "must be of type boolean"),
        ("items", "[" * 100_000, "not JSON"),
        ("items", "{}", "must be of type array"),
        ("items", f"[{' ' * (1 << 18)}]", "has 262146 characters of JSON, but 262144 is the limit"),
    ],
)
def test_texts_that_are_not_are_refused_by_name(name: str, text: str, message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        read_arguments(SEARCH, {name: text})
    assert (caught.value.code, caught.value.param) == ("tool_failed", name)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["query", "qery"], "it has no parameter 'qery'; it has 'query', 'count'"),
        (["count"], "the argument 'query' is missing"),
        (["query", "query"], "given twice"),
    ],
)
def test_names_of_arguments_are_checked_before_anything_runs(place: ToolPlace, names: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_names(SEARCH, names)
    place.registry.register(SEARCH)
    error = place.refusal([Use(0, "u", "search", tuple((name, ("a",)) for name in names))])
    assert re.search(message, error.message)
    assert error.code == "invalid_tool_call"


def test_a_schema_that_refers_to_itself_is_no_trap() -> None:
    loop = Tool("loop", str, parameters={**SCHEMA, "properties": {"x": {"$ref": "#/$defs/Loop"}}, "required": []})
    assert read_arguments(loop, {"x": "1"}) == {"x": 1}
    check_names(Tool("open", str, parameters={"type": "object"}), ["anything"])


# Threads


def collect() -> tuple[list[str | ErrorInfo], Callable[[str | ErrorInfo], None]]:
    found: list[str | ErrorInfo] = []
    return found, found.append


def test_threads_are_bounded_and_reused() -> None:
    runner = ToolRunner(max_threads=3)
    threads: set[str] = set()
    found, done = collect()

    def work() -> str:
        threads.add(str(threading.get_ident()))
        time.sleep(0.002)
        return "ok"

    for _ in range(60):
        runner.start(Tool("work", work), {}, done)
    wait_until(lambda: len(found) == 60)
    assert set(found) == {"ok"}
    assert len(threads) <= 3
    runner.close()
    wait_until(lambda: runner._num_threads == 0)


def test_calls_that_do_not_return_make_room_until_there_are_too_many() -> None:
    runner = ToolRunner(max_threads=2, max_abandoned=4)
    gate, began = threading.Event(), threading.Semaphore(0)

    def stay() -> str:
        began.release()
        return str(gate.wait(10.0))

    stuck, quick = Tool("stuck", stay), Tool("quick", lambda: "quick")
    found, done = collect()
    for _ in range(4):
        ticket = runner.start(stuck, {}, done)
        assert began.acquire(timeout=5.0)
        runner.start(quick, {}, done)
        runner.abandon(ticket)
        runner.abandon(ticket)
    with pytest.raises(OverloadedError, match="too many tool calls of this process, for which nobody waits any more"):
        runner.start(quick, {}, done)
    wait_until(lambda: found == ["quick"] * 4)
    gate.set()
    wait_until(lambda: runner._left_alone.total == 0)
    wait_until(lambda: runner._num_threads <= 2)
    runner.start(quick, {}, done)
    wait_until(lambda: found == ["quick"] * 5)
    runner.close()


def test_a_thread_that_ends_is_not_counted_while_others_decide_whether_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    take = ToolRunner._next

    def end_slowly(self: ToolRunner) -> Any:
        ticket = take(self)
        if ticket is None:
            time.sleep(0.05)
        return ticket

    monkeypatch.setattr(ToolRunner, "_next", end_slowly)
    runner = ToolRunner(max_threads=1, max_abandoned=4)
    gate = threading.Event()
    found, done = collect()
    stuck, held = Tool("stuck", lambda: str(gate.wait(10.0))), Tool("held", lambda: str(gate.wait(10.0)))
    first = runner.start(stuck, {}, done)
    wait_until(lambda: first.stage == "on a thread")
    runner.abandon(first)
    second = runner.start(held, {}, done)
    wait_until(lambda: second.stage == "on a thread")
    runner.start(Tool("quick", lambda: "quick"), {}, done)
    gate.set()
    wait_until(lambda: found == ["True", "quick"], 3.0)
    wait_until(lambda: runner._num_threads == 1)
    runner.close()


def test_a_call_that_waited_when_the_runner_was_closed_may_be_abandoned() -> None:
    runner = ToolRunner(max_threads=1)
    gate, began = threading.Event(), threading.Semaphore(0)

    def stay() -> str:
        began.release()
        return str(gate.wait(10.0))

    found, done = collect()
    runner.start(Tool("stuck", stay), {}, done)
    assert began.acquire(timeout=5.0)
    waiting = runner.start(Tool("quick", lambda: "quick"), {}, done)
    runner.close()
    runner.abandon(waiting)
    gate.set()
    wait_until(lambda: found == ["True"])


def test_calls_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.runtime.tools.registry.MAX_WAITING", 5)
    runner = ToolRunner(max_threads=1)
    gate = threading.Event()
    found, done = collect()
    first = runner.start(Tool("stuck", lambda: str(gate.wait(10.0))), {}, done)
    wait_until(lambda: first.stage == "on a thread")
    waiting = [runner.start(Tool("quick", lambda: "quick"), {}, done) for _ in range(5)]
    with pytest.raises(OverloadedError, match="too many tool calls wait"):
        runner.start(Tool("quick", lambda: "quick"), {}, done)
    for ticket in waiting[1:]:
        runner.abandon(ticket)
    gate.set()
    wait_until(lambda: found == ["True", "quick"])
    runner.close()


def test_a_program_that_is_left_does_not_begin_its_other_calls() -> None:
    """Its calls are left one after the other; those still waiting must not take the places of those that run."""
    gate, begun = threading.Event(), []

    class Slow:
        name, timeout_s, max_chars, parameters = "slow", None, 100, None

        def call(self, arguments: dict[str, object]) -> str:
            begun.append(1)
            gate.wait(10.0)
            return ""

    runner = ToolRunner(max_threads=4, max_abandoned=6)
    tickets = [runner.start(Slow(), {}, lambda _: None) for _ in range(200)]
    deadline = time.monotonic() + 5.0
    while len(begun) < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    for ticket in tickets:
        runner.abandon(ticket)
        time.sleep(0.0005)
    assert len(begun) <= 4 + 6
    gate.set()
    runner.close()


@pytest.mark.parametrize("idle", [False, True])
def test_one_return_that_makes_room_for_two_owners_has_both_begin(idle: bool) -> None:
    runner = ToolRunner(max_threads=4, max_abandoned=2)
    gates = {name: threading.Event() for name in ("first", "others")}
    begun: list[str] = []

    def begin(client: str, gate: str = "others", number: str = "") -> Ticket:
        def stay() -> str:
            begun.append(client + number)
            return str(gates[gate].wait(10.0))

        return runner.start(Tool("stay", stay), {}, lambda _: None, Owner(client, client))

    tickets = [begin("a"), begin("a"), begin("b", "first"), begin("b")]
    wait_until(lambda: len(begun) == 4)
    runner.abandon(tickets[0])
    if idle:
        runner.start(Tool("quick", str), {}, lambda _: None, Owner("c", "c"))
        wait_until(lambda: runner._num_idle == 1)
    begin("a", number=" waits")
    begin("b", number=" waits")
    time.sleep(0.1)  # an idle thread has looked in vain
    assert len(begun) == 4
    gates["first"].set()
    wait_until(lambda: set(begun[4:]) == {"a waits", "b waits"}, 3.0)
    assert runner._num_threads == 5  # one of them left alone
    gates["others"].set()
    runner.close()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Has no thread for tools be started, or has them be started again."""
    begin = threading.Thread.start

    def fail(self: threading.Thread) -> None:
        if self.name in {"bough-tool", "bough-async-tools"}:
            raise RuntimeError("can't start new thread")
        begin(self)

    return lambda fails: monkeypatch.setattr(threading.Thread, "start", fail if fails else begin)


def test_no_more_threads_end_than_there_are_too_many() -> None:
    runner = ToolRunner(max_threads=1)
    runner._num_threads = 2  # as after an abandoned call has returned
    assert runner._next() is None
    ticket = runner.start(Tool("work", lambda: "found"), {}, lambda _: None)
    assert runner._next() is ticket


def test_threads_that_cannot_be_started_are_tried_again(no_threads: Callable[[bool], None]) -> None:
    runner = ToolRunner()
    found, done = collect()
    no_threads(True)
    for _ in range(MAX_THREADS + 1):
        with pytest.raises(OverloadedError, match="no thread can be started"):
            runner.start(Tool("quick", lambda: "early"), {}, done)
    no_threads(False)
    runner.start(Tool("quick", lambda: "late"), {}, done)
    wait_until(lambda: bool(found))
    assert found == ["late"]  # those that were refused are not called
    runner.close()


def test_calls_wait_for_the_threads_that_there_are(no_threads: Callable[[bool], None]) -> None:
    runner = ToolRunner()
    found, done = collect()
    gate = threading.Event()
    first = runner.start(Tool("slow", lambda: str(gate.wait(10.0))), {}, done)
    wait_until(lambda: first.stage == "on a thread")
    no_threads(True)
    runner.start(Tool("quick", lambda: "quick"), {}, done)
    gate.set()
    wait_until(lambda: found == ["True", "quick"])
    runner.close()


def test_a_coroutine_without_a_loop_to_run_on_fails_alone(no_threads: Callable[[bool], None]) -> None:
    runner = ToolRunner()
    found, done = collect()
    runner.start(Tool("quick", lambda: "quick"), {}, done)
    wait_until(lambda: found == ["quick"])
    no_threads(True)
    runner.start(Tool("later", later), {}, done)
    wait_until(lambda: len(found) == 2)
    assert isinstance(found[1], ErrorInfo) and "can't start new thread" in found[1].message
    no_threads(False)
    runner.start(Tool("later", later), {}, done)
    wait_until(lambda: found[2:] == ["later"])
    runner.close()


@pytest.mark.parametrize("name", ["new_event_loop", "run_coroutine_threadsafe"])
def test_a_coroutine_that_cannot_be_handed_to_a_loop_fails_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    runner = ToolRunner(max_threads=2, max_abandoned=2)
    found, done = collect()
    owner = Owner("client", "program")
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, name, fail)
        for number in range(8):
            runner.start(Tool("later", later), {}, done, owner)
            wait_until(lambda: len(found) == number + 1)  # noqa: B023
    for error in found:
        assert isinstance(error, ErrorInfo)
        assert error.code == "tool_failed" and "Too many open files" in error.message
    wait_until(lambda: runner._on_threads.total == runner._awaited.total == 0)
    runner.start(Tool("later", later), {}, done, owner)
    wait_until(lambda: found[8:] == ["later"])
    runner.close()


class Proxy:
    """Stands for an object that is not there, as a lazy proxy of a web framework does outside of a request."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise LookupError("there is no request")


class MuteError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def mute() -> str:
    raise MuteError


async def later_proxy() -> Any:
    return Proxy()


async def later_mute() -> str:
    raise MuteError


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Proxy, "there is no request"),
        (later_proxy, "there is no request"),
        (mute, "MuteError"),
        (later_mute, "MuteError"),
    ],
)
def test_results_and_errors_that_cannot_be_looked_at_fail_alone(function: Callable[[], Any], message: str) -> None:
    runner = ToolRunner(max_threads=1)
    found, done = collect()
    runner.start(Tool("odd", function), {}, done)
    wait_until(lambda: bool(found))
    assert isinstance(found[0], ErrorInfo) and message in found[0].message
    runner.start(Tool("quick", lambda: "quick"), {}, done)
    wait_until(lambda: found[1:] == ["quick"])
    runner.close()


def test_a_caller_that_fails_on_a_result_leaves_the_thread_to_the_others() -> None:
    runner = ToolRunner(max_threads=1)
    found, done = collect()
    runner.start(Tool("quick", lambda: "lost"), {}, lambda _: sys.exit(3))
    runner.start(Tool("quick", lambda: "quick"), {}, done)
    wait_until(lambda: found == ["quick"])
    runner.close()


def test_too_many_calls_that_do_not_return_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    runner = ToolRunner(max_abandoned=2)
    gate = threading.Event()
    _, done = collect()
    for number in range(2):
        ticket = runner.start(Tool(f"stuck{number}", lambda: str(gate.wait(10.0))), {}, done)
        wait_until(lambda: ticket.stage == "on a thread")  # noqa: B023
        runner.abandon(ticket)
        assert runner.num_abandoned == number + 1
    for _ in range(3):
        with pytest.raises(OverloadedError):
            runner.start(Tool("quick", lambda: "quick"), {}, done)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1 and "2 tool calls have not returned" in errors[0] and "'stuck1'" in errors[0]
    gate.set()
    wait_until(lambda: runner.num_abandoned == 0)
    runner.close()


async def exits() -> str:
    sys.exit(3)


async def spawns_what_exits() -> str:
    task = asyncio.ensure_future(exits())
    await asyncio.sleep(0)
    await asyncio.wait([task])
    assert isinstance(task.exception(), SystemExit)
    return "went on"


@pytest.mark.parametrize(("tool", "outcome"), [(exits, None), (spawns_what_exits, "went on")])
def test_a_coroutine_that_exits_leaves_the_loop_to_the_others(
    tool: Callable[[], Awaitable[str]], outcome: str | None
) -> None:
    runner = ToolRunner()
    outcomes, done = collect()
    runner.start(Tool("exits", tool), {}, done)
    wait_until(lambda: len(outcomes) == 1)
    if outcome is None:
        assert isinstance(outcomes[0], ErrorInfo)
        assert outcomes[0].code == "tool_failed"
    else:
        assert outcomes == [outcome]
    runner.start(Tool("later", later), {}, done)
    wait_until(lambda: len(outcomes) == 2)
    assert outcomes[1] == "later"
    runner.close()
