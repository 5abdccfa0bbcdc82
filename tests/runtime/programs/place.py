"""An engine over the hash model and an executor, on a clock that stands still until it is told to go on."""

from __future__ import annotations

from dataclasses import replace

from bough.runtime.engine.engine import Engine
from bough.runtime.programs.engine_machine import EngineMachine
from bough.runtime.programs.machine import Machine
from bough.runtime.programs.tokens import content_of
from bough.runtime.protocol.program import Fork, Gen, Join, Op, Program, Ref, RoleBegin, RoleEnd, Select, Text
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import FakeRunner, fake_engine
from .oracle import Heard, executor_of, run

GREEDY = SamplingParams(max_tokens=6, temperature=0.0)
EVERYTHING: list[Op] = [
    RoleBegin(0, "system"),
    Text(0, ("Be brief.",)),
    RoleEnd(0),
    RoleBegin(0, "user"),
    Text(0, ("Three ideas, please.",)),
    RoleEnd(0),
    RoleBegin(0, "assistant"),
    Fork(0, (1, 2, 3)),
    *(
        op
        for branch in (1, 2, 3)
        for op in (
            Text(branch, (f"Idea {branch}: ",)),
            Gen(branch, "idea", GREEDY),
            *(
                more
                for index in range(3)
                for more in (Text(branch, (" so ", Ref(branch, "idea"))), Gen(branch, f"more{index}", GREEDY))
            ),
        )
    ),
    Text(3, ("Not ", Ref(1, "more1"), " nor ", Ref(2, "more2"))),
    Gen(3, "other", GREEDY),
    Join(0, (2,), "append"),
    Join(0, (1, 3)),
    Text(0, ("The best of ", Ref(1, "idea"), Ref(2, "idea"), Ref(3, "other"), " is ")),
    Select(0, "best", ("one", "two", "three")),
    Gen(0, "why", SamplingParams(max_tokens=12, temperature=0.8, seed=4)),
    RoleEnd(0),
]


def bound(machine: Machine, **bounds: float) -> None:
    """Gives programs that begin now other bounds."""
    assert isinstance(machine, EngineMachine)
    machine.budget = replace(machine.budget, **bounds)


class Clock:
    """Time that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Place:
    """An engine over the hash model, and an executor, on one clock."""

    def __init__(self, *, max_states: int = 8, **settings: object) -> None:
        self.engine: Engine
        self.model: FakeRunner
        self.engine, self.model = fake_engine(**settings)  # type: ignore[arg-type]
        self.clock = Clock()
        self.engine._clock = self.clock
        self.executor = executor_of(self.engine, self.clock, max_states=max_states)

    def run(self, ops: list[Op], program_id: str = "p", **fields: object) -> Heard:
        return run(self.executor, self.engine, ops, program_id, **fields)

    def start(self, ops: list[Op], program_id: str = "p", **fields: object) -> Heard:
        heard = Heard()
        self.executor.run(Program(id=program_id, ops=tuple(ops), **fields), heard)  # type: ignore[arg-type]
        return heard

    def tokens(self, program_id: str = "p") -> dict[int, list[int]]:
        state = self.executor._states[program_id]
        return {branch.id: content_of(branch).tokens[:] for branch in state.branches.values()}
