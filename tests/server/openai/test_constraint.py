"""Calls, structural tags and reasoning under their grammars: a model that writes what it wishes wherever it may."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jsonschema
import numpy as np
import openai
import pytest

from bough.constrain import GrammarCompiler, Vocabulary
from bough.constrain.errors import GrammarError
from bough.constrain.receipt import Receipt
from bough.constrain.spec import MAX_TAGS, JsonSchema, Regex, Structural, Tag
from bough.runtime.protocol.request import Request
from bough.runtime.tools.forms import HERMES, MISTRAL, MISTRAL_ARGS, CallForm, find_form
from bough.runtime.tools.tag_reader import Called, Said, TagReader
from bough.server.errors import ApiError
from bough.server.openai.constraint import to_constraint
from bough.server.openai.objects import ChatBody
from bough.server.openai.replies import ReasoningReader, TextReader, Thought
from bough.server.openai.requests import decode_openai, to_messages
from bough.server.openai.tools import Toolbox, to_toolbox

from ..conftest import Running, Start
from ..fake_client import EOS, ByteTokenizer, FakeClient, Script

HI: Any = [{"role": "user", "content": "hi"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city"],
    "additionalProperties": False,
}
PLANT = {"type": "object", "properties": {"kind": {"enum": ["oak", "elm"]}}, "required": ["kind"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}},
    {"type": "function", "function": {"name": "plant", "parameters": {**PLANT, "additionalProperties": False}}},
]
TEMPLATE = "tools <tool_call> arguments"
THINKING = TEMPLATE + " enable_thinking <think> </think>"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
BUDGET = 400


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    tokens = (*(bytes([value]) for value in range(256)), None)
    vocabulary = Vocabulary(tokens=tokens, eos_ids=(EOS,), size=257, encode=lambda text: list(text.encode()))
    compiler = GrammarCompiler(vocabulary)
    yield compiler
    compiler.close()


def written(request: Request, wish: str, compiler: GrammarCompiler) -> str:
    """Text of a model that has `wish` in mind: the next byte of it that is allowed, else the first that is."""
    if request.grammar is None:
        return wish
    matcher = compiler.compile(request.grammar).matcher()
    row = np.zeros(9, dtype=np.int32)
    left, text = wish.encode(), bytearray()
    for remaining in reversed(range(BUDGET)):
        if matcher.finished:
            break
        matcher.fill_mask(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        wanted = next((byte for byte in left if byte in allowed), None)
        if wanted is None:
            token = EOS if EOS in allowed else int(allowed[-1])
        else:
            token = wanted
            left = left[left.index(wanted) + 1 :]
        token = matcher.accept(token, remaining)
        if token == EOS:
            break
        text.append(token)
    assert matcher.accepting
    return text.decode()


def serve(start: Start, compiler: GrammarCompiler, wish: str, *, template: str = TEMPLATE) -> Running:
    def script(request: Request) -> Script:
        return Script(pieces=tuple(written(request, wish, compiler)))

    return start(FakeClient(script, tokenizer=ByteTokenizer(template=template)))


def create(server: Running, **fields: Any) -> Any:
    return server.openai().chat.completions.create(model="m", messages=HI, **fields)


def calls_of(answer: Any) -> list[tuple[str, Any]]:
    calls = answer.choices[0].message.tool_calls or []
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    found = [(call.function.name, json.loads(call.function.arguments)) for call in calls]
    for name, arguments in found:
        jsonschema.validate(arguments, schemas[name])
    return found


def test_a_call_in_free_text_is_held_to_its_schema(start: Start, compiler: GrammarCompiler) -> None:
    wish = 'Sure. <tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 99, "x": 1}}</tool_call> Bye.'
    answer = create(serve(start, compiler, wish), tools=TOOLS)
    assert calls_of(answer) == [("weather", {"city": "Rome", "days": 1})] or calls_of(answer)[0][0] == "weather"
    assert answer.choices[0].message.content.startswith("Sure. ")
    assert "tool_call" not in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "tool_calls"


def test_text_without_a_call_is_free(start: Start, compiler: GrammarCompiler) -> None:
    answer = create(serve(start, compiler, "a < b <tool, {[}"), tools=TOOLS)
    assert answer.choices[0].message.content == "a < b <tool, {[}"
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


def test_parallel_calls_and_text_around_them(start: Start, compiler: GrammarCompiler) -> None:
    plant = CALL.replace("weather", "plant").replace('"city": "Rome"', '"kind": "elm"')
    server = serve(start, compiler, f"First: {CALL}\n{plant}\nDone.")
    answer = create(server, tools=TOOLS)
    assert calls_of(answer) == [("weather", {"city": "Rome"}), ("plant", {"kind": "elm"})]
    assert answer.choices[0].message.content == "First: \nDone."
    single = create(server, tools=TOOLS, parallel_tool_calls=False)
    assert calls_of(single) == [("weather", {"city": "Rome"})]
    assert single.choices[0].message.content == "First: "


@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_written_at_once(start: Start, compiler: GrammarCompiler, parallel: bool) -> None:
    server = serve(start, compiler, "I will not. " + CALL + "\n" + CALL)
    answer = create(server, tools=TOOLS, tool_choice="required", parallel_tool_calls=parallel)
    assert calls_of(answer)
    assert len(calls_of(answer)) == 1 or parallel
    assert answer.choices[0].message.content is None
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_named_call_is_of_that_function(start: Start, compiler: GrammarCompiler) -> None:
    choice = {"type": "function", "function": {"name": "plant"}}
    answer = create(serve(start, compiler, CALL), tools=TOOLS, tool_choice=choice)
    assert [name for name, _ in calls_of(answer)] == ["plant"]


def test_calls_stream_as_they_are_written(start: Start, compiler: GrammarCompiler) -> None:
    server = serve(start, compiler, "Well. " + CALL + CALL)
    chunks = [chunk.choices[0].delta for chunk in create(server, tools=TOOLS, stream=True)]
    deltas = [delta.tool_calls[0] for delta in chunks if delta.tool_calls]
    assert [delta.index for delta in deltas if delta.function.name] == [0, 1]
    assert sum(bool(delta.function.arguments) for delta in deltas) > 20
    for index in (0, 1):
        text = "".join(delta.function.arguments for delta in deltas if delta.index == index)
        assert json.loads(text) == {"city": "Rome"}
    with server.openai().chat.completions.stream(model="m", messages=HI, tools=TOOLS) as stream:
        stream.until_done()
        message = stream.get_final_completion().choices[0].message
    assert [call.function.name for call in message.tool_calls or ()] == ["weather", "weather"]
    assert message.content == "Well. "


@pytest.mark.parametrize(("wish", "called"), [('{"kind": "oak"}', False), (CALL, True)])
def test_a_call_or_an_answer_in_the_response_format(
    start: Start, compiler: GrammarCompiler, wish: str, called: bool
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "p", "schema": PLANT, "strict": True}}
    answer = create(serve(start, compiler, wish), tools=TOOLS, response_format=form)
    assert bool(calls_of(answer)) == called
    if not called:
        jsonschema.validate(json.loads(answer.choices[0].message.content), PLANT)


def test_strict_tools_are_exact_and_others_are_as_good_as_can_be(start: Start, compiler: GrammarCompiler) -> None:
    server = serve(start, compiler, "No.")
    create(server, tools=TOOLS)
    grammar = server.engine.asked[0].grammar
    assert isinstance(grammar, Structural)
    contents = [tag.content for tag in grammar.tags]
    assert [content.policy for content in contents if isinstance(content, JsonSchema)] == ["exact", "best_effort"]


def test_other_constraints_and_tools_are_refused(start: Start, compiler: GrammarCompiler) -> None:
    server = serve(start, compiler, "No.")
    for fields in ({"regex": "a"}, {"ebnf": 'root ::= "a"'}, {"guided_choice": ["a"]}, {"ebnf": 'start: "a"'}):
        with pytest.raises(openai.BadRequestError) as caught:
            create(server, tools=TOOLS, extra_body=fields)
        assert caught.value.param == next(iter(fields))


def test_a_constraint_begins_after_the_reasoning(start: Start, compiler: GrammarCompiler) -> None:
    server = serve(start, compiler, '<think>\nIs it {"oak"}?</think>\n\n{"kind": "oak"}', template=THINKING)
    form = {"type": "json_schema", "json_schema": {"name": "p", "schema": PLANT, "strict": True}}
    answer = create(server, response_format=form)
    message = answer.choices[0].message
    assert message.reasoning_content == 'Is it {"oak"}?'
    thought = len('<think>\nIs it {"oak"}?</think>')
    assert answer.usage.completion_tokens_details.reasoning_tokens == thought
    assert json.loads(message.content) == {"kind": "oak"}
    chunks = [chunk.choices[0].delta for chunk in create(server, response_format=form, stream=True)]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in chunks) == 'Is it {"oak"}?'
    assert json.loads("".join(delta.content or "" for delta in chunks)) == {"kind": "oak"}


def test_free_answers_count_their_reasoning_too(start: Start, compiler: GrammarCompiler) -> None:
    server = serve(start, compiler, "<think>Hm.</think>\n\na", template=THINKING)
    answer = create(server, n=2)
    assert answer.usage.completion_tokens_details.reasoning_tokens == 2 * len("<think>Hm.</think>")
    assert create(serve(start, compiler, "a", template=THINKING)).usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, Structural(reasoning_end="</think>", reasoning_budget=9)),
        ({"regex": "a"}, Structural(reasoning_end="</think>", then=Regex("a"), reasoning_budget=9)),
        ({"chat_template_kwargs": {"enable_thinking": False}}, None),
        ({"thinking_token_budget": -1}, None),
    ],
)
def test_reasoning_may_have_a_budget(start: Start, fields: Any, grammar: Any) -> None:
    pieces = ["<think>a", "b</think>", "c"]
    server = start(FakeClient(lambda _: Script(pieces), tokenizer=ByteTokenizer(template=THINKING)))
    message = create(server, extra_body={"thinking_token_budget": 9, **fields}).choices[0].message
    assert server.engine.asked[0].grammar == grammar
    if grammar is not None:
        assert (message.reasoning_content, message.content) == ("ab", "c")


def test_a_budget_is_refused_where_nothing_is_known_to_end_the_reasoning(start: Start) -> None:
    server = start(FakeClient(tokenizer=ByteTokenizer(template=TEMPLATE)))
    with pytest.raises(openai.BadRequestError) as caught:
        create(server, extra_body={"thinking_token_budget": 9})
    assert caught.value.param == "thinking_token_budget"
    create(server, extra_body={"thinking_token_budget": 9, "reasoning_end": "ANSWER:"})
    assert server.engine.asked[-1].grammar == Structural(reasoning_end="ANSWER:", reasoning_budget=9)


def test_reasoning_before_a_call(start: Start, compiler: GrammarCompiler) -> None:
    server = serve(start, compiler, f"<think>A <tool_call> is due.</think>\n\n{CALL}", template=THINKING)
    for choice in ("auto", "required"):
        answer = create(server, tools=TOOLS, tool_choice=choice)
        assert answer.choices[0].message.reasoning_content == "A <tool_call> is due."
        assert calls_of(answer)[0] == ("weather", {"city": "Rome"})


@pytest.mark.parametrize(
    ("fields", "template"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, THINKING),
        ({"reasoning_end": ""}, THINKING),
        ({}, TEMPLATE),
    ],
)
def test_reasoning_can_be_off(start: Start, compiler: GrammarCompiler, fields: Any, template: str) -> None:
    server = serve(start, compiler, "<think>Hm.</think>a", template=template)
    answer = create(server, extra_body={"regex": "a|b", **fields})
    assert answer.choices[0].message.content == "a"


def test_another_text_may_end_the_reasoning(start: Start, compiler: GrammarCompiler) -> None:
    server = serve(start, compiler, "Let me see. ANSWER: b", template=TEMPLATE)
    message = create(server, extra_body={"regex": " ?[ab]", "reasoning_end": "ANSWER:"}).choices[0].message
    assert (message.reasoning_content, message.content) == ("Let me see. ", " b")


def test_a_text_that_says_so_or_is_told_so_begins_with_reasoning(start: Start, compiler: GrammarCompiler) -> None:
    """Beside tools, which leave the text free, it need not."""
    server = serve(start, compiler, "No. ANSWER: b", template=THINKING)
    message = create(server, tools=TOOLS).choices[0].message
    assert (message.content, getattr(message, "reasoning_content", None)) == ("No. ANSWER: b", None)
    message = create(server, tools=TOOLS, extra_body={"reasoning_end": "ANSWER:"}).choices[0].message
    assert (message.content, message.reasoning_content) == (" b", "No. ")


LEGACY = {
    "type": "structural_tag",
    "structures": [{"begin": "<plant>", "schema": PLANT, "end": "</plant>"}],
    "triggers": ["<plant"],
}
TAGS = [{"type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{2}"}, "end": "</n>"}]
FORMATS: dict[str, Any] = {
    "triggered_tags": {"type": "triggered_tags", "triggers": ["<n"], "tags": TAGS},
    "tags": {"type": "tags_with_separator", "separator": "", "tags": TAGS, "at_least_one": True},
    "tag": TAGS[0],
    "regex": {"type": "regex", "pattern": "<n>[0-9]{2}</n>"},
    "grammar": {"type": "grammar", "grammar": 'root ::= "<n>" [0-9]{2} "</n>"'},
    "any text in a tag": {"type": "tag", "begin": "<n>", "content": {"type": "any_text"}, "end": "</n>"},
}


def test_structures_with_triggers(start: Start, compiler: GrammarCompiler) -> None:
    server = serve(start, compiler, 'A tree: <plant>{"kind": "pine"}</plant>.')
    text = create(server, response_format=LEGACY).choices[0].message.content
    assert text.startswith("A tree: <plant>")
    assert json.loads(text.partition("<plant>")[2].partition("</plant>")[0])["kind"] in ("oak", "elm")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("legacy", [True, False])
def test_formats(start: Start, compiler: GrammarCompiler, name: str, legacy: bool) -> None:
    server = serve(start, compiler, "Two: <n>1x2</n>")
    tag = {"type": "structural_tag", "format": FORMATS[name]}
    fields: Any = (
        {"extra_body": {"structured_outputs": {"structural_tag": json.dumps(tag)}}}
        if legacy
        else {"response_format": tag}
    )
    text = create(server, **fields).choices[0].message.content
    inside = "1x2" if name == "any text in a tag" else "12"
    assert text == ("Two: " if name == "triggered_tags" else "") + f"<n>{inside}</n>"


@pytest.mark.parametrize(
    ("tag", "param"),
    [
        ({"format": {"type": "sequence", "elements": []}}, ".format.type"),
        ({"format": {"type": []}}, ".format.type"),
        ({"format": {"type": {}}}, ".format.type"),
        ({"format": {}}, ".format.type"),
        ({"format": {"type": "tag", "begin": "<n>", "end": "</n>"}}, ""),
        (
            {"format": {"type": "triggered_tags", "triggers": ["<"], "tags": TAGS, "excludes": ["x"]}},
            ".format.excludes",
        ),
        ({"format": {"type": "tags_with_separator", "separator": ",", "tags": TAGS}}, ".format.separator"),
        ({"structures": LEGACY["structures"], "triggers": []}, ".triggers"),
        ({"structures": [{"begin": "<n>", "schema": 5, "end": ""}], "triggers": ["<"]}, ".structures[0].schema"),
        ({"structures": 7, "triggers": ["<"]}, ".structures"),
        ({}, ""),
    ],
)
def test_what_is_not_offered_is_named(start: Start, compiler: GrammarCompiler, tag: Any, param: str) -> None:
    server = serve(start, compiler, "x")
    with pytest.raises(openai.BadRequestError) as caught:
        create(server, response_format={"type": "structural_tag", **tag})
    assert (caught.value.param or "").startswith("response_format" + param)
    assert not server.engine.asked


def test_forms_are_found_in_templates() -> None:
    assert find_form('{{- "<tool_call>\\n{\\"name\\": ... \\"arguments\\": " }}') == HERMES
    assert find_form("[TOOL_CALLS] [{{ tool.arguments }}]") == MISTRAL
    assert find_form("[TOOL_CALLS]name[ARGS]{}") == MISTRAL_ARGS
    assert find_form("<tool_call><function=name><parameter=x> arguments") is None
    assert find_form("tools") is None


@hypothesis.given(st.data())
def test_how_a_text_is_cut_does_not_matter(data: st.DataObject) -> None:
    form: CallForm = data.draw(st.sampled_from([HERMES, MISTRAL, MISTRAL_ARGS]))
    call = form.begin("weather") + '{"city": "a}\\"b"}' + form.after
    parts = st.sampled_from([call, form.trigger, form.trigger[:3], "Hm. ", "\n", "</think>", "<think>", "{"])
    text = "".join(data.draw(st.lists(parts, max_size=5)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for make in (
        lambda: TagReader(form, ["weather", "plant"]),
        lambda: ReasoningReader("</think>", "<think>", TextReader()),
        lambda: ReasoningReader("</think>", "<think>", TextReader(), optional=True),
    ):
        assert told(make(), pieces) == told(make(), [text])


def told(reader: Any, pieces: list[str]) -> tuple[str, str, dict[int, str]]:
    thought = said = ""
    calls: dict[int, str] = {}
    for part in [*(part for piece in pieces for part in reader.push(piece)), *reader.finish()]:
        match part:
            case Thought(text):
                thought += text
            case Said(text):
                said += text
            case Called(position, name, arguments):
                calls[position] = calls.get(position, "") + (name or "") + arguments
    return thought, said, calls


def to_body(**fields: Any) -> ChatBody:
    return decode_openai(json.dumps({"model": "m", "messages": HI, **fields}).encode(), ChatBody)[0]


HIDDEN = '{"a":[' + ",".join(["{}"] * 100_000) + "]}"
NUMBERS = '{"a":[' + ",".join(["1"] * 200_000) + "]}"
TAG = "structured_outputs.structural_tag"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"guided_json": HIDDEN}, "request_too_large", "guided_json"),
        ({"guided_json": NUMBERS}, "array_above_max_length", "guided_json"),
        ({"structured_outputs": {"json": HIDDEN}}, "request_too_large", "structured_outputs.json"),
        ({"structured_outputs": {"structural_tag": f'{{"format":{HIDDEN}}}'}}, "request_too_large", TAG),
        ({"guided_json": json.dumps({"description": "x" * 1_100_000})}, "grammar_too_complex", "guided_json"),
        ({"guided_json": {"description": "x" * 1_100_000}}, "grammar_too_complex", "guided_json"),
        (
            {"structured_outputs": {"structural_tag": {"format": {"type": "grammar", "grammar": "x" * 300_000}}}},
            "invalid_type",
            f"{TAG}.grammar",
        ),
        (
            {"structured_outputs": {"structural_tag": {"format": {"type": "regex", "pattern": "x" * 300_000}}}},
            "invalid_type",
            f"{TAG}.pattern",
        ),
    ],
)
def test_what_is_inside_of_strings_and_tags_is_bounded(fields: dict[str, Any], code: str, param: str) -> None:
    body = to_body(**fields)
    began = time.thread_time()
    with pytest.raises(ApiError) as caught:
        to_constraint(body)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert time.thread_time() - began < 0.1


FEW, MANY = 1, MAX_TAGS + 1


@pytest.mark.parametrize(
    ("kind", "num_tags", "num_triggers"),
    [
        ("structures", MANY, FEW),
        ("structures", FEW, MANY),
        ("triggered_tags", MANY, FEW),
        ("triggered_tags", FEW, MANY),
        ("tags_with_separator", MANY, 0),
    ],
)
def test_too_many_tags_are_refused_before_they_are_read(
    compiler: GrammarCompiler, kind: str, num_tags: int, num_triggers: int
) -> None:
    """Each of 64 sequences of one request counted the characters of 16,000 tags on the event loop."""
    triggers = ["<"] * num_triggers
    tag: dict[str, Any] = {"format": {"type": kind, "triggers": triggers, "separator": "", "tags": TAGS * num_tags}}
    if kind == "structures":  # 5 is no schema, which is not even seen
        tag = {"structures": [{"begin": "<", "schema": 5, "end": ">"}] * num_tags, "triggers": triggers}
    with pytest.raises(ApiError) as caught:
        to_constraint(to_body(response_format={"type": "structural_tag", **tag}))
    spec = Structural(tuple(Tag("<", None, ">") for _ in range(num_tags)), tuple(triggers))
    with pytest.raises(GrammarError) as refused:
        compiler.compile(spec)
    error, param = caught.value, "response_format" if kind == "structures" else "response_format.format"
    assert (error.status, error.code, error.param) == (400, refused.value.code, param)
    assert error.message == str(refused.value)


def test_two_constraints_are_refused_before_either_is_read() -> None:
    body = to_body(guided_json="no JSON", structured_outputs={"structural_tag": {"format": 7}})
    with pytest.raises(ApiError, match="only one constraint"):
        to_constraint(body)
    with pytest.raises(ApiError, match="a JSON Schema is"):
        to_constraint(to_body(guided_json="no JSON"))


STRICT = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "integer"}, "strict": True}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_grammar": 'start: "a"', "structured_outputs": {"grammar": 'start: "a"'}}, "guided_grammar"),
        ({"ebnf": 'root ::= "a"', "grammar": 'root ::= "a"'}, "ebnf"),
        ({"regex": "a", "guided_regex": "a", "structured_outputs": {"regex": "a"}}, "guided_regex"),
        ({"guided_choice": ["a"], "structured_outputs": {"choice": ["a"]}}, "guided_choice"),
        ({"guided_json": '{"type": "integer"}', "json_schema": {"type": "integer"}}, "guided_json"),
        ({"response_format": {"type": "json_object"}, "format": "json"}, "response_format"),
    ],
)
def test_one_constraint_may_have_several_spellings(fields: dict[str, Any], param: str) -> None:
    found = to_constraint(to_body(**fields))
    assert found.param == param
    first = next(name for name in fields if name == param)
    assert to_constraint(to_body(**{first: fields[first]})).grammar == found.grammar


def test_the_stricter_layout_of_two_spellings_holds() -> None:
    found = to_constraint(to_body(response_format=STRICT, guided_json={"type": "integer"}))
    assert found.grammar == JsonSchema('{"type": "integer"}', property_order="schema")


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {"type": "integer"}, "json_schema": {"type": "string"}},
        {"guided_json": {"type": "object"}, "response_format": STRICT},
        {"regex": "a", "guided_regex": "b"},
        {"regex": "a", "grammar": 'root ::= "a"'},
        {"guided_choice": ["a"], "structured_outputs": {"choice": ["a", "b"]}},
        {"format": "json", "guided_json": {"type": "integer"}},
    ],
)
def test_two_different_constraints_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="only one constraint"):
        to_constraint(to_body(**fields))


OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}}
OPEN_TOOL = {"type": "function", "function": {"name": "f", "parameters": OPEN}}


@pytest.mark.parametrize("unnamed", [None, "omit", "allow"])
def test_keys_that_a_schema_does_not_name_are_left_out_unless_they_are_wanted(unnamed: str | None) -> None:
    expected = "allow" if unnamed == "allow" else "omit"

    def schemas(**fields: Any) -> set[str]:
        body = to_body(unnamed_properties=unnamed, **fields)
        toolbox = to_toolbox(body)._replace(form=HERMES) if body.tools else Toolbox()
        grammar = to_constraint(body, toolbox).grammar
        found = [tag.content for tag in grammar.tags] if isinstance(grammar, Structural) else [grammar]
        return {schema.unnamed for schema in found if isinstance(schema, JsonSchema)}

    tag = {
        "format": {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": OPEN}, "end": "<"}
    }
    assert schemas(guided_json=OPEN) == {expected}
    assert schemas(structural_tag=tag) == {expected}
    assert schemas(tools=[OPEN_TOOL]) == {expected}
    assert schemas(tools=[OPEN_TOOL], guided_json=OPEN) == {expected}
    assert schemas(tools=[OPEN_TOOL], tool_choice="required") == {expected}
    assert schemas(guided_json={"type": "object"}) == {"allow"}


def test_an_answer_tells_which_objects_were_closed(start: Start) -> None:
    receipt = Receipt(mode="exact", enforced=("properties",), closed=("", "/properties/a"))
    answer = create(start(FakeClient(lambda _: Script(receipt=receipt))), extra_body={"guided_json": OPEN})
    assert answer.constraint["closed"] == ["", "/properties/a"]


@pytest.mark.parametrize(
    "fields", [{"guided_regex": "a*"}, {"tools": TOOLS}, {"response_format": {"type": "json_object"}}]
)
def test_a_least_number_of_tokens_does_not_go_with_a_constraint(start: Start, fields: Any) -> None:
    server = start(FakeClient(tokenizer=ByteTokenizer(template=TEMPLATE)))
    with pytest.raises(openai.BadRequestError, match=next(iter(fields))) as caught:
        create(server, extra_body={"min_tokens": 2, **fields})
    assert caught.value.param == "min_tokens"
    create(server, extra_body={"min_tokens": 0, **fields})
    create(server, extra_body={"min_tokens": 2, "tools": TOOLS, "tool_choice": "none"})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "grammar": "x"}}, "response_format.grammar"),
        ({"response_format": {"type": "json_object", "strict": True}}, "response_format.strict"),
        ({"response_format": {"type": "json_object", "schema": {}, "value": {}}}, "response_format.value"),
        ({"response_format": {"type": "json_object", "schema": "{}"}}, "response_format.schema"),
        ({"response_format": {"type": "regex", "value": {}}}, "response_format.value"),
        ({"response_format": {"type": "regex"}}, "response_format.pattern"),
        ({"response_format": {"type": "grammar"}}, "response_format.grammar"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": None}}},
            "response_format.json_schema.schema",
        ),
        ({"output_format": {"type": "json_schema", "schema": 7}}, "output_format.schema"),
        ({"format": "yaml"}, "format"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"regex": "a", "language": "b"}}, "structured_outputs.language"),
    ],
)
def test_what_a_constraint_does_not_have_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        to_constraint(to_body(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)


def test_arguments_of_calls_count_as_parts_of_the_body() -> None:
    def history(*arguments: str) -> list[Any]:
        calls = [{"id": "c", "function": {"name": "f", "arguments": text}} for text in arguments]
        return [{"role": "assistant", "tool_calls": calls}]

    small = '{"a":[' + ",".join(["{}"] * 10_000) + "]}"
    for messages, code in (
        (history(HIDDEN), "request_too_large"),
        (history(*[small] * 8), "request_too_large"),
        (history(NUMBERS), "array_above_max_length"),
    ):
        body = to_body(messages=messages)
        began = time.thread_time()
        with pytest.raises(ApiError) as caught:
            to_messages(body.messages, Toolbox(), knows_tools=True)
        assert (caught.value.code, caught.value.param) == (code, "messages")
        assert time.thread_time() - began < 0.1
    to_messages(to_body(messages=history(small)).messages, Toolbox(), knows_tools=True)


def test_a_constraint_is_not_sent_too_often(start: Start) -> None:
    server = start()
    schema = {"description": "x" * 900_000}
    body = {"model": "m", "prompt": ["a"] * 16, "guided_json": schema}
    refused = server.http().post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "guided_json")
    assert refused.json()["error"]["code"] == "grammar_too_complex"
    assert server.http().post("/v1/completions", json={**body, "prompt": ["a"] * 8}).status_code == 200
    many = {"model": "m", "prompt": "a", "guided_choice": [str(number) for number in range(10_001)]}
    refused = server.http().post("/v1/completions", json=many)
    assert refused.json()["error"]["code"] == "array_above_max_length"


@pytest.mark.parametrize("blanks", [" ", "#", "//", " \n"])
def test_a_grammar_of_blanks_takes_no_time(blanks: str) -> None:
    text = (blanks * 20_000)[:20_000] + "\n!::="
    began = time.thread_time()
    for fields in ({"guided_grammar": text}, {"ebnf": text}, {"structured_outputs": {"grammar": text}}):
        to_constraint(to_body(**fields))
    assert time.thread_time() - began < 0.2
