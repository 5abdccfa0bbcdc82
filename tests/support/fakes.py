"""Stand-ins for a model: keys and values as a hash chain that is read only through the page table."""

from __future__ import annotations

import functools
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as AbstractSequence
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from bough.constrain import GrammarCompiler
from bough.constrain.matchers.interface import TableMatcher
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.counters import ModelInfo
from bough.runtime.runner.runner import Batch, DirectPasses, DrawSpec, build_batch
from bough.runtime.sampler.rows import Draws, Row
from bough.runtime.scheduler.scheduler import Advance, Plan, Sequence, Work
from bough.runtime.tokenizer.load import load_tokenizer
from bough.runtime.tokenizer.tokenizer import Tokenizer

from .sampling import host_sampler

_MASK = (1 << 61) - 1

AHEAD = int(os.environ.get("BOUGH_TEST_AHEAD", "0"))
"""Runs every test of the engine on a device that is a pass behind (see `fake_engine`)."""


def chain(previous: int, token: int) -> int:
    """Returns what the slot after `previous` holds once `token` is computed."""
    return (previous * 6364136223846793005 + token * 1442695040888963407 + 12345) & _MASK


def root(namespace: str) -> int:
    return sum(ord(c) * 31**i for i, c in enumerate(namespace)) + 7


def reference(prompt: list[int], namespace: str, num_tokens: int, vocab_size: int) -> list[int]:
    """Returns what the fake model generates, computed without cache, pages or batches."""
    state = root(namespace)
    for token in prompt:
        state = chain(state, token)
    out = []
    for _ in range(num_tokens):
        out.append(state % vocab_size)
        state = chain(state, out[-1])
    return out


class FakeModel:
    """Writes (position, token) into the slot that the page table names, and reads its context back from there."""

    def __init__(self, num_pages: int, page_size: int, vocab_size: int) -> None:
        self.slots = [-1] * (num_pages * page_size)
        self.page_size = page_size
        self.vocab_size = vocab_size

    def run(self, plan: Plan, drawn: dict[Sequence, list[int]] | None = None) -> list[list[int]]:
        """The token that each logits position of each work chooses.

        `drawn` keeps what each sequence drew last, by which a token that nobody has read yet is known here.
        """
        chosen = []
        for work in plan.work:
            sequence = work.sequence
            assert sequence.lease is not None
            tokens = [*sequence.tokens, *work.drafts]
            if drawn is not None and work.stop > len(tokens):
                tokens = [*sequence.tokens, *[0] * (work.start - len(sequence.tokens)), drawn[sequence][-1]]
            picks = []
            for position in range(work.start, work.stop):
                before = self.slots[self._slot(sequence, position - 1)] if position else root(sequence.namespace)
                assert before >= 0, "a slot was read before it was written"
                self.slots[self._slot(sequence, position)] = chain(before, tokens[position])
                if work.logits_start <= position < work.logits_stop:
                    picks.append(self.slots[self._slot(sequence, position)] % self.vocab_size)
            chosen.append(picks)
            if drawn is not None and picks:
                drawn[sequence] = picks
        return chosen

    def _slot(self, sequence: Sequence, position: int) -> int:
        assert sequence.lease is not None
        return sequence.lease.pages[position // self.page_size] * self.page_size + position % self.page_size


def advance(work: Work, picks: list[int], max_tokens: int) -> Advance:
    """Accepts picks as long as they equal the drafts, and one more; ends at `max_tokens` generated tokens."""
    sequence = work.sequence
    accepted: list[int] = []
    for index, pick in enumerate(picks):
        accepted.append(pick)
        if len(sequence.tokens) - sequence.num_prompt + len(accepted) >= max_tokens:
            return Advance(tuple(accepted), finished=True)
        if index >= len(work.drafts) or pick != work.drafts[index]:
            break
    return Advance(tuple(accepted))


class FakeRunner:
    """A model of hashes in place of `ModelRunner`: logits are a function of the whole context, read through the pages.

    `bias` (token id -> amount) makes tokens likelier; `broken` makes the rows of contexts that end in this token NaN.
    """

    def __init__(self, num_pages: int, page_size: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.page_size = page_size
        self.slots = np.full(num_pages * page_size, -1, dtype=np.int64)
        self.bias: dict[int, float] = {}
        self.broken: int | None = None
        self.fails = 0
        self.num_steps = 0
        self.faults: np.ndarray | None = None

    def run(self, batch: Batch) -> np.ndarray | None:
        self.num_steps += 1
        if self.fails:
            self.fails -= 1
            raise RuntimeError("the device is on fire")
        attention = batch.attention
        states = np.empty(len(batch.tokens), dtype=np.int64)
        for row in range(len(attention.context_len)):
            for query in range(attention.query_start[row], attention.query_start[row + 1]):
                position = int(batch.positions[query])
                before = (
                    root("") if position == 0 else int(self.slots[self._slot(attention.page_table[row], position - 1)])
                )
                assert before >= 0, "a slot was read before it was written"
                states[query] = chain(before, int(batch.tokens[query]))
                assert attention.write_slot[query] == self._slot(attention.page_table[row], position)
                self.slots[attention.write_slot[query]] = states[query]
        if not len(batch.logit_rows):
            return None
        return np.stack([self._logits(int(states[row]), int(batch.tokens[row])) for row in batch.logit_rows])

    def _logits(self, state: int, token: int) -> np.ndarray:
        logits = np.random.default_rng(state).normal(size=self.vocab_size).astype(np.float32) * np.float32(3)
        for index, amount in self.bias.items():
            logits[index] += amount
        return logits * np.float32(np.nan) if token == self.broken else logits

    def _slot(self, table: np.ndarray, position: int) -> int:
        return int(table[position // self.page_size]) * self.page_size + position % self.page_size


class AheadPasses:
    """`PassRunner` of a device that is always one pass behind: what was drawn is known only to it until it is read.

    It keeps the last token of each sequence for the next pass, and with `max_steps` > 1 draws by itself; then it knows
    the states of regular constraints, too, each with where the sequence is and its epoch.
    """

    overlaps = True
    exact = True

    def __init__(self, model: FakeRunner, max_steps: int) -> None:
        self.model = model
        self.sampler = host_sampler()
        self.max_steps = max_steps
        self.trees = model.page_size == 1
        self.last: dict[Sequence, int] = {}
        self.states: dict[Sequence, tuple[int, int, int]] = {}
        self.num_unread = 0
        self.num_constrained = 0

    def launch(self, plans: AbstractSequence[Plan], specs: AbstractSequence[DrawSpec] | None) -> AheadPass:
        assert self.num_unread < 2, "two passes are in flight at most"
        if specs is None:
            (plan,) = plans
            launched = AheadPass(self, plan, self._run(plan))
            self.num_unread += 1
            return launched
        launched = AheadPass(self, plans[0], None)
        for plan in plans:
            logits = self._run(plan)
            assert logits is not None
            rows, masks = [], np.zeros((len(specs), -(-self.model.vocab_size // 32)), np.int32)
            for index, (work, spec) in enumerate(zip(plan.work, specs, strict=True)):
                state = self._state(spec, work)
                if spec.matcher is not None and state is not None:
                    self.num_constrained += 1
                    masks[index] = spec.matcher.grammar.row(state) if state >= 0 else 0
                masked = index if spec.matcher is not None else None
                rows.append(Row(spec.params, spec.seed, work.logits_start + 1, banned=spec.banned, masked=masked))
            draws = self.sampler.sample(logits, rows, masks)
            for work, spec, token in zip(plan.work, specs, draws.tokens, strict=True):
                if spec.matcher is not None:
                    state = self._state(spec, work)
                    assert state is not None
                    self.follow(work, spec.matcher, state, token)
            self.keep(plan, draws)
            launched.drawn.append(draws)
        self.num_unread += 1
        return launched

    def prepare(self) -> bool:
        return False

    def draws(self, spec: DrawSpec, work: Work) -> bool:
        params = spec.params
        plain = params.logprobs is None and params.repetition_penalty == 1.0 and not params.logit_bias
        return plain and (spec.matcher is None or self._state(spec, work) is not None)

    def _state(self, spec: DrawSpec, work: Work) -> int | None:
        """State of the constraint of `work` before its draw, as the host knows it or as it was followed here."""
        if spec.matcher is None:
            return None
        if work.start < len(work.sequence.tokens):
            return spec.matcher.state
        position, epoch, state = self.states.get(work.sequence, (-1, -1, -1))
        return state if (position, epoch) == (work.start, work.epoch) else None

    def follow(self, work: Work, matcher: TableMatcher, state: int, token: int) -> None:
        """Keeps the state after `token`, -1 where nothing may follow."""
        following = matcher.grammar.following(state, token) if state >= 0 else -1
        self.states[work.sequence] = (work.stop, work.epoch, following)

    def _run(self, plan: Plan) -> np.ndarray | None:
        batch = build_batch(plan, self.model.page_size)
        for index, row in zip(batch.fed, batch.fed_rows, strict=True):
            batch.tokens[index] = self.last[plan.work[row].sequence]
        return self.model.run(batch)

    def keep(self, plan: Plan, draws: Draws) -> None:
        """The last token of every work that drew one without drafts."""
        row = 0
        for work in plan.work:
            if work.samples and not work.drafts:
                self.last[work.sequence] = draws.tokens[row]
            row += work.logits_stop - work.logits_start


class AheadPass:
    """A launch of `AheadPasses`."""

    def __init__(self, runner: AheadPasses, plan: Plan, logits: np.ndarray | None) -> None:
        self.runner, self.plan, self.logits = runner, plan, logits
        self.drawn: list[Draws] = []

    def draw(self, rows: AbstractSequence[Row], masks: np.ndarray | None) -> None:
        self.drawn.append(
            Draws([], [], []) if self.logits is None else self.runner.sampler.sample(self.logits, rows, masks)
        )
        row = 0
        for work in self.plan.work:
            if work.samples and not work.drafts and (matcher := rows[row].matcher) is not None:
                assert matcher.state is not None
                self.runner.follow(work, matcher, matcher.state, self.drawn[0].tokens[row])
            row += work.logits_stop - work.logits_start
        self.runner.keep(self.plan, self.drawn[0])

    def read(self) -> list[Draws]:
        self.runner.num_unread -= 1
        return self.drawn

    def done(self) -> bool:
        return True


_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def byte_tokenizer() -> Tokenizer:
    """Tokenizer for ChatML with a token per byte; 256 and 257 are <|im_start|> and <|im_end|>, which ends a turn."""
    with tempfile.TemporaryDirectory() as folder:
        write_byte_tokenizer(Path(folder))
        return load_tokenizer(folder)


def write_byte_tokenizer(folder: Path) -> None:
    """The files of `byte_tokenizer`."""
    alphabet = {chr(code): index for index, code in enumerate(_byte_characters())}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(alphabet, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": _CHATML, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _byte_characters() -> list[int]:
    """The character that byte-level BPE writes for each byte, as its code point."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [byte if byte in shown else next(hidden) for byte in range(256)]


def model_info(num_pages: int, page_size: int, max_model_len: int = 2048) -> ModelInfo:
    """Describes a model over the byte tokenizer."""
    return ModelInfo(
        name="fake",
        path="",
        architecture="hash",
        vocab_size=258,
        max_model_len=max_model_len,
        max_request_tokens=min(max_model_len, (num_pages - 1) * page_size),
        dtype="float32",
        device="cpu",
        num_parameters=0,
        page_size=page_size,
        num_pages=num_pages,
    )


def fake_engine(
    num_pages: int = 4096, page_size: int = 1, *, ahead: int = AHEAD, mask_patience_s: float = 10.0, **settings: object
) -> tuple[Engine, FakeRunner]:
    """An engine whose model is a `FakeRunner` over the byte tokenizer.

    `ahead` 0: each pass is read in its step; else one pass is in flight, of up to `ahead` steps. So much patience with
    masks makes the number of passes certain: a pass takes no time here.
    """
    tokenizer = byte_tokenizer()
    config = EngineConfig(num_pages=num_pages, page_size=page_size, **settings)  # type: ignore[arg-type]
    runner = FakeRunner(num_pages, page_size, 258)
    info = model_info(num_pages, page_size)
    engine = Engine(
        config=config,
        info=info,
        runner=AheadPasses(runner, ahead) if ahead else DirectPasses(runner, page_size, host_sampler(), exact=True),
        tokenizer=tokenizer,
        grammars=GrammarCompiler(tokenizer.vocabulary(258)),
        clock=time.monotonic,
        mask_patience_s=mask_patience_s,
    )
    return engine, runner


def refuse_threads(monkeypatch: pytest.MonkeyPatch, *prefixes: str) -> Callable[[], None]:
    """Has no thread be started whose name begins with one of `prefixes`; returns what has them be started again."""
    begin = threading.Thread.start

    def fail(self: threading.Thread) -> None:
        if self.name.startswith(prefixes):
            raise RuntimeError("can't start new thread")
        begin(self)

    monkeypatch.setattr(threading.Thread, "start", fail)
    return lambda: monkeypatch.setattr(threading.Thread, "start", begin)
