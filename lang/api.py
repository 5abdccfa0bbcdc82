"""The words of the language: what a program's author imports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack, get_args, overload

from ..constrain.spec import GrammarSpec, JsonSchema, Lark, Regex
from ..runtime.errors import RequestError
from ..runtime.program import SelectMethod
from .backend import Backend, resolve_backend, set_default_backend
from .errors import ProgramError
from .expression import Choose, Expression, Generate, Picture, RoleClose, RoleOpen, Series, items_of
from .options import SamplingOptions, clean_options
from .place import caller
from .program import Function
from .schema import typed

__all__ = [
    "assistant", "assistant_begin", "assistant_end", "flush_cache", "function", "gen", "gen_int", "gen_string", "image",
    "select", "set_default_backend", "system", "system_begin", "system_end", "user", "user_begin", "user_end",
]  # fmt: skip


@overload
def function(body: Callable[..., Any]) -> Function: ...
@overload
def function(body: None = None) -> Callable[[Callable[..., Any]], Function]: ...
def function(body: Callable[..., Any] | None = None) -> Function | Callable[[Callable[..., Any]], Function]:
    """Makes a program of a function whose first parameter is the state.

    >>> @bough.function
    ... def greet(s, name):
    ...     s += f"Hello {name}, " + bough.gen("greeting", stop="\\n")
    >>> greet.run("Ada")["greeting"]
    """
    return Function if body is None else Function(body)


def gen(  # noqa: PLR0913  one word has to say it all
    name: str | None = None,
    dtype: object = None,
    *,
    schema: object = None,
    json_schema: object = None,
    regex: str | None = None,
    ebnf: str | None = None,
    grammar: GrammarSpec | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: SelectMethod | None = None,
    timeout_s: float | None = None,
    **options: Unpack[SamplingOptions],
) -> Generate | Choose:
    """Generates text and keeps it as the variable `name`. What is left out is the run's default.

    dtype, schema    a type: the text is of that form and `s[name]` is a value of it. int, float, bool, str, an Enum,
                     Literal, dataclass, TypedDict, Pydantic model, list[...], ...
    json_schema      the same; a JSON Schema as dict or text gives the JSON text (parse it with `s.json(name)`)
    regex            the text matches the pattern as a whole; with `dtype`, only the value's type is taken from that
    ebnf, grammar    a context-free grammar in Lark's notation; `grammar` also takes JsonSchema, Regex, Choice, Lark ...
    choices          one of these: the same as `select`
    timeout_s        seconds after which the program fails

    >>> s += "Population: " + gen("population", int)
    >>> s += assistant(gen("invoice", schema=Invoice, max_tokens=120))

    Raises:
        RequestError: an option is out of range, or several constraints are given.
    """
    if choices is not None:
        if _given(dtype=dtype, schema=schema, json_schema=json_schema, regex=regex, ebnf=ebnf, grammar=grammar):
            raise RequestError("choices cannot be combined with another constraint", param="choices")
        return select(name, choices, choices_method=choices_method)
    constraint, convert, kind = _constraint(
        _given(dtype=dtype, schema=schema, json_schema=json_schema, regex=regex, ebnf=ebnf, grammar=grammar)
    )
    return Generate(name, clean_options(options), constraint, convert, timeout_s, caller(), kind)


def gen_int(
    name: str | None = None, *, timeout_s: float | None = None, **options: Unpack[SamplingOptions]
) -> Expression:
    """Generates an integer: `gen(name, dtype=int)`."""
    return gen(name, dtype=int, timeout_s=timeout_s, **options)


def gen_string(
    name: str | None = None, *, timeout_s: float | None = None, **options: Unpack[SamplingOptions]
) -> Expression:
    """Generates a string in quotes; the variable is what stands between them: `gen(name, dtype=str)`."""
    return gen(name, dtype=str, timeout_s=timeout_s, **options)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    *,
    choices_method: SelectMethod | None = None,
) -> Choose:
    """Appends the likeliest of `choices` and keeps it as the variable `name`; `s.probabilities(name)` says how likely.

    >>> s += assistant(select("mood", ["good", "bad"]))

    Raises:
        RequestError: there are no choices, or one is given twice.
    """
    if not choices or isinstance(choices, str) or not all(isinstance(choice, str) and choice for choice in choices):
        raise RequestError("choices must be a list of texts that are not empty", param="choices")
    if len(set(choices)) < len(choices):
        raise RequestError("choices must differ from each other", param="choices")
    if temperature > 1e-5:
        raise RequestError("select takes the likeliest choice: temperature must be 0", param="temperature")
    method = choices_method or "likelihood"
    if method not in get_args(SelectMethod):
        known = ", ".join(get_args(SelectMethod))
        raise RequestError(f"choices_method must be one of {known}; got {method!r}", param="choices_method")
    return Choose(name, tuple(choices), method, caller())


def image(source: str | Path | bytes) -> Picture:
    """An image, by path or content. Backends that take text only refuse it when it is appended."""
    return Picture(source if isinstance(source, bytes) else str(source))


def system(expression: str | Expression | None = None) -> Expression:
    """A system message."""
    return _message("system", expression)


def user(expression: str | Expression | None = None) -> Expression:
    """A user message."""
    return _message("user", expression)


def assistant(expression: str | Expression | None = None) -> Expression:
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
    """Empties the backend's prefix cache; False (and nothing done) if it is in use."""
    return resolve_backend(backend).flush_cache()


def _message(role: str, expression: str | Expression | None) -> Expression:
    if expression is None:
        expression = ""
    if not isinstance(expression, str | Expression):
        raise ProgramError(
            f"a message holds text and expressions, got {type(expression).__name__}",
            code="invalid_program",
            place=caller(),
        )
    return Series((RoleOpen(role), *items_of(expression), RoleClose(role)))


def _given(**constraints: object) -> dict[str, Any]:
    return {name: value for name, value in constraints.items() if value is not None}


def _constraint(given: dict[str, Any]) -> tuple[GrammarSpec | None, Callable[[str], Any], object]:
    """What the text must conform to, how to turn it into a value, and the type that this is."""
    if set(given) == {"dtype", "regex"}:
        convert = typed(given["dtype"]).convert if given["dtype"] is not str else str
        return Regex(given["regex"]), convert, given["dtype"]
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
