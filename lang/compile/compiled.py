"""Compiled programs: traced once; printed, saved, estimated and run without their Python code."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from ...runtime.programs.room import check_room
from ...runtime.protocol.errors import BoughError, RequestError
from ...runtime.protocol.program import Failed, Gen, Program, ProgramEvent, Select, Use, walk
from ...runtime.protocol.template import Result, Template
from ...runtime.templates.fill import fill
from ...runtime.templates.results import Results
from ...runtime.tools.registry import ToolCall
from ..backend import Backend, resolve_backend
from ..diagnostics.errors import ProgramError, blamed, explain
from ..diagnostics.source_lines import Place, caller, users_lines
from ..observe import otel as observe
from ..record.options import OPTION_NAMES, checked_timeout
from ..run.batch import check_batch, count_at_once, split_item
from ..session.loops import run_blocking
from ..state.notebook import text_view
from ..types.annotations import as_json
from .cost import Cost, Encoder, estimate
from .listing import listing


class Local(NamedTuple):
    """The part of a compiled program that never leaves its process: its types.

    texts      its result, of the texts of all values
    make       of these and the arguments, what the body returns
    defaults   of its parameters
    """

    texts: Result
    make: Callable[[Any, Mapping[str, Any]], Any]
    defaults: Mapping[str, Any]


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

    def __init__(
        self, template: Template, *, tools: Mapping[str, ToolCall] | None = None, local: Local | None = None
    ) -> None:
        self.template = template
        self.tools = dict(tools or {})
        self._local = local

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
        """Reads what `to_json` wrote.

        Raises:
            RequestError: it is no compiled program, or one of another version.
        """
        try:
            return cls(msgspec.json.decode(text, type=Template), tools=tools)
        except msgspec.DecodeError as error:
            raise RequestError(f"this is not a compiled program: {error}", param="program") from error

    def save(self, path: str | Path) -> None:
        """Writes it as a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, *, tools: Mapping[str, ToolCall] | None = None) -> CompiledProgram:
        """Reads what `save` has written. Raises as `from_json`."""
        return cls.from_json(Path(path).read_bytes(), tools=tools)

    def cost(self, *args: Any, tokenizer: Encoder | None = None, **arguments: Any) -> Cost:
        """Estimates what a run with these arguments costs at most; exactly in tokens, given the model's tokenizer."""
        ops, _ = fill(self.template, _plain(self._named(args, arguments)))
        return estimate(ops, tokenizer)

    # Running

    @users_lines
    def run(
        self,
        *args: Any,
        backend: Backend | None = None,
        namespace: str = "",
        timeout_s: float | None = None,
        **arguments: Any,
    ) -> Any:
        """Runs it, in one request, and returns its result: what the body returned, or all variables by name. The types
        are those of the body; of a program that was loaded, which does not know them, those of JSON.

        Raises:
            RequestError: an argument is missing, unknown or of the wrong type.
            ProgramError: it failed.
        """
        with blamed(here := caller()):
            filled = self._filled(args, arguments, namespace, timeout_s)
            if filled.generates:
                with closing(observe.run(self.name, filled.backend_of(backend), filled.program, self.tools)) as events:
                    for event in events:
                        filled.take(event, here)
            return filled.result()

    async def arun(
        self,
        *args: Any,
        backend: Backend | None = None,
        namespace: str = "",
        timeout_s: float | None = None,
        **arguments: Any,
    ) -> Any:
        """`run` for tasks; cancelling the task stops the program."""
        with users_lines:
            return await self._arun(caller(), args, arguments, backend, namespace, timeout_s)

    async def _arun(
        self,
        here: Place,
        args: tuple[Any, ...],
        arguments: Mapping[str, Any],
        backend: Backend | None = None,
        namespace: str = "",
        timeout_s: float | None = None,
    ) -> Any:
        with users_lines, blamed(here):
            filled = self._filled(args, arguments, namespace, timeout_s)
            if filled.generates:
                arun = observe.arun(self.name, filled.backend_of(backend), filled.program, self.tools)
                async with aclosing(arun) as events:
                    async for event in events:
                        filled.take(event, here)
            return filled.result()

    @users_lines
    def run_batch(
        self,
        batch: Sequence[Any],
        *,
        num_threads: int | Literal["auto"] = "auto",
        **kwargs: Any,
    ) -> list[Any]:
        """Runs it for each item, a dict or tuple of arguments, many at once; results in order.

        A run that fails spoils no other: its error stands in the place of its result. `kwargs` are those of `run`.
        `num_threads` says how many run at once.

        >>> program.run_batch([{"country": "France"}, {"country": "Japan"}])
        [{'answer': 'Paris'}, {'answer': 'Tokyo'}]
        """
        return run_blocking(self.arun_batch(batch, num_threads=num_threads, **kwargs))

    async def arun_batch(
        self,
        batch: Sequence[Any],
        *,
        num_threads: int | Literal["auto"] = "auto",
        **kwargs: Any,
    ) -> list[Any]:
        """`run_batch` for tasks."""
        parameters = self.template.parameters
        takes_one = sum(one.default is None for one in parameters) <= 1 <= len(parameters)
        check_batch(batch)
        items = [split_item(item, takes_one=takes_one, takes_list=len(parameters) == 1) for item in batch]
        permits = asyncio.Semaphore(count_at_once(num_threads))
        shared, here = {**kwargs, "backend": resolve_backend(kwargs.get("backend"))}, caller()

        async def one(args: tuple[object, ...], own: Mapping[str, Any]) -> Any:
            async with permits:
                try:
                    named = {**shared, **own}
                    how = {name: named.pop(name) for name in _HOW if name in named}
                    return await self._arun(here, args, named, **how)
                except BoughError as error:
                    return error

        return await asyncio.gather(*(one(args, own) for args, own in items))

    def stream(
        self,
        *args: Any,
        backend: Backend | None = None,
        namespace: str = "",
        timeout_s: float | None = None,
        **arguments: Any,
    ) -> Iterator[ProgramEvent]:
        """Runs it, and yields Delta, Value, ... as they come. Leaving early stops it."""
        with users_lines, blamed(caller()):
            filled = self._filled(args, arguments, namespace, timeout_s, deltas=True)
            with closing(observe.run(self.name, filled.backend_of(backend), filled.program, self.tools)) as events:
                yield from events

    def _filled(
        self,
        args: tuple[Any, ...],
        by_name: Mapping[str, Any],
        namespace: str,
        timeout_s: float | None,
        *,
        deltas: bool = False,
    ) -> _Filled:
        arguments = self._named(args, by_name)
        template = self.template
        if self._local is not None:
            template = msgspec.structs.replace(template, result=self._local.texts)
            arguments = {**self._local.defaults, **arguments}
        ops, result = fill(template, _plain(arguments))
        program = Program(
            id=secrets.token_hex(16),
            ops=ops,
            deltas=deltas,
            namespace=namespace or "",
            timeout_s=checked_timeout(timeout_s),
        )
        return _Filled(program, Results(result), self._local, arguments)

    def _named(self, args: tuple[Any, ...], by_name: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments by name. Raises RequestError for one that is given twice, or is none."""
        names = [parameter.name for parameter in self.template.parameters]
        if len(args) > len(names):
            there = ", ".join(names) or "none"
            raise RequestError(
                f"{self.name} takes {len(names)} arguments ({there}), got {len(args)}", param="arguments"
            )
        placed = dict(zip(names, args, strict=False))
        if twice := placed.keys() & by_name.keys():
            raise RequestError(f"{min(twice)} was given twice", param=min(twice))
        for name in by_name:
            if name not in names and name in _HINTS:
                raise RequestError(_HINTS[name].format(name=name, program=self.name), param=name)
        return {**placed, **by_name}


_HOW = ("backend", "namespace", "timeout_s")
_HINTS = {
    **dict.fromkeys(
        OPTION_NAMES,
        "{name} is a sampling option, which is part of the compiled program: pass it to {program}.compile({name}=...)",
    ),
    "trace": "a compiled program has no timeline: use {program}.run(trace=True)",
    "stream": "use the method stream() of the compiled program",
}


@dataclass(frozen=True)
class _Filled:
    """A run: what is sent, and what comes back."""

    program: Program
    results: Results
    local: Local | None
    arguments: Mapping[str, Any]

    @property
    def generates(self) -> bool:
        """There is something to be generated: text alone is not worth a request, as in any program."""
        return any(isinstance(op, Gen | Select | Use) for op in walk(self.program.ops))

    def backend_of(self, given: Backend | None) -> Backend:
        """Returns where to run it.

        Raises:
            RequestError: a limit of tokens has no room for any value. Other backends tell when they get the program.
        """
        backend = resolve_backend(given)
        tokenizer = getattr(backend, "tokenizer", None)
        if tokenizer is not None:
            check_room(self.program.ops, tokenizer)
        return backend

    def take(self, event: ProgramEvent, here: Place) -> None:
        """Takes in an event. Raises ProgramError: the program has failed, which the line `here` runs."""
        if isinstance(event, Failed):
            places = [here for _ in walk(self.program.ops)]
            raise explain(self.program, places, event.error, event.branch, event.index)
        self.results.feed(event)

    def result(self) -> Any:
        found = self.results.read()
        if self.local is None:
            return found
        try:
            return self.local.make(found, self.arguments)
        except ValueError as error:
            raise ProgramError(str(error), code="invalid_output") from error


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON values.

    Raises:
        RequestError: one has no such form.
    """
    plain: dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            plain[name] = as_json(value)
        except (TypeError, ValueError) as error:
            raise RequestError(f"{name} is not a JSON value: {error}", param=name) from error
    return plain
