"""Counts of tokens on the device are those of the sequence, whoever drew them; and there are lines for some slots."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch

from bough.runtime.protocol.sampling_params import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, SamplingParams
from bough.runtime.runner.gpu_adjustments import DeviceAdjustments
from bough.runtime.runner.gpu_slots import Slot
from bough.runtime.runner.runner import DrawSpec
from bough.runtime.scheduler.scheduler import Sequence, Standing, Work

VOCAB = 23
CPU = torch.device("cpu")


def brute(tokens: list[int], num_prompt: int) -> list[int]:
    """A line: times generated, less 2^15 for those of the prompt."""
    times, prompt = Counter(tokens[num_prompt:]), set(tokens[:num_prompt])
    return [min(times[token], 32767) - 32768 * (token in prompt) for token in range(VOCAB)]


def line_of(device: DeviceAdjustments, slot: Slot) -> list[int]:
    assert device.tables.counts is not None
    return device.tables.counts[slot.index].tolist()


def work_at(sequence: Sequence, start: int) -> Work:
    return Work(sequence, start, start + 1, start, start + 1, (), sequence.epoch)


@pytest.mark.parametrize("seed", range(20))
def test_counts_follow_draws_that_the_host_has_and_has_not_read(seed: int) -> None:
    """Steps on the device, passes in which the host drew, tokens replaced, sequences put back to wait, in any order."""
    rng = random.Random(seed)
    device = DeviceAdjustments(4, VOCAB, CPU)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))] for _ in range(3)]
    texts = [list(prompt) for prompt in prompts]  # with what nobody has read
    sequences = [
        Sequence(id=str(i), tokens=list(prompt), num_prompt=len(prompt), standing=Standing(i))
        for i, prompt in enumerate(prompts)
    ]
    slots = [Slot(3 - index) for index in range(3)]
    last_token = torch.zeros(4, dtype=torch.int64)
    for _ in range(60):
        chosen = rng.sample(range(3), rng.randint(1, 3))
        if rng.random() < 0.4:  # a pass that does not count
            for index in chosen:
                texts[index].append(rng.randrange(VOCAB))
                sequences[index].tokens[:] = texts[index][:-1]
                last_token[slots[index].index] = texts[index][-1]
            continue
        for index in chosen:
            if rng.random() < 0.15:
                sequences[index].tokens[:] = texts[index]
                if len(texts[index]) > len(prompts[index]):
                    texts[index][-1] = sequences[index].tokens[-1] = rng.randrange(VOCAB)
                sequences[index].epoch += 1
        num_steps = rng.randint(1, 4)
        works = [work_at(sequences[index], len(texts[index]) - 1) for index in chosen]
        device.count([slots[index] for index in chosen], works, last_token, num_steps)
        for index in chosen:
            assert line_of(device, slots[index]) == brute(texts[index], len(prompts[index]))
            for _ in range(num_steps):
                token = rng.randrange(VOCAB)
                device._add(torch.tensor([slots[index].index * VOCAB + token]), torch.tensor([1]))
                texts[index].append(token)
            last_token[slots[index].index] = texts[index][-1]
            if rng.random() < 0.5:  # read, all of it or none: the others are one flight behind
                sequences[index].tokens[:] = texts[index]


def test_a_count_saturates_and_the_prompt_stays_marked() -> None:
    device = DeviceAdjustments(2, VOCAB, CPU)
    sequence = Sequence(id="a", tokens=[5] + [5] * 40000, num_prompt=1, standing=Standing(0))
    slot = Slot(1)
    device.count([slot], [work_at(sequence, 40000)], torch.zeros(2, dtype=torch.int64), 1)
    assert line_of(device, slot)[5] == -1


def test_slots_past_the_lines_have_no_penalties_but_a_bias() -> None:
    device = DeviceAdjustments(6, VOCAB, CPU, count_bytes=4 * VOCAB * 2)
    penalised = DrawSpec(SamplingParams(presence_penalty=0.5), 0)
    biased = DrawSpec(SamplingParams(logit_bias={3: 1.0}), 0, banned=(7,))
    assert device.could_hold(penalised, Slot(3)) and not device.could_hold(penalised, Slot(4))
    assert not device.could_hold(penalised, None)
    assert device.could_hold(biased, Slot(5)) and device.could_hold(biased, None)


def test_a_bias_of_too_many_tokens_is_left_to_the_host() -> None:
    device = DeviceAdjustments(2, 3000, CPU)
    most: dict[str, Any] = {"logit_bias": dict.fromkeys(range(MAX_LOGIT_BIAS), 1.0)}
    ends = tuple(range(2000, 2000 + MAX_STOP_TOKEN_IDS))
    assert device.could_hold(DrawSpec(SamplingParams(**most), 0, banned=ends), Slot(1))
    assert not device.could_hold(DrawSpec(SamplingParams(**most), 0, banned=tuple(range(1500, 2500))), Slot(1))


def test_parameters_go_to_the_slots_and_are_taken_back() -> None:
    device = DeviceAdjustments(4, VOCAB, CPU)
    params = SamplingParams(
        repetition_penalty=1.5, frequency_penalty=0.25, presence_penalty=-0.5, logit_bias={9: 2.0, 4: -1.0}
    )
    device.put([Slot(2), Slot(1)], [DrawSpec(params, 0, banned=(6,)), DrawSpec(SamplingParams(), 0)])
    rows = device.sample_rows(torch.tensor([0, 1, 2], dtype=torch.int32))
    assert rows["repetition"].tolist()[1:] == [1.0, 1.5]
    assert (rows["frequency"].tolist()[2], rows["presence"].tolist()[2]) == (0.25, -0.5)
    assert rows["count_row"].tolist() == [-1, -1, 2] and rows["bias_row"].tolist() == [-1, -1, 2]
    assert device.tables.bias_ids is not None and device.tables.bias_values is not None
    assert device.tables.bias_ids[2, :4].tolist() == [4, 6, 9, VOCAB]
    assert device.tables.bias_values[2, :4].tolist() == [-1.0, -torch.inf, 2.0, 0.0]
    device.put([Slot(2)], [DrawSpec(SamplingParams(), 0)])
    rows = device.sample_rows(torch.tensor([2], dtype=torch.int32))
    assert rows["count_row"].tolist() == [-1] and rows["bias_row"].tolist() == [-1]
