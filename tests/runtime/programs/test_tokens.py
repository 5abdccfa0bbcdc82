"""Tokens of texts that programs say again."""

from __future__ import annotations

import random
from collections import OrderedDict

from bough.runtime.programs.tokens import ENTRY_CHARS, KnownTexts


def test_a_text_is_known_once_it_was_kept() -> None:
    known = KnownTexts()
    assert known.find("", "a text") is None
    known.keep("", "a text", [1, 2, 49_151])
    assert known.find("", "a text") == [1, 2, 49_151]
    assert known.find("", "a texts") is None


def test_tokens_belong_to_who_asked() -> None:
    known = KnownTexts()
    given = [1, 2]
    known.keep("", "text", given)
    given.append(3)
    found = known.find("", "text")
    assert found == [1, 2]
    found.append(4)
    assert known.find("", "text") == [1, 2]


def test_a_text_is_known_to_its_namespace_alone() -> None:
    known = KnownTexts()
    known.keep("mine", "text", [1])
    assert known.find("", "text") is None
    assert known.find("yours", "text") is None
    assert known.find("mine", "text") == [1]


def test_what_was_said_longest_ago_makes_way() -> None:
    """Against a model: the latest texts that fit."""
    max_chars = 10 * (ENTRY_CHARS + 30)
    known, model = KnownTexts(max_chars), OrderedDict[tuple[str, str], list[int]]()
    rng = random.Random(7)
    for step in range(3000):
        key = rng.choice("ab"), "x" * rng.randrange(60)
        if rng.random() < 0.5:
            assert known.find(*key) == model.get(key)
            if key in model:
                model.move_to_end(key)
        else:
            known.keep(*key, [step])
            model.setdefault(key, [step])
            while sum(len(text) + ENTRY_CHARS for _, text in model) > max_chars:
                model.popitem(last=False)


def test_a_text_that_is_too_long_is_not_kept() -> None:
    known = KnownTexts(max_chars=200)
    known.keep("", "short", [1])
    known.keep("", "x" * 200, [2])
    assert known.find("", "x" * 200) is None
    assert known.find("", "short") == [1]
