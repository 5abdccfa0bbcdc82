"""Counts the files, functions and threads that four everyday flows pass through, with `sys.setprofile` on every thread.

    python scripts/flows.py [--files] [--json] [--at-most 50,40,16,22,2]

(a) typed   one typed `gen` on the default model, from the first line of the program to the converted value
(b) chat    one streamed chat completion with a JSON schema, through the ASGI application, without a socket
(c) step    one decode step of the CPU inside (a), with the masks computed beside it: the median of the run's steps
(d) schema  a JSON schema with two properties that has not been compiled, from `submit` to its first mask; the queue
            and the processes of constrain/workers/ aside

A function counts if it lies in the package, once however often it is called; generated code, comprehensions and the
bodies of modules and classes do not count, so what is imported late costs nothing. Each flow has run before with other
words, so that lazy parts are made, and in (a) to (c) again and again until the schema's table is there.

The fifth figure is of (d): the most calls by which `GrammarCompiler.submit`, until the grammar is there, enters one
module from another (see STAGES). Exits with 1 if a figure passes its limit. Before the folders had wings, the
figures were 83, 55, 25, 36 and 3.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx
import numpy as np

import bough
from bough.constrain import GrammarCompiler, JsonSchema
from bough.server.app import create_app
from bough.server.config import ServerConfig

ROOT = f"{Path(bough.__file__).parent}/"
PARTS = tuple(f"{ROOT}{part}/" for part in ("cli", "server", "lang", "runtime", "constrain", "kernels", "radix"))
AT_MOST = (50, 40, 16, 22, 2)
STAGES = tuple(f"constrain/{stage}" for stage in ("compiler", "lower", "matchers/", "workers/"))
"""Stages of a compilation; the rest (json_schema/, regex/, vocabulary/) is entered for each part of a schema."""
WORKERS = ("constrain/workers/",)


@dataclass
class Trace:
    """Calls of the package's own functions, as (thread, caller's file or "", function).

    steps   where each step of the engine begins and ends in `calls`
    """

    calls: list[tuple[int, str, CodeType]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def files(self) -> Counter[str]:
        """Calls by file."""
        return Counter(_file(code) for _, _, code in self.calls)

    def figures(self) -> dict[str, Any]:
        return {
            "files": len(self.files),
            "functions": len({code for _, _, code in self.calls}),
            "calls": len(self.calls),
            "threads": len({thread for thread, _, _ in self.calls}),
        }


class Profiler:
    """Listens on every thread that is started after it; takes notes only within `record`."""

    def __init__(self) -> None:
        self._trace: Trace | None = None
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    @contextmanager
    def record(self) -> Iterator[Trace]:
        self._trace = trace = Trace()
        try:
            yield trace
        finally:
            self._trace = None

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        trace, code = self._trace, frame.f_code
        if trace is None or event not in ("call", "return") or not _counts(code):
            return
        is_step = code.co_qualname == "Engine.step"
        if event == "return":
            if is_step and trace.steps:
                trace.steps[-1] = trace.steps[-1][0], len(trace.calls)
            return
        if is_step:
            trace.steps.append((len(trace.calls), 0))
        back = frame.f_back
        while back is not None and not _counts(back.f_code):
            back = back.f_back
        trace.calls.append((threading.get_ident(), _file(back.f_code) if back is not None else "", code))


def _counts(code: CodeType) -> bool:
    if not code.co_flags & CO_OPTIMIZED or not code.co_filename.startswith(PARTS):
        return False  # the body of a module or a class, or someone else's
    return code.co_name == "<lambda>" or not code.co_name.startswith("<")


def _file(code: CodeType) -> str:
    return code.co_filename.removeprefix(ROOT)


# What is measured


@dataclass
class City:
    """The answer that the program asks for."""

    name: str
    year: int


CITIES = ("Lisbon", "Rome", "Cairo", "Oslo", "Bern", "Quito", "Delhi", "Lima", "Accra", "Hanoi", "Riga", "Dakar")
WAIT_S = 0.5
"""Time for what a run has left to be done after it, its schema's table above all."""

SCHEMA = """{{
  "type": "object", "properties": {{"{0}": {{"type": "string"}}, "{0}_year": {{"type": "integer"}}}},
  "required": ["{0}", "{0}_year"], "additionalProperties": false
}}"""


def measure() -> tuple[dict[str, Trace], int]:
    """Runs the four flows, and counts entries of `submit`; the default model must be there."""
    profiler = Profiler()
    with bough.LocalBackend() as backend:
        client = backend.client
        for city in CITIES:
            with profiler.record() as of_typed:
                typed(backend, city)
            if is_tabled(of_typed):
                break
            time.sleep(WAIT_S)
        of_chat = asyncio.run(chats(client, profiler))
        of_schema, entries = first_mask(client, profiler)
    return {"typed": of_typed, "chat": of_chat, "step": middle_step(of_typed), "schema": of_schema}, entries


def typed(backend: bough.LocalBackend, city: str) -> City:
    """Flow (a)."""

    @bough.function
    def program(s: bough.State) -> City:
        s += bough.user(f"Where is {city}, and how old is it?")
        s += bough.assistant(bough.gen("x", schema=City, max_tokens=24))
        return s["x"]

    return program.run(backend=backend)["x"]


async def chats(client: Any, profiler: Profiler) -> Trace:
    """Flow (b), after a request of the same form."""
    schema = json.loads(SCHEMA.format("name"))
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}
    transport = httpx.ASGITransport(create_app(client, ServerConfig()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:

        async def chat(city: str) -> None:
            messages = [{"role": "user", "content": f"Where is {city}, and how old is it?"}]
            body = {"messages": messages, "response_format": form, "max_tokens": 24, "stream": True}
            reply = await http.post("/v1/chat/completions", json={"model": client.info.name, **body})
            assert reply.status_code == 200 and reply.text.endswith("data: [DONE]\n\n"), reply.text

        for city in CITIES:
            with profiler.record() as trace:
                await chat(city)
            if is_tabled(trace):
                break
            await asyncio.sleep(WAIT_S)
    return trace


def is_tabled(trace: Trace) -> bool:
    """True if each mask came from a table that was there before the run, of states whose masks had been made."""
    steps_without = {
        "constrain/matchers/token_matcher.py",
        "constrain/vocabulary/token_table.py",
        "constrain/workers/service.py",
    }
    return "constrain/matchers/table/tables.py" in trace.files and not steps_without & trace.files.keys()


def first_mask(client: Any, profiler: Profiler) -> tuple[Trace, int]:
    """Flow (d), by a compiler that has compiled another schema; and the most entries of `submit` into one module."""
    vocabulary = client.tokenizer.vocabulary(client.info.vocab_size)
    compiler = GrammarCompiler(vocabulary)
    mask = np.zeros(-(-vocabulary.size // 32), np.int32)
    try:
        compiler.submit(JsonSchema(SCHEMA.format("other"))).result()
        with profiler.record() as trace:
            grammar = compiler.submit(JsonSchema(SCHEMA.format("fresh"))).result()
            num_compiling = len(trace.calls)
            grammar.matcher().fill_mask(mask)
    finally:
        compiler.close()
    compiling = [(before, _file(code)) for _, before, code in trace.calls[:num_compiling]]
    entries = Counter(file for before, file in compiling if before != file and file.startswith(STAGES))
    in_process = [call for call in trace.calls if not _file(call[2]).startswith(WORKERS)]
    return Trace(in_process), max(entries.values())


def middle_step(trace: Trace) -> Trace:
    """Flow (c): of the steps in `trace`, the one in the middle by its number of files, without the caller's thread."""
    caller = threading.get_ident()
    steps = [Trace([call for call in trace.calls[begin:end] if call[0] != caller]) for begin, end in trace.steps]
    return sorted(steps, key=lambda step: len(step.files))[len(steps) // 2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="list the files of each flow")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--at-most", type=_limits, default=AT_MOST, metavar="A,B,C,D,E", help="limits of the figures")
    options = parser.parse_args()
    traces, entries = measure()
    if options.json:
        report = {name: {**trace.figures(), "file_names": sorted(trace.files)} for name, trace in traces.items()}
        print(json.dumps({**report, "submit_entries": entries}, indent=2))
    else:
        for name, trace in traces.items():
            print(f"{name:8}" + "".join(f"{count:6} {what}" for what, count in trace.figures().items()))
            if options.files:
                print("".join(f"    {file}\n" for file in sorted(trace.files)), end="")
        print(f"submit  {entries:6} entries of one module")
    figures = [len(trace.files) for trace in traces.values()] + [entries]
    past = [
        f"{name}: {figure}, at most {limit}"
        for name, figure, limit in zip((*traces, "submit"), figures, options.at_most, strict=True)
        if figure > limit
    ]
    print("".join(f"past its limit: {line}\n" for line in past), end="", file=sys.stderr)
    return 1 if past else 0


def _limits(text: str) -> tuple[int, ...]:
    limits = tuple(map(int, text.split(",")))
    if len(limits) != len(AT_MOST):
        raise argparse.ArgumentTypeError(f"give {len(AT_MOST)} numbers")
    return limits


if __name__ == "__main__":
    sys.exit(main())
