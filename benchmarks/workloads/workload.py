"""Workloads: programs, recorded instruction by instruction, and sizes that one number scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...constrain.spec import GrammarSpec
from ...runtime.protocol.program import Fork, Gen, Join, Op, Ref, RoleBegin, RoleEnd, Select, Text
from ...runtime.protocol.sampling_params import SamplingParams


@dataclass(frozen=True)
class Size:
    """Scales a workload: the number of programs with `scale`, the lengths in words and tokens with its root.

    num_programs   about as many, whatever the scale
    """

    scale: float = 1.0
    num_programs: int | None = None

    def programs(self, standard: int, *, least: int = 2) -> int:
        return self.num_programs or self.count(standard, least=least)

    def count(self, standard: int, *, least: int = 2) -> int:
        return max(least, round(standard * self.scale))

    def length(self, standard: int, *, least: int = 6) -> int:
        return max(least, round(standard * math.sqrt(self.scale)))


@dataclass(frozen=True)
class Workload:
    """`programs` may run in any order or at once. `about` says in a few words what they share."""

    name: str
    about: str
    programs: tuple[tuple[Op, ...], ...]


class Script:
    """Records one program, which begins with `texts`, an instruction each.

    Generation is greedy and of fixed length, so that every run does the same work.
    """

    def __init__(self, *texts: str) -> None:
        self._ops: list[Op] = [Text(0, (text,)) for text in texts]
        self._num_branches = 1
        self._num_values = 0

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(self._ops)

    def text(self, *parts: str | Ref, branch: int = 0) -> None:
        self._ops.append(Text(branch, parts))

    def message(self, role: str, *parts: str | Ref, branch: int = 0) -> None:
        self._ops += [RoleBegin(branch, role), Text(branch, parts), RoleEnd(branch)]

    def answer(self, max_tokens: int, *, branch: int = 0) -> Ref:
        """A message of the assistant that is generated."""
        self._ops.append(RoleBegin(branch, "assistant"))
        value = self.gen(max_tokens, branch=branch)
        self._ops.append(RoleEnd(branch))
        return value

    def gen(self, max_tokens: int, *, branch: int = 0, grammar: GrammarSpec | None = None) -> Ref:
        value = self._value(branch)
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=grammar is None)
        self._ops.append(Gen(branch, value.name, sampling, grammar))
        return value

    def select(self, choices: Sequence[str], *, branch: int = 0) -> Ref:
        value = self._value(branch)
        self._ops.append(Select(branch, value.name, tuple(choices), "token_length_normalized"))
        return value

    def fork(self, count: int, *, branch: int = 0) -> tuple[int, ...]:
        children = tuple(range(self._num_branches, self._num_branches + count))
        self._num_branches += count
        self._ops.append(Fork(branch, children))
        return children

    def join(self, children: Sequence[int], *, branch: int = 0) -> None:
        self._ops.append(Join(branch, tuple(children)))

    def _value(self, branch: int) -> Ref:
        self._num_values += 1
        return Ref(branch, f"value{self._num_values}")
