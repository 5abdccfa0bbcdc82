"""Keys take what they may and no more: a minute, at a time, by name; the others notice nothing."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import openai
import pytest

from bough.lang.tools.tool import tool
from bough.runtime.protocol.errors import (
    BoughError,
    EngineStartingError,
    EngineStoppedError,
    EngineStuckError,
    OverloadedError,
)
from bough.runtime.protocol.program import Delta, Gen, Program, Text, Use
from bough.runtime.protocol.request import Finish, RequestOutput, Usage
from bough.server.config import KeyLimits
from bough.server.errors import ApiError
from bough.server.http.access import Account, Bill, Bucket, Caller, Visit
from bough.server.http.keys import parse_keys

from ...runtime.listening import Clock
from ..conftest import Running, Start
from ..fake_client import FakeClient, Script

HI: Any = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def start_with(start: Start, limits: str, engine: FakeClient | None = None) -> Running:
    return start(engine, keys=parse_keys([f"alice key-a {limits}", "bob key-b", "root key-r admin"]))


def chat(server: Running, key: str = "key-a", **more: Any) -> httpx.Response:
    return server.http(headers=bearer(key)).post(CHAT, json={"model": "m", "messages": HI, **more})


# The account


@pytest.mark.parametrize("seed", range(20))
def test_a_bucket_gives_what_is_due(seed: int) -> None:
    """In no time span more than the rate and one full bucket begins, and whoever waits as told gets it."""
    rng, clock = random.Random(seed), Clock()
    size = rng.choice((1, 7, 60, 1000))
    bucket = Bucket(size, clock)
    taken: list[tuple[float, int]] = []
    for _ in range(300):
        clock.now += rng.choice((0.0, 0.01, 1.0, 30.0)) * rng.random()
        if bucket.left < 1:
            wait_s = bucket.wait_s(1)
            assert wait_s > 0
            clock.now += wait_s
        assert 1 - 1e-6 <= bucket.left <= size
        amount = rng.randint(1, 3)
        bucket.take(amount)
        taken.append((clock.now, amount))
    for start in range(0, 300, 17):
        begun = taken[start][0]
        total = 0
        for moment, amount in taken[start:]:
            total += amount
            assert total - amount < size * (1 + (moment - begun) / 60) + 1e-6  # the last may take too much


def test_tokens_that_were_not_foreseen_are_paid_back() -> None:
    clock = Clock()
    account = Account(Caller("alice", limits=KeyLimits(tokens_per_minute=600)), clock)
    account.enter()
    account.charge(Usage(prompt_tokens=500, completion_tokens=700))
    with pytest.raises(ApiError, match="600 tokens a minute") as caught:
        account.enter()
    assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
    assert caught.value.headers["retry-after"] == "61"
    clock.now += 60.2
    account.enter()
    assert account.refused == {"tokens_per_minute": 1}
    assert account.used.completion_tokens == 700


# Over HTTP


def test_requests_a_minute(start: Start) -> None:
    server = start_with(start, "requests_per_minute=3")
    answers = [chat(server) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0", "0"]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "3"
    assert answers[0].headers["x-ratelimit-reset-requests"] == "20s"
    assert 19 <= int(answers[3].headers["retry-after"]) <= 20
    assert answers[3].json()["error"]["type"] == "rate_limit_error"
    other = chat(server, "key-b")
    assert other.status_code == 200
    assert not any(name.startswith("x-ratelimit") for name in other.headers)
    with pytest.raises(openai.RateLimitError):
        server.openai(key="key-a").chat.completions.create(model="m", messages=HI)
    assert server.http(headers=bearer("key-a")).get("/v1/models").status_code == 200  # reading costs nothing


def test_tokens_a_minute(start: Start) -> None:
    server = start_with(start, "tokens_per_minute=20")  # a prompt of 9 bytes, an answer of 5
    answers = [chat(server) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["x-ratelimit-limit-tokens"] == "20"
    page = server.http(headers=bearer("key-r")).get("/metrics").text
    assert 'bough_key_tokens_total{key="alice",kind="prompt"} 18' in page
    assert 'bough_key_tokens_total{key="alice",kind="completion"} 10' in page
    assert 'bough_key_refused_total{key="alice",limit="tokens_per_minute"} 1' in page
    assert 'bough_key_requests_total{key="alice"} 2' in page


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("error", [EngineStartingError, EngineStuckError, EngineStoppedError, OverloadedError])
def test_what_the_engine_did_not_take_costs_nothing(start: Start, error: type[BoughError], stream: bool) -> None:
    """A client that obeys `retry-after` during a restart is not locked out by its limit."""
    script = Script(refuse=error("not now"))
    server = start_with(start, "tokens_per_minute=20", FakeClient(lambda _: script))
    for _ in range(5):
        refused = chat(server, stream=stream, n=2)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, error.code)
        assert refused.headers["x-ratelimit-remaining-tokens"] == "20"
    script = Script()
    assert chat(server).status_code == 200
    assert 'bough_key_requests_total{key="alice"} 6' in server.http(headers=bearer("key-r")).get("/metrics").text


def test_what_an_engine_wrote_before_it_died_is_paid(start: Start) -> None:
    server = start_with(start, "tokens_per_minute=50", FakeClient(lambda _: Script(die=EngineStoppedError("gone"))))
    assert chat(server, stream=True).status_code == 200
    assert int(chat(server).headers["x-ratelimit-remaining-tokens"]) < 40


def test_a_client_that_leaves_pays_for_what_it_got(start: Start) -> None:
    engine = FakeClient(lambda _: Script(pieces=("x",) * 1000, delay_s=0.005))
    server = start_with(start, "tokens_per_minute=1000", engine)
    with server.http(headers=bearer("key-a")).stream(
        "POST", CHAT, json={"model": "m", "messages": HI, "stream": True}
    ) as answer:
        lines = answer.iter_lines()
        for _ in range(40):
            next(lines)
    assert server.wait_for(lambda: bool(engine.aborted), 5.0)
    page = server.http(headers=bearer("key-r")).get("/metrics").text
    counted = [line for line in page.splitlines() if 'key="alice",kind="completion"' in line]
    assert 5 <= int(counted[0].split()[1]) < 1000


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_pays_for_what_was_generated(start: Start, stream: bool) -> None:
    """Once, whatever of it was read, for each of its generations."""
    engine = FakeClient(
        lambda _: Script(pieces=("x",) * 1000, delay_s=0.01), spent=Usage(prompt_tokens=9, completion_tokens=700)
    )
    server = start_with(start, "tokens_per_minute=100000", engine)
    body = {"model": "m", "messages": HI, "n": 4, "stream": stream}
    http = server.http(headers=bearer("key-a"), timeout=0.5)
    with contextlib.suppress(httpx.ReadTimeout), http.stream("POST", CHAT, json=body) as answer:
        next(answer.iter_lines())
    assert server.wait_for(lambda: len(engine.aborted) == 4, 5.0)
    assert server.wait_for(lambda: tokens_of(server, "completion") == 2800)
    assert tokens_of(server, "prompt") == 36


def output(num_tokens: int, told: Usage | None = None) -> RequestOutput:
    return RequestOutput(
        id="r", tokens=(1,) * num_tokens, finish=None if told is None else Finish(reason="abort", usage=told)
    )


@pytest.mark.parametrize("order", [*itertools.permutations(["read", "settle", "pay"])])
def test_a_generation_is_paid_once_in_whatever_order_it_ends(order: tuple[str, ...]) -> None:
    visit = Visit(Account(Caller("alice")))
    bill = Bill(visit, 5)
    steps = {
        "read": lambda: bill.add(output(3)),
        "settle": lambda: bill.settle(output(0, Usage(prompt_tokens=5, completion_tokens=70))),
        "pay": bill.pay,
    }
    for step in order:
        steps[step]()
    assert visit.used == Usage(prompt_tokens=5, completion_tokens=70)


def test_an_engine_that_has_ended_tells_nothing_of_what_was_read() -> None:
    visit = Visit(Account(Caller("alice")))
    bill = Bill(visit, 5)
    bill.add(output(3))
    bill.settle(output(0, Usage()))
    bill.pay()
    assert visit.used == Usage(prompt_tokens=5, completion_tokens=3)


def test_requests_at_a_time(start: Start) -> None:
    engine = FakeClient(lambda request: Script(delay_s=0.3))
    server = start_with(start, "concurrent_requests=2", engine)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(chat(server).status_code)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [200, 200, 429, 429, 429]
    assert chat(server).status_code == 200  # the places are free again


def test_bytes_of_bodies_at_a_time(start: Start) -> None:
    server = start_with(start, "body_bytes=2000")

    def slow() -> Iterator[bytes]:
        yield b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 1500
        time.sleep(0.5)
        yield b'"}]}'

    http = server.http(headers={**bearer("key-a"), "content-type": "application/json"})
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(http.post(CHAT, content=slow()).status_code))
    thread.start()
    time.sleep(0.2)
    assert chat(server, user="y" * 1000).status_code == 429
    assert chat(server, "key-b", user="y" * 1000).status_code == 200
    thread.join()
    assert results == [200]
    assert chat(server, user="y" * 1000).status_code == 200


def test_a_key_expires(start: Start) -> None:
    server = start_with(start, "expires=2020-01-01")
    assert (chat(server).status_code, chat(server).json()["error"]["code"]) == (401, "expired_api_key")
    assert chat(server, "key-b").status_code == 200
    assert chat(start_with(start, "expires=2999-01-01")).status_code == 200


@pytest.mark.parametrize(("key", "status"), [("key-a", 200), ("key-b", 403), ("key-r", 200)])
def test_a_priority_below_0_takes_a_right(start: Start, key: str, status: int) -> None:
    server = start_with(start, "urgent")
    answer = chat(server, key, priority=-1)
    assert answer.status_code == status
    if status == 403:
        assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("urgent_key_required", "priority")
    assert chat(server, key, priority=3).status_code == 200


def test_without_keys_everyone_may_do_everything(server: Running) -> None:
    assert server.http().post(CHAT, json={"model": "m", "messages": HI, "priority": -5}).status_code == 200


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def test_tools_by_name(start: Start) -> None:
    engine = FakeClient()
    engine.register_tool(add)
    server = start_with(start, "tools=", engine)
    program = Program(id="p", ops=(Text(0, ("x",)), Use(0, "y", "add", (("a", ("1",)), ("b", ("2",))))))
    for key, status, listed in (("key-a", 403, []), ("key-b", 200, ["add"])):
        http = server.http(headers=bearer(key))
        answer = http.post("/v1/programs", json=_builtins(program))
        assert answer.status_code == status
        assert [each["id"] for each in http.get("/v1/tools").json()["data"]] == listed
    plain = Program(id="q", ops=(Gen(0, "x"),))
    assert server.http(headers=bearer("key-a")).post("/v1/programs", json=_builtins(plain)).status_code == 200


def test_tokens_of_programs_are_counted(start: Start) -> None:
    server = start_with(start, "tokens_per_minute=2")
    program = _builtins(Program(id="q", ops=(Gen(0, "x"),)))
    http = server.http(headers=bearer("key-a"))
    assert [http.post("/v1/programs", json=program).status_code for _ in range(2)] == [200, 200]


def _builtins(program: Program) -> Any:
    return msgspec.to_builtins(program)


def tokens_of(server: Running, kind: str, key: str = "alice") -> int:
    page = server.http(headers=bearer("key-r")).get("/metrics").text
    name = f'bough_key_tokens_total{{key="{key}",kind="{kind}"}} '
    return next((int(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name)), 0)


def test_a_program_that_nobody_reads_to_its_end_is_paid(start: Start) -> None:
    """Once, when the engine has stopped it, with what came before its first value."""
    engine = FakeClient(play=lambda _: itertools.repeat(Delta(0, "x", "y")), spent=Usage(prompt_tokens=9))
    server = start_with(start, "tokens_per_minute=100", engine)
    program = _builtins(Program(id="q", ops=(Gen(0, "x"),)))
    with server.http(headers=bearer("key-a")).stream("POST", "/v1/programs", json=program) as answer:
        lines = answer.iter_lines()
        for _ in range(40):
            next(lines)
    assert server.wait_for(lambda: bool(engine.aborted), 5.0)
    assert server.wait_for(lambda: tokens_of(server, "prompt") == 9)


def test_an_echo_is_paid(start: Start) -> None:
    server = start_with(start, "tokens_per_minute=50")
    http = server.http(headers=bearer("key-a"))
    body = {"model": "m", "prompt": ["x" * 60, "y"], "echo": True, "max_tokens": 0}
    assert [http.post("/v1/completions", json=body).status_code for _ in range(2)] == [200, 429]
    assert tokens_of(server, "prompt") == 61


def test_an_echo_with_scores_is_paid_once(start: Start) -> None:
    server = start_with(start, "tokens_per_minute=50")
    http = server.http(headers=bearer("key-a"))
    body = {"model": "m", "prompt": ["x" * 60, "y"], "echo": True, "max_tokens": 0, "logprobs": 1}
    assert [http.post("/v1/completions", json=body).status_code for _ in range(2)] == [200, 429]
    assert tokens_of(server, "prompt") == 61


def test_log_probabilities_of_whole_answers_are_bounded_for_each_key(start: Start) -> None:
    """Each answer had a bound; 64 at a time took 3 GB."""
    limits = f"logprob_bytes={5 * 300}"  # "Hello" with one alternative each
    server = start(FakeClient(), keys=parse_keys([f"a key-a {limits}", f"b key-b {limits}", "c key-c"]))
    first, second, third = (server.http(headers={"authorization": f"Bearer key-{name}"}) for name in "abc")
    chat = {"model": "m", "messages": HI, "logprobs": True, "top_logprobs": 1}
    echo = {"model": "m", "prompt": "a" * 100, "logprobs": 0, "echo": True, "max_tokens": 0}
    for _ in range(2):  # what was answered is forgotten
        assert first.post("/v1/chat/completions", json=chat).status_code == 200
    refused = first.post("/v1/chat/completions", json={**chat, "n": 2})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "log-probabilities" in refused.json()["error"]["message"]
    assert first.post("/v1/chat/completions", json={**chat, "n": 2, "stream": True}).status_code == 200
    for client in (first, second):
        assert client.post("/v1/completions", json=echo).status_code == 429
        assert client.post("/v1/completions", json={**echo, "stream": True}).status_code == 429
        assert client.post("/v1/completions", json={**echo, "prompt": "ab"}).status_code == 200
    assert third.post("/v1/completions", json=echo).status_code == 200


def test_a_visit_that_stays_takes_its_place_until_its_work_is_over() -> None:
    account = Account(Caller("a", limits=KeyLimits(concurrent_requests=1, body_bytes=10)))
    visit = Visit(account)
    visit.hold(10)
    visit.stay()
    visit.end()
    with pytest.raises(ApiError):
        Visit(account)
    visit.end()
    Visit(account).hold(10)
