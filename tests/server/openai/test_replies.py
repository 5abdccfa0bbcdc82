"""Receipts in answers say how their constraint was kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from bough.constrain.receipt import Receipt, Violation
from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.protocol.request import Finish, Request, RequestOutput, TokenLogprob, Usage
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.server.http.answers import Merged
from bough.server.http.dialect import OPENAI
from bough.server.openai import replies
from bough.server.openai.objects import ChatBody, CompletionBody, FunctionDefinition
from bough.server.openai.replies import ChatReply, CompletionReply, Header, ReasoningCount, Scores, ShownTokens
from bough.server.openai.requests import Job
from bough.server.openai.tools import Toolbox
from bough.server.service import _chunks, _collect

from ..conftest import Running, Start
from ..fake_client import ByteTokenizer, FakeClient, Script

HI: Any = [{"role": "user", "content": "hi"}]
EXACT = Receipt(mode="exact", enforced=("properties", "type"), checked=("/not",))
BROKEN = Receipt(mode="best_effort", enforced=("type",), checked=("/not",), violations=(Violation("/a", "is bad"),))
EXACT_JSON = {"mode": "exact", "enforced": ["properties", "type"], "checked": ["/not"]}


def serve(start: Start, receipt: Receipt | None) -> Running:
    return start(FakeClient(lambda _: Script(receipt=receipt)))


def test_a_chat_tells_it_whole_and_in_the_last_chunk(start: Start) -> None:
    server = serve(start, EXACT)
    client = server.openai()
    answer = client.chat.completions.create(model="m", messages=HI)
    assert answer.to_dict()["constraint"] == EXACT_JSON
    assert answer.choices[0].message.content == "Hello"
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="m", messages=HI, stream=True, stream_options=options))
    ends = [bool(chunk.choices and chunk.choices[0].finish_reason) for chunk in chunks]
    told = list(zip(ends, (chunk.to_dict().get("constraint") for chunk in chunks), strict=True))
    assert [constraint for ended, constraint in told if ended] == [EXACT_JSON]
    assert all(constraint is None for ended, constraint in told if not ended)


def test_a_completion_tells_it_whole_and_in_the_last_chunk(start: Start) -> None:
    client = serve(start, EXACT).openai()
    assert client.completions.create(model="m", prompt="a").to_dict()["constraint"] == EXACT_JSON
    chunks = list(client.completions.create(model="m", prompt="a", stream=True))
    assert [chunk.to_dict().get("constraint") for chunk in chunks] == [*[None] * (len(chunks) - 1), EXACT_JSON]


def test_what_is_wrong_names_its_choice(start: Start) -> None:
    client = serve(start, BROKEN).openai()
    told: Any = client.chat.completions.create(model="m", messages=HI, n=2).to_dict()["constraint"]
    assert told["mode"] == "best_effort"
    assert [violation["index"] for violation in told["violations"]] == [0, 1]
    assert told["violations"][1] == {"index": 1, "pointer": "/a", "message": "is bad"}


def test_what_was_left_out_is_told(start: Start) -> None:
    client = serve(start, Receipt(mode="exact", enforced=("oneOf",), narrowed=("", "/properties/a"))).openai()
    told: Any = client.chat.completions.create(model="m", messages=HI).to_dict()["constraint"]
    assert told == {"mode": "exact", "enforced": ["oneOf"], "checked": [], "narrowed": ["", "/properties/a"]}


def test_without_a_constraint_nothing_is_told(start: Start) -> None:
    client = serve(start, None).openai()
    assert "constraint" not in client.chat.completions.create(model="m", messages=HI).to_dict()
    assert "constraint" not in client.completions.create(model="m", prompt="a").to_dict()


def test_a_value_that_breaks_its_schema_is_an_error(start: Start) -> None:
    error = ErrorInfo(code="constraint_violated", message="the value violates the schema at /a", param="grammar")
    server = start(FakeClient(lambda _: Script(reason="error", error=error)))
    body: dict[str, Any] = {"model": "m", "messages": HI}
    response = server.http().post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "constraint_violated")
    assert "/a" in response.json()["error"]["message"]
    streamed = server.http().post("/v1/chat/completions", json={**body, "stream": True})
    last = streamed.text.split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "constraint_violated"


@pytest.mark.parametrize("policy", ["strict", "", 1])
def test_other_policies_are_refused(server: Running, policy: object) -> None:
    body = {"model": "m", "messages": HI, "guided_json": {"type": "integer"}, "constraint_policy": policy}
    response = server.http().post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "constraint_policy")


def test_a_call_is_written_in_one_order(server: Running) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = {"model": "m", "messages": HI, "tools": tools, "tool_choice": "required", "constraint_policy": "best_effort"}
    assert server.http().post("/v1/chat/completions", json=body).status_code == 200
    grammar: Any = server.engine.asked[0].grammar
    assert (grammar.property_order, grammar.policy) == ("schema", "best_effort")


# Echoed prompts


def echoing(scores: Scores, *, stream: bool) -> CompletionReply:
    """The answer to prompts of "aaa" each, two choices of every one, with nothing generated."""
    num = len(scores)
    body = CompletionBody(model="m", prompt=["aaa"] * num, echo=True, logprobs=1, max_tokens=0, n=2, stream=stream)
    job = Job((), ((97, 97, 97),) * num, echoes=("aaa",) * num)
    tokenizer: Any = ByteTokenizer()
    return CompletionReply(body, job, Header(id="c", model="m", created=0), ShownTokens(tokenizer), scores=scores)


def some_scores(num: int) -> Scores:
    return [[TokenLogprob(97, -1.0, ((98, -2.0),))] * 2 for _ in range(num)]


def test_scores_of_a_prompt_are_dropped_before_the_next_is_written() -> None:
    scores = some_scores(4)
    left = [sum(map(bool, scores)) for chunk in echoing(scores, stream=True).begin() if chunk is not None]
    assert left == [3, 3, 2, 2, 1, 1, 0, 0]


def test_log_probabilities_of_a_long_prompt_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(num_tokens: int) -> tuple[int, list[Any]]:
        monkeypatch.setattr(replies, "ECHOED_TOKENS_AT_ONCE", num_tokens)
        scores = [[TokenLogprob(97 + index % 5, -float(index), ((98, -2.0),)) for index in range(100)]]
        steps = [*echoing(scores, stream=True).begin()]
        return steps.count(None), [step for step in steps if step is not None]

    (num_turns, chunks), (_, whole) = write(10), write(1000)
    assert num_turns >= 10
    assert len(whole) == 2
    assert max(len(chunk.choices[0].logprobs.tokens) for chunk in chunks) == 11
    for index in range(2):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        other = [chunk.choices[0] for chunk in whole if chunk.choices[0].index == index]
        assert "".join(choice.text for choice in mine) == "aaa"
        assert [choice.finish_reason for choice in mine] == [*[None] * (len(mine) - 1), "length"]
        assert replies.joined(choice.logprobs for choice in mine) == replies.joined(each.logprobs for each in other)
        assert len(replies.joined(choice.logprobs for choice in mine).tokens) == 101


def generated(num_tokens: int, text: str) -> Iterator[RequestOutput]:
    for index in range(num_tokens):
        yield RequestOutput(id="c", text=text, tokens=(97,), logprobs=(TokenLogprob(97, -float(index)),))
    yield RequestOutput(id="c", text="", finish=Finish(reason="length", usage=Usage()))


def test_log_probabilities_of_text_that_is_held_back_are_sent_meanwhile() -> None:
    """All of an answer may be held back, which may be a call: they took 200 MB, and one event had them all."""
    shown, header = ShownTokens(cast("Any", ByteTokenizer())), Header(id="c", model="m", created=0)
    asked = Request(id="c", prompt=(97,), sampling=SamplingParams(max_tokens=1000))
    toolbox = Toolbox("auto", {"f": FunctionDefinition(name="f")})
    chat = ChatBody(model="m", messages=[], logprobs=True, stream=True)
    completion = CompletionBody(model="m", prompt="a", logprobs=0, stream=True)
    for reply, text in (
        (ChatReply(chat, Job((asked,), ((97,),), toolbox=toolbox), header, shown), "{"),
        (CompletionReply(completion, Job((asked,), ((97,),)), header, shown, scores=[]), ""),
    ):
        choices = [
            choice for output in generated(1000, text) for chunk in reply.add(0, output) for choice in chunk.choices
        ]
        parts: list[Any] = [choice.logprobs for choice in choices if choice.logprobs is not None]
        logprobs = [
            value
            for part in parts
            for value in (getattr(part, "token_logprobs", None) or [each.logprob for each in part.content])
        ]
        assert logprobs == [-float(index) for index in range(1000)]
        assert len(parts) >= 1000 // replies.SENT_TOGETHER
        assert [choice.finish_reason for choice in choices] == [*[None] * (len(choices) - 1), "length"]


@pytest.mark.parametrize("stream", [False, True])
def test_others_have_their_turn_between_echoed_prompts(stream: bool) -> None:
    seen: list[int] = []

    async def write() -> int:
        async def others() -> None:
            while True:
                seen.append(sum(map(bool, scores)))
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        outputs, reply = Merged[RequestOutput]([]), echoing(scores, stream=stream)
        if stream:
            num_events = len([part async for part in _chunks(outputs, reply, OPENAI)])
        else:
            await _collect(outputs, reply)
            num_events = len(reply.result().choices)
        task.cancel()
        return num_events

    scores = some_scores(20)
    assert asyncio.run(write()) == 40 + stream
    assert len(set(seen)) >= 19


def test_many_log_probabilities_of_a_whole_answer_are_encoded_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder keeps the interpreter to itself: half a million of them took 0.16 s, of the event loop too."""
    shown, header = ShownTokens(cast("Any", ByteTokenizer())), Header(id="c", model="m", created=0)
    asked = Request(id="c", prompt=(97,), sampling=SamplingParams(max_tokens=1000))

    def answers(at_once: int) -> list[bytes]:
        monkeypatch.setattr(replies, "ENCODED_AT_ONCE", at_once)
        chat = ChatReply(ChatBody(model="m", messages=[], logprobs=True), Job((asked,), ((97,),)), header, shown)
        completion = CompletionReply(
            CompletionBody(model="m", prompt="a", logprobs=0), Job((asked,), ((97,),)), header, shown, scores=[]
        )
        for reply in (chat, completion):
            for output in generated(100, "a"):
                reply.add(0, output)
        return [msgspec.json.encode(chat.result()), msgspec.json.encode(completion.result())]

    whole = answers(1000)
    assert answers(7) == answers(100) == whole
    assert [text.count(b"-99.0") for text in whole] == [1, 2]  # a completion has each twice
    assert isinstance(replies.in_slices([1.0] * 101), msgspec.Raw)


# Tokens of reasoning


@pytest.mark.parametrize(
    ("text", "begun", "count"),
    [
        ("<think>a</think>b", False, 16),
        ("a</think>b", False, 9),
        ("<think>ab", False, 9),
        ("\n <think>ab", False, 11),
        ("ab", False, 0),
        ("ab", True, 2),
        ("", True, 0),
    ],
)
def test_tokens_of_reasoning_are_counted_however_they_come(text: str, begun: bool, count: int) -> None:
    tokenizer: Any = ByteTokenizer()
    for size in (1, 3, 100):
        reasoning = ReasoningCount(tokenizer, "</think>", begun=begun)
        for start in range(0, len(text), size):
            reasoning.add(text[start : start + size].encode())
        assert reasoning.num_tokens == count
