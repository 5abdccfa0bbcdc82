"""Receipts in answers say how their constraint was kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bough.constrain.receipt import Receipt, Violation
from bough.runtime.protocol.errors import ErrorInfo

from ..conftest import Running, Start
from ..fake_client import FakeClient, Script

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
