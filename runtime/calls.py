"""Instructions that need the model: which requests they make, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from ..constrain.spec import GrammarSpec
from .branch import Branch, keep_text
from .choices import probabilities, score_choices
from .errors import RequestError
from .healing import Healed, take_back, with_healed
from .program import Gen, Select, Value
from .random import derive
from .request import SAMPLED, RequestOutput, Timings, TokenLogprob, Usage
from .sampling import SamplingParams
from .tokenizer import Tokenizer

MAX_CHOICES = 1024


@dataclass(frozen=True)
class Ask:
    """A request that a call makes of the engine. `continues`: its prompt begins with the branch's tokens.

    If `prefix` is the text of the branch's last tokens, these are not in the prompt.
    """

    prompt: Sequence[int]
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    score_from: int | None = None
    continues: bool = True
    prefix: bytes = b""


@dataclass(frozen=True)
class Result:
    """What a call appends to its branch, with where the tokens came from, and the value it makes.

    First it takes the branch's last `num_taken_back` tokens away: `tokens` begin with their text.
    """

    value: Value
    tokens: list[int]
    origins: tuple[int, ...]
    num_taken_back: int = 0


class Call(Protocol):
    """One instruction in flight. `take` is given what its asks bring; once all have ended, `end` is called."""

    timeout_s: float | None

    def asks(self) -> Iterator[Ask]: ...

    def take(self, index: int, output: RequestOutput) -> str:
        """Takes an event of the `index`-th ask; returns text to stream."""

    def end(self) -> Result: ...


@dataclass
class _Sample:
    """What has come of one request so far."""

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
        self._tokenizer = tokenizer
        self._samples = [_Sample() for _ in range(op.sampling.n)]
        limit = branch.num_own_text_tokens if op.sampling.token_healing else 0
        self._healed = take_back(branch.tokens, tokenizer, limit=limit)

    def asks(self) -> Iterator[Ask]:
        seed, healed = self._op.sampling.seed, self._healed
        prompt = self._branch.tokens[: len(self._branch.tokens) - healed.num_tokens]
        self._branch.shorten_own_text(healed.num_tokens)
        params = msgspec.structs.replace(with_healed(self._op.sampling, healed), n=1, token_healing=False)
        for index in range(len(self._samples)):
            one = msgspec.structs.replace(params, seed=None if seed is None else derive(seed, index))
            yield Ask(prompt, one, self._op.grammar, prefix=healed.prefix)

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
            samples=tuple(sample.text for sample in self._samples) if len(self._samples) > 1 else None,
            constraint=finish.constraint,
        )
        origins = tuple(first.origins[: len(kept)])
        return Result(value, kept, origins + (SAMPLED,) * (len(kept) - len(origins)), healed.num_tokens)


class SelectCall:
    """A Select: one scoring request a choice, all over the same prefix, which is computed once."""

    timeout_s: float | None = None

    def __init__(self, op: Select, branch: Branch, tokenizer: Tokenizer) -> None:
        if not op.choices or not all(op.choices):
            raise RequestError("a select needs choices, and none of them may be empty", param="choices")
        if len(op.choices) > MAX_CHOICES:
            raise RequestError(f"a select may have {MAX_CHOICES} choices at most", param="choices")
        self._op = op
        self._branch = branch
        self._choices = [tokenizer.encode(choice) for choice in op.choices]
        self._conditional: list[list[float]] = [[] for _ in self._choices]
        # A first token has nothing before it to be conditioned on, so its unconditional log-probability is left out.
        self._unconditional: list[list[float]] = [[0.0] for _ in self._choices]
        self._targets = [*self._conditional]
        self._usage = Usage()
        self._timings = Timings()

    def asks(self) -> Iterator[Ask]:
        sampling = SamplingParams(max_tokens=0, temperature=0.0)
        prompt = self._branch.tokens
        for tokens in self._choices:
            yield Ask([*prompt, *tokens], sampling, score_from=len(prompt))
        if self._op.method == "unconditional_likelihood_normalized":
            for tokens, values in zip(self._choices, self._unconditional, strict=True):
                if len(tokens) > 1:
                    self._targets.append(values)
                    yield Ask(tokens, sampling, score_from=1, continues=False)

    def take(self, index: int, output: RequestOutput) -> str:
        self._targets[index] += [entry.logprob for entry in output.logprobs or ()]
        if output.finish is not None:
            self._usage += output.finish.usage
            self._timings = output.finish.timings
        return ""

    def end(self) -> Result:
        scores = score_choices(self._op.method, self._conditional, self._unconditional)
        best = max(range(len(scores)), key=scores.__getitem__)
        value = Value(
            branch=self._branch.id,
            name=self._op.name,
            text=self._op.choices[best],
            usage=self._usage,
            timings=self._timings,
            probabilities=probabilities(scores),
            scores=tuple(scores),
        )
        return Result(value, self._choices[best], (SAMPLED,) * len(self._choices[best]))
