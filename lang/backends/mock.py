"""A backend with scripted answers, for the unit tests of programs: no model, no server."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...runtime.errors import BoughError, RequestError
from ...runtime.program import Gen, Program, ProgramEvent, Select, Use, Value, walk
from ...runtime.request import Usage
from ...runtime.tools import ToolCall
from ..backend import TEXT_ONLY
from .branches import Answer, Call
from .kept import Interpreter
from .samples import conforms, make_text
from .tool_runs import NO_TOOLS, ToolRuns
from .transcript import words

Scripted = str | Sequence[str] | Callable[[str, str], str]


class MockBackend:
    """Executes programs as an engine does, but takes each generated text from `answers`.

    answers    by variable name: a text; a list of texts, used up in order; or a function of (the text before it, name).
               A function in place of the dict answers all generations. What has no answer gets one made up that its
               constraint allows: "(name)" if there is none, the first choice of a select. A tool without an answer is
               called
    requests   the programs that were run, one for each request that a real backend would have got
    dropped    the ids that were dropped

    A name that is generated again in the same branch is sent as "name#2"; its answers are those of "name". Branches
    take turns, each as far as it gets, so that lists of answers are always used up in the same order.

    >>> backend = MockBackend({"city": ["Paris", "Tokyo"]})
    >>> capital.run("France", backend=backend)["city"]
    'Paris'
    >>> len(backend.requests)
    1
    """

    modalities = TEXT_ONLY

    def __init__(self, answers: Mapping[str, Scripted] | Callable[[str, str], str] | None = None) -> None:
        self._script = _Script(answers if answers is not None else {})
        self._programs = Interpreter(self._script, clock=lambda: 0.0)
        self._lock = threading.Lock()
        self.requests: list[Program] = []
        self.dropped: list[str] = []

    @property
    def answers(self) -> Mapping[str, Scripted] | Callable[[str, str], str]:
        """What is answered; can be set anew."""
        return self._script.answers

    @answers.setter
    def answers(self, answers: Mapping[str, Scripted] | Callable[[str, str], str]) -> None:
        with self._lock:
            self._script.learn(answers)

    def run(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> Iterator[ProgramEvent]:
        yield from self._events(program, tools)

    async def arun(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> AsyncIterator[ProgramEvent]:
        if any(isinstance(op, Use) for op in walk(program.ops)):  # a tool may take its time
            events = await asyncio.to_thread(self._events, program, tools)
        else:
            events = self._events(program, tools)
        for event in events:
            yield event
            await asyncio.sleep(0)  # as others would, so that tasks take turns

    def drop(self, program_id: str) -> None:
        self.dropped.append(program_id)
        with self._lock:
            self._programs.drop(program_id)

    def flush_cache(self) -> bool:
        return True

    def close(self) -> None:
        with self._lock:
            self._programs.close()
            self._script.tools.close()

    def _events(self, program: Program, tools: Mapping[str, ToolCall]) -> list[ProgramEvent]:
        events: list[ProgramEvent] = []
        with self._lock:  # one at a time, so that lists of answers are used up in a known order
            self.requests.append(program)
            self._programs.run(program, {**self._script.stand_ins(program), **tools}, events.append)
        return events


class _StandIn(NamedTuple):
    """A tool that is never called."""

    name: str
    timeout_s: float | None = None
    max_chars: int = 1
    parameters: Mapping[str, Any] | None = None

    def call(self, arguments: dict[str, Any]) -> str:
        raise AssertionError(f"the tool {self.name!r} was to be answered")


class _Script:
    """Answers each call at once."""

    def __init__(self, answers: Mapping[str, Scripted] | Callable[[str, str], str]) -> None:
        self.tools = ToolRuns()
        self.learn(answers)

    def learn(self, answers: Mapping[str, Scripted] | Callable[[str, str], str]) -> None:
        """These are the answers from now on."""
        self.answers = answers
        self.names = frozenset(answers) if isinstance(answers, Mapping) else frozenset[str]()
        self._lists = {
            name: deque(answer)
            for name, answer in (answers.items() if isinstance(answers, Mapping) else ())
            if not isinstance(answer, str) and not callable(answer)
        }

    def stand_ins(self, program: Program) -> dict[str, ToolCall]:
        """For tools that need not be there, since what they would give is answered."""
        uses = [op for op in walk(program.ops) if isinstance(op, Use) and self._is_answered(op.name)]
        return {op.tool: _StandIn(op.tool) for op in uses}

    def _is_answered(self, name: str) -> bool:
        return not {name, name.partition("#")[0]}.isdisjoint(self.names)

    def begin(self, call: Call) -> None:
        try:
            call.finish(self._reply(call))
        except BoughError as error:
            call.finish(error)

    def _reply(self, call: Call) -> Answer:
        match call.op:
            case Gen():
                return Answer(self._generate(call, call.op))
            case Select():
                return Answer(self._select(call, call.op))
            case Use(branch=branch, name=name) if self._is_answered(name):
                return Answer(Value(branch=branch, name=name, text=self._answer(call, str)), num_requests=0)
        return self.tools.run(call)

    def cancel(self, call: Call) -> None:
        """Nothing is ever under way."""

    def _generate(self, call: Call, op: Gen) -> Value:
        samples = [self._text_for(call, op) for _ in range(op.sampling.n)]
        text, matched = samples[0]
        for chunk in words(text):
            call.emit(chunk)
        return Value(
            branch=op.branch,
            name=op.name,
            text=text,
            matched=matched,
            usage=_usage(call, text),
            samples=tuple(text for text, _ in samples) if op.sampling.n > 1 else None,
        )

    def _text_for(self, call: Call, op: Gen) -> tuple[str, str | None]:
        """An answer, cut at the first stop string, and that string."""
        text = self._answer(call, lambda: make_text(op.grammar, op.name))
        if not conforms(text, op.grammar):
            raise RequestError(f"the answer {text!r} to {op.name!r} is not what its constraint allows", param="answers")
        found = [(text.index(stop), stop) for stop in op.sampling.stop_strings if stop in text]
        if not found:
            return text, None
        start, stop = min(found)
        return text[: start + len(stop) if op.sampling.include_stop else start], stop

    def _select(self, call: Call, op: Select) -> Value:
        text = self._answer(call, lambda: op.choices[0])
        if text not in op.choices:
            raise RequestError(f"the answer {text!r} to {op.name!r} is not among its choices", param="answers")
        weights = [3.0 if choice == text else 1.0 for choice in op.choices]
        return Value(
            branch=op.branch,
            name=op.name,
            text=text,
            usage=_usage(call, text),
            probabilities=tuple(weight / sum(weights) for weight in weights),
            scores=tuple(weights),
        )

    def _answer(self, call: Call, fallback: Callable[[], str]) -> str:
        name = call.op.name
        if not isinstance(self.answers, Mapping):
            return self.answers(call.prompt.text, name)
        name = name if name in self.answers else name.partition("#")[0]
        answer = self.answers.get(name)
        if answer is None:
            return fallback()
        if isinstance(answer, str):
            return answer
        if name not in self._lists:
            assert callable(answer)
            return str(answer(call.prompt.text, call.op.name))
        if not self._lists[name]:
            raise RequestError(f"the answers to {name!r} are used up", param="answers")
        return self._lists[name].popleft()


def _usage(call: Call, text: str) -> Usage:
    return Usage(prompt_tokens=len(words(call.prompt.text)), completion_tokens=len(words(text)))
