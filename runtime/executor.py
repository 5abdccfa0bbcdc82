"""Executes programs beside the scheduler: walks their branches, submits requests, sends values back as they come."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from .branch import Barrier, Branch, Step, Stretch, keep_text
from .choices import probabilities, score_choices
from .engine import Engine
from .errors import BoughError, EngineStoppedError, RequestError
from .program import (
    Assign,
    Delta,
    Done,
    Failed,
    Fork,
    Gen,
    Join,
    Piece,
    Program,
    ProgramEvent,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    Value,
)
from .random import derive
from .request import UNUSED, ErrorInfo, Request, RequestOutput, Usage
from .sampling import SamplingParams

ProgramListener = Callable[[ProgramEvent], None]
MAX_OPS = 100_000
MAX_BRANCHES = 4096
STATE_LIFE_S = 600.0


@dataclass(eq=False)
class _Run(Stretch):
    """A stretch in flight, with who hears of it."""

    program: Program
    listener: ProgramListener
    started: float
    usage: Usage = field(default_factory=Usage)
    num_requests: int = 0
    over: bool = False


@dataclass(eq=False)
class _State:
    """A program's state between and during stretches."""

    id: str
    namespace: str
    born: float
    branches: dict[int, Branch] = field(default_factory=lambda: {0: Branch(0)})
    runs: list[_Run] = field(default_factory=list)
    used: float = 0.0
    num_requests: int = 0


class Executor:
    """Walks programs. Lives in the engine's thread; events go to each program's listener from within `run` or `step`."""

    def __init__(self, engine: Engine, clock: Callable[[], float], *, max_states: int) -> None:
        self._engine = engine
        self._clock = clock
        self._max_states = max_states
        self._states: OrderedDict[str, _State] = OrderedDict()
        self._closed = False
        self.num_programs = 0

    @property
    def num_states(self) -> int:
        return len(self._states)

    def run(self, program: Program, listener: ProgramListener) -> None:
        """Starts (or, with `resume`, continues) a program.

        Raises:
            RequestError: the program is not well-formed, or the state to continue is gone. Nothing was started.
        """
        if self._closed:
            raise EngineStoppedError("the engine has stopped")
        now = self._clock()
        state = self._find(program, now)
        run = _Run(num_left=len(program.ops), program=program, listener=listener, started=now)
        steps = _enqueue(state, run)  # raises before anything has changed
        self.num_programs += 1
        state.used = now
        state.runs.append(run)
        self._states[program.id] = state
        self._states.move_to_end(program.id)
        for branch, step in steps:
            branch.queue.append(step)
        self._walk(state)
        self._trim(now)

    def abort(self, program_id: str) -> None:
        """Stops a program and forgets its state; nothing more is sent. Unknown ids are ignored."""
        state = self._states.pop(program_id, None)
        if state is not None:
            for run in state.runs:
                run.over = True
            self._stop_requests(state)

    def close(self) -> None:
        """Fails whatever is running and forgets every state; no more is taken."""
        self._closed = True
        error = ErrorInfo(code="engine_dead", message="the engine has stopped")
        for state in list(self._states.values()):
            self._fail(state, None, 0, error)

    def _find(self, program: Program, now: float) -> _State:
        state = self._states.get(program.id)
        if program.resume:
            if state is None or state.namespace != program.namespace:
                raise RequestError(
                    "the program's state is gone (dropped after 10 minutes, or when too many were kept)",
                    code="state_not_found",
                    param="id",
                )
            return state
        if state is not None:
            raise RequestError(f"a program with id {program.id!r} exists already", param="id")
        return _State(program.id, program.namespace, now)

    def _trim(self, now: float) -> None:
        """Drops idle states that are old, and the least recently used of too many."""
        for state in list(self._states.values()):
            if state.runs:
                continue
            if now - state.used < STATE_LIFE_S and len(self._states) <= self._max_states:
                break
            del self._states[state.id]

    # Walking

    def _walk(self, state: _State) -> None:
        """Does all that can be done now, in all branches, until each waits for a request, a value or a join."""
        progress = True
        while progress:
            progress = False
            for branch in list(state.branches.values()):
                while state.runs and branch.ready and self._advance(state, branch):
                    progress = True
        if state.runs and not any(branch.running for branch in state.branches.values()):
            branch, step = next((b, b.queue[0]) for b in state.branches.values() if b.queue)
            assert isinstance(step, Step)
            message = "the instruction waits for a branch that waits for it, or that never begins"
            self._fail(state, step, branch.id, ErrorInfo(code="invalid_program", message=message, param="ops"))

    def _advance(self, state: _State, branch: Branch) -> bool:
        """Does a branch's next instruction; False if it has to wait."""
        step = branch.queue[0]
        if isinstance(step, Barrier):
            step.passed = True
            branch.queue.popleft()
            return True
        try:
            if not self._do(state, branch, step):
                return False
        except BoughError as error:
            info = ErrorInfo(code=error.code, message=error.message, param=error.param)
            self._fail(state, step, branch.id, info)
            return False
        if not branch.running:
            self._done(state, branch, step)
        return True

    def _do(self, state: _State, branch: Branch, step: Step) -> bool:
        """Executes one instruction, or begins to. False: nothing was done, it has to wait."""
        tokenizer = self._engine.tokenizer
        match step.op:
            case Text(parts=parts):
                text = branch.resolve(parts, state.branches)
                if text is None:
                    return False
                branch.append_text(text, tokenizer)
            case RoleBegin(role=role):
                branch.open_message(role, tokenizer)
            case RoleEnd():
                branch.close_message(tokenizer)
            case Assign(name=name, value=value):
                branch.values[name] = value
            case Fork(children=children):
                for child in children:
                    state.branches[child] = branch.fork(child, state.branches[child].queue)
            case Join(children=children, mode=mode):
                if not all(barrier.passed for barrier in step.barriers):
                    return False
                if mode == "append":
                    for child in children:
                        self._adopt(branch, state.branches[child])
            case Gen():
                self._begin_gen(state, branch, step, step.op)
            case Select():
                self._begin_select(state, branch, step, step.op)
        return True

    def _adopt(self, branch: Branch, child: Branch) -> None:
        for piece in child.appended:
            if piece.start >= child.forked_tokens:
                piece.start += len(branch.tokens) - child.forked_tokens
                branch.appended.append(piece)
        branch.tokens += child.tokens[child.forked_tokens :]
        branch.texts += child.texts[child.forked_texts :]
        for name, value in child.values.items():
            branch.values.setdefault(name, value)

    def _done(self, state: _State, branch: Branch, step: Step) -> None:
        """An instruction has ended: goes to the next, and ends the stretch if it was its last."""
        branch.queue.popleft()
        branch.num_ops += 1
        run = step.stretch
        assert isinstance(run, _Run)
        run.num_left -= 1
        if run.num_left == 0:
            self._finish(state, run)

    def _finish(self, state: _State, run: _Run) -> None:
        now = self._clock()
        run.over = True
        state.runs.remove(run)
        state.used = now
        if not run.program.keep and run.program.trace:
            for branch in state.branches.values():
                self._send_appended(state, run, branch, None)
        if not run.program.keep:
            self._states.pop(state.id, None)
        texts = {branch.id: "".join(branch.texts) for branch in state.branches.values()}
        run.listener(Done(usage=run.usage, requests=run.num_requests, texts=texts, elapsed_s=now - run.started))

    def _fail(self, state: _State, step: Step | None, branch_id: int, info: ErrorInfo) -> None:
        """The program has failed: all its branches stop, every stretch in flight hears why."""
        self._states.pop(state.id, None)
        runs, state.runs = state.runs, []
        self._stop_requests(state)
        for run in runs:
            run.over = True
            index = step.index if step is not None and run is step.stretch else 0
            run.listener(Failed(error=info, branch=branch_id, index=index))

    def _stop_requests(self, state: _State) -> None:
        for branch in state.branches.values():
            running, branch.running = branch.running, set()
            for request_id in running:
                self._engine.abort(request_id)

    # Requests

    def _submit(
        self,
        state: _State,
        branch: Branch,
        step: Step,
        prompt: list[int],
        sampling: SamplingParams,
        on_output: Callable[[RequestOutput], None],
        **fields: object,
    ) -> None:
        run = step.stretch
        assert isinstance(run, _Run)
        if not prompt:
            raise RequestError("the branch is empty: there is no text to continue", code="empty_prompt", param="ops")
        request_id = f"{state.id}/{state.num_requests}"
        state.num_requests += 1
        run.num_requests += 1

        def listener(output: RequestOutput) -> None:
            if run.over or request_id not in branch.running:
                return
            if output.cached_tokens is not None:
                self._send_appended(state, run, branch, output.cached_tokens)
            if output.finish is not None:
                branch.running.discard(request_id)
                run.usage += output.finish.usage
                if output.finish.error is not None:
                    self._fail(state, step, branch.id, output.finish.error)
                    return
            on_output(output)
            if not branch.running and not run.over:
                self._done(state, branch, step)
                self._walk(state)

        request = Request(
            id=request_id,
            prompt=tuple(prompt),
            sampling=sampling,
            namespace=state.namespace,
            **fields,  # type: ignore[arg-type]
        )
        self._engine.submit(request, listener)
        branch.running.add(request_id)

    def _timeout(self, run: _Run, op_timeout_s: float | None) -> float | None:
        left = None if run.program.timeout_s is None else run.program.timeout_s - (self._clock() - run.started)
        if left is not None and left <= 0:
            raise RequestError(f"the program was not done within {run.program.timeout_s:g} s", code="generation_timeout")
        return min((t for t in (left, op_timeout_s) if t is not None), default=None)

    def _begin_gen(self, state: _State, branch: Branch, step: Step, op: Gen) -> None:
        run = step.stretch
        assert isinstance(run, _Run)
        samples: list[_Sample] = [_Sample() for _ in range(op.sampling.n)]
        started = self._clock()

        def on_output(index: int, output: RequestOutput) -> None:
            sample = samples[index]
            sample.take(output)
            if index == 0 and output.text:
                run.listener(Delta(branch.id, op.name, output.text))
            if all(sample.output is not None for sample in samples):
                self._end_gen(run, branch, op, samples, started)

        timeout_s = self._timeout(run, op.timeout_s)
        for index in range(len(samples)):
            seed = op.sampling.seed
            sampling = msgspec.structs.replace(op.sampling, n=1, seed=None if seed is None else derive(seed, index))
            self._submit(
                state,
                branch,
                step,
                branch.tokens,
                sampling,
                lambda output, index=index: on_output(index, output),  # type: ignore[misc]
                grammar=op.grammar,
                timeout_s=timeout_s,
            )

    def _end_gen(self, run: _Run, branch: Branch, op: Gen, samples: list[_Sample], started: float) -> None:
        first = samples[0]
        assert first.output is not None and first.output.finish is not None
        finish, text = first.output.finish, "".join(first.texts)
        tokenizer = self._engine.tokenizer
        kept = keep_text(first.tokens, text, tokenizer)
        branch.tokens += kept
        branch.texts.append(text)
        branch.values[op.name] = text
        run.listener(
            Value(
                branch=branch.id,
                name=op.name,
                text=text,
                finish_reason=finish.reason,
                matched=finish.matched,
                usage=finish.usage,
                timings=finish.timings,
                logprobs=tuple(first.logprobs) if op.sampling.logprobs is not None else None,
                samples=tuple("".join(sample.texts) for sample in samples) if len(samples) > 1 else None,
            )
        )
        if run.program.trace:
            origins = tuple(first.origins[: len(kept)])
            run.listener(
                Piece(
                    branch=branch.id,
                    op=branch.num_ops,
                    kind="gen",
                    name=op.name,
                    texts=tuple(tokenizer.texts(kept)),
                    origins=origins + (0,) * (len(kept) - len(origins)),
                    start_s=started - run.started,
                    stop_s=self._clock() - run.started,
                    queue_s=finish.timings.queue_s,
                    prefill_s=finish.timings.prefill_s,
                )
            )

    def _begin_select(self, state: _State, branch: Branch, step: Step, op: Select) -> None:
        run = step.stretch
        assert isinstance(run, _Run)
        if not op.choices or not all(op.choices):
            raise RequestError("a select needs choices, and none of them may be empty", param="choices")
        tokenizer, started = self._engine.tokenizer, self._clock()
        choices = [tokenizer.encode(choice) for choice in op.choices]
        conditional: list[list[float]] = [[] for _ in choices]
        unconditional: list[list[float]] | None = None
        sampling = SamplingParams(max_tokens=0, temperature=0.0)
        timeout_s = self._timeout(run, None)
        usages: list[Usage] = []

        def keep(values: list[float], output: RequestOutput) -> None:
            values += [entry.logprob for entry in output.logprobs or ()]
            if output.finish is not None:
                usages.append(output.finish.usage)
            if not branch.running:
                self._end_select(run, branch, op, choices, conditional, unconditional, sum(usages, Usage()), started)

        for tokens, values in zip(choices, conditional, strict=True):
            self._submit(
                state,
                branch,
                step,
                branch.tokens + tokens,
                sampling,
                lambda output, values=values: keep(values, output),  # type: ignore[misc]
                score_from=len(branch.tokens),
                timeout_s=timeout_s,
            )
        if op.method == "unconditional_likelihood_normalized":
            unconditional = [[0.0] for _ in choices]  # a first token has nothing before it to be conditioned on
            for tokens, values in zip(choices, unconditional, strict=True):
                if len(tokens) > 1:
                    self._submit(
                        state,
                        branch,
                        step,
                        tokens,
                        sampling,
                        lambda output, values=values: keep(values, output),  # type: ignore[misc]
                        score_from=1,
                        timeout_s=timeout_s,
                    )

    def _end_select(
        self,
        run: _Run,
        branch: Branch,
        op: Select,
        choices: list[list[int]],
        conditional: list[list[float]],
        unconditional: list[list[float]] | None,
        usage: Usage,
        started: float,
    ) -> None:
        scores = score_choices(op.method, conditional, unconditional)
        best = max(range(len(scores)), key=scores.__getitem__)
        text = op.choices[best]
        branch.tokens += choices[best]
        branch.texts.append(text)
        branch.values[op.name] = text
        run.listener(
            Value(
                branch=branch.id,
                name=op.name,
                text=text,
                usage=usage,
                probabilities=probabilities(scores),
                scores=tuple(scores),
            )
        )
        if run.program.trace:
            run.listener(
                Piece(
                    branch=branch.id,
                    op=branch.num_ops,
                    kind="select",
                    name=op.name,
                    texts=tuple(self._engine.tokenizer.texts(choices[best])),
                    origins=(2,) * len(choices[best]),
                    start_s=started - run.started,
                    stop_s=self._clock() - run.started,
                )
            )

    def _send_appended(self, state: _State, run: _Run, branch: Branch, num_cached: int | None) -> None:
        """Tells where appended text came from; None: it was never computed."""
        for piece in branch.appended:
            if piece.origins is not None:
                continue
            if num_cached is None:
                piece.origins = (UNUSED,) * len(piece.tokens)
            else:
                piece.resolve(num_cached)
            assert piece.origins is not None
            if run.program.trace:
                run.listener(
                    Piece(
                        branch=piece.branch,
                        op=piece.op,
                        kind=piece.kind,
                        role=piece.role,
                        texts=tuple(self._engine.tokenizer.texts(piece.tokens)),
                        origins=piece.origins,
                    )
                )
        branch.appended = []


class _Sample:
    """What has come of one of a gen's samples."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens: list[int] = []
        self.origins: list[int] = []
        self.logprobs: list[object] = []
        self.output: RequestOutput | None = None

    def take(self, output: RequestOutput) -> None:
        self.texts.append(output.text)
        self.tokens += output.tokens
        self.origins += output.origins
        self.logprobs += output.logprobs or ()
        if output.finish is not None:
            self.output = output


def _enqueue(state: _State, run: _Run) -> list[tuple[Branch, Step | Barrier]]:
    """Which step goes to which branch's queue, in order.

    Raises:
        RequestError: an instruction of a branch that does not exist, or a bound is passed.
    """
    ops = run.program.ops
    if not 1 <= len(ops) <= MAX_OPS:
        raise RequestError(f"a program must have 1 to {MAX_OPS} instructions, got {len(ops)}", param="ops")
    known = dict(state.branches)
    steps: list[tuple[Branch, Step | Barrier]] = []
    for index, op in enumerate(ops):
        if op.branch not in known:
            raise RequestError(f"instruction {index} is for branch {op.branch}, which does not exist", param="ops")
        barriers: tuple[Barrier, ...] = ()
        if isinstance(op, Fork):
            for child in op.children:
                if child in known:
                    raise RequestError(f"instruction {index} forks branch {child}, which exists", param="ops")
                known[child] = Branch(child, started=False)
        elif isinstance(op, Join):
            for child in op.children:
                if child not in known or child == op.branch:
                    raise RequestError(f"instruction {index} joins branch {child}, which is not a child", param="ops")
            barriers = tuple(Barrier() for _ in op.children)
            steps += [(known[child], barrier) for child, barrier in zip(op.children, barriers, strict=True)]
        steps.append((known[op.branch], Step(run, index, op, barriers)))
    if len(known) > MAX_BRANCHES:
        raise RequestError(f"a program may have {MAX_BRANCHES} branches at most", param="ops")
    state.branches = known
    return steps

