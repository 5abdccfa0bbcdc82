"""Turns of a model that has tools, on the engine: the tools are shown to it, and what its calls have brought."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...constrain.spec import GrammarSpec
from ..protocol.errors import RequestError
from ..protocol.program import Gen, MadeCall, Offer
from ..tokenizer.tokenizer import Tokenizer
from ..tools.calls import as_function, constrain_turn, said_of
from ..tools.forms import PLAIN, CallForm, describe_tools, own_form
from ..tools.registry import ToolCall
from .state import Branch
from .tokens import Appended, content_of

Pieces = list[str | int]


def form_of(tokenizer: Tokenizer) -> CallForm:
    """Returns the form in which the model writes calls: its own, or the one that it is told."""
    return own_form(tokenizer.chat.source) or PLAIN


def offered(op: Gen, offer: Offer, branch: Branch, tools: Mapping[str, ToolCall], tokenizer: Tokenizer) -> Gen:
    """Shows a branch the tools of a generation, and returns the generation as it is then asked for.

    Raises:
        RequestError: it does not stand in an assistant message, or the tools cannot be shown there.
    """
    content = content_of(branch)
    if content.suffix is None or content.roles[-1] != "assistant":
        message = "tools are called in an assistant message: bough.assistant(bough.gen(name, tools=[...]))"
        raise RequestError(message, code="invalid_program", param="tools")
    show_tools(branch, [tools[name] for name in offer.tools], tokenizer)
    form = form_of(tokenizer)
    grammar: GrammarSpec = constrain_turn(form, tools, offer, op.grammar)
    sampling = op.sampling
    marks = tokenizer.chat.split(form.trigger + form.after)
    if any(isinstance(mark, int) for mark in marks):  # texts leave out control tokens otherwise
        sampling = msgspec.structs.replace(sampling, skip_special_tokens=False)
    return msgspec.structs.replace(op, sampling=sampling, grammar=grammar)


def show_tools(branch: Branch, tools: Sequence[ToolCall], tokenizer: Tokenizer) -> None:
    """Puts the tools where the chat template shows them, or else into the system message; once, as long as they are
    the same.

    Raises:
        RequestError: there is other text in that place, or the tools have changed.
    """
    content = content_of(branch)
    functions = [as_function(tool) for tool in tools]
    shown = tuple(json.dumps(function, sort_keys=True) for function in functions)
    if set(shown) <= set(content.offered):
        return
    if content.offered:
        message = "a chat shows its tools once: offer the same ones each time, all that it needs; only= narrows a turn"
        raise RequestError(message, code="invalid_program", param="tools")
    if own_form(tokenizer.chat.source) is not None:
        _show_by_template(branch, functions, tokenizer)
    else:
        _show_in_words(branch, describe_tools(functions), tokenizer)
    content.offered = shown


def _show_by_template(branch: Branch, functions: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> None:
    content, chat = content_of(branch), tokenizer.chat
    before = tuple(content.roles[:-1])
    old, new = chat.around(before), chat.around(before, tools=functions)
    if old is None or new is None:
        raise _no_room()
    for index, (was, becomes) in reversed(list(enumerate(zip(old, new, strict=True)))):
        if was != becomes:
            start = content.edges[4 * index - 2] if index else (0, 0)
            stop = content.edges[4 * index + 1]
            if "".join(content.texts[start[1] : stop[1]]) != chat.spell(was):
                raise _no_room()
            _put(branch, start, stop, becomes, tokenizer)


def _show_in_words(branch: Branch, text: str, tokenizer: Tokenizer) -> None:
    """Puts a description of the tools at the end of the system message; into one of its own, if there is none; or, for
    templates that know no system messages, before what the user says first."""
    content, chat = content_of(branch), tokenizer.chat
    before = tuple(content.roles[:-1])
    if before[:1] == ("system",):
        _put(branch, content.edges[2], content.edges[2], ["\n\n" + text], tokenizer)
        return
    try:
        gaps = chat.around(("system", *before))
    except RequestError:
        gaps = None
    start, stop = (0, 0), content.edges[1]
    if gaps is not None and "".join(content.texts[: stop[1]]) == chat.spell((chat.around(before) or [[]])[0]):
        _put(branch, start, stop, [*gaps[0], text, *gaps[1]], tokenizer)
    elif before[:1] == ("user",):
        _put(branch, stop, stop, [text + "\n\n"], tokenizer)
    else:
        raise _no_room()


def _put(branch: Branch, start: tuple[int, int], stop: tuple[int, int], pieces: Pieces, tokenizer: Tokenizer) -> None:
    told = Appended(branch.id, branch.num_ops, "role", "tools", array("i"))
    tokens = tokenizer.encode_pieces(pieces)
    content_of(branch).replace(start, stop, tokens, tokenizer.chat.spell(pieces), told)


def write_results(
    roles: Sequence[str], suffix: str | None, calls: Sequence[MadeCall], tokenizer: Tokenizer
) -> tuple[str, list[int]]:
    """Returns the text, and its tokens, with which calls end, their results are shown as messages, and the next answer
    begins. Templates without such messages have the results in a message of the user.

    roles, suffix   of the messages so far, the last of them the assistant's

    Raises:
        RequestError: the template refuses the order of roles.
    """
    chat, before = tokenizer.chat, tuple(roles[:-1])
    results = [(call.name, said_of(call)) for call in calls]
    pieces = chat.after_calls(before, results) if own_form(chat.source) is not None else None
    if pieces is None:
        history = (*before, "assistant")
        user = chat.role_pieces(history, "user")
        answer = chat.role_pieces((*history, "user"), "assistant")
        text = "\n".join(f"Result of {name}: {result}" for name, result in results)
        pieces = [*chat.split((suffix or "") + user.prefix), text, *chat.split(user.suffix + answer.prefix)]
    return chat.spell(pieces), tokenizer.encode_pieces(pieces)


def _no_room() -> RequestError:
    message = "the tools cannot be shown: there is text outside of messages where the chat template puts them"
    return RequestError(message, code="invalid_program", param="tools")
