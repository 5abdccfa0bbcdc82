"""What each instruction of a program does to its branch, or begins to do."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ..engine.engine import Engine
from ..protocol.condition import Condition
from ..protocol.decide import NotYetError, holds
from ..protocol.errors import RequestError
from ..protocol.program import (
    Assign,
    Cancel,
    Fork,
    Gen,
    Join,
    Part,
    Repeat,
    RoleBegin,
    RoleEnd,
    Select,
    Skipped,
    Text,
    Use,
    Value,
    When,
)
from ..tokenizer.pipeline import LONG_TEXT
from ..tools.registry import ToolRunner
from .branch import Branch, Pending, Step
from .encoding import Encodings
from .failures import subtree
from .known_texts import KnownTexts
from .model_calls import Ended, FailedCall, ModelCalls
from .queues import pass_over
from .references import ConditionValues, PausedError, write
from .state import ENCODED, MAX_STATE_TOKENS, Run, State
from .tool_calls import Post, ToolUses
from .validate import COPIED, PARTS_OF_WORK, Block

Entered = tuple[Block, Step | None] | None
"""The block that an instruction enters, and what comes after it in a loop."""

MESSAGES_OF_WORK = 8
"""So many messages take as long as one instruction, where a new one is put behind them: a template is asked for all."""

MAX_CHOICE_CHARS = 1 << 17
"""Of all choices of a select: they are encoded in one go."""


@dataclass(frozen=True)
class Slice:
    """How far a program may go before the engine makes a step: in work, and in seconds by `time.monotonic`."""

    work: float = math.inf
    until: float = math.inf

    def over(self, state: State) -> bool:
        return state.work >= self.work or time.monotonic() >= self.until


class Instructions:
    """Carries out instructions. Lives in the engine's thread; `ended` and `failed` hear of those that take their time.

    slice     how long one attempt may take; what is longer is gone on with in the next attempt
    tools     None without `post` and `runner`
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float],
        *,
        ended: Ended,
        failed: FailedCall,
        cancel: Callable[[State, Run, Branch, int], None],
        post: Post | None,
        runner: ToolRunner | None,
    ) -> None:
        self.slice = Slice()
        self._engine = engine
        self._tokenizer = engine.tokenizer
        self._cancel = cancel
        # A text that is longer fits into no context. Some tokenizers write a few characters as one, hence the 4.
        longest = max((len(text) for text in engine.tokenizer.token_bytes if text is not None), default=1)
        self._max_tokens = engine.info.max_request_tokens
        self._token_chars = 4 * longest
        self.calls = ModelCalls(engine, clock, ended, failed)
        self.tools: ToolUses | None = None
        self._known = KnownTexts()
        self._encodings: Encodings | None = None
        if post is not None:
            self._encodings = Encodings(engine.tokenizer, self._known, post, ended, failed, max_tokens=self._max_tokens)
        if runner is not None and post is not None:
            self.tools = ToolUses(
                runner,
                post,
                engine.tokenizer,
                clock,
                ended,
                failed,
                max_text=self._token_chars * self._max_tokens,
                max_tokens=self._max_tokens,
            )

    def stop(self, call_id: str) -> None:
        """Ends what a branch waits for."""
        if self.tools is not None and self.tools.stop(call_id):
            return
        if self._encodings is not None and self._encodings.stop(call_id):
            return
        self._engine.abort(call_id)

    def close(self) -> None:
        if self._encodings is not None:
            self._encodings.close()

    def do(self, state: State, branch: Branch, step: Step) -> Entered:
        """Executes one instruction, or begins to; returns the block that it enters.

        Raises:
            NotYetError: it has to wait.
            PausedError: the slice is over, it has to go on.
            BoughError: it has failed.
        """
        run, item = step.stretch, step.item
        assert isinstance(run, Run)
        match item.op:
            case Text(parts=parts):
                self._text(state, run, branch, step, parts)
            case RoleBegin(role=role):
                self._open(state, run, branch, role)
            case RoleEnd():
                branch.close_message(self._tokenizer)
            case Assign() as op:
                self._assign(state, run, branch, step, op)
            case Fork() as op:
                self._fork(state, run, branch, step, op)
            case Join() as op:
                self._join(state, run, branch, step, op)
            case When(condition=condition):
                return self._when(state, run, branch, step, condition)
            case Repeat() as op:
                return self._repeat(state, run, branch, step, op)
            case Gen(sampling=sampling):
                state.spend(run, sampling.n * (len(branch.tokens) // COPIED))
                self.calls.begin(state, branch, step)
            case Select() as op:
                self._select(state, run, branch, step, op)
            case Use():
                assert self.tools is not None
                state.spend(run, item.work)
                self.tools.begin(state, branch, step)
            case Cancel():
                self._cancel(state, run, branch, item.index)
        state.spend(run, 1)
        return None

    def _text(self, state: State, run: Run, branch: Branch, step: Step, parts: tuple[Part, ...]) -> None:
        state.spend(run, step.item.work)
        room = self._token_chars * max(self._max_tokens - len(branch.tokens), 0)
        text = write(parts, branch, state.branches, max_length=room)
        state.spend(run, len(text) // ENCODED)
        if not text:
            return
        tokens = self._known.find(state.namespace, text)
        if tokens is None and len(text) > LONG_TEXT and self._encodings is not None:
            self._encodings.begin(state, branch, step, text)
            return
        if tokens is None:
            tokens = self._tokenizer.encode(text)
            self._known.keep(state.namespace, text, tokens)
        branch.append_tokens(text, tokens, self._tokenizer)

    def _open(self, state: State, run: Run, branch: Branch, role: str) -> None:
        """After a join the template has not been asked for the messages that were appended."""
        while not branch.knows_turns(self._tokenizer.chat):
            state.spend(run, 1 + len(branch.roles) // MESSAGES_OF_WORK)
            self._pause(state)
        branch.open_message(role, self._tokenizer)
        state.spend(run, len(branch.roles) // MESSAGES_OF_WORK)

    def _assign(self, state: State, run: Run, branch: Branch, step: Step, op: Assign) -> None:
        state.spend(run, step.item.work)
        text = write(op.parts, branch, state.branches, max_length=MAX_STATE_TOKENS)
        state.spend(run, len(text) // (ENCODED if op.tell else COPIED))
        state.add_tokens(len(text), branch)
        branch.keep(op.name, text)
        if op.tell:
            told = Value(branch=branch.id, name=op.name, text=text) if op.parts else Skipped(branch.id, op.name)
            run.listener(told)

    def _fork(self, state: State, run: Run, branch: Branch, step: Step, op: Fork) -> None:
        pending = _pending(branch, step)
        size = branch.size
        for number in op.children[pending.num_done :]:
            if pending.num_done:
                self._pause(state)
            pending.num_done += 1
            state.spend(run, 1 + size // COPIED)
            child = state.branches[number]
            if child.failure is not None:
                continue
            state.add_tokens(size, child)
            child.start_from(branch)
            state.stirred = True
            if child.retries:
                members = subtree(state, child)
                state.spend(run, sum(1 + len(member.turns) for member in members) // PARTS_OF_WORK)
                child.forked_turns = {member.id: Counter(member.turns) for member in members}

    def _join(self, state: State, run: Run, branch: Branch, step: Step, op: Join) -> None:
        pending, index = _pending(branch, step), step.item.index
        for number in op.children[pending.num_done :]:
            if not step.barriers[index, number].passed:
                raise NotYetError
            pending.num_done += 1
        state.spend(run, len(op.children))
        for number in op.children if op.mode == "append" else ():
            barrier = step.barriers[index, number]
            if barrier.failed:
                continue
            assert barrier.child is not None
            state.spend(run, (len(barrier.child.appended) + barrier.child.values.size) // COPIED)
            num_tokens = len(branch.tokens)
            branch.adopt(barrier.child, barrier)
            branch.check_length(self._max_tokens)
            state.spend(run, (len(branch.tokens) - num_tokens) // COPIED)

    def _select(self, state: State, run: Run, branch: Branch, step: Step, op: Select) -> None:
        num_chars = sum(map(len, op.choices))
        if num_chars > MAX_CHOICE_CHARS:
            message = f"the choices of a select have {num_chars} characters, but {MAX_CHOICE_CHARS} is the limit"
            raise RequestError(message, param="choices")
        num_prompts = 1 if self._engine.takes_trees else len(op.choices)
        state.spend(run, len(op.choices) + num_chars // ENCODED + num_prompts * (len(branch.tokens) // COPIED))
        self.calls.begin(state, branch, step)

    def _when(self, state: State, run: Run, branch: Branch, step: Step, condition: Condition) -> Entered:
        then, otherwise = step.item.blocks
        holds_now = self._holds(state, run, branch, step, condition)
        entered, passed = (then, otherwise) if holds_now else (otherwise, then)
        state.spend(run, 1 + entered.work + passed.work + len(passed.values))
        pass_over(state, passed)
        for number, name in passed.values:
            run.tell(Skipped(number, name))
        return entered, None

    def _repeat(self, state: State, run: Run, branch: Branch, step: Step, op: Repeat) -> Entered:
        item, body = step.item, step.item.blocks[0]
        if not step.turns:
            state.spend(run, len(body.values) // PARTS_OF_WORK)
            branch.inside.append(item)
            for number, name in body.values:
                state.branches[number].looping.setdefault(name, []).append(item)
        elif step.turns >= op.at_most or self._holds(state, run, branch, step, op.until):
            state.spend(run, 1 + len(body.values) // PARTS_OF_WORK)
            branch.inside.remove(item)
            for number, name in body.values:
                state.branches[number].looping[name].remove(item)
            state.stirred = True
            return None
        state.spend(run, 1 + body.work)
        return body, Step(run, item, step.barriers, step.turns + 1, step.known)

    def _holds(self, state: State, run: Run, branch: Branch, step: Step, condition: Condition) -> bool:
        values = ConditionValues(
            run.patterns,
            branch,
            state.branches,
            _pending(branch, step).matches,
            until=self.slice.until,
            spend=lambda work: state.spend(run, work),
            pause=lambda: self._pause(state),
        )
        try:
            found = holds(condition, values)
        finally:
            work = values.num_asked // PARTS_OF_WORK + values.num_compared // COPIED
            state.work += work
            run.work += work
        state.spend(run, 1 + step.item.work)
        return found

    def _pause(self, state: State) -> None:
        """Raises PausedError if the slice is over."""
        if self.slice.over(state):
            raise PausedError


def _pending(branch: Branch, step: Step) -> Pending:
    if branch.pending is None or branch.pending.step is not step:
        branch.pending = Pending(step)
    return branch.pending
