"""Generations that sit out: their masks are late, or whether a way to the end is left takes long to find out."""

from __future__ import annotations

from collections.abc import Sequence

from ...constrain import Matcher
from .generation import Foresee, Generation
from .masks import MaskFiller, MaskJob


class LateMasks:
    """False while nobody sits out."""

    def __init__(self, filler: MaskFiller) -> None:
        self._filler = filler
        self._jobs: dict[Generation, MaskJob] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def sit_out(self, generation: Generation, job: MaskJob) -> None:
        """The pass has computed what is known of the sequence, but nobody may draw from it: `job` is late."""
        sequence = generation.sequence
        sequence.rewind(len(sequence.tokens) - 1)
        sequence.blocked = True
        self._jobs[generation] = job

    def foresee(self, generation: Generation, foresee: Foresee) -> None:
        """The token that was drawn will be drawn again, when it is known what accepting it comes to."""
        drawn, generation.undecided = generation.undecided, None
        assert generation.matcher is not None and drawn is not None
        job = self._filler.begin_slow(generation.matcher, lambda: generation.foresee(drawn, foresee))
        self.sit_out(generation, job)

    def free(self) -> None:
        """Lets those go on whose masks are there now."""
        for generation, job in list(self._jobs.items()):
            if generation.finish is not None:
                del self._jobs[generation]
            elif job.right is not None:
                generation.sequence.blocked = False

    def resume(self, generation: Generation, matcher: Matcher, drafts: Sequence[int]) -> MaskJob:
        """The job of a generation that is to be drawn from."""
        late = self._jobs.pop(generation, None)
        if late is None:
            return MaskJob(matcher, drafts)
        # Still under way, if it was put back to wait and has come again.
        return late if late.right is None else MaskJob(matcher, drafts, late.rows, late.right)
