"""The workloads: well-formed programs, the same every time, that grow with their scale."""

import random
import re

import pytest

from bough.benchmarks.workloads.programs import WORKLOADS, Size
from bough.benchmarks.workloads.prose import Prose
from bough.runtime.protocol.program import Fork, Gen, Ref, RoleBegin, RoleEnd, Select, Text


@pytest.mark.parametrize("name", WORKLOADS)
def test_programs_are_well_formed(name):
    workload = WORKLOADS[name](Size(0.05))
    assert workload.programs
    for ops in workload.programs:
        branches, names, open_roles = {0}, set(), set()
        for op in ops:
            assert op.branch in branches
            if isinstance(op, Fork):
                assert branches.isdisjoint(op.children)
                branches |= set(op.children)
            elif isinstance(op, Text):
                assert all(part in names for part in op.parts if isinstance(part, Ref))
            elif isinstance(op, Gen | Select):
                assert Ref(op.branch, op.name) not in names
                names.add(Ref(op.branch, op.name))
            elif isinstance(op, RoleBegin):
                assert op.branch not in open_roles
                open_roles.add(op.branch)
            elif isinstance(op, RoleEnd):
                open_roles.remove(op.branch)
        assert names
        assert not open_roles


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_the_same_every_time_and_grow_with_scale(name):
    random.seed(1)
    first = WORKLOADS[name](Size(0.5))
    random.seed(2)
    assert WORKLOADS[name](Size(0.5)) == first
    larger = WORKLOADS[name](Size(4.0))
    assert len(larger.programs) > len(first.programs)
    assert larger.about == first.about


def test_a_tree_of_thought_has_two_four_eight_and_sixteen_branches():
    ops = WORKLOADS["tree"](Size()).programs[0]
    assert sum(isinstance(op, Gen) for op in ops) == 2 + 4 + 8 + 16


def test_prose_is_seeded_and_as_long_as_asked():
    assert Prose(1).text(50) == Prose(1).text(50) != Prose(2).text(50)
    assert len(Prose(1).text(50).split()) == 50


def test_five_questions_of_a_subject_are_solved_in_front_of_the_others():
    first, second = WORKLOADS["mmlu"](Size(0.35)).programs[:2]
    assert first[0] == second[0]
    preamble, question = ("".join(map(str, op.parts)) for op in first if isinstance(op, Text))
    assert len(re.findall(r"Answer: [A-D]\n", preamble)) == 5
    assert re.search(r"\nA\. .+\nB\. .+\nC\. .+\nD\. .+\nAnswer:$", question)
    assert isinstance(first[-1], Gen)
    assert first[-1].sampling.max_tokens == 1
