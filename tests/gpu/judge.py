"""Judges answers against the model in float32 and plain torch: whole texts at once, no cache, no batch, no kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from bough.constrain import Grammar
from bough.kernels.attention.interface import AttentionBatch, KVShape
from bough.kernels.attention.torch_backend import TorchAttention
from bough.runtime.models.decoder import Decoder, Linear
from bough.runtime.models.load import load_model

from ..support.margin import Answer, Choice, choice_of
from .place import Said


class Judge:
    """A model that has read the same tokens as the engine, and says how it sees each of its choices."""

    def __init__(self, source: str | Path, device: str, dtype: str = "float32") -> None:
        """`dtype` is the engine's: its weights are judged by, but computed with in float32."""
        model = load_model(source, dtype="float32", device=device, backend="torch").model
        assert isinstance(model, Decoder)
        for weight in _weights(model):
            weight.copy_(weight.to(getattr(torch, dtype)))
        self.model = model
        self.device = device

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        """Logits of what follows each of `tokens`: [len(tokens), V]."""
        count, model = len(tokens), self.model
        shape = KVShape(model.num_layers, count + 1, 1, model.num_kv_heads, model.head_dim, torch.float32)
        attention = TorchAttention(shape, self.device)
        attention.plan(
            AttentionBatch(
                query_start=np.array([0, count], dtype=np.int32),
                context_len=np.array([count], dtype=np.int32),
                page_table=np.arange(1, count + 1, dtype=np.int32)[None],
                write_slot=np.arange(1, count + 1, dtype=np.int64),
            )
        )
        inputs = torch.tensor(tokens, device=self.device)
        hidden = model.forward(inputs, torch.arange(count, device=self.device), attention)
        result: npt.NDArray[np.float32] = model.logits(hidden).cpu().numpy()
        return result

    def judge(self, name: str, prompt: list[int], said: Said, *, warm: bool, grammar: Grammar | None = None) -> Answer:
        """Judges each greedy choice of an answer; one under a grammar must have ended by itself, with room to spare."""
        rows = self.logits(prompt + said.tokens)[len(prompt) - 1 : -1]
        matcher = None if grammar is None else grammar.matcher()
        mask = np.zeros(-(-rows.shape[1] // 32), dtype=np.int32)
        choices: list[Choice] = []
        for place, (logits, token) in enumerate(zip(rows, said.tokens, strict=True)):
            allowed = None
            if matcher is not None:
                matcher.fill_mask(mask)
                bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
                allowed = bits[: len(logits)].astype(bool)
            logprob = said.logprobs[place].logprob if said.logprobs else None
            choices.append(choice_of(logits, token, allowed=allowed, logprob=logprob))
            if matcher is not None and not matcher.finished and allowed is not None and allowed[token]:
                matcher.accept(token)
        return Answer(name, tuple(choices), warm)


def _weights(model: Decoder) -> Iterator[torch.Tensor]:
    projections = [model.head]
    yield from (model.embedding, model.norm)
    for layer in model.layers:
        yield from (layer.input_norm, layer.post_norm)
        if layer.attention.norm is not None:
            yield from (layer.attention.norm.query, layer.attention.norm.key)
        projections += [layer.qkv, layer.out, layer.gate_up, layer.down]
    for projection in projections:
        assert isinstance(projection, Linear)
        yield projection.weight
        if projection.bias is not None:
            yield projection.bias
