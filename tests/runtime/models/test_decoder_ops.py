"""The decoder over other operations than torch's, tabulated angles, unconverted logits, and a CUDA graph of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bough.kernels.attention.interface import AttentionBatch, AttentionLayer, KVShape, Rotation
from bough.kernels.decoder.select import TORCH_OPS, DecoderOps, triton_ops
from bough.runtime.checkpoints.config import ModelConfig, read_config
from bough.runtime.checkpoints.weights import list_parameters
from bough.runtime.models.decoder import Decoder, RotaryPositions
from bough.runtime.models.load import load_model

from ...kernels.attention.oracle import ReferenceAttention
from ...support.triton_interpreter import DEVICE, HAS_GPU

from bough.kernels.attention.rope_store import rope_store  # isort: skip  after the interpreter
from bough.kernels.linear import few_rows  # isort: skip
from bough.kernels.linear.tiles import Tile  # isort: skip

TRITON_OPS = triton_ops()

ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32},
}


SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 300,
    "rms_norm_eps": 1e-5,
}


def make_config(architecture: str, **changes: Any) -> ModelConfig:
    return read_config({"model_type": architecture, "rope_theta": 1e4} | SIZES | changes)


def make_parameters(config: ModelConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    parameters = {}
    for parameter in list_parameters(config):
        values = torch.randn(parameter.shape, generator=generator) * 0.2
        parameters[parameter.name] = (values + 1 if values.dim() == 1 else values).to(DEVICE, dtype)
    return parameters


def prefill(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    shape = KVShape(decoder.num_layers, 1, len(tokens), decoder.num_kv_heads, decoder.head_dim, torch.float32)
    attention = ReferenceAttention(shape, DEVICE)
    ends = np.array([0, len(tokens)], np.int32)
    slots = np.arange(len(tokens))
    attention.plan(AttentionBatch(ends, ends[1:], np.zeros((1, 1), np.int32), slots))
    positions = torch.from_numpy(slots).to(DEVICE)
    with torch.inference_mode():
        return decoder.forward(torch.tensor(tokens, device=DEVICE), positions, attention)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "smollm3"])
def test_the_operations_may_be_exchanged(architecture: str) -> None:
    config = make_config(architecture)
    parameters = make_parameters(config, torch.float32)
    plain, fast = Decoder(config, parameters), Decoder(config, parameters, TRITON_OPS)
    tokens = [3, 60, 7, 7, 0, 41]
    expected = prefill(plain, tokens)
    assert expected.std() > 0.1
    torch.testing.assert_close(prefill(fast, tokens), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_few_rows_have_products_of_their_own(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of every layer, the head's and the gate's: where there is a configuration, torch multiplies nothing."""
    config = make_config(architecture)
    parameters = make_parameters(config, torch.bfloat16)
    tokens = [3, 60, 7]
    plain = Decoder(config, parameters, TORCH_OPS)
    few = Decoder(config, parameters, replace(TORCH_OPS, few_rows=few_rows.FewRows))
    expected = prefill(plain, tokens)
    scores = plain.logits(expected)
    monkeypatch.setattr(few_rows, "choose", lambda *_: None)
    assert torch.equal(prefill(few, tokens), expected)
    monkeypatch.setattr(few_rows, "choose", lambda *_: few_rows.Config(Tile(4, 4, 4, 1, 32)))
    monkeypatch.setattr(torch.nn.functional, "linear", None)
    for normed in (None, few_rows.Config(Tile(4, 4, 4, 1, 64))):
        monkeypatch.setattr(few_rows, "choose_normed", lambda *_, normed=normed: normed)
        torch.testing.assert_close(prefill(few, tokens), expected, rtol=5e-2, atol=5e-2)
    torch.testing.assert_close(few.logits(expected), scores, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rope", ROPES)
def test_tabulated_angles_are_the_same_to_the_bit(rope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.runtime.models.decoder._TABLE_CHUNK", 128)
    config = make_config("llama", rope_parameters=ROPES[rope]).rope
    device = torch.device(DEVICE)
    computed, tabulated = RotaryPositions(config, 16, device), RotaryPositions(config, 16, device, 300)
    for positions in (torch.arange(300), torch.tensor([299, 0, 127, 128, 5]), torch.tensor([], dtype=torch.int64)):
        for ours, theirs in zip(
            tabulated.angles(positions.to(device)), computed.angles(positions.to(device)), strict=True
        ):
            assert ours.shape == (len(positions), 1, 16)
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_logits_keep_their_dtype_when_asked(dtype: torch.dtype) -> None:
    config = make_config("llama")
    decoder = Decoder(config, make_parameters(config, dtype))
    hidden = torch.randn(3, 48).to(DEVICE, dtype)
    kept = decoder.logits(hidden, keep_dtype=True)
    assert kept.dtype == dtype and kept.shape == (3, 61)
    assert decoder.logits(hidden).dtype == torch.float32
    assert torch.equal(decoder.logits(hidden), kept.float())


class _OneKey:
    """A backend whose every query sees its own key alone, so that it needs no plan; all on the device."""

    def __init__(self, config: ModelConfig, num_tokens: int, dtype: torch.dtype) -> None:
        size = (config.num_layers, num_tokens, config.num_kv_heads, config.head_dim)
        self.keys, self.values = torch.zeros(2, *size, dtype=dtype, device=DEVICE)
        self.slots = torch.arange(num_tokens, device=DEVICE)
        self.num_heads = config.num_heads

    def run_qkv(self, layer: AttentionLayer, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        keys, values = self.keys[layer.index], self.values[layer.index]
        num_heads = self.num_heads
        q = torch.empty(len(qkv), num_heads, keys.shape[2], dtype=qkv.dtype, device=DEVICE)
        rope_store(
            qkv,
            num_heads=num_heads,
            norm=layer.norm,
            rotation=rotation,
            keys=keys,
            values=values,
            write_slot=self.slots,
            q_out=q,
        )
        per_kv = num_heads // keys.shape[1]
        score = (q * keys.repeat_interleave(per_kv, dim=1)).sum(-1, keepdim=True).sigmoid()
        return score * values.repeat_interleave(per_kv, dim=1)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_a_cuda_graph_replays_the_decoder(architecture: str) -> None:
    config, dtype, num_tokens = make_config(architecture), torch.bfloat16, 8
    decoder = Decoder(config, make_parameters(config, dtype), TRITON_OPS)
    attention: Any = _OneKey(config, num_tokens, dtype)
    tokens, positions = (torch.zeros(num_tokens, dtype=torch.int64, device=DEVICE) for _ in range(2))

    def step() -> torch.Tensor:
        return decoder.logits(decoder.forward(tokens, positions, attention), keep_dtype=True)

    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()  # compiles the kernels, which a capture must not do
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = step()
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            tokens.copy_(torch.randint(61, (num_tokens,), generator=generator))
            positions.copy_(torch.randint(300, (num_tokens,), generator=generator))
            graph.replay()
            replayed = recorded.clone()
            assert torch.equal(replayed, step())


@pytest.mark.parametrize(
    ("options", "ops"),
    [
        ({"dtype": "float32"}, TRITON_OPS if HAS_GPU else TORCH_OPS),
        ({"dtype": "float32", "backend": "triton"}, TRITON_OPS),
        ({"dtype": "float32", "backend": "torch"}, TORCH_OPS),
        ({"dtype": "float64"}, TORCH_OPS),  # the kernels compute in float32
    ],
)
def test_loading_chooses_the_operations(
    options: dict[str, Any], ops: DecoderOps, tmp_path: Path, save_checkpoint: Any
) -> None:
    save_checkpoint(transformers.LlamaConfig(**SIZES), tmp_path)
    model = load_model(tmp_path, device=DEVICE, **options).model
    assert isinstance(model, Decoder) and model.ops == ops
