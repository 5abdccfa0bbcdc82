"""Values of programs from an API of one text per request; features that it lacks are requested in words and checked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from ....constrain.errors import GrammarError
from ....constrain.spec import Choice, GrammarSpec, JsonSchema, Structural
from ....runtime.programs.choices import probabilities, score_choices
from ....runtime.protocol.errors import EngineError, RequestError
from ....runtime.protocol.program import Gen, Offer, Select, Value
from ....runtime.protocol.request import Usage
from ....runtime.protocol.sampling_params import SamplingParams
from ....runtime.tools.calls import as_function
from ....runtime.tools.forms import HERMES
from ...diagnostics.errors import BackendError, UnsupportedError
from ..messages.machine import ModelCall
from ..messages.surplus import Answer, split, worthwhile
from ..messages.transcript import Message, Prompt
from .chat_places import Shape
from .emulate import Judge, candidates, chosen, in_words
from .stops import Cutter
from .wire import Ask, Sample, Wire, Written

PrefixPolicy = Literal["continue", "ask", "refuse"]
Emit = Callable[[str], None]


@dataclass(frozen=True)
class Policy:
    """Policy about things that the API itself does not do.

    emulate           constraints and choices are asked for in words, and checked; else they are refused
    max_tries         how often is asked before giving up
    assistant_prefix  text before a generation in an assistant message: the API continues it, it is asked for in words,
                      or it is refused
    chats, completions    which kinds of prompts the API takes
    """

    emulate: bool = True
    max_tries: int = 3
    assistant_prefix: PrefixPolicy = "refuse"
    chats: bool = True
    completions: bool = True


@dataclass
class _Tries:
    """Tries to get one value: their number and usage, and what was wrong each time."""

    usage: Usage = field(default_factory=Usage)
    num_requests: int = 0
    faults: list[str] = field(default_factory=list)
    last: str = ""

    def count(self, usage: Usage) -> None:
        self.usage += usage
        self.num_requests += 1

    def error(self, op: Gen | Select) -> EngineError:
        reasons = "; ".join(f"try {number}: {fault}" for number, fault in enumerate(self.faults, start=1))
        message = f"{op.name!r} is not what was asked for ({reasons}); the last text is {self.last[:500]!r}"
        return EngineError(message, code="invalid_output", param=op.name)


class Answering:
    """The generations and choices of programs, by an API."""

    def __init__(self, wire: Wire, policy: Policy) -> None:
        self._wire = wire
        self._policy = policy
        self._judge = Judge()

    # Before anything is sent

    def check(self, op: Gen | Select, shape: Shape, *, spec_tokens: int) -> None:
        """Raises UnsupportedError: this cannot be done; RequestError: it is wrong."""
        policy = self._policy
        fault = self._wire.refusal(op) or self._misplaced(shape) or self._unenforced(op)
        if fault is None and shape.messages and shape.begun and not spec_tokens and not self._continues:
            if policy.assistant_prefix == "refuse":
                why = "the API cannot continue an assistant message that the program has begun"
                fault = f'{why}: let the message hold the generation alone, or give assistant_prefix="ask"', "text"
            elif policy.assistant_prefix == "continue":
                fault = "the API cannot continue an assistant message that the program has begun", "assistant_prefix"
        if fault is not None:
            message, param = fault
            raise UnsupportedError(message, param=param, branch=op.branch, instruction=op)
        if isinstance(op, Gen) and op.grammar is not None and not isinstance(op.grammar, Choice):
            try:
                self._judge.check(op.grammar)
            except GrammarError as error:
                raise RequestError(str(error), code=error.code, param=getattr(error, "param", None)) from error

    @property
    def _continues(self) -> bool:
        return self._policy.assistant_prefix == "continue" and self._wire.continues

    def _misplaced(self, shape: Shape) -> tuple[str, str] | None:
        if shape.messages:
            if not self._policy.chats:
                return "this model completes texts: messages cannot be sent to it", "messages"
            if shape.loose:
                return "text outside of messages cannot be sent to a chat", "text"
            if shape.role != "assistant":
                where = "outside of messages" if shape.role is None else f"in a {shape.role} message"
                return f"a chat generates in assistant messages only, not {where}", "role"
        elif not self._policy.completions:
            return "this is a chat model: put the text into messages (user, assistant, ...)", "text"
        return None

    def _unenforced(self, op: Gen | Select) -> tuple[str, str] | None:
        grammar = _constraint(op)
        if grammar is None or self._policy.emulate or self._wire.enforces(grammar):
            return None
        if isinstance(op, Select) and self._wire.scores:
            return None
        kind = "select" if isinstance(op, Select) else type(grammar).__name__
        return f"the API does not enforce {kind}, and emulate=False forbids to ask for it and check", "grammar"

    # Asking

    async def answer(self, call: ModelCall, emit: Emit) -> Answer:
        """The value of a generation or a choice. Raises BoughError."""
        op = call.op
        assert isinstance(op, Gen | Select)
        tries = _Tries()
        if isinstance(op, Select):
            return await self._select(call, op, tries)
        if call.run.program.spec_tokens and worthwhile(op, call.ahead):
            found = await self._speculate(call, op, tries)
            if found is not None:
                emit(found.value.text)
                return found
        if op.offer is not None:
            return await self._with_tools(call, op, op.offer, emit, tries)
        if op.grammar is None:
            return await self._plain(call, op, emit, tries)
        return await self._constrained(call, op, op.grammar, emit, tries)

    async def _plain(self, call: ModelCall, op: Gen, emit: Emit, tries: _Tries) -> Answer:
        """Free text."""
        ask = self._ask(call.prompt, op.sampling)
        if ask is not None:
            return _answer(op, (await self._write(ask, emit, tries)).samples, tries)
        samples = await self._begun(call.prompt, op, op.sampling, tries)
        emit(samples[0].text)
        return _answer(op, samples, tries)

    async def _with_tools(self, call: ModelCall, op: Gen, offer: Offer, emit: Emit, tries: _Tries) -> Answer:
        """An answer, or calls of tools. Of an answer that the API does not constrain it is asked for in words."""
        grammar = None if offer.choice == "required" else op.grammar
        tools = tuple(as_function(call.run.tools[name]) for name in offer.tools)
        # beside calls, APIs constrain an answer by a schema only
        beside = isinstance(grammar, JsonSchema) or offer.choice == "none"
        enforced = grammar is not None and beside and self._wire.enforces(grammar)
        wanted = "" if grammar is None or enforced else in_words(grammar)
        start = prompt = _with_wish(call.prompt, wanted)
        for _ in range(self._policy.max_tries):
            ask = self._ask(prompt, op.sampling, grammar=grammar if enforced else None)
            if ask is None:
                raise UnsupportedError(
                    "the API cannot go on from text where tools may be called",
                    param="text",
                    branch=op.branch,
                    instruction=op,
                )
            ask = replace(ask, tools=tools, offer=offer)
            sample = (await self._write(ask, emit if grammar is None else None, tries)).samples[0]
            if sample.calls and offer.choice != "none":
                text = "".join(HERMES.write(*each) for each in sample.calls)
                answer = _answer(op, [replace(sample, text=sample.text + text)], tries)
                return replace(answer, said=sample.text, calls=sample.calls)
            if grammar is None:
                return _answer(op, [sample], tries)
            found = await self._read(sample, grammar, tries)
            if found is not None:
                emit(found.text)
                return _answer(op, [found], tries)
            prompt = _again(start, tries, wanted)
        raise tries.error(op)

    async def _constrained(self, call: ModelCall, op: Gen, grammar: GrammarSpec, emit: Emit, tries: _Tries) -> Answer:
        if self._wire.enforces(grammar):
            ask = self._ask(call.prompt, op.sampling, grammar=grammar)
            try:
                if ask is not None:
                    written = await self._write(ask, emit, tries)
                    fault = await self._fault(written.samples[0].text, grammar)
                    if fault is None or written.samples[0].ended == "length":
                        return _answer(op, written.samples, tries)
                    tries.faults.append(f"{fault} (the API was to enforce it)")
                    tries.last = written.samples[0].text
                    raise tries.error(op)
            except BackendError as error:
                if not self._wire.gives_up(grammar, error):
                    raise
        if not self._policy.emulate or isinstance(grammar, Structural):
            raise UnsupportedError(
                f"the API does not enforce {type(grammar).__name__}", param="grammar", branch=op.branch, instruction=op
            )
        samples = [await self._emulated(call, op, grammar, tries) for _ in range(op.sampling.n)]
        emit(samples[0].text)
        return _answer(op, samples, tries)

    async def _emulated(self, call: ModelCall, op: Gen | Select, grammar: GrammarSpec, tries: _Tries) -> Sample:
        """Asks for a text in words, checks it, and asks again with what is wrong."""
        wanted = in_words(grammar)
        sampling = msgspec.structs.replace(_sampling(op), n=1)
        start = prompt = _with_wish(call.prompt, wanted)
        again = bool(call.prompt.messages) or not sampling.greedy  # else the same would come
        for _ in range(self._policy.max_tries if again else 1):
            ask = self._ask(prompt, sampling)
            if ask is not None:
                sample = (await self._write(ask, None, tries)).samples[0]
            else:
                sample = (await self._begun(prompt, op, sampling, tries))[0]
            found = await self._read(sample, grammar, tries)
            if found is not None:
                return found
            prompt = _again(start, tries, wanted)
        raise tries.error(op)

    async def _read(self, sample: Sample, grammar: GrammarSpec, tries: _Tries) -> Sample | None:
        """Returns the sample as what its text may have meant that keeps to the constraint; None if nothing does, which
        is noted."""
        for text in _readings(sample.text, grammar):
            if await self._fault(text, grammar) is None:
                return sample if text == sample.text else replace(sample, text=text, logprobs=None)
        fault = await self._fault(sample.text, grammar) or "it is none of the choices"
        tries.faults.append(fault + (" (max_tokens cut it)" if sample.ended == "length" else ""))
        tries.last = sample.text
        return None

    async def _select(self, call: ModelCall, op: Select, tries: _Tries) -> Answer:
        prompt = call.prompt
        if not prompt.messages and prompt.role is None and self._wire.scores:
            scored = await self._wire.score(prompt.loose, op.choices)
            if scored is not None and op.method != "unconditional_likelihood_normalized":
                logprobs, usage = scored
                tries.usage += usage
                tries.num_requests += 1
                scores = score_choices(op.method, logprobs)
                best = max(range(len(scores)), key=scores.__getitem__)
                value = Value(
                    branch=op.branch,
                    name=op.name,
                    text=op.choices[best],
                    usage=tries.usage,
                    probabilities=probabilities(scores),
                    scores=tuple(scores),
                )
                return Answer(value, tries.num_requests)
        if not self._policy.emulate:
            raise UnsupportedError("the API scores no choices", param="choices", branch=op.branch, instruction=op)
        sample = await self._emulated(call, op, Choice(op.choices), tries)
        value = Value(branch=op.branch, name=op.name, text=sample.text, usage=tries.usage)
        return Answer(value, tries.num_requests)

    async def _speculate(self, call: ModelCall, op: Gen, tries: _Tries) -> Answer | None:
        """One longer text for this generation and those that follow; None if it is of no use."""
        own = op.sampling.max_tokens
        longest = None if own is None else own + call.run.program.spec_tokens
        longer = msgspec.structs.replace(op.sampling, max_tokens=longest, min_tokens=0, stop=(), include_stop=False)
        ask = self._ask(call.prompt, longer)
        if ask is not None:
            sample = (await self._write(ask, None, tries)).samples[0]
        else:
            sample = (await self._begun(call.prompt, op, longer, tries))[0]
        parts = split(op, sample.text, complete=sample.ended == "stop", num_tokens=tries.usage.completion_tokens)
        if parts is None:
            return None
        text, stop, surplus = parts
        value = Value(branch=op.branch, name=op.name, text=text, matched=stop, usage=tries.usage)
        return Answer(value, tries.num_requests, surplus)

    async def _begun(self, prompt: Prompt, op: Gen | Select, sampling: SamplingParams, tries: _Tries) -> list[Sample]:
        """The samples of an answer whose beginning the API cannot be given: it has to come by itself."""
        prefix = prompt.content
        bare = prompt._replace(content="")
        if self._policy.assistant_prefix == "ask":
            bare = _with_wish(bare, f"Begin your answer with exactly this text, and go on from there:\n{prefix}")
        # A stop string may be part of the beginning: it counts only after that.
        whole = msgspec.structs.replace(sampling, stop=(), stop_regex=None, include_stop=False)
        ask = self._ask(bare, whole)
        assert ask is not None
        for _ in range(self._policy.max_tries):
            samples = (await self._write(ask, None, tries)).samples
            texts = [_after(sample.text, prefix) for sample in samples]
            found = [
                _cut(sample, text, sampling) for sample, text in zip(samples, texts, strict=True) if text is not None
            ]
            if len(found) == len(samples):
                return found
            tries.last = samples[texts.index(None)].text
            tries.faults.append(f"it does not begin with {prefix!r}")
        raise tries.error(op)

    def _ask(self, prompt: Prompt, sampling: SamplingParams, *, grammar: GrammarSpec | None = None) -> Ask | None:
        """A request for what follows a prompt; None if the API cannot be given its end."""
        if not prompt.messages and prompt.role is None:
            return Ask((), prompt.loose, sampling, grammar)
        if prompt.content and not self._continues:
            return None
        return Ask(prompt.messages, prompt.content, sampling, grammar)

    async def _write(self, ask: Ask, emit: Emit | None, tries: _Tries) -> Written:
        written = await self._wire.write(ask, emit)
        tries.count(written.usage)
        return written

    async def _fault(self, text: str, grammar: GrammarSpec) -> str | None:
        if isinstance(grammar, Choice):
            return self._judge.fault(text, grammar)
        try:
            return await asyncio.to_thread(self._judge.fault, text, grammar)
        except GrammarError as error:
            raise EngineError(str(error), code=error.code) from error


def _constraint(op: Gen | Select) -> GrammarSpec | None:
    return Choice(op.choices) if isinstance(op, Select) else op.grammar


def _sampling(op: Gen | Select) -> SamplingParams:
    if isinstance(op, Gen):
        return op.sampling
    return SamplingParams(max_tokens=max(map(len, op.choices)) + 8, temperature=0.0)


def _with_wish(prompt: Prompt, wish: str) -> Prompt:
    """`wish` as the end of what the user says. A text to be completed stays as it is."""
    if not wish or (not prompt.messages and prompt.role is None):
        return prompt
    messages = prompt.messages
    if messages and messages[-1].role == "user":
        last = messages[-1]
        return prompt._replace(messages=(*messages[:-1], Message("user", f"{last.content}\n\n{wish}")))
    return prompt._replace(messages=(*messages, Message("user", wish)))


def _again(prompt: Prompt, tries: _Tries, wanted: str) -> Prompt:
    """Adds to what was asked the last answer, and what is wrong with it. A text to be completed stays as it is."""
    if not prompt.messages and prompt.role is None:
        return prompt
    said = Message("assistant", prompt.content + tries.last)
    complaint = Message("user", f"That is not valid: {tries.faults[-1]}. {wanted}")
    return prompt._replace(messages=(*prompt.messages, said, complaint))


def _after(text: str, prefix: str) -> str | None:
    """Returns what follows `prefix` in a text that begins with it, white space around it aside."""
    for begun in (text, text.lstrip()):
        for wanted in (prefix, prefix.lstrip(), prefix.strip()):
            if begun.startswith(wanted):
                return begun[len(wanted) :]
    return None


def _readings(text: str, grammar: GrammarSpec) -> list[str]:
    """Yields what a text may have meant."""
    if isinstance(grammar, Choice):
        choice = chosen(text, grammar.options)
        return [] if choice is None else [choice]
    return candidates(text)


def _cut(sample: Sample, text: str, sampling: SamplingParams) -> Sample:
    cutter = Cutter(sampling, None)
    cutter.feed(text)
    cutter.end()
    ended = "stop" if cutter.matched is not None else sample.ended
    return Sample(cutter.text, ended, cutter.matched if cutter.matched is not None else sample.matched)


def _answer(op: Gen, samples: list[Sample] | tuple[Sample, ...], tries: _Tries) -> Answer:
    first = samples[0]
    value = Value(
        branch=op.branch,
        name=op.name,
        text=first.text,
        finish_reason="length" if first.ended == "length" else "stop",
        matched=first.matched,
        usage=tries.usage,
        logprobs=first.logprobs if op.sampling.logprobs is not None else None,
        token_texts=dict(first.token_texts) if op.sampling.logprobs is not None else {},
        samples=tuple(sample.text for sample in samples) if op.sampling.n > 1 else None,
    )
    return Answer(value, tries.num_requests)
