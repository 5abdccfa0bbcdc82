"""A model's tokens as bytes, which is what grammars are compiled against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Vocabulary:
    """The token inventory. `tokens[i]` is the text of token i as bytes, or None for a control (special) token.

    `size` is the number of logits of the model, which may exceed `len(tokens)`; ids past the end are never allowed.
    `eos_ids` end a generation. `encode` maps text to the model's own tokens for it (no special tokens). `control` are
    the control tokens that have a name, by name: tags may be marked with them.
    """

    tokens: tuple[bytes | None, ...]
    eos_ids: tuple[int, ...]
    size: int
    encode: Callable[[str], list[int]]
    control: Mapping[str, int] = field(default_factory=dict, compare=False)


MaskRow = npt.NDArray[np.int32]
"""One row of a token bitmask: int32 [ceil(V / 32)], bit i % 32 of word i // 32 is token i, 1 = allowed."""
