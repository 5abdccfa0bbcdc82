"""Instructions that need the model: which requests they make, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import msgspec

from ...constrain.spec import GrammarSpec
from ..engine.token_healing import Healed, take_back, with_healed
from ..protocol.errors import RequestError
from ..protocol.program import Gen, Select, Value
from ..protocol.request import SAMPLED, RequestOutput, Timings, TokenLogprob, TokenTree, Usage
from ..protocol.sampling_params import SamplingParams
from ..sampler.random_numbers import derive, derive_again
from ..scheduler.token_tree import ChoiceTree, plant
from ..tokenizer.tokenizer import Tokenizer
from .branch import Branch, keep_text
from .choices import probabilities, score_choices

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
    tree: TokenTree | None = None
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
        self._turn = branch.turns[op.name]
        self._samples = [_Sample() for _ in range(op.sampling.n)]
        limit = branch.num_own_text_tokens if op.sampling.token_healing else 0
        self._healed = take_back(branch.tokens, tokenizer, limit=limit)

    def asks(self) -> Iterator[Ask]:
        seed, healed = self._op.sampling.seed, self._healed
        if seed is not None:
            seed = derive_again(seed, self._branch.attempts, self._turn)
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

    def asks(self) -> Iterator[Ask]:
        sampling = SamplingParams(max_tokens=0, temperature=0.0)
        yield from self._asks(self._branch.tokens, self._conditional, sampling)
        if self._op.method == "unconditional_likelihood_normalized":
            yield from self._asks([], self._unconditional, sampling)

    def _asks(self, prompt: Sequence[int], found: list[list[TokenLogprob]], sampling: SamplingParams) -> Iterator[Ask]:
        """What says the log-probabilities of the choices' tokens after `prompt`; they are added to `found`."""
        if self._max_tree is not None:
            for tree in plant(prompt, self._choices, self._max_tree):
                self._targets.append((tree, found))
                yield Ask(tree.tokens, sampling, score_from=tree.score_from, tree=tree.tree, continues=bool(prompt))
            return
        for tokens, target in zip(self._choices, found, strict=True):
            if prompt or len(tokens) > 1:
                self._targets.append(target)
                yield Ask([*prompt, *tokens], sampling, score_from=max(len(prompt), 1), continues=bool(prompt))

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
    """The text of each token, and of its alternatives."""
    tokens = list({token for entry in entries for token in (entry.token, *(other for other, _ in entry.top))})
    pieces = tokenizer.pieces(tokens, skip_special_tokens=False)
    return {token: piece.decode(errors="replace") for token, piece in zip(tokens, pieces, strict=True)}
