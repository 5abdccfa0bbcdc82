"""Validation of submissions before execution: checks that they are well-formed, and collects each block's needs."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...constrain.spec import spec_chars
from ..protocol.condition import Compare, Condition, Hole, Matches, nodes
from ..protocol.errors import RequestError
from ..protocol.patterns import PatternCache
from ..protocol.program import (
    Assign,
    CallTools,
    Cancel,
    Fork,
    Gen,
    Join,
    Offer,
    Op,
    Part,
    Repeat,
    Select,
    Text,
    Use,
    When,
)
from ..protocol.sampling_params import SamplingParams
from ..tools.arguments import check_names
from ..tools.registry import ToolCall, unknown_tool
from .costs import (
    CHARS_PER_TOKEN,
    CHILDREN_PER_WORK,
    COPIED_PER_WORK,
    OP_TOKENS,
    PART_TOKENS,
    PARTS_PER_WORK,
)

MAX_OPS = 100_000
MAX_BRANCHES = 4096
MAX_DEPTH = 32
MAX_TURNS = 1000
MAX_RETRIES = 16
MAX_PATTERNS = 64
MAX_STOP_PATTERNS = 16
MAX_CHOICES = 1024
MAX_CHOICE_CHARS = 1 << 17
"""Most characters of all choices of a select."""

MAX_OFFERED = 128
MAX_PARTS = 16_384
"""Most parts of one instruction's text, arguments or condition, which are joined in one go."""

MAX_ENTRIES = 8192
"""Most instructions of a block, with the branches that are joined in it, which are queued in one go."""

MAX_VALUES = 16_384
"""Most values made in a block, at any depth."""

OPS_PER_LOOK = 64
"""Instructions that are read or queued between two checks of the time."""

BranchId = int
Place = tuple[int, int]
"""Index of a Join, and one of its children."""


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """An instruction with its index in recorded order, and its blocks: those of a When, or the one of a Repeat.

    `outer` are the joins in its blocks whose children are older than the block; `work` is that of going through its
    parts or its condition once.
    """

    index: int
    op: Op
    blocks: tuple[Block, ...] = ()
    outer: tuple[Place, ...] = ()
    work: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Instructions that are entered together.

    forks       forks in it at any depth: children, with their parents and options
    values      values that instructions in it make, at any depth
    work        work of queueing it, or of passing over it
    """

    items: tuple[Item, ...]
    forks: tuple[Fork, ...]
    values: tuple[tuple[BranchId, str], ...]
    work: int


@dataclass(eq=False)
class _Scope:
    """An open block, or the submission itself: its place, its forks, and the progress of its branches."""

    depth: int
    branch: BranchId | None = None
    in_repeat: bool = False
    forks: list[Fork] = field(default_factory=list)
    values: list[tuple[BranchId, str]] = field(default_factory=list)
    outer: list[Place] = field(default_factory=list)
    forked: dict[BranchId, int] = field(default_factory=dict)
    last_use: dict[BranchId, int] = field(default_factory=dict)
    last_join: dict[BranchId, int] = field(default_factory=dict)


class SubmissionReader:
    """Reads one submission. `known` maps the existing branches to True if its instructions may be for them.

    `num_tokens` is the approximate memory of the submission, in tokens.
    """

    def __init__(self, known: Mapping[BranchId, bool], tools: Mapping[str, ToolCall], patterns: PatternCache) -> None:
        self.num_tokens = 0
        self._patterns: set[str] = set()
        self._stop_patterns: set[str] = set()
        self._tools = tools
        self._cache = patterns
        self._num_ops = 0
        self._size = 0
        root = _Scope(depth=0)
        self._chain = [root]
        # Scope of each branch; None if that is closed.
        self._scopes: dict[BranchId, _Scope | None] = {
            number: root if open_ else None for number, open_ in known.items()
        }

    @property
    def index(self) -> int:
        """Index of the instruction that was examined last."""
        return max(self._num_ops - 1, 0)

    def read(self, ops: tuple[Op, ...]) -> Block:
        """Reads the whole submission.

        Raises:
            RequestError: an instruction is not well-formed, or a limit is exceeded.
        """
        reading = self.reading(ops)
        while True:
            try:
                next(reading)
            except StopIteration as end:
                block: Block = end.value
                return block

    def reading(self, ops: tuple[Op, ...]) -> Generator[None, None, Block]:
        """Reads the submission in steps of a few milliseconds, or of 20 ms where a pattern is compiled. See `read`."""
        if not 1 <= len(ops) <= MAX_OPS:
            raise _refused(f"a program must have 1 to {MAX_OPS} instructions, got {len(ops)}")
        block = yield from self._read(ops, self._chain[0])
        if len(self._scopes) > MAX_BRANCHES:
            raise _refused(f"a program may have {MAX_BRANCHES} branches at most")
        return block

    def _read(self, ops: tuple[Op, ...], scope: _Scope) -> Generator[None, None, Block]:
        items: list[Item] = []
        num_entries = 0
        for op in ops:
            if isinstance(op, When | Repeat):
                items.append((yield from self._blocks(op, scope)))
            else:
                items.append(self._item(op, scope))
            num_entries += 1 + len(items[-1].outer) + (len(op.children) if isinstance(op, Join) else 0)
            if self._num_ops % OPS_PER_LOOK == 0:
                yield
        if scope.in_repeat:
            for child, index in scope.forked.items():
                if scope.last_join.get(child, -1) <= scope.last_use.get(child, index):
                    message = f"instruction {index} forks branch {child} in a block that is repeated"
                    raise _refused(f"{message}: it must be joined there, after all that it does")
        if scope.depth and (num_entries > MAX_ENTRIES or len(scope.values) > MAX_VALUES):
            message = f"a block before instruction {self._num_ops} has too much in it: {MAX_ENTRIES} instructions and "
            raise _refused(f"{message}joined branches, and {MAX_VALUES} values, are the limit")
        num_children = sum(len(fork.children) for fork in scope.forks)
        work = num_entries // PARTS_PER_WORK + num_children // CHILDREN_PER_WORK
        return Block(tuple(items), tuple(scope.forks), tuple(scope.values), work)

    def _item(self, op: Op, scope: _Scope) -> Item:
        index, work = self._begin(op, scope), 0
        match op:
            case Fork():
                self._fork(op, index, scope)
            case Join():
                self._join(op, index, scope)
            case Use():
                work = self._check_use(op, index)
                scope.values.append((op.branch, op.name))
            case CallTools(tools=tools):
                self._check_offered(tools, index)
                scope.values.append((op.branch, op.name))
            case Gen(sampling=sampling, grammar=grammar):
                self._check_stop_pattern(sampling.stop_regex)
                self.num_tokens += spec_chars(grammar) // CHARS_PER_TOKEN
                if op.offer is not None:
                    self._check_offer(op.offer, sampling, index)
                scope.values.append((op.branch, op.name))
            case Select(choices=choices):
                self._take(len(choices), sum(map(len, choices[:MAX_CHOICES])))
                scope.values.append((op.branch, op.name))
            case Text(parts=parts) | Assign(parts=parts):
                work = self._check_parts(parts, index)
            case Cancel() if scope.branch is not None and op.branch != scope.branch:
                raise _refused(f"instruction {index}, in a block, cancels branch {op.branch}, which is not its own")
        return Item(index, op, work=work)

    def _begin(self, op: Op, scope: _Scope) -> int:
        """Counts an instruction and returns its index."""
        index = self._count()
        self.num_tokens += OP_TOKENS
        self._check_branch(op.branch, index, scope)
        scope.last_use[op.branch] = index
        return index

    def _take(self, num_parts: int, num_chars: int = 0) -> None:
        self.num_tokens += num_parts * PART_TOKENS + num_chars // CHARS_PER_TOKEN

    def _count(self) -> int:
        """Returns the index of the next instruction."""
        index, self._num_ops = self._num_ops, self._num_ops + 1
        if self._num_ops > MAX_OPS:
            raise _refused(f"a program must have 1 to {MAX_OPS} instructions, those in blocks included")
        return index

    def _check_stop_pattern(self, pattern: str | None) -> None:
        if pattern is not None:
            self._stop_patterns.add(pattern)
            if len(self._stop_patterns) > MAX_STOP_PATTERNS:
                raise _refused(f"a program may have {MAX_STOP_PATTERNS} different stop_regex at most")

    def _add_size(self, count: int, what: str) -> None:
        """Counts entries of an instruction against the limit."""
        self._size += count
        self._take(count)
        if self._num_ops + self._size > MAX_OPS:
            raise _refused(f"the {what} of a program may name {MAX_OPS} branches and values at most")

    def _check_branch(self, branch: BranchId, index: int, scope: _Scope) -> None:
        if branch not in self._scopes:
            raise _refused(f"instruction {index} is for branch {branch}, which does not exist")
        if branch != scope.branch and self._scopes[branch] is not scope:
            where = "in another block" if self._scopes[branch] is None else "outside of the block"
            message = f"instruction {index} is for branch {branch}, which is forked {where}"
            raise _refused(f"{message}: it can be used there only")

    def _fork(self, op: Fork, index: int, scope: _Scope) -> None:
        if not 0 <= op.retries <= MAX_RETRIES:
            raise _refused(f"instruction {index}: retries must be 0 to {MAX_RETRIES}, got {op.retries}")
        if op.retries and not op.isolated:
            raise _refused(f"instruction {index}: only an isolated branch can be begun anew: retries need isolated")
        for child in op.children:
            if child in self._scopes:
                raise _refused(f"instruction {index} forks branch {child}, which exists")
            self._scopes[child] = scope
            scope.forked[child] = index
        if len(self._scopes) > MAX_BRANCHES:
            raise _refused(f"a program may have {MAX_BRANCHES} branches at most")
        scope.forks.append(op)

    def _join(self, op: Join, index: int, scope: _Scope) -> None:
        if len(op.children) > MAX_BRANCHES:
            raise _refused(f"instruction {index} joins {len(op.children)} branches, but {MAX_BRANCHES} is the limit")
        self._add_size(len(op.children), "joins")
        for child in op.children:
            owner = self._scopes.get(child)
            if owner is None or child == op.branch:
                raise _refused(f"instruction {index} joins branch {child}, which is not a child")
            scope.last_join[child] = index
            for inner in self._chain[owner.depth + 1 :]:
                if inner.branch != child:
                    inner.outer.append((index, child))

    def _blocks(self, op: When | Repeat, scope: _Scope) -> Generator[None, None, Item]:
        index = self._begin(op, scope)
        if scope.depth >= MAX_DEPTH:
            raise _refused(f"instruction {index}: blocks may be nested {MAX_DEPTH} levels deep")
        if isinstance(op, When):
            work = yield from self._check_condition(op.condition, index)
            bodies: tuple[tuple[Op, ...], ...] = (op.then, op.otherwise)
        else:
            work = yield from self._check_condition(op.until, index)
            bodies = (op.body,)
            if not 1 <= op.at_most <= MAX_TURNS:
                raise _refused(f"instruction {index}: at_most must be 1 to {MAX_TURNS}, got {op.at_most}")
        blocks, outer = [], []
        for body in bodies:
            inner = _Scope(scope.depth + 1, op.branch, scope.in_repeat or isinstance(op, Repeat))
            self._chain.append(inner)
            blocks.append((yield from self._read(body, inner)))
            self._chain.pop()
            outer += inner.outer
            scope.forks += inner.forks
            scope.values += inner.values
            if len(outer) > MAX_ENTRIES:
                raise _refused(f"the blocks of instruction {index} join more than {MAX_ENTRIES} branches from outside")
            self._scopes.update(dict.fromkeys(inner.forked))
        return Item(index, op, tuple(blocks), tuple(outer), work)

    def _check_condition(self, condition: Condition, index: int) -> Generator[None, None, int]:
        """Checks a condition; returns the work of deciding it, without that of the values it reads."""
        num_parts = num_chars = 0
        for node in nodes(condition):
            self._add_size(1, "conditions")
            num_parts += 1
            if num_parts > MAX_PARTS:
                raise _too_many(index, f"more than {MAX_PARTS}")
            if isinstance(node, Compare | Matches):
                sides = (node.left, node.right) if isinstance(node, Compare) else (node.text,)
                num_chars += sum(len(side) for side in sides if isinstance(side, str))
            if isinstance(node, Hole):
                raise _hole(node, index)
            if isinstance(node, Matches) and node.pattern not in self._patterns:
                if len(self._patterns) >= MAX_PATTERNS:
                    raise _refused(f"the conditions of a program may have {MAX_PATTERNS} patterns at most")
                is_new = node.pattern not in self._cache
                self._cache.get(node.pattern)
                self._patterns.add(node.pattern)
                if is_new:
                    yield
        self.num_tokens += num_chars // CHARS_PER_TOKEN
        return _work_of(num_parts, num_chars)

    def _check_parts(self, parts: Sequence[Part], index: int) -> int:
        """Checks parts; returns the work of going through them."""
        if len(parts) > MAX_PARTS:
            raise _too_many(index, str(len(parts)))
        for part in parts:
            if isinstance(part, Hole):
                raise _hole(part, index)
        num_chars = sum(len(part) for part in parts if isinstance(part, str))
        self._take(len(parts), num_chars)
        return _work_of(len(parts), num_chars)

    def _check_use(self, op: Use, index: int) -> int:
        tool = self._tools.get(op.tool)
        if tool is None:
            raise unknown_tool(index, op.tool, self._tools)
        if op.timeout_s is not None and (math.isnan(op.timeout_s) or op.timeout_s <= 0):
            raise _refused(f"instruction {index}: timeout_s must be a positive number of seconds, got {op.timeout_s:g}")
        num_parts = sum(1 + len(parts) for _, parts in op.arguments)
        if num_parts > MAX_PARTS:
            raise _too_many(index, str(num_parts))
        check_names(tool, [name for name, _ in op.arguments])
        num_chars = sum(len(part) for _, parts in op.arguments for part in parts if isinstance(part, str))
        for _, parts in op.arguments:
            self._check_parts(parts, index)
        return _work_of(num_parts, num_chars)

    def _check_offer(self, offer: Offer, sampling: SamplingParams, index: int) -> None:
        self._check_offered(offer.tools, index)
        if offer.only and offer.only not in offer.tools:
            raise _refused(f"instruction {index}: the tool {offer.only!r} is not among those that are offered")
        if sampling.n != 1:
            raise _refused(f"instruction {index}: with tools there is one sample, got n={sampling.n}")

    def _check_offered(self, tools: Sequence[str], index: int) -> None:
        if not 1 <= len(set(tools)) == len(tools) <= MAX_OFFERED:
            raise _refused(f"instruction {index}: 1 to {MAX_OFFERED} different tools can be offered")
        self._add_size(len(tools), "offers")
        for name in tools:
            if name not in self._tools:
                raise unknown_tool(index, name, self._tools)


def joins_of(item: Item) -> Iterator[Place]:
    """Yields the joins of children that the instruction needs barriers for."""
    if isinstance(item.op, Join):
        yield from ((item.index, child) for child in item.op.children)
    yield from item.outer


def _work_of(num_parts: int, num_chars: int) -> int:
    return num_parts // PARTS_PER_WORK + num_chars // COPIED_PER_WORK


def _hole(hole: Hole, index: int) -> RequestError:
    message = (
        f"instruction {index} has a hole for {hole.name!r}: a template is no program before its arguments are put in"
    )
    return RequestError(message, code="invalid_program", param="ops")


def _too_many(index: int, num_parts: str) -> RequestError:
    return _refused(f"instruction {index} has {num_parts} parts, but {MAX_PARTS} is the limit")


def _refused(message: str) -> RequestError:
    return RequestError(message, param="ops")


def check_choices(choices: Sequence[str]) -> None:
    """Raises RequestError if there are no choices or too many, or an empty one, or if they are too long in all."""
    if not choices or not all(choices):
        raise RequestError("a select needs choices, and none of them may be empty", param="choices")
    if len(choices) > MAX_CHOICES:
        raise RequestError(f"a select may have {MAX_CHOICES} choices at most", param="choices")
    num_chars = sum(map(len, choices))
    if num_chars > MAX_CHOICE_CHARS:
        message = f"the choices of a select have {num_chars} characters, but {MAX_CHOICE_CHARS} is the limit"
        raise RequestError(message, param="choices")
