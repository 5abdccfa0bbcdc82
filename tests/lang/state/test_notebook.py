"""Notebooks show chats, marked values, tables; escaped, bounded, and without running or waiting for anything."""

from __future__ import annotations

import threading
from html.parser import HTMLParser
from typing import Any

import pytest

import bough
from bough.lang.observe.timelines.timeline import Timeline
from bough.lang.state.notebook import MAX_MESSAGES, MAX_TEXT, MAX_VALUES
from bough.runtime.protocol.program import Delta, Done, Piece
from bough.runtime.protocol.request import CACHED

from ..fakes import FakeBackend, value

EVIL = '<script>alert("1")</script>&amp;'


class Words(HTMLParser):
    """The visible text of some HTML, and its tags."""

    def __init__(self, html):
        super().__init__()
        self.text, self.tags = "", []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.text += data


@bough.function
def chat(s, question):
    s += bough.system("Be brief.")
    s += bough.user(question)
    s += bough.assistant("Well: " + bough.gen("answer", max_tokens=10))


def test_a_state_is_a_chat_with_its_values():
    html = chat.run(EVIL, backend=bough.MockBackend({"answer": EVIL + "!"}))._repr_html_()
    words = Words(html)
    assert "<script" not in html
    assert words.text.count(EVIL) == 3  # asked, answered, in the table
    assert [
        attributes["class"] for tag, attributes in words.tags if attributes.get("class", "").startswith("turn")
    ] == [
        "turn system",
        "turn user",
        "turn assistant",
    ]
    assert ("mark", {"title": "answer"}) in words.tags
    assert "generated" in words.text


def test_a_state_that_is_recorded_or_runs_shows_what_there_is():
    seen, gate = [], threading.Event()

    @bough.function
    def slow(s):
        s += "Once" + bough.gen("story") + bough.gen("end")
        seen.append(s._repr_html_())

    def script(program):
        yield Delta(0, "story", " upon")
        yield gate
        yield value(0, "story", " upon a time")
        yield value(0, "end", ".")
        yield Done(texts={0: "Once upon a time."})

    state = slow.run(backend=FakeBackend(script), stream=True)
    assert next(iter(state.stream("story"))) == " upon"
    running = Words(state._repr_html_()).text
    gate.set()
    state.sync()
    assert "recorded, not sent" in Words(seen[0]).text and "not there yet" in Words(seen[0]).text
    assert "running" in running and " upon" in running and "time" not in running
    assert "' upon a time'" in Words(state._repr_html_()).text


def test_a_failure_is_shown():
    @bough.function
    def broken(s):
        s += "One" + bough.gen("x", dtype=int)
        return s["x"]

    state = broken.run_batch([()], backend=bough.MockBackend({"x": "<none>"}))[0]
    words = Words(state._repr_html_()).text
    assert "failed" in words and "<none>" in words


def test_a_group_shows_its_branches():
    groups = []

    @bough.function
    def forked(s):
        s += "Once"
        branches = s.fork(20)
        branches += bough.gen("more")
        groups.append(branches)

    forked.run(backend=bough.MockBackend())
    words = Words(groups[0]._repr_html_())
    assert [tag for tag, _ in words.tags].count("details") == 16
    assert "branch 2 of 20" in words.text and "and 4 more" in words.text


def test_looking_at_a_call_does_not_run_it():
    @bough.function
    def outer(s):
        call = chat("x")
        shown.append(call._repr_html_())
        s += "only this" + bough.gen("y")

    shown: list[str] = []
    backend = bough.MockBackend()
    with pytest.warns(UserWarning, match="write s \\+= chat"):
        outer.run(backend=backend)
    assert "neither appended nor read" in shown[0]
    assert len(backend.requests) == 1


def test_what_is_long_is_cut():
    @bough.function
    def long(s):
        for index in range(MAX_MESSAGES + 20):
            s += bough.user("x" * (MAX_TEXT + 10) if index == 0 else f"message {index}")
        for index in range(MAX_VALUES + 5):
            s[f"v{index}"] = "y" * 10_000

    words = Words(long.run(backend=bough.MockBackend())._repr_html_()).text
    assert f"({MAX_TEXT + 10:,} characters)" in words
    assert "... 20 messages ..." in words and "5 more" in words
    assert len(words) < 80_000


def test_compiled_programs_and_timelines():
    html = chat.compile()._repr_html_()
    assert "gen answer" in Words(html).text
    timeline = Timeline([Piece(branch=0, op=0, kind="text", texts=(EVIL,), origins=(CACHED,))])
    frame = Words(timeline._repr_html_())
    ((tag, attributes),) = frame.tags
    assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
    assert attributes["srcdoc"] == timeline.html()


def test_a_timeline_that_is_too_large_is_shown_as_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bough.lang.observe.pages.render.MAX_FRAME_CHARS", 100)
    words = Words(Timeline([])._repr_html_())
    assert "0 branches" in words.text and "save()" in words.text


def test_what_the_body_has_returned():
    class Table:
        def _repr_html_(self) -> str:
            return "<b>own view</b>"

    def returning(value):
        return bough.function(lambda s: value).run(backend=bough.MockBackend())._repr_html_()

    assert "own view" in returning(Table())
    plain = Words(returning({"a": EVIL}))
    assert EVIL in plain.text and "script" not in {tag for tag, _ in plain.tags}
    assert "returned" not in Words(returning(None)).text


def test_a_batch_is_a_table():
    @bough.function
    def shout(s, text):
        s += text + bough.gen("loud")
        if text == "bad":
            raise ValueError("no such text")
        return len(text)

    states: Any = shout.run_batch(["a", "bad", EVIL], backend=bough.MockBackend({"loud": "YES"}))
    assert states == list(states) and len(states) == 3
    words = Words(states._repr_html_())
    assert "3 programs, 1 failed" in words.text and "no such text" in words.text
    assert words.text.count("'YES'") == 2 and "returned" in words.text
    assert "0 programs" in Words(type(states)()._repr_html_()).text


def test_tracebacks_have_the_users_lines_alone():
    def body(s):
        s += "x" + bough.gen("a")
        return s["b"]

    with pytest.raises(bough.ProgramError) as caught:
        bough.function(body).run(backend=bough.MockBackend())
    frames = [entry.name for entry in caught.traceback]
    assert [name for name in frames if name != "run"] == ["test_tracebacks_have_the_users_lines_alone", "body"]
