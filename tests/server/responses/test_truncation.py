"""Conversations that are cut to whole turns."""

from __future__ import annotations

from collections.abc import Sequence

from bough.server.openai.objects import CalledFunction, Message, ToolCallInput
from bough.server.responses.truncation import MESSAGE_TOKENS, shortened

from ..fake_client import ByteTokenizer


def user(length: int) -> Message:
    return Message(role="user", content="u" * length)


SYSTEM = Message(role="system", content="s" * 10)
CALL = Message(role="assistant", tool_calls=[ToolCallInput("c", CalledFunction("f", "{}"))])
RESULT = Message(role="tool", content="r", tool_call_id="c")


def cut(messages: Sequence[Message], max_tokens: int) -> list[list[Message]]:
    tokenizer = ByteTokenizer()
    return list(shortened(messages, tokenizer, max_tokens=max_tokens))  # type: ignore[arg-type]


def test_the_last_turns_that_fit_stay_behind_what_the_system_says() -> None:
    turns = [user(100), CALL, RESULT, user(20), CALL, RESULT, user(30)]
    room = 10 + 20 + 3 + 30 + 5 * MESSAGE_TOKENS
    assert cut([SYSTEM, *turns], room) == [[SYSTEM, *turns[3:]], [SYSTEM, user(30)]]
    assert cut([SYSTEM, *turns], room - 1) == [[SYSTEM, user(30)]]


def test_the_last_turn_stays_whatever_its_length() -> None:
    assert cut([user(1), user(10**6)], 10) == [[user(10**6)]]


def test_one_turn_cannot_be_cut() -> None:
    assert cut([SYSTEM, user(10**6)], 10) == []
    assert cut([SYSTEM], 1) == []


def test_few_lengths_are_tried() -> None:
    assert len(cut([user(1)] * 2000, 10**6)) <= 12
