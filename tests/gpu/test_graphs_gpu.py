"""Steady decoding on a GPU neither waits for the device unasked nor takes memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.runtime.client.llm import LLM, PromptOutput
from bough.runtime.protocol.sampling_params import SamplingParams

from .place import CPU, GPU, Place, make_prompts

WARM_UP = 64  # steps in which prompts are computed, graphs recorded and buffers grown
ENOUGH = 1 << 14  # pages: none is ever taken away
SWITCHES = [{"cuda_graphs": graphs, "overlap": overlap} for graphs in (False, True) for overlap in (False, True)]


@contextlib.contextmanager
def no_hidden_waits(device: str) -> Iterator[None]:
    """Within, an operation that waits for the GPU unasked raises; waiting for an event is allowed."""
    if device == "cpu":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def start(llm: LLM, place: Place, num_tokens: int, **fields: Any) -> None:
    """Requests that decode for long; greedy and sampled ones, none with a grammar."""
    for index, prompt in enumerate(make_prompts(place)[: place.batch]):
        params = SamplingParams(
            max_tokens=num_tokens, temperature=0.8 * (index % 2), top_p=0.9, seed=index, ignore_eos=True, **fields
        )
        llm.add_request(f"request {index}", prompt, params)


def steps(llm: LLM, count: int) -> int:
    """Makes so many steps, in which no request may end; returns how many tokens the first one has then."""
    changed: dict[str, PromptOutput] = {}
    for _ in range(count):
        changed |= {result.request_id: result for result in llm.step()}
    assert not any(result.finished for result in changed.values())
    return len(changed["request 0"].outputs[0].token_ids)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", [GPU, CPU])
def test_no_step_waits_unasked(place: Place, model_of: Callable[[Place], Path]) -> None:
    with place.llm(model_of(place), num_pages=ENOUGH) as llm:
        start(llm, place, 400 if place.device == "cpu" else 3000)
        before = steps(llm, WARM_UP)
        with no_hidden_waits(place.device):
            assert steps(llm, 40) >= before + 40
        llm.abort_request([f"request {index}" for index in range(place.batch)])


@pytest.mark.gpu
def test_a_hidden_wait_would_be_seen() -> None:
    tensor = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError), no_hidden_waits("cuda"):
        tensor.sum().item()
    event = torch.cuda.Event()
    with no_hidden_waits("cuda"):
        event.record()
        event.synchronize()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("place", "switches"),
    [pytest.param(*GPU.values, switches, marks=pytest.mark.gpu, id=f"gpu {switches}") for switches in SWITCHES]
    + [pytest.param(*CPU.values, {}, id="cpu")],
)
def test_memory_is_stable(place: Place, switches: dict[str, bool], model_of: Callable[[Place], Path]) -> None:
    """Over a thousand decode steps nothing is taken from the device and kept."""
    on_gpu = place.device == "cuda"
    with place.llm(model_of(place), num_pages=ENOUGH, max_decode_steps=2, **switches) as llm:
        start(llm, place, 3000 if on_gpu else 400)
        steps(llm, WARM_UP)
        taken = []
        for _ in range(10):
            if on_gpu:
                torch.cuda.synchronize()
                taken.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
            steps(llm, 100 if on_gpu else 4)
        if on_gpu:
            assert max(taken[5:])[0] <= max(taken[:5])[0] + (1 << 20)
            assert taken[-1][1] == taken[1][1], f"bytes allocated and reserved every 100 steps: {taken}"
        llm.abort_request([f"request {index}" for index in range(place.batch)])
