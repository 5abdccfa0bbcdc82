"""Native and generic models against transformers: prefill, chunks, reused pages and decode in ragged batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bough.runtime.models.decoder import Decoder
from bough.runtime.models.load import LoadedModel, load_model
from bough.runtime.models.transformers_model import GenericModel

VOCAB = 97
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0}

NATIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-multi-head-tied": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-bias-head-dim": ("llama", {"attention_bias": True, "head_dim": 20}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear-rope": ("llama", {"rope_parameters": LINEAR}),
    "llama-yarn-rope": ("llama", {"rope_parameters": YARN}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "mistral-full": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}),
    "smollm3-window": ("smollm3", {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 5}),
}
GENERIC: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "gpt_neox": ("gpt_neox", {}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {"sliding_window": 9, "pad_token_id": 0}),
    "gemma2": ("gemma2", {"head_dim": 12, "sliding_window": 6, "query_pre_attn_scalar": 12, "pad_token_id": 0}),
    "gemma3": ("gemma3_text", {"head_dim": 12, "sliding_window": 6, "query_pre_attn_scalar": 12, "pad_token_id": 0}),
    "olmo2": ("olmo2", {}),
    "granite": ("granite", {"logits_scaling": 2.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5}),
    "cohere": ("cohere", {"logit_scale": 0.5}),
    "opt": ("opt", {"ffn_dim": 80, "word_embed_proj_dim": 48, "pad_token_id": 0}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama-mlp-bias": ("llama", {"mlp_bias": True}),
}


def make_config(model_type: str, options: dict[str, Any]) -> Any:
    names = transformers.CONFIG_MAPPING[model_type]
    return names(**(SMALL | options))


def check_paged(reference: Any, loaded: LoadedModel, page_size: int, make_runner: Any, make_stream: Any) -> None:
    """Four streams: two in random chunks, one whole, one on the pages of the first; then they decode together."""
    chance = random.Random(page_size)
    runner = make_runner(loaded.model, page_size=page_size)
    lengths, num_decoded, num_shared = (37, 11, 19, 29), 3, 16
    texts = [[chance.randrange(VOCAB) for _ in range(length + num_decoded)] for length in lengths]
    texts[3][:num_shared] = texts[0][:num_shared]
    streams = [make_stream(text) for text in texts]
    got: list[list[torch.Tensor]] = [[] for _ in texts]

    def step(work: list[tuple[int, int]]) -> None:
        chance.shuffle(work)
        for (index, _), logits in zip(work, runner.step([(streams[i], count) for i, count in work]), strict=True):
            got[index].append(logits)

    step([(2, lengths[2]), (1, 1), (0, 2)])
    while pending := [i for i in (0, 1) if streams[i].num_computed < lengths[i]]:
        step([(i, min(chance.randint(1, 8), lengths[i] - streams[i].num_computed)) for i in pending])
    runner.adopt(streams[3], streams[0], num_shared)
    step([(3, lengths[3] - num_shared), (0, 1)])
    step([(1, 1), (2, 1), (3, 1)])
    for _ in range(num_decoded - 1):
        step([(i, 1) for i in range(4)])

    for index, text in enumerate(texts):
        with torch.no_grad():
            expected = reference(input_ids=torch.tensor([text])).logits[0]
        logits = torch.cat(got[index])
        assert expected.std() > 0.3  # the comparison below says something
        torch.testing.assert_close(logits, expected[len(text) - len(logits) :], rtol=0, atol=1e-4)
    assert [len(torch.cat(parts)) for parts in got] == [40, 14, 22, 16]


@pytest.mark.parametrize("name", NATIVE)
def test_native_matches_transformers(
    name: str, tmp_path: Path, save_checkpoint: Callable[..., Any], make_runner: Any, make_stream: Any
) -> None:
    reference = save_checkpoint(make_config(*NATIVE[name]), tmp_path)
    loaded = load_model(tmp_path, dtype="float32")
    assert isinstance(loaded.model, Decoder)
    for page_size in (1, 16):
        check_paged(reference, loaded, page_size, make_runner, make_stream)
    assert loaded.num_parameters == sum(parameter.numel() for parameter in reference.parameters())
    assert loaded.eos_ids == (2,)


@pytest.mark.parametrize("name", GENERIC)
def test_generic_matches_transformers(
    name: str, tmp_path: Path, save_checkpoint: Callable[..., Any], make_runner: Any, make_stream: Any
) -> None:
    reference = save_checkpoint(make_config(*GENERIC[name]), tmp_path)
    loaded = load_model(tmp_path, dtype="float32")
    assert isinstance(loaded.model, GenericModel)
    assert loaded.config.num_layers == loaded.model.num_layers == reference.config.num_hidden_layers
    for page_size in (1, 16):
        check_paged(reference, loaded, page_size, make_runner, make_stream)


@pytest.mark.parametrize("architecture", ["qwen3", "phi"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_other_dtypes(
    dtype: str, architecture: str, tmp_path: Path, save_checkpoint: Any, make_runner: Any, make_stream: Any
) -> None:
    reference = save_checkpoint(make_config(architecture, {}), tmp_path)
    loaded = load_model(tmp_path, dtype=dtype)
    runner = make_runner(loaded.model, page_size=4)
    tokens = list(range(20))
    logits = runner.step([(make_stream(tokens), 20)])[0]
    assert logits.dtype == torch.float32
    with torch.no_grad():
        expected = reference(input_ids=torch.tensor([tokens])).logits[0]
    error = (logits - expected).norm() / expected.norm()
    assert error < {"float64": 1e-5, "bfloat16": 0.05, "float16": 0.01}[dtype]
