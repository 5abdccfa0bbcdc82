"""Adjusted logits of many rows at once against those of each, by brute force."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.kernels.sampling.adjusted import adjust_rows
from bough.kernels.sampling.reference import adjust

from .brute_sampler import Draw, adjusted, tensors
from .test_reference import draws, logits_of

VOCAB = 70


@settings(max_examples=100, deadline=None)
@given(batch=st.lists(draws, min_size=1, max_size=5), seed=st.integers(0, 2**31), picked=st.data())
def test_rows_as_by_brute_force(batch: list[Draw], seed: int, picked: st.DataObject) -> None:
    logits = logits_of(seed, len(batch), VOCAB)
    rows, tables = tensors(batch, VOCAB, "cpu")
    index = picked.draw(st.lists(st.integers(0, len(batch) - 1), min_size=1, max_size=6))
    found = adjust_rows(logits[index], torch.tensor(index), rows, tables)
    for line, row in zip(found, index, strict=True):
        assert torch.equal(line, adjust(logits[row], rows, row, tables))
        assert np.array_equal(line.numpy(), adjusted(logits[row], batch[row]))


@pytest.mark.parametrize("missing", ["counts", "mask", "bias_ids"])
def test_a_table_that_is_not_there_changes_nothing(missing: str) -> None:
    batch = [Draw(frequency=0.5, counts={1: 2}, allowed=tuple(range(9)), bias={4: 2.0})]
    logits = logits_of(3, 1, VOCAB)
    rows, tables = tensors(batch, VOCAB, "cpu")
    tables = dataclasses.replace(tables, **{missing: None})
    found = adjust_rows(logits, torch.tensor([0]), rows, tables)
    assert torch.equal(found[0], adjust(logits[0], rows, 0, tables))
