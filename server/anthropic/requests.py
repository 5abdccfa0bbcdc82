"""Bodies of the Messages API as chats, and jobs of these: pure functions, which refuse by name what cannot be done."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from ...constrain.errors import quoted
from ...runtime.protocol.request import Request
from ..errors import ApiError, invalid
from ..openai.objects import (
    CalledFunction,
    ChatBody,
    ContentPart,
    FunctionDefinition,
    JsonSchemaFormat,
    Message,
    NamedFunction,
    ResponseFormat,
    Tool,
    ToolCallInput,
    ToolChoice,
)
from ..openai.requests import Context, Job, chat_job, encode_chat
from ..openai.tools import to_toolbox
from .objects import Block, CountBody, MessagesBody, ThinkingParam, ToolParam

COUNTED_CONTEXTS = 2
"""A text that is longer than texts of so many contexts may be is not counted."""

_MISSING = "missing_required_parameter"
_UNSUPPORTED = "unsupported_value"

_Placed = tuple[Block, str]
"""A block, and its path."""


def message_job(body: MessagesBody, context: Context) -> Job:
    """Raises ApiError, RequestError: the body cannot be served; `param` names the field of it, or of its chat."""
    chat, thinking = to_chat(body), body.thinking or ThinkingParam("disabled")
    chat.temperature, chat.top_k = body.temperature, body.top_k
    chat.top_p, chat.stop, chat.stream = body.top_p, body.stop_sequences, body.stream
    if thinking.budget_tokens is not None and thinking.budget_tokens >= body.max_tokens:
        raise invalid("thinking.budget_tokens", "budget_tokens must be less than max_tokens")
    if chat.continue_final_message:
        chat.reasoning_end = ""  # what is continued has left it behind
    job = chat_job(chat, context, splits=True, budget=thinking.budget_tokens)
    if thinking.type == "enabled" and job.reasoning_end is None:
        message = "this model's chat template has no reasoning: leave thinking out"
        raise invalid("thinking.type", message, code=_UNSUPPORTED)
    if body.thinking is not None and thinking.type == "disabled" and job.reasoning_end is not None:
        message = "this model's chat template always begins with reasoning: leave thinking out"
        raise invalid("thinking.type", message, code=_UNSUPPORTED)
    (prompt,) = job.prompts
    # As Anthropic's models do, an answer ends with the context where that has no room for all of max_tokens.
    limit = min(body.max_tokens, context.max_tokens - len(prompt))
    return job._replace(requests=tuple(_limited(request, limit) for request in job.requests))


def _limited(request: Request, max_tokens: int) -> Request:
    sampling = msgspec.structs.replace(request.sampling, max_tokens=max_tokens)
    return msgspec.structs.replace(request, sampling=sampling)


def count_tokens(body: CountBody, context: Context) -> int:
    """Counts the tokens of the prompt. Raises ApiError, RequestError: as `message_job`."""
    chat, max_tokens = to_chat(body), COUNTED_CONTEXTS * context.max_tokens
    return len(encode_chat(chat, to_toolbox(chat), context.tokenizer, max_tokens=max_tokens))


def to_chat(body: CountBody) -> ChatBody:
    """Returns the chat of the same prompt, tools and format.

    Raises:
        ApiError: a block, tool or option is not supported, or is malformed; `param` is its path.
    """
    messages = _messages(body)
    if not messages:
        raise invalid("messages", "there is no message that could be answered")
    reasons = _reasons(body.thinking)
    continues = messages[-1].role == "assistant"
    form = _output_format(body)
    if continues:
        _check_continued(messages[-1], len(body.messages) - 1, reasons=reasons, formatted=form is not None)
    chat = ChatBody(model=body.model, messages=messages, response_format=form)
    chat.tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())] or None
    if body.tool_choice is not None:
        chat.tool_choice = _tool_choice(body)
        chat.parallel_tool_calls = not body.tool_choice.disable_parallel_tool_use
    chat.add_generation_prompt, chat.continue_final_message = not continues, continues
    chat.chat_template_kwargs = {"enable_thinking": reasons, "thinking": reasons}  # templates have either name
    return chat


# Messages


def _messages(body: CountBody) -> list[Message]:
    """Returns the messages of a chat. Neighbours of one role are one turn: many templates want roles to alternate."""
    messages: list[Message] = []
    if body.system:
        messages.append(Message("system", _parts(_blocks(body.system, "system"))))
    call_ids: set[str] = set()
    for role, run in groupby(enumerate(body.messages), key=lambda item: item[1].role):
        given = [block for index, message in run for block in _blocks(message.content, f"messages[{index}].content")]
        if role == "assistant":
            messages.append(_said(given))
            call_ids |= {call.id for call in messages[-1].tool_calls or ()}
        elif role == "system":
            messages.append(Message("system", _parts(given)))
        else:
            messages += _asked(given, call_ids)
    if not given and role == "assistant":
        messages.pop()  # an answer that is begun with nothing
    return messages


def _said(given: Iterable[_Placed]) -> Message:
    """The message of what the assistant has said: its text, its calls and its reasoning."""
    parts: list[ContentPart] = []
    calls: list[ToolCallInput] = []
    thoughts: list[str] = []
    for block, path in given:
        if block.type == "text":
            parts.append(_text(block, path))
        elif block.type == "thinking":
            thoughts.append(_required(block.thinking, f"{path}.thinking"))
        elif block.type == "tool_use":
            calls.append(_call(block, path))
        else:
            raise _refused(block, path)
    return Message("assistant", parts, tool_calls=calls or None, reasoning_content="\n".join(thoughts) or None)


def _call(block: Block, path: str) -> ToolCallInput:
    arguments = bytes(block.input)
    if not arguments.startswith(b"{"):
        raise invalid(f"{path}.input", "the input of a call must be an object", code="invalid_type")
    function = CalledFunction(_required(block.name, f"{path}.name"), arguments.decode())
    return ToolCallInput(_required(block.id, f"{path}.id"), function)


def _asked(given: Sequence[_Placed], call_ids: Collection[str]) -> Iterator[Message]:
    """Messages for what a user says: texts, and results of the calls with these ids."""
    parts: list[ContentPart] = []
    for block, path in given:
        if block.type == "text":
            parts.append(_text(block, path))
        elif block.type == "tool_result":
            if parts:
                yield Message("user", parts)
                parts = []
            yield _result(block, path, call_ids)
        else:
            raise _refused(block, path)
    if parts or not given:
        yield Message("user", parts)


def _result(block: Block, path: str, call_ids: Collection[str]) -> Message:
    call_id = _required(block.tool_use_id, f"{path}.tool_use_id")
    if call_id not in call_ids:
        raise invalid(f"{path}.tool_use_id", f"no tool_use before this has the id {quoted(call_id)}")
    parts = _parts(_blocks(block.content or "", f"{path}.content"))
    if block.is_error:  # in the form in which models are told of calls of programs that have failed
        parts[:1] = [ContentPart("text", f"Error: {parts[0].text if parts else ''}")]
    return Message("tool", parts, tool_call_id=call_id)


def _parts(given: Iterable[_Placed]) -> list[ContentPart]:
    """Returns content that may be text alone."""
    parts = []
    for block, path in given:
        if block.type != "text":
            raise _refused(block, path)
        parts.append(_text(block, path))
    return parts


def _blocks(content: str | Sequence[Block], param: str) -> Iterator[_Placed]:
    """Yields the blocks of a content, each with its path."""
    if isinstance(content, str):
        if content:
            yield Block("text", text=content), param
        return
    for index, block in enumerate(content):
        yield block, f"{param}[{index}]"


def _text(block: Block, path: str) -> ContentPart:
    return ContentPart("text", _required(block.text, f"{path}.text"))


def _required(value: str | None, param: str) -> str:
    if value is None:
        raise invalid(param, "the field is required", code=_MISSING)
    return value


def _refused(block: Block, path: str) -> ApiError:
    if block.type in ("text", "thinking", "tool_use", "tool_result"):
        return invalid(f"{path}.type", f"a block of type {block.type} cannot stand here")
    message = f"blocks of type {quoted(block.type)} are not supported: this model reads and writes text"
    return invalid(f"{path}.type", message, code="unsupported_content")


def _check_continued(message: Message, index: int, *, reasons: bool, formatted: bool) -> None:
    """Raises ApiError: the model cannot go on with this answer."""
    if message.tool_calls:
        raise invalid(f"messages[{index}].content", "the calls in the last message need results in a user's message")
    if not message.content:
        raise invalid(f"messages[{index}].content", "the last message has no text that could be continued")
    for what, asked in (("thinking", reasons), ("output_config.format", formatted)):
        if asked:
            text = "an answer that is begun cannot be continued with it: let the last message be the user's"
            raise invalid(what, text, code=_UNSUPPORTED)


# Options


def _reasons(thinking: ThinkingParam | None) -> bool:
    """Tells whether the template is to have the model reason."""
    if thinking is None or thinking.type == "disabled":
        return False
    if thinking.type not in ("enabled", "adaptive"):
        message = f"thinking of type {quoted(thinking.type)} is not supported: use enabled, adaptive or disabled"
        raise invalid("thinking.type", message, code=_UNSUPPORTED)
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise invalid("thinking.budget_tokens", "thinking of type enabled needs budget_tokens", code=_MISSING)
    return True


def _tool(tool: ToolParam, param: str) -> Tool:
    if tool.type not in (None, "custom"):
        message = f"tools of type {quoted(tool.type)} are not supported: give a name and an input_schema"
        raise invalid(f"{param}.type", message, code=_UNSUPPORTED)
    if bytes(tool.input_schema) == b"null":
        raise invalid(f"{param}.input_schema", "a tool needs an input_schema", code=_MISSING)
    for name, is_asked in (
        ("defer_loading", tool.defer_loading),
        ("input_examples", tool.input_examples),
        ("allowed_callers", tool.allowed_callers not in (None, ["direct"])),
    ):
        if is_asked:
            raise invalid(f"{param}.{name}", f"{name} is not supported by this server", code="unsupported_parameter")
    return Tool("function", FunctionDefinition(tool.name, tool.description, tool.input_schema, tool.strict))


def _tool_choice(body: CountBody) -> Any:
    choice = body.tool_choice
    assert choice is not None
    if choice.type != "tool":
        return {"auto": "auto", "any": "required", "none": "none"}[choice.type]
    name = _required(choice.name, "tool_choice.name")
    if name not in {tool.name for tool in body.tools or ()}:
        raise invalid("tool_choice.name", f"no tool is named {quoted(name)}")
    return ToolChoice("function", function=NamedFunction(name))


def _output_format(body: CountBody) -> ResponseFormat | None:
    config = body.output_config
    if config is not None and bytes(config.task_budget) != b"null":
        message = "task_budget is not supported by this server"
        raise invalid("output_config.task_budget", message, code="unsupported_parameter")
    form = None if config is None else config.format
    if form is not None and body.output_format is not None:
        raise invalid("output_format", "output_config.format is also given: leave this out")
    form = form or body.output_format
    if form is None:
        return None
    return ResponseFormat("json_schema", JsonSchemaFormat("answer", form.schema, strict=True))
