"""Functions as chats had them before tools: `functions` and `function_call` in a body, as tools."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ..errors import ApiError, invalid
from .objects import ChatBody, Message, NamedFunction, Tool, ToolCallInput, ToolChoice

_TOOL = re.compile(r"^tools\[(\d+)\](?:\.function)?")


def with_tools(body: ChatBody) -> ChatBody:
    """Returns the body with tools in place of functions, of which an answer calls one at most.

    Raises:
        ApiError: it has both.
    """
    for name in ("tools", "tool_choice"):
        if getattr(body, name):
            message = "functions and function_call are the older form of tools and tool_choice: give one of the two"
            raise invalid("functions" if body.functions else "function_call", f"{message}, not also {name}")
    choice = body.function_call
    return msgspec.structs.replace(
        body,
        functions=None,
        function_call=None,
        tools=[Tool("function", function) for function in body.functions or ()],
        tool_choice=ToolChoice("function", choice) if isinstance(choice, NamedFunction) else choice,
        parallel_tool_calls=False,
    )


def renamed(error: ApiError) -> ApiError:
    """The same error about the fields that the client has sent."""
    if error.param is not None:
        param = _TOOL.sub(r"functions[\1]", error.param)
        param = param.replace("tool_choice.function", "function_call").replace("tool_choice", "function_call")
        error.param = "functions" if param == "tools" else param
    return error


def with_calls(messages: Sequence[Message]) -> list[Message]:
    """Returns messages whose calls and results of functions are those of tools: a result belongs to the last call of
    its name.

    Raises:
        ApiError: a result has no name.
    """
    ids: dict[str, str] = {}
    result = []
    for index, message in enumerate(messages):
        call = message.function_call
        if call is not None and message.role == "assistant":
            ids[call.name] = f"call_{index}"
            calls = [*(message.tool_calls or ()), ToolCallInput(ids[call.name], call)]
            message = msgspec.structs.replace(message, tool_calls=calls, function_call=None)
        elif message.role == "function":
            if message.name is None:
                param = f"messages[{index}].name"
                raise invalid(param, "a result needs the name of its function", code="missing_required_parameter")
            call_id = ids.get(message.name, f"call_{index}")
            message = msgspec.structs.replace(message, role="tool", tool_call_id=call_id)
        result.append(message)
    return result
