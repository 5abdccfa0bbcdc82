"""The messages of a chat as its template expects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..errors import invalid
from .objects import ContentPart, Message
from .tools import CLOSE_TAG, OPEN_TAG, Toolbox, as_system_message, to_template

_MISSING = "missing_required_parameter"


def to_messages(
    given: Sequence[Message], toolbox: Toolbox, *, knows_tools: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages and tools for the template. One that does not know tools gets them as text, in the system message.

    Raises:
        ApiError: a message is malformed; `param` is its path.
    """
    messages = [_to_message(message, f"messages[{index}]") for index, message in enumerate(given)]
    tools = to_template(toolbox)
    if knows_tools:
        return messages, tools
    messages = _without_tools(messages)
    if tools:
        text = as_system_message(tools)
        if messages[0]["role"] == "system":
            messages[0]["content"] = f"{messages[0]['content']}\n\n{text}"
        else:
            messages.insert(0, {"role": "system", "content": text})
    return messages, None


def _to_message(message: Message, param: str) -> dict[str, Any]:
    calls = message.tool_calls if message.role == "assistant" else None
    result: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    if message.content is None:
        if message.role != "assistant" or not (calls or message.refusal):
            raise invalid(f"{param}.content", f"a message of role {message.role} needs content", code=_MISSING)
        result["content"] = ""
    else:
        result["content"] = _to_text(message.content, f"{param}.content")
    if message.name is not None:
        result["name"] = message.name
    if message.role == "tool":
        if message.tool_call_id is None:
            raise invalid(f"{param}.tool_call_id", "a tool message needs the id of its call", code=_MISSING)
        result["tool_call_id"] = message.tool_call_id
    if calls:
        result["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _checked_arguments(call.function.arguments, f"{param}.tool_calls[{index}]"),
                },
            }
            for index, call in enumerate(calls)
        ]
    return result


def _to_text(content: str | Sequence[ContentPart], param: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if part.type in _OTHER_PARTS:
            message = f"this model reads text only, not {part.type}"
            raise invalid(f"{param}[{index}].type", message, code="unsupported_content")
        if part.type not in ("text", "refusal"):
            raise invalid(f"{param}[{index}].type", f"there are no content parts of type {part.type[:64]!r}")
        text = part.text if part.type == "text" else part.refusal
        if text is None:
            raise invalid(f"{param}[{index}].{part.type}", "the part has no text", code=_MISSING)
        texts.append(text)
    return "\n".join(texts)


_OTHER_PARTS = frozenset({"image_url", "input_audio", "audio_url", "video_url", "file", "input_image", "input_file"})


def _checked_arguments(text: str, param: str) -> str:
    """The arguments of an earlier call: JSON text of an object, or nothing."""
    try:
        msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"{param}.function.arguments", "the arguments are not the JSON text of an object") from error
    return text or "{}"


def _without_tools(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same chat for a template that prints role and content only: calls and results become text."""
    names: dict[str, str] = {}
    plain = []
    for message in messages:
        role, content = message["role"], message["content"]
        if message.get("tool_calls"):
            calls = [call["function"] for call in message["tool_calls"]]
            names |= {call["id"]: call["function"]["name"] for call in message["tool_calls"]}
            texts = [f'{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}' for call in calls]
            if len(texts) > 1:
                texts = [f"{OPEN_TAG}{text}{CLOSE_TAG}" for text in texts]
            content = "\n".join([content, *texts] if content else texts)
        elif role == "tool":
            role, content = "user", f"Result of {names.get(message['tool_call_id'], 'the call')}: {content}"
        plain.append({"role": role, "content": content})
    return plain
