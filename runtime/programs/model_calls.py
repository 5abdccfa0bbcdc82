"""Calls of the model: the requests that a Gen or Select makes, and the value that comes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Protocol

import msgspec

from ..engine.engine import Engine
from ..engine.token_healing import Healed, take_back, with_healed
from ..protocol.errors import ErrorInfo, RequestError
from ..protocol.program import Delta, Gen, Piece, Select, Value
from ..protocol.request import SAMPLED, UNUSED, Request, RequestOutput, Timings, TokenLogprob, Usage
from ..protocol.sampling_params import SamplingParams
from ..sampler.seeds import derive, derive_again
from ..scheduler.token_tree import ChoiceTree, plant
from ..tokenizer.tokenizer import Tokenizer
from .choices import probabilities, score_choices
from .machine import Frame
from .state import Branch, Run, State
from .tokens import TokenContent, content_of, keep_text
from .validate import MAX_CHOICES

logger = logging.getLogger("bough.engine")

MakeRequest = Callable[..., Request]
"""Makes a request of a call, given its own fields."""


@dataclass(frozen=True)
class Result:
    """Tokens that a call appends to its branch, with their origins, and the value that it makes.

    First it takes the branch's last `num_taken_back` tokens away: `tokens` begin with their text.
    """

    value: Value
    tokens: list[int]
    origins: tuple[int, ...]
    num_taken_back: int = 0


class Call(Protocol):
    """One instruction in flight. `take` is given what its requests bring; once all have ended, `end` is called."""

    timeout_s: float | None

    def requests(self, make: MakeRequest) -> Iterator[tuple[Request, bool]]:
        """Makes the requests. True: the prompt begins with the branch's tokens."""

    def take(self, index: int, output: RequestOutput) -> str:
        """Takes an event of the `index`-th request; returns text to stream."""

    def end(self) -> Result: ...


@dataclass
class _Sample:
    """Output of one request so far."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: RequestOutput | None = None

    def take(self, output: RequestOutput) -> None:
        self.texts.append(output.text)
        self.tokens += output.tokens
        self.origins += output.origins
        self.logprobs += output.logprobs or ()
        self.last = output

    @property
    def text(self) -> str:
        return "".join(self.texts)


class GenCall:
    """A Gen: one request a sample. The branch goes on with the first."""

    def __init__(self, op: Gen, branch: Branch, tokenizer: Tokenizer) -> None:
        self.timeout_s = op.timeout_s
        self._op = op
        self._branch = branch
        self._content = content_of(branch)
        self._tokenizer = tokenizer
        self._turn = branch.turns[op.name]
        self._samples = [_Sample() for _ in range(op.sampling.n)]
        limit = self._content.num_own_text_tokens if op.sampling.token_healing else 0
        self._healed = take_back(self._content.tokens, tokenizer, limit=limit)

    def requests(self, make: MakeRequest) -> Iterator[tuple[Request, bool]]:
        seed, healed = self._op.sampling.seed, self._healed
        if seed is not None:
            seed = derive_again(seed, self._branch.attempts, self._turn)
        prompt = tuple(self._content.tokens[: len(self._content.tokens) - healed.num_tokens])
        self._content.shorten_own_text(healed.num_tokens)
        params = msgspec.structs.replace(with_healed(self._op.sampling, healed), n=1, token_healing=False)
        for index in range(len(self._samples)):
            one = msgspec.structs.replace(params, seed=None if seed is None else derive(seed, index))
            yield make(prompt=prompt, sampling=one, grammar=self._op.grammar, prefix=healed.prefix), True

    def take(self, index: int, output: RequestOutput) -> str:
        self._samples[index].take(output)
        return output.text if index == 0 else ""

    def end(self) -> Result:
        first = self._samples[0]
        assert first.last is not None and first.last.finish is not None
        finish, text = first.last.finish, first.text
        # What ended it is no part of the branch. Without a stop string the text is just what the tokens say.
        kept = first.tokens[:-1] if isinstance(finish.matched, int) else first.tokens
        skip = self._op.sampling.skip_special_tokens
        healed = self._healed
        if not b"".join(self._tokenizer.pieces(kept)).startswith(healed.prefix):  # ended before it came to that
            healed, kept = Healed(), []
        said = healed.prefix.decode(errors="replace") + text
        if self._tokenizer.decode(kept, skip_special_tokens=skip) != said:
            kept = keep_text(kept, said, self._tokenizer, skip_special_tokens=skip)
        value = Value(
            branch=self._branch.id,
            name=self._op.name,
            text=text,
            finish_reason=finish.reason,
            matched=finish.matched,
            usage=finish.usage,
            timings=finish.timings,
            logprobs=tuple(first.logprobs) if self._op.sampling.logprobs is not None else None,
            token_texts=_texts(self._tokenizer, first.logprobs) if self._op.sampling.logprobs is not None else {},
            samples=tuple(sample.text for sample in self._samples) if len(self._samples) > 1 else None,
            constraint=finish.constraint,
            turn=self._turn,
        )
        origins = tuple(first.origins[: len(kept)])
        return Result(value, kept, origins + (SAMPLED,) * (len(kept) - len(origins)), healed.num_tokens)


class SelectCall:
    """A Select: its choices as one tree of tokens behind the branch, computed in one pass; or, where `max_tree` is
    None, one scoring request a choice, all over the same prefix, which is computed once. A tree has `max_tree` tokens
    at most, the branch included: choices that need more are several."""

    timeout_s: float | None = None

    def __init__(self, op: Select, branch: Branch, tokenizer: Tokenizer, max_tree: int | None = None) -> None:
        if not op.choices or not all(op.choices):
            raise RequestError("a select needs choices, and none of them may be empty", param="choices")
        if len(op.choices) > MAX_CHOICES:
            raise RequestError(f"a select may have {MAX_CHOICES} choices at most", param="choices")
        self._op = op
        self._branch = branch
        self._choices = [tokenizer.encode(choice) for choice in op.choices]
        self._tokenizer = tokenizer
        self._conditional: list[list[TokenLogprob]] = [[] for _ in self._choices]
        # A first token has nothing before it to be conditioned on, so its unconditional log-probability is left out.
        self._unconditional = [[TokenLogprob(tokens[0], 0.0)] for tokens in self._choices]
        self._max_tree = max_tree
        self._targets: list[list[TokenLogprob] | tuple[ChoiceTree, list[list[TokenLogprob]]]] = []
        self._usage = Usage()
        self._timings = Timings()

    def requests(self, make: MakeRequest) -> Iterator[tuple[Request, bool]]:
        yield from self._scoring(make, content_of(self._branch).tokens, self._conditional)
        if self._op.method == "unconditional_likelihood_normalized":
            yield from self._scoring(make, [], self._unconditional)

    def _scoring(
        self, make: MakeRequest, prompt: Sequence[int], found: list[list[TokenLogprob]]
    ) -> Iterator[tuple[Request, bool]]:
        """Requests for the log-probabilities of the choices' tokens after `prompt`; they are added to `found`."""
        sampling, continues = SamplingParams(max_tokens=0, temperature=0.0), bool(prompt)
        if self._max_tree is not None:
            for tree in plant(prompt, self._choices, self._max_tree):
                self._targets.append((tree, found))
                scored = make(prompt=tuple(tree.tokens), sampling=sampling, score_from=tree.score_from, tree=tree.tree)
                yield scored, continues
            return
        for tokens, target in zip(self._choices, found, strict=True):
            if prompt or len(tokens) > 1:
                self._targets.append(target)
                score_from = max(len(prompt), 1)
                yield make(prompt=(*prompt, *tokens), sampling=sampling, score_from=score_from), continues

    def take(self, index: int, output: RequestOutput) -> str:
        target = self._targets[index]
        if isinstance(target, list):
            target += output.logprobs or ()
        elif output.logprobs:
            tree, found = target
            for choice, entries in tree.logprobs(output.logprobs):
                found[choice] += entries
        if output.finish is not None:
            self._usage += output.finish.usage
            self._timings = output.finish.timings
        return ""

    def end(self) -> Result:
        scores = score_choices(self._op.method, _values(self._conditional), _values(self._unconditional))
        best = max(range(len(scores)), key=scores.__getitem__)
        value = Value(
            branch=self._branch.id,
            name=self._op.name,
            text=self._op.choices[best],
            usage=self._usage,
            timings=self._timings,
            probabilities=probabilities(scores),
            scores=tuple(scores),
            choice_logprobs=tuple(map(tuple, self._conditional)),
            token_texts=_texts(self._tokenizer, chain.from_iterable(self._conditional)),
            turn=self._branch.turns[self._op.name],
        )
        return Result(value, self._choices[best], (SAMPLED,) * len(self._choices[best]))


def _values(choices: Sequence[Sequence[TokenLogprob]]) -> list[list[float]]:
    return [[entry.logprob for entry in entries] for entries in choices]


def _texts(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> dict[int, str]:
    """Returns the text of each token, and of its alternatives."""
    tokens = list({token for entry in entries for token in (entry.token, *(other for other, _ in entry.top))})
    pieces = tokenizer.pieces(tokens, skip_special_tokens=False)
    return {token: piece.decode(errors="replace") for token, piece in zip(tokens, pieces, strict=True)}


@dataclass(eq=False, slots=True)
class _Flight:
    """A call in flight, whose requests are heard from within the engine's step.

    attempts    of the branch when it began: it may have begun anew since
    kept        text that has come, while deltas are not sent
    """

    frame: Frame
    call: Call
    started: float
    attempts: tuple[int, ...]
    kept: list[str] = field(default_factory=list)

    @property
    def op(self) -> Gen | Select:
        op = self.frame.op
        assert isinstance(op, Gen | Select)
        return op

    def send_text(self) -> None:
        text = "".join(self.kept)
        self.kept.clear()
        if text:
            self.frame.run.listener(Delta(self.frame.branch.id, self.op.name, text))


class ModelCalls:
    """Makes the calls of one engine."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._max_tree = engine.info.max_request_tokens if engine.takes_trees else None

    def begin(self, frame: Frame) -> None:
        """Submits the requests of a call. Raises BoughError: one is refused; others may run already."""
        state, branch, run, op = frame.state, frame.branch, frame.run, frame.op
        if not content_of(branch).tokens:
            raise RequestError("the branch is empty: there is no text to continue", code="empty_prompt", param="ops")
        tokenizer = self._engine.tokenizer
        if isinstance(op, Gen):
            call: Call = GenCall(op, branch, tokenizer)
        else:
            assert isinstance(op, Select)
            call = SelectCall(op, branch, tokenizer, self._max_tree)
        flight = _Flight(frame, call, self._clock(), branch.attempts)
        timeout_s = run.time_left(flight.started, call.timeout_s)
        stream = run.program.deltas or run.program.trace

        def make(**fields: Any) -> Request:
            run.num_requests += 1
            return Request(id=state.new_id(), namespace=state.namespace, timeout_s=timeout_s, stream=stream, **fields)

        for index, (request, continues) in enumerate(call.requests(make)):
            self._engine.submit(request, partial(self._hear, flight, index, continues))
            branch.running.add(request.id)

    def _hear(self, flight: _Flight, index: int, continues: bool, output: RequestOutput) -> None:
        run, branch = flight.frame.run, flight.frame.branch
        if run.over:
            return
        if output.id not in branch.running:  # it was stopped: there is no value, but what has come is not lost
            flight.kept.append(flight.call.take(index, output))
            if not run.program.deltas and branch.attempts == flight.attempts:
                flight.send_text()
            return
        if continues and output.cached_tokens is not None:
            self.send_appended(run, content_of(branch), output.cached_tokens)
        try:
            flight.kept.append(flight.call.take(index, output))
            self._take(flight, output)
        except Exception:
            logger.exception("a program failed")
            flight.frame.failed(ErrorInfo(code="internal_error", message="the program failed"))

    def _take(self, flight: _Flight, output: RequestOutput) -> None:
        frame, run, branch = flight.frame, flight.frame.run, flight.frame.branch
        failed = output.finish is not None and output.finish.error is not None
        if run.program.deltas or failed:
            flight.send_text()
        elif not run.begun and output.finish is None:
            run.listener(Delta(branch.id, flight.op.name, ""))
        run.begun = True
        if output.finish is not None:
            branch.running.discard(output.id)
            run.usage += output.finish.usage
            if output.finish.error is not None:
                frame.failed(output.finish.error)
                return
        if not branch.running:
            self._end(flight, flight.call.end())
            frame.ended()

    def _end(self, flight: _Flight, result: Result) -> None:
        frame, value = flight.frame, result.value
        branch, content = frame.branch, content_of(frame.branch)
        content.tokens[len(content.tokens) - result.num_taken_back :] = result.tokens
        content.texts.append(value.text)
        branch.keep(value.name, value.text)
        frame.run.listener(value)
        if frame.run.program.trace:
            born = frame.state.born
            piece = Piece(
                branch=branch.id,
                op=branch.num_ops,
                kind="gen" if isinstance(flight.op, Gen) else "select",
                name=value.name,
                texts=tuple(self._engine.tokenizer.texts(result.tokens)),
                origins=result.origins,
                start_s=flight.started - born,
                stop_s=self._clock() - born,
                queue_s=value.timings.queue_s,
                prefill_s=value.timings.prefill_s,
            )
            frame.run.listener(piece)

    def send_appended(self, run: Run, content: TokenContent, num_cached: int | None) -> None:
        """Tells where appended text came from; None: it was never computed."""
        for start, piece in content.appended:
            if piece.origins is not None:
                continue
            if num_cached is None:
                piece.origins = (UNUSED,) * len(piece.tokens)
            else:
                piece.resolve(start, num_cached)
            assert piece.origins is not None
            if run.program.trace:
                run.listener(
                    Piece(
                        branch=piece.branch,
                        op=piece.op,
                        kind=piece.kind,
                        role=piece.role,
                        texts=tuple(self._engine.tokenizer.texts(piece.tokens)),
                        origins=piece.origins,
                    )
                )
        content.appended = []

    def send_unused(self, state: State, run: Run) -> None:
        """Tells, at the end of a program, of appended text that was never computed."""
        for content in (*(branch.content for branch in state.branches.values()), *state.untold):
            assert isinstance(content, TokenContent)
            self.send_appended(run, content, None)
