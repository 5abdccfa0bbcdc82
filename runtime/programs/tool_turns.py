"""Turns of a model with tools on the engine: shows the tools, and the results of their calls, to the model."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from ...constrain.spec import GrammarSpec
from ..protocol.errors import RequestError
from ..protocol.program import Gen, MadeCall, Offer
from ..tokenizer.chat_template import Dates, Turn
from ..tokenizer.tokenizer import Tokenizer
from ..tools.calls import as_function, constrain_turn, said_of
from ..tools.forms import PLAIN, CallForm, describe_tools, own_form
from ..tools.registry import ToolCall
from .state import Branch
from .tokens import Appended, content_of

Pieces = list[str | int]


def form_of(tokenizer: Tokenizer) -> CallForm:
    """Returns the form in which the model writes calls: its own, or one described to it."""
    return own_form(tokenizer.chat.source) or PLAIN


def offered(op: Gen, offer: Offer, tools: Mapping[str, ToolCall], tokenizer: Tokenizer) -> Gen:
    """Returns the generation to request once its tools are shown."""
    form = form_of(tokenizer)
    grammar: GrammarSpec = constrain_turn(form, tools, offer, op.grammar)
    sampling = op.sampling
    marks = tokenizer.chat.split(form.trigger + form.after)
    if any(isinstance(mark, int) for mark in marks):  # otherwise texts would omit control tokens
        sampling = msgspec.structs.replace(sampling, skip_special_tokens=False)
    return msgspec.structs.replace(op, sampling=sampling, grammar=grammar)


# Showing tools


Function = Mapping[str, Any]


@dataclass(frozen=True)
class Placed:
    """Text that shows tools, with its tokens, as a replacement between two edges of a branch.

    start   index of an edge; None: the branch's beginning
    was     the text that must be there; None: any
    """

    start: int | None
    stop: int
    was: str | None
    text: str
    tokens: list[int]


def unshown(offer: Offer, branch: Branch, tools: Mapping[str, ToolCall]) -> list[Function]:
    """Returns the functions to show to a branch before a generation may call them; none if they have been shown.

    Raises:
        RequestError: the branch is not in an assistant message, or its tools have changed.
    """
    content = content_of(branch)
    if content.suffix is None or content.roles[-1] != "assistant":
        message = "tools are called in an assistant message: bough.assistant(bough.gen(name, tools=[...]))"
        raise RequestError(message, code="invalid_program", param="tools")
    functions: list[Function] = [as_function(tools[name]) for name in offer.tools]
    if set(map(_key_of, functions)) <= set(content.offered):
        return []
    if content.offered:
        message = "a chat shows its tools once: offer the same ones each time, all that it needs; only= narrows a turn"
        raise RequestError(message, code="invalid_program", param="tools")
    return functions


def opening_of(branch: Branch) -> str:
    """Returns the text before the content of a branch's first message."""
    content = content_of(branch)
    return "".join(content.texts[: content.edges[1][1]])


def write_tools(
    before: tuple[str, ...], opening: str, dates: Dates | None, functions: Sequence[Function], tokenizer: Tokenizer
) -> list[Placed]:
    """Returns the texts that show functions in a chat with this `opening`, whose messages `before` the open one have
    these roles: at the template's place for tools, or else in the system message. `dates` are the chat's, once it has
    any.

    Raises:
        RequestError: the template refuses the order of roles, or leaves no place for the functions.
    """
    if own_form(tokenizer.chat.source) is not None:
        return _by_template(before, dates, functions, tokenizer)
    return _in_words(before, opening, dates, describe_tools(functions), tokenizer)


def put_tools(branch: Branch, functions: Sequence[Function], written: Sequence[Placed]) -> None:
    """Shows functions to a branch. Raises RequestError: there is other text in their place."""
    content = content_of(branch)

    def between(placed: Placed) -> tuple[tuple[int, int], tuple[int, int]]:
        return (0, 0) if placed.start is None else content.edges[placed.start], content.edges[placed.stop]

    def fits(placed: Placed) -> bool:
        start, stop = between(placed)
        return placed.was is None or "".join(content.texts[start[1] : stop[1]]) == placed.was

    if not all(map(fits, written)):
        raise _no_room()
    for placed in written:
        told = Appended(branch.id, branch.num_ops, "role", "tools", array("i"))
        content.replace(*between(placed), placed.tokens, placed.text, told)
    content.offered = tuple(map(_key_of, functions))


def _key_of(function: Function) -> str:
    return json.dumps(function, sort_keys=True)


def _by_template(
    before: tuple[str, ...], dates: Dates | None, functions: Sequence[Function], tokenizer: Tokenizer
) -> list[Placed]:
    chat = tokenizer.chat
    old, new = chat.around(before, dates=dates), chat.around(before, tools=functions, dates=dates)
    if old is None or new is None:
        raise _no_room()
    return [
        _place(4 * index - 2 if index else None, 4 * index + 1, becomes, tokenizer, was=chat.spell(was))
        for index, (was, becomes) in reversed(list(enumerate(zip(old, new, strict=True))))
        if was != becomes
    ]


def _in_words(
    before: tuple[str, ...], opening: str, dates: Dates | None, text: str, tokenizer: Tokenizer
) -> list[Placed]:
    """Puts a description of the tools at the end of the system message, or into a new one if there is none; for
    templates without system messages, and chats that begin differently, before the user's first text."""
    chat = tokenizer.chat
    if before[:1] == ("system",):
        return [_place(2, 2, ["\n\n" + text], tokenizer)]
    with suppress(RequestError):
        gaps = chat.around(("system", *before), dates=dates)
        if gaps is not None and opening == chat.spell((chat.around(before, dates=dates) or [[]])[0]):
            return [_place(None, 1, [*gaps[0], text, *gaps[1]], tokenizer, was=opening)]
    if before[:1] == ("user",):
        return [_place(1, 1, [text + "\n\n"], tokenizer)]
    raise _no_room()


def _place(start: int | None, stop: int, pieces: Pieces, tokenizer: Tokenizer, *, was: str | None = None) -> Placed:
    return Placed(start, stop, was, tokenizer.chat.spell(pieces), tokenizer.encode_pieces(pieces))


def write_results(
    roles: Sequence[str], suffix: str | None, turn: Turn | None, calls: Sequence[MadeCall], tokenizer: Tokenizer
) -> tuple[str, list[int]]:
    """Returns the text, with its tokens, that ends calls, shows their results as messages, and begins the next answer.
    For templates without such messages, the results are put into a message of the user.

    roles, suffix   of the messages so far, the last of them the assistant's; `turn` is that of the first ones

    Raises:
        RequestError: the template refuses the order of roles.
    """
    chat, before = tokenizer.chat, tuple(roles[:-1])
    results = [(call.name, said_of(call)) for call in calls]
    pieces = chat.after_calls(before, results, known=turn) if own_form(chat.source) is not None else None
    if pieces is None:
        history = (*before, "assistant")
        user = chat.role_pieces(history, "user", known=turn)
        answer = chat.role_pieces((*history, "user"), "assistant", known=turn)
        text = "\n".join(f"Result of {name}: {result}" for name, result in results)
        pieces = [*chat.split((suffix or "") + user.prefix), text, *chat.split(user.suffix + answer.prefix)]
    return chat.spell(pieces), tokenizer.encode_pieces(pieces)


def _no_room() -> RequestError:
    message = "the tools cannot be shown: there is text outside of messages where the chat template puts them"
    return RequestError(message, code="invalid_program", param="tools")
