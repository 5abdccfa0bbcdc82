"""Aggregate numbers of many runs, and their shared prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .events import RunRecord
from .tree import BranchTree, MessagePieces

MIN_SHARED = 4
"""Tokens: what is shorter is not worth a word."""

_SUMMED = (
    "branches",
    "generations",
    "tools",
    "cached_tokens",
    "prefilled_tokens",
    "sampled_tokens",
    "forced_tokens",
    "unused_tokens",
    "prompt_tokens",
    "saved_tokens",
)


@dataclass(frozen=True)
class BatchMember:
    """A run of a batch: its number from 1 on, and when it began."""

    number: int
    start_s: float
    title: str
    roots: tuple[BranchTree, ...]
    record: RunRecord
    summary: Mapping[str, str | int | float]

    @property
    def elapsed_s(self) -> float:
        return float(self.summary["elapsed_s"])

    @property
    def failed(self) -> bool:
        return self.record.error is not None


@dataclass(frozen=True)
class Shared:
    """A beginning that several runs have in common.

    num_tokens   from the start
    num_own      of these, the last ones, which the larger group around has not in common
    text         of those last ones
    programs     indices, in order
    """

    num_tokens: int
    num_own: int
    text: str
    programs: tuple[int, ...]
    depth: int = 0

    @property
    def saved_tokens(self) -> int:
        """Tokens that need not be computed, since one run has computed them for all."""
        return self.num_own * (len(self.programs) - 1)

    def excerpt(self, length: int) -> str:
        """The text, with its middle left out if it is long."""
        text = self.text
        return text if len(text) <= length else f"{text[: length * 2 // 3]} … {text[-length // 3 :]}"


def first_tokens(roots: Sequence[BranchTree], *, template: bool = True) -> list[str]:
    """The texts of the tokens that a run begins with, up to where it generates or forks for the first time. Without
    `template`, a space stands for what the chat template has written."""
    texts: list[str] = []
    for item in roots[0].items if roots else ():
        if not isinstance(item, MessagePieces):
            break
        for piece in item.pieces:
            if piece.kind in ("gen", "select", "tool"):
                return texts
            texts += piece.texts if template or piece.kind != "role" else (" ",)
    return texts


def shared_beginnings(runs: Sequence[Sequence[str]]) -> list[Shared]:
    """The beginnings that two or more have in common, as a tree read from its root, what saves most first."""
    found: list[Shared] = []
    stack = [(list(range(len(runs))), 0, 0)]
    while stack:
        group, start, depth = stack.pop()
        stop = _common(runs, group, start)
        if len(group) > 1 and stop - start >= MIN_SHARED:
            found.append(Shared(stop, stop - start, "".join(runs[group[0]][start:stop]), tuple(group), depth))
            start, depth = stop, depth + 1
        parts: dict[str, list[int]] = {}
        for index in group:
            if len(runs[index]) > stop:
                parts.setdefault(runs[index][stop], []).append(index)
        stack += [(part, start, depth) for part in parts.values() if len(part) > 1]
    return sorted(found, key=lambda shared: (-shared.saved_tokens, shared.programs))


def _common(runs: Sequence[Sequence[str]], group: Sequence[int], start: int) -> int:
    """Returns where the runs of a group part, which agree up to `start`."""
    stop = min(len(runs[index]) for index in group) if group else 0
    first = runs[group[0]] if group else ()
    for index in group[1:]:
        other = runs[index]
        stop = next((at for at in range(start, stop) if other[at] != first[at]), stop)
    return stop


def summed(members: Sequence[BatchMember]) -> dict[str, str | int | float]:
    """The numbers of a batch. Times are of single runs, `elapsed_s` from the first's start to the last's end."""
    titles = list(dict.fromkeys(member.title for member in members))
    totals: dict[str, str | int | float] = {
        name: sum(int(member.summary[name]) for member in members) for name in _SUMMED
    }
    elapsed_s = max((member.start_s + member.elapsed_s for member in members), default=0.0)
    output = int(totals["sampled_tokens"]) + int(totals["forced_tokens"])
    times = sorted(member.elapsed_s for member in members)
    prompt = int(totals["prompt_tokens"])
    return {
        "title": ", ".join(titles[:3]) + (", ..." if len(titles) > 3 else "") or "nothing",
        "programs": len(members),
        "failed": sum(member.failed for member in members),
        **totals,
        "elapsed_s": elapsed_s,
        "p50_s": _quantile(times, 0.5),
        "p95_s": _quantile(times, 0.95),
        "output_tokens_per_s": output / elapsed_s if elapsed_s else 0.0,
        "cached_share": int(totals["saved_tokens"]) / prompt if prompt else 0.0,
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
