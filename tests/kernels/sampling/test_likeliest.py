"""The likeliest tokens against a stable sort, in Triton and in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ...support.triton_interpreter import DEVICE  # isort: skip

from bough.kernels.sampling.likeliest import PIECE, likeliest
from bough.kernels.sampling.reference import likeliest as plain_likeliest

Likeliest = Callable[[torch.Tensor, int], torch.Tensor]


@pytest.mark.parametrize("find", [likeliest, plain_likeliest], ids=["triton", "torch"])
@pytest.mark.parametrize("vocab_size", [33, PIECE, PIECE + 1, 2 * PIECE + 77])
@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_of_equal_ones_the_lower_id_comes_first(find: Likeliest, vocab_size: int, count: int) -> None:
    logits = torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(vocab_size)).mul(2).round().to(DEVICE)
    logits[1] = -logits[1].abs()  # zeros of both signs, and none above
    logits[2, 7:] = -torch.inf
    right = logits.sort(dim=1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(find(logits, count), right)


@pytest.mark.parametrize("find", [likeliest, plain_likeliest], ids=["triton", "torch"])
def test_rows_that_are_not_numbers_harm_no_other(find: Likeliest) -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    right = find(logits[[0, 2]], 4)
    logits[1] = torch.nan
    assert torch.equal(find(logits, 4)[[0, 2]], right)


def test_rows_may_lie_apart() -> None:
    logits = torch.randn(4, 90, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    assert torch.equal(likeliest(logits[::2], 3), plain_likeliest(logits[::2].contiguous(), 3))
