"""Compiled programs: traced once; printed, saved, estimated and run without their Python code."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ...runtime.errors import RequestError
from ...runtime.fill import fill
from ...runtime.program import Failed, Program, ProgramEvent
from ...runtime.results import Results
from ...runtime.template import Result, Template
from ...runtime.tools import ToolCall
from .. import observe
from ..backend import Backend, resolve_backend
from ..errors import ProgramError
from ..notebook import text_view
from .cost import Cost, Encoder, estimate
from .listing import listing

Kind = TypeVar("Kind")


class CompiledProgram:
    """A program as data, with holes for its arguments. It runs anywhere, also where its Python code is not.

    template   the data
    tools      what it uses, by name, for engines in this process; a server has its own

    >>> program = capital.compile(temperature=0)
    >>> print(program)
    program capital(country: string)
    ...
    >>> program.run(country="France")
    {'answer': 'Paris'}
    """

    def __init__(self, template: Template, *, tools: Mapping[str, ToolCall] | None = None, kind: Any = None) -> None:
        self.template = template
        self.tools = dict(tools or {})
        self._kind = kind

    @property
    def name(self) -> str:
        return self.template.name

    def __str__(self) -> str:
        return listing(self.template)

    def __repr__(self) -> str:
        names = ", ".join(parameter.name for parameter in self.template.parameters)
        return f"<compiled program {self.name}({names}), {len(self.template.ops)} instructions>"

    def _repr_html_(self) -> str:
        return text_view(f"compiled program {self.name}", str(self))

    # As data

    def to_json(self) -> str:
        """The whole program as JSON. Tools are in it by name."""
        return msgspec.json.encode(self.template).decode()

    @classmethod
    def from_json(cls, text: str | bytes, *, tools: Mapping[str, ToolCall] | None = None) -> CompiledProgram:
        """What `to_json` gave.

        Raises:
            RequestError: it is no compiled program, or one of another version.
        """
        try:
            return cls(msgspec.json.decode(text, type=Template), tools=tools)
        except msgspec.DecodeError as error:
            raise RequestError(f"this is no compiled program: {error}", param="program") from error

    def save(self, path: str | Path) -> None:
        """Writes it as a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, *, tools: Mapping[str, ToolCall] | None = None) -> CompiledProgram:
        """Reads what `save` has written. Raises as `from_json`."""
        return cls.from_json(Path(path).read_bytes(), tools=tools)

    def cost(self, *, tokenizer: Encoder | None = None, **arguments: Any) -> Cost:
        """What a run with these arguments costs at most. With the model's tokenizer, tokens are counted exactly."""
        ops, _ = fill(self.template, _plain(arguments))
        return estimate(ops, tokenizer)

    # Running

    def run(
        self,
        *,
        backend: Backend | None = None,
        namespace: str = "",
        timeout_s: float | None = None,
        **arguments: Any,
    ) -> Any:
        """Runs it, in one request, and returns its result: what the body returned, or all variables by name.

        Raises:
            RequestError: an argument is missing, unknown or of the wrong type.
            ProgramError: it failed.
        """
        program, result = self._filled(arguments, namespace, timeout_s)
        results = Results()
        with closing(observe.run(self.name, resolve_backend(backend), program, self.tools)) as events:
            for event in events:
                _take(results, event)
        return self._typed(results.read(result))

    async def arun(
        self,
        *,
        backend: Backend | None = None,
        namespace: str = "",
        timeout_s: float | None = None,
        **arguments: Any,
    ) -> Any:
        """`run` for tasks; cancelling the task stops the program."""
        program, result = self._filled(arguments, namespace, timeout_s)
        results = Results()
        async with aclosing(observe.arun(self.name, resolve_backend(backend), program, self.tools)) as events:
            async for event in events:
                _take(results, event)
        return self._typed(results.read(result))

    def stream(
        self,
        *,
        backend: Backend | None = None,
        namespace: str = "",
        timeout_s: float | None = None,
        **arguments: Any,
    ) -> Iterator[ProgramEvent]:
        """Runs it, and yields Delta, Value, ... as they come. Leaving early stops it."""
        program, _ = self._filled(arguments, namespace, timeout_s)
        with closing(observe.run(self.name, resolve_backend(backend), program, self.tools)) as events:
            yield from events

    def _filled(self, arguments: Mapping[str, Any], namespace: str, timeout_s: float | None) -> tuple[Program, Result]:
        ops, result = fill(self.template, _plain(arguments))
        program = Program(id=secrets.token_hex(16), ops=ops, namespace=namespace, timeout_s=timeout_s)
        return program, result

    def _typed(self, value: Any) -> Any:
        """The result as what the body says that it returns, where that is a type that can be made of JSON."""
        if self._kind is None:
            return value
        if hasattr(self._kind, "model_validate"):
            return self._kind.model_validate(value)
        return msgspec.convert(value, self._kind)


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON values."""
    plain: dict[str, Any] = msgspec.to_builtins(arguments, enc_hook=_dumped)
    return plain


def _dumped(value: Any) -> Any:
    """A Pydantic model's fields."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _take(results: Results, event: ProgramEvent) -> None:
    if isinstance(event, Failed):
        raise ProgramError(event.error.message, code=event.error.code, param=event.error.param, branch=event.branch)
    results.feed(event)
