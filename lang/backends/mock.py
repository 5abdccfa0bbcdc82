"""A backend with scripted answers, for the unit tests of programs: no model, no server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from ...constrain.errors import GrammarError
from ...runtime.client.streams import aiterate, iterate
from ...runtime.programs.executor import Executor
from ...runtime.protocol.errors import BoughError, RequestError
from ...runtime.protocol.program import Program, ProgramEvent, Use
from ...runtime.tools.registry import Ticket, ToolCall
from ..backend import TEXT_ONLY
from ..diagnostics.errors import BackendError
from .cassette_file import still
from .messages.machine import MAX_STATES, Call, MessageMachine
from .messages.surplus import Answer
from .messages.tools import NO_TOOLS, ToolRuns, late, limit_of
from .scripted import Answers, Script


class MockBackend:
    """Executes programs as an engine does, but takes each generated text from `answers`.

    answers    by variable name: an answer; a list of answers, used up in order; or a function of (the text before it,
               name). A function in place of the dict answers all generations. What has no answer, or None, gets one
               made up that its constraint allows: "(name)" if there is none, the first choice of a select. A tool
               without an answer is called
    requests   the programs that were run, one for each request that a real backend would have got
    dropped    the ids that were dropped

    An answer is a text, or the value itself (a number, an Enum's member, an object, a dict): it is written so that the
    type that is asked for reads it back. An answer that is a list stands in a list.

    A name that is generated again in the same branch is sent as "name#2"; its answers are those of "name". Branches
    take turns, each as far as it gets, so that lists of answers are always used up in the same order: branches that
    wait for tools then go on in the order in which those were called.

    >>> backend = MockBackend({"city": ["Paris", "Tokyo"]})
    >>> capital.run("France", backend=backend)["city"]
    'Paris'
    >>> len(backend.requests)
    1
    """

    modalities = TEXT_ONLY

    def __init__(self, answers: Answers | None = None) -> None:
        self._runs = _Runs(Script(answers if answers is not None else {}))
        self._end = weakref.finalize(self, self._runs.close)  # of those that nobody closes
        self.requests: list[Program] = []
        self.dropped: list[str] = []

    @property
    def answers(self) -> Answers:
        """Answers by variable, or the function that makes them; can be set anew."""
        return self._runs.script.answers

    @answers.setter
    def answers(self, answers: Answers) -> None:
        with self._runs.lock:
            self._runs.script.learn(answers)

    def run(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> Iterator[ProgramEvent]:
        self.requests.append(program)
        yield from iterate(partial(self._runs.start, program, tools), partial(self._runs.drop, program.id))

    async def arun(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> AsyncIterator[ProgramEvent]:
        self.requests.append(program)
        events = aiterate(partial(self._runs.start, program, tools), partial(self._runs.drop, program.id))
        try:
            async for event in events:
                yield event
                await asyncio.sleep(0)  # as others would, so that tasks take turns
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator

    def drop(self, program_id: str) -> None:
        self.dropped.append(program_id)
        self._runs.drop(program_id)

    def flush_cache(self) -> bool:
        return True

    def close(self) -> None:
        self._end()


@dataclass(eq=False, slots=True)
class _Flight:
    """A tool that runs, and what has come of it while those before it are waited for."""

    ticket: Ticket | None = None
    timer: threading.Timer | None = None
    result: Answer | BoughError | None = None

    def stop(self, tools: ToolRuns) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.ticket is not None:
            tools.abandon(self.ticket)


class _Runs:
    """The programs. Generations are answered at once; tools run beside them, and bring their programs on when they
    return. `lock` guards all: one thread at a time does what can be done."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.lock = threading.RLock()  # an answer may be a function that runs a program
        self._programs = Executor(MessageMachine(self), time.monotonic, max_states=MAX_STATES)
        self._tools = ToolRuns()
        self._flights: dict[Call, _Flight] = {}

    def start(self, program: Program, tools: Mapping[str, ToolCall], put: Callable[[ProgramEvent], None]) -> None:
        with self.lock:
            known = {**self.script.stand_ins(program), **tools}
            self._programs.run(program, lambda event: put(still(event)), known)

    def drop(self, program_id: str) -> None:
        with self.lock:
            self._programs.abort(program_id)

    def close(self) -> None:
        with self.lock:
            self._programs.abort_all()
        with contextlib.suppress(RuntimeError):  # a collected backend may be closed on a tool's own thread
            self._tools.close()

    # For the machine

    def begin(self, call: Call) -> None:
        try:
            if isinstance(call.op, Use) and not self.script.has(call.op.name):
                self._begin_tool(call)
                return
            result: Answer | BoughError = self.script.reply(call)
        except BoughError as error:
            result = error
        except GrammarError as error:
            result = RequestError(str(error), code=error.code)
        except Exception as error:  # noqa: BLE001  of a function that answers, on whatever thread
            name = call.op.name
            result = BackendError(f"there is no answer to {name!r}: {error!r}", code="answer_failed", param="answers")
            result.__cause__ = error
        call.finish(result)

    def cancel(self, call: Call) -> None:
        flight = self._flights.pop(call, None)
        if flight is not None:
            flight.stop(self._tools)

    def _begin_tool(self, call: Call) -> None:
        flight = _Flight(self._tools.start(call, partial(self._returned, call)))
        limit_s = limit_of(call)
        flight.timer = threading.Timer(min(limit_s, threading.TIMEOUT_MAX), self._returned, (call, late(call, limit_s)))
        flight.timer.name, flight.timer.daemon = "bough-mock-limit", True
        flight.timer.start()
        self._flights[call] = flight

    def _returned(self, call: Call, result: Answer | BoughError) -> None:
        """A tool has come to its end, or to its limit."""
        with self.lock:
            flight = self._flights.get(call)
            if flight is None or flight.result is not None:
                return
            flight.result = result
            flight.stop(self._tools)
            while (ended := self._next_ended(call.run.program.id)) is not None:
                found = self._flights.pop(ended).result
                assert found is not None
                ended.finish(found)

    def _next_ended(self, program_id: str) -> Call | None:
        """The tool of a program to go on with: where the order matters, the one that was called first."""
        line = [call for call in self._flights if call.run.program.id == program_id]
        ended = [call for call in line if self._flights[call].result is not None]
        if self.script.in_order and line[:1] != ended[:1]:
            return None
        return ended[0] if ended else None
