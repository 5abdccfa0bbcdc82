"""The workloads of programs as all sides of a comparison get them: plain data, new texts for each round."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...constrain.spec import Regex
from ...runtime.protocol.program import Fork, Gen, Hole, Join, Op, RoleBegin, RoleEnd, Select, Text
from ...runtime.tokenizer.tokenizer import Tokenizer
from ..workloads.programs import WORKLOADS, Size
from .sides.peer_walk import Plan, first_texts


@dataclass(frozen=True)
class Level:
    """Load of a batch: its number of programs, and how many of them run at once."""

    name: str
    num_programs: int
    at_once: int


@dataclass(frozen=True)
class ProgramSizes:
    """`scale` is that of the workloads' lengths; see `Size`."""

    scale: float
    levels: tuple[Level, ...]

    @property
    def most(self) -> int:
        return max(level.num_programs for level in self.levels)


ONE_BY_ONE = "one by one"
SIZES = ProgramSizes(0.5, (Level("32 at once", 32, 32), Level(ONE_BY_ONE, 4, 1)))
QUICK_SIZES = ProgramSizes(0.05, (Level("4 at once", 4, 4), Level(ONE_BY_ONE, 1, 1)))


@dataclass(frozen=True)
class Found:
    """Result of a side with a batch of programs.

    seconds       for those that it finished, which may be fewer than it was given
    num_tokens    generated, those of choices not counted
    num_short     generations of other lengths than asked for
    num_matching  of `num_patterned` answers under a regular expression, those that satisfy it
    """

    seconds: float
    num_programs: int
    num_tokens: int
    num_short: int
    num_matching: int
    num_patterned: int

    @property
    def rate(self) -> float:
        """Programs a second."""
        return self.num_programs / self.seconds


class Plans:
    """Programs of all workloads, at the sizes of a run."""

    def __init__(self, tokenizer: Tokenizer, sizes: ProgramSizes) -> None:
        self._tokenizer = tokenizer
        size = Size(sizes.scale, sizes.most)
        self._programs = {name: make(size).programs[: sizes.most] for name, make in WORKLOADS.items()}

    @property
    def names(self) -> list[str]:
        return list(self._programs)

    def make(self, name: str, number: int, count: int, *, roles: bool) -> list[Plan]:
        """The first `count` programs of a workload for round `number`.

        Each round's texts begin with other words, so that no cache holds anything of the rounds before. With `roles`,
        messages are instructions of their own; else they are text as the model's chat template writes it.
        """
        plans = [plan_of(ops) for ops in self._programs[name][:count]]
        for plan in plans:
            for op in first_texts(plan):
                op[2][0] = f"Round {number}. {op[2][0]}"
        return plans if roles else [written(plan, self._tokenizer.chat.role_pieces) for plan in plans]


def written(plan: Plan, pieces: Callable[[tuple[str, ...], str], tuple[str, str]]) -> Plan:
    """The same plan with text in place of roles: what `pieces` has around a message after messages of such roles."""
    found: Plan = []
    roles: dict[int, tuple[str, ...]] = {0: ()}
    suffixes: dict[int, str] = {}
    for op in plan:
        kind, branch = op[0], op[1]
        if kind == "role":
            prefix, suffixes[branch] = pieces(roles[branch], op[2])
            roles[branch] = (*roles[branch], op[2])
            op = ["text", branch, [prefix]]
        elif kind == "end":
            op = ["text", branch, [suffixes[branch]]]
        elif kind == "fork":
            roles |= dict.fromkeys(op[2], roles[branch])
        found.append(op)
    return found


def plan_of(ops: Sequence[Op]) -> Plan:
    """A recorded program as data."""
    roles: dict[int, str] = {}
    return [_instruction(op, roles) for op in ops]


def _instruction(op: Op, roles: dict[int, str]) -> list[Any]:
    """A recorded instruction as data; `roles` has the message that is open in each branch."""
    match op:
        case Text():
            known = [part for part in op.parts if not isinstance(part, Hole)]  # only templates have holes
            return ["text", op.branch, [part if isinstance(part, str) else [part.branch, part.name] for part in known]]
        case Gen():
            pattern = op.grammar.pattern if isinstance(op.grammar, Regex) else None
            return ["gen", op.branch, op.name, op.sampling.max_tokens, pattern]
        case Select():
            return ["select", op.branch, op.name, list(op.choices)]
        case Fork() | Join():
            return ["fork" if isinstance(op, Fork) else "join", op.branch, list(op.children)]
        case RoleBegin():
            roles[op.branch] = op.role
            return ["role", op.branch, op.role]
        case RoleEnd():
            return ["end", op.branch, roles[op.branch]]
    raise NotImplementedError(f"the workloads have no {type(op).__name__}")


def check(plans: Sequence[Plan], answer: Mapping[str, Any]) -> Found:
    """Checks and counts a side's answer to `plans`.

    answer   {"seconds", "programs"}: of each program None if it was not finished, else [branch, name, text, number of
             tokens or None] for each value

    Raises:
        ValueError: values are missing, or a choice is none of those given.
    """
    num_tokens = num_short = num_matching = num_patterned = 0
    finished = [(plan, values) for plan, values in zip(plans, answer["programs"], strict=True) if values is not None]
    if not finished:
        raise ValueError("no program was finished in time")
    for plan, values in finished:
        found = {(branch, name): (text, count) for branch, name, text, count in values}
        for kind, branch, name, *asked in (op for op in plan if op[0] in ("gen", "select")):
            if (branch, name) not in found:
                raise ValueError(f"there is no {name} of branch {branch}")
            text, count = found[branch, name]
            if kind == "select":
                if text not in asked[0]:
                    raise ValueError(f"{text!r} is none of the choices")
                continue
            num_wanted, pattern = asked
            num_tokens += num_wanted if count is None else count
            num_short += pattern is None and count not in (None, num_wanted)
            num_patterned += pattern is not None
            num_matching += pattern is not None and re.fullmatch(pattern, text) is not None
    return Found(answer["seconds"], len(finished), num_tokens, num_short, num_matching, num_patterned)
