"""The same weights in transformers, which generates for one request at a time."""

from __future__ import annotations

import importlib
import time
from typing import Any

import torch

from ...runtime.checkpoints.config import ModelConfig, read_config
from ...runtime.checkpoints.gguf_file import GGUFFile
from ...runtime.checkpoints.safetensors import GGUFCheckpoint
from ...runtime.models.load import locate


class TransformersReference:
    """A LlamaForCausalLM made of our own dequantised tensors.

    Raises:
        ImportError: transformers is not installed.
        ValueError: the model is not a GGUF file of the Llama architecture.
    """

    def __init__(self, model: str, dtype: torch.dtype) -> None:
        transformers: Any = importlib.import_module("transformers")
        path = locate(model)
        if not path.is_file():
            raise ValueError(f"{model} is not a .gguf file, which this comparison needs")
        file = GGUFFile(path)
        config = read_config(file)
        if config.architecture != "llama":
            raise ValueError(f"{model} is a {config.architecture} model; this comparison is written for llama")
        checkpoint = GGUFCheckpoint(file, config)
        tensors = {name: checkpoint.read(name).to(dtype) for name in checkpoint.shapes}
        self._model: Any = transformers.LlamaForCausalLM(_llama_config(transformers, config)).to(dtype).eval()
        # The output head may be the embedding, and rotary frequencies are computed: neither is in the file.
        missing, unexpected = self._model.load_state_dict(tensors, strict=False)
        missing = [name for name in missing if not (config.tie_embeddings and name == "lm_head.weight")]
        if missing or unexpected:
            raise ValueError(f"weights do not fit: missing {missing[:3]}, unexpected {unexpected[:3]}")
        self._model.tie_weights()

    def generate(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Greedy continuation of exactly `num_tokens` tokens."""
        tokens = torch.tensor([prompt])
        with torch.inference_mode():
            result = self._model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                min_new_tokens=num_tokens,
                max_new_tokens=num_tokens,
                pad_token_id=0,
            )
        output: list[int] = result[0, len(prompt) :].tolist()
        return output

    def run(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Seconds to generate for all prompts, one after the other."""
        started = time.perf_counter()
        for prompt in prompts:
            self.generate(prompt, num_tokens)
        return time.perf_counter() - started


def _llama_config(transformers: Any, config: ModelConfig) -> Any:
    return transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
        tie_word_embeddings=config.tie_embeddings,
        attn_implementation="sdpa",
    )
