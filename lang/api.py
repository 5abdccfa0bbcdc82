"""Functions of the language, which authors of programs import."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, Unpack, cast, get_args, overload

from ..constrain.spec import GrammarSpec, JsonSchema, Lark, Regex
from ..runtime.protocol.errors import RequestError
from ..runtime.protocol.program import SelectMethod
from .backend import Backend, resolve_backend, set_default_backend
from .control import ToolTurns
from .diagnostics.errors import ProgramError, UnsupportedError
from .diagnostics.source_lines import caller, located, users_lines
from .function import AsyncFunction, Function, State
from .record.choices import ChoicesSamplingMethod, method_name
from .record.expression import Choose, Expression, Generate, Picture, RoleClose, RoleOpen, Series
from .record.options import (
    SGLANG_ORDER,
    GenOptions,
    SamplingOptions,
    TypedOptions,
    by_name,
    checked_name,
    checked_option,
    checked_retries,
    checked_timeout,
    clean_options,
    in_places,
    refuse_unknown,
    shown,
    wrong_kind,
)
from .record.reasoning import separate_reasoning
from .tools.offered import Offered, offered
from .tools.tool import Tool
from .types.checks import checked, waits
from .types.schema import check_constraint, numeral_of, typed, with_stop

__all__ = [
    "assistant", "assistant_begin", "assistant_end", "call_tools", "flush_cache", "function", "gen", "get_server_info",
    "image", "select", "separate_reasoning", "set_default_backend", "system", "system_begin",
    "system_end", "user", "user_begin", "user_end", "video",
]  # fmt: skip

Result = TypeVar("Result")

_CONSTRAINTS = ("type", "dtype", "schema", "json_schema", "regex", "ebnf", "grammar")
_TURNS = ("tools", "tool_choice", "parallel_tool_calls", "max_turns")
_DTYPES = {"int": int, "float": float, "str": str, "string": str, "bool": bool}


class _Decorator(Protocol):
    """Decorator that `function(...)` without a body returns."""

    @overload
    def __call__(self, body: Callable[..., Coroutine[Any, Any, Result]], /) -> AsyncFunction[Result]: ...
    @overload
    def __call__(self, body: Callable[..., Result], /) -> Function[Result]: ...


@overload
def function(
    func: Callable[..., Coroutine[Any, Any, Result]], num_api_spec_tokens: int | None = None
) -> AsyncFunction[Result]: ...
@overload
def function(func: Callable[..., Result], num_api_spec_tokens: int | None = None) -> Function[Result]: ...
@overload
def function(func: None = None, num_api_spec_tokens: int | None = None) -> _Decorator: ...
@users_lines
def function(func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None) -> Any:
    """Turns a function whose first parameter is the state into a program.

    num_api_spec_tokens   on an API without state: extra tokens requested at once, which later generations use as far as
                          they match

    >>> @bough.function
    ... def greet(s, name):
    ...     s += f"Hello {name}, " + bough.gen("greeting", stop="\\n")
    >>> greet.run("Ada")["greeting"]
    """

    @users_lines
    def decorate(body: Callable[..., Any]) -> Function[Any]:
        kind = AsyncFunction if inspect.iscoroutinefunction(body) else Function
        return kind(body, num_api_spec_tokens=num_api_spec_tokens)

    return decorate if func is None else decorate(func)


@overload
def gen(
    name: str | None = ..., max_tokens: int | None = ..., *placed: Any, **options: Unpack[GenOptions]
) -> Generate: ...
@overload
def gen(name: str | None, type: object, /, **options: Unpack[TypedOptions]) -> Generate: ...
@overload
def gen(
    name: str | None = ...,
    *,
    choices: Sequence[str],
    choices_method: SelectMethod | ChoicesSamplingMethod | None = ...,
    **options: Unpack[SamplingOptions],
) -> Choose: ...
@located  # type: ignore[misc]  # the second place has two names
@in_places(SGLANG_ORDER, GenOptions)
def gen(
    name: str | None = None, max_tokens_or_type: object = None, *placed: Any, **options: Any
) -> Generate | Choose | ToolTurns:
    """Generates text and keeps it as the variable `name`. Options left out have the run's defaults.

    type, dtype, schema   a type: the text has its format and `s[name]` is a value of it. int, float, bool, str, an
                     Enum, Literal, dataclass, TypedDict, Pydantic model, list[...], ... May be the second positional
                     argument; an int there is `max_tokens`
    json_schema      the same; a JSON Schema as dict or text gives the JSON text (parse it with `s.json(name)`)
    regex            the text matches the whole pattern; an additional type only converts the value
    ebnf, grammar    a context-free grammar in Lark's notation; `grammar` also takes JsonSchema, Regex, Choice, Lark ...
    choices          one of these: the same as `select`
    retries          a value that is not of the type, or that `check` rejects, is generated again up to this many times:
                     the model sees why, and the text continues with the accepted answer
    check            a function (or tool) of the value, which rejects it by returning False or raising ValueError or
                     AssertionError (a tool: any exception)
    timeout_s        seconds after which the program fails
    tools            the model may call these before it answers: functions, tools, names of tools on the server
    tool_choice, parallel_tool_calls, max_turns    as `call_tools` describes them
    placed           further options in the order of SGLang's `gen`

    >>> s += "Population: " + gen("population", int)
    >>> s += assistant(gen("invoice", schema=Invoice, max_tokens=120))

    Raises:
        RequestError: an option is out of range, or several constraints are given.
    """
    options = by_name("gen", SGLANG_ORDER[1:], placed, options)
    if max_tokens_or_type is not None:
        which = "max_tokens" if isinstance(max_tokens_or_type, int) else "type"
        if options.get(which) is not None:
            raise RequestError(f"{which} was given twice", param=which)
        options[which] = max_tokens_or_type
    given = {name: options.pop(name, None) for name in _CONSTRAINTS}
    choices, method, timeout_s = (options.pop(name, None) for name in ("choices", "choices_method", "timeout_s"))
    turns = _offered({name: options.pop(name, None) for name in _TURNS})
    retries, check = checked_retries(options.pop("retries", None)), _checked_check(options.pop("check", None))
    dtype = given["dtype"]
    given["dtype"] = _DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    constraints = {name: value for name, value in given.items() if value is not None}
    cleaned = clean_options(options, GenOptions.__optional_keys__)
    if turns is not None:
        _check_turns(name, choices, retries, cleaned)
    if choices is not None:
        if constraints:
            other = next(iter(constraints))
            raise RequestError(f"choices cannot be combined with {other}: leave one of the two out", param="choices")
        if retries is not None or check is not None:
            param = "check" if retries is None else "retries"
            raise RequestError(f"{param} cannot be used with choices, of which one is always right", param=param)
        return select(name, choices, options.get("temperature") or 0.0, method)
    constraint, convert, kind = _constraint(constraints)
    if check is not None:
        convert = checked(convert, check, any_error=isinstance(check, Tool))
    if retries is not None and convert is str:
        raise RequestError(
            "retries asks again for a value that is not right, but any text is: give a type, or check=a function of it",
            param="retries",
        )
    check_constraint(constraint, "regex" if "regex" in constraints else next(iter(constraints), "grammar"))
    if turns is None and "regex" not in constraints and (numeral := numeral_of(kind, cleaned)) is not None:
        constraint, cleaned = numeral.grammar, with_stop(cleaned, numeral)
    timeout = checked_timeout(timeout_s)
    where, asked = caller(), checked_name(name)
    generate = Generate(asked, cleaned, constraint, convert, timeout, where, kind, retries, check is not None)
    return generate if turns is None else ToolTurns(generate, turns)


@located
def call_tools(
    name: str,
    tools: Sequence[object],
    tool_choice: object = None,
    *,
    max_turns: int | None = None,
    parallel_tool_calls: bool | None = None,
    **options: Any,
) -> ToolTurns:
    """Lets the model call tools until it answers: that is the variable `name`, and `s.calls(name)` lists the calls.

    The same as `gen(name, tools=...)` in an assistant message; outside of messages it is one by itself.

    tools        functions with annotations, `@bough.tool`s, MCP servers, names of tools that the server has
    tool_choice  "auto": the model decides. "required", or a tool: its first turn is a call, of that tool. "none": it
                 sees the tools, and calls none
    max_turns    turns of the model at most, default 8. In the last one it has to answer
    parallel_tool_calls    False: one call a turn. The calls of a turn are made at the same time
    options      of `gen`; `max_tokens` is that of each turn

    >>> s += bough.user("How warm is it in Vienna?")
    >>> s += bough.call_tools("answer", [weather], max_tokens=200)

    Raises:
        RequestError: something is no tool, two have one name, or an option is out of range.
    """
    more: Any = {"tool_choice": tool_choice, "max_turns": max_turns, "parallel_tool_calls": parallel_tool_calls}
    found: Any = gen(name, tools=tools, **more, **options)
    assert isinstance(found, ToolTurns)
    return replace(found, whole_message=True)


@located
def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: SelectMethod | ChoicesSamplingMethod | None = None,
) -> Choose:
    """Appends the likeliest of `choices` and keeps it as the variable `name`; `s.probabilities(name)` says how likely.

    >>> s += assistant(select("mood", ["good", "bad"]))

    Raises:
        RequestError: there are no choices, or one is given twice.
    """
    refuse_unknown("choices", choices)
    if choices is None and isinstance(name, list | tuple | set):
        message = f'the name of the variable is missing: select("name", {shown(name, with_type=False)})'
        raise RequestError(message, param="name")
    if isinstance(choices, str) or not isinstance(choices, Iterable):
        raise wrong_kind("choices", "a list of texts", choices)
    choices = tuple(choices)
    wrong = [choice for choice in choices if not isinstance(choice, str) or not choice]
    if wrong or not choices:
        given = f"got {wrong[0]!r} among them" if wrong else "got none"
        if wrong and wrong[0]:
            given += f": write {str(wrong[0])!r}, or gen(name, Literal[...]) for choices that are read back as numbers"
        raise RequestError(f"choices must be a list of non-empty texts, {given}", param="choices")
    if len(set(choices)) < len(choices):
        twice = next(choice for choice in choices if choices.count(choice) > 1)
        raise RequestError(f"choices must differ from each other: {twice!r} is there twice", param="choices")
    if checked_option("temperature", temperature) > 1e-5:
        raise RequestError("select takes the likeliest choice: temperature must be 0", param="temperature")
    method = method_name(choices_method)
    if method not in get_args(SelectMethod):
        known = ", ".join(get_args(SelectMethod))
        raise RequestError(f"choices_method must be one of {known}; got {method!r}", param="choices_method")
    return Choose(checked_name(name), choices, cast(SelectMethod, method), caller())


def image(source: str | Path | bytes) -> Picture:
    """An image, by path or content. Text-only backends refuse it when it is appended."""
    return Picture(source if isinstance(source, bytes) else str(source))


@located
def video(path: str | Path, num_frames: int) -> Picture:
    """A number of frames of a video. No backend supports it yet: it is refused when it is appended."""
    if type(num_frames) is not int or num_frames < 1:
        raise RequestError(f"num_frames must be at least 1, got {num_frames!r}", param="num_frames")
    return Picture(str(path))


@users_lines
def system(expression: str | Expression = "") -> Expression:
    """A system message."""
    return _message("system", expression)


@users_lines
def user(expression: str | Expression = "") -> Expression:
    """A user message."""
    return _message("user", expression)


@users_lines
def assistant(expression: str | Expression = "") -> Expression:
    """An assistant message: `assistant(gen("answer"))`."""
    return _message("assistant", expression)


def system_begin() -> Expression:
    """Begins a system message; end it with `system_end`."""
    return RoleOpen("system")


def system_end() -> Expression:
    """Ends a system message."""
    return RoleClose("system")


def user_begin() -> Expression:
    """Begins a user message; end it with `user_end`."""
    return RoleOpen("user")


def user_end() -> Expression:
    """Ends a user message."""
    return RoleClose("user")


def assistant_begin() -> Expression:
    """Begins an assistant message; end it with `assistant_end`."""
    return RoleOpen("assistant")


def assistant_end() -> Expression:
    """Ends an assistant message."""
    return RoleClose("assistant")


def flush_cache(backend: Backend | None = None) -> bool:
    """Empties the backend's prefix cache; does nothing and returns False if it is in use."""
    return resolve_backend(backend).flush_cache()


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    """Returns the backend's description of itself: version, model, settings and counters.

    Raises:
        UnsupportedError: it has none.
    """
    chosen = resolve_backend(backend)
    ask = getattr(chosen, "server_info", None)
    if ask is None:
        raise UnsupportedError(f"{type(chosen).__name__} has no information about itself", param="backend")
    return cast(dict[str, Any], ask())


def _message(role: str, expression: str | Expression) -> Expression:
    if not isinstance(expression, str | Expression):
        raise ProgramError(
            f"a message contains text and expressions, got {type(expression).__name__}{_instead(expression)}",
            code="invalid_program",
            place=caller(),
        )
    return Series((RoleOpen(role), expression, RoleClose(role)))


def _instead(given: object) -> str:
    return ": a state is continued with f.after(state).run(...)" if isinstance(given, State) else ""


def _offered(given: dict[str, Any]) -> Offered | None:
    """Returns the tools that a generation offers."""
    if given["tools"] is not None:
        return offered(given["tools"], given["tool_choice"], given["parallel_tool_calls"], given["max_turns"])
    alone = next((name for name, value in given.items() if value is not None), None)
    if alone is not None:
        raise RequestError(f"{alone} is about tools, and there are none: give tools=[...]", param=alone)
    return None


def _check_turns(name: object, choices: object, retries: object, options: Mapping[str, Any]) -> None:
    """Refuses what cannot be combined with tools."""
    if not isinstance(name, str):
        raise RequestError("with tools, the answer needs a name, by which its calls are found", param="name")
    if choices is not None:
        message = "choices cannot be combined with tools: give Literal[...] as the type of the answer"
        raise RequestError(message, param="choices")
    if retries is not None:
        raise RequestError("retries cannot be combined with tools: check the answer after it", param="retries")
    if options.get("n", 1) != 1:
        raise RequestError("with tools there is one answer: leave out n, or use s.fork(n)", param="n")


def _checked_check(check: object) -> Callable[[Any], object] | None:
    if check is None:
        return None
    if not callable(check):
        raise wrong_kind("check", "a function of the value", check)
    if waits(check):
        raise RequestError("check must be a plain function: a coroutine would never be awaited", param="check")
    return check


def _constraint(given: dict[str, Any]) -> tuple[GrammarSpec | None, Callable[[str], Any], object]:
    """Returns the grammar of the text, the function that turns the text into a value, and the value's type."""
    for name, value in given.items():
        refuse_unknown(name, value)
        if name == "regex" and not isinstance(value, str):
            raise wrong_kind(name, "a regular expression, as text", value)
        if name in ("type", "dtype", "schema") and isinstance(value, str) and not value.strip().startswith("{"):
            raise wrong_kind(name, "a type, such as int or a dataclass, or a JSON Schema", value)
    if len(given) == 2 and "regex" in given and (given.keys() & {"type", "dtype"}):
        kind = given["type"] if "type" in given else given["dtype"]
        return Regex(given["regex"]), typed(kind).convert if kind is not str else str, kind
    if len(given) > 1:
        raise RequestError(f"only one of {', '.join(given)} can be given", param=list(given)[1])
    for name, value in given.items():
        if name == "regex":
            return Regex(value), str, None
        if name in ("ebnf", "grammar") and isinstance(value, str):
            return Lark(value), str, None
        if name == "grammar" and isinstance(value, GrammarSpec):
            return value, str, value if isinstance(value, JsonSchema) else None
        if name in ("ebnf", "grammar"):
            raise RequestError(f"{name} must be a grammar's text or value, got {type(value).__name__}", param=name)
        return typed(value)
    return None, str, None
