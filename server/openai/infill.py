"""Prompts that end in a gap: what is before and after it, between the control tokens that a model has for that."""

from __future__ import annotations

from typing import NamedTuple

from ...runtime.tokenizer.tokenizer import Tokenizer


class Infill(NamedTuple):
    """The control tokens before the text, before what follows the gap, and before what fills it."""

    before: str
    after: str
    middle: str

    def prompt(self, text: str, suffix: str) -> str:
        return f"{self.before}{text}{self.after}{suffix}{self.middle}"


FORMS = (
    Infill("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    Infill("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    Infill("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Infill("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    Infill("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)


def find_infill(tokenizer: Tokenizer) -> Infill | None:
    """Finds the form whose marks are control tokens of the model; None: it was not trained to fill gaps."""
    return next((form for form in FORMS if all(_is_control(tokenizer, mark) for mark in form)), None)


def _is_control(tokenizer: Tokenizer, mark: str) -> bool:
    ids = tokenizer.encode(mark, special=True)
    return len(ids) == 1 and ids[0] in tokenizer.special_ids
