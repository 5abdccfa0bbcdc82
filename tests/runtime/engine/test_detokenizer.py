"""The detokenizer against the plainest model there is: decode everything, then look for the stop with `find`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.runtime.engine.detokenizer import Detokenizer, StopAutomaton
from bough.runtime.protocol.stop_pattern import WINDOW, PatternSearch, SearchBudget, StopPattern
from bough.runtime.tokenizer.load import build_gguf_tokenizer
from bough.runtime.tokenizer.tokenizer import Tokenizer

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
ALPHABET = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(0x100 + i) for i, byte in enumerate(_OTHERS)}
EXTRA = [
    b"ab",
    b"abc",
    b"bca",
    b"END",
    b"<stop>",
    b"\n\n",
    "é".encode(),
    "日本".encode(),
    b"\xe6\x97",
    b"\x98\x80x",
    b"a\xf0\x9f",
]
SPECIAL = 256 + len(EXTRA)


def make_tokenizer() -> Tokenizer:
    """Token i < 256 is byte i; then come tokens of several bytes, some of them cut inside a character; then <|eos|>."""
    spelled = ["".join(ALPHABET[byte] for byte in text) for text in [*(bytes([i]) for i in range(256)), *EXTRA]]
    return Tokenizer(
        build_gguf_tokenizer(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "gpt-2",
                "tokenizer.ggml.tokens": [*spelled, "<|eos|>"],
                "tokenizer.ggml.token_type": [*([1] * len(spelled)), 3],
                "tokenizer.ggml.eos_token_id": SPECIAL,
            }
        )
    )


TOKENIZER = make_tokenizer()


def looking(*, stop_regex: str | None = None, **options: Any) -> Detokenizer:
    """A detokenizer that looks for a pattern."""
    detokenizer = Detokenizer(TOKENIZER, **options)
    if stop_regex is not None:
        detokenizer.look_for(PatternSearch(StopPattern(stop_regex), SearchBudget()))
    return detokenizer


def run(tokens: Sequence[int], cuts: Sequence[int] = (), **options: Any) -> tuple[Detokenizer, list[str]]:
    """All that a detokenizer returns for the tokens, pushed in the groups that `cuts` make."""
    detokenizer = looking(**options)
    borders = [0, *sorted(cut for cut in cuts if 0 < cut < len(tokens)), len(tokens)]
    deltas = [detokenizer.push(tokens[start:stop]) for start, stop in pairwise(borders)]
    deltas.append(detokenizer.finish())
    assert detokenizer.text == "".join(deltas)
    return detokenizer, deltas


def expected(text: str, stops: Sequence[str], *, include_stop: bool = False, after: int = 0) -> tuple[str, str | None]:
    """The text up to the first stop that is complete only past character `after`, and that stop."""
    found = []
    for stop in stops:
        start = text.find(stop, max(0, after - len(stop) + 1))
        if start >= 0:
            found.append((start, len(stop), stop))
    if not found:
        return text, None
    start, length, stop = min(found)
    return text[: start + length if include_stop else start], stop


tokens_of_text = st.lists(
    st.sampled_from([*range(97, 102), 60, 62, *range(256, SPECIAL + 1), 0x98, 0xA5, 0xF0, 0x80]), max_size=30
)
stop_strings = st.lists(
    st.text("abcd<>\n日é", min_size=1, max_size=5)
    | st.sampled_from(["END", "<stop>", "日本", "\n\n", "\ufffd", "\ufffda"]),
    max_size=4,
)
cut_lists = st.lists(st.integers(0, 30), max_size=8)


@settings(max_examples=2000)
@given(tokens_of_text, stop_strings, cut_lists, st.booleans(), st.booleans())
def test_deltas_are_the_decoded_text_up_to_the_stop(tokens, stops, cuts, include_stop, skip):
    options = {"stop": tuple(stops), "include_stop": include_stop, "skip_special_tokens": skip}
    detokenizer, deltas = run(tokens, cuts, **options)
    whole = TOKENIZER.decode(tokens, skip_special_tokens=skip)
    assert ("".join(deltas), detokenizer.matched) == expected(whole, stops, include_stop=include_stop)
    assert detokenizer.push([97]) == detokenizer.finish() == ""


@settings(max_examples=500)
@given(tokens_of_text, st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.integers(0, 12))
def test_a_stop_counts_if_it_completes_after_the_minimum(tokens, stops, minimum):
    detokenizer = Detokenizer(TOKENIZER, stop=tuple(stops))
    deltas = [detokenizer.push([token], stops_count=i >= minimum) for i, token in enumerate(tokens)]
    deltas.append(detokenizer.finish())
    incremental = Detokenizer(TOKENIZER)
    incremental.push(tokens[:minimum])
    assert ("".join(deltas), detokenizer.matched) == expected(
        TOKENIZER.decode(tokens), stops, after=len(incremental.text)
    )


@pytest.mark.parametrize("stop", ["END", "bcaabc", "日本é"])
def test_no_character_of_a_stop_is_ever_returned(stop):
    for text in (f"xyz{stop}", f"{stop[:2]}{stop}tail"):
        tokens = list(text.encode())
        for cut in range(len(tokens)):
            detokenizer = Detokenizer(TOKENIZER, stop=(stop,))
            early = detokenizer.push(tokens[:cut])
            assert text[: text.index(stop)].startswith(early)
            assert early + detokenizer.push(tokens[cut:]) == text[: text.index(stop)]
            assert detokenizer.matched == stop


def test_text_is_certain_as_soon_as_it_can_be():
    detokenizer = Detokenizer(TOKENIZER, stop=("abc",))
    assert [detokenizer.push([token]) for token in b"xabaab."] == ["x", "", "", "ab", "a", "", "ab."]


def test_of_overlapping_stops_the_first_to_begin_wins():
    stops = ("abcdef", "cd")
    assert run(b"abcdef", stop=stops)[0].matched == "abcdef"
    detokenizer, deltas = run(b"abcdx", range(5), stop=stops)
    assert (detokenizer.matched, "".join(deltas)) == ("cd", "ab")
    detokenizer, deltas = run(b"abcdexf", range(7), stop=("abcdef", "cd", "e"))  # e completes while cd is not settled
    assert (detokenizer.matched, "".join(deltas)) == ("cd", "ab")
    detokenizer, deltas = run(b"abcd", range(4), stop=stops)  # settled only because nothing more comes
    assert (detokenizer.matched, "".join(deltas)) == ("cd", "ab")


def every_class_of_code_points() -> list[int]:
    """First and last of each length and of each plane, the surrogates' neighbours, and some from everywhere."""
    borders = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFD, 0xFFFE, 0xFFFF]
    planes = [plane * 0x10000 + offset for plane in range(1, 17) for offset in (0, 0xFFFF)]
    rng = random.Random(1)
    return [
        *borders,
        *planes,
        *(code for code in (rng.randrange(0x110000) for _ in range(2000)) if not 0xD800 <= code < 0xE000),
    ]


def test_characters_cut_anywhere_are_never_split():
    for code in every_class_of_code_points():
        encoded = chr(code).encode()
        for cut in range(len(encoded)):
            deltas = run(encoded, [cut])[1]
            assert deltas == ([chr(code), ""] if cut == 0 else ["", chr(code), ""])


@given(st.lists(st.integers(0, 255), max_size=40), cut_lists)
@settings(max_examples=1000)
def test_any_bytes_decode_as_python_decodes_them(tokens, cuts):
    assert "".join(run(tokens, cuts)[1]) == bytes(tokens).decode(errors="replace")


def test_a_broken_tail_is_replaced_at_the_end_only():
    detokenizer = Detokenizer(TOKENIZER, stop=("\ufffd!",))
    assert detokenizer.push([97, 0xE6, 0x97]) == "a"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.matched is None


def test_lone_continuation_bytes_are_returned_at_once():
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.push([0x80]) for _ in range(5)] == ["\ufffd"] * 5


def count_lines(call: Callable[[], object]) -> int:
    """Lines of Python that `call` runs."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(None)
    return lines


@pytest.mark.parametrize(
    ("token", "options"),
    [
        (0x80, {}),
        (0x80, {"stop": ("\ufffd" * 64 + "x",)}),
        (97, {"stop": ("a" * 500 + "b", "aab")}),
        (97, {"stop_regex": "a+b"}),
    ],
    ids=["bytes", "held bytes", "held text", "regex"],
)
def test_work_grows_with_the_text_and_no_faster(token, options):
    """Lines executed, and characters held, for 2n tokens are at most twice those for n and some."""

    def work(num_tokens: int) -> tuple[int, int]:
        detokenizer = looking(**options)
        held = 0

        def push() -> None:
            nonlocal held
            for _ in range(num_tokens):
                detokenizer.push([token])
                held = max(held, len(detokenizer._held))

        return count_lines(push), held

    (lines, held), (lines_twice, held_twice) = work(6000), work(12000)
    assert lines_twice <= 2.1 * lines
    assert held_twice == held <= WINDOW + 1


def test_long_stops_cost_what_the_text_takes_of_them():
    stops = tuple(f"a{index:x}" + "b" * 1022 for index in range(16))
    detokenizer = Detokenizer(TOKENIZER)

    def begin() -> None:
        nonlocal detokenizer
        detokenizer = Detokenizer(TOKENIZER, stop=stops)

    assert count_lines(begin) < 200
    tokens = f"a3{'b' * 200}c".encode()
    first, second = (count_lines(lambda: detokenizer.push(tokens)) for _ in range(2))
    assert second < first < 100 * len(tokens)
    detokenizer.push(stops[5].encode())
    assert detokenizer.matched == stops[5]


@pytest.mark.parametrize(
    ("pattern", "text", "kept", "matched"),
    [
        (r"\d{3}", "ab12x345", "ab12x", "345"),
        (r"</?answer>", "so <b> 42 </answer> more", "so <b> 42 ", "</answer>"),
        (r"(?<=x)y", "ayxy", "ayx", "y"),
        (r"^b", "ab\nb", "ab\nb", None),
        (r"(?m)^b", "ab\nbc", "ab\n", "b"),
        (r"日+!", "日日日?日!", "日日日?", "日!"),
        (r"a+", "bbaaa", "bb", "a"),
        (r"a.*z", "abc", "abc", None),
        (r"a.*z|b", "xabc", "xa", "b"),  # the earlier place is given up only at the end
        (r"ab?c|b", "xabc", "x", "abc"),
    ],
)
@pytest.mark.parametrize("include_stop", [False, True])
def test_a_regular_expression_stops_however_tokens_are_grouped(pattern, text, kept, matched, include_stop):
    tokens = list(text.encode())
    for cuts in ([], range(len(tokens)), [2], [3, 5]):
        detokenizer, deltas = run(tokens, cuts, stop_regex=pattern, include_stop=include_stop)
        assert "".join(deltas) == kept + (matched or "" if include_stop else "")
        assert detokenizer.matched == matched


def test_a_regular_expression_that_may_still_match_is_held_back_within_the_window():
    detokenizer = looking(stop_regex="(?s)a.*z")
    held = b"a" + b"b" * (WINDOW - 1)
    assert "".join(detokenizer.push([token]) for token in b"x" + held) == "x"
    assert detokenizer.push(b"b") == held.decode() + "b"  # the place where a match began has left the window
    assert detokenizer.push(b"z") == "z"
    assert detokenizer.matched is None
    detokenizer = looking(stop_regex="^x")
    assert len("".join(detokenizer.push([97]) for _ in range(4 * WINDOW)) + detokenizer.push(b"x")) == 4 * WINDOW + 1


def test_strings_and_a_regular_expression_together():
    assert run(b"one END 7", stop=("END",), stop_regex=r"\d")[0].matched == "END"
    assert run(b"one 7 END", stop=("END",), stop_regex=r"\d")[0].matched == "7"
    detokenizer = looking(stop_regex=r"\d")
    assert detokenizer.push(b"1a2", stops_count=False) == "1a2"
    assert detokenizer.push(b"b3c") == "b"


def test_control_tokens_are_text_only_on_demand():
    assert run([97, SPECIAL, 98])[0].text == "ab"
    detokenizer, deltas = run([97, SPECIAL, 98], skip_special_tokens=False, stop=("<|eos|>",))
    assert (deltas, detokenizer.matched) == (["a", ""], "<|eos|>")


@given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=5), st.text("abc", max_size=30))
def test_the_automaton_knows_the_longest_beginning_and_the_longest_end(stops, text):
    automaton = StopAutomaton(stops)
    state = automaton.start
    for stop in range(1, len(text) + 1):
        state = automaton.advance(state, text[stop - 1])
        assert automaton.advance(state, "d") is automaton.start
        seen = text[:stop]
        prefixes = [len(one[:n]) for one in stops for n in range(1, len(one) + 1) if seen.endswith(one[:n])]
        assert state.depth == max(prefixes, default=0)
        assert state.found == max((one for one in stops if seen.endswith(one)), key=len, default=None)


@settings(max_examples=300)
@given(tokens_of_text, stop_strings, cut_lists, st.booleans(), st.integers(0, 5))
def test_text_at_the_end_is_the_same(tokens, stops, cuts, skip, hidden):
    options = {"skip_special_tokens": skip, "num_hidden_bytes": hidden}
    late, deltas = run(tokens, cuts, at_end=True, **options)
    assert not any(deltas[:-1])
    assert late.text == run(tokens, **options)[0].text
    searching, _ = run(tokens, cuts, stop=tuple(stops), at_end=True, **options)
    known, _ = run(tokens, stop=tuple(stops), **options)
    assert (searching.text, searching.matched) == (known.text, known.matched)
