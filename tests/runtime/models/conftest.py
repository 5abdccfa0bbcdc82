"""Fixtures of the model tests: a tiny engine over the reference backend, and small random checkpoints."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bough.kernels.attention.interface import AttentionBatch, KVShape

from ...kernels.attention.oracle import ReferenceAttention


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "model: needs the SmolLM2 checkpoint")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tiny operations only lose by being shared out, most of all while other programs run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Stream:
    """One sequence: all its tokens, its pages, and how many tokens are in the cache."""

    tokens: list[int]
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0


class PagedRunner:
    """Runs ragged batches of streams through a model, on pages in random order, with the reference backend."""

    def __init__(self, model: Any, *, page_size: int, num_pages: int = 256, seed: int = 0) -> None:
        self.model = model
        self.page_size = page_size
        shape = KVShape(model.num_layers, num_pages, page_size, model.num_kv_heads, model.head_dim, torch.float32)
        self.attention = ReferenceAttention(shape)
        self._free = random.Random(seed).sample(range(num_pages), num_pages)

    def adopt(self, stream: Stream, other: Stream, num_tokens: int) -> None:
        """Starts `stream` on the pages that hold the first tokens of another one."""
        assert num_tokens % self.page_size == 0
        assert stream.tokens[:num_tokens] == other.tokens[:num_tokens]
        stream.pages = other.pages[: num_tokens // self.page_size]
        stream.num_computed = num_tokens

    def step(self, work: Sequence[tuple[Stream, int]]) -> list[torch.Tensor]:
        """Extends each stream by its next n tokens in one forward; the logits [n, vocab] of each."""
        tokens, positions, slots, query_start = [], [], [], [0]
        for stream, count in work:
            stop = stream.num_computed + count
            while len(stream.pages) * self.page_size < stop:
                stream.pages.append(self._free.pop())
            for position in range(stream.num_computed, stop):
                tokens.append(stream.tokens[position])
                positions.append(position)
                page, offset = divmod(position, self.page_size)
                slots.append(stream.pages[page] * self.page_size + offset)
            stream.num_computed = stop
            query_start.append(len(tokens))
        table = np.full((len(work), max(len(stream.pages) for stream, _ in work)), -1, np.int32)
        for row, (stream, _) in enumerate(work):
            table[row, : len(stream.pages)] = stream.pages
        self.attention.plan(
            AttentionBatch(
                query_start=np.array(query_start, np.int32),
                context_len=np.array([stream.num_computed for stream, _ in work], np.int32),
                page_table=table,
                write_slot=np.array(slots, np.int64),
            )
        )
        with torch.inference_mode():
            hidden = self.model.forward(torch.tensor(tokens), torch.tensor(positions), self.attention)
            return list(self.model.logits(hidden).split([count for _, count in work]))


@pytest.fixture(scope="session")
def make_runner() -> Callable[..., PagedRunner]:
    return PagedRunner


@pytest.fixture(scope="session")
def make_stream() -> Callable[[list[int]], Stream]:
    return Stream


@pytest.fixture(scope="session")
def save_checkpoint() -> Callable[..., Any]:
    """save(config, folder, **options) -> the transformers model with random weights, saved as a checkpoint."""

    def save(config: Any, folder: Path, **options: Any) -> Any:
        torch.manual_seed(0)
        config.initializer_range = 0.15
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:  # norms and biases start as ones and zeros, which would hide their absence
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        model.save_pretrained(folder, **options)
        return model

    return save
