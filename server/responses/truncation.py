"""The end of a conversation that fits the model: whole turns are left out from the oldest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...runtime.tokenizer.tokenizer import MAX_TOKEN_CHARS, Tokenizer
from ..openai.objects import ContentPart, Message

MESSAGE_TOKENS = 8
"""Tokens that a template adds to a message: a guess, after which more turns may have to go."""


def shortened(messages: Sequence[Message], tokenizer: Tokenizer, *, max_tokens: int) -> Iterator[list[Message]]:
    """Yields ever shorter conversations, the first of about `max_tokens`; the last one is the last turn alone. They are
    few, since each is tried.

    A turn begins with a message of the user's, so that calls stay with their outputs. What the system says before the
    first turn stays.
    """
    starts = [index for index, message in enumerate(messages) if message.role == "user"]
    num_kept = next((index for index, message in enumerate(messages) if message.role not in _SYSTEM), 0)
    head = list(messages[:num_kept])
    left = max_tokens - sum(_num_tokens(message, tokenizer.encode, max_tokens) for message in head)
    first = len(starts) - 1
    for turn in range(len(starts) - 1, 0, -1):
        end = starts[turn + 1] if turn + 1 < len(starts) else len(messages)
        for message in messages[starts[turn] : end]:
            left -= _num_tokens(message, tokenizer.encode, max_tokens)
        if left < 0:
            break
        first = turn
    turn, step = max(first, 1), 1
    while turn < len(starts):
        yield [*head, *messages[starts[turn] :]]
        if turn == len(starts) - 1:
            return
        turn, step = min(turn + step, len(starts) - 1), 2 * step


_SYSTEM = ("system", "developer")


def _num_tokens(message: Message, encode: Callable[[str], list[int]], most: int) -> int:
    """Counts the tokens of a message, up to `most`."""
    count = MESSAGE_TOKENS
    for text in _texts(message):
        if len(text) > MAX_TOKEN_CHARS * most:
            return most
        count += len(encode(text))
    return count


def _texts(message: Message) -> Iterator[str]:
    if isinstance(message.content, str):
        yield message.content
    else:
        for part in message.content or ():
            yield _text(part)
    for call in message.tool_calls or ():
        yield call.function.arguments


def _text(part: ContentPart) -> str:
    return part.text or part.refusal or ""
