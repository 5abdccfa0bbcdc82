"""Messages: blocks and events of what was generated, whatever the pieces in which it came."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from bough.runtime.protocol.request import Finish, RequestOutput, Usage
from bough.server.anthropic.objects import FIELDS, MessagesBody
from bough.server.anthropic.replies import MessageReply
from bough.server.anthropic.requests import message_job
from bough.server.openai.requests import Context, decode_openai

from ..fake_client import INFO, ByteTokenizer

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}"]}}\n</tool_call>'
TEMPLATE = "tools <tool_call> arguments enable_thinking <think> </think>"
FULL: Any = {"tools": [{"name": "f", "input_schema": {"type": "object"}}], "thinking": {"type": "adaptive"}}
BLOCKS = (
    ("thinking", "Is it due?"),
    ("text", "Now.\n"),
    ("tool_use", {"a": [1, "}"]}),
    ("tool_use", {"a": [1, "}"]}),
    ("text", " Done."),
)
TEXT = f"<think>\nIs it due?</think>\n\nNow.\n{CALL}\n{CALL} Done."


def replied(*pieces: str, **fields: Any) -> MessageReply:
    tokenizer: Any = ByteTokenizer(template=TEMPLATE)
    context = Context(id="r", namespace="", tokenizer=tokenizer, info=INFO, timeout_s=1.0, max_sequences=64)
    given = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    body, _ = decode_openai(msgspec.json.encode(given), MessagesBody, names=FIELDS)
    return MessageReply(body, message_job(body, context), name="1", model="m")


def told(reply: MessageReply, pieces: list[str], usage: Usage | None = None) -> list[Any]:
    """The events of a stream, decoded."""
    events = [*reply.begin()]
    for piece in pieces:
        events += reply.add(0, RequestOutput(id="r", text=piece))
    finish = Finish(reason="stop", usage=usage or Usage())
    events += [*reply.add(0, RequestOutput(id="r", finish=finish)), *reply.end()]
    return [msgspec.json.decode(msgspec.json.encode(event)) for event in events]


def whole(reply: MessageReply) -> Any:
    return msgspec.json.decode(msgspec.json.encode(reply.result()))


def content_of(events: list[Any]) -> list[Any]:
    """The content that a client puts together."""
    blocks: list[Any] = []
    parts: list[str] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"])
                parts.clear()
            case "content_block_delta":
                assert event["index"] == len(blocks) - 1
                kind, text = event["delta"].values()
                assert kind == {
                    "text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta",
                }[blocks[-1]["type"]]  # fmt: skip
                parts.append(text)
            case "content_block_stop":
                assert event["index"] == len(blocks) - 1
                block, text = blocks[-1], "".join(parts)
                if block["type"] == "tool_use":
                    block["input"] = json.loads(text or "{}")
                else:
                    block[block["type"]] = text
    return blocks


def shown(content: list[Any]) -> list[tuple[str, Any]]:
    return [(each["type"], each["input"] if each["type"] == "tool_use" else each[each["type"]]) for each in content]


@given(st.lists(st.integers(0, len(TEXT)), max_size=6))
def test_the_pieces_do_not_matter(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[start:stop] for start, stop in pairwise(places)]
    reply = replied(**FULL)
    events = told(reply, pieces)
    assert shown(content_of(events)) == list(BLOCKS)
    assert content_of(events) == whole(reply)["content"]
    assert [events[0]["type"], events[-2]["type"], events[-1]["type"]] == [
        "message_start", "message_delta", "message_stop",
    ]  # fmt: skip
    opened = [event["type"] for event in events if event["type"].startswith("content_block_st")]
    assert opened == ["content_block_start", "content_block_stop"] * len(BLOCKS)
    assert len({block["id"] for block in content_of(events) if block["type"] == "tool_use"}) == 2


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("", {}, []),
        (" \n", {}, [("text", " \n")]),
        (" \n a", {}, [("text", " \n a")]),
        (f"\n{CALL}", FULL, [BLOCKS[2]]),
        ("<think>\nHm.</think>\n\n", FULL, [("thinking", "Hm.")]),
        ("<think>Hm.", FULL, [("thinking", "Hm.")]),
        ("<thi", FULL, [("text", "<thi")]),
    ],
)
def test_blank_texts_are_no_blocks_beside_calls(text: str, fields: Any, expected: Any) -> None:
    for pieces in ([text], list(text)):
        reply = replied(**fields)
        assert shown(content_of(told(reply, pieces))) == expected
        assert shown(whole(reply)["content"]) == expected


def test_a_stream_begins_with_what_was_cached() -> None:
    reply = replied()
    first, *_ = reply.add(0, RequestOutput(id="r", text="a", cached_tokens=4))
    events = reply.add(0, RequestOutput(id="r", finish=Finish(reason="stop", usage=Usage(cached_tokens=4))))
    assert first.message.usage.cache_read_input_tokens == 4  # type: ignore[attr-defined]
    assert first.message.usage.input_tokens == len("user: hi\n") - 4  # type: ignore[attr-defined]
    assert [type(event).__name__ for event in events] == ["BlockStop"]
    done, _ = reply.end()
    assert done.usage.cache_read_input_tokens == 4  # type: ignore[attr-defined]
