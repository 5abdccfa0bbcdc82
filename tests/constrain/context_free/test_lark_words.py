"""Grammars that never come to an end are known before anything is generated."""

from __future__ import annotations

import pytest

from bough.constrain import GrammarCompiler, GrammarError, Lark
from bough.constrain.context_free.lark_words import has_word


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a"',
        "start: x\nx: y | x\ny: Z\nZ: /[a|:]/",
        'start: "a" start | "b"',
        'start: ("a" start)? ',
        'start: ["a" start] "c"',
        "start: start*",
        'start: "a" start{0,3}',
        'start: "a".."z" end -> name\nend: "x"i',
        'start: %json {"type": "object", "x": "}"} rest\nrest: ";"',
        "%ignore /[ \\t]+/\nstart: word+ // words\nword[capture, max_tokens=3]: /a/ # end",
        '?start: x\n_x: y\nx: _x\ny.2: "b"',
    ],
)
def test_grammars_with_words(grammar: str) -> None:
    assert has_word(grammar) is True


@pytest.mark.parametrize(
    "grammar",
    [
        "start: start",
        'start: "a" start',
        'start: x | y\nx: "a" y\ny: x "b"',
        'start: "a" (start | start "b")+',
        'start: x{1,3}\nx: "(" x ")"',
        'start: [x] y\nx: "a"\ny: y',
        '%ignore " "\nstart: "a" start -> again',
    ],
)
def test_grammars_without_words(grammar: str, compiler: GrammarCompiler) -> None:
    assert has_word(grammar) is False
    with pytest.raises(GrammarError, match="the grammar matches no text"):
        compiler.compile(Lark(grammar))


@pytest.mark.parametrize(
    "grammar",
    ["", "x: y", 'start: "a" x', "start: a::1\na::_: A %if is_ones([0:1])", 'start: "a', "start: $", "start: ("],
)
def test_what_is_not_understood_is_left_to_the_compiler(grammar: str) -> None:
    assert has_word(grammar) is None
