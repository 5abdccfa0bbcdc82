"""Tools that a model calls over OpenAI's and Anthropic's APIs: what is sent, what is read, what is said of failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

import bough

from .fake_api import Exchange, serving

DEGREES = {"Vienna": 18, "Oslo": 7}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def temperature(city: str) -> int:
    """The temperature in a city."""
    return DEGREES[city]


@bough.function
def weather(s: Any, **options: Any) -> None:
    s += bough.system("Be brief.") + bough.user("How warm is it?")
    s += bough.call_tools("answer", [temperature], max_turns=3, **options)
    s += bough.user("Thanks.")


Call = tuple[str, str]


def openai_turn(exchange: Exchange, said: str, calls: list[Call]) -> None:
    """Calls in pieces, as the API streams them."""
    exchange.begin()
    exchange.event({"choices": [{"index": 0, "delta": {"content": said or None}}]})
    for index, (name, arguments) in enumerate(calls):
        head = {"index": index, "id": f"id{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        exchange.event({"choices": [{"index": 0, "delta": {"tool_calls": [head]}}]})
        for piece in (arguments[:5], arguments[5:]):
            delta = {"index": index, "function": {"arguments": piece}}
            exchange.event({"choices": [{"index": 0, "delta": {"tool_calls": [delta]}}]})
    exchange.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]})
    exchange.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
    exchange.event("[DONE]")
    exchange.end()


def anthropic_turn(exchange: Exchange, said: str, calls: list[Call]) -> None:
    exchange.begin()
    exchange.event({"type": "message_start", "message": {"usage": {"input_tokens": 5}}})
    exchange.event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    exchange.event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": said}})
    for index, (name, arguments) in enumerate(calls, start=1):
        block = {"type": "tool_use", "id": f"id{index}", "name": name, "input": {}}
        exchange.event({"type": "content_block_start", "index": index, "content_block": block})
        for piece in (arguments[:5], arguments[5:]):
            delta = {"type": "input_json_delta", "partial_json": piece}
            exchange.event({"type": "content_block_delta", "index": index, "delta": delta})
    reason = "tool_use" if calls else "end_turn"
    exchange.event({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 2}})
    exchange.event({"type": "message_stop"})
    exchange.end()


def run(kind: str, turns: list[tuple[str, list[Call]]], **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Runs the program on scripted turns; the state, and the bodies that were sent."""
    answer = openai_turn if kind == "openai" else anthropic_turn
    with serving(lambda exchange: answer(exchange, *turns[exchange.number])) as server:
        if kind == "openai":
            backend: Any = bough.OpenAI("m", base_url=f"{server.url}/v1", api_key="k")
        else:
            backend = bough.Anthropic("m", base_url=server.url, api_key="k")
        with backend:
            return weather.run(backend=backend, **options), server.bodies


VIENNA, ROME = ("temperature", '{"city": "Vienna"}'), ("temperature", '{"city": "Rome"}')


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_calls_and_their_results_go_back_in_the_api_s_own_form(kind: str) -> None:
    state, bodies = run(kind, [("Let me see.", [VIENNA, ROME]), ("It is 18.", [])])
    assert state["answer"] == "It is 18."
    found = [(call.arguments, call.result, call.error) for call in state.calls("answer")]
    error = "the tool 'temperature' failed: KeyError: 'Rome'"
    assert found == [({"city": "Vienna"}, "18", None), ({"city": "Rome"}, None, error)]
    assert state.usage.completion_tokens == 4
    if kind == "openai":
        (tool,) = bodies[0]["tools"]
        wanted = {"name": "temperature", "description": "The temperature in a city.", "parameters": SCHEMA}
        assert tool == {"type": "function", "function": wanted}
        assert (bodies[0]["tool_choice"], bodies[0]["parallel_tool_calls"]) == ("auto", True)
        asked, first, second = bodies[1]["messages"][2:]
        assert asked["content"] == "Let me see."
        assert [json.loads(call["function"]["arguments"]) for call in asked["tool_calls"]] == [
            {"city": "Vienna"},
            {"city": "Rome"},
        ]
        assert [first["tool_call_id"], second["tool_call_id"]] == [call["id"] for call in asked["tool_calls"]]
        assert (first["role"], first["content"], second["content"]) == ("tool", "18", f"Error: {error}")
        return
    description = "The temperature in a city."
    assert bodies[0]["tools"] == [{"name": "temperature", "description": description, "input_schema": SCHEMA}]
    assert bodies[0]["tool_choice"] == {"type": "auto"}
    asked, told = bodies[1]["messages"][1:]
    text, *calls = asked["content"]
    assert text == {"type": "text", "text": "Let me see."}
    assert [call["input"] for call in calls] == [{"city": "Vienna"}, {"city": "Rome"}]
    assert told["role"] == "user"
    assert [block["tool_use_id"] for block in told["content"]] == [call["id"] for call in calls]
    assert [block.get("is_error", False) for block in told["content"]] == [False, True]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_the_last_turn_may_not_call(kind: str) -> None:
    state, bodies = run(kind, [("", [VIENNA]), ("", [VIENNA]), ("18", [])], tool_choice="required")
    assert (state["answer"], len(state.calls("answer"))) == ("18", 2)
    choices = [body["tool_choice"] for body in bodies]
    if kind == "openai":
        assert choices == ["required", "auto", "none"]
    else:
        assert choices == [{"type": "any"}, {"type": "auto"}, {"type": "none"}]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_one_tool_and_one_call_a_turn(kind: str) -> None:
    _, bodies = run(kind, [("", [VIENNA]), ("18", [])], tool_choice=temperature, parallel_tool_calls=False)
    if kind == "openai":
        assert bodies[0]["tool_choice"] == {"type": "function", "function": {"name": "temperature"}}
        assert bodies[0]["parallel_tool_calls"] is False
    else:
        wanted = {"type": "tool", "name": "temperature", "disable_parallel_tool_use": True}
        assert bodies[0]["tool_choice"] == wanted


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_calls_that_no_mask_has_kept_right_are_answered_with_what_is_wrong(kind: str) -> None:
    calls = [("humidity", "{}"), ("temperature", '{"town": "Oslo"}'), ("temperature", '{"city"')]
    state, bodies = run(kind, [("", calls), ("Sorry.", [])])
    errors = [str(call.error) for call in state.calls("answer")]
    assert "there is no tool 'humidity'; there are: 'temperature'" in errors[0]
    assert "it has no parameter 'town'" in errors[1]
    assert "its arguments are no JSON object" in errors[2]
    assert len(bodies) == 2 and state["answer"] == "Sorry."


def test_a_typed_answer_is_constrained_where_the_api_does() -> None:
    options: Any = {"type": list[int]}
    state, bodies = run("openai", [("", [VIENNA]), ("[18]", [])], **options)
    assert state["answer"] == [18]
    assert bodies[0]["response_format"]["json_schema"]["schema"]["type"] == "array"
    state, bodies = run("anthropic", [("", [VIENNA]), ("warm", []), ("[18]", [])], **options)
    assert state["answer"] == [18] and len(bodies) == 3
    assert "That is not valid" in json.dumps(bodies[2]["messages"][-1])


@pytest.mark.parametrize(("said", "told"), [("18", [(-0.5, 4, "18")]), (" 18 ", None)])
def test_log_probabilities_are_of_the_answer_as_it_stands(said: str, told: object) -> None:
    logprobs = {"content": [{"token": "18", "logprob": -0.5, "token_id": 4, "top_logprobs": []}]}
    with (
        serving(lambda exchange: exchange.say(said, logprobs=logprobs)) as server,
        bough.OpenAI("m", base_url=f"{server.url}/v1", api_key="k") as backend,
    ):
        state = weather.run(backend=backend, regex="[0-9]+", logprobs=1)
    assert state["answer"] == "18"
    assert state.get_meta_info("answer").get("output_token_logprobs") == told


def test_an_answer_that_max_tokens_cut_is_said_to_be_cut() -> None:
    with (
        serving(lambda exchange: exchange.say("warm", ended="length")) as server,
        bough.OpenAI("m", base_url=f"{server.url}/v1", api_key="k", max_tries=1) as backend,
        pytest.raises(bough.ProgramError, match=r"try 1: .* \(max_tokens cut it\)"),
    ):
        weather.run(backend=backend, regex="[0-9]+")
