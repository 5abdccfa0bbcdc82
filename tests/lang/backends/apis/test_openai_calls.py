"""Programs over an API of OpenAI's form: side by side, with tools, and against hostile answers."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from bough.lang.api import assistant, function, gen, user
from bough.lang.backends.apis.openai import OpenAI
from bough.lang.backends.mock import MockBackend
from bough.lang.control import repeat_until, times, var, when
from bough.lang.diagnostics.errors import ProgramError
from bough.lang.tools.tool import tool, use
from bough.runtime.protocol.program import Cancel, Delta, Done, Fork, Gen, Join, Program, Text

from .api_programs import capital, completed
from .fake_api import Answer, Exchange, saying, serving

# Side by side


def test_branches_are_asked_for_at_the_same_time(api: Any) -> None:
    together = threading.Barrier(3, timeout=5.0)

    def answer(exchange: Exchange) -> None:
        together.wait()
        exchange.say(f" {exchange.body['prompt'][-1]}")

    _, backend = api(answer)

    @function
    def body(s: Any) -> None:
        s += "x"
        branches = s.fork(3)
        branches += lambda i: f"{i}" + gen("y")
        branches.join("append")

    assert body.run(backend=backend)["y"] == [" 0", " 1", " 2"]


def test_concurrency_is_bounded(api: Any) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def answer(exchange: Exchange) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        exchange.say("x")

    _, backend = api(answer, max_concurrency=2)
    states = completed.run_batch([{}] * 6, backend=backend)
    assert [state.error() for state in states] == [None] * 6
    assert most == 2


def test_cancelling_a_branch_closes_its_connection(api: Any) -> None:
    def answer(exchange: Exchange) -> None:
        if exchange.body["prompt"].endswith("b"):
            exchange.say("quick")
            return
        exchange.begin()
        while True:
            exchange.event({"choices": [{"index": 0, "text": "z"}]})
            time.sleep(0.002)

    server, backend = api(answer)
    ops = (Text(0, ("x",)), Fork(0, (1, 2)), Text(2, ("b",)), Gen(1, "long"), Gen(2, "short"))
    first = backend.run(Program(id="p", ops=ops, keep=True))
    while not isinstance(next(first), Delta):
        pass
    second = list(backend.run(Program(id="p", ops=(Cancel(1), Join(0, (1, 2), "append")), resume=True)))
    assert server.left.wait(5.0)
    assert isinstance(list(first)[-1], Done)
    assert isinstance(second[-1], Done) and second[-1].texts[0] == "xbquick"


def test_leaving_a_program_closes_its_connection(api: Any) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.begin()
        while True:
            exchange.event({"choices": [{"index": 0, "text": "z"}]})
            time.sleep(0.002)

    server, backend = api(answer)
    events: Any = backend.run(Program(id="p", ops=(Text(0, ("x",)), Gen(0, "y"))))
    next(events)
    events.close()
    assert server.left.wait(5.0)


def test_the_same_on_an_event_loop(api: Any) -> None:
    _, backend = api(lambda exchange: exchange.say(exchange.body["messages"][-1]["content"][-4:]))

    async def main() -> list[str]:
        states = await asyncio.gather(*(capital.arun(f"{i}{i}{i}", backend=backend) for i in range(20)))
        return [state["city"] for state in states]

    assert asyncio.run(main()) == [f"{i}{i}{i}?"[-4:] for i in range(20)]


def test_a_time_limit_ends_a_generation(api: Any) -> None:
    release = threading.Event()
    _, backend = api(lambda exchange: release.wait(5.0))
    with pytest.raises(ProgramError, match=r"not done within 0\.05 s") as caught:
        function(lambda s: s.__iadd__("x" + gen("x", timeout_s=0.05))).run(backend=backend)
    assert caught.value.code == "generation_timeout"
    release.set()


# Tools, conditions and loops


@tool
def weather(town: str, days: int) -> str:
    """The weather of some days."""
    return f"{town}: {'sun ' * days}"


@tool(timeout_s=0.05)
async def slow(text: str) -> str:
    """Never comes to an end."""
    await asyncio.sleep(60)
    return text


@function
def agent(s: Any) -> None:
    s += user("What is the weather in Ulm?")

    def step(s: Any) -> None:
        s += assistant(gen("action", stop="\n"))
        s += user(use("seen", weather, town="Ulm", days=s.ref("action")))

    s += repeat_until(times("seen") == 2, step, at_most=5)
    s += when(var("seen").contains("sun sun"), assistant(gen("good")), assistant(gen("bad")))


def test_loops_conditions_and_tools_run_over_the_api(api: Any) -> None:
    server, backend = api(saying("1", "2", "It is fine."))
    state = agent.run(backend=backend)
    assert (state["good"], state["bad"], state["seen"]) == ("It is fine.", None, "Ulm: sun sun ")
    assert state.history("action") == ["1", "2"]
    assert [message["content"] for message in server.bodies[-1]["messages"]] == [
        "What is the weather in Ulm?", "1", "Ulm: sun ", "2", "Ulm: sun sun ",
    ]  # fmt: skip
    mock = MockBackend({"action": ["1", "2"], "good": "It is fine."})
    assert agent.run(backend=mock).values() == state.values()
    answered = MockBackend({"action": "1", "seen": "sun sun", "good": "x"})
    assert agent.run(backend=answered)["seen"] == "sun sun"


@pytest.mark.parametrize("where", ["api", "mock"])
def test_a_tool_that_takes_too_long_or_gets_nonsense_is_an_error(api: Any, where: str) -> None:
    backend = api(saying("x"))[1] if where == "api" else MockBackend()
    with pytest.raises(ProgramError, match=r"'slow' was not done within 0\.05 s") as caught:
        function(lambda s: s.__iadd__("a" + use("x", slow, text="t"))).run(backend=backend)
    assert caught.value.code == "tool_timeout"
    with pytest.raises(ProgramError, match="'days' of tool 'weather'") as caught:
        function(lambda s: s.__iadd__("a" + gen("w") + use("x", weather, town="t", days=var("w")))).run(backend=backend)


# Hostile answers


def test_overload_is_tried_again_as_the_server_asks(api: Any) -> None:
    def answer(exchange: Exchange) -> None:
        if exchange.number == 0:
            exchange.refuse(429, "slow down", Retry_After="0.05")
        elif exchange.number == 1:
            exchange.refuse(503)
        else:
            exchange.say("fine")

    _, backend = api(answer)
    start = time.monotonic()
    assert completed.run(backend=backend)["next"] == "fine"
    assert time.monotonic() - start >= 0.05


@pytest.mark.parametrize("headers", [{}, {"Retry_After": "100000"}, {"Retry_After": "nonsense"}])
def test_a_storm_of_refusals_ends_in_an_error(api: Any, headers: dict[str, str]) -> None:
    _, backend = api(lambda exchange: exchange.refuse(429, "slow down", **headers))
    with pytest.raises(ProgramError, match="status 429: slow down") as caught:
        completed.run(backend=backend)
    assert caught.value.code == "some_error"
    assert backend.calls == (1 if headers.get("Retry_After") == "100000" else 3)


def test_a_refusal_that_nothing_will_change_is_not_tried_again(api: Any) -> None:
    _, backend = api(lambda exchange: exchange.refuse(401, "no such key"))
    with pytest.raises(ProgramError, match="no such key"):
        completed.run(backend=backend)
    assert backend.calls == 1


def broken(*pieces: bytes, ends: bool = True) -> Answer:
    def answer(exchange: Exchange) -> None:
        exchange.begin(last=True)
        for piece in pieces:
            exchange.chunk(piece)
        if ends:
            exchange.end()
        exchange.close_connection = True

    return answer


GOOD = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'


@pytest.mark.parametrize(
    ("answer", "message", "calls"),
    [
        (broken(), "ended in the middle", 3),
        (broken(GOOD), "ended in the middle", 1),
        (broken(GOOD, ends=False), "cannot be reached", 1),
        (broken(b"data: {nonsense\n\n"), "event that is not one", 1),
        (broken(b"data: \xff\xff\n\n"), "not UTF-8", 1),
        (broken(b'data: {"choices": []}\n\ndata: [DONE]\n\n'), "holds no text", 3),
        (broken(b'data: {"choices": [{"index": 7, "text": "a"}]}\n\n'), "nobody asked for", 1),
        (broken(b'data: {"error": {"message": "out of memory"}}\n\n'), "broke off: out of memory", 3),
        (broken(b"data: " + b"x" * (5 << 20)), "longer than any text", 1),
        (broken(b'data: {"choices": [{"index": 0, "finish_reason": "content_filter"}]}\n\n'), "content filter", 1),
    ],
)
def test_what_is_no_answer_is_an_error(api: Any, answer: Answer, message: str, calls: int) -> None:
    _, backend = api(answer)
    with pytest.raises(ProgramError, match=message):
        completed.run(backend=backend)
    assert backend.calls == calls


def test_an_answer_that_is_cut_in_odd_places_is_read(api: Any) -> None:
    text = 'data: {"choices": [{"index": 0, "text": " drei ☃", "finish_reason": "stop"}]}\r\n\r\n: note\n\n'
    data = f"{text}data: [DONE]\n\n".encode()
    _, backend = api(broken(*(data[i : i + 1] for i in range(len(data)))))
    assert completed.run(backend=backend)["next"] == " drei ☃"


def test_nobody_there_is_an_error() -> None:
    with serving(saying("x")) as server:
        url = server.url
    with OpenAI("m", base_url=url, max_retries=0) as backend, pytest.raises(ProgramError, match="cannot be reached"):
        completed.run(backend=backend)


def test_a_closed_backend_says_so(api: Any) -> None:
    _, backend = api(saying("x"))
    backend.close()
    backend.close()
    with pytest.raises(ProgramError, match="closed"):
        completed.run(backend=backend)
