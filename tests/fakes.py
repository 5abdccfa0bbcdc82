"""Stand-ins for a model: keys and values as a hash chain that is read only through the page table."""

from __future__ import annotations

import functools
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import tokenizers
import torch

from bough.constrain import GrammarCompiler
from bough.runtime.batch import Batch
from bough.runtime.client import ModelInfo
from bough.runtime.config import EngineConfig
from bough.runtime.engine import Engine
from bough.runtime.scheduler import Advance, Plan
from bough.runtime.sequence import Sequence
from bough.runtime.tokenizer import Tokenizer, load_tokenizer

_MASK = (1 << 61) - 1


def chain(previous: int, token: int) -> int:
    """What the slot after `previous` holds once `token` is computed."""
    return (previous * 6364136223846793005 + token * 1442695040888963407 + 12345) & _MASK


def root(namespace: str) -> int:
    return sum(ord(c) * 31**i for i, c in enumerate(namespace)) + 7


def reference(prompt: list[int], namespace: str, num_tokens: int, vocab_size: int) -> list[int]:
    """What the fake model generates, computed without cache, pages or batches."""
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

    def run(self, plan: Plan) -> list[list[int]]:
        """The token that each logits position of each work chooses."""
        chosen = []
        for work in plan.work:
            sequence = work.sequence
            assert sequence.lease is not None
            tokens = [*sequence.tokens, *sequence.drafts]
            picks = []
            for position in range(work.start, work.stop):
                before = self.slots[self._slot(sequence, position - 1)] if position else root(sequence.namespace)
                assert before >= 0, "a slot was read before it was written"
                self.slots[self._slot(sequence, position)] = chain(before, tokens[position])
                if work.logits_start <= position < work.logits_stop:
                    picks.append(self.slots[self._slot(sequence, position)] % self.vocab_size)
            chosen.append(picks)
        return chosen

    def _slot(self, sequence: Sequence, position: int) -> int:
        assert sequence.lease is not None
        return sequence.lease.pages[position // self.page_size] * self.page_size + position % self.page_size


def advance(sequence: Sequence, picks: list[int], max_tokens: int) -> Advance:
    """Accepts picks as long as they equal the drafts, and one more; ends at `max_tokens` generated tokens."""
    accepted: list[int] = []
    for index, pick in enumerate(picks):
        accepted.append(pick)
        if len(sequence.tokens) - sequence.num_prompt + len(accepted) >= max_tokens:
            return Advance(tuple(accepted), finished=True)
        if index >= len(sequence.drafts) or pick != sequence.drafts[index]:
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

    def run(self, batch: Batch) -> torch.Tensor | None:
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
        return torch.stack([self._logits(int(states[row]), int(batch.tokens[row])) for row in batch.logit_rows])

    def _logits(self, state: int, token: int) -> torch.Tensor:
        logits = torch.from_numpy(np.random.default_rng(state).normal(size=self.vocab_size).astype(np.float32)) * 3
        for index, amount in self.bias.items():
            logits[index] += amount
        return logits * torch.nan if token == self.broken else logits

    def _slot(self, table: np.ndarray, position: int) -> int:
        return int(table[position // self.page_size]) * self.page_size + position % self.page_size


_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def byte_tokenizer() -> Tokenizer:
    """One token a byte, 256 and 257 are <|im_start|> and <|im_end|> (which ends a turn), ChatML."""
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


def fake_engine(num_pages: int = 4096, page_size: int = 1, **settings: object) -> tuple[Engine, FakeRunner]:
    """An engine whose model is a `FakeRunner` over the byte tokenizer."""
    tokenizer = byte_tokenizer()
    config = EngineConfig(num_pages=num_pages, page_size=page_size, **settings)  # type: ignore[arg-type]
    runner = FakeRunner(num_pages, page_size, 258)
    info = ModelInfo(
        name="fake",
        path="",
        architecture="hash",
        vocab_size=258,
        max_model_len=2048,
        max_request_tokens=min(2048, (num_pages - 1) * page_size),
        dtype="float32",
        device="cpu",
        num_parameters=0,
        page_size=page_size,
        num_pages=num_pages,
    )
    engine = Engine(
        config=config,
        info=info,
        runner=runner,  # type: ignore[arg-type]
        tokenizer=tokenizer,
        grammars=GrammarCompiler(tokenizer.vocabulary(258)),
        clock=time.monotonic,
    )
    return engine, runner
