"""Inputs of attention kernels: pages, sharing, and what they are to give."""

import numpy as np
import pytest
import torch

from bough.benchmarks.gpu.cases.kernels import PAGE_SIZE, distinct_tokens, make_inputs, plain_paths, reference
from bough.benchmarks.gpu.roofline import Heads
from bough.kernels.attention.interface import AttentionLayer, KVShape, SharedPrefix

from ....kernels.attention.oracle import ReferenceAttention

HEADS = Heads(4, 2, 8, 4, 4)


def make(paths, **options):
    return make_inputs(paths, HEADS, device="cpu", dtype=torch.float32, seed=3, **options)


def test_pages_belong_to_one_stretch_each():
    inputs = make(plain_paths([40, 16, 33]))
    counts = [3, 1, 3]
    used = [inputs.batch.page_table[row, :count] for row, count in enumerate(counts)]
    pages = np.concatenate(used)
    assert len(set(pages.tolist())) == sum(counts) and 0 not in pages
    assert inputs.context_len.tolist() == [40, 16, 33]
    assert inputs.batch.shared == ()
    assert inputs.out.isnan().all()


def test_sharers_share_pages():
    tree = [[("system", 32), (f"tool {row // 2}", 16), (row, 20)] for row in range(4)]
    inputs = make(tree)
    table = inputs.batch.page_table
    assert (table[:, :2] == table[0, :2]).all()
    assert (table[0:2, 2] == table[0, 2]).all() and table[2, 2] != table[0, 2]
    assert set(inputs.batch.shared) == {SharedPrefix(0, 4, 2), SharedPrefix(0, 2, 3), SharedPrefix(2, 4, 3)}
    assert distinct_tokens(tree) == 32 + 2 * 16 + 4 * 20


def test_a_shared_stretch_is_whole_pages():
    with pytest.raises(ValueError, match="whole pages"):
        make([[("system", 30), (0, 4)]])


@pytest.mark.parametrize(
    ("paths", "num_queries"),
    [(plain_paths([40, 16]), 1), ([[("a", 16), (0, 9)], [("a", 16), (1, 25)]], 1), (plain_paths([37]), 12)],
)
def test_the_reference_is_attention(paths, num_queries):
    """Against the backend that is every kernel's oracle, given the same cache."""
    inputs = make(paths, num_queries=num_queries)
    oracle = ReferenceAttention(KVShape(1, inputs.keys.shape[0] // PAGE_SIZE, PAGE_SIZE, 2, 8, torch.float32))
    oracle.keys[0], oracle.values[0] = inputs.keys, inputs.values
    oracle.plan(inputs.batch)
    slots = torch.from_numpy(inputs.batch.write_slot)
    expected = oracle.run(AttentionLayer(0, scale=inputs.scale), inputs.q, inputs.keys[slots], inputs.values[slots])
    torch.testing.assert_close(reference(inputs).float(), expected, rtol=1e-5, atol=1e-5)


def test_what_lies_past_a_context_would_ruin_a_result():
    inputs = make(plain_paths([20]))
    assert inputs.keys.abs().max() > 1e3
    slots = inputs.batch.page_table[0].astype(int)[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)
    assert inputs.keys[slots.reshape(-1)[:20]].abs().max() < 10
    assert inputs.keys[slots.reshape(-1)[20:]].abs().min() > 1e3
