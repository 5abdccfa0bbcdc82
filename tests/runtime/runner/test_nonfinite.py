"""Numbers that are not finite, in whole engines on the CPU: they end their own request, and nothing of it is kept."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bough.kernels.linear.formats import quantise_int8_groups
from bough.kernels.native.library import Library
from bough.kernels.native.packed import tile_packed
from bough.runtime.client.llm import LLM, PromptOutput
from bough.runtime.models.native import NativeDecoder
from bough.runtime.protocol.errors import EngineError
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.runner.native_runner import NativeRunner

from ...support.fakes import fake_engine
from ...support.tiny_model import write_tiny_model
from ..listening import Heard, drive, request

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "head_dim": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
BAD = "!"
"""Its vector is NaN. No answer has it."""
PARAMS: dict[str, Any] = {"ignore_eos": True, "max_tokens": 12, "logit_bias": {ord(BAD): -100.0}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, native_library: Library) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("wide"), **SHAPE)


@pytest.fixture(scope="module", params=["int8", "w8a8-int8", None], ids=["int8", "w8a8", "torch"])
def kind(request: pytest.FixtureRequest) -> str | None:
    param: str | None = request.param
    return param


def open_llm(folder: Path, kind: str | None, **options: Any) -> contextlib.closing[LLM]:
    quantization, _, kv = (kind or "").partition("-")
    options = {"quantization": quantization or None, "num_pages": 3000, "max_batch_tokens": 32} | options
    # In bfloat16, which torch computes in where the processor can, an answer depends on what is beside it.
    dtype = {"dtype": "float32"} if kind is None else {}
    return contextlib.closing(LLM(str(folder), **(options | dtype | ({"kv_cache_dtype": kv} if kv else {}))))


def model_of(llm: LLM) -> Any:
    runner: Any = llm._engine._runner
    return runner.model


def spoil(llm: LLM) -> None:
    """Has the vector of BAD be NaN."""
    runner = model_of(llm)
    if not isinstance(runner, NativeRunner):
        runner.model.embedding[ord(BAD)] = torch.nan
        return
    decoder: NativeDecoder = runner._decoder
    count, width = decoder.config.vocab_size, decoder.config.hidden_size
    rows, table = (ctypes.c_int64 * count)(*range(count)), torch.empty(count, width)
    decoder.library.read_rows(
        ctypes.addressof(decoder.struct.embedding), ctypes.addressof(rows), count, table.data_ptr()
    )
    table[ord(BAD)] = torch.nan
    weight = tile_packed(decoder.library, decoder.threads, quantise_int8_groups(table, 32))
    assert weight is not None
    decoder.kept.append(weight)
    decoder.struct.embedding = weight.struct


@pytest.fixture
def llm(folder: Path, kind: str | None) -> Iterator[LLM]:
    with open_llm(folder, kind) as made:
        assert isinstance(model_of(made), NativeRunner) == (kind is not None)
        spoil(made)
        yield made


def ask(llm: LLM, prompts: list[str], **changes: Any) -> list[PromptOutput]:
    """All at once; failures among them."""
    ended: dict[str, PromptOutput] = {}
    for index, prompt in enumerate(prompts):
        llm.add_request(str(index), prompt, SamplingParams(**(PARAMS | {"seed": index, "temperature": 0.0} | changes)))
    while len(ended) < len(prompts):
        for output in llm.step():
            if output.finished:
                ended[output.request_id] = output
    return [ended[str(index)] for index in range(len(prompts))]


STEM = "what the branches of a tree have in common is its trunk, "
PROMPTS = [
    STEM + "one",
    STEM + "two",
    STEM + f"two{BAD}",
    f"{BAD}three",
    STEM + "four",
    "five",
    STEM + f"f{BAD}ive, and more",
]
FAILING = {2, 3, 6, 7}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_others_of_the_batch_go_on(temperature: float, llm: LLM, folder: Path, kind: str | None) -> None:
    """With the answers that they have alone, by a model without fault."""
    found = ask(llm, PROMPTS, temperature=temperature, logprobs=3)
    with open_llm(folder, kind, enable_prefix_caching=False, max_num_seqs=1) as clean:
        expected = ask(clean, [prompt.replace(BAD, "?") for prompt in PROMPTS], temperature=temperature, logprobs=3)
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        if index in FAILING:
            assert isinstance(one.error, EngineError) and one.error.code == "nonfinite_logits"
            assert one.outputs[0].token_ids == []
            continue
        assert one.error is None
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        if kind is not None:
            assert one.outputs[0].logprobs == other.outputs[0].logprobs
    assert llm.stats.locked_pages == 0


def test_it_is_seen_in_the_chunk_where_it_arises(llm: LLM) -> None:
    """Not at the first logits, 10 passes later; and the next request finds nothing of it."""
    (output,) = ask(llm, [STEM[:30] + BAD + 6 * STEM])
    assert isinstance(output.error, EngineError) and output.error.code == "nonfinite_logits"
    stats = llm.stats
    assert (stats.steps_total, stats.computed_tokens_total) == (1, 32)
    assert (stats.cached_pages, stats.locked_pages) == (0, 0)
    (first, again) = ask(llm, [STEM[:30] + "?" + STEM])[0], ask(llm, [STEM[:30] + "?" + STEM])[0]
    assert first.error is again.error is None and first.outputs[0].token_ids == again.outputs[0].token_ids
    assert llm.stats.cached_tokens_total > 0


@pytest.mark.parametrize("speculation", ["auto", "off"])
def test_a_wrong_draft_fails_nobody(speculation: str) -> None:
    """A draft that is not drawn, and all that follows it, is no part of the answer, finite or not."""
    engine, runner = fake_engine(ahead=0, speculation=speculation)
    runner.bias, runner.broken = {ord("x"): 100.0}, ord(BAD)
    heard = Heard()
    sampling = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    engine.submit(request("drafted", 12 * f"yxxx{BAD}" + "yx", sampling), heard)
    drive(engine)
    assert heard.tokens == [ord("x")] * 40
    stats = engine.stats()
    assert (stats.guessed_tokens_total > stats.right_guesses_total) == (speculation == "auto")
    engine.close()
