"""Runner of forward passes in torch, on any device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.attention.interface import AttentionBackend
from ..models.model import Model
from ..sampler.rows import Logits
from .gpu_device import named_memory_errors
from .runner import Batch


class ModelRunner:
    """Runs batches through a model over one KV cache."""

    def __init__(self, model: Model, attention: AttentionBackend, device: str) -> None:
        self.model = model
        self.attention = attention
        self.device = device
        self.faults: npt.NDArray[np.bool_] | None = None
        """Tokens of the last run with numbers that are not finite, bool [T]; None if there were none."""

    @torch.inference_mode()
    def run(self, batch: Batch) -> Logits | None:
        """Returns logits [R, vocab_size] of the batch's logit rows, in the host's memory; None if it has none.

        Raises:
            MemoryError: there is too little memory for the pass.
        """
        with named_memory_errors():
            return self._run(batch)

    def _run(self, batch: Batch) -> Logits | None:
        self.attention.plan(batch.attention)
        tokens = torch.from_numpy(batch.tokens).to(self.device)
        positions = torch.from_numpy(batch.positions).to(self.device)
        hidden = self.model.forward(tokens, positions, self.attention)
        finite = hidden.abs().amax(dim=-1).isfinite()  # a number that is not finite stays so in its row
        self.faults = None if bool(finite.all()) else (~finite).cpu().numpy()
        if not len(batch.logit_rows):
            return None
        rows = torch.from_numpy(batch.logit_rows).to(self.device)
        logits: Logits = self.model.logits(hidden[rows]).cpu().numpy()
        return logits
