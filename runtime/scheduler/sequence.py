"""Progress of one generation: its tokens, how many of them are computed, and its claim on KV pages."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from ...radix import Lease
from .token_tree import TreeLayout


@dataclass(eq=False, slots=True)
class Sequence:
    """Progress of a request. The scheduler alone changes it; all others read.

    A step may be planned before the last one has been read, so what is planned and what is known are counted apart:
    0 <= num_settled <= num_computed <= length, which `check` asserts at birth and after each change.

    tokens        prompt and generated token ids, those that are known
    num_prompt    how many of them are prompt
    limit         prompt and generated tokens at most: no step is planned past it
    score_from    first prompt token whose log-probability is asked for (None: this is a generation)
    tree          how its last tokens follow each other, if they are no line
    drafts        proposed next tokens, to be computed and verified together with the last real one
    num_computed  tokens whose keys and values are in `lease`'s pages, or will be once the planned steps have run
    num_pending   tokens that planned steps draw and nobody has read yet; they follow `tokens`
    num_settled   tokens computed by steps that have been read: what others may find in the cache
    blocked       a planned step decides by how much it grows (drafts): nothing can be planned before that is read
    epoch         counts what made planned steps void (put back to wait, a token replaced); their results are dropped
    num_cached    of these, found in the prefix cache when it was first admitted
    lease         its pages; None while it waits: a waiting sequence holds none
    passes        steps it has waited since it was queued
    """

    id: str
    tokens: list[int]
    num_prompt: int
    arrival: int
    namespace: str = ""
    priority: int = 0
    limit: int = sys.maxsize
    score_from: int | None = None
    tree: TreeLayout | None = None
    deadline: float | None = None
    drafts: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_pending: int = 0
    num_settled: int = 0
    blocked: bool = False
    epoch: int = 0
    num_cached: int | None = None
    lease: Lease | None = None
    passes: int = 0
    retractions: int = 0

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Asserts the invariant of the counts."""
        assert 0 <= self.num_settled <= self.num_computed <= len(self.tokens) + self.num_pending, self

    @property
    def length(self) -> int:
        """Tokens, those included that are drawn but not known yet."""
        return len(self.tokens) + self.num_pending

    @property
    def num_uncomputed(self) -> int:
        return self.length - self.num_computed

    @property
    def ready(self) -> bool:
        """Whether a further step can be planned now."""
        if self.score_from is not None:
            return self.num_computed < self.num_to_score
        return not self.blocked and self.length < self.limit

    @property
    def num_to_score(self) -> int:
        """Tokens to compute for a score: nothing follows the last one of a line, so it need not be."""
        return len(self.tokens) - (self.tree is None)

    @property
    def num_shareable(self) -> int:
        """Tokens that others may find in the cache: those that follow one another."""
        return len(self.tokens) if self.tree is None else self.tree.num_linear

    def rewind(self, num_computed: int) -> None:
        """Makes void what is planned beyond the first `num_computed` tokens."""
        self.num_computed = self.num_settled = num_computed
        self.num_pending = 0
        self.blocked = False
        self.drafts = []
        self.epoch += 1
        self.check()

    @property
    def prefilling(self) -> bool:
        return self.num_computed < self.num_prompt - 1 or self.num_uncomputed > 1

    @property
    def match_limit(self) -> int:
        """Tokens that may be taken from the cache: a position whose logits are asked for must be computed."""
        return len(self.tokens) - 1 if self.score_from is None else self.score_from - 1
