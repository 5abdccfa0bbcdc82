"""Programs over single calls come out as on the engine, and as in the reference of both."""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest

from bough.lang.backends.messages.machine import MessageMachine, ModelCall
from bough.lang.backends.messages.surplus import Answer
from bough.runtime.programs.executor import Executor
from bough.runtime.protocol.condition import Compare, Ref
from bough.runtime.protocol.errors import EngineError, RequestError
from bough.runtime.protocol.program import (
    BranchFailed,
    BranchRestarted,
    Cancel,
    Delta,
    Done,
    Failed,
    Fork,
    Gen,
    Join,
    Op,
    Program,
    ProgramEvent,
    Repeat,
    RoleEnd,
    Select,
    Skipped,
    Text,
    Use,
    Value,
    When,
)
from bough.runtime.protocol.sampling_params import SamplingParams

from ....runtime.programs.control_programs import TOOLS, ControlPrograms, UpperTool
from ....runtime.programs.oracle import EOS, Heard, history_of
from ....runtime.programs.oracle import Oracle as Reference
from ....runtime.programs.tool_place import ToolPlace

BIAS = {EOS: 4.0, ord("e"): 4.0}
WORDS = ("e", "a", "yes", "2", "one", "né", "🦊", "", "3.5", "bee", "x y")


def written(text: str) -> str:
    """Text that the model of these tests writes after another."""
    return WORDS[hashlib.sha256(text.encode()).digest()[0] % len(WORDS)]


def preferred(text: str, choices: tuple[str, ...]) -> str:
    return max(choices, key=lambda choice: hashlib.sha256(f"{text}|{choice}".encode()).digest())


class TextReference(Reference):
    """The reference with that model: its tokens are bytes of text."""

    def _text(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens)

    def generate(self, prompt: list[int], params: SamplingParams) -> tuple[list[int], str]:
        text = written(self._text(prompt))
        return self._tokenizer.encode(text), text

    def logprobs(self, prompt: list[int], tokens: list[int]) -> list[float]:
        digest = hashlib.sha256(f"{self._text(prompt)}|{self._text(tokens)}".encode()).digest()
        return [float(int.from_bytes(digest[:6]))]


class Caller:
    """Makes values by `make`: at once, or when `answer_one` is called, in an order that the seed draws."""

    def __init__(self, make: Callable[[ModelCall], str] | None = None, seed: int | None = None) -> None:
        self._make = make or _made
        self._rng = None if seed is None else random.Random(seed)
        self.calls: list[ModelCall] = []
        self.cancelled: list[ModelCall] = []

    def begin(self, call: ModelCall) -> None:
        self.calls.append(call)
        if self._rng is None:
            self.answer_one()

    def cancel(self, call: ModelCall) -> None:
        self.calls.remove(call)
        self.cancelled.append(call)

    def answer_one(self) -> bool:
        if not self.calls:
            return False
        call = self.calls.pop(0 if self._rng is None else self._rng.randrange(len(self.calls)))
        call.emit("told")
        value = Value(branch=call.op.branch, name=call.op.name, text=self._make(call))
        call.finish(Answer(value))
        return True


def _made(call: ModelCall) -> str:
    match call.op:
        case Gen():
            return written(call.prompt.text)
        case Select(choices=choices):
            return preferred(call.prompt.text, choices)
        case Use(tool=tool):
            assert tool in call.run.tools
            return TOOLS[tool](call.arguments["text"])
    raise AssertionError


def executor_of(caller: Caller, max_states: int = 8) -> Executor:
    return Executor(MessageMachine(caller), time.monotonic, max_states=max_states)


def start(programs: Executor, ops: list[Op], **fields: object) -> Heard:
    heard = Heard()
    program = Program(id="p", ops=tuple(ops), **fields)  # type: ignore[arg-type]
    programs.run(program, heard, {"upper": UpperTool()})
    return heard


def run(*ops: Op, make: Callable[[ModelCall], str] | None = None) -> list[ProgramEvent]:
    return start(executor_of(Caller(make)), list(ops)).events


def outcome(all_heard: list[Heard]) -> tuple[dict, dict, set[int]]:
    """Values in order and texts of the branches that have not failed, and those that have."""
    events = [event for heard in all_heard for event in heard.events]
    failed = {event.branch for event in events if isinstance(event, BranchFailed)}
    return history_of(events), all_heard[-1].done.texts, failed


def expected(reference: Reference) -> tuple[dict, dict, set[int]]:
    return reference.history, reference.texts, reference.failed


def assert_same(found: tuple[dict, dict, set[int]], wanted: tuple[dict, dict, set[int]]) -> None:
    gone = wanted[2]
    assert found[2] <= gone
    both: Any = (found, wanted)
    for index in (0, 1):
        kept = [{k: v for k, v in each[index].items() if (k if index else k[0]) not in gone} for each in both]
        assert kept[0] == kept[1]


def programs_of(seed: int) -> ControlPrograms:
    programs = ControlPrograms(seed, BIAS)
    programs.oracle = TextReference(BIAS, TOOLS)
    return programs


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_come_out_as_in_the_reference(seed: int) -> None:
    ops = programs_of(seed).stretch(30)
    wanted = expected(TextReference(BIAS, TOOLS).run(ops))
    assert_same(outcome([start(executor_of(Caller()), ops)]), wanted)
    for index in range(3):
        caller = Caller(seed=index)
        programs = executor_of(caller)
        parts = [ops] if index == 0 else [ops[i : i + 4] for i in range(0, len(ops), 4)]
        all_heard = []
        for number, part in enumerate(parts):
            all_heard.append(start(programs, part, keep=True, resume=number > 0))
            while index != 2 and caller.answer_one():  # 2: submissions overlap
                pass
        while caller.answer_one():
            pass
        assert_same(outcome([*all_heard, start(programs, [Text(0, ("",))], resume=True)]), wanted)
        assert programs.num_states == 0


def told(events: list[ProgramEvent]) -> Counter[object]:
    """Events that matter to a listener, of all that were told."""
    found: Counter[object] = Counter()
    for event in events:
        match event:
            case Value(branch=branch, name=name, text=text, turn=turn):
                found["value", branch, name, text, turn] += 1
            case Skipped(branch=branch, name=name):
                found["skipped", branch, name] += 1
            case BranchFailed(branch=branch, error=error, index=index):
                found["failed", branch, error.code, index] += 1
            case BranchRestarted(branch=branch, attempt=attempt, error=error):
                found["restarted", branch, attempt, error.code] += 1
            case Failed(branch=branch, index=index, error=error):
                found["all failed", branch, index, error.code] += 1
            case Done(texts=texts):
                found["done", texts[0]] += 1  # how far a branch came that failed may differ
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_events_are_those_of_the_engine(seed: int) -> None:
    """The engine's values, given to the machine of APIs, lead to the same events."""
    ops = ControlPrograms(seed, BIAS).stretch(20)
    place = ToolPlace()
    place.model.bias = BIAS
    events = place.run(ops, keep=True).events
    place.executor.drop("p")
    place.close()
    texts: dict[tuple[int, str], deque[str]] = defaultdict(deque)
    for event in events:
        if isinstance(event, Value):
            texts[event.branch, event.name].append(event.text)
    found = run(*ops, make=lambda call: texts[call.op.branch, call.op.name].popleft())
    assert told(found) == told(events)


# One by one


def test_a_loop_ends_by_its_condition_and_counts_turns() -> None:
    answers = iter(["think", "think", "finish", "never"])
    until = Compare(Ref(0, "x"), "eq", "finish")
    ops = (Text(0, ("go ",)), Repeat(0, (Gen(0, "x"), Text(0, (";",))), until, 8), Text(0, (Ref(0, "x"),)))
    events = run(*ops, make=lambda call: next(answers))
    values = [event for event in events if isinstance(event, Value)]
    assert [(value.text, value.turn) for value in values] == [("think", 0), ("think", 1), ("finish", 2)]
    assert events[-1].texts == {0: "go think;think;finish;finish"}  # type: ignore[union-attr]


def test_what_is_not_done_is_said_to_be_skipped() -> None:
    when = When(
        0, Compare(Ref(0, "x"), "eq", "no"), (Gen(0, "a"), Fork(0, (1,)), Gen(1, "b"), Join(0, (1,))), (Gen(0, "c"),)
    )
    events = run(Gen(0, "x"), when, make=lambda call: "yes")
    assert [event for event in events if isinstance(event, Skipped)] == [Skipped(0, "a"), Skipped(1, "b")]
    assert [event.name for event in events if isinstance(event, Value)] == ["x", "c"]


def test_a_failure_in_a_block_has_its_index_in_recorded_order() -> None:
    ops = (Gen(0, "x"), When(0, Compare(Ref(0, "x"), "ne", "a"), (Text(0, ("t",)), RoleEnd(0)), ()))
    failed = run(*ops, make=lambda call: "b")[-1]
    assert isinstance(failed, Failed) and failed.index == 3


def test_an_isolated_branch_is_begun_anew_and_then_given_up() -> None:
    def make(call: ModelCall) -> str:
        if call.op.name == "bad":
            raise_from(call)
        return "ok"

    def raise_from(call: ModelCall) -> None:
        raise EngineError("it is broken", code="broken")

    class Failing(Caller):
        def answer_one(self) -> bool:
            call = self.calls.pop()
            try:
                text = make(call)
            except EngineError as error:
                call.finish(error)
            else:
                call.finish(Answer(Value(branch=call.op.branch, name=call.op.name, text=text)))
            return True

    ops: list[Op] = [
        Fork(0, (1, 2), isolated=True, retries=2),
        Gen(1, "good"),
        Gen(1, "bad"),
        Gen(2, "good"),
        Join(0, (1, 2), "append"),
    ]
    events = start(executor_of(Failing()), ops).events
    assert [event.attempt for event in events if isinstance(event, BranchRestarted)] == [1, 2]
    (failed,) = [event for event in events if isinstance(event, BranchFailed)]
    assert (failed.branch, failed.error.code, failed.index) == (1, "broken", 2)
    assert [event.branch for event in events if isinstance(event, Value)].count(1) == 3
    assert events[-1].texts[0] == "ok"  # type: ignore[union-attr]


def test_what_an_earlier_submission_brought_is_done_anew_with_its_tools() -> None:
    caller = Caller()
    programs = executor_of(caller)
    use = Use(1, "x", "upper", (("text", ("a",)),))
    start(programs, [Fork(0, (1,), isolated=True, retries=1), use], keep=True)
    heard = Heard()
    programs.run(Program(id="p", ops=(RoleEnd(1), Join(0, (1,), "append")), resume=True), heard)
    kinds = [type(event) for event in heard.events if not isinstance(event, Delta)]
    assert kinds == [BranchRestarted, Value, BranchFailed, Done]


def test_cancelling_stops_the_call_in_flight_and_the_rest_goes_on() -> None:
    caller = Caller(seed=0)
    programs = executor_of(caller)
    first = start(programs, [Fork(0, (1, 2)), Gen(1, "a"), Gen(2, "b")], keep=True)
    assert {call.op.branch for call in caller.calls} == {1, 2}
    second = start(programs, [Cancel(1), Join(0, (1, 2), "append")], resume=True)
    assert [call.op.branch for call in caller.cancelled] == [1]
    while caller.answer_one():
        pass
    assert isinstance(first.events[-1], Done) and isinstance(second.events[-1], Done)
    failures = [event for event in [*first.events, *second.events] if isinstance(event, BranchFailed)]
    assert {(event.branch, event.error.code) for event in failures} == {(1, "cancelled")}
    assert [event.branch for event in first.events if isinstance(event, Value)] == [2]


def test_an_answer_that_comes_after_the_end_is_not_heard() -> None:
    caller = Caller(seed=0)
    programs = executor_of(caller)
    heard = start(programs, [Gen(0, "a")], keep=True)
    (call,) = caller.calls
    programs.drop("p")
    assert isinstance(heard.events[-1], Failed)
    call.emit("late")
    call.finish(Answer(Value(branch=0, name="a", text="late")))
    assert heard.failed.error.code == "aborted"


def test_of_the_kept_states_the_least_recently_used_are_dropped() -> None:
    programs = executor_of(Caller(), max_states=2)
    for number in range(3):
        programs.run(Program(id=str(number), ops=(Gen(0, "x"),), keep=True), Heard())
    assert programs.num_states == 2
    with pytest.raises(RequestError, match="is gone"):
        programs.run(Program(id="0", ops=(Gen(0, "y"),), resume=True), Heard())
    programs.run(Program(id="2", ops=(Gen(0, "y"),), resume=True), Heard())
    assert programs.num_states == 1


def test_a_tool_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="'search'") as caught:
        run(Use(0, "x", "search"))
    assert caught.value.code == "unknown_tool"
