"""Progress of one generation: its tokens, how many of them are computed, and its claim on KV pages."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..radix import Lease


@dataclass(eq=False, slots=True)
class Sequence:
    """What the scheduler knows of a request. Mutated by the scheduler alone.

    0 <= num_computed <= len(tokens) always, and num_computed < len(tokens) while there is something to do.

    tokens        prompt and generated token ids
    num_prompt    how many of them are prompt
    score_from    first prompt token whose log-probability is asked for (None: this is a generation)
    drafts        proposed next tokens, computed and verified together with the last real one
    num_computed  tokens whose keys and values are in `lease`'s pages
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
    score_from: int | None = None
    deadline: float | None = None
    drafts: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int | None = None
    lease: Lease | None = None
    passes: int = 0
    preemptions: int = 0

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def prefilling(self) -> bool:
        return self.num_computed < self.num_prompt - 1 or self.num_uncomputed > 1

    @property
    def match_limit(self) -> int:
        """Tokens that may be taken from the cache: a position whose logits are asked for must be computed."""
        return len(self.tokens) - 1 if self.score_from is None else self.score_from - 1
