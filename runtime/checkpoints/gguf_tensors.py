"""Tensors of a GGUF file under their Hugging Face names, in numpy: bytes, shapes, and the order of rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .config import ModelConfig
from .gguf_file import GGUFFile

_NAMES: Mapping[str, str] = {  # Hugging Face name -> GGUF name; layers have the prefixes below
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES: Mapping[str, str] = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Converters for these architectures store query and key rows so that a rotated pair lies side by side.
_PAIRED_ARCHITECTURES = ("llama", "smollm3")


class GGUFTensors:
    """Tensors of a GGUF file by Hugging Face name. Rows of queries and keys are in Hugging Face order."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        names = dict(_NAMES)
        for layer in range(config.num_layers):
            for ours, theirs in _LAYER_NAMES.items():
                for suffix in ("weight", "bias"):
                    names[f"model.layers.{layer}.{ours}.{suffix}"] = f"blk.{layer}.{theirs}.{suffix}"
        tensors = file.tensors()
        self._tensors = {ours: tensors[theirs] for ours, theirs in names.items() if theirs in tensors}
        known = {tensor.name for tensor in self._tensors.values()}
        self._shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        # Unknown tensors keep their own names, so that the loader sees and checks them.
        self._shapes |= {name: tensor.shape for name, tensor in tensors.items() if name not in known}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See Checkpoint.shapes."""
        return self._shapes

    def is_quantised(self, name: str) -> bool:
        """Returns True if the tensor is a matrix in quantised blocks."""
        tensor = self._tensors.get(name)
        return tensor is not None and len(tensor.shape) == 2 and tensor.format.size > 1

    def type_id(self, name: str) -> int:
        """Returns a tensor's GGUF type."""
        return self._tensors[name].format.type_id

    def read_numbers(self, name: str) -> npt.NDArray[np.float32]:
        """Returns the tensor's numbers, dequantised."""
        tensor = self._tensors[name]
        blocks = self._file.blocks(tensor)
        match tensor.format.name:
            case "F32":
                numbers = np.array(blocks).view("<f4")
            case "F16":
                numbers = np.array(blocks).view("<f2").astype(np.float32)
            case _:
                from gguf import GGMLQuantizationType  # noqa: PLC0415  seldom needed: matrices are read as blocks
                from gguf.quants import dequantize  # noqa: PLC0415

                numbers = np.array(dequantize(blocks, GGMLQuantizationType(tensor.format.type_id)))
        order = self._order(name)
        numbers = numbers.reshape(tensor.shape)
        return numbers if order is None else numbers[order]

    def read_blocks(self, name: str) -> tuple[npt.NDArray[np.uint8], int, npt.NDArray[np.int64] | None]:
        """Returns a tensor's bytes [M, bytes a row], its GGUF type, and its row for each row in Hugging Face order."""
        tensor = self._tensors[name]
        return self._file.blocks(tensor), tensor.format.type_id, self._order(name)

    def _order(self, name: str) -> npt.NDArray[np.int64] | None:
        """Returns the file's row for each row of a tensor; None if they are in order."""
        num_heads = self._paired_heads(name)
        if num_heads is None:
            return None
        # [heads, pair, 2] -> [heads, 2, pair]: the halves of the rotated pairs go to the halves of the head.
        pairs = np.arange(self._shapes[name][0]).reshape(num_heads, -1, 2)
        return np.ascontiguousarray(pairs.transpose(0, 2, 1)).reshape(-1)

    def _paired_heads(self, name: str) -> int | None:
        """Returns the number of heads of a tensor whose rows must be reordered; None if they are in order."""
        if self._config.architecture in _PAIRED_ARCHITECTURES:
            if ".q_proj." in name:
                return self._config.num_heads
            if ".k_proj." in name:
                return self._config.num_kv_heads
        return None
