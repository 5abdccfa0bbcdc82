"""The ends of a decode step: the kernels do what the reference does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ...support.triton_interpreter import DEVICE

from . import reference as step  # isort: skip
from bough.kernels.decode_step import step as triton_step  # isort: skip
from bough.kernels.decode_step.inputs import DecodeInputs  # isort: skip


@given(st.integers(1, 140), st.sampled_from([1, 16, 64]), st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_both_ends_equal_the_reference(num_rows: int, page_size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_slots, width = num_rows + 3, 5

    def draw(low: int, high: int, *size: int) -> torch.Tensor:
        return torch.randint(low, high, size, generator=generator)

    slots = torch.randperm(num_slots - 1, generator=generator)[:num_rows].int() + 1
    slots[draw(0, 2, num_rows).bool()] = 0
    last_token, position = draw(0, 1000, num_slots), draw(0, width * page_size - 1, num_slots)
    position[0] = 0
    page_table = draw(0, 50, num_slots, width).int()
    page_table[0] = 0
    drawn = draw(-2, 1000, num_rows)
    results = []
    for module, device in ((step, "cpu"), (triton_step, DEVICE)):
        inputs = DecodeInputs.empty(num_rows, device)
        state = [last_token.to(device).clone(), position.to(device).clone()]
        module.begin_decode(slots.to(device), *state, page_table.to(device), page_size, inputs)
        module.end_decode(slots.to(device), drawn.to(device), *state)
        fields = (inputs.tokens, inputs.positions, inputs.draw_positions, inputs.context_len, inputs.write_slot)
        results.append([tensor.cpu() for tensor in (*fields, *state)])
    for expected, found in zip(*results, strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("num_rows", [1, 4])
def test_views_of_the_first_rows_share_memory(num_rows: int) -> None:
    inputs = DecodeInputs.empty(8, DEVICE)
    inputs.first(num_rows).tokens.fill_(7)
    assert inputs.tokens.tolist() == [7] * num_rows + [0] * (8 - num_rows)
