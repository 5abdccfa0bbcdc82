"""One forward pass on the device."""

from __future__ import annotations

import torch

from ...kernels.attention.interface import AttentionBackend
from ..models.model import Model
from ..sampler.rows import Logits
from .runner import Batch


class ModelRunner:
    """Runs batches through a model over one KV cache."""

    def __init__(self, model: Model, attention: AttentionBackend, device: str) -> None:
        self.model = model
        self.attention = attention
        self.device = device

    @torch.inference_mode()
    def run(self, batch: Batch) -> Logits | None:
        """Logits [R, vocab_size] of the batch's logit rows, in the host's memory; None if it has none."""
        self.attention.plan(batch.attention)
        tokens = torch.from_numpy(batch.tokens).to(self.device)
        positions = torch.from_numpy(batch.positions).to(self.device)
        hidden = self.model.forward(tokens, positions, self.attention)
        if not len(batch.logit_rows):
            return None
        rows = torch.from_numpy(batch.logit_rows).to(self.device)
        logits: Logits = self.model.logits(hidden[rows]).cpu().numpy()
        return logits
