"""Carries out one program beside whatever makes its values: walks its branches, and sends events as an engine does."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from ....runtime.programs.validate import Block, Item, joins_of
from ....runtime.protocol.condition import Ref, Times
from ....runtime.protocol.errors import BoughError, EngineError, ErrorInfo, RequestError, to_info
from ....runtime.protocol.program import (
    BranchRestarted,
    Cancel,
    Delta,
    Done,
    Failed,
    Fork,
    Gen,
    Op,
    Piece,
    Program,
    Select,
    Skipped,
    Use,
)
from ...diagnostics.errors import to_caused_info
from .instructions import CancelledError, carry_out
from .state import Answer, Barrier, Barriers, Branch, Call, Failure, Run, Step
from .transcript import prompt_of, written


class Caller(Protocol):
    """Makes values. `begin` may answer at once, or later on the same thread; `cancel` is for a call that has begun."""

    def begin(self, call: Call) -> None: ...

    def cancel(self, call: Call) -> None: ...


class Interpretation:
    """A program's state, during its stretches and between them. Used by one thread at a time.

    Branches take turns, each as far as it gets: in which order is always the same where calls are answered at once.
    `kept`: it outlives the stretches in flight. What each branch may still have to do lies in its queue, or here until
    it is forked.
    """

    def __init__(self, program: Program, caller: Caller, clock: Callable[[], float]) -> None:
        self.id = program.id
        self.namespace = program.namespace
        self.kept = True
        self.begun = False
        self.branches = {0: Branch(0)}
        self.runs: list[Run] = []
        self._caller = caller
        self._clock = clock
        self._born = clock()
        self._waiting: dict[int, deque[Step | Barrier]] = {}
        self._parents: dict[int, int] = {}
        self._scopes = {0: 0}
        self._failures: dict[int, Failure] = {}
        self._never: set[int] = set()
        self._given: dict[int, list[Step | Barrier]] = {}
        self._turns: Counter[tuple[int, str]] = Counter()
        self._loops: dict[tuple[int, str], list[Item]] = {}
        self._walking = False
        self._stirred = False

    @property
    def known(self) -> dict[int, bool]:
        """The branches there are, by whether instructions of a stretch may be for them."""
        return {number: scope == 0 for number, scope in self._scopes.items()}

    def start(self, run: Run, block: Block) -> None:
        """Takes on a stretch, and walks."""
        self.begun = True
        self.runs.append(run)
        run.num_left = 1  # so that it does not end before all of it is in
        self._enqueue([item for item in block.items if not isinstance(item.op, Cancel)], run, {}, scope=0)
        for item in block.items:
            if isinstance(item.op, Cancel) and item.op.branch not in self._failures:
                info = ErrorInfo(code="cancelled", message=f"branch {item.op.branch} was cancelled")
                self._end(item.op.branch, info, run, item.index)
        run.num_left -= 1
        self._finish_empty()
        self.walk()

    def stop(self, error: ErrorInfo) -> None:
        """Everything ends; the stretches in flight fail."""
        self._fail_all(None, 0, error)

    def walk(self) -> None:
        """Does all that can be done now, in all branches, until each waits for a call, a value or a join."""
        if self._walking:
            return
        self._walking = True
        try:
            progress = True
            while progress and self.runs:
                progress = self._stirred = False
                for branch in list(self.branches.values()):
                    while self.runs and self.branches.get(branch.id) is branch and self._advance(branch):
                        progress = True
                progress = progress or self._stirred
                if not progress and self.runs and not any(branch.call for branch in self.branches.values()):
                    self._stuck()
                    progress = True
        finally:
            self._walking = False

    # Walking

    def _advance(self, branch: Branch) -> bool:
        """Goes on with a branch; False if it has to wait."""
        if branch.call is not None or branch.idle:
            return False
        if branch.steps is None:
            item = branch.queue.popleft()
            if isinstance(item, Barrier):
                item.reach(branch)
                return True
            branch.top = branch.step = item
            branch.steps = carry_out(self, branch, item)
        came, branch.inbox = branch.inbox, None
        num_ops = branch.num_ops
        try:
            if isinstance(came, BoughError):
                call = branch.steps.throw(came)
            else:
                call = next(branch.steps) if came is None else branch.steps.send(came)
        except StopIteration:
            assert branch.top is not None
            branch.top.run.num_left -= 1
            branch.top = branch.steps = None
            self._finish_empty()
            return True
        except CancelledError as error:
            assert branch.step is not None
            self._end(branch.id, to_info(error), branch.step.run, branch.step.index)
            return True
        except BoughError as error:
            self._fail(branch, to_caused_info(error))
            return True
        if call is None:
            return branch.num_ops > num_ops  # something was done before it came to wait
        branch.call = call
        self._caller.begin(call)
        return branch.call is None

    def _stuck(self) -> None:
        """Nothing can go on: an instruction that waits is to blame, one in an isolated branch if there is one."""
        waiting = [branch for branch in self.branches.values() if branch.steps is not None]
        branch = next((each for each in waiting if self._isolated(each.id) is not None), waiting[0])
        message = "the instruction waits for a branch that waits for it, or that never begins"
        self._fail(branch, ErrorInfo(code="invalid_program", message=message, param="ops"))

    def _finish_empty(self) -> None:
        """Stretches of which nothing is left end."""
        for run in [run for run in self.runs if not run.num_left]:
            run.over = True
            self.runs.remove(run)
            self.kept = self.kept and run.program.keep
            texts = {branch.id: written(branch.marks) for branch in self.branches.values()}
            elapsed_s = self._clock() - run.started
            run.listener(Done(usage=run.usage, requests=run.num_requests, texts=texts, elapsed_s=elapsed_s))

    # Queues

    def _enqueue(
        self, items: Sequence[Item], run: Run, inherited: Barriers, *, scope: int, own: int | None = None
    ) -> list[Step]:
        """Gives each branch its instructions; returns those of `own`, which carries them out as a block."""
        mine: list[Step] = []
        for item in items:
            op = item.op
            if isinstance(op, Fork):
                self._expect(op, scope)
            for fork in (fork for block in item.blocks for fork in block.forks):
                self._expect(fork, None)
            barriers: dict[tuple[int, int], Barrier] = {}
            for key in joins_of(item):
                barrier = inherited.get(key) or barriers.get(key)
                if barrier is None:
                    barrier = Barrier(op.branch)
                    self._give(key[1], barrier)
                barriers[key] = barrier
            step = Step(run, item, barriers)
            if op.branch == own:
                mine.append(step)
                continue
            if (failure := self._failures.get(op.branch)) is not None:
                run.tell_failure(failure)
            self._give(op.branch, step)
        return mine

    def _expect(self, fork: Fork, scope: int | None) -> None:
        """Branches that `fork` will begin, for the first time or in another turn of a loop; None: perhaps."""
        for child in fork.children:
            self._parents[child] = fork.branch
            self._scopes.setdefault(child, -1)
            self._never.discard(child)
            if scope is None:
                continue
            self._scopes[child] = scope
            self.branches.pop(child, None)
            self._failures.pop(child, None)
            self._given.pop(child, None)
            self._waiting[child] = deque()
            if (failure := self._failures.get(fork.branch)) is not None:
                self._failures[child] = failure
            if fork.retries or fork.branch in self._given:
                self._given[child] = []

    def _give(self, branch_id: int, item: Step | Barrier) -> None:
        """Puts something into a branch's queue; one that has ended early does nothing more."""
        if branch_id in self._given:
            self._given[branch_id].append(item)
        branch = self.branches.get(branch_id)
        if branch_id in self._failures:
            if isinstance(item, Barrier):
                item.reach(branch, failed=True)
            return
        if isinstance(item, Step):
            item.run.num_left += 1
        (branch.queue if branch is not None else self._waiting.setdefault(branch_id, deque())).append(item)

    def _take_all(self, branch_id: int) -> list[Step | Barrier]:
        """Stops a branch, and empties its queue."""
        branch = self.branches.get(branch_id)
        if branch is None:
            return list(self._waiting.pop(branch_id, ()))
        self._cancel_call(branch)
        return branch.give_up()

    def _cancel_call(self, branch: Branch) -> None:
        call, branch.call = branch.call, None
        if call is not None:
            self._caller.cancel(call)

    # Ends

    def _fail(self, branch: Branch, info: ErrorInfo) -> None:
        """An instruction has failed: ends the isolated branch around it, or has it begin anew, or ends the program."""
        assert branch.step is not None
        run, index = branch.step.run, branch.step.index
        root = self._isolated(branch.id)
        limit = run.program.timeout_s
        if root is None or (limit is not None and self._clock() - run.started >= limit):
            self._fail_all(branch.step, branch.id, info)
        elif self._may_begin_anew(root):
            self._begin_anew(root, info, run)
        else:
            self._end(root.id, info, run, index)

    def _fail_all(self, step: Step | None, branch_id: int, info: ErrorInfo) -> None:
        self.kept = False
        runs, self.runs = self.runs, []
        for branch in self.branches.values():
            self._cancel_call(branch)
        for run in runs:
            run.over = True
        for run in runs:
            index = step.index if step is not None and run is step.run else None
            run.listener(Failed(error=info, branch=branch_id, index=index))

    def _end(self, branch_id: int, info: ErrorInfo, run: Run, index: int | None) -> None:
        """A branch ends early, and all forked from it."""
        failure = Failure(branch_id, info)
        concerned = {run}
        for number in self._below(branch_id):
            if number in self._failures:
                continue
            self._failures[number] = failure
            for item in self._take_all(number):
                if isinstance(item, Step):
                    item.run.num_left -= 1
                    concerned.add(item.run)
                else:
                    item.reach(self.branches.get(number), failed=True)
        for each in [each for each in self.runs if each in concerned]:
            each.tell_failure(failure, index if each is run else None)
        self._finish_empty()

    def _may_begin_anew(self, root: Branch) -> bool:
        """Whether it has retries left, and nobody outside has joined a branch of it yet."""
        if root.id not in self._given or root.attempt >= root.retries:
            return False
        members = self._below(root.id)
        given = [item for number in members for item in self._given.get(number, ())]
        return not any(isinstance(i, Barrier) and i.passed and i.joiner not in members for i in given)

    def _begin_anew(self, root: Branch, info: ErrorInfo, run: Run) -> None:
        """A branch goes back to its fork, those forked from it to before theirs, and all that they were given comes
        again; what an earlier stretch brought that has ended counts as `run`'s. What was cancelled stays so."""
        members = self._below(root.id)
        concerned = {run}
        running = [self.branches[number] for number in members if number in self.branches]
        entered = {id(loop) for branch in running for loop in branch.inside[root.num_forked_inside :]}
        again: list[tuple[int, list[Step | Barrier]]] = []
        for number in members:
            for item in self._take_all(number):
                if isinstance(item, Step):
                    item.run.num_left -= 1
                    concerned.add(item.run)
            # One that is forked in a block comes again when that is entered again.
            given = self._given.pop(number, None) if self._scopes[number] == self._scopes[root.id] else None
            failure = self._failures.pop(number, None)
            if failure is not None and failure.error.code == CancelledError.code:
                self._failures[number] = failure
            if number == root.id:
                root.restart()
            else:
                self.branches.pop(number, None)
            if given is not None:
                self._given[number] = []
                again.append((number, given))
            for key in [key for key in self._turns if key[0] == number]:
                del self._turns[key]
            for key in [key for key in self._loops if key[0] == number]:
                self._loops[key] = [loop for loop in self._loops[key] if id(loop) not in entered]
        for number, items in again:
            for item in items:
                self._give(number, _fresh(item, run))
        for each in [each for each in self.runs if each in concerned]:
            each.listener(BranchRestarted(branch=root.id, attempt=root.attempt, error=info))
        self._finish_empty()

    def _isolated(self, branch_id: int) -> Branch | None:
        """The nearest isolated branch that this one is or descends from."""
        return next((self.branches[n] for n in self._above(branch_id) if self.branches[n].isolated), None)

    def _above(self, branch_id: int) -> Iterator[int]:
        """The branch and those that it was forked from."""
        number: int | None = branch_id
        while number is not None:
            yield number
            number = self._parents.get(number)

    def _below(self, branch_id: int) -> list[int]:
        """The branch and all that are forked from it, also those that are still to begin."""
        return [number for number in self._scopes if branch_id in self._above(number)]

    # What instructions ask for

    def find(self, ref: Ref, asking: Branch) -> str | None:
        source, failure = self.branches.get(ref.branch), self._failures.get(ref.branch)
        loops = self._loops.get((ref.branch, ref.name), ())
        if failure is None and any(all(loop is not own for own in asking.inside) for loop in loops):
            return None  # the last one is still to come
        if source is not None and ref.name in source.values:
            return source.values[ref.name]
        if failure is not None:
            message = f"there is no value {ref.name!r}: branch {ref.branch} has failed: {failure.error.message}"
            raise EngineError(message, code="branch_failed", param="ops")
        to_come = ref.branch in self._scopes and ref.branch not in self._never if source is None else not source.idle
        if not to_come or source is asking:
            raise RequestError(f"there is no value named {ref.name!r} in branch {ref.branch}", param="ops")
        return None

    def times(self, times: Times, asking: Branch) -> int | None:
        source = self.branches.get(times.branch)
        if times.branch in self._never or times.branch not in self._scopes:
            return 0
        if source is None:
            return 0 if times.branch in self._failures else None
        return source.made[times.name] if source is asking or source.idle else None

    def say(self, run: Run, piece: Piece) -> None:
        run.listener(piece)

    def now(self) -> float:
        return self._clock() - self._born

    def fork(self, branch: Branch, op: Fork) -> None:
        for child in op.children:
            if child not in self._failures:
                queue = self._waiting.pop(child) if child in self._waiting else deque[Step | Barrier]()
                self.branches[child] = branch.fork(child, queue, op)

    def enter(self, block: Block, step: Step) -> list[Step]:
        scope = step.item.index + 1
        return self._enqueue(block.items, step.run, step.barriers, scope=scope, own=step.op.branch)

    def pass_over(self, block: Block, run: Run) -> None:
        self._never |= {child for fork in block.forks for child in fork.children if child not in self.branches}
        self._stirred = True
        for branch, name in block.values:
            run.listener(Skipped(branch, name))

    def begin_loop(self, branch: Branch, item: Item) -> None:
        branch.inside.append(item)
        for key in item.blocks[0].values:
            self._loops.setdefault(key, []).append(item)

    def end_loop(self, branch: Branch, item: Item) -> None:
        branch.inside.remove(item)
        self._stirred = True
        for key in item.blocks[0].values:
            self._loops[key].remove(item)

    def call(self, branch: Branch, step: Step, arguments: dict[str, str], ahead: tuple[Op, ...]) -> Call:
        run, op = step.run, step.op
        assert isinstance(op, Gen | Select | Use)
        limit = run.program.timeout_s
        left = None if limit is None else limit - (self._clock() - run.started)
        if left is not None and left <= 0:
            raise EngineError(f"the program was not done within {limit:g} s", code="generation_timeout")

        def emit(text: str) -> None:
            if branch.call is call and text:
                run.listener(Delta(branch.id, op.name, text))

        def finish(result: Answer | BoughError) -> None:
            if branch.call is call:
                branch.call, branch.inbox = None, result
                self.walk()

        call = Call(op, prompt_of(branch.marks), run, left, emit, finish, arguments, ahead)
        return call

    def keep(self, branch: Branch, run: Run, answer: Answer) -> None:
        key = branch.id, answer.value.name
        turn = self._turns[key]
        self._turns[key] += 1
        run.usage += answer.value.usage
        run.num_requests += answer.num_requests
        run.listener(answer.value if turn == 0 else msgspec.structs.replace(answer.value, turn=turn))


def _fresh(item: Step | Barrier, run: Run) -> Step | Barrier:
    """To be done once more."""
    if isinstance(item, Barrier):
        item.passed = item.failed = False
        return item
    if not item.run.over:
        return item
    run.tools = {**item.run.tools, **run.tools}
    return Step(run, item.item, item.barriers, known=False)
