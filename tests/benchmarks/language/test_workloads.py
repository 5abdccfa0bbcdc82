"""Texts of the workloads by different ways are compared."""

from __future__ import annotations

from bough.benchmarks.language.ways import Record
from bough.benchmarks.language.workloads import Agreement, agreement


def test_texts_that_differ_are_wrong_only_after_the_same_tokens() -> None:
    one = Record({(0, "a"): "x", (0, "b"): "y", (0, "c"): "z"}, {(0, "b"): ("p", "q"), (0, "c"): ("r",)})
    other = Record({(0, "a"): "x", (0, "b"): "Y", (0, "c"): "Z"}, {(0, "b"): ("pq",), (0, "c"): ("r",)})
    assert agreement([one], [other]) == Agreement(same=1, retokenised=1, different=1)
    one.prompts[0, "c"] = other.prompts[0, "c"] = ("r\ufffd",)  # which part of a character is not told
    assert agreement([one], [other]) == Agreement(same=1, retokenised=2, different=0)
