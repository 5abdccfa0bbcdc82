"""A request in the engine: turns drawn tokens into text, finds stops, and ends with one terminal event."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Container
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from ...constrain import Matcher, MatcherError
from ...constrain.errors import SearchLateError
from ...constrain.matchers.interface import TableMatcher
from ...constrain.receipt import Receipt
from ..protocol.errors import BoughError, ErrorInfo
from ..protocol.request import (
    FORCED,
    SAMPLED,
    Finish,
    FinishReason,
    Request,
    RequestOutput,
    Timings,
    TokenLogprob,
    Usage,
)
from ..protocol.stop_pattern import PatternSearch
from ..runner.runner import DrawSpec
from ..sampler.rows import Draws, Row
from ..scheduler.scheduler import Advance, Sequence, Work
from .detokenizer import Detokenizer
from .step_size import Patience

logger = logging.getLogger("bough.engine")

Listener = Callable[[RequestOutput], None]
SEARCH_PATIENCE_S = 0.002
"""Time for which the engine's thread searches for a way to the end of the grammar near the token limit. A search that
takes longer is moved to another thread."""

Foresee = Callable[[Matcher, int, int], tuple[Matcher, int]]


@dataclass(frozen=True, slots=True)
class Terms:
    """Bounds of a generation, fixed when it is admitted.

    max_tokens  most tokens to generate; 0 if the prompt is scored
    seed        of its draws
    eos_ids     the model's end-of-sequence tokens
    ends        these and the request's stop tokens
    """

    max_tokens: int
    seed: int
    eos_ids: frozenset[int]
    ends: frozenset[int]


TOLD_LOGPROBS = 256
"""Most tokens whose log-probabilities are held back for one output: too many at once would hold up the server."""


class _Untold(msgspec.Struct):
    """Tokens and texts since the last output."""

    tokens: list[int] = []
    origins: list[int] = []
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []


@dataclass(eq=False, slots=True)
class _Report:
    """Outputs of a generation: what has not been sent yet, and the times and counts that its end reports.

    arrived, admitted, first    seconds by the engine's clock; `first`: of the first token
    has_told                    true once the output with the first token has been taken
    scores                      log-probabilities of the prompt's tokens, where they are asked for
    """

    arrived: float
    admitted: float | None = None
    first: float | None = None
    has_told: bool = False
    num_forced: int = 0
    untold: _Untold = field(default_factory=_Untold)
    scores: list[TokenLogprob] = field(default_factory=list)

    def take(self) -> tuple[_Untold, bool]:
        """Takes what has not been sent; returns it, and True if it holds the first token."""
        untold, self.untold = self.untold, _Untold()
        begins = self.first is not None and not self.has_told
        self.has_told |= begins
        return untold, begins

    def ended(self, finish: Finish, sequence: Sequence, num_generated: int, now: float) -> Finish:
        """Returns `finish` with usage and timings."""
        admitted = self.admitted if self.admitted is not None else now
        first = self.first if self.first is not None else now
        usage = Usage(
            prompt_tokens=sequence.num_prompt,
            cached_tokens=sequence.num_cached or 0,
            completion_tokens=num_generated,
            forced_tokens=self.num_forced,
        )
        timings = Timings(queue_s=admitted - self.arrived, prefill_s=first - admitted, decode_s=now - first)
        return msgspec.structs.replace(finish, usage=usage, timings=timings)


class ValueCheck:
    """The check of a finished value against what no mask can enforce.

    receipt    of the constraint, once that is compiled
    done       true once the value has been checked
    """

    __slots__ = ("_judged", "done", "receipt")

    def __init__(self, judged: Detokenizer | None) -> None:
        self.receipt: Receipt | None = None
        self.done = False
        self._judged = judged

    @property
    def outstanding(self) -> bool:
        """True if the value is to be checked and has not been."""
        return not self.done and self.receipt is not None and bool(self.receipt.checked)

    def push(self, tokens: AbstractSequence[int]) -> None:
        assert self._judged is not None
        self._judged.push(tokens)

    @property
    def text(self) -> str:
        """The text to check: all of it, with control tokens, which may mark its parts."""
        return "" if self._judged is None else self._judged.text + self._judged.finish()


class PenalisedTokens:
    """Tokens of a sequence that penalties depend on, kept so that only new ones are read when it has grown.

    counts    of each generated token
    """

    __slots__ = ("_num_read", "_seen", "counts")

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self._seen = np.empty(0, np.intp)
        self._num_read = 0

    def seen(self, tokens: AbstractSequence[int]) -> npt.NDArray[np.intp]:
        """Returns the distinct tokens, ascending, in an array that is never changed.

        `tokens` must begin with those of the last call.
        """
        if not self._num_read:
            self._seen = np.unique(np.array(tokens, np.intp))
        else:
            for token in tokens[self._num_read :]:
                place = int(np.searchsorted(self._seen, token))
                if place == len(self._seen) or self._seen[place] != token:
                    self._seen = np.insert(self._seen, place, token)
        self._num_read = len(tokens)
        return self._seen


@dataclass(frozen=True, slots=True)
class _Foreseen:
    """Outcome of accepting `drawn` with `remaining` tokens left: the next matcher and the token taken, or an error."""

    drawn: int
    remaining: int
    result: tuple[Matcher, int] | MatcherError


class Generation:
    """A request while it runs: its sequence, its matcher, its text, and the outputs not sent yet.

    The engine asks for the `rows` by which each step draws, or for a `spec` where the device draws by itself, and has
    `take` accept what was drawn. `finish` is set once the request ends: by `take`, or by `end` and `expire` from
    outside.
    """

    def __init__(
        self,
        request: Request,
        sequence: Sequence,
        detokenizer: Detokenizer,
        terms: Terms,
        listener: Listener,
        now: float,
    ) -> None:
        self.request = request
        self.sequence = sequence
        self.terms = terms
        self.matcher: Matcher | None = None
        self.speculated: Container[int] = ()
        """Offsets of the drafts in flight that were speculated, not forced by the grammar."""
        self.check = ValueCheck(None if request.grammar is None else detokenizer.without_stops())
        self.listener = listener
        self.finish: Finish | None = None
        self._detokenizer = detokenizer
        self._num_generated = 0
        self._penalised = PenalisedTokens()
        self._closing = False
        self.undecided: int | None = None
        """A drawn token that cannot be accepted before a search has ended; it is drawn again then."""
        self._foreseen: _Foreseen | None = None
        self._report = _Report(now)

    def stop_at(self, pattern: PatternSearch) -> None:
        """Has a match of `pattern` end the text. Must be called before the first token."""
        self._detokenizer.look_for(pattern)

    @property
    def must_be_checked(self) -> bool:
        """True if the finished text may violate the constraint in ways that no mask prevents and is not checked yet."""
        return self.check.outstanding and self._is_whole

    @property
    def _is_whole(self) -> bool:
        """True if the text is a complete word of the grammar, not cut off at a stop or at the token limit."""
        finish, matcher = self.finish, self.matcher
        if finish is None or matcher is None or finish.reason not in ("stop", "length"):
            return False
        if matcher.closed:
            return False
        return finish.matched in self.terms.eos_ids or (finish.matched is None and matcher.accepting)

    @property
    def num_left(self) -> int:
        """Tokens that may still be generated."""
        return self.terms.max_tokens - self._num_generated

    @property
    def takes_drafts(self) -> bool:
        """False with penalties: they depend on all previous tokens, which would have to include the drafts."""
        return not self.request.sampling.penalised

    @property
    def table_matcher(self) -> TableMatcher | None:
        """The matcher, if its state is a number in a table."""
        return self.matcher.on_table if self.matcher is not None else None

    def spec(self, work: Work, num_steps: int) -> DrawSpec | None:
        """Returns the rule by which a device draws the tokens of `num_steps` steps, from `work` on, by itself.

        None if it cannot: drawing takes more than sampling parameters and a grammar's table, or that may change within
        these steps.
        """
        params, matcher = self.request.sampling, self.table_matcher
        plain = work.samples and work.num_tokens == 1 and not work.drafts
        if matcher is not None:  # near the token limit, tokens are chosen that lead to the grammar's end in time
            num_left = self.sequence.limit - (work.stop + num_steps)
            plain = plain and num_left >= matcher.grammar.farthest
        elif self.matcher is not None:
            plain = False
        # Before `min_tokens`, counting those in flight, tokens that end the text are not allowed.
        num_before = work.start + 1 - self.sequence.num_prompt
        early = num_before < params.min_tokens and self.matcher is None
        plain = plain and (not early or num_before + num_steps <= params.min_tokens)
        return DrawSpec(params, self.terms.seed, matcher, self._ends if early else ()) if plain else None

    @property
    def _ends(self) -> tuple[int, ...]:
        """Tokens that are not allowed before `min_tokens`."""
        return (*self.terms.eos_ids, *self.request.sampling.stop_token_ids)

    def rows(self, work: Work, first_mask: int | None) -> list[Row]:
        """Returns the rule for drawing from each logits row of `work`; its masks are the rows from `first_mask` on."""
        sequence, params = self.sequence, self.request.sampling
        if (score := sequence.score) is not None:
            if score.tree is not None:
                asked = score.tree.targets[work.logits_start + 1 - score.start :]
                asked = asked[: work.logits_stop - work.logits_start]
                return [Row(params, target=first, others=others) for first, *others in asked]
            targets = sequence.tokens[work.logits_start + 1 : work.logits_stop + 1]
            return [Row(params, target=target) for target in targets]
        seen = self._penalised.seen(sequence.tokens) if params.repetition_penalty != 1.0 else ()
        ends = () if self.matcher is not None else self._ends
        matcher, seed = self.table_matcher, self.terms.seed
        rows = []
        for offset in range(work.logits_stop - work.logits_start):
            rows.append(
                Row(
                    params,
                    seed=seed,
                    position=work.logits_start + offset + 1,
                    counts=self._penalised.counts,
                    seen=seen,
                    banned=ends if self._num_generated + offset < params.min_tokens else (),
                    masked=None if first_mask is None else first_mask + offset,
                    matcher=matcher,
                )
            )
        return rows

    def admitted(self, now: float) -> None:
        if self._report.admitted is None:
            self._report.admitted = now

    def take(
        self, work: Work, draws: Draws, first: int, num_right: int | None, now: float, patience: Patience
    ) -> tuple[Advance, RequestOutput | None]:
        """Accepts the draws of this work's rows, which begin at `first`; returns the progress and the output, if any.

        `num_right` is how many of the rows had a mask (None: no grammar). Near the token limit, searches for a way to
        the end of the grammar run here for as long as `patience` lasts.
        """
        count = work.logits_stop - work.logits_start if num_right is None else num_right
        if not work.samples and work.sequence.score is None:
            return Advance(), None
        if _meets_poison(work, draws, first, count):
            return self.end_poisoned(now)
        if self.sequence.score is not None:
            return self._take_scores(work, draws, first, now)
        report = self._report
        begins = report.first is None
        report.first = now if report.first is None else report.first
        try:
            tokens, replaced = self._accept(work.drafts[: count - 1], draws, first, patience)
        except SearchLateError:
            report.first = None if begins else report.first
            return Advance(), None
        except MatcherError as error:
            return self.end_at(error, now)
        except BoughError as error:
            return self._fail(now, error.code, error.message)
        except Exception:
            logger.exception("request %s failed", self.request.id)
            return self._fail(now, "internal_error", "the request failed")
        if self.check.outstanding:
            self.check.push([token for token in tokens if token not in self.terms.eos_ids])
        advance = Advance(tuple(tokens), finished=self.finish is not None, replaced=replaced)
        tells = self.finish is not None or self.request.stream or not report.has_told
        tells = tells or len(report.untold.logprobs) >= TOLD_LOGPROBS
        return advance, self._tell(now) if tells else None

    def _accept(
        self, drafts: AbstractSequence[int], draws: Draws, first: int, patience: Patience
    ) -> tuple[list[int], bool]:
        """Accepts drawn tokens while each equals the draft that it verifies, and one more.

        Returns the accepted tokens, and True if the grammar replaced the last one.
        """
        keeps_logprobs = self.request.sampling.logprobs is not None
        untold = self._report.untold
        tokens: list[int] = []
        replaced = False
        for offset in range(len(drafts) + 1):
            draft = drafts[offset] if offset < len(drafts) else None
            drawn = draws.tokens[first + offset]
            try:
                token = self._advance_matcher(drawn, patience)
            except SearchLateError:
                if not tokens:
                    self.undecided = drawn
                    raise
                break  # those before are accepted; this one is drawn again
            replaced = token != drawn
            tokens.append(token)
            untold.tokens.append(token)
            forced = replaced or (token == draft and offset not in self.speculated)
            untold.origins.append(FORCED if forced else SAMPLED)
            self._num_generated += 1
            self._report.num_forced += forced
            self._penalised.counts[token] += 1
            if keeps_logprobs and (logprob := draws.logprobs[first + offset]) is not None:
                if replaced:
                    logprob = TokenLogprob(token, logprob.logprob, logprob.top, 0.0)
                untold.logprobs.append(logprob)
            untold.texts.append(self._end_or_text(token))
            if self.finish is not None or token != draft:
                break
        if self.finish is not None:
            untold.texts.append(self._detokenizer.finish())
            if self.finish.reason == "length" and self._detokenizer.matched is not None:  # settled by the last text
                self._end("stop", self._detokenizer.matched)
        return tokens, replaced

    def end_poisoned(self, now: float) -> tuple[Advance, RequestOutput | None]:
        """Ends the request because its logits are not finite; nothing that was computed for it is kept."""
        return self._fail(now, "nonfinite_logits", "the model produced numbers that are not finite", poisoned=True)

    def end_at(self, error: MatcherError, now: float) -> tuple[Advance, RequestOutput | None]:
        """Ends the request because its grammar allows no further token."""
        return self._fail(now, error.code, str(error))

    def _advance_matcher(self, drawn: int, patience: Patience) -> int:
        if self.matcher is None or drawn in self.terms.eos_ids:
            return drawn
        remaining = self.num_left - 1
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and (foreseen.drawn, foreseen.remaining) == (drawn, remaining):
            if isinstance(foreseen.result, MatcherError):
                raise foreseen.result
            self.matcher, token = foreseen.result
        else:
            token = self.matcher.accept(drawn, remaining, min(SEARCH_PATIENCE_S, patience.left_s))
        self._closing |= token != drawn
        self.matcher = self.matcher.successor
        return token

    def foresee(self, drawn: int, foresee: Foresee) -> None:
        """Searches for the outcome of accepting `drawn`, to be used when it is drawn again. Runs on another thread."""
        assert self.matcher is not None
        remaining = self.num_left - 1
        try:
            self._foreseen = _Foreseen(drawn, remaining, foresee(self.matcher, drawn, remaining))
        except MatcherError as error:
            self._foreseen = _Foreseen(drawn, remaining, error)

    def _end_or_text(self, token: int) -> str:
        """Returns the text that is certain after `token`; sets `finish` if that ends the generation."""
        params = self.request.sampling
        enough = self._num_generated > params.min_tokens
        if token in self.terms.eos_ids and (self.matcher is not None or (enough and not params.ignore_eos)):
            self._end("length" if self._closing else "stop", token)
            return ""
        if enough and token in params.stop_token_ids:
            self._end("stop", token)
            return ""
        text = self._detokenizer.push([token], stops_count=self._num_generated >= params.min_tokens)
        if self._detokenizer.matched is not None:
            self._end("stop", self._detokenizer.matched)
        elif self.matcher is not None and self.matcher.finished:
            self._end("length" if self._closing else "stop", None)
        elif self._num_generated >= self.terms.max_tokens:
            self._end("length", None)
        return text

    def _end(self, reason: FinishReason, matched: str | int | None) -> None:
        self.finish = Finish(reason=reason, matched=matched)

    def _take_scores(self, work: Work, draws: Draws, first: int, now: float) -> tuple[Advance, RequestOutput | None]:
        count = work.logits_stop - work.logits_start
        # After a retraction, positions are computed again, perhaps in other chunks.
        assert self.sequence.score is not None
        scores = self._report.scores
        del scores[max(work.logits_start + 1 - self.sequence.score.start, 0) :]
        scores += [entry for entry in draws.logprobs[first : first + count] if entry is not None]
        if work.stop < work.sequence.num_to_score:
            return Advance(), None
        self.finish = Finish(reason="length")
        output = RequestOutput(
            id=self.request.id,
            logprobs=tuple(scores),
            cached_tokens=self.sequence.num_cached,
            finish=self._terminal(self.finish, now),
        )
        return Advance(finished=True), output

    def _fail(self, now: float, code: str, message: str, *, poisoned: bool = False) -> tuple[Advance, RequestOutput]:
        return Advance(finished=not poisoned, poisoned=poisoned), self.end(
            now, "error", ErrorInfo(code=code, message=message)
        )

    def expire(self, now: float) -> RequestOutput:
        """Ends a request whose deadline has passed; returns its terminal event."""
        message = f"not done within {self.request.timeout_s:g} s"
        return self.end(now, "error", ErrorInfo(code="generation_timeout", message=message))

    def end(self, now: float, reason: FinishReason, error: ErrorInfo | None = None) -> RequestOutput:
        """Ends a request early; returns its terminal event, with the tokens and text not sent yet."""
        self.finish = Finish(reason=reason, error=error)
        with contextlib.suppress(BoughError):  # a search for stop_regex that takes too long
            self._report.untold.texts.append(self._detokenizer.finish() if error is None else self._detokenizer.flush())
        return self._tell(now)

    def _tell(self, now: float) -> RequestOutput:
        """Returns the next output: all tokens and text since the last one, and the end if it has come."""
        untold, begins = self._report.take()
        return RequestOutput(
            id=self.request.id,
            text="".join(untold.texts),
            tokens=tuple(untold.tokens),
            origins=tuple(untold.origins),
            logprobs=None if self.request.sampling.logprobs is None else tuple(untold.logprobs),
            cached_tokens=self.sequence.num_cached if begins else None,
            finish=self.finish and self._terminal(self.finish, now),
        )

    def _terminal(self, finish: Finish, now: float) -> Finish:
        constraint = finish.constraint or self.check.receipt
        if constraint is not None and constraint.checked and not self.must_be_checked:
            constraint = msgspec.structs.replace(constraint, checked=())  # a text that was cut off is not checked
        finish = self._report.ended(finish, self.sequence, self._num_generated, now)
        self.finish = msgspec.structs.replace(finish, constraint=constraint)
        return self.finish


def _meets_poison(work: Work, draws: Draws, first: int, count: int) -> bool:
    """True if one of the `count` rows from `first` on is not finite; rows after a wrong draft do not count."""
    for offset in range(count):
        if draws.poisoned[first + offset]:
            return True
        if offset < len(work.drafts) and draws.tokens[first + offset] != work.drafts[offset]:
            return False
    return False
