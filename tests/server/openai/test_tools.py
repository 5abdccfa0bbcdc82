"""Tools: how calls are constrained, read out of text, and returned."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jsonschema
import msgspec
import pytest

from bough.constrain.json_schema.validate import violations
from bough.constrain.spec import JsonSchema
from bough.runtime.tools.tag_reader import Called, Said
from bough.server.errors import ApiError
from bough.server.openai.objects import ChatBody, FunctionDefinition
from bough.server.openai.replies import AutoReader, CallReader, Reader, parse_calls
from bough.server.openai.tools import Toolbox, call_schema, to_toolbox

from ..conftest import Running, Start
from ..fake_client import ByteTokenizer, FakeClient, Script

HI: Any = [{"role": "user", "content": "hi"}]
TREE = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/tree"}},
    "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}},
    {"type": "function", "function": {"name": "plant", "parameters": TREE}},
]
CALL = '{"name": "weather", "arguments": {"city": "Rome }"}}'


def toolbox(**fields: Any) -> Toolbox:
    body = {"model": "m", "messages": HI, "tools": TOOLS, **fields}
    return to_toolbox(msgspec.json.decode(json.dumps(body), type=ChatBody))


def start_saying(start: Start, *pieces: str, reason: Any = "stop", template: str = "tools") -> Running:
    client = FakeClient(lambda _: Script(pieces, reason=reason), tokenizer=ByteTokenizer(template=template))
    return start(client)


def create(server: Running, **fields: Any) -> Any:
    return server.openai().chat.completions.create(model="m", messages=HI, tools=TOOLS, **fields)


def read(reader: Reader, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and the calls as (name, arguments)."""
    said = ""
    calls: list[tuple[str, str]] = []
    for part in [*(part for piece in pieces for part in reader.push(piece)), *reader.finish()]:
        if isinstance(part, Said):
            said += part.text
        elif not isinstance(part, Called):
            raise AssertionError("nothing here reasons")
        elif part.name is not None:
            assert part.position == len(calls)
            calls.append((part.name, ""))
        else:
            calls[part.position] = (calls[part.position][0], calls[part.position][1] + part.arguments)
    return said, calls


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_required_call_is_constrained_and_returned(start: Start, choice: Any) -> None:
    server = start_saying(start, *CALL)
    answer = create(server, tool_choice=choice)
    message = answer.choices[0].message
    assert message.content is None
    assert [(call.type, call.function.name) for call in message.tool_calls] == [("function", "weather")]
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Rome }"}
    assert answer.choices[0].finish_reason == ("tool_calls" if choice == "required" else "stop")
    assert isinstance(server.engine.asked[0].grammar, JsonSchema)


def test_a_streamed_call_comes_in_deltas(start: Start) -> None:
    server = start_saying(start, *CALL)
    chunks = list(create(server, tool_choice="required", stream=True))
    deltas = [chunk.choices[0].delta.tool_calls[0] for chunk in chunks if chunk.choices[0].delta.tool_calls]
    first, *rest = deltas
    assert (first.index, first.type, first.function.name, first.function.arguments) == (0, "function", "weather", "")
    assert first.id.startswith("call_")
    assert len(rest) > 5
    assert all(delta.id is None and delta.function.name is None and delta.type is None for delta in rest)
    assert json.loads("".join(delta.function.arguments for delta in rest)) == {"city": "Rome }"}
    chats = server.openai().chat.completions
    with chats.stream(model="m", messages=HI, tools=TOOLS, tool_choice="required") as stream:
        stream.until_done()
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.name for call in calls] == ["weather"]


def test_a_call_that_is_cut_off_says_length(start: Start) -> None:
    server = start_saying(start, '{"name": "weather", "arguments": {"ci', reason="length")
    answer = create(server, tool_choice="required")
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls[0].function.arguments == '{"ci'


def test_auto_returns_calls_or_text(start: Start) -> None:
    for text, calls in ((CALL, ["weather"]), (f"Well.<tool_call>{CALL}</tool_call>", ["weather"]), ("No.", [])):
        server = start_saying(start, *text)
        message = create(server).choices[0].message
        assert [call.function.name for call in message.tool_calls or ()] == calls
        assert message.content == {CALL: None, "No.": "No."}.get(text, "Well.")
        assert server.engine.asked[0].grammar is None
        assert server.engine.tokenizer.rendered[0].startswith("[weather,plant]")


def test_a_template_without_tools_gets_them_as_text(start: Start) -> None:
    server = start_saying(start, "ok", template="")
    history: Any = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "sunny"},
    ]
    server.openai().chat.completions.create(model="m", messages=history, tools=TOOLS)
    rendered = server.engine.tokenizer.rendered[0]
    assert rendered.startswith("system: You can call these functions:\n")
    assert '"name": "weather"' in rendered
    assert 'assistant: {"name": "weather", "arguments": {}}\nuser: Result of weather: sunny\n' in rendered


def test_none_hides_the_tools(start: Start) -> None:
    server = start_saying(start, CALL)
    answer = create(server, tool_choice="none")
    assert answer.choices[0].message.content == CALL
    assert server.engine.tokenizer.rendered == ["user: hi\n"]


@pytest.mark.parametrize("anchor", ["$anchor", "$dynamicAnchor"])
def test_places_of_the_same_name_in_two_tools_are_not_mixed_up(anchor: str) -> None:
    def function(name: str, kind: str) -> FunctionDefinition:
        schema = {"properties": {"v": {"$ref": "#n"}}, "required": ["v"], "$defs": {"n": {anchor: "n", "type": kind}}}
        return FunctionDefinition(name, parameters=msgspec.Raw(json.dumps(schema).encode()), strict=True)

    functions = {"f": function("f", "integer"), "g": function("g", "string")}
    schema = call_schema(Toolbox("required", functions))
    for name, value, right in (("f", 1, True), ("f", "a", False), ("g", 1, False), ("g", "a", True)):
        call = json.dumps({"name": name, "arguments": {"v": value}})
        assert (not violations(schema, call)) == right, call


@pytest.mark.parametrize("keyword", ["properties", "patternProperties", "$defs", "dependentSchemas", "dependencies"])
@pytest.mark.parametrize("name", ["default", "enum", "const", "examples", "$schema", "$id", "$ref", "properties"])
def test_names_are_no_keywords(keyword: str, name: str) -> None:
    schema = json.loads(call_schema(Toolbox(), other=json.dumps({keyword: {name: {"$ref": "#/$defs/x"}}})))
    assert schema["$defs"]["answer"] == {keyword: {name: {"$ref": "#/$defs/answer/$defs/x"}}}


@pytest.mark.parametrize("keyword", ["default", "enum", "const", "examples", "dependentRequired"])
def test_values_stay_as_they_are(keyword: str) -> None:
    value = {keyword: {"$ref": "#/$defs/x", "$schema": ["#"]}}
    assert json.loads(call_schema(Toolbox(), other=json.dumps(value)))["$defs"]["answer"] == value


def test_references_below_an_identifier_count_from_there() -> None:
    own = {"$id": "https://example.com/own", "items": {"$ref": "#/$defs/x"}}
    given = {"$schema": "https://json-schema.org/draft/2020-12/schema", "allOf": [own, {"$ref": "#"}]}
    moved = json.loads(call_schema(Toolbox(), other=json.dumps(given)))["$defs"]["answer"]
    assert moved == {"allOf": [own, {"$ref": "#/$defs/answer"}]}
    assert json.loads(call_schema(Toolbox(), other=json.dumps(own)))["$defs"]["answer"] == own


def test_the_schema_of_a_call_keeps_references_and_the_order_of_keys() -> None:
    schema = json.loads(call_schema(toolbox()))
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"name": "plant", "arguments": {"tree": [[], [[]]]}})
    assert not validator.is_valid({"name": "plant", "arguments": {"tree": [[], [1]]}})
    assert not validator.is_valid({"name": "other", "arguments": {}})
    assert [list(branch["properties"]) for branch in schema["anyOf"]] == [["name", "arguments"]] * 2
    named = json.loads(call_schema(toolbox(tool_choice={"type": "function", "function": {"name": "plant"}})))
    assert not jsonschema.Draft202012Validator(named).is_valid({"name": "weather", "arguments": {}})


def test_auto_with_a_response_format_allows_either(start: Start) -> None:
    server = start_saying(start, '{"tree": []}')
    form: Any = {"type": "json_schema", "json_schema": {"name": "t", "schema": TREE}}
    answer = create(server, response_format=form)
    assert answer.choices[0].message.content == '{"tree": []}'
    grammar = server.engine.asked[0].grammar
    assert isinstance(grammar, JsonSchema)
    validator = jsonschema.Draft202012Validator(json.loads(grammar.schema))
    assert validator.is_valid({"tree": [[]]})
    assert validator.is_valid({"name": "weather", "arguments": {}})
    assert not validator.is_valid({"tree": [3]})


def test_allowed_tools_narrows_the_choice() -> None:
    tools = [{"type": "function", "function": {"name": "plant"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}}
    assert list(toolbox(tool_choice=choice).functions) == ["plant"]


TEXTS = st.one_of(
    st.sampled_from([CALL, f"[{CALL}, {CALL}]", f"<tool_call>{CALL}</tool_call>", f"Hi <tool_call>{CALL}", "<tool"]),
    st.text('<tool_call>{}[]"\\ :,name', max_size=40),
)


@hypothesis.given(TEXTS, st.data())
def test_how_a_text_is_cut_does_not_matter(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for make in (lambda: AutoReader(toolbox()), CallReader):
        said, calls = read(make(), pieces)
        assert (said, calls) == read(make(), [text])
        if not calls:
            assert said == text


@pytest.mark.parametrize("beginning", ["", "{", "Hi <tool_call>", " <tool_call"])
def test_an_answer_that_is_held_back_is_read_in_linear_time(beginning: str) -> None:
    """White space took 8 s here, when all that is held was looked through for each token."""
    one, began = AutoReader(toolbox()), time.thread_time()
    pieces = [beginning, *[" " * 80] * 20_000]
    assert read(one, pieces) == ("".join(pieces), [])
    assert time.thread_time() - began < 2.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '{"name": 3}',
        '{"name": "other", "arguments": {}}',
        '{"name": "weather", "arguments": 5}',
        "[" * 100_000,
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert parse_calls(text, toolbox().functions) == []


def test_calls_in_the_forms_that_models_write() -> None:
    functions = toolbox().functions
    expected = [("weather", '{"city":1}')]
    for text in (
        '{"name":"weather","arguments":{"city":1}}',
        '{"name":"weather","parameters":{"city":1}}',
        '{"name":"weather","arguments":"{\\"city\\":1}"}',
        '[{"name":"weather","arguments":{"city":1}}]',
        '<tool_call>\n{"name":"weather","arguments":{"city":1}}\n</tool_call>',
    ):
        assert parse_calls(text, functions) == expected
    one = AutoReader(toolbox(parallel_tool_calls=False))
    assert read(one, [f"[{CALL},{CALL}]"]) == ("", [("weather", '{"city": "Rome }"}')])


def tool(parameters: str, name: str = "f") -> str:
    return f'{{"type":"function","function":{{"name":"{name}","parameters":{parameters}}}}}'


def checked(*tools: str, choice: str = "auto") -> float:
    """Seconds of the processor that a look at tools takes."""
    message = '{"role":"user","content":"hi"}'
    data = f'{{"model":"m","messages":[{message}],"tool_choice":"{choice}","tools":[{",".join(tools)}]}}'
    body = msgspec.json.decode(data, type=ChatBody)
    began = time.thread_time()
    with contextlib.suppress(ApiError):
        to_toolbox(body)
    return time.thread_time() - began


TYPES = json.dumps({"type": [1, *map(str, range(4_000))]})
EMPTY = json.dumps({"prefixItems": [{}] * 9_000})


@pytest.mark.parametrize(
    "tools",
    [
        [tool(TYPES)],
        [tool(json.dumps({"properties": {str(index): {"type": "string"} for index in range(4_000)}}))],
        [tool(json.dumps({"anyOf": [{}] * 2_000}))],
        [tool(json.dumps({"pattern": f"{index}" + "ab" * 300_000}), f"f{index}") for index in range(6)],
        [tool(EMPTY, f"f{index}") for index in range(128)],
        [tool('{"type":' + "[" * 900 + "]" * 900 + "}")],
        [tool('{"not":' * 900 + "{}" + "}" * 900)],
    ],
    ids=["types", "properties", "branches", "patterns", "tools", "a deep value", "a deep schema"],
)
def test_no_tools_take_long_to_look_at(tools: list[str]) -> None:
    patterns = len(re._cache)  # type: ignore[attr-defined]
    assert min(checked(*tools) for _ in range(2)) < 0.5
    assert len(re._cache) <= patterns  # type: ignore[attr-defined]  # nothing of them is kept


@pytest.mark.parametrize("choice", ["none", "auto", "required"])
@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ('"x"', "invalid_type"),
        ("true", "invalid_type"),
        ('{"type":"strnig"}', "invalid_json_schema"),
        (TYPES, "invalid_json_schema"),
        ('{"properties":{"a":{"minLength":-1}}}', "invalid_json_schema"),
        ('{"pattern":"a{1,1000000}"}', "grammar_too_complex"),
        ('{"not":' * 900 + "{}" + "}" * 900, "grammar_too_complex"),
    ],
)
def test_what_is_no_schema_is_refused_by_the_tools_place(
    server: Running, choice: str, parameters: str, code: str
) -> None:
    tools = f"{tool('null', 'g')},{tool(parameters)}"
    body = f'{{"model":"m","messages":[{{"role":"user","content":"hi"}}],"tool_choice":"{choice}","tools":[{tools}]}}'
    answer = server.http().post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, "tools[1].function.parameters")
    assert len(answer.content) < 2000
    assert server.engine.asked == []


@pytest.mark.parametrize(("extra", "param"), [({"tool_choice": "required"}, "tools"), ({}, "response_format")])
def test_what_no_keyword_reads_may_not_be_nested_without_end(
    server: Running, extra: dict[str, str], param: str
) -> None:
    deep = {"type": "object", "x": json.loads("[" * 300 + "]" * 300)}
    schema = {"name": "s", "schema": deep}
    body = {"model": "m", "messages": HI, "tools": [json.loads(tool(json.dumps(deep)))], **extra}
    body |= {} if extra else {"response_format": {"type": "json_schema", "json_schema": schema}}
    answer = server.http().post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "grammar_too_complex"
    assert answer.json()["error"]["param"].startswith(param)


def test_the_schemas_of_all_tools_have_one_limit(server: Running) -> None:
    tools = [json.loads(tool(json.dumps({"title": "x" * 300_000}), f"f{index}")) for index in range(4)]
    answer = server.http().post("/v1/chat/completions", json={"model": "m", "messages": HI, "tools": tools})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "grammar_too_complex", "tools")
