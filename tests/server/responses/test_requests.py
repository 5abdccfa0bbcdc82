"""Responses' bodies as chat jobs: items become messages, fields what chats call them, and errors name the former."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from bough.constrain.spec import JsonSchema, Regex
from bough.server.errors import ApiError
from bough.server.openai.objects import ContentPart, Message
from bough.server.openai.requests import Context
from bough.server.responses.objects import Item, ResponseBody
from bough.server.responses.requests import Asked, items_of, to_messages, translate
from bough.server.responses.store import Stored

from ..fake_client import INFO, ByteTokenizer

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "3"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}
ANSWER = {"type": "message", "role": "assistant", "id": "msg_9", "content": [{"type": "output_text", "text": "ok"}]}
SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


def to_body(**fields: Any) -> ResponseBody:
    body: ResponseBody = msgspec.json.decode(json.dumps({"model": "m", **fields}), type=ResponseBody)
    return body


def context(tokenizer: Any = None) -> Context:
    tokenizer = tokenizer or ByteTokenizer()
    return Context(id="r", namespace="", tokenizer=tokenizer, info=INFO, timeout_s=9.0, max_sequences=8)


def translated(*, earlier: tuple[Stored, ...] = (), tokenizer: Any = None, **fields: Any) -> Asked:
    return translate(to_body(**fields), context(tokenizer), earlier, {}, "n")


def stored(response_id: str, given: list[Any], output: list[Any]) -> Stored:
    response = json.dumps({"output": output}).encode()
    return Stored(response_id, previous=None, input=json.dumps(given).encode(), response=response, item_ids=())


def rendered(**fields: Any) -> str:
    tokenizer = ByteTokenizer()
    translated(tokenizer=tokenizer, **fields)
    return tokenizer.rendered[-1]


# Items


def test_instructions_come_first_and_a_text_is_a_message_of_the_user() -> None:
    assert rendered(instructions="Be brief.", input="hi") == "system: Be brief.\nuser: hi\n"


def test_messages_come_with_or_without_type_and_with_texts_or_parts() -> None:
    given = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        ANSWER,
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    ]
    assert rendered(input=given) == "system: d\nuser: u\nassistant: ok\nuser: a\nb\n"


def complete(*given: dict[str, Any]) -> list[Item]:
    return translated(input=[{"role": "user", "content": "hi"}, *given]).items[1:]


def test_items_are_completed_with_ids_of_their_own() -> None:
    items = complete(ANSWER, CALL, OUTPUT, {"type": "reasoning", "summary": []})
    assert [item.id for item in items] == ["msg_9", "fc_n_in2", "fco_n_in3", "rs_n_in4"]
    assert [item.status for item in items[:3]] == ["completed"] * 3


def messages(*given: dict[str, Any]) -> list[Message]:
    return to_messages(complete(*given))


def test_calls_belong_to_the_message_before_them_and_reasoning_is_left_out() -> None:
    second = {**CALL, "call_id": "c2"}
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    answer, output, last = messages(ANSWER, reasoning, CALL, second, OUTPUT, ANSWER)
    assert (answer.role, answer.content) == ("assistant", "ok")
    assert [call.id for call in answer.tool_calls or ()] == ["c1", "c2"]
    assert (output.role, output.tool_call_id, output.content) == ("tool", "c1", "3")
    assert last == Message(role="assistant", content="ok")


def test_text_after_calls_is_of_the_same_message() -> None:
    (answer,) = messages(CALL, ANSWER)
    assert [call.function.name for call in answer.tool_calls or ()] == ["f"]
    assert answer.content == [ContentPart("text", text="ok")]


def test_an_output_may_have_parts_and_a_refusal_is_kept() -> None:
    parts = [{"type": "input_text", "text": "1"}, {"type": "input_text", "text": "2"}]
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    _, output, answer = messages(CALL, {**OUTPUT, "output": parts}, refusal)
    assert output.content == [ContentPart("text", text="1"), ContentPart("text", text="2")]
    assert answer.content == [ContentPart("refusal", refusal="no")]


# Earlier responses


def test_a_conversation_goes_on_after_what_is_stored() -> None:
    user = {"type": "message", "role": "user", "id": "i", "content": [{"type": "input_text", "text": "one"}]}
    turns = (stored("r1", [user], [ANSWER]), stored("r2", [user], [{**CALL, "id": "fc", "status": "completed"}]))
    told = rendered(earlier=turns, instructions="Be brief.", input=[OUTPUT], tools=[TOOL], tool_choice="none")
    assert told.startswith("system: Be brief.\nuser: one\nassistant: ok\nuser: one\nassistant: ")
    assert told.endswith("user: Result of f: 3\n")


def test_calls_that_were_cut_off_are_no_part_of_the_conversation() -> None:
    calls = [{**CALL, "status": "incomplete", "arguments": '{"a'}, {**CALL, "status": "completed"}]
    assert [item.status for item in items_of(stored("r", [], calls))] == ["completed"]


def test_a_conversation_has_bounded_items() -> None:
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ""}]}
    with pytest.raises(ApiError, match="2048 items") as caught:
        translated(earlier=(stored("r", [user] * 2048, []),), input="one more")
    assert caught.value.param == "input"


def test_an_item_is_referred_to_by_its_id() -> None:
    user = {"type": "message", "role": "user", "id": "i1", "content": [{"type": "input_text", "text": "one"}]}
    holder = stored("r1", [user], [ANSWER])
    body = to_body(input=[{"type": "item_reference", "id": "i1"}, {"id": "msg_9"}, {"role": "user", "content": "two"}])
    tokenizer = ByteTokenizer()
    asked = translate(body, context(tokenizer), (), {"i1": holder, "msg_9": holder}, "n")
    assert tokenizer.rendered == ["user: one\nassistant: ok\nuser: two\n"]
    assert [item.id for item in asked.items] == ["i1", "msg_9", "msg_n_in2"]


# Fields


def test_sampling_and_limits_reach_the_engine() -> None:
    asked = translated(input="hi", temperature=0.5, top_p=0.9, max_output_tokens=7, top_k=3, seed=1, stop=["x"])
    sampling = asked.job.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.5, 0.9, 7)
    assert (sampling.top_k, sampling.seed, sampling.stop) == (3, 1, ("x",))


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"text": {"format": {"type": "text"}}}, None),
        ({"text": {"verbosity": "low"}}, None),
        ({"text": {"format": {"type": "json_object"}}}, JsonSchema('{"type":"object"}')),
        (
            {"text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}}},
            JsonSchema(json.dumps(SCHEMA), property_order="schema", unnamed="omit"),
        ),
        ({"text": {"format": {"type": "json_schema", "name": "s", "schema": {}}}}, JsonSchema("{}")),
        ({"regex": "a+"}, Regex("a+")),
        ({"structured_outputs": {"regex": "a+"}}, Regex("a+")),
        ({"guided_json": {}, "constraint_policy": "best_effort"}, JsonSchema("{}", policy="best_effort")),
    ],
)
def test_every_format_and_the_constraints_of_chats(fields: dict[str, Any], grammar: object) -> None:
    assert translated(input="hi", **fields).job.requests[0].grammar == grammar


def test_a_structural_tag_is_a_format() -> None:
    tag = {"begin": "<f>", "schema": {}, "end": "</f>"}
    form = {"type": "structural_tag", "structures": [tag], "triggers": ["<f>"]}
    assert translated(input="hi", text={"format": form}).job.constraint.grammar is not None


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        (None, "auto", ["f", "g"]),
        ("required", "required", ["f", "g"]),
        ("none", "none", ["f", "g"]),
        ({"type": "function", "name": "g"}, "required", ["g"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}, "auto", ["g"]),
    ],
)
def test_every_choice_of_tools(choice: object, mode: str, names: list[str]) -> None:
    tools = [TOOL, {**TOOL, "name": "g"}]
    toolbox = translated(input="hi", tools=tools, tool_choice=choice, parallel_tool_calls=False).job.toolbox
    assert (toolbox.mode, list(toolbox.functions)) == (mode, names)
    assert toolbox.parallel is toolbox.forced  # one call by name has no parallel ones


def test_no_effort_is_no_thinking() -> None:
    thinking = ByteTokenizer(template="enable_thinking <think> </think>")
    assert translated(input="hi", tokenizer=thinking).job.reasoning_end == "</think>"
    assert translated(input="hi", tokenizer=thinking, reasoning={"effort": "none"}).job.reasoning_end is None


@pytest.mark.parametrize(
    ("template", "prompt", "fields", "expected"),
    [
        ("", "hi", {}, (None, True)),
        ("enable_thinking </think>", "hi", {}, ("</think>", True)),
        ("</think>", "hi <think>", {}, ("</think>", False)),
        ("enable_thinking </think>", "hi", {"regex": "a"}, ("</think>", False)),
        ("", "hi", {"reasoning_end": "END"}, ("END", False)),
        ("enable_thinking </think>", "hi", {"reasoning_end": ""}, (None, False)),
    ],
)
def test_reasoning_is_looked_for_where_there_may_be_some(
    template: str, prompt: str, fields: dict[str, Any], expected: tuple[str | None, bool]
) -> None:
    asked = translated(input=prompt, tokenizer=ByteTokenizer(template=template), **fields)
    assert (asked.job.reasoning_end, asked.job.reasoning_optional) == expected


HIDDEN = '{"a":[' + ",".join(["{}"] * 100_000) + "]}"
BUILT_IN = (
    "web_search",
    "file_search",
    "code_interpreter",
    "computer_use_preview",
    "image_generation",
    "mcp",
    "custom",
)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({}, "missing_required_parameter", "input"),
        ({"input": []}, "missing_required_parameter", "input"),
        ({"input": [{"type": "message", "content": "x"}]}, "missing_required_parameter", "input[0].role"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        ({"input": [{"content": "x"}]}, "missing_required_parameter", "input[0].type"),
        ({"input": [{"type": "web_search_call"}]}, "unsupported_value", "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_not_found", "input[0].id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "unsupported_content",
         "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, "invalid_value",
         "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "missing_required_parameter",
         "input[0].content[0].text"),
        ({"input": [OUTPUT]}, "invalid_value", "input[0].call_id"),
        ({"input": [{"type": "item_reference"}]}, "missing_required_parameter", "input[0].id"),
        ({"input": [{**CALL, "arguments": "[1]"}]}, "invalid_value", "input[0].arguments"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "missing_required_parameter", "input[0].name"),
        ({"input": [{**CALL, "arguments": HIDDEN}]}, "request_too_large", "input"),
        ({"input": "hi", "n": 2}, "unsupported_value", "n"),
        ({"input": "hi", "response_format": {"type": "text"}}, "unsupported_parameter", "response_format"),
        ({"input": "hi", "include": ["everything"]}, "invalid_value", "include[0]"),
        ({"input": "hi", "top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"input": "hi", "max_output_tokens": 9999}, "context_length_exceeded", "max_output_tokens"),
        ({"input": "h" * 9999}, "context_length_exceeded", "input"),
        ({"input": "hi", "text": {"format": {"type": "json_schema", "name": "s"}}}, "missing_required_parameter",
         "text.format.schema"),
        ({"input": "hi", "text": {"format": {"type": "json_schema", "schema": {}}}}, "missing_required_parameter",
         "text.format.name"),
        ({"input": "hi", "text": {"format": {"type": "json_schema", "name": "s", "schema": 3}}}, "invalid_type",
         "text.format.schema"),
        ({"input": "hi", "text": {"format": {"type": "structural_tag", "structures": [], "triggers": 1}}},
         "invalid_type", "text.format.triggers"),
        ({"input": "hi", "text": {"format": {"type": "json_object"}}, "regex": "a"}, "invalid_value", "text.format"),
        ({"input": "hi", "tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].name"),
        ({"input": "hi", "tools": [{**TOOL, "parameters": 3}]}, "invalid_type", "tools[0].parameters"),
        ({"input": "hi", "tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "invalid_value",
         "tool_choice.name"),
        ({"input": "hi", "tools": [TOOL], "tool_choice": {"type": "mcp", "server_label": "s"}}, "unsupported_value",
         "tool_choice.type"),
        ({"input": "hi", "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "missing_required_parameter",
         "tool_choice.tools"),
        *(({"input": "hi", "tools": [{"type": kind}]}, "unsupported_value", "tools[0].type") for kind in BUILT_IN),
        *(({"input": "hi", name: {"id": "x"}}, "unsupported_parameter", name)
          for name in ("conversation", "prompt", "moderation", "context_management")),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        translated(**fields)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.status in (400, 404, 413)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{**TOOL, "name": 'f"'}]},
        {"input": [{**CALL, "name": "f g"}]},
        {"tool_choice": {"type": "function", "name": "f\n"}},
        {"text": {"format": {"type": "json_schema", "name": "", "schema": {}}}},
    ],
)
def test_names_are_plain(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="matching regex"):
        to_body(**fields)


def test_a_missing_output_of_an_earlier_call_counts_from_the_input() -> None:
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]}
    with pytest.raises(ApiError) as caught:
        translated(earlier=(stored("r1", [user], [ANSWER]),), input=[{"role": "user", "content": "x"}, OUTPUT])
    assert caught.value.param == "input[1].call_id"


# Too long


def test_an_input_that_is_too_long_is_cut_only_if_that_is_allowed() -> None:
    given = [{"role": "user", "content": f"{index}" * 1500} for index in range(4)]
    with pytest.raises(ApiError) as caught:
        translated(input=given)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    told = rendered(input=given, truncation="auto", instructions="Be brief.")
    assert told == f"system: Be brief.\nuser: {'2' * 1500}\nuser: {'3' * 1500}\n"
    with pytest.raises(ApiError) as caught:
        translated(input="h" * 9999, truncation="auto")
    assert caught.value.code == "context_length_exceeded"
