"""Token bitmasks against bits read one at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bough.kernels.sampling.mask_logits import mask_logits_, unpack_mask


def random_mask(rows: int, words: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (rows, words), generator=generator, dtype=torch.int64).to(torch.int32)


def bit(mask: torch.Tensor, row: int, token: int) -> bool:
    word, offset = divmod(token, 32)
    return word < mask.shape[1] and bool((int(mask[row, word]) % 2**32) >> offset & 1)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 170), st.integers(0, 99))
def test_unpacking_is_lowest_bit_first(rows: int, words: int, size: int, seed: int) -> None:
    mask = random_mask(rows, words, seed)
    expected = [[bit(mask, row, token) for token in range(size)] for row in range(rows)]
    assert unpack_mask(mask, size).tolist() == expected


def test_the_sign_bit_is_a_token_like_any_other() -> None:
    mask = torch.tensor([[-(2**31), 1]], dtype=torch.int32)
    assert unpack_mask(mask, 64).nonzero()[:, 1].tolist() == [31, 32]


@pytest.mark.parametrize("size", [31, 32, 33, 64, 100, 258])
@pytest.mark.parametrize("rows", [[0], [2, 0], [0, 1, 2, 3], [3], []])
def test_only_the_rows_named_change_and_only_where_forbidden(size: int, rows: list[int]) -> None:
    torch.manual_seed(size)
    logits = torch.randn(4, size)
    before = logits.clone()
    mask = random_mask(len(rows), -(-size // 32), size)
    mask_logits_(logits, mask, torch.tensor(rows, dtype=torch.int64))
    for row in range(4):
        for token in range(size):
            allowed = row not in rows or bit(mask, rows.index(row), token)
            expected = before[row, token] if allowed else torch.tensor(-torch.inf)
            assert torch.equal(logits[row, token], expected)


def test_tokens_past_the_mask_are_forbidden() -> None:
    """A model may have more logits than its tokenizer has tokens."""
    logits = torch.zeros(1, 70)
    mask_logits_(logits, torch.full((1, 2), -1, dtype=torch.int32), torch.tensor([0]))
    assert logits[0, :64].tolist() == [0.0] * 64
    assert logits[0, 64:].isneginf().all()


def test_an_empty_mask_forbids_all_and_a_full_one_nothing() -> None:
    logits = torch.randn(2, 40)
    before = logits.clone()
    mask_logits_(logits, torch.tensor([[0, 0], [-1, -1]], dtype=torch.int32), torch.tensor([1, 0]))
    assert torch.equal(logits[0], before[0])
    assert logits[1].isneginf().all()


def test_what_is_not_finite_stays_so() -> None:
    logits = torch.tensor([[torch.nan, torch.inf, 1.0, torch.nan]])
    mask_logits_(logits, torch.tensor([[0b0111]], dtype=torch.int32), torch.tensor([0]))
    assert logits[0].isnan().tolist() == [True, False, False, False]
    assert logits[0, 1] == torch.inf
    assert logits[0, 3] == -torch.inf
