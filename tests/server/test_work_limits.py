"""Work beside the event loop at the limits of its size: each piece takes about half a second of a thread at most."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bough.constrain.spec import Choice, GrammarSpec, JsonSchema
from bough.runtime.protocol.condition import Compare
from bough.runtime.protocol.errors import BoughError
from bough.runtime.protocol.program import Assign, Gen, Op, Program, Text, When
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.protocol.template import Parameter, ResultConstant, Template
from bough.runtime.templates.fill import fill
from bough.runtime.tokenizer.load import load_tokenizer
from bough.runtime.tokenizer.tokenizer import MAX_TOKEN_CHARS, Tokenizer
from bough.server.anthropic.objects import FIELDS, MessagesBody
from bough.server.anthropic.requests import count_tokens, message_job
from bough.server.app import TOKENIZED_CONTEXTS
from bough.server.errors import ApiError
from bough.server.http.connection import MAX_ITEMS, MAX_PARTS, MAX_TOKEN_IDS
from bough.server.openai.objects import MAX_GRAMMAR_CHARS, ChatBody, CompletionBody
from bough.server.openai.requests import (
    Context,
    chat_job,
    check_chars,
    completion_job,
    decode_openai,
    encode_prompts,
)
from bough.server.programs import programs as programs_module

from .fake_client import INFO

MOST_S = 0.75
"""Processor time of a piece of work: half a second, and some for slower machines."""

MOST_BYTES = 4 << 20
HI: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    tokenizer = load_tokenizer(default_model)
    tokenizer.fewest_tokens("a")
    return tokenizer


def context(tokenizer: Tokenizer) -> Context:
    info = msgspec.structs.replace(INFO, max_model_len=8192, max_request_tokens=8192, vocab_size=tokenizer.vocab_size)
    return Context(id="r", namespace="", tokenizer=tokenizer, info=info, timeout_s=60.0, max_sequences=64)


def took(work: Callable[[], object]) -> float:
    """Returns the processor time of a piece of work, which may be refused."""
    began = time.thread_time()
    with contextlib.suppress(ApiError, BoughError):
        work()
    return time.thread_time() - began


def filled(head: str, part: str, tail: str, number: int = 1 << 30) -> bytes:
    """Returns a body of as many parts as it may have."""
    number = min(number, (MOST_BYTES - len(head) - len(tail)) // len(part.encode()))
    return (head + part * number + tail).encode()


CHAT = '{"model":"m","messages":[{"role":"user","content":"hi"}],'
SAID = '{"model":"m","messages":[{"role":"user","content":"'
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
MANY_PARTS = ",".join(["{}"] * (MAX_PARTS - 50))
CALLS = [{"id": "c", "function": {"name": "f", "arguments": "{}"}}] * 20


def message(**fields: Any) -> str:
    return json.dumps({"role": "assistant", "content": "x", **fields})


def tools(parameters: Any) -> str:
    return json.dumps([{**TOOL, "function": {**TOOL["function"], "parameters": parameters}}])


def grammar(part: str) -> bytes:
    text = (part * MAX_GRAMMAR_CHARS)[: MAX_GRAMMAR_CHARS - 4] + "!::="
    return (CHAT + '"guided_grammar":' + json.dumps(text) + "}").encode()


CHATS = {
    "a text of escapes": filled(SAID, "\\u00e9", '"}]}'),
    "a text of words": filled(SAID, "word ", '"}]}'),
    "a text within what may fit": filled(SAID, "ab", '"}]}', 65_000),
    "control tokens": filled(SAID, "<|im_end|>", '"}]}', 13_000),
    "marks": filled(SAID, "\ue000", '"}]}', 130_000),
    "a long number": filled(CHAT + '"seed":', "1", "}"),
    "a long fraction": filled(CHAT + '"top_p":0.', "1", "}"),
    "numbers": filled(CHAT + '"x":[', "1.5,", "1]}", MAX_ITEMS),
    "deep lists": filled(CHAT + '"x":', "[", "", MAX_PARTS - 50),
    "unknown fields": (CHAT + ",".join(f'"x{n}":1' for n in range(MAX_PARTS - 50)) + "}").encode(),
    "a bias": (CHAT + '"logit_bias":{' + ",".join(f'"{n}":1' for n in range(MAX_PARTS - 50)) + "}}").encode(),
    "arguments of the template": (CHAT + '"chat_template_kwargs":{"x":[' + MANY_PARTS + "]}}").encode(),
    "messages": ('{"model":"m","messages":[' + ",".join([message(content="x" * 60)] * 2048) + "]}").encode(),
    "calls": ('{"model":"m","messages":[' + ",".join([message(tool_calls=CALLS)] * 400) + "]}").encode(),
    "arguments of calls": (
        '{"model":"m","messages":['
        + message(tool_calls=[{"id": "c", "function": {"name": "f", "arguments": f'{{"a":[{MANY_PARTS}]}}'}}])
        + "]}"
    ).encode(),
    "a schema": (CHAT + '"guided_json":{"enum":[' + MANY_PARTS + "]}}").encode(),
    "a schema in a string": (CHAT + '"guided_json":' + json.dumps('{"enum":[' + MANY_PARTS + "]}") + "}").encode(),
    "a description": filled(CHAT + '"guided_json":{"description":"', "x", '"}}', 999_000),
    "a pattern": filled(CHAT + '"guided_regex":"', "(a|", '"}', 80_000),
    "options": (CHAT + '"guided_choice":' + json.dumps([f"{n} " + "x" * 300 for n in range(10_000)]) + "}").encode(),
    "a tool of many types": (
        CHAT
        + '"tools":'
        + tools({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(16_000)}})
        + "}"
    ).encode(),
    "a tool of many values": (CHAT + '"tools":' + tools({"enum": list(range(100_000))}) + "}").encode(),
    "a tool of nested types": (
        CHAT + '"tools":' + tools(json.loads('{"items":' * 400 + "{}" + "}" * 400)) + "}"
    ).encode(),
    **{f"a grammar of {part!r}": grammar(part) for part in (" ", "#", "// ", "a ", "\n# ", '"')},
}


@pytest.mark.parametrize("name", CHATS)
def test_chats(name: str, tokenizer: Tokenizer) -> None:
    def read() -> None:
        bodies.append(decode_openai(CHATS[name], ChatBody)[0])

    bodies: list[ChatBody] = []
    assert took(read) < MOST_S
    for body in bodies:
        assert took(partial(chat_job, body, context(tokenizer))) < MOST_S


def said(*messages: tuple[str, Any]) -> bytes:
    given = [{"role": role, "content": content} for role, content in messages]
    return json.dumps({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}, *given]}).encode()


THOUGHT = {"type": "thinking", "thinking": "x" * 1_900}
MESSAGES = {
    "turns of one role": said(*[("assistant", "x" * 1_900)] * 2_000),
    "thoughts of one turn": said(*[("assistant", [THOUGHT])] * 2_000, ("user", "so?")),
    "blocks of one turn": said(*[("user", [{"type": "text", "text": "x"}] * 200)] * 100),
    "calls and results": said(
        ("assistant", [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {}} for n in range(2_000)]),
        ("user", [{"type": "tool_result", "tool_use_id": f"t{n}", "content": "x" * 1_000} for n in range(2_000)]),
    ),
    "nested blocks": (
        '{"model":"m","max_tokens":9,"messages":[{"role":"user","content":['
        + '{"type":"tool_result","content":[' * 10_000
    ).encode(),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages(name: str, tokenizer: Tokenizer) -> None:
    def read() -> None:
        bodies.append(decode_openai(MESSAGES[name], MessagesBody, names=FIELDS)[0])

    bodies: list[MessagesBody] = []
    assert len(MESSAGES[name]) <= MOST_BYTES and took(read) < MOST_S
    assert len(bodies) == (name != "nested blocks")
    for body in bodies:
        assert took(partial(message_job, body, context(tokenizer))) < MOST_S
        assert took(partial(count_tokens, body, context(tokenizer))) < MOST_S


COMPLETIONS = {
    "token ids": json.dumps({"model": "m", "prompt": [list(range(8000))] * 64}).encode(),
    "texts": json.dumps({"model": "m", "prompt": ["word " * 8000] * 64}).encode(),
    "texts of one word": json.dumps({"model": "m", "prompt": ["ab" * 8000] * 64}).encode(),
    "texts of nothing": json.dumps({"model": "m", "prompt": [" " * 60_000] * 64}).encode(),
    "echoes": json.dumps(
        {"model": "m", "prompt": [list(range(8000))] * 4, "n": 16, "echo": True, "logprobs": 20}
    ).encode(),
    "stop texts": json.dumps({"model": "m", "prompt": "a", "stop": ["a" * 64] * 4, "n": 16}).encode(),
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions(name: str, tokenizer: Tokenizer) -> None:
    began = time.thread_time()
    body, _ = decode_openai(COMPLETIONS[name], CompletionBody, max_items=MAX_TOKEN_IDS)
    assert time.thread_time() - began < MOST_S
    prompts: list[list[int]] = []
    whole: list[bool] = []
    for _ in range(64):
        assert took(lambda: whole.append(encode_prompts(body, context(tokenizer), prompts))) < MOST_S
    assert whole[-1] and len(prompts) == (1 if isinstance(body.prompt, str) else len(body.prompt))
    assert took(partial(completion_job, body, context(tokenizer), prompts)) < MOST_S


TEXTS = {
    "words": "word ", "one word": "ab", "blanks": " ", "lines": "\n", "digits": "7", "letters": "é", "signs": "=",
    "pictures": "\U0001f600",
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str, tokenizer: Tokenizer) -> None:
    limit = TOKENIZED_CONTEXTS * context(tokenizer).max_tokens
    text = (TEXTS[name] * limit * MAX_TOKEN_CHARS)[: limit * MAX_TOKEN_CHARS]
    check_chars(len(text), max_tokens=limit, param="prompt")
    with pytest.raises(ApiError):
        check_chars(len(text) + 1, max_tokens=limit, param="prompt")
    assert took(lambda: tokenizer.encode_prompt(text, special=True)) < MOST_S


def ops_of(grammars: list[GrammarSpec], max_tokens: int) -> tuple[Op, ...]:
    return tuple(Gen(0, f"x{n}", SamplingParams(max_tokens=max_tokens), grammar) for n, grammar in enumerate(grammars))


def nested(depth: int) -> Op:
    op: Op = Text(0, ("x",))
    for _ in range(depth):
        op = When(0, Compare("1", "eq", "1"), (op,))
    return op


def longest(tokenizer: Tokenizer, number: int, size: int) -> str:
    return longest_piece(tokenizer) * (size // len(longest_piece(tokenizer))) + f"{number:08}"


@lru_cache(maxsize=1)
def longest_piece(tokenizer: Tokenizer) -> str:
    return max((piece for piece in tokenizer.token_bytes if piece), key=len).decode()


PROGRAMS: dict[str, Callable[[Tokenizer], tuple[Op, ...]]] = {
    "choices": lambda known: ops_of([Choice((longest(known, n, 4080),)) for n in range(900)], 3000),
    "choices of many": lambda known: ops_of(
        [Choice(tuple(longest(known, n * 30 + m, 130) for m in range(30))) for n in range(900)], 100
    ),
    "schemas of names": lambda known: ops_of(
        [
            JsonSchema(json.dumps({"type": "object", "properties": {name: {"const": 1}}, "required": [name]}))
            for name in (longest(known, n, 3000) for n in range(600))
        ],
        2500,
    ),
    "schemas": lambda _: ops_of(
        [
            JsonSchema(
                json.dumps({"type": "object", "properties": {f"p{n}{m}": {"type": "integer"} for m in range(100)}})
            )
            for n in range(900)
        ],
        3,
    ),
    "assignments": lambda _: tuple(Assign(0, f"x{n}", ("1", "2", "3")) for n in range(4096)),
    "blocks": lambda _: (nested(100),),
    "texts": lambda _: (Text(0, ("x" * 4_000_000,)),),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tokenizer: Tokenizer) -> None:
    data = msgspec.json.encode(Program(id="p", ops=PROGRAMS[name](tokenizer)))
    assert len(data) < MOST_BYTES
    assert took(partial(programs_module._program, data, tokenizer)) < MOST_S


SCHEMAS = {
    "parts": ({"type": "array", "items": {"type": "object"}}, "[" + MANY_PARTS + "]"),
    "any of many": (
        {"type": "array", "items": {"anyOf": [{"type": "object", "required": [f"a{n}"]} for n in range(100)]}},
        "[" + MANY_PARTS + "]",
    ),
    "distinct": ({"type": "array", "uniqueItems": True}, json.dumps(list(range(100_000)))),
    "a pattern": ({"type": "string", "pattern": "(a|aa)+$"}, json.dumps("a" * 4_000_000 + "b")),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_calls(name: str) -> None:
    schema, text = SCHEMAS[name]
    template = Template(
        name="f",
        parameters=(Parameter(name="a", schema=json.dumps(schema)),),
        ops=(Text(0, ("x",)),),
        result=ResultConstant("1"),
    )
    data = f'{{"a":{text}}}'.encode()
    assert took(lambda: fill(template, programs_module._arguments(data))) < MOST_S
