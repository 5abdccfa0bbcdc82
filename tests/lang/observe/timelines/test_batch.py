"""The timeline of a batch: sums, what the runs share, and a page that stays usable with many of them."""

from __future__ import annotations

import bough
from bough.lang.observe.timelines.batch import shared_beginnings
from bough.lang.observe.timelines.page import MAX_TOKENS, merged
from bough.lang.observe.timelines.timeline import BatchTimeline, Timeline
from bough.runtime.protocol.program import Gen, Piece, Text
from bough.runtime.protocol.request import PREFILLED, SAMPLED

from .test_page import Page


def run(*words, began_s=0.0, length_s=1.0, title="ask"):
    pieces = [
        Piece(branch=0, op=0, kind="text", texts=words, origins=(PREFILLED,) * len(words)),
        Piece(
            branch=0,
            op=1,
            kind="gen",
            name="answer",
            texts=("yes",),
            origins=(SAMPLED,),
            stop_s=length_s,
            queue_s=length_s / 4,
            prefill_s=length_s / 4,
        ),
    ]
    return Timeline.of((Text(0, ("".join(words),)), Gen(0, "answer")), pieces, title=title, began_s=began_s)


def test_all_runs_are_on_one_clock():
    batch = BatchTimeline([run("a", began_s=100.0), run("b", began_s=101.5, length_s=2.0), run("c", began_s=100.5)])
    assert batch.start_s == (0.0, 1.5, 0.5)
    summary = batch.summary()
    assert (summary["programs"], summary["generations"], summary["elapsed_s"]) == (3, 3, 3.5)
    assert (summary["p50_s"], summary["p95_s"], summary["output_tokens_per_s"]) == (1.0, 2.0, 3 / 3.5)
    assert "left:42.86%;width:14.29%" in batch.html()  # the second run's queue


def test_what_runs_share_is_a_tree_of_beginnings():
    common, first, second = list("system"), list("one two "), list("three four ")
    runs = [common + first + ["x"], common + first + ["y"], common + second + ["x"], common + second + ["z"], ["no"]]
    found = shared_beginnings(runs)
    assert [(one.programs, one.num_tokens, one.num_own, one.text) for one in found] == [
        ((0, 1, 2, 3), 6, 6, "system"),
        ((2, 3), 17, 11, "three four "),
        ((0, 1), 14, 8, "one two "),
    ]
    assert [one.saved_tokens for one in found] == [18, 11, 8]
    assert shared_beginnings([]) == shared_beginnings([["a"] * 9]) == []
    assert shared_beginnings([list("abc"), list("abd")]) == []  # too short to be worth a word
    (equal,) = shared_beginnings([list("abcdef")] * 3)
    assert equal.num_tokens == 6 and equal.programs == (0, 1, 2)


def test_each_token_is_counted_once_in_nested_groups():
    runs = [list("aaaaaaaa" + "bbbbbbbb" + str(index)) for index in range(3)] + [list("aaaaaaaacc")]
    assert sum(one.saved_tokens for one in shared_beginnings(runs)) == 8 * 3 + 8 * 2


def test_intervals_are_merged():
    assert merged([(2.0, 3.0), (0.0, 1.0), (0.5, 1.5), (1.6, 1.9)], 0.0) == [(0.0, 1.5), (1.6, 1.9), (2.0, 3.0)]
    assert merged([(0.0, 1.0), (1.05, 2.0)], 0.1) == [(0.0, 2.0)]


def test_the_page_is_whole():
    evil = "</summary><script>alert(1)</script>"
    html = BatchTimeline([run(*"prefix", evil, title=evil), run(*"prefix", "b", began_s=0.5)]).html()
    page = Page(html.replace("<path ", "<br ").replace('"/>', '">'))
    assert len(set(page.ids)) == len(page.ids)
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert html.count("<script") == 1 and evil not in html
    words = "".join(page.words)
    assert "all 2 programs" in words and "6 tokens, 6 saved" in words and "calls at once at most" in words


def test_hundreds_of_runs_stay_small():
    words = [f"w{index}" for index in range(600)]
    runs = [run(*words, f"q{index}", began_s=1.0 + index / 100) for index in range(300)]
    html = BatchTimeline(runs).html()
    assert len(html) < 8_000_000
    assert html.count("<details") == 300 and "programs dense" in html
    assert html.count('class="t ') <= MAX_TOKENS
    assert html.count("would make the page too large") == 300 - MAX_TOKENS // 602


def test_states_of_a_batch_and_a_failure():
    @bough.function
    def ask(s, question):
        s += f"Answer this question at once: {question}"
        s += bough.gen("answer", max_tokens=4)
        if question == "bad":
            s.sync()
            raise ValueError("<own> error")

    states = ask.run_batch([("a",), ("bad",), ("c",)], backend=bough.MockBackend(), trace=True)
    batch = Timeline.of_batch(states)
    summary = batch.summary()
    assert (summary["programs"], summary["failed"], summary["generations"]) == (3, 1, 3)
    assert "1 failed" in batch.text() and "shared beginnings" in batch.text()
    html = batch.html()
    assert "ValueError" in html and "<own>" not in html
    assert [timeline.title for timeline in batch.timelines] == ["ask"] * 3


def test_an_empty_batch_has_a_page():
    batch = BatchTimeline([])
    assert batch.summary()["programs"] == 0
    assert "0 programs" in batch.text()
    Page(batch.html())
