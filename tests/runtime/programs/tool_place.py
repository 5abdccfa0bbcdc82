"""An engine with tools, whose thread is the test's: what tools bring back waits until the test looks for it."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable

from bough.runtime.client.streams import with_whole_ends
from bough.runtime.programs.engine_machine import EngineMachine
from bough.runtime.programs.executor import Executor
from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.protocol.program import Op, Program
from bough.runtime.tools.registry import ToolCall, ToolRegistry, ToolRunner

from .control_programs import UpperTool
from .oracle import Heard, assert_all_free
from .place import Place


class ToolPlace(Place):
    """Without `tools`, there is the tool "upper"."""

    def __init__(
        self, *tools: ToolCall, max_states: int = 8, runner: ToolRunner | None = None, **settings: object
    ) -> None:
        super().__init__(max_states=max_states, **settings)
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.registry = ToolRegistry()
        for tool in tools or (UpperTool(),):
            self.registry.register(tool)
        self.runner = runner or ToolRunner()
        post = self.posted.put
        self.machine = EngineMachine(self.engine, self.clock, post=post, runner=self.runner)
        self.turns: deque[Callable[[], None]] = deque()
        self.executor = Executor(
            self.machine, self.clock, max_states=max_states, post=self.turns.append, tools=self.registry
        )

    def run(self, ops: list[Op], program_id: str = "p", **fields: object) -> Heard:
        heard = self.start(ops, program_id, **fields)
        self.drive(lambda: heard.over)
        return heard

    def start(
        self, ops: list[Op], program_id: str = "p", tools: object = None, key: object = None, **fields: object
    ) -> Heard:
        heard = Heard()
        program = Program(id=program_id, ops=tuple(ops), **fields)  # type: ignore[arg-type]
        self.executor.run(program, with_whole_ends(heard), tools, key)  # type: ignore[arg-type]
        if self.turns:
            self.turns.popleft()()
        return heard

    def refusal(self, ops: list[Op], program_id: str = "p", **fields: object) -> ErrorInfo:
        """Returns why a submission cannot be started."""
        return self.run(ops, program_id, **fields).failed.error

    @property
    def has_calls(self) -> bool:
        return bool(self.turns) or not self.posted.empty()

    def make_calls(self) -> None:
        """Makes the calls that are there, as is done between two steps."""
        turn = self.turns.popleft() if self.turns else None
        for _ in range(self.posted.qsize()):
            self.posted.get()()
        if turn is not None:
            turn()

    def next_call(self) -> Callable[[], None]:
        """Returns what is to be called next, when it is there."""
        return self.turns.popleft() if self.turns else self.posted.get(timeout=10.0)

    def drive(self, over: Callable[[], bool], max_steps: int = 50_000) -> None:
        """Makes posted calls and steps until `over`."""
        for _ in range(max_steps):
            if over():
                return
            stats = self.engine.stats()
            busy = bool(stats.running or stats.waiting)
            while self.has_calls or not busy:
                self.next_call()()
                busy = True
            if self.engine.idle:
                self.engine.wait_for_grammar(5.0)
            self.engine.step()
        raise AssertionError("no progress")

    def close(self) -> None:
        self.executor.close()
        assert self.executor.num_states == 0
        assert_all_free(self.engine)
        self.runner.close()
        self.engine.close()
