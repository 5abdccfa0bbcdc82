"""Responses' bodies translated to chat jobs: a conversation of items becomes the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from ...constrain.errors import GrammarError, quoted
from ...constrain.workers.decoders import json_decoder
from ...runtime.protocol.errors import BoughError
from ..errors import ApiError, invalid, to_api_error
from ..http.connection import check_parts
from ..openai.objects import (
    AllowedTool,
    AllowedTools,
    CalledFunction,
    ChatBody,
    ContentPart,
    FunctionDefinition,
    GenerationBody,
    JsonSchemaFormat,
    Message,
    NamedFunction,
    ResponseFormat,
    Tool,
    ToolCallInput,
    ToolChoice,
)
from ..openai.requests import Context, Job, chat_job
from .objects import INCLUDABLE, MAX_ITEMS, REFUSED_FIELDS, Item, Part, ResponseBody, ResponseTool, TextFormat
from .store import Stored
from .truncation import shortened

TOO_LONG = "context_length_exceeded"

ANSWER_SHARE = 4
"""A conversation that is cut leaves one in so many parts of the context to the answer, if that has no limit."""

LOGPROBS = "message.output_text.logprobs"

_EMPTY = frozenset({b"null", b"false", b"[]", b"{}", b'""'})
_MISSING = "missing_required_parameter"
_EMPTY_LIST = msgspec.Raw(b"[]")
_TEXTS = {"user": "input_text", "system": "input_text", "developer": "input_text", "assistant": "output_text"}
_OTHER_PARTS = frozenset({"input_image", "input_file", "input_audio"})
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


class Asked(NamedTuple):
    """A body as the engine and the store take it.

    items         the input's items, complete, with ids
    input         the same as JSON
    """

    job: Job
    items: list[Item]
    input: bytes


def translate(
    body: ResponseBody, context: Context, earlier: Sequence[Stored], referenced: Mapping[str, Stored], name: str
) -> Asked:
    """Translates a body that follows on `earlier` responses, oldest first.

    referenced   responses that hold the items that the input refers to, by the items' ids
    name         begins the ids of items that have none

    Raises:
        ApiError: the body cannot be served; `param` names the field.
    """
    _check(body)
    items = _complete(body.input, referenced, name)
    history: list[Item] = []
    for stored in earlier:
        history += items_of(stored)
        if len(history) + len(items) > MAX_ITEMS:
            message = f"a conversation may have {MAX_ITEMS} items, with those of the responses that it follows on"
            raise invalid("input", message, code="array_above_max_length")
    messages = to_messages([*history, *items], first=len(history))
    if body.instructions is not None:
        messages.insert(0, Message(role="system", content=body.instructions))
    if not messages:
        raise invalid("input", "input or previous_response_id is required", code=_MISSING)
    job = _job(body, messages, context)
    constraint = job.constraint._replace(param=_new_name(job.constraint.param))
    return Asked(job._replace(constraint=constraint), items, msgspec.json.encode(items))


def _job(body: ResponseBody, messages: list[Message], context: Context) -> Job:
    """Makes the job of a chat, of its last turns if it is too long and may be cut."""
    chat = _to_chat(body, messages)
    try:
        return _attempt(chat, context)
    except ApiError as error:
        if body.truncation != "auto" or error.code != TOO_LONG:
            raise
        refusal = error
    room = context.max_tokens - (body.max_output_tokens or context.max_tokens // ANSWER_SHARE)
    for part in shortened(messages, context.tokenizer, max_tokens=room):
        try:
            return _attempt(msgspec.structs.replace(chat, messages=part), context)
        except ApiError as error:
            if error.code != TOO_LONG:
                raise
            refusal = error
    raise refusal


def _attempt(chat: ChatBody, context: Context) -> Job:
    try:
        return chat_job(chat, context, splits=True)
    except (ApiError, BoughError, GrammarError) as error:
        raise _renamed(to_api_error(error)) from error


def _check(body: ResponseBody) -> None:
    for name in REFUSED_FIELDS:
        if bytes(getattr(body, name)) not in _EMPTY:
            raise invalid(name, f"{name} is not supported by this server", code="unsupported_parameter")
    if body.n not in (None, 1):
        raise invalid("n", "a response is one answer: n must be 1", code="unsupported_value")
    if body.response_format is not None:
        raise invalid("response_format", "use text.format", code="unsupported_parameter")
    for index, value in enumerate(body.include or ()):
        if value not in INCLUDABLE:
            message = f"{quoted(value[:64])} cannot be included; there are {', '.join(sorted(INCLUDABLE))}"
            raise invalid(f"include[{index}]", message)
    if body.top_logprobs and not wants_logprobs(body):
        raise invalid("top_logprobs", f"top_logprobs needs include to have {LOGPROBS}")


def wants_logprobs(body: ResponseBody) -> bool:
    return LOGPROBS in (body.include or ())


# The input's items


def references(body: ResponseBody) -> list[str]:
    """The ids of the items that the input refers to."""
    given = body.input if isinstance(body.input, list) else []
    return [item.id for item in given if _type_of(item) == "item_reference" and isinstance(item.id, str)]


def _type_of(item: Item) -> str:
    if item.type is not UNSET:
        return item.type
    return "message" if item.role is not UNSET else "item_reference" if item.id else ""


def _complete(given: str | list[Item] | None, referenced: Mapping[str, Stored], name: str) -> list[Item]:
    """Returns the items of an input in their full form. Raises ApiError: one is malformed."""
    if given is None:
        return []
    if isinstance(given, str):
        given = [Item(role="user", content=given)]
    found = {item.id: item for stored in _each_once(referenced) for item in items_of(stored)}
    check_parts(*(item.arguments.encode() for item in given if item.arguments is not UNSET), param="input")
    completed = []
    for index, item in enumerate(given):
        param = f"input[{index}]"
        kind = _type_of(item)
        if kind == "item_reference":
            if not item.id:
                raise _missing(f"{param}.id")
            if item.id not in found:
                raise ApiError(404, "item_not_found", f"No item {item.id!r} is stored.", param=f"{param}.id")
            completed.append(found[item.id])
            continue
        if kind not in _PREFIXES:
            message = "an item needs a type" if not kind else f"items of type {kind[:64]!r} are not supported"
            raise invalid(f"{param}.type", message, code=_MISSING if not kind else "unsupported_value")
        own_id = item.id or f"{_PREFIXES[kind]}_{name}_in{index}"
        completed.append(_COMPLETERS[kind](item, own_id, param))
    return completed


def _each_once(referenced: Mapping[str, Stored]) -> list[Stored]:
    return list({stored.id: stored for stored in referenced.values()}.values())


def _message(item: Item, own_id: str, param: str) -> Item:
    if item.role is UNSET:
        raise _missing(f"{param}.role")
    if item.content is UNSET or item.content is None:
        raise _missing(f"{param}.content")
    given = [Part(type=_TEXTS[item.role], text=item.content)] if isinstance(item.content, str) else item.content
    parts = [_part(part, item.role, f"{param}.content[{index}]") for index, part in enumerate(given)]
    return Item(type="message", id=own_id, role=item.role, status="completed", content=parts)


def _part(part: Part, role: str, param: str) -> Part:
    """Returns a part of a message in its full form."""
    if part.type == "refusal" and role == "assistant":
        if not isinstance(part.refusal, str):
            raise _missing(f"{param}.refusal")
        return Part(type="refusal", refusal=part.refusal)
    _check_part(part, ("input_text", "output_text"), param)
    if role == "assistant":
        return Part(type="output_text", text=part.text, annotations=_EMPTY_LIST, logprobs=_EMPTY_LIST)
    return Part(type="input_text", text=part.text)


def _check_part(part: Part, types: tuple[str, ...], param: str) -> None:
    if part.type in _OTHER_PARTS:
        message = f"this model accepts only text, not {part.type}"
        raise invalid(f"{param}.type", message, code="unsupported_content")
    if part.type not in types:
        raise invalid(f"{param}.type", f"there are no content parts of type {part.type[:64]!r} here")
    if not isinstance(part.text, str):
        raise _missing(f"{param}.text")


def _call(item: Item, own_id: str, param: str) -> Item:
    if item.call_id is UNSET:
        raise _missing(f"{param}.call_id")
    if item.name is UNSET:
        raise _missing(f"{param}.name")
    if item.arguments is UNSET:
        raise _missing(f"{param}.arguments")
    try:
        msgspec.json.decode(item.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"{param}.arguments", "the arguments are not the JSON text of an object") from error
    return Item(
        type="function_call",
        id=own_id,
        status="completed",
        call_id=item.call_id,
        name=item.name,
        arguments=item.arguments,
    )


def _call_output(item: Item, own_id: str, param: str) -> Item:
    if item.call_id is UNSET:
        raise _missing(f"{param}.call_id")
    if item.output is UNSET:
        raise _missing(f"{param}.output")
    for index, part in enumerate(item.output if isinstance(item.output, list) else ()):
        _check_part(part, ("input_text",), f"{param}.output[{index}]")
    return Item(type="function_call_output", id=own_id, status="completed", call_id=item.call_id, output=item.output)


def _reasoning(item: Item, own_id: str, param: str) -> Item:
    content = item.content if isinstance(item.content, list) else UNSET
    return Item(type="reasoning", id=own_id, summary=item.summary or [], content=content)


_COMPLETERS = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _call_output,
    "reasoning": _reasoning,
}


def _missing(param: str) -> ApiError:
    return invalid(param, f"Missing required parameter: {param}", code=_MISSING)


# Stored items


class _Output(msgspec.Struct):
    output: list[Item]


_OUTPUT, _ITEMS = json_decoder(_Output), json_decoder(list[Item])


def items_of(stored: Stored) -> list[Item]:
    """The items that a response adds to its conversation: its input and its output, without calls that were cut off."""
    output: _Output = _OUTPUT.decode(stored.response)
    kept = [item for item in output.output if item.type != "function_call" or item.status == "completed"]
    return [*input_of(stored), *kept]


def input_of(stored: Stored) -> list[Item]:
    items: list[Item] = _ITEMS.decode(stored.input)
    return items


# Into a chat


def to_messages(items: Sequence[Item], *, first: int = 0) -> list[Message]:
    """Returns items in their full form as messages of a chat: the calls of an answer are part of its message, and
    reasoning is left out, as in chats.

    first   the index of the input's first item, which errors count from

    Raises:
        ApiError: an output answers no call.
    """
    messages: list[Message] = []
    call_ids = set()
    for index, item in enumerate(items):
        last = messages[-1] if messages and messages[-1].role == "assistant" else None
        if item.type == "function_call":
            call_ids.add(item.call_id)
            if last is None:
                last = Message(role="assistant")
                messages.append(last)
            function = CalledFunction(str(item.name), str(item.arguments))
            last.tool_calls = [*(last.tool_calls or ()), ToolCallInput(str(item.call_id), function)]
        elif item.type == "function_call_output":
            if item.call_id not in call_ids:
                message = f"no function_call before it has the call_id {quoted(str(item.call_id))}"
                raise invalid(f"input[{index - first}].call_id", message)
            output = item.output if isinstance(item.output, str) else _contents(item.output or [])
            messages.append(Message(role="tool", content=output, tool_call_id=str(item.call_id)))
        elif item.type == "message" and isinstance(item.content, list) and item.role is not UNSET:
            if last is not None and last.tool_calls and item.role == "assistant":
                last.content = [*_parts(last.content), *_parts(_contents(item.content))]
            else:
                messages.append(Message(role=item.role, content=_contents(item.content)))
    return messages


def _contents(parts: Sequence[Part]) -> str | list[ContentPart]:
    if len(parts) == 1 and parts[0].type != "refusal":
        return str(parts[0].text)
    return [
        ContentPart("refusal", refusal=str(part.refusal))
        if part.type == "refusal"
        else ContentPart("text", text=str(part.text))
        for part in parts
    ]


def _parts(content: str | list[ContentPart] | None) -> list[ContentPart]:
    return [ContentPart("text", text=content)] if isinstance(content, str) else content or []


def _to_chat(body: ResponseBody, messages: list[Message]) -> ChatBody:
    """The chat that asks for the same. Raises ApiError: a tool is no function, or a format has no schema."""
    shared = {name: getattr(body, name) for name in GenerationBody.__struct_fields__}
    form = body.text.format if body.text is not None else None
    kwargs = body.chat_template_kwargs
    if body.reasoning is not None and body.reasoning.effort == "none":
        kwargs = {"enable_thinking": False, **(kwargs or {})}
    return ChatBody(
        **{**shared, "response_format": None if form is None else _to_format(form)},
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        logprobs=wants_logprobs(body),
        top_logprobs=body.top_logprobs if wants_logprobs(body) else None,
        tools=[_to_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())] or None,
        tool_choice=_to_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        chat_template_kwargs=kwargs,
        reasoning_end=body.reasoning_end,
    )


def _to_format(form: TextFormat) -> ResponseFormat:
    if form.type != "json_schema":
        return ResponseFormat(form.type, structures=form.structures, triggers=form.triggers, format=form.format)
    if not form.name:
        raise _missing("text.format.name")
    if form.schema is UNSET:
        raise _missing("text.format.schema")
    return ResponseFormat(
        form.type, json_schema=JsonSchemaFormat(form.name, form.schema, form.description, form.strict)
    )


def _to_tool(tool: ResponseTool, param: str) -> Tool:
    if tool.type != "function":
        message = f"tools of type {tool.type[:64]!r} are not supported: only functions are"
        raise invalid(f"{param}.type", message, code="unsupported_value")
    if not tool.name:
        raise _missing(f"{param}.name")
    return Tool("function", FunctionDefinition(tool.name, tool.description, tool.parameters, tool.strict))


def _to_choice(body: ResponseBody) -> Any:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice
    if choice.type == "function":
        if choice.name is None:
            raise _missing("tool_choice.name")
        return ToolChoice("function", function=NamedFunction(choice.name))
    if choice.type != "allowed_tools":
        message = f"a tool_choice of type {choice.type[:64]!r} is not supported: function and allowed_tools are"
        raise invalid("tool_choice.type", message, code="unsupported_value")
    for index, tool in enumerate(choice.tools or ()):
        if tool.type != "function" or tool.name is None:
            raise invalid(f"tool_choice.tools[{index}]", "only functions, by name, can be allowed")
    if not choice.tools:
        raise _missing("tool_choice.tools")
    if choice.mode is None:
        raise _missing("tool_choice.mode")
    allowed = [AllowedTool(NamedFunction(str(tool.name))) for tool in choice.tools]
    return ToolChoice("allowed_tools", allowed_tools=AllowedTools(choice.mode, allowed))


# Errors of the chat, told of the response's fields

_NEW_NAMES = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
    "tool_choice.function.name": "tool_choice.name",
    "tool_choice.allowed_tools.tools": "tool_choice.tools",
}


def _renamed(error: ApiError) -> ApiError:
    error.param = None if error.param is None else _new_name(error.param)
    return error


def _new_name(param: str) -> str:
    if param in _NEW_NAMES:
        return _NEW_NAMES[param]
    if param.startswith("tools["):
        return param.replace(".function", "", 1)
    if param.startswith("messages["):
        return "input"
    return f"text.format{param.removeprefix('response_format')}" if param.startswith("response_format.") else param
