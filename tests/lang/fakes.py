"""A backend that plays back events which the test decides, one at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from bough.runtime.protocol.errors import BoughError
from bough.runtime.protocol.program import Done, Failed, Program, ProgramEvent, Value

Script = Callable[[Program], Iterator[ProgramEvent | BoughError | threading.Event]]


class FakeBackend:
    """`script` yields a program's events; an error is raised; an Event is waited for."""

    modalities = frozenset({"text"})

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Program] = []
        self.aborted: list[str] = []
        self.dropped: list[str] = []

    def run(self, program: Program) -> Iterator[ProgramEvent]:
        self.requests.append(program)
        over = False
        try:
            for item in self.script(program):
                if isinstance(item, BoughError):
                    over = True
                    raise item
                if isinstance(item, threading.Event):
                    assert item.wait(10.0)
                    continue
                over = isinstance(item, (Done, Failed))
                yield item
            over = True
        finally:
            if not over:
                self.aborted.append(program.id)

    async def arun(self, program: Program) -> AsyncIterator[ProgramEvent]:
        self.requests.append(program)
        over = False
        try:
            for item in self.script(program):
                if isinstance(item, BoughError):
                    over = True
                    raise item
                if isinstance(item, threading.Event):
                    while not item.is_set():
                        await asyncio.sleep(0.001)
                    continue
                over = isinstance(item, (Done, Failed))
                yield item
                await asyncio.sleep(0)
            over = True
        finally:
            if not over:
                self.aborted.append(program.id)

    def drop(self, program_id: str) -> None:
        self.dropped.append(program_id)

    def flush_cache(self) -> bool:
        return True

    def close(self) -> None:
        return None


def value(branch: int, name: str, text: str, **fields: Any) -> Value:
    return Value(branch=branch, name=name, text=text, **fields)


def ops_of(program: Program) -> list[Any]:
    """The instructions, for tests that know which they are."""
    return list(program.ops)


def kinds(program: Program) -> list[str]:
    return [type(op).__name__ for op in program.ops]
