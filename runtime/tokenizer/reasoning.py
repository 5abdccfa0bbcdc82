"""Reasoning before an answer: the marks around it, and splitting of texts."""

from __future__ import annotations

from typing import NamedTuple


class Marks(NamedTuple):
    """Texts before and after the reasoning."""

    begin: str
    end: str


THINK = Marks("<think>", "</think>")
KIMI = Marks("◁think▷", "◁/think▷")


class Parts(NamedTuple):
    """Reasoning and answer, without the marks and the white space around them."""

    reasoning: str
    answer: str


def split_reasoning(text: str, marks: Marks = THINK, *, opened: bool = False) -> Parts:
    """Splits a model's text into reasoning and answer.

    Without an end mark, all of it is truncated reasoning if it begins with the begin mark or was `opened` before (by
    the chat template); otherwise all of it is the answer.
    """
    before, end, after = text.partition(marks.end)
    begun = before.lstrip().startswith(marks.begin)
    if not end and not begun and not opened:
        return Parts("", text)
    if begun:
        before = before.lstrip().removeprefix(marks.begin)
    return Parts(before.strip(), after.strip())
