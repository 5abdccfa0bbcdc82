"""Random programs of conditions, loops, tools, and branches that fail, together with what must come of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from bough.runtime.protocol.condition import Compare, Condition, Count, Either, Every, Matches, Negation, Operand, Times
from bough.runtime.protocol.program import (
    Assign,
    Cancel,
    Fork,
    Gen,
    Join,
    JoinMode,
    Op,
    Part,
    Ref,
    Repeat,
    RoleEnd,
    Select,
    Text,
    Use,
    When,
)
from bough.runtime.protocol.sampling_params import SamplingParams

from .oracle import BrokenError, Oracle

MODES: tuple[JoinMode, ...] = ("gather", "append")
PATTERNS = (r"[a-z]+", r".*e.*", r"(a|b|e)*", r"\d+", r"[^x]{0,3}")


class UpperTool:
    """Shouts."""

    name = "upper"
    timeout_s = None
    max_chars = 1000
    parameters = None

    def call(self, arguments: dict[str, Any]) -> str:
        return str(arguments["text"])[:8].upper() + "!"


TOOLS = {"upper": lambda text: UpperTool().call({"text": text})}


class ControlPrograms:
    """Writes a program instruction by instruction, along with the oracle that does it.

    Instructions refer to what is known to be there: the values that the oracle has, and in a block those that the
    block has made before.
    """

    def __init__(self, seed: int, bias: dict[int, float], *, tools: bool = True) -> None:
        self.rng = random.Random(seed)
        self.oracle = Oracle(bias, TOOLS)
        self.tools = tools
        self.num_branches = 1
        self.num_names = 0
        self.children: dict[int, list[int]] = {0: []}

    def stretch(self, num_ops: int, *, cancels: bool = False) -> list[Op]:
        """The next so many instructions outside of blocks."""
        ops: list[Op] = []
        if self.num_branches == 1 and not self.oracle.branches[0].tokens:
            ops.append(Text(0, ("Once upon a time, ",)))
            self.oracle.run(ops)
        alive = [branch for branch in self.children if branch and branch not in self.oracle.failed]
        if cancels and alive:
            ops.append(Cancel(self.rng.choice(alive)))
            self.oracle.run(ops)
        while len(ops) < num_ops:
            branch = self.rng.choice(list(self.children))
            around = self.isolated_around(branch)
            history = self.oracle.history
            made = [Ref(number, name) for number, name in history if self.isolated_around(number) <= around]
            op = self.op(branch, made, self.children, depth=0)
            before = deepcopy((self.oracle.branches, self.oracle.history))
            try:
                self.oracle.run([op])
            except BrokenError:  # it would end all
                self.oracle.branches, self.oracle.history = before
                continue
            ops.append(op)
            self.adopt(op)
        return ops

    def isolated_around(self, branch: int) -> set[int]:
        """The isolated branches that it is or descends from: whoever fails in one ends the others, sooner or later."""
        found: set[int] = set()
        number: int | None = branch
        while number is not None and number in self.oracle.branches:
            copy = self.oracle.branches[number]
            found |= {number} if copy.isolated else set()
            number = copy.parent
        return found

    def adopt(self, op: Op) -> None:
        if isinstance(op, Fork):
            self.children[op.branch] += op.children
            self.children |= {child: [] for child in op.children}

    def name(self) -> str:
        self.num_names += 1
        return f"v{self.num_names}"

    def op(
        self, branch: int, made: list[Ref], children: dict[int, list[int]], depth: int, *, repeated: bool = False
    ) -> Op:
        rng = self.rng
        kinds = {"text": 5, "gen": 5, "select": 1, "assign": 2, "fork": 2, "join": 2, "break": 0.3}
        kinds |= {"when": 3, "repeat": 2} if depth < 3 and made else {}
        kinds |= {"use": 1} if self.tools and made else {}
        while True:
            match rng.choices(list(kinds), list(kinds.values()))[0]:
                case "text":
                    parts: list[Part] = [*rng.sample(made, min(len(made), 1))]
                    return Text(branch, (rng.choice(["and so ", "ünd 日本 ", "🦊.", "\n"]), *parts))
                case "gen":
                    sampling = SamplingParams(max_tokens=rng.randrange(1, 6), temperature=0.0)
                    return Gen(branch, self.name(), sampling)
                case "select":
                    return Select(branch, self.name(), tuple(rng.sample(["yes", "no", "né", "yes!", "x"], 3)))
                case "assign":
                    return Assign(branch, self.name(), (rng.choice(["one", "2", "zwölf"]), *made[-1:]))
                case "use":
                    return Use(branch, self.name(), "upper", (("text", (rng.choice(made),)),), rng.random() < 0.5)
                case "break":
                    return RoleEnd(branch)
                case "fork" if self.num_branches < 40:
                    isolated = rng.random() < 0.7
                    return Fork(branch, self.new_branches(), isolated, rng.randrange(3) if isolated else 0)
                case "join" if children[branch]:
                    joined = rng.sample(children[branch], rng.randrange(1, len(children[branch]) + 1))
                    return Join(branch, tuple(joined), rng.choice(MODES))
                case "when":
                    then, otherwise = (tuple(self.block(branch, made, depth, repeated=repeated)) for _ in range(2))
                    return When(branch, self.condition(branch, made), then, otherwise)
                case "repeat":
                    body = tuple(self.block(branch, made, depth, repeated=True))
                    return Repeat(branch, body, self.condition(branch, made), rng.randrange(1, 4))

    def new_branches(self) -> tuple[int, ...]:
        start = self.num_branches
        self.num_branches += self.rng.randrange(1, 3)
        return tuple(range(start, self.num_branches))

    def block(self, branch: int, made: list[Ref], depth: int, *, repeated: bool) -> Iterator[Op]:
        """Instructions of `branch` and what they fork; in a loop all is joined at the end."""
        children: dict[int, list[int]] = {branch: []}
        here = list(made)
        doubtful: set[int] = set()
        for _ in range(self.rng.randrange(0, 5)):
            number = self.rng.choice(list(children))
            op = self.op(number, here, children, depth + 1, repeated=repeated)
            if isinstance(op, RoleEnd) and number == branch:
                continue
            yield op
            if isinstance(op, Fork):
                children[number] += op.children
                children |= {child: [] for child in op.children}
                if op.isolated or number in doubtful:
                    doubtful |= set(op.children)
            if isinstance(op, Gen | Select | Assign | Use) and number not in doubtful:
                here.append(Ref(number, op.name))
        if repeated or self.rng.random() < 0.5:
            for number in reversed(children):
                if children[number]:
                    yield Join(number, tuple(children[number]), self.rng.choice(MODES))

    def condition(self, branch: int, made: list[Ref], depth: int = 0) -> Condition:
        rng = self.rng
        few = lambda: tuple(self.condition(branch, made, depth + 1) for _ in range(rng.randrange(3)))  # noqa: E731
        match rng.randrange(8 if depth < 2 else 4):
            case 0:
                return Matches(rng.choice(made), rng.choice(PATTERNS))
            case 4:
                return Every(few())
            case 5:
                return Either(few())
            case 6:
                return Negation(self.condition(branch, made, depth + 1))
            case 7:
                return Compare(Count(few()), rng.choice(("ge", "lt")), 1)
        sides: list[Operand] = [*made[-3:], Times(branch, rng.choice(made).name)]
        others: list[Operand] = ["e", "one", "2", 2, 1.5, *made[-2:]]
        left, right = rng.choice(sides), rng.choice(others)
        return Compare(left, rng.choice(("eq", "ne", "lt", "le", "gt", "ge", "contains")), right)
