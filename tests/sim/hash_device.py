"""A device whose keys and values are a hash chain: a slot is written from the one before it, through the page table.

Any page that is wrong, stale, shared or foreign changes what is read, and so what is generated.
"""

from __future__ import annotations

from bough.runtime.scheduler.scheduler import Plan, Sequence

from ..support.fakes import chain, root

VOCABULARY = 3  # so small that prefixes collide all the time
UNWRITTEN = -1
GARBAGE = -3
NAN = -2
"""Content of a slot whose numbers are not finite: nothing after it is, either."""


def follow(content: int, token: int, nan_every: int | None) -> int:
    """Returns the content of the slot after one of `content`."""
    if content == NAN:
        return NAN
    content = chain(content, token)
    return NAN if nan_every is not None and (content >> 20) % nan_every == 0 else content


def next_token(content: int) -> int:
    return (content >> 7) % VOCABULARY


class HashDevice:
    """Slots of all pages. Passes run in the order in which they are launched, whenever they are read.

    nan_every   one in so many contents is NaN; None: none is
    last        token that each sequence drew last, which the host learns when it reads the pass
    """

    def __init__(self, num_pages: int, page_size: int, nan_every: int | None = None) -> None:
        self.slots = [UNWRITTEN] * (num_pages * page_size)
        self.page_size = page_size
        self.nan_every = nan_every
        self.last: dict[Sequence, int] = {}

    def run(self, plan: Plan) -> list[list[int]]:
        """Computes a plan; returns the contents at the positions of each work whose logits are asked for."""
        slots, size = self.slots, self.page_size
        found: list[list[int]] = []
        for work in plan.work:
            sequence, start, stop = work.sequence, work.start, work.stop
            assert sequence.lease is not None, "a sequence without pages is computed"
            tokens, pages = sequence.tokens[start:stop], sequence.lease.pages
            if len(tokens) < stop - start:
                tokens += work.drafts or (self.last[sequence],)
            assert len(tokens) == stop - start, "a token is computed that nobody knows"
            content = (
                slots[pages[(start - 1) // size] * size + (start - 1) % size] if start else root(sequence.namespace)
            )
            rows = []
            for position, token in enumerate(tokens, start):
                assert content != UNWRITTEN, "a slot was read before it was written"
                content = follow(content, token, self.nan_every)
                slots[pages[position // size] * size + position % size] = content
                if position >= work.logits_start:
                    rows.append(content)
            del rows[work.logits_stop - work.logits_start :]
            if work.samples and not work.drafts:
                self.last[sequence] = next_token(rows[-1])
            found.append(rows)
        return found

    def spoil(self, plan: Plan) -> None:
        """Leaves garbage where a plan has written, as a pass that fails may."""
        for work in plan.work:
            assert work.sequence.lease is not None
            for position in range(work.start, work.stop):
                page = work.sequence.lease.pages[position // self.page_size]
                self.slots[page * self.page_size + position % self.page_size] = GARBAGE
