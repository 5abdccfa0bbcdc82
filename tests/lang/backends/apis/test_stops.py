"""Texts that come in pieces are cut as the whole text would be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.constrain.spec import Choice, JsonSchema, Lark, Regex
from bough.lang.backends.apis.emulate import Judge, candidates, chosen
from bough.lang.backends.apis.stops import Cutter
from bough.runtime.protocol.sampling_params import SamplingParams

LETTERS = st.text(alphabet="ab-", max_size=12)


@given(st.lists(LETTERS), st.lists(st.text(alphabet="ab-", min_size=1, max_size=4), max_size=3), st.booleans())
def test_pieces_are_cut_as_the_whole(pieces: list[str], stops: list[str], include: bool) -> None:
    sent: list[str] = []
    cutter = Cutter(SamplingParams(stop=tuple(stops), include_stop=include), sent.append)
    for piece in pieces:
        cutter.feed(piece)
        assert cutter.text.startswith("".join(sent))
    cutter.end()
    whole, found = "", None
    for piece in pieces:
        whole += piece
        found = min(((whole.index(stop), stop) for stop in stops if stop in whole), default=None)
        if found is not None:
            break
    if found is None:
        assert (cutter.text, cutter.matched) == (whole, None)
    else:
        place, stop = found
        assert (cutter.text, cutter.matched) == (whole[: place + len(stop) * include], stop)
    assert "".join(sent) == cutter.text


def test_text_is_passed_on_as_soon_as_it_is_certain() -> None:
    sent: list[str] = []
    cutter = Cutter(SamplingParams(stop="</end>"), sent.append)
    for piece in ("abc", "d<", "x</e", "nd", ">more"):
        cutter.feed(piece)
    assert sent == ["abc", "d", "<x"]
    assert (cutter.text, cutter.matched) == ("abcd<x", "</end>")


@pytest.mark.parametrize(
    ("text", "grammar", "fault"),
    [
        ("ab", Regex("a."), None),
        ("b", Regex("a."), "it goes wrong at 'b'"),
        ("a", Regex("a."), "it ends too early"),
        ("x", Choice(("x", "y")), None),
        ("z", Choice(("x", "y")), "it is none of the choices"),
        ("xx", Lark('start: "x"+'), None),
        ("3", JsonSchema('{"type": "integer"}'), None),
        ('"3"', JsonSchema('{"type": "integer"}'), "the value: '3' is not of type 'integer'"),
        ("{", JsonSchema("{}"), "the value: the text is not JSON"),
    ],
)
def test_texts_are_judged(text: str, grammar: Regex | Choice | Lark | JsonSchema, fault: str | None) -> None:
    found = Judge().fault(text, grammar)
    assert found is None if fault is None else found is not None and found.startswith(fault)


def test_what_a_model_puts_around_an_answer_is_taken_off() -> None:
    assert '{"a": 1}' in candidates('Here:\n```json\n{"a": 1}\n```\nDone.')
    assert candidates(" 3 ") == [" 3 ", "3"]
    assert chosen('"Yes."', ["no", "yes"]) == "yes"
    assert chosen("yes, it is", ["y", "yes"]) == "yes"
    assert chosen("maybe", ["no", "yes"]) is None
