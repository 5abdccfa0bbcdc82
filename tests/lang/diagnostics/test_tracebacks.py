"""Tracebacks that users see: their own lines, whichever way a program is run and read."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

import bough
from bough import MockBackend, assistant, function, gen, user
from bough.lang.diagnostics.source_lines import users_lines
from bough.lang.types.schema import typed


class Adult(BaseModel):
    age: int

    @field_validator("age")
    @classmethod
    def of_age(cls, age: int) -> int:
        assert age >= 18, "too young"
        return age


@function
def asked(s: Any) -> None:
    s += user("Who?") + assistant(gen("v", Adult, retries=1))


@function
def unread(s: Any) -> None:
    s += user("Who?") + assistant(gen("v", Adult))


@function
async def misspelt(s: Any) -> Any:
    s += "x" + gen("v")
    return await s.aget("w")


@function
def adds_a_number(s: Any) -> None:
    s += "x" + 5  # type: ignore[operator]


@function
def writes(s: Any) -> None:
    s += "x" + gen("v", int)


def young() -> MockBackend:
    return MockBackend({"v": '{"age": 3}'})


async def events_of(program: Any) -> None:
    async for _ in program.stream(backend=young()):
        pass


async def texts_of(program: Any) -> None:
    async for _ in program.stream(backend=young()).text():
        pass


async def read_later() -> None:
    state = await unread.arun(backend=young())
    await state.aget("v")


WAYS: dict[str, Callable[[], Any]] = {
    "run": lambda: asked.run(backend=young()),
    "run beside": lambda: asked.run(backend=young(), stream=True)["v"],
    "read": lambda: unread.run(backend=young())["v"],
    "values": lambda: unread.run(backend=young()).values(),
    "history": lambda: unread.run(backend=young()).history("v"),
    "stream of a value": lambda: list(unread.run(backend=young()).stream("v", partial=True)),
    "aget": lambda: asyncio.run(read_later()),
    "run_batch": lambda: asked.run_batch([{}, {}], backend=young())[1]["v"],
    "run_batch on threads": lambda: asked.run_batch([{}, {}], num_threads=2, backend=young())[1]["v"],
    "run_batch misspelt": lambda: asked.run_batch([{}], temprature=0, backend=young()),
    "stream": lambda: list(asked.stream(backend=young())),
    "texts": lambda: list(asked.stream(backend=young()).text()),
    "arun": lambda: asyncio.run(asked.arun(backend=young())),
    "async for": lambda: asyncio.run(events_of(asked)),
    "async for of texts": lambda: asyncio.run(texts_of(asked)),
    "coroutine": lambda: misspelt.run(backend=MockBackend()),
    "compile": lambda: function(lambda s, x: s["y"]).compile(),
    "compiled": lambda: writes.compile().run(backend=young()),
    "compiled arun": lambda: asyncio.run(writes.compile().arun(backend=young())),
    "the user's own": lambda: adds_a_number.run(backend=MockBackend()),
    "arguments": lambda: adds_a_number.run(1, 2, backend=MockBackend()),
}


def files_of(error: BaseException | None) -> list[str]:
    """The files of an error's traceback, and of those of its causes."""
    found: list[str] = []
    while error is not None:
        found += [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        error = error.__cause__
    return found


@pytest.mark.parametrize("way", WAYS)
def test_tracebacks_have_the_users_lines(way: str) -> None:
    with pytest.raises((bough.BoughError, TypeError)) as caught:
        WAYS[way]()
    files = files_of(caught.value)
    assert __file__ in files
    root = bough.__file__.removesuffix("__init__.py")
    assert not [file for file in files if file.startswith(f"{root}lang/")], files


@pytest.mark.parametrize("way", ["run_batch", "run beside", "run_batch on threads"])
def test_who_reads_later_hears_why_the_program_failed(way: str) -> None:
    with pytest.raises(bough.ProgramError, match="'v' was rejected in 2 attempts: age: too young"):
        WAYS[way]()


def test_of_what_bough_does_wrong_all_lines_stay() -> None:
    with pytest.raises(ValueError, match="neither True nor False") as caught, users_lines:
        typed(bool).convert("maybe")  # stands for a mistake in bough itself
    assert any(file.endswith("lang/types/schema.py") for file in files_of(caught.value))
