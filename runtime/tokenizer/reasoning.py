"""Reasoning before an answer: the marks around it, and texts split in two parts."""

from __future__ import annotations

from typing import NamedTuple


class Marks(NamedTuple):
    """The texts before and after the reasoning."""

    begin: str
    end: str


THINK = Marks("<think>", "</think>")
KIMI = Marks("◁think▷", "◁/think▷")


class Parts(NamedTuple):
    """Reasoning and answer, without the marks and the white space around them."""

    reasoning: str
    answer: str


def split_reasoning(text: str, marks: Marks = THINK, *, opened: bool = False) -> Parts:
    """Splits what a model wrote into reasoning and answer.

    Without an end mark all of it is reasoning that was cut off, if it begins with the begin mark or was `opened`
    before (by the chat template); otherwise all of it is the answer.
    """
    before, end, after = text.partition(marks.end)
    begun = before.lstrip().startswith(marks.begin)
    if not end and not begun and not opened:
        return Parts("", text)
    if begun:
        before = before.lstrip().removeprefix(marks.begin)
    return Parts(before.strip(), after.strip())
