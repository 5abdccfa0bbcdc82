"""transformers' side of a comparison: `generate` in bfloat16, with the prompts of a batch padded to one length."""

from __future__ import annotations

from typing import Any

import torch
import transformers


class TransformersEngine:
    """`options`: model_file (a folder as transformers has it), threads, max_num_seqs."""

    def __init__(self, options: dict[str, Any]) -> None:
        torch.set_num_threads(options["threads"])
        self._max_seqs = options["max_num_seqs"]
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            options["model_file"], dtype=torch.bfloat16, local_files_only=True
        )

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        outputs: list[list[int]] = []
        for start in range(0, len(prompts), self._max_seqs):
            outputs += generate_greedily(self._model, prompts[start : start + self._max_seqs], num_tokens)
        return outputs

    def constrained(self, prompts: list[list[int]], schema: str, num_tokens: int) -> list[list[int]]:
        raise NotImplementedError("it has no constraints of its own")

    def score(self, tokens: list[int]) -> tuple[list[float], list[int]]:
        with torch.inference_mode():
            scores = self._model(torch.tensor([tokens])).logits[0, :-1].float().log_softmax(-1)
        logprobs: list[float] = scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
        likeliest: list[int] = scores.argmax(-1).tolist()
        return logprobs, likeliest


def generate_greedily(model: Any, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """Continuations of exactly `num_tokens` tokens by a model of transformers, all prompts at once."""
    width = max(len(prompt) for prompt in prompts)
    rows = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    options = {"do_sample": False, "min_new_tokens": num_tokens, "max_new_tokens": num_tokens, "pad_token_id": 0}
    with torch.inference_mode():
        result = model.generate(torch.tensor(rows), attention_mask=torch.tensor(mask), **options)
    outputs: list[list[int]] = result[:, width:].tolist()
    return outputs


class RandomTransformersEngine:
    """Its continuous batching on a GPU. `options`: model_file (a folder with config.json), device."""

    def __init__(self, options: dict[str, Any]) -> None:
        config = transformers.AutoConfig.from_pretrained(options["model_file"])
        make: Any = transformers.AutoModelForCausalLM.from_config
        with torch.device(options["device"]):
            self._model: Any = make(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
        self._configs: Any = transformers  # whose classes have no types
        self._batching: Any = self._configs.ContinuousBatchingConfig(max_memory_percent=0.5)

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        greedy = self._configs.GenerationConfig(max_new_tokens=num_tokens, do_sample=False, eos_token_id=-1)
        how = {"generation_config": greedy, "continuous_batching_config": self._batching, "progress_bar": False}
        results = self._model.generate_batch(inputs=prompts, **how)
        return [result.generated_tokens for result in results.values()]
