"""Executes programs beside the scheduler: walks their branches, submits requests, sends values back as they come."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from .branch import Barrier, Branch, Step, Stretch
from .calls import Call, GenCall, Result, SelectCall
from .engine import Engine
from .errors import BoughError, EngineError, EngineStoppedError, RequestError
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
)
from .request import UNUSED, ErrorInfo, Request, RequestOutput, Usage
from .streams import to_info

logger = logging.getLogger("bough.engine")

ProgramListener = Callable[[ProgramEvent], None]
MAX_OPS = 100_000
MAX_BRANCHES = 4096
MAX_STATE_TOKENS = 1 << 22
"""What a program may put into all branches of its state: tokens of text, characters of values, copies by forks."""

MAX_KEPT_TOKENS = 1 << 25
"""The same over all states that wait for another stretch; the least recently used are dropped."""

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
    """A program's state between and during stretches. `kept`: it outlives the stretches that are in flight."""

    id: str
    namespace: str
    born: float
    branches: dict[int, Branch] = field(default_factory=lambda: {0: Branch(0)})
    runs: list[_Run] = field(default_factory=list)
    used: float = 0.0
    kept: bool = True
    num_requests: int = 0
    num_tokens: int = 0

    def add_tokens(self, count: int) -> None:
        """Counts tokens that a program has put in; an instruction of a few bytes can ask for very many.

        Raises:
            RequestError: there are too many.
        """
        self.num_tokens += count
        if self.num_tokens > MAX_STATE_TOKENS:
            raise RequestError(f"a program's branches may have {MAX_STATE_TOKENS} tokens in all", param="ops")


class Executor:
    """Walks programs. Lives in the engine's thread; a program's listener is called from within `run` or `step`."""

    def __init__(self, engine: Engine, clock: Callable[[], float], *, max_states: int) -> None:
        self._engine = engine
        self._clock = clock
        self._max_states = max_states
        # A text that is longer fits into no context. Some tokenizers write a few characters as one, hence the 4.
        longest = max((len(text) for text in engine.tokenizer.token_bytes if text is not None), default=1)
        self._max_text = 4 * longest * engine.info.max_request_tokens
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
        """Stops a program and forgets its state; its stretches in flight fail. Unknown ids are ignored."""
        state = self._states.get(program_id)
        if state is not None:
            self._fail(state, None, 0, ErrorInfo(code="aborted", message="the program was dropped"))

    def close(self) -> None:
        """Fails whatever is running and forgets every state; no more is taken."""
        self._closed = True
        error = ErrorInfo(code="engine_dead", message="the engine has stopped")
        for state in list(self._states.values()):
            self._fail(state, None, 0, error)

    def _find(self, program: Program, now: float) -> _State:
        state = self._states.get(program.id)
        if program.resume:
            if state is None or state.namespace != program.namespace or not state.kept:
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
        idle = [state for state in self._states.values() if not state.runs]
        num_tokens = sum(state.num_tokens for state in idle)
        for index, state in enumerate(idle):
            fits = len(idle) - index <= self._max_states and num_tokens <= MAX_KEPT_TOKENS
            if now - state.used < STATE_LIFE_S and fits:
                break
            num_tokens -= state.num_tokens
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
            step.reach(branch)
            branch.queue.popleft()
            return True
        num_tokens = len(branch.tokens)
        try:
            if not self._do(state, branch, step):
                return False
            state.add_tokens(len(branch.tokens) - num_tokens)
            self._check_length(branch)
        except BoughError as error:
            self._fail(state, step, branch.id, to_info(error))
            return False
        except Exception:
            logger.exception("an instruction of a program failed")
            info = ErrorInfo(code="internal_error", message="the instruction failed")
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
                text = branch.resolve(parts, state.branches, max_length=self._max_text)
                if text is None:
                    return False
                branch.append_text(text, tokenizer)
            case RoleBegin(role=role):
                branch.open_message(role, tokenizer)
            case RoleEnd():
                branch.close_message(tokenizer)
            case Assign(name=name, value=value):
                state.add_tokens(len(value))
                branch.values[name] = value
            case Fork(children=children):
                state.add_tokens(len(children) * (len(branch.tokens) + len(branch.texts) + len(branch.values)))
                for child in children:
                    state.branches[child] = branch.fork(child, state.branches[child].queue)
            case Join(children=children, mode=mode):
                if not all(barrier.passed for barrier in step.barriers):
                    return False
                if mode == "append":
                    for child, barrier in zip(children, step.barriers, strict=True):
                        branch.adopt(state.branches[child], barrier)
            case Gen():
                self._begin(state, branch, step, GenCall(step.op, branch, tokenizer))
            case Select():
                self._begin(state, branch, step, SelectCall(step.op, branch, tokenizer))
        return True

    def _check_length(self, branch: Branch) -> None:
        limit = self._engine.info.max_request_tokens
        if len(branch.tokens) > limit:
            message = f"the branch has {len(branch.tokens)} tokens, but {limit} in all is the limit"
            raise RequestError(message, code="context_length_exceeded", param="ops")

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
        self._states.move_to_end(state.id)  # the least recently used comes first
        state.kept = state.kept and run.program.keep
        if not state.kept and not state.runs:
            del self._states[state.id]
            if run.program.trace:
                for branch in state.branches.values():
                    self._send_appended(run, branch, None)
        texts = {branch.id: "".join(branch.texts) for branch in state.branches.values()}
        _tell(run, Done(usage=run.usage, requests=run.num_requests, texts=texts, elapsed_s=now - run.started))

    def _fail(self, state: _State, step: Step | None, branch_id: int, info: ErrorInfo) -> None:
        """The program has failed: all its branches stop, every stretch in flight hears why."""
        self._states.pop(state.id, None)
        runs, state.runs = state.runs, []
        self._stop_requests(state)
        for run in runs:
            run.over = True
            index = step.index if step is not None and run is step.stretch else None
            _tell(run, Failed(error=info, branch=branch_id, index=index))

    def _stop_requests(self, state: _State) -> None:
        for branch in state.branches.values():
            running, branch.running = branch.running, set()
            for request_id in running:
                self._engine.abort(request_id)

    # Calls

    def _begin(self, state: _State, branch: Branch, step: Step, call: Call) -> None:
        """Submits the requests of a call; their events end it, and then the walk goes on."""
        run = step.stretch
        assert isinstance(run, _Run)
        timeout_s = self._timeout(run, call.timeout_s)
        started = self._clock()
        for index, ask in enumerate(call.asks()):
            if not branch.tokens:
                raise RequestError(
                    "the branch is empty: there is no text to continue", code="empty_prompt", param="ops"
                )
            request = Request(
                id=f"{state.id}/{state.num_requests}",
                prompt=tuple(ask.prompt),
                sampling=ask.sampling,
                grammar=ask.grammar,
                score_from=ask.score_from,
                prefix=ask.prefix,
                namespace=state.namespace,
                timeout_s=timeout_s,
            )
            state.num_requests += 1
            run.num_requests += 1

            def listener(output: RequestOutput, index: int = index, continues: bool = ask.continues) -> None:
                if run.over or output.id not in branch.running:
                    return
                if continues and output.cached_tokens is not None:
                    self._send_appended(run, branch, output.cached_tokens)
                try:
                    self._take(state, branch, step, call, index, output, started)
                except Exception:
                    logger.exception("a program failed")
                    error = ErrorInfo(code="internal_error", message="the program failed")
                    self._fail(state, step, branch.id, error)

            self._engine.submit(request, listener)
            branch.running.add(request.id)

    def _take(
        self, state: _State, branch: Branch, step: Step, call: Call, index: int, output: RequestOutput, started: float
    ) -> None:
        run = step.stretch
        assert isinstance(run, _Run) and isinstance(step.op, (Gen, Select))
        if output.finish is not None:
            branch.running.discard(output.id)
            run.usage += output.finish.usage
            if output.finish.error is not None:
                self._fail(state, step, branch.id, output.finish.error)
                return
        if text := call.take(index, output):
            run.listener(Delta(branch.id, step.op.name, text))
        if not branch.running:
            self._end(state, run, branch, step.op, call.end(), started)
            self._done(state, branch, step)
            self._walk(state)

    def _end(self, state: _State, run: _Run, branch: Branch, op: Gen | Select, result: Result, started: float) -> None:
        value = result.value
        branch.tokens[len(branch.tokens) - result.num_taken_back :] = result.tokens
        branch.texts.append(value.text)
        branch.values[value.name] = value.text
        run.listener(value)
        if run.program.trace:
            piece = Piece(
                branch=branch.id,
                op=branch.num_ops,
                kind="gen" if isinstance(op, Gen) else "select",
                name=value.name,
                texts=tuple(self._engine.tokenizer.texts(result.tokens)),
                origins=result.origins,
                start_s=started - state.born,
                stop_s=self._clock() - state.born,
                queue_s=value.timings.queue_s,
                prefill_s=value.timings.prefill_s,
            )
            run.listener(piece)

    def _timeout(self, run: _Run, op_timeout_s: float | None) -> float | None:
        """Seconds that are left for a call: its own limit, and what the program has left of its."""
        limit = run.program.timeout_s
        left = None if limit is None else limit - (self._clock() - run.started)
        if left is not None and left <= 0:
            raise EngineError(f"the program was not done within {limit:g} s", code="generation_timeout")
        return min((seconds for seconds in (left, op_timeout_s) if seconds is not None), default=None)

    def _send_appended(self, run: _Run, branch: Branch, num_cached: int | None) -> None:
        """Tells where appended text came from; None: it was never computed."""
        for start, piece in branch.appended:
            if piece.origins is not None:
                continue
            if num_cached is None:
                piece.origins = (UNUSED,) * len(piece.tokens)
            else:
                piece.resolve(start, num_cached)
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


def _tell(run: _Run, last: ProgramEvent) -> None:
    """Says the last word of a stretch; others are not concerned if that fails."""
    try:
        run.listener(last)
    except Exception:
        logger.exception("who listens to program %s failed", run.program.id)


def _enqueue(state: _State, run: _Run) -> list[tuple[Branch, Step | Barrier]]:
    """Which step goes to which branch's queue, in order.

    Raises:
        RequestError: an instruction of a branch that does not exist, or a bound is passed.
    """
    ops = run.program.ops
    if not 1 <= len(ops) <= MAX_OPS:
        raise RequestError(f"a program must have 1 to {MAX_OPS} instructions, got {len(ops)}", param="ops")
    if len(ops) + sum(len(op.children) for op in ops if isinstance(op, Join)) > MAX_OPS:
        raise RequestError(f"the joins of a program may name {MAX_OPS} branches at most", param="ops")
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
