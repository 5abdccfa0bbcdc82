"""Memory that a GPU's KV cache may take, and the error if nothing is left."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bough.runtime.load.memory import cache_budget, measure_activations
from bough.runtime.protocol.config import SchedulerLimits
from bough.runtime.protocol.errors import ModelError

GIB = 1 << 30


def test_the_cache_gets_what_weights_and_activations_leave() -> None:
    budget = cache_budget(free=124 * GIB, total=140 * GIB, fraction=0.9, activations=2 * GIB)
    assert 107 * GIB < budget < 108 * GIB


def test_what_others_use_of_the_gpu_is_not_taken() -> None:
    alone = cache_budget(free=124 * GIB, total=140 * GIB, fraction=0.9, activations=0)
    beside = cache_budget(free=100 * GIB, total=140 * GIB, fraction=0.9, activations=0)
    assert alone - beside == 24 * GIB


def test_an_error_says_what_is_needed_and_what_there_is() -> None:
    with pytest.raises(ModelError) as caught:
        cache_budget(free=10 * GIB, total=24 * GIB, fraction=0.5, activations=3 * GIB)
    message = str(caught.value)
    assert f"{14 * GIB + 3 * GIB + (896 << 20):,}" in message
    assert f"{12 * GIB:,}" in message and f"{10 * GIB:,}" in message
    assert "memory_fraction" in message


class ShortModel:
    """Has one position, and looks it up in a table."""

    def __init__(self) -> None:
        self.num_tokens = 0

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attention: Any) -> torch.Tensor:
        self.num_tokens = len(tokens)
        return torch.ones(1, 4).index_select(0, positions)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


class Planned:
    def plan(self, batch: Any) -> None:
        assert batch.context_len.tolist() == [512]


def test_the_largest_pass_may_have_more_tokens_than_the_model_has_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 10)
    model: Any = ShortModel()
    attention: Any = Planned()
    assert (
        measure_activations(model, attention, SchedulerLimits(max_batch_tokens=512), 16, "cpu") == 7 + 5 * 64 * 4 * 4
    )  # and what draws take
    assert model.num_tokens == 512
