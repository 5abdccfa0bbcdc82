"""A backend with scripted answers, for the unit tests of programs: no model, no server."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...runtime.errors import BoughError, RequestError
from ...runtime.program import (
    Assign,
    Delta,
    Done,
    Failed,
    Fork,
    Gen,
    Join,
    Op,
    Piece,
    Program,
    ProgramEvent,
    Ref,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    Value,
)
from ...runtime.request import PREFILLED, SAMPLED, ErrorInfo, Usage
from ..backend import TEXT_ONLY
from .samples import conforms, make_text

Answer = str | Sequence[str] | Callable[[str, str], str]


@dataclass(eq=False)
class _Branch:
    id: int
    texts: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    role: str | None = None
    num_ops: int = 0
    forked_texts: int = 0


@dataclass(eq=False)
class _State:
    branches: dict[int, _Branch] = field(default_factory=lambda: {0: _Branch(0)})


class MockBackend:
    """Executes programs as an engine does, but takes each generated text from `answers`.

    answers    by variable name: a text; a list of texts, used up in order; or a function of (the text before it, name).
               A function in place of the dict answers all. What has no answer gets one made up that its constraint
               allows: "(name)" if there is none, the first choice of a select
    requests   the programs that were run, one for each request that a real backend would have got
    dropped    the ids that were dropped

    A name that is generated again in the same branch is sent as "name#2"; its answers are those of "name".

    >>> backend = MockBackend({"city": ["Paris", "Tokyo"]})
    >>> capital.run("France", backend=backend)["city"]
    'Paris'
    >>> len(backend.requests)
    1
    """

    modalities = TEXT_ONLY

    def __init__(self, answers: Mapping[str, Answer] | Callable[[str, str], str] | None = None) -> None:
        self._answers: Mapping[str, Answer] | Callable[[str, str], str] = answers if answers is not None else {}
        self._lists = {
            name: deque(answer)
            for name, answer in (self._answers.items() if isinstance(self._answers, Mapping) else ())
            if not isinstance(answer, str) and not callable(answer)
        }
        self._states: dict[str, _State] = {}
        self._lock = threading.Lock()
        self.requests: list[Program] = []
        self.dropped: list[str] = []

    def run(self, program: Program) -> Iterator[ProgramEvent]:
        with self._lock:  # one at a time, so that lists of answers are used up in a known order
            self.requests.append(program)
            events = self._execute(program)
        yield from events

    async def arun(self, program: Program) -> AsyncIterator[ProgramEvent]:
        for event in self.run(program):
            yield event
            await asyncio.sleep(0)  # as others would, so that tasks take turns

    def drop(self, program_id: str) -> None:
        self.dropped.append(program_id)
        self._states.pop(program_id, None)

    def flush_cache(self) -> bool:
        return True

    def close(self) -> None:
        self._states.clear()

    def _execute(self, program: Program) -> list[ProgramEvent]:
        if program.resume != (program.id in self._states):
            reason = "is gone" if program.resume else "exists already"
            raise RequestError(f"the state of program {program.id} {reason}", code="state_not_found", param="id")
        state = self._states.pop(program.id) if program.resume else _State()
        run = _Execution(program, state, self._answer)
        events = run.execute()
        if program.keep and isinstance(events[-1], Done):
            self._states[program.id] = run.state
        return events

    def _answer(self, prompt: str, op: Gen | Select, fallback: Callable[[], str]) -> str:
        if not isinstance(self._answers, Mapping):
            return self._answers(prompt, op.name)
        name = op.name if op.name in self._answers else op.name.partition("#")[0]
        answer = self._answers.get(name)
        if answer is None:
            return fallback()
        if isinstance(answer, str):
            return answer
        if name not in self._lists:
            assert callable(answer)
            return str(answer(prompt, op.name))
        if not self._lists[name]:
            raise RequestError(f"the answers to {name!r} are used up", param="answers")
        return self._lists[name].popleft()


class _Execution:
    """Walks one program. Branches take turns, each as far as it gets."""

    def __init__(
        self, program: Program, state: _State, answer: Callable[[str, Gen | Select, Callable[[], str]], str]
    ) -> None:
        self.program = program
        self.state = state
        self._answer = answer
        self._events: list[ProgramEvent] = []
        self._usage = Usage()
        self._num_requests = 0

    def execute(self) -> list[ProgramEvent]:
        """All events, the terminal one included."""
        branches = self.state.branches
        queues: dict[int, deque[tuple[int, Op]]] = {}
        for index, op in enumerate(self.program.ops):
            queues.setdefault(op.branch, deque()).append((index, op))
        index = 0
        try:
            progress = True
            while progress:
                progress = False
                for branch_id in list(queues):
                    while branch_id in branches and queues[branch_id]:
                        index, op = queues[branch_id][0]
                        if not self._do(branches[branch_id], op, queues):
                            break
                        queues[branch_id].popleft()
                        branches[branch_id].num_ops += 1
                        progress = True
            stuck = next((queue[0] for queue in queues.values() if queue), None)
            if stuck is not None:
                index = stuck[0]
                raise RequestError("the instruction waits for a branch that waits for it, or that never begins")
        except BoughError as error:
            info = ErrorInfo(code=error.code, message=error.message, param=error.param)
            failed = Failed(error=info, branch=self.program.ops[index].branch, index=index)
            return [*self._events, failed]
        texts = {branch.id: "".join(branch.texts) for branch in branches.values()}
        return [*self._events, Done(usage=self._usage, requests=self._num_requests, texts=texts)]

    def _do(self, branch: _Branch, op: Op, queues: Mapping[int, deque[tuple[int, Op]]]) -> bool:
        """Executes an instruction; False if it has to wait."""
        match op:
            case Text(parts=parts):
                texts = [part if isinstance(part, str) else self._value_of(part, branch, queues) for part in parts]
                if None in texts:
                    return False
                self._append(branch, "text", "".join(text for text in texts if text is not None))
            case RoleBegin(role=role):
                if branch.role is not None:
                    raise RequestError(
                        f"a {role} message cannot be opened inside a {branch.role} message", param="role"
                    )
                branch.role = role
                self._append(branch, "role", f"<|{role}|>\n")
            case RoleEnd():
                if branch.role is None:
                    raise RequestError("there is no open message to close", param="role")
                self._append(branch, "role", "<|end|>\n")
                branch.role = None
            case Assign(name=name, value=value):
                branch.values[name] = value
            case Fork(children=children):
                for child in children:
                    self.state.branches[child] = _Branch(
                        child, list(branch.texts), dict(branch.values), branch.role, forked_texts=len(branch.texts)
                    )
            case Join(children=children, mode=mode):
                return self._join(branch, children, mode, queues)
            case Gen():
                self._generate(branch, op)
            case Select():
                self._select(branch, op)
        return True

    def _value_of(self, ref: Ref, branch: _Branch, queues: Mapping[int, deque[tuple[int, Op]]]) -> str | None:
        source = self.state.branches.get(ref.branch)
        if source is not None and ref.name in source.values:
            return source.values[ref.name]
        if source is branch or not queues.get(ref.branch):
            raise RequestError(f"there is no value named {ref.name!r} in branch {ref.branch}", param="ops")
        return None

    def _join(
        self, branch: _Branch, children: Sequence[int], mode: str, queues: Mapping[int, deque[tuple[int, Op]]]
    ) -> bool:
        if any(child not in self.state.branches or queues.get(child) for child in children):
            return False
        if mode == "append":
            for child in (self.state.branches[number] for number in children):
                branch.texts += child.texts[child.forked_texts :]
        return True

    def _generate(self, branch: _Branch, op: Gen) -> None:
        samples = [self._text_for(branch, op) for _ in range(op.sampling.n)]
        text, matched = samples[0]
        usage = self._count(branch, text)
        self._events += [Delta(branch.id, op.name, chunk) for chunk in _chunks(text)]
        self._events.append(
            Value(
                branch=branch.id,
                name=op.name,
                text=text,
                matched=matched,
                usage=usage,
                samples=tuple(text for text, _ in samples) if op.sampling.n > 1 else None,
            )
        )
        branch.values[op.name] = text
        self._append(branch, "gen", text, op.name)

    def _text_for(self, branch: _Branch, op: Gen) -> tuple[str, str | None]:
        """An answer, cut at the first stop string, and that string."""
        text = self._answer("".join(branch.texts), op, lambda: make_text(op.grammar, op.name))
        if not conforms(text, op.grammar):
            raise RequestError(f"the answer {text!r} to {op.name!r} is not what its constraint allows", param="answers")
        found = [(text.index(stop), stop) for stop in op.sampling.stop_strings if stop in text]
        if not found:
            return text, None
        start, stop = min(found)
        return text[: start + len(stop) if op.sampling.include_stop else start], stop

    def _select(self, branch: _Branch, op: Select) -> None:
        text = self._answer("".join(branch.texts), op, lambda: op.choices[0])
        if text not in op.choices:
            raise RequestError(f"the answer {text!r} to {op.name!r} is not among its choices", param="answers")
        weights = [3.0 if choice == text else 1.0 for choice in op.choices]
        self._events.append(
            Value(
                branch=branch.id,
                name=op.name,
                text=text,
                usage=self._count(branch, text),
                probabilities=tuple(weight / sum(weights) for weight in weights),
                scores=tuple(weights),
            )
        )
        branch.values[op.name] = text
        self._append(branch, "select", text, op.name)

    def _count(self, branch: _Branch, text: str) -> Usage:
        usage = Usage(prompt_tokens=len(_chunks("".join(branch.texts))), completion_tokens=len(_chunks(text)))
        self._usage += usage
        self._num_requests += 1
        return usage

    def _append(self, branch: _Branch, kind: str, text: str, name: str = "") -> None:
        branch.texts.append(text)
        if self.program.trace and text:
            chunks = tuple(_chunks(text))
            origin = PREFILLED if kind in ("text", "role") else SAMPLED
            self._events.append(
                Piece(
                    branch=branch.id,
                    op=branch.num_ops,
                    kind=kind,  # type: ignore[arg-type]
                    name=name,
                    role=(branch.role or "") if kind == "role" else "",
                    texts=chunks,
                    origins=(origin,) * len(chunks),
                )
            )


def _chunks(text: str) -> list[str]:
    """Words with the space before them: what stands for tokens here."""
    return re.findall(r"\s*\S+|\s+$", text)
