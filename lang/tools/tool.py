"""Tools: functions that the engine calls from inside a program."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from ...runtime.protocol.errors import EngineError, RequestError
from ...runtime.tools.arguments import check_names, read_arguments
from ...runtime.tools.registry import check_tool
from ..diagnostics.source_lines import Place, caller, located
from ..record.expression import Expression
from ..record.options import checked_timeout, wrong_kind
from ..types.annotations import annotations_of, as_json, described

Params = ParamSpec("Params")
Result = TypeVar("Result")
Word = TypeVar("Word", bound=Callable[..., Any])

MAX_CHARS = 16_384


class Tool(Generic[Params, Result]):
    """A function that programs can call by name: `bough.use("observation", tool, ...)`. It stays callable.

    name, description   what models and servers see
    parameters          JSON Schema of its arguments, from their annotations
    timeout_s           maximum seconds of a call; None: the engine's limit
    max_chars           maximum characters of its result
    """

    def __init__(
        self,
        function: Callable[Params, Result],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float | None = None,
        max_chars: int = MAX_CHARS,
    ) -> None:
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.description = description if description is not None else inspect.getdoc(function) or ""
        self.timeout_s = timeout_s
        self.max_chars = max_chars
        self._readers = _readers(function, self.name)
        self.parameters: Mapping[str, Any] = _schema(self._readers)
        check_tool(self)
        functools.update_wrapper(self, function)

    __name__: str
    _readers: Mapping[str, _Reader] = MappingProxyType({})

    def __repr__(self) -> str:
        return f"<tool {self.name}({', '.join(self._readers)})>"

    def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        return self.function(*args, **kwargs)

    def check_argument(self, name: str, value: object) -> None:
        """Refuses a value that is known before the call. A text is what a generation might have written.

        Raises:
            RequestError: it is not of the parameter's type.
        """
        plain, reader = as_json(value), self._readers.get(name)
        schema = reader.schema if reader is not None else self.parameters.get("properties", {}).get(name, {})
        try:
            if isinstance(plain, str):
                plain = read_arguments(self, {name: plain})[name]
            elif reader is None and schema.get("type") == "string":
                raise ValueError(f"expected a text, got {type(value).__name__}")
            elif reader is None:
                read_arguments(self, {name: msgspec.json.encode(plain).decode()})
            if reader is not None:
                reader.convert(plain)
        except ValueError as error:
            raise RequestError(
                f"the argument {name!r} of tool {self.name!r} cannot be {value!r}: {error}",
                code="invalid_tool_call",
                param=name,
            ) from error
        except EngineError as error:
            raise RequestError(error.message, code="invalid_tool_call", param=name) from error

    @property
    def typed(self) -> bool:
        """Its parameters are those of a Python function."""
        return bool(self._readers)

    def as_declared(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns JSON values as values of the declared types; as they are, if they are not of these."""
        try:
            return {
                name: self._readers[name].convert(value) if name in self._readers else value
                for name, value in arguments.items()
            }
        except ValueError:
            return arguments

    def call(self, arguments: dict[str, Any]) -> str | Awaitable[str]:
        """Calls it with JSON values; what it returns is text, or JSON.

        Raises:
            RequestError: an argument is missing, unknown, or of the wrong type.
        """
        check_names(self, arguments)
        typed: dict[str, Any] = {}
        for name, value in arguments.items():
            reader = self._readers.get(name)
            try:
                typed[name] = value if reader is None else reader.convert(value)
            except ValueError as error:
                raise RequestError(f"the argument {name!r} of tool {self.name!r}: {error}", param=name) from error
        result: Any = self.function(**typed)  # type: ignore[call-arg]
        return _written(result) if inspect.isawaitable(result) else _as_text(result)


@overload
def tool(function: Callable[Params, Result], /) -> Tool[Params, Result]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    max_chars: int = MAX_CHARS,
) -> Callable[[Callable[Params, Result]], Tool[Params, Result]]: ...
@located
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
    max_chars: int = MAX_CHARS,
) -> Any:
    """Turns a function, sync or async, into a tool. Its annotations declare its arguments, its docstring describes it.
    It runs beside the engine, on another thread, while other programs continue.

    timeout_s   seconds after which a call fails; None: the engine's limit
    max_chars   maximum characters of its result; more is an error

    >>> @bough.tool(timeout_s=5)
    ... def search(query: str) -> str:
    ...     "Looks something up."
    ...     return index[query]

    Raises:
        RequestError: its parameters cannot be passed by name, or have no JSON type.
    """

    def make(body: Callable[..., Any]) -> Tool[..., Any]:
        return Tool(body, name=name, description=description, timeout_s=timeout_s, max_chars=max_chars)

    if isinstance(function, str):
        raise RequestError(
            f"@bough.tool makes a tool of a function, got {function!r}: to call the tool of that name, "
            f"s += bough.use(name, {function!r}, argument=...)",
            param="function",
        )
    return make if function is None else make(function)


@dataclass(frozen=True, slots=True, eq=False)
class Using(Expression):
    """A call of a tool."""

    name: str | None
    tool_name: str
    tool: Any
    arguments: Mapping[str, object]
    append: bool
    timeout_s: float | None
    place: Place


def _name_first(word: Word) -> Word:
    """Says of a call that begins with the tool what stands before it."""

    @functools.wraps(word)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Tool):
            message = f'use takes the name of a variable first: bough.use("name", {args[0].name}, argument=...)'
            raise RequestError(message, param="name")
        return word(*args, **kwargs)

    return call  # type: ignore[return-value]


@located
@_name_first
def use(
    name: str | None,
    tool: Tool[..., Any] | str,
    arguments: Mapping[str, object] | None = None,
    /,
    *,
    append: bool = True,
    timeout_s: float | None = None,
    **more: object,
) -> Expression:
    """Calls a tool while the program runs, appends what it returns and keeps it as the variable `name`.

    tool         a `@bough.tool`, or the name of one that the server has registered
    arguments    by name, or as keywords: JSON values, references (`s.ref("x")`), texts that contain references
    append       False: only keep the text
    timeout_s    seconds; overrides the tool's own limit

    >>> s += "Observation: " + bough.use("observation", search, query=s.ref("query")) + "\\n"

    Raises:
        RequestError: an argument is unknown or missing.
    """
    if not isinstance(arguments, Mapping | None):
        raise wrong_kind("arguments", "a dict of arguments by name, or keywords", arguments)
    given = {**(arguments or {}), **more}
    if not isinstance(tool, str | Tool):
        raise RequestError(
            f"use takes a tool made with @bough.tool, or the name of a tool on the server; got {type(tool).__name__}",
            param="tool",
        )
    timeout_s = checked_timeout(timeout_s)
    known = None if isinstance(tool, str) else tool
    if known is not None:
        check_names(known, given)
    return Using(name, tool if isinstance(tool, str) else tool.name, known, given, append, timeout_s, caller())


@dataclass(frozen=True, slots=True)
class _Reader:
    """One parameter: its schema, and how a JSON value becomes what the function takes."""

    schema: Mapping[str, Any]
    definitions: Mapping[str, Any]
    convert: Callable[[Any], Any]
    required: bool


def _readers(function: Callable[..., Any], name: str) -> dict[str, _Reader]:
    kinds = annotations_of(function)
    found: dict[str, _Reader] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RequestError(
                f"the parameter {parameter.name!r} of tool {name!r} cannot be passed by name", param=parameter.name
            )
        found[parameter.name] = _reader(name, parameter, kinds.get(parameter.name, Any))
    return found


def _reader(tool_name: str, parameter: inspect.Parameter, kind: Any) -> _Reader:
    required = parameter.default is parameter.empty
    try:
        schema, convert, _ = described(kind)
        if not required:
            schema.setdefault("default", as_json(parameter.default))
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"the parameter {parameter.name!r} of tool {tool_name!r} has no JSON type: {error}", param=parameter.name
        ) from error
    definitions = schema.pop("$defs", {})
    return _Reader(schema, definitions, convert, required)


def _schema(readers: Mapping[str, _Reader]) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: dict(reader.schema) for name, reader in readers.items()},
        "required": [name for name, reader in readers.items() if reader.required],
        "additionalProperties": False,
    }
    definitions = {name: inner for reader in readers.values() for name, inner in reader.definitions.items()}
    return {**schema, "$defs": definitions} if definitions else schema


async def _written(result: Awaitable[Any]) -> str:
    return _as_text(await result)


def _as_text(result: object) -> str:
    if isinstance(result, str):
        return result
    if hasattr(result, "model_dump_json"):
        return str(result.model_dump_json())
    return msgspec.json.encode(as_json(result)).decode()
