"""The optimiser changes nothing but cost: random programs give the same tokens with every optimisation on and off."""

from __future__ import annotations

import itertools
import os
import random

import pytest

from bough.lang.compile.optimise import PASSES, optimise
from bough.runtime.protocol.condition import Ref
from bough.runtime.protocol.program import Fork, Op, Text

from ...runtime.programs.control_programs import TOOLS, ControlPrograms
from ...runtime.programs.oracle import EOS, BrokenError, Oracle, history_of
from ...runtime.programs.tool_place import ToolPlace

FULL = os.environ.get("BOUGH_ACCEPTANCE") == "full"
NUM_PROGRAMS = 5000 if FULL else 120
BIAS = {EOS: 4.0, ord("e"): 4.0}
SETS = [set(some) for size in range(len(PASSES) + 1) for some in itertools.combinations(PASSES, size)]


def with_prefixes(ops: list[Op], rng: random.Random) -> list[Op]:
    """The same, where what is forked often begins alike."""
    found: list[Op] = []
    for op in ops:
        found.append(op)
        if isinstance(op, Fork) and rng.random() < 0.5:
            texts = [rng.choice(["so ", "then\n", "日 "]) for _ in range(rng.randrange(1, 3))]
            found += [Text(child, (text,)) for child in op.children for text in texts]
    return found


def values(place: ToolPlace, ops: tuple[Op, ...], wanted: set[Ref]) -> dict[Ref, list[str]]:
    heard = place.run(list(ops)) if ops else None
    history = history_of(heard.events) if heard is not None else {}
    return {ref: texts for (branch, name), texts in history.items() if (ref := Ref(branch, name)) in wanted}


@pytest.mark.timeout(14_400 if FULL else 120)
def test_optimised_programs_generate_the_same_tokens() -> None:
    place = ToolPlace()
    place.model.bias = BIAS
    saved = hoisted = compared = 0
    for seed in range(NUM_PROGRAMS):
        rng = random.Random(seed)
        ops = tuple(with_prefixes(ControlPrograms(seed, BIAS).stretch(18), rng))
        oracle = Oracle(BIAS, TOOLS)
        try:
            oracle.run(list(ops))
        except BrokenError:  # with what was put in it goes another way, and refers to what was not made
            continue
        alive = [Ref(*key) for key in oracle.history if not oracle.branches[key[0]].failed]
        wanted = set(rng.sample(alive, min(len(alive), rng.randrange(1, 5))))
        expected = {ref: oracle.history[ref.branch, ref.name] for ref in wanted}
        for passes in SETS if FULL or seed % 8 == 0 else (rng.choice(SETS), set(PASSES)):
            better = optimise(ops, wanted, passes)
            found = values(place, better, wanted)
            made = {ref: texts for ref, texts in expected.items() if ref in found or texts}
            assert {ref: found.get(ref, []) for ref in made} == made, (seed, passes)
            compared += len(made)
            saved += len(ops) - len(better)
            hoisted += max(0, sum(isinstance(op, Fork) for op in better) - sum(isinstance(op, Fork) for op in ops))
    place.close()
    assert compared > NUM_PROGRAMS and saved > NUM_PROGRAMS and hoisted > NUM_PROGRAMS // 20
