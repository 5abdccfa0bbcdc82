"""Reasoning and answer, taken apart."""

from __future__ import annotations

import pytest

from bough.runtime.tokenizer.reasoning import KIMI, THINK, split_reasoning


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>\na\n\nb\n</think>\n\nc\nd\n", "a\n\nb", "c\nd"),
        (" <think>a</think>", "a", ""),
        ("a</think>b", "a", "b"),
        ("a</think>b</think>c", "a", "b</think>c"),
        ("<think>a", "a", ""),
        ("<think>", "", ""),
        ("a <think> b", "", "a <think> b"),
        (" a\n", "", " a\n"),
        ("", "", ""),
    ],
)
def test_the_two_parts(text: str, reasoning: str, answer: str) -> None:
    assert split_reasoning(text) == (reasoning, answer)


def test_a_section_that_was_opened_before() -> None:
    assert split_reasoning("a", opened=True) == ("a", "")
    assert split_reasoning("a</think>b", opened=True) == ("a", "b")


def test_other_marks() -> None:
    assert split_reasoning("◁think▷a◁/think▷b", KIMI) == ("a", "b")
    assert split_reasoning("<think>a</think>b", KIMI) == ("", "<think>a</think>b")
    assert THINK != KIMI
