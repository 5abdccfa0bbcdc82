"""Timeline of a run or a batch of runs: the origin and time of each token, and the savings of the prefix cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from ....runtime.protocol.errors import ErrorInfo
from ....runtime.protocol.program import Op, Piece, ProgramEvent
from ....runtime.protocol.request import CACHED, FORCED, PREFILLED, SAMPLED, UNUSED, Usage
from ..pages.render import framed
from . import text
from .batch import BatchMember, Shared, first_tokens, shared_beginnings, summed
from .calls import Call, calls_of
from .events import RunRecord, read
from .page import batch_page, run_page
from .tree import BranchTree, ForkPoint, arrange


class Timeline:
    """Timeline of a program's run, to be printed, saved as a page, or read as numbers.

    pieces         of all branches, in any order
    title          the program's name
    forks          (parent, children) or ForkPoint for each fork
    probabilities  (branch, value name) -> choice -> probability, of the selects
    usage          the engine's count over all requests; without it the counts are derived from the pieces, taking
                   all that is before a generation as its prompt
    record         all that the events said, in place of `pieces`, `forks` and `usage`
    num_programs   submissions that were sent: one, and one more for each read
    began_s        when the first was sent, on the machine's monotonic clock
    """

    def __init__(
        self,
        pieces: Iterable[Piece] = (),
        *,
        title: str = "program",
        forks: Iterable[ForkPoint | tuple[int, Iterable[int]]] = (),
        probabilities: Mapping[tuple[int, str], Mapping[str, float]] | None = None,
        usage: Usage | None = None,
        record: RunRecord | None = None,
        num_programs: int = 1,
        began_s: float = 0.0,
    ) -> None:
        if record is None:
            points = [fork if isinstance(fork, ForkPoint) else ForkPoint(fork[0], tuple(fork[1])) for fork in forks]
            record = RunRecord(pieces=list(pieces), forks=points, usage=usage)
        self.title = title
        self.record = record
        self.num_programs = num_programs
        self.began_s = began_s
        self.pieces = tuple(record.pieces)
        self.roots: tuple[BranchTree, ...] = arrange(self.pieces, record.forks)
        self.probabilities = dict(probabilities or {})
        self.usage = record.usage

    @classmethod
    def of(
        cls,
        ops: Iterable[Op],
        events: Iterable[ProgramEvent],
        *,
        title: str = "program",
        num_programs: int = 1,
        began_s: float = 0.0,
        refused: Mapping[tuple[int, str], str] | None = None,
    ) -> Timeline:
        """From the instructions of a program (all that was sent, what is in blocks after the instruction that holds it)
        and the events that its execution sent back. `refused` says why values were not accepted, by branch and name."""
        record = read(ops, events)
        record.refused.update(refused or {})
        odds = record.probabilities
        return cls(title=title, record=record, probabilities=odds, num_programs=num_programs, began_s=began_s)

    @staticmethod
    def of_batch(states: Iterable[Traced]) -> BatchTimeline:
        """Makes the timeline of many runs on one clock, as `run_batch(..., trace=True)` gives them."""
        return BatchTimeline([state.timeline() for state in states])

    def fail(self, error: BaseException | None) -> None:
        """The run has failed with it, if the events do not say so themselves."""
        if error is not None and self.record.error is None:
            code = getattr(error, "code", type(error).__name__)
            self.record.error = ErrorInfo(code=code, message=getattr(error, "message", str(error)))

    @property
    def num_requests(self) -> int:
        """Number of requests inside the engine."""
        return self.record.num_requests

    def calls(self) -> list[Call]:
        """Generations, selects and tool calls, in the order in which they started."""
        return calls_of(self.roots, self.record.values, self.record.tools, self.record.refused)

    def summary(self) -> dict[str, str | int | float]:
        """The numbers of the run.

        `cached_tokens`, `prefilled_tokens`, `sampled_tokens`, `forced_tokens`, `unused_tokens` count each token once,
        where it was appended. `prompt_tokens` counts the prompts of all generations in full, as an API that is called
        once per generation would have computed them; `saved_tokens` of them came from the cache (`cached_share`).
        """
        origins = Counter(origin for piece in self.pieces for origin in piece.origins)
        if self.usage is not None:
            prompt_tokens, saved_tokens = self.usage.prompt_tokens, self.usage.cached_tokens
        else:
            prompt_tokens = sum(position for root in self.roots for _, position in root.contexts())
            saved_tokens = max(0, prompt_tokens - origins[PREFILLED])
        return {
            "title": self.title,
            "branches": sum(1 for root in self.roots for _ in root.walk()),
            "generations": sum(piece.kind in ("gen", "select") for piece in self.pieces),
            "tools": sum(piece.kind == "tool" for piece in self.pieces),
            "elapsed_s": max((piece.stop_s for piece in self.pieces), default=0.0),
            "cached_tokens": origins[CACHED],
            "prefilled_tokens": origins[PREFILLED],
            "sampled_tokens": origins[SAMPLED],
            "forced_tokens": origins[FORCED],
            "unused_tokens": origins[UNUSED],
            "prompt_tokens": prompt_tokens,
            "saved_tokens": saved_tokens,
            "cached_share": saved_tokens / prompt_tokens if prompt_tokens else 0.0,
        }

    def text(self) -> str:
        """The timeline for a terminal: the numbers, and a line per branch with its phases on a time axis."""
        return text.chart(self.roots, self.summary(), self.record)

    def html(self) -> str:
        """The timeline as a self-contained page."""
        return run_page(self.roots, self.summary(), self.probabilities, self.record)

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        return framed(self.html(), self.text(), "timeline")


class Traced(Protocol):
    """A state whose program was run with `trace=True`."""

    def timeline(self) -> Timeline: ...


class BatchTimeline:
    """Many runs on one time axis, in the order of the batch.

    timelines   timelines of the single runs; `start_s` is when each started, relative to the first
    """

    def __init__(self, timelines: Iterable[Timeline]) -> None:
        self.timelines: tuple[Timeline, ...] = tuple(timelines)
        first = min((timeline.began_s for timeline in self.timelines if timeline.began_s), default=0.0)
        self.start_s = tuple(max(0.0, timeline.began_s - first) for timeline in self.timelines)

    def members(self) -> list[BatchMember]:
        """The runs as the page shows them."""
        return [
            BatchMember(number, start_s, timeline.title, timeline.roots, timeline.record, timeline.summary())
            for number, (start_s, timeline) in enumerate(zip(self.start_s, self.timelines, strict=True), start=1)
        ]

    def shared(self) -> list[Shared]:
        """The prefixes that several runs share, those that save most first."""
        return shared_beginnings([first_tokens(timeline.roots) for timeline in self.timelines])

    def summary(self) -> dict[str, str | int | float]:
        """The numbers of the batch: sums over the runs, and their durations (median, 95th percentile, maximum)."""
        return summed(self.members())

    def text(self) -> str:
        """The timeline for a terminal: the numbers, and the prefixes that the runs share."""
        return text.batch(self.summary(), self.shared())

    def html(self) -> str:
        """A page that needs nothing from outside itself. Tokens are shown of the first runs only if there are many."""
        return batch_page(self.members(), self.summary(), self.shared())

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        return framed(self.html(), self.text(), "timeline of the batch")
