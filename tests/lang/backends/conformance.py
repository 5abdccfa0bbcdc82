"""Programs that every backend has to carry out alike, and what must come of each: shapes, since models differ."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import bough
from bough.lang.backend import Backend
from bough.runtime.protocol.program import Delta, Done, Value

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}
ATTEMPTS: dict[str, int] = {}
BEGUN, LEFT = threading.Event(), threading.Event()
"""Set when the tool `later` begins, and when it has been stopped or has come to its end."""


@bough.tool
def echo(text: str) -> str:
    return f"<{text}>"


@bough.tool
def fail(text: str) -> str:
    raise ValueError(text)


@bough.tool
def refuse() -> str:
    raise ValueError("no")


@bough.tool
def unsteady(key: str) -> str:
    """Fails each second time, the first included."""
    ATTEMPTS[key] = ATTEMPTS.get(key, 0) + 1
    if ATTEMPTS[key] % 2:
        raise ValueError("not yet")
    return "now"


@bough.tool
async def later(text: str) -> str:
    BEGUN.set()
    try:
        await asyncio.sleep(20)
    finally:
        LEFT.set()
    return text


@bough.tool(timeout_s=0.05)
async def late() -> str:
    await asyncio.sleep(20)
    return "never"


TOOLS = (echo, fail, refuse, unsteady, later, late)


@dataclass
class Point:
    x: int
    kind: Literal["up", "down"]


def forget() -> None:
    BEGUN.clear()
    LEFT.clear()


def await_begin(backend: Backend) -> None:
    """Waits for the tool `later`, which in playback is not called."""
    if getattr(backend, "mode", "") != "replay":
        assert BEGUN.wait(5)


def error_of(act: Callable[[], object]) -> bough.ProgramError:
    try:
        act()
    except bough.ProgramError as error:
        return error
    raise AssertionError("nothing was raised")


def run(backend: Backend, body: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return bough.function(body).run(*args, backend=backend, **GREEDY, **options)


def values(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "The word " + bough.gen("a", regex="[ab]{3}") + ", " + bough.gen("b", stop=["e"])
        s += f" {s['a']} " + bough.gen("a", choices=["x", "y"])

    state = run(backend, body)
    first, second = state.history("a")
    return len(first), second in ("x", "y"), state["a"] == second, f" {first} {second}" in state.text()


def forks(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "To do:"
        branches = s.fork(3)
        branches += lambda index: f"\n{index}. " + bough.gen("item", regex="[ab]{2}")
        branches.join("append")
        s += "\n" + bough.gen("end", regex="[cd]")

    state = run(backend, body)
    items = state["item"]
    wanted = "To do:" + "".join(f"\n{index}. {item}" for index, item in enumerate(items)) + "\n" + state["end"]
    return len(items), {len(item) for item in items}, state.text() == wanted


def choices(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "Hot or cold? " + bough.select("c", ["hot", "cold"])

    state = run(backend, body)
    chances = state.probabilities("c")
    best = max(chances, key=chances.__getitem__) if isinstance(chances, dict) else None
    return sorted(chances), round(sum(chances.values()), 6), state["c"] == best


def failure(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "x" + bough.gen("before", regex="[ab]")
        branches = s.fork(3, isolated=True)
        branches[0] += bough.gen("v", regex="[cd]")
        branches[1] += bough.use("v", fail, text="bad")
        branches[2] += bough.use("v", echo, text="good")
        branches.join(errors="value")
        s += bough.gen("after", regex="[ab]")

    found = run(backend, body)["v"]
    return [value.code if isinstance(value, bough.ProgramError) else len(value) for value in found]


def whole_failure(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "x" + bough.gen("before", regex="[ab]")
        s += bough.use("v", fail, text="bad") + bough.gen("after", regex="[ab]")

    error = error_of(lambda: run(backend, body))
    assert error.place is not None
    unread = error_of(lambda: error.state["after"])
    return error.code, error.param, error.place.function, len(error.state["before"]), unread.code


def retry(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "x"
        branches = s.fork(1, isolated=True, retries=1)
        branches[0] += "a" + bough.gen("w", regex="[ab]") + bough.use("v", unsteady, key=bough.var("w"))
        branches.join("append")
        s += bough.gen("after", regex="[ab]")

    ATTEMPTS.clear()
    state = run(backend, body)
    assert [*ATTEMPTS.values()] in ([2], []), "in playback no tool is called"
    return state["v"], len(state.text())


def tools(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "q: " + bough.gen("q", regex="[ab]{2}") + " = " + bough.use("r", echo, text=bough.var("q")) + "."

    state = run(backend, body)
    return state["r"] == f"<{state['q']}>", state.text() == f"q: {state['q']} = {state['r']}."


def tool_time_out(backend: Backend) -> object:
    error = error_of(lambda: run(backend, lambda s: s.__iadd__("x" + bough.use("v", late))))
    return error.code, error.param


def conditions(backend: Backend) -> object:
    def turn(s: Any) -> None:
        s += bough.gen("w", regex="[ab]")

    def body(s: Any) -> None:
        s += "x"
        s += bough.repeat_until(bough.times("w") >= 3, turn, at_most=5)
        s += bough.when(bough.var("w").matches("[ab]"), bough.gen("yes", regex="y"), bough.gen("no", regex="n"))

    state = run(backend, body)
    return len(state.history("w")), state["yes"], state["no"], state["w"] == state.history("w")[-1]


def cancelled(backend: Backend) -> object:
    def body(s: Any) -> Any:
        s += "x"
        branches = s.fork(2)
        branches[0] += bough.use("v", later, text="a")
        branches[1] += bough.gen("v", regex="[ab]")
        first = branches[1]["v"]
        await_begin(backend)
        branches[0].cancel()
        return first, branches[0]

    forget()
    begin = time.monotonic()
    state = run(backend, body)
    first, branch = state.ret_value
    assert time.monotonic() - begin < 10
    return len(first), error_of(lambda: branch["v"]).code


def out_of_time(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "x" + bough.gen("before", regex="[ab]") + bough.use("v", later, text="a")

    forget()
    begin = time.monotonic()
    error = error_of(lambda: run(backend, body, timeout_s=1.0))
    assert time.monotonic() - begin < 10
    return error.code, len(error.state["before"])


def stream(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "x" + bough.gen("a", regex="[ab]{4}") + "-" + bough.gen("b", regex="[cd]{4}")

    order: list[str] = []
    texts = {"a": "", "b": ""}
    for event in bough.function(body).stream(backend=backend, **GREEDY):
        if isinstance(event, Delta):
            texts[event.name] += event.text
        if isinstance(event, Delta | Value) and (not order or order[-1] != event.name):
            order.append(event.name)
        if isinstance(event, Value):
            assert event.text == texts[event.name]
    return order, type(event).__name__, {name: len(text) for name, text in texts.items()}


def typed(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "n " + bough.gen("n", int, max_tokens=20) + " p " + bough.gen("p", Point, max_tokens=60)
        s += " k " + bough.gen("k", Literal["up", "down"])

    state = run(backend, body)
    return type(state["n"]), type(state["p"]), state["k"] in ("up", "down")


def asked_again(backend: Backend) -> object:
    """A value that its check refuses at first: what the model is told then, what the text goes on with."""
    seen: list[str] = []

    def check(text: str) -> bool | None:
        seen.append(text)
        if len(seen) < 3:
            raise ValueError(f"not {text}, the {len(seen)} time")
        return None

    def body(s: Any) -> None:
        s += bough.user("Two letters?")
        s += bough.assistant("They are " + bough.gen("v", regex="[ab]{2}", retries=2, check=check) + ".")
        s += bough.user("One?") + bough.assistant(bough.gen("w", regex="[ab]"))

    state = run(backend, body, trace=True)
    said = [message["content"] for message in state.messages()]
    told = "".join("".join(piece.texts) for piece in state.timeline().pieces)
    rounds = [f"not {text}, the {index} time" in told for index, text in enumerate(seen[:2], start=1)]
    calls = [call.finish_reason == "refused" for call in state.timeline().calls()]
    return len(seen), said[1] == f"They are {seen[-1]}.", len(said), rounds, calls, state["v"] in state.history("v")


def several(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "x" + bough.gen("v", regex="[ab]{2}", n=3, temperature=1.0)

    found = bough.function(body).run(backend=backend)["v"]
    return len(found), {len(text) for text in found}


def usage(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "one two " + bough.gen("a", regex="[ab]{2}") + bough.gen("b", regex="[ab]{2}")

    *_, done = bough.function(body).stream(backend=backend, **GREEDY)
    assert isinstance(done, Done)
    return done.requests, done.usage.prompt_tokens > 0, done.usage.completion_tokens > 0


def unknown(backend: Backend) -> object:
    def body(s: Any) -> None:
        s += "x" + bough.gen("a", regex="[ab]") + bough.use("v", "nobody")

    error = error_of(lambda: run(backend, body))
    assert error.place is not None
    return error.code, error.place.function, type(error.instruction).__name__


def left(backend: Backend) -> object:
    """A stream that is left while a tool runs."""

    def body(s: Any) -> None:
        s += "x" + bough.gen("a", regex="[ab]") + bough.use("v", later, text="a")

    forget()
    with bough.function(body).stream(backend=backend, **GREEDY) as events:
        for event in events:
            if isinstance(event, Value):
                assert BEGUN.wait(5)
                break
    return error_of(lambda: events.state["v"]).code


def tasks(backend: Backend) -> object:
    """Runs on an event loop, one of them cancelled in the middle; no task is left behind."""

    def quick(s: Any, index: int) -> None:
        s += f"{index}" + bough.gen("a", regex="[ab]{2}")

    def slow(s: Any) -> None:
        s += "x" + bough.gen("a", regex="[ab]") + bough.use("v", later, text="a")

    async def main() -> object:
        forget()
        before = asyncio.all_tasks()
        running = asyncio.create_task(bough.function(slow).arun(backend=backend, **GREEDY))
        states = await asyncio.gather(
            *(bough.function(quick).arun(index, backend=backend, **GREEDY) for index in range(4))
        )
        while not BEGUN.is_set():
            await asyncio.sleep(0.001)
        running.cancel()
        ended = await asyncio.gather(running, return_exceptions=True)
        aclose = getattr(backend, "aclose", None)
        if aclose is not None:
            await aclose()
        await asyncio.sleep(0)
        return [len(state["a"]) for state in states], type(ended[0]).__name__, len(asyncio.all_tasks() - before)

    return asyncio.run(main())


def called(backend: Backend) -> object:
    """Calls that the model makes by itself, and what it goes on with."""

    def body(s: Any) -> None:
        s += bough.user("Say something.")
        s += bough.call_tools("a", [echo, fail], echo, max_turns=2, regex="[ab]{2}", max_tokens=64)
        s += bough.user("Again?") + bough.assistant("It is " + bough.gen("b", regex="[ab]") + ".")

    state = run(backend, body)
    (call,) = state.calls("a")
    roles = [message["role"] for message in state.messages()]
    said = [message["content"] for message in state.messages() if message["role"] == "tool"]
    return call.name, call.result == f"<{call.arguments['text']}>", said == [call.result], len(state["a"]), roles


def called_in_vain(backend: Backend) -> object:
    """A tool that fails: the model is told so, and the program goes on, with a last turn that may not call."""

    def body(s: Any) -> None:
        s += bough.system("Be brief.") + bough.user("Say something.")
        s += bough.assistant(bough.gen("a", tools=[refuse], tool_choice="required", max_turns=2, max_tokens=48))

    with bough.function(body).stream(backend=backend, **GREEDY) as events:
        *_, done = events
    assert isinstance(done, Done)
    calls = events.state.calls("a")
    return {call.error is not None for call in calls}, events.state["a"] is not None, done.requests


CASES: dict[Callable[[Backend], object], object] = {
    values: (3, True, True, True),
    forks: (3, {2}, True),
    choices: (["cold", "hot"], 1.0, True),
    failure: [1, "tool_failed", 6],
    whole_failure: ("tool_failed", "fail", "body", 1, "tool_failed"),
    retry: (["now"], 7),
    tools: (True, True),
    called: ("echo", True, True, 2, ["user", "assistant", "tool", "assistant", "user", "assistant"]),
    called_in_vain: ({True}, True, 2),
    tool_time_out: ("tool_timeout", "late"),
    conditions: (3, "y", None, True),
    cancelled: (1, "cancelled"),
    out_of_time: ("generation_timeout", 1),
    stream: (["a", "b"], "Done", {"a": 4, "b": 4}),
    typed: (int, Point, True),
    asked_again: (3, True, 4, [True, True], [True, True, False, False], True),
    several: (3, {2}),
    usage: (2, True, True),
    unknown: ("unknown_tool", "body", "Use"),
    left: "aborted",
    tasks: ([2, 2, 2, 2], "CancelledError", 0),
}
STOPPING = (cancelled, out_of_time, left, tasks)
"""Those that leave a tool running, which has to be stopped."""
LIVE = (left, tasks)
"""Those of which a recording has no end."""
