"""Stand-ins for a model: keys and values as a hash chain that is read only through the page table."""

from __future__ import annotations

from bough.radix import PrefixCache
from bough.runtime.scheduler import Advance, Plan, Scheduler
from bough.runtime.sequence import Sequence

_MASK = (1 << 61) - 1


def chain(previous: int, token: int) -> int:
    """What the slot after `previous` holds once `token` is computed."""
    return (previous * 6364136223846793005 + token * 1442695040888963407 + 12345) & _MASK


def root(namespace: str) -> int:
    return sum(ord(c) * 31**i for i, c in enumerate(namespace)) + 7


def reference(prompt: list[int], namespace: str, num_tokens: int, vocab_size: int) -> list[int]:
    """What the fake model generates, computed without cache, pages or batches."""
    state = root(namespace)
    for token in prompt:
        state = chain(state, token)
    out = []
    for _ in range(num_tokens):
        out.append(state % vocab_size)
        state = chain(state, out[-1])
    return out


class FakeModel:
    """Writes (position, token) into the slot that the page table names, and reads its context back from there."""

    def __init__(self, num_pages: int, page_size: int, vocab_size: int) -> None:
        self.slots = [-1] * (num_pages * page_size)
        self.page_size = page_size
        self.vocab_size = vocab_size

    def run(self, plan: Plan) -> list[list[int]]:
        """The token that each logits position of each work chooses."""
        chosen = []
        for work in plan.work:
            sequence = work.sequence
            assert sequence.lease is not None
            tokens = [*sequence.tokens, *sequence.drafts]
            picks = []
            for position in range(work.start, work.stop):
                before = self.slots[self._slot(sequence, position - 1)] if position else root(sequence.namespace)
                assert before >= 0, "a slot was read before it was written"
                self.slots[self._slot(sequence, position)] = chain(before, tokens[position])
                if work.logits_start <= position < work.logits_stop:
                    picks.append(self.slots[self._slot(sequence, position)] % self.vocab_size)
            chosen.append(picks)
        return chosen

    def _slot(self, sequence: Sequence, position: int) -> int:
        assert sequence.lease is not None
        return sequence.lease.pages[position // self.page_size] * self.page_size + position % self.page_size


def advance(sequence: Sequence, picks: list[int], max_tokens: int) -> Advance:
    """Accepts picks as long as they equal the drafts, and one more; ends at `max_tokens` generated tokens."""
    accepted: list[int] = []
    for index, pick in enumerate(picks):
        accepted.append(pick)
        if len(sequence.tokens) - sequence.num_prompt + len(accepted) >= max_tokens:
            return Advance(tuple(accepted), finished=True)
        if index >= len(sequence.drafts) or pick != sequence.drafts[index]:
            break
    return Advance(tuple(accepted))


def leases(scheduler: Scheduler) -> list[object]:
    return [sequence.lease for sequence in scheduler.running]


def new_cache(num_pages: int, page_size: int) -> PrefixCache:
    return PrefixCache(num_pages, page_size)
