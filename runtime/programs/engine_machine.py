"""Machine of programs on an engine: appends tokens to branches, submits requests for values, and calls tools.

Control flow, forks included, is the interpreter's (`Interpreter`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Protocol

import msgspec

from ...constrain.spec import MAX_SPEC_CHARS, spec_chars
from ..engine.engine import Engine
from ..protocol.errors import BoughError, ErrorInfo, RequestError, to_info
from ..protocol.program import Delta, Gen, Offer, Piece, Select, Value
from ..protocol.request import SAMPLED, UNUSED, Request, RequestOutput, Timings, TokenLogprob, Usage
from ..protocol.sampling_params import SamplingParams, derive, derive_again
from ..scheduler.token_tree import ChoiceTree, plant
from ..tokenizer.tokenizer import LONG_TEXT, MAX_TOKEN_CHARS, Tokenizer
from ..tools.arguments import chars_of
from ..tools.registry import ToolRunner
from .choices import probabilities, score_choices
from .costs import (
    CHARS_OF_MESSAGE,
    COPIED_PER_WORK,
    ENCODED_PER_WORK,
    ENGINE_BUDGET,
    MESSAGES_AT_ONCE,
    MESSAGES_PER_WORK,
)
from .interpreter import Post
from .shared import Shared
from .state import Branch, CallId, Frame, Run, State
from .tokens import (
    Encodings,
    KnownTexts,
    TokenContent,
    append_later,
    append_tokens,
    close_message,
    content_of,
    keep_text,
    next_turn,
    open_message,
    texts_of,
)
from .tool_turns import Placed, offered, opening_of, put_tools, unshown, write_tools
from .tool_uses import ToolInstructions, ToolUses
from .validate import MAX_CHOICES, check_choices

logger = logging.getLogger("bough.engine")

MAX_CHOICE_TOKENS = 1 << 15
"""Most tokens of all choices of a select."""

MAX_VALUE_LOGPROBS = 1 << 18
"""Most log-probabilities of a generation, alternatives included: they are sent in one message."""

MAX_TREE_TOKENS = 4096
"""Most tokens of a choice, and of the choices in one tree, which is built in one go."""


class EngineMachine:
    """`Machine` on an engine, used on the engine's thread. Without `post` and `runner` there are no tools."""

    def __init__(
        self, engine: Engine, clock: Callable[[], float], *, post: Post | None = None, runner: ToolRunner | None = None
    ) -> None:
        self.budget = ENGINE_BUDGET
        self._engine = engine
        self._tokenizer = engine.tokenizer
        self._clock = clock
        self._max_tokens = engine.info.max_request_tokens
        self._known = KnownTexts()
        self._encodings = None if post is None else Encodings(engine.tokenizer, post)
        self._calls = ModelCalls(engine, clock, self._encodings)
        self._tools: ToolUses | None = None
        self._tool_ops: ToolInstructions | None = None
        if runner is not None and post is not None and self._encodings is not None:
            self._tools = ToolUses(runner, post, clock)
            self._tool_ops = ToolInstructions(self._tools, self._encodings, self, clock, engine.tokenizer)

    @property
    def calls_tools(self) -> bool:
        return self._tools is not None

    def expire(self) -> None:
        """Fails the tool calls whose time limit has passed."""
        if self._tools is not None and self._tools.under_way:
            self._tools.expire()

    def sleep_s(self) -> float | None:
        """Returns the seconds until `expire` has something to do; None: no tool call is in progress."""
        return self._tools.sleep_s() if self._tools is not None and self._tools.under_way else None

    def close(self) -> None:
        if self._encodings is not None:
            self._encodings.close()

    def blank(self) -> TokenContent:
        return TokenContent()

    def room(self, branch: Branch) -> float:
        return MAX_TOKEN_CHARS * max(self._max_tokens - branch.content.length, 0)

    def num_tokens(self, branch: Branch) -> int:
        return branch.content.length

    def append_text(self, frame: Frame, text: str) -> None:
        tokens = self._known.find(frame.state.namespace, text)
        if tokens is None and len(text) > LONG_TEXT and self._encodings is not None:
            self._encodings.begin(frame, text, partial(self._append_tokens, frame, text))
            return
        if tokens is None:
            tokens = self._tokenizer.encode(text)
            self._known.keep(frame.state.namespace, text, tokens)
        append_tokens(frame.branch, text, tokens, self._tokenizer)

    def open_message(self, frame: Frame, role: str) -> None:
        """Opens a message.

        First lets the chat template render each turn that it has not rendered yet, such as messages appended by a join;
        on another thread if many messages come before.
        """
        content, chat = content_of(frame.branch), self._tokenizer.chat
        while (asked := next_turn(content, role, chat)) is not None:
            frame.spend(1 + asked[0].depth // MESSAGES_PER_WORK)
            if asked[0].depth > MESSAGES_AT_ONCE and self._encodings is not None:
                num_chars = asked[0].depth * CHARS_OF_MESSAGE
                self._encodings.begin_writing(frame, num_chars, partial(chat.after, *asked), lambda _: frame.go_on())
                return
            chat.after(*asked)
            frame.pause()
        open_message(frame.branch, role, self._tokenizer)

    def close_message(self, frame: Frame) -> None:
        close_message(frame.branch, self._tokenizer)

    def call(self, frame: Frame) -> None:
        op, room = frame.op, self.room(frame.branch)
        if isinstance(op, Select) and any(len(choice) > room for choice in op.choices[:MAX_CHOICES]):
            message = "a choice has more characters than there is room for behind the branch"
            raise RequestError(message, code="context_length_exceeded", param="choices")
        self._calls.begin(frame)

    def use(self, frame: Frame, arguments: dict[str, str]) -> None:
        assert self._tool_ops is not None
        self._tool_ops.use(frame, arguments)

    def call_tools(self, frame: Frame) -> None:
        assert self._tool_ops is not None
        self._tool_ops.call_tools(frame)

    def cancel(self, call_id: str | CallId) -> None:
        if isinstance(call_id, str):
            self._engine.abort(call_id)
        elif call_id.kind == "tool" and self._tools is not None:
            self._tools.stop(call_id)
        elif self._encodings is not None:
            self._encodings.stop(call_id)

    def check_length(self, branch: Branch) -> None:
        if branch.content.length > self._max_tokens:
            message = f"the branch has {branch.content.length} tokens, but {self._max_tokens} in all is the limit"
            raise RequestError(message, code="context_length_exceeded", param="ops")

    def forget(self, state: State, run: Run) -> Iterator[None]:
        if run.program.trace:
            yield from self._calls.send_unused(state, run)

    def describe(self, error: BoughError) -> ErrorInfo:
        return to_info(error)

    def _append_tokens(self, frame: Frame, text: str, tokens: list[int]) -> None:
        """Appends a long text that was encoded on another thread."""
        self._known.keep(frame.state.namespace, text, tokens)
        append_later(frame, partial(append_tokens, frame.branch, text, tokens, self._tokenizer), self.check_length)
        frame.ended()


# Calls of the model

MakeRequest = Callable[..., Request]
"""Creates a request of a call from the fields that the call sets."""


@dataclass(frozen=True)
class Result:
    """Value of a call, and the tokens that it appends to its branch, with their origins.

    num_taken_back    tokens to remove from the branch's end first: `tokens` begin with their text
    """

    value: Value
    tokens: list[int]
    origins: tuple[int, ...]
    num_taken_back: int = 0


class Call(Protocol):
    """A Gen or Select in flight. `take` gets the outputs of its requests; once all have ended, `end` is called.

    healable    most tokens at the branch's end that its requests may generate again (token healing)
    """

    timeout_s: float | None
    healable: int

    def requests(self, make: MakeRequest) -> Iterator[tuple[Request, bool]]:
        """Yields the requests, each with True if its prompt begins with the branch's tokens."""

    def take_back(self, num_tokens: int) -> None:
        """Notes that a request generates the branch's last `num_tokens` tokens again."""

    def take(self, index: int, output: RequestOutput) -> str:
        """Takes an output of the `index`-th request; returns text to stream."""

    def untold(self) -> tuple[TokenLogprob, ...]:
        """Returns the log-probabilities to stream that it has not returned before."""
        ...

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
    """A Gen: one request a sample. The branch continues with the first, the only one with log-probabilities."""

    def __init__(self, op: Gen, branch: Branch, tokenizer: Tokenizer) -> None:
        self.timeout_s = op.timeout_s
        self._op = op
        self._branch = branch
        self._content = content_of(branch)
        self._tokenizer = tokenizer
        self._turn = branch.turns[op.name]
        self._samples = [_Sample() for _ in range(op.sampling.n)]
        self.healable = self._content.num_own_text_tokens if op.sampling.token_healing else 0
        self._num_taken_back = 0
        self._num_told = 0

    def requests(self, make: MakeRequest) -> Iterator[tuple[Request, bool]]:
        seed, logprobs = self._op.sampling.seed, self._op.sampling.logprobs
        if seed is not None:
            seed = derive_again(seed, self._branch.origin.attempts, self._turn)
        prompt = tuple(self._content.tokens[:])
        for index in range(len(self._samples)):
            one = msgspec.structs.replace(
                self._op.sampling,
                n=1,
                seed=None if seed is None else derive(seed, index),
                logprobs=None if index else logprobs,
            )
            yield make(prompt=prompt, sampling=one, grammar=self._op.grammar), True

    def take_back(self, num_tokens: int) -> None:
        if not self._num_taken_back:  # the same for all samples
            self._num_taken_back = num_tokens
            self._content.shorten_own_text(num_tokens)

    def take(self, index: int, output: RequestOutput) -> str:
        self._samples[index].take(output)
        return output.text if index == 0 else ""

    def untold(self) -> tuple[TokenLogprob, ...]:
        logprobs = self._samples[0].logprobs
        new, self._num_told = tuple(logprobs[self._num_told :]), len(logprobs)
        return new

    def end(self) -> Result:
        first = self._samples[0]
        assert first.last is not None and first.last.finish is not None
        finish, text = first.last.finish, first.text
        # A stop token is not part of the branch. Without a stop string, the text is that of the tokens.
        kept = first.tokens[:-1] if isinstance(finish.matched, int) else first.tokens
        skip = self._op.sampling.skip_special_tokens
        num_taken_back = self._num_taken_back
        taken_back = self._content.tokens[self._content.length - num_taken_back :]
        prefix = b"".join(self._tokenizer.pieces(taken_back))
        if not b"".join(self._tokenizer.pieces(kept)).startswith(prefix):  # it ended before the prefix was complete
            num_taken_back, prefix, kept = 0, b"", []
        said = prefix.decode(errors="replace") + text
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
            token_texts=texts_of(self._tokenizer, first.logprobs) if self._op.sampling.logprobs is not None else {},
            samples=tuple(sample.text for sample in self._samples) if len(self._samples) > 1 else None,
            constraint=finish.constraint,
            turn=self._turn,
        )
        origins = tuple(first.origins[: len(kept)])
        return Result(value, kept, origins + (SAMPLED,) * (len(kept) - len(origins)), num_taken_back)


class SelectCall:
    """A Select: scores its choices as a tree of tokens after the branch, in one pass.

    A tree has at most `max_tree` tokens, the branch included; more choices take several trees. Where `max_tree` is
    None, each choice is a scoring request, all after one prefix, which is computed once.
    """

    timeout_s: float | None = None
    healable = 0

    def __init__(
        self,
        op: Select,
        branch: Branch,
        choices: Sequence[list[int]],
        tokenizer: Tokenizer,
        max_tree: int | None = None,
    ) -> None:
        """Scores `choices`, the tokens of the choices of `op`."""
        self._op = op
        self._branch = branch
        self._choices = choices
        self._tokenizer = tokenizer
        self._conditional: list[list[TokenLogprob]] = [[] for _ in self._choices]
        # The first token of a choice follows nothing, so its unconditional log-probability counts as 0.
        self._unconditional = [[TokenLogprob(tokens[0], 0.0)] for tokens in self._choices]
        self._max_tree = max_tree
        self._targets: list[list[TokenLogprob] | tuple[ChoiceTree, list[list[TokenLogprob]]]] = []
        self._usage = Usage()
        self._timings = Timings()

    def requests(self, make: MakeRequest) -> Iterator[tuple[Request, bool]]:
        yield from self._scoring(make, content_of(self._branch).tokens[:], self._conditional)
        if self._op.method == "unconditional_likelihood_normalized":
            yield from self._scoring(make, [], self._unconditional)

    def _scoring(
        self, make: MakeRequest, prompt: Sequence[int], found: list[list[TokenLogprob]]
    ) -> Iterator[tuple[Request, bool]]:
        """Yields requests for the log-probabilities of the choices after `prompt`; `take` adds these to `found`."""
        sampling, continues = SamplingParams(max_tokens=0, temperature=0.0), bool(prompt)
        if self._max_tree is not None:
            for tree in plant(prompt, self._choices, min(self._max_tree, len(prompt) + MAX_TREE_TOKENS)):
                self._targets.append((tree, found))
                scored = make(prompt=tuple(tree.tokens), sampling=sampling, score_from=tree.score_from, tree=tree.tree)
                yield scored, continues
            return
        for tokens, target in zip(self._choices, found, strict=True):
            if prompt or len(tokens) > 1:
                self._targets.append(target)
                score_from = max(len(prompt), 1)
                yield make(prompt=(*prompt, *tokens), sampling=sampling, score_from=score_from), continues

    def take_back(self, num_tokens: int) -> None:
        raise AssertionError("choices are scored as they stand")

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

    def untold(self) -> tuple[TokenLogprob, ...]:
        return ()

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
            token_texts=texts_of(self._tokenizer, chain.from_iterable(self._conditional)),
            turn=self._branch.turns[self._op.name],
        )
        return Result(value, list(self._choices[best]), (SAMPLED,) * len(self._choices[best]))


def _values(choices: Sequence[Sequence[TokenLogprob]]) -> list[list[float]]:
    return [[entry.logprob for entry in entries] for entries in choices]


@dataclass(eq=False, slots=True)
class _Flight:
    """A call in flight, whose outputs come from within the engine's step.

    op, run     those of `frame`; `op` with the constraint for the tools that it offers
    attempts    attempts of the branch when the call began, since the branch may restart
    complete    all its requests have been submitted
    kept        text that has not been sent as a delta
    num_scores  number of log-probabilities received
    """

    frame: Frame
    op: Gen | Select
    run: Run
    call: Call
    started: float
    attempts: tuple[int, ...]
    complete: bool = False
    kept: list[str] = field(default_factory=list)
    num_scores: int = 0

    def count_scores(self, entries: Sequence[TokenLogprob]) -> None:
        """Raises RequestError if a generation has more log-probabilities than a value may have."""
        self.num_scores += sum(1 + len(entry.top) for entry in entries)
        if isinstance(self.op, Gen) and self.num_scores > MAX_VALUE_LOGPROBS:
            most = f"{MAX_VALUE_LOGPROBS} log-probabilities, alternatives included"
            message = f"{self.op.name!r} has more than {most}: ask for fewer of them, or for fewer tokens"
            raise RequestError(message, code="result_too_long", param="logprobs")

    def send_text(self, tokenizer: Tokenizer) -> None:
        text = "".join(self.kept)
        self.kept.clear()
        if text:
            logprobs = self.call.untold()
            texts = texts_of(tokenizer, logprobs) if logprobs else {}
            self.run.listener(Delta(self.frame.branch.id, self.op.name, text, logprobs, texts))


@dataclass(eq=False, slots=True)
class _UnfinishedCall:
    """A call that begins in slices: its choices are encoded, then its requests submitted.

    tokens      tokens of the choices encoded so far
    num_tokens  total number of these
    requests    requests of `flight` that are still to be submitted
    """

    tokens: list[list[int]] = field(default_factory=list)
    num_tokens: int = 0
    flight: _Flight | None = None
    requests: Iterator[tuple[int, tuple[Request, bool]]] = field(default_factory=lambda: iter(()))


class ModelCalls:
    """Starts the Gens and Selects of programs on one engine."""

    def __init__(self, engine: Engine, clock: Callable[[], float], encodings: Encodings | None = None) -> None:
        self._engine = engine
        self._clock = clock
        self._encodings = encodings
        self._max_tokens = engine.info.max_request_tokens
        self._max_tree = self._max_tokens if engine.takes_trees else None

    def begin(self, frame: Frame) -> None:
        """Submits the requests of a call. Must be called again after a pause, or once a choice has been encoded.

        Raises:
            PausedError: there are more requests to submit.
            BoughError: a request was refused; others may already run.
        """
        pending = frame.pending
        if pending.begun is None:
            self._check(frame)
            pending.begun = _UnfinishedCall()
        begun: _UnfinishedCall = pending.begun
        if begun.flight is None:
            if isinstance(frame.op, Select) and not self._encode_choices(frame, frame.op, begun):
                return
            if isinstance(frame.op, Gen) and frame.op.offer is not None and not self._show_tools(frame, frame.op.offer):
                return
            begun.flight = self._flight(frame, begun)
        self._submit(frame, begun.flight, begun.requests)

    def _check(self, frame: Frame) -> None:
        """Raises RequestError if the branch is empty, or the choices are invalid."""
        if not frame.branch.content.length:
            raise RequestError(
                "the branch is empty: there is no text to continue; append text or a message first",
                code="empty_prompt",
                param="ops",
            )
        if isinstance(frame.op, Select):
            check_choices(frame.op.choices)

    def _encode_choices(self, frame: Frame, op: Select, begun: _UnfinishedCall) -> bool:
        """Encodes the choices; returns False while a long one is being encoded on another thread."""
        while len(begun.tokens) < len(op.choices):
            if begun.tokens:
                frame.pause()
            choice = op.choices[len(begun.tokens)]
            frame.spend(1 + len(choice) // ENCODED_PER_WORK)
            if len(choice) > LONG_TEXT and self._encodings is not None:
                self._encodings.begin(frame, choice, partial(self._take_choice, frame, begun))
                return False
            self._add_choice(frame, begun, self._engine.tokenizer.encode(choice))
        return True

    def _take_choice(self, frame: Frame, begun: _UnfinishedCall, tokens: list[int]) -> None:
        self._add_choice(frame, begun, tokens)
        frame.go_on()

    def _add_choice(self, frame: Frame, begun: _UnfinishedCall, tokens: list[int]) -> None:
        """Adds an encoded choice. Raises RequestError if it does not fit after the branch, or exceeds a limit."""
        length = frame.branch.content.length
        if length + len(tokens) > self._max_tokens:
            message = f"the branch has {length} tokens and a choice {len(tokens)}, but {self._max_tokens} is the limit"
            raise RequestError(message, code="context_length_exceeded", param="choices")
        if len(tokens) > MAX_TREE_TOKENS:
            message = f"a choice of a select has {len(tokens)} tokens, but {MAX_TREE_TOKENS} is the limit"
            raise RequestError(message, param="choices")
        begun.num_tokens += len(tokens)
        if begun.num_tokens > MAX_CHOICE_TOKENS:
            message = f"the choices of a select have more than {MAX_CHOICE_TOKENS} tokens, which is the limit"
            raise RequestError(message, param="choices")
        begun.tokens.append(tokens)

    def _show_tools(self, frame: Frame, offer: Offer) -> bool:
        """Writes the tools that a Gen offers into the branch; returns False while another thread renders long ones.

        Raises:
            RequestError: the tools cannot be shown there.
        """
        content, tokenizer = content_of(frame.branch), self._engine.tokenizer
        functions = unshown(offer, frame.branch, frame.run.tools)
        if not functions:
            return True
        before = tuple(content.roles[:-1])
        num_written = chars_of(functions) + CHARS_OF_MESSAGE * len(before)
        frame.spend(1 + num_written // ENCODED_PER_WORK)
        frame.spend((content.length + len(content.texts) + content.num_pieces) // COPIED_PER_WORK)

        def put(written: list[Placed]) -> None:
            put_tools(frame.branch, functions, written)
            frame.state.unshare(frame.branch)

        def take(written: list[Placed]) -> None:
            put(written)
            frame.go_on()

        dates = None if content.turn is None else content.turn.dates
        write = partial(write_tools, before, opening_of(frame.branch), dates, functions, tokenizer)
        if self._encodings is None or num_written <= LONG_TEXT:
            put(write())
            return True
        self._encodings.begin_writing(frame, num_written, write, take)
        return False

    def _constrained(self, frame: Frame, op: Gen) -> Gen:
        """Returns a Gen with the constraint for the tools that it offers, and counts the work of its constraint."""
        if op.offer is not None:
            op = offered(op, op.offer, frame.run.tools, self._engine.tokenizer)
        frame.spend(min(spec_chars(op.grammar), MAX_SPEC_CHARS) // ENCODED_PER_WORK)
        return op

    def _flight(self, frame: Frame, begun: _UnfinishedCall) -> _Flight:
        state, branch, run, op = frame.state, frame.branch, frame.run, frame.op
        if isinstance(op, Gen):
            op = self._constrained(frame, op)
            call: Call = GenCall(op, branch, self._engine.tokenizer)
        else:
            assert isinstance(op, Select)
            call = SelectCall(op, branch, begun.tokens, self._engine.tokenizer, self._max_tree)
        flight = _Flight(frame, op, run, call, self._clock(), branch.origin.attempts)
        timeout_s = run.time_left(flight.started, call.timeout_s)
        stream = run.program.deltas or run.program.trace

        def make(**fields: Any) -> Request:
            run.num_requests += 1
            return Request(id=state.new_id(), namespace=state.namespace, timeout_s=timeout_s, stream=stream, **fields)

        begun.requests = enumerate(call.requests(make))
        return flight

    def _submit(self, frame: Frame, flight: _Flight, requests: Iterator[tuple[int, tuple[Request, bool]]]) -> None:
        branch, pending = frame.branch, frame.pending
        copies = branch.content.length // COPIED_PER_WORK
        pending.unfinished = True  # so that the interpreter continues it, although its first requests are running
        for index, (request, continues) in requests:
            listener = partial(self._hear, flight, index, continues)
            num_taken_back = self._engine.submit(request, listener, healable=flight.call.healable)
            branch.running.add(request.id)
            if num_taken_back:
                flight.call.take_back(num_taken_back)
            frame.spend(1 + copies)
            frame.pause()
        pending.unfinished, flight.complete = False, True
        if not branch.running:  # all of them have ended meanwhile
            self._end(flight, flight.call.end())

    def _hear(self, flight: _Flight, index: int, continues: bool, output: RequestOutput) -> None:
        run, branch = flight.run, flight.frame.branch
        if run.over:
            return
        if output.id not in branch.running:  # stopped: there is no value, but its text so far is still sent
            flight.kept.append(flight.call.take(index, output))
            if output.finish is not None:
                run.usage += output.finish.usage
            if not run.program.deltas and branch.origin.attempts == flight.attempts:
                flight.send_text(self._engine.tokenizer)
            return
        try:
            if continues and output.cached_tokens is not None:
                self.send_appended(run, content_of(branch), output.cached_tokens)
            flight.kept.append(flight.call.take(index, output))
            self._take(flight, output)
        except Exception as error:  # noqa: BLE001  the instruction fails with it
            flight.frame.fail(error)

    def _take(self, flight: _Flight, output: RequestOutput) -> None:
        frame, run, branch = flight.frame, flight.run, flight.frame.branch
        failed = output.finish is not None and output.finish.error is not None
        if run.program.deltas or failed:
            flight.send_text(self._engine.tokenizer)
        elif not run.begun and output.finish is None:
            run.listener(Delta(branch.id, flight.op.name, ""))
        run.begun = True
        if output.finish is not None:
            branch.running.discard(output.id)
            run.usage += output.finish.usage
            if output.finish.error is not None:
                frame.failed(output.finish.error)
                return
        flight.count_scores(output.logprobs or ())
        if not branch.running and flight.complete:
            self._end(flight, flight.call.end())
            frame.ended()

    def _end(self, flight: _Flight, result: Result) -> None:
        frame, value = flight.frame, result.value
        branch, content = frame.branch, content_of(frame.branch)
        frame.state.add_tokens(len(result.tokens), branch)
        frame.state.add_values(1, branch)
        content.append_generated(result.tokens, value.text, result.num_taken_back)
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
        """Resolves where appended text came from (cached, computed, or None: unused), and sends it in the trace."""
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
                        texts=tuple(self._engine.tokenizer.texts(piece.tokens.tolist())),
                        origins=piece.origins,
                    )
                )
        content.appended = Shared()

    def send_unused(self, state: State, run: Run) -> Iterator[None]:
        """Sends, at the end of a program, the appended text that was never computed, a branch at a time."""
        for content in (*(branch.content for branch in state.branches.values()), *state.untold):
            assert isinstance(content, TokenContent)
            self.send_appended(run, content, None)
            yield
