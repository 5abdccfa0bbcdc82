"""Drafts of each step: what grammars force next, and speculation where it pays."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..protocol.config import EngineConfig
from ..protocol.counters import Counters
from ..runner.runner import PassRunner
from ..scheduler.scheduler import Advance, Plan, Scheduler
from .generation import Generation
from .json_drafts import Skeletons
from .speculation import MAX_DRAFTS, Experience, PassCosts, Speculation

logger = logging.getLogger("bough.engine")

MIN_DEVICE_DRAFTS = 8
"""Fewer forced tokens are not worth a pass that the device cannot draw by itself."""


class DraftStage:
    """Proposes drafts for the sequences of a scheduler. `texts` are the bytes of each token.

    Drafts change how many tokens a pass gives, never which ones.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: PassRunner,
        scheduler: Scheduler,
        counters: Counters,
        texts: Sequence[bytes | None],
    ) -> None:
        self.skeletons = Skeletons(texts)
        self._scheduler = scheduler
        self._jumps = config.jump_forward
        self._speculates = config.speculation == "auto" and runner.exact and not runner.overlaps
        self._draws_ahead = runner.max_steps > 1
        self._costs, self._experience = PassCosts(), Experience(counters)

    def begin(self, generation: Generation) -> None:
        """Lets speculation look at what comes of `generation`, where that is done at all."""
        if self._speculates:
            generation.speculation = Speculation(self._experience, self.skeletons.start(generation.request))

    def observe(self, plan: Plan, advances: Sequence[Advance], seconds: float) -> None:
        """Learns from a pass, read `seconds` after its launch began, what rows cost."""
        if self._speculates and all(work.samples and work.num_tokens == 1 + len(work.drafts) for work in plan.work):
            self._costs.observe(plan.num_tokens, sum(len(advance.tokens) for advance in advances), seconds)

    def propose(self, plan: Plan, generations: Sequence[Generation]) -> None:
        """Gives the sequences of `plan`, which has been read, their drafts for the next step."""
        price = self._costs.price(len(self._scheduler.running)) if self._speculates else 1.0
        for work, generation in zip(plan.work, generations, strict=True):
            if work.samples and work.live and not work.sequence.blocked:
                self._scheduler.propose(work.sequence, self._drafts(generation, price))

    def _drafts(self, generation: Generation, price: float) -> list[int]:
        """Forced tokens, then speculative drafts whose chance of being right is at least `price`."""
        sequence, matcher = generation.sequence, generation.matcher
        num_pending = sequence.num_pending
        room = generation.num_left - num_pending - 1
        if room <= num_pending or not generation.takes_drafts:
            return []
        try:
            drafts = self._forced(generation, min(room, MAX_DRAFTS)) if self._jumps else []
            if generation.speculation is not None and num_pending == 0:
                generation.speculation.extend(
                    drafts, sequence.tokens, matcher, price=price, room=room, ends=generation.ends, jumps=self._jumps
                )
            return drafts
        except Exception:  # it can do without
            logger.exception("what may follow in request %s is not known", generation.request.id)
            return []

    def _forced(self, generation: Generation, room: int) -> list[int]:
        """At most `room` tokens that the grammar forces next; none if they are too few to gain anything.

        A token that is in flight already comes first in what is forced; the drafts follow it. The step after one with
        drafts cannot be planned ahead, so then a single draft gains nothing.
        """
        if generation.matcher is None:
            return []
        num_pending = generation.sequence.num_pending
        at_least = MIN_DEVICE_DRAFTS if self._draws_ahead and generation.table_matcher is not None else 1
        forced = generation.matcher.forced_tokens()[num_pending:][:room]
        return forced if len(forced) > num_pending and len(forced) >= at_least else []
