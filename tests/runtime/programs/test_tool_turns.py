"""Turns of a model that has tools, on the engine: how they are shown, what may be written, what comes back."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from bough.runtime.protocol.program import (
    CallTools,
    Fork,
    Gen,
    Join,
    Offer,
    Op,
    RoleBegin,
    RoleEnd,
    Text,
    Value,
)
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.tokenizer import chat_template
from bough.runtime.tokenizer.load import load_tokenizer
from bough.runtime.tokenizer.tokenizer import Tokenizer
from bough.runtime.tools.calls import CallsReading, WrittenCall
from bough.runtime.tools.forms import HERMES, LLAMA, MISTRAL, PLAIN, CallForm, no_calls
from bough.runtime.tools.tag_reader import Said, TagReader

from ...support import fakes
from .oracle import Heard
from .tool_place import ToolPlace

PLAIN_CHATML = fakes._CHATML
QWEN = """\
{%- set first = messages[0].content if messages and messages[0].role == 'system' else 'Be helpful.' %}
{{- '<|im_start|>system\\n' + first }}
{%- if tools %}{{ '\\n\\n# Tools\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\nCall them as <tool_call>\\n{"name": <name>, "arguments": <arguments>}\\n</tool_call>' }}{% endif %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif message.role != 'system' or not loop.first %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
MISTRALS = """\
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and loop.last %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]{"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- elif message.tool_calls %}
{%- for call in message.tool_calls %}
{{- '[TOOL_CALLS][{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- ', "id": "' + call.id + '"}]<|im_end|>' }}{% endfor %}
{%- elif message.role == 'assistant' %}{{ message.content + '<|im_end|>' }}
{%- else %}{{ raise_exception('no system messages') }}{% endif %}{% endfor %}"""

LLAMAS = """\
{%- for message in messages %}
{%- if message.role == 'tool' %}{{ '<|im_start|>ipython\\n' + (message.content | tojson) + '<|im_end|>' }}
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|im_start|>assistant\\n{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) }}
{{- '}<|im_end|>' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if tools and loop.first %}
{{- 'Call with {"name": function name, "parameters": arguments as an object}:' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson(indent=4)) }}{% endfor %}{{ '\\n\\n' }}{% endif %}
{{- message.content + '<|im_end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}


class Weather:
    """Echoes its arguments."""

    timeout_s = None
    max_chars = 1000
    description = "Tells the <|im_end|> weather."
    parameters = SCHEMA

    def __init__(self, name: str = "weather") -> None:
        self.name = name

    def call(self, arguments: dict[str, Any]) -> str:
        return f"sunny<|im_end|>{arguments['city']}"


Make = Callable[[str], ToolPlace]


@pytest.fixture
def place_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a place whose model has a chat template."""
    places: list[ToolPlace] = []

    def make(template: str) -> ToolPlace:
        fakes.write_byte_tokenizer(tmp_path)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
        tokenizer: Tokenizer = load_tokenizer(tmp_path)
        monkeypatch.setattr(fakes, "byte_tokenizer", lambda: tokenizer)
        places.append(ToolPlace(Weather(), Weather("other")))
        return places[-1]

    yield make
    for place in places:
        place.close()


def chat(branch: int = 0, system: str | None = None) -> list[Op]:
    ops: list[Op] = []
    for role, text in (("system", system), ("user", "How is it?")):
        if text is not None:
            ops += [RoleBegin(branch, role), Text(branch, (text,)), RoleEnd(branch)]
    return [*ops, RoleBegin(branch, "assistant")]


def turn(choice: Any = "required", branch: int = 0, seed: int = 1, **offer: Any) -> list[Op]:
    tools = ("weather", "other")
    sampling = SamplingParams(max_tokens=96, temperature=1.0, seed=seed)
    return [
        Gen(branch, "a", sampling, offer=Offer(tools, choice, **offer)),
        CallTools(branch, "a.calls", "a", tools),
    ]


def read_calls(form: CallForm, text: str, names: Sequence[str]) -> list[WrittenCall]:
    reading = CallsReading(form, text, names)
    while reading.read_on():
        pass
    return reading.calls


def values(heard: Heard, name: str) -> list[str]:
    return [event.text for event in heard.events if isinstance(event, Value) and event.name == name]


def text_of(heard: Heard, branch: int = 0) -> str:
    text: str = heard.done.texts[branch]
    return text


@pytest.mark.parametrize(
    ("template", "form"), [(PLAIN_CHATML, PLAIN), (QWEN, HERMES), (MISTRALS, MISTRAL), (LLAMAS, LLAMA)]
)
@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_written_its_calls_are_valid(template: str, form: CallForm, seed: int, place_of: Make) -> None:
    place = place_of(template)
    heard = place.run([*chat(), *turn(seed=seed), *turn("auto", seed=seed), RoleEnd(0)], keep=True)
    first, second = (json.loads(text) for text in values(heard, "a.calls"))
    assert first, "a call was required"
    for text, calls in zip(values(heard, "a"), (first, second), strict=True):
        assert len(read_calls(form, text, ("weather", "other"))) == len(calls) == text.count(form.trigger)
        for call in calls:
            assert call["name"] in ("weather", "other")
            jsonschema.validate(call["arguments"], SCHEMA)
            assert call["result"] == f"sunny<|im_end|>{call['arguments']['city']}"


@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("template", [PLAIN_CHATML, QWEN])
def test_the_chat_is_as_the_template_writes_it(template: str, system: str | None, place_of: Make) -> None:
    place = place_of(template)
    heard = place.run([*chat(system=system), *turn(parallel=False), Text(0, ("!",)), RoleEnd(0)], keep=True)
    said, (call,) = values(heard, "a")[0], json.loads(values(heard, "a.calls")[0])
    functions = [
        {"type": "function", "function": {"name": name, "description": Weather.description, "parameters": SCHEMA}}
        for name in ("weather", "other")
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "How is it?"}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    tokenizer = place.engine.tokenizer
    if template == QWEN:
        calls = [{"id": "1", "function": {"name": call["name"], "arguments": call["arguments"]}}]
        messages += [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": call["result"]},
            {"role": "assistant", "content": "!"},
        ]
        assert text_of(heard) == tokenizer.chat.render(messages, tools=functions, add_generation_prompt=False)
        return
    told = "You can call these functions:\n" + "\n".join(json.dumps(each["function"]) for each in functions)
    found = text_of(heard)
    begin = f"<|im_start|>system\n{system + chr(10) * 2 if system else ''}{told}\nTo call one, answer with nothing but"
    assert found.startswith(begin)
    result = f"Result of {call['name']}: {call['result']}"
    talk = [("assistant", said), ("user", result), ("assistant", "!")]
    assert found.endswith("".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in talk))


@pytest.mark.parametrize("template", [PLAIN_CHATML, QWEN])
def test_tools_are_shown_in_chats_that_midnight_passes(
    template: str, place_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        moment = datetime(2026, 11, 27, 23, 59)

        @classmethod
        def now(cls, tz: object = None) -> Any:
            return cls.moment

    monkeypatch.setattr(chat_template, "datetime", Clock)
    dated = template.replace("message.content + '\\n</tool", "strftime_now('%d %b') + message.content + '\\n</tool")
    place = place_of("{{ strftime_now('%d %b') }}" + dated)
    parts = [Fork(0, (1,)), *chat(1)[:-1], Join(0, (1,), "append")]
    assert place.run(chat(), "a", keep=True).done
    assert place.run(parts, "b", keep=True).done
    Clock.moment = datetime(2026, 11, 28)
    new = place.run([*chat(), *turn()], "d")
    assert text_of(new).startswith("28 Nov") and "Tells the" in text_of(new)
    for name, ops in (("a", turn()), ("b", [RoleBegin(0, "assistant"), *turn()])):
        heard = place.run(ops, name, resume=True)
        assert text_of(heard).startswith("27 Nov") and "28 Nov" not in text_of(heard)
        assert "Tells the" in text_of(heard)


NO_SYSTEM = """\
{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


@pytest.mark.parametrize("before", ["", "A text outside of messages. "])
@pytest.mark.parametrize("template", [PLAIN_CHATML, NO_SYSTEM])
def test_a_description_of_tools_is_encoded_where_it_is_shown(
    template: str, before: str, place_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, encoded = place_of(template), list[str]()
    encode_pieces = Tokenizer.encode_pieces

    def noted(self: Tokenizer, pieces: Sequence[str | int]) -> list[int]:
        encoded.extend(piece for piece in pieces if isinstance(piece, str) and "You can call these" in piece)
        return encode_pieces(self, pieces)

    monkeypatch.setattr(Tokenizer, "encode_pieces", noted)
    texts = [Text(0, (before,))] if before else []
    heard = place.run([*texts, *chat(), *turn(parallel=False), RoleEnd(0)], keep=True)
    first = "system" if template == PLAIN_CHATML and not before else "user"
    assert text_of(heard).startswith(f"{before}<|im_start|>{first}\nYou can call these functions:\n")
    assert len(encoded) == 1


def test_what_tools_say_is_never_a_control_token(place_of: Make) -> None:
    place = place_of(QWEN)
    heard = place.run([*chat(), *turn(parallel=False), RoleEnd(0)], trace=True)
    tokens = [text for piece in heard.pieces for text in piece.texts]
    assert tokens.count("<|im_end|>") == 5, "system, user, call, results and answer end once each"
    assert "".join(tokens).count("<|im_end|>") > 5


def test_a_last_turn_holds_no_call(place_of: Make) -> None:
    for form, template in ((PLAIN, PLAIN_CHATML), (HERMES, QWEN)):
        heard = place_of(template).run([*chat(), *turn("none"), RoleEnd(0)])
        assert json.loads(values(heard, "a.calls")[0]) == []
        assert re.fullmatch(no_calls(form).pattern, values(heard, "a")[0])
        assert not re.fullmatch(no_calls(form).pattern, "so: " + form.begin("weather"))


def test_branches_see_tools_that_their_parent_does_not(place_of: Make) -> None:
    """A join appends what the branch has said, not the tools that it was shown."""
    place = place_of(QWEN)
    ops = [
        *chat(system="Be brief.")[:-1],
        Fork(0, (1, 2)),
        RoleBegin(1, "assistant"),
        *turn(branch=1, parallel=False),
        RoleEnd(1),
        RoleBegin(2, "assistant"),
        Text(2, ("none",)),
        RoleEnd(2),
        Join(0, (2,), "append"),
        Join(0, (1,), "append"),
    ]
    heard = place.run(ops, keep=True)
    text = text_of(heard)
    assert "# Tools" not in text
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow is it?<|im_end|>\n")
    call = json.loads(values(heard, "a.calls")[0])[0]
    assert f"<|im_start|>assistant\n{values(heard, 'a')[0]}<|im_end|>" in text
    assert f"<tool_response>\n{call['result']}\n</tool_response>" in text


@pytest.mark.parametrize("retries", [0, 1])
def test_branches_that_are_shown_tools_are_counted_whole(retries: int, place_of: Make) -> None:
    """Their tokens are no longer their parent's; nor are they once the branch has begun anew."""
    place = place_of(QWEN)
    children = range(1, 9)
    told = Gen(0, "a", SamplingParams(max_tokens=1, temperature=0.0), offer=Offer(("weather",), "none"))
    ops: list[Op] = [*chat(system="x" * 1000), Fork(0, tuple(children), isolated=True, retries=retries)]
    for child in children:
        ops += [msgspec.structs.replace(told, branch=child), RoleEnd(child), RoleEnd(child)]  # the second one fails
    heard = place.run([*ops, Text(0, ("!",))], keep=True)
    assert heard.done
    state = place.executor._states["p"]
    assert state.account.num_held > len(children) * 1000
    assert state.account.num_held >= sum(branch.content.length for branch in state.branches.values())


def test_tools_are_shown_before_a_user_s_message_where_the_template_does(place_of: Make) -> None:
    place = place_of(MISTRALS)
    heard = place.run([*chat(), *turn(parallel=False), RoleEnd(0)], keep=True)
    call = json.loads(values(heard, "a.calls")[0])[0]
    text = text_of(heard)
    assert text.startswith('[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "weather"')
    assert "[/AVAILABLE_TOOLS][INST]How is it?[/INST][TOOL_CALLS][" in text
    assert f'<|im_end|>[TOOL_RESULTS]{{"content": {call["result"]}, "call_id": "call00001"}}[/TOOL_RESULTS]' in text


def test_llama_writes_arguments_as_parameters_and_hears_of_results_as_json(place_of: Make) -> None:
    heard = place_of(LLAMAS).run([*chat(), *turn(), RoleEnd(0)], keep=True)
    said, calls = values(heard, "a")[0], json.loads(values(heard, "a.calls")[0])
    text = text_of(heard)
    assert text.startswith('<|im_start|>user\nCall with {"name": function name')
    assert said.lstrip().startswith('{"name": "') and '", "parameters": {' in said
    assert said in text
    for call in calls:
        assert f"<|im_start|>ipython\n{json.dumps(call['result'], ensure_ascii=False)}" in text


def test_other_tools_cannot_be_shown_later(place_of: Make) -> None:
    place = place_of(QWEN)
    later = Gen(0, "b", SamplingParams(max_tokens=8), offer=Offer(("other",)))
    only = [Gen(0, "a", SamplingParams(max_tokens=8, seed=1), offer=Offer(("weather",), "none")), later]
    heard = place.run([*chat(), *only])
    assert "a chat shows its tools once" in heard.failed.error.message


def test_tools_need_an_assistant_s_message(place_of: Make) -> None:
    heard = place_of(QWEN).run([Text(0, ("x",)), *turn()])
    assert "in an assistant message" in heard.failed.error.message


def test_texts_are_read_in_linear_time() -> None:
    """These took more than a minute, when what was left was copied at each mark, and compared with all names."""
    text, names = HERMES.trigger * 300_000, [f"tool{index}" for index in range(256)]
    reader = TagReader(HERMES, ["weather"])
    began = time.thread_time()
    said = [piece for piece in (*reader.push(text), *reader.finish()) if isinstance(piece, Said)]
    assert "".join(piece.text for piece in said) == text
    TagReader(HERMES, names).push(HERMES.before * 50_000)
    assert time.thread_time() - began < 6.0


def test_forms_are_read_as_they_are_written() -> None:
    for form in (HERMES, MISTRAL, LLAMA, PLAIN):
        text = "So: " + form.write("weather", {"city": 'a"}b'})
        assert [tuple(call) for call in read_calls(form, text, ["weather"])] == [("weather", {"city": 'a"}b'})]
        assert read_calls(form, form.begin("weather") + '{"city": "a', ["weather"])[0].arguments == '{"city": "a'
