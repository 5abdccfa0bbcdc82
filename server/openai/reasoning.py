"""Where a model reasons before it answers: constraints begin after that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...constrain.spec import GrammarSpec, Structural
from ...runtime.tokenizer.reasoning import THINK
from ...runtime.tokenizer.tokenizer import Tokenizer

BEGIN, END = THINK
_TAIL_TOKENS = 16


def find_reasoning_end(tokenizer: Tokenizer, prompt: Sequence[int], kwargs: Mapping[str, Any] | None) -> str | None:
    """What will close the reasoning that an answer to `prompt` begins with; None if it begins with none.

    A template may open the section itself; or leave that to the model, unless it was told `enable_thinking: false`.
    """
    source = tokenizer.chat.source
    if END not in source:
        return None
    tail = tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special_tokens=False)
    opened, closed = tail.rfind(BEGIN), tail.rfind(END)
    if opened > closed:
        return END
    if closed >= 0 or "enable_thinking" not in source or (kwargs or {}).get("enable_thinking") is False:
        return None
    return END


def after_reasoning(grammar: GrammarSpec | None, end: str | None) -> GrammarSpec | None:
    """`grammar` for what follows the reasoning that `end` closes."""
    if grammar is None or not end:
        return grammar
    if isinstance(grammar, Structural):
        return msgspec.structs.replace(grammar, reasoning_end=end)
    return Structural(reasoning_end=end, then=grammar)
