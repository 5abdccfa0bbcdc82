"""What each side's numbers cost in quality: perplexity of a fixed text, and how often its choice is float32's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .process import Side

_STRIDE = 4  # of positions, where an engine tells its choice only by generating


@dataclass(frozen=True)
class Quality:
    """What a side has to say about a text, token by token.

    logprobs   of each token after the first, if the side tells them
    likeliest  position -> the token that it would choose after so many
    """

    logprobs: tuple[float, ...]
    likeliest: dict[int, int]

    @property
    def perplexity(self) -> float | None:
        return math.exp(-sum(self.logprobs) / len(self.logprobs)) if self.logprobs else None

    def agreement(self, other: Quality) -> float:
        """Share of the positions that both have at which they choose the same."""
        both = self.likeliest.keys() & other.likeliest.keys()
        return sum(self.likeliest[at] == other.likeliest[at] for at in both) / len(both)


def judge(side: Side, tokens: Sequence[int], limit_s: float) -> Quality:
    """Has a side read a text.

    Raises:
        PeerError: the side failed.
    """
    answer: dict[str, Any] = side.ask("score", limit_s, tokens=list(tokens))
    likeliest = answer["likeliest"]
    if likeliest is not None:
        chosen = {position + 1: token for position, token in enumerate(likeliest)}
    else:
        positions = range(_STRIDE, len(tokens), _STRIDE)
        prompts = [list(tokens[:position]) for position in positions]
        outputs = side.ask("generate", limit_s, prompts=prompts, num_tokens=1)["tokens"]
        chosen = {position: output[0] for position, output in zip(positions, outputs, strict=True)}
    return Quality(tuple(answer["logprobs"] or ()), chosen)
