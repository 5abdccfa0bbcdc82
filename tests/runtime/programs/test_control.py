"""Conditions, loops and branches that fail, in the engine: the same comes of them as step by step, however cut."""

from __future__ import annotations

import random

import pytest

from bough.runtime.programs.tokens import content_of
from bough.runtime.protocol.condition import Compare, Every
from bough.runtime.protocol.program import Assign, Fork, Op, ProgramEvent, Ref, Repeat, Text

from .control_programs import TOOLS, ControlPrograms
from .oracle import EOS, Oracle, history_of
from .place import Place
from .tool_place import ToolPlace

BIAS = {EOS: 4.0, ord("e"): 4.0}


Outcome = tuple[dict[tuple[int, str], list[str]], dict[int, str], dict[int, list[int]], set[int]]


def outcome(place: Place, stretches: list[list[Op]]) -> Outcome:
    """Values in order, texts and tokens of what has not failed, and what has: of stretches one after the other.

    How far those had come that were forked from what failed is not certain.
    """
    events: list[ProgramEvent] = []
    for index, ops in enumerate(stretches):
        heard = place.run(ops, keep=True, resume=index > 0)
        events += heard.events
    branches = {branch.id: branch for branch in place.executor._states["p"].branches.values() if branch.started}
    alive = {number: branch for number, branch in branches.items() if branch.failure is None}
    history = {key: texts for key, texts in history_of(events).items() if key[0] in alive}
    tokens = {number: content_of(branch).tokens[:] for number, branch in alive.items()}
    failed = {number for number, b in branches.items() if b.failure is not None and (b.origin.parent or 0) in alive}
    return history, {number: heard.done.texts[number] for number in alive}, tokens, failed


def expected(oracle: Oracle) -> Outcome:
    alive = {number: copy for number, copy in oracle.branches.items() if not copy.failed}
    history = {key: texts for key, texts in oracle.history.items() if key[0] in alive}
    texts = {number: "".join(copy.texts) for number, copy in alive.items()}
    failed = {number for number in oracle.failed if (oracle.branches[number].parent or 0) in alive}
    return history, texts, {number: copy.tokens for number, copy in alive.items()}, failed


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_equal_the_oracle(seed: int) -> None:
    rng = random.Random(seed)
    programs = ControlPrograms(seed, BIAS)
    ops = programs.stretch(25)
    wanted = expected(Oracle(BIAS, TOOLS).run(ops))
    place = ToolPlace(max_batch_tokens=rng.choice([8, 512]), max_num_seqs=rng.choice([1, 3, 64]))
    place.model.bias = BIAS
    assert outcome(place, [ops]) == wanted
    place.executor.drop("p")
    parts = [ops[start : start + 4] for start in range(0, len(ops), 4)]
    assert outcome(place, parts) == wanted
    place.close()


def test_what_instructions_cost_holds_nobody_up() -> None:
    """Each branch waits for the next one, and looks at much before it finds that out: the engine goes on meanwhile."""
    num = 120
    ops: list[Op] = [Text(0, ("x",)), Fork(0, tuple(range(1, num + 1)))]
    ops += [Assign(k, "v", (*[""] * 2000, Ref(k + 1, "v") if k < num else "end")) for k in range(1, num + 1)]
    place = ToolPlace()
    heard = place.start(ops)
    assert not heard.over and place.has_calls
    slices = 0
    while not heard.over:
        place.next_call()()
        slices += 1
    assert slices > 3 and heard.done.requests == 0
    place.close()


def test_a_program_that_calls_nobody_ends_in_time() -> None:
    never = Every((*(Compare("1", "eq", "1") for _ in range(5000)), Compare("1", "eq", "2")))
    place = ToolPlace()
    heard = place.start([Text(0, ("x",)), Repeat(0, (), never, 1000)], timeout_s=5.0)
    place.next_call()()
    assert not heard.over
    place.clock.now += 6.0
    place.next_call()()
    assert heard.failed.error.code == "generation_timeout"
    place.close()
