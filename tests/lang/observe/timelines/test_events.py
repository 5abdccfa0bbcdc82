"""Events of a timeline without tokens: tools, turns, skipped blocks, failures; and the places of forks."""

from __future__ import annotations

import itertools

from msgspec.structs import replace

import bough
from bough.lang.backends import mock
from bough.lang.observe.timelines.timeline import Timeline
from bough.lang.observe.timelines.tree import MessagePieces
from bough.runtime.protocol.condition import Compare, Ref
from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.protocol.program import (
    BranchFailed,
    BranchRestarted,
    Failed,
    Fork,
    Gen,
    Join,
    Piece,
    Repeat,
    Select,
    Skipped,
    Text,
    Use,
    Value,
    When,
    walk,
)
from bough.runtime.protocol.request import PREFILLED, SAMPLED, Usage

from .test_page import Page

NEVER = Compare(Ref(0, "a"), "eq", "x")


def made(branch, op, kind, name, *words, turn=0, start_s=0.0, stop_s=0.0, **usage):
    """A value and its piece, as they come."""
    value = Value(branch=branch, name=name, text="".join(words), turn=turn, usage=Usage(**usage))
    return [
        value,
        Piece(
            branch=branch,
            op=op,
            kind=kind,
            name=name,
            texts=words,
            origins=(SAMPLED,) * len(words),
            start_s=start_s,
            stop_s=stop_s,
        ),
    ]


def text(branch, op, *words):
    return Piece(branch=branch, op=op, kind="text", texts=words, origins=(PREFILLED,) * len(words))


def shape(branch):
    """Contents: the words of its messages, and the branches of its forks."""
    return [
        "".join(word for piece in item.pieces for word in piece.texts)
        if isinstance(item, MessagePieces)
        else [child.id for child in item]
        for item in branch.items
    ]


def test_a_fork_after_a_loop_stands_after_its_last_turn():
    loop = Repeat(0, (Gen(0, "a"), Text(0, (",",))), NEVER, 5)
    ops = tuple(walk((Text(0, ("t",)), loop, Fork(0, (1,)), Gen(1, "b"), Join(0, (1,)), Gen(0, "c"))))
    # text, repeat, (a, comma, repeat) x 3, fork, join, c
    events = [text(0, 0, "t")]
    for turn in range(3):
        events += [*made(0, 2 + 3 * turn, "gen", "a", str(turn), turn=turn), text(0, 3 + 3 * turn, ",")]
    events += [*made(1, 0, "gen", "b", "B"), *made(0, 13, "gen", "c", "C")]
    (root,) = Timeline.of(ops, events).roots
    assert shape(root) == ["t0,1,2,", [1], "C"]


def test_a_fork_in_a_loop_stands_in_its_first_turn():
    loop = Repeat(0, (Gen(0, "a"), Fork(0, (1,)), Gen(1, "b"), Join(0, (1,)), Text(0, (";",))), NEVER, 5)
    events = [text(0, 0, "t")]
    for turn in range(2):
        start = 2 + 5 * turn
        events += [
            *made(0, start, "gen", "a", str(turn), turn=turn),
            *made(1, turn, "gen", "b", "B", turn=turn),
            text(0, start + 3, ";"),
        ]
    (root,) = Timeline.of(tuple(walk((Text(0, ("t",)), loop))), events).roots
    assert shape(root) == ["t0", [1], ";1;"]
    _, child = root.walk()
    assert shape(child) == ["BB"]


def test_what_was_skipped_is_not_counted():
    when = When(0, NEVER, (Gen(0, "yes"), Text(0, ("!",)), Text(0, ("?",))), (Text(0, ("no",)),))
    ops = tuple(walk((Gen(0, "a"), when, Fork(0, (1,)), Gen(1, "b"), Text(0, ("end",)))))
    events = [*made(0, 0, "gen", "a", "A"), Skipped(0, "yes"), text(0, 2, "no"), *made(1, 0, "gen", "b", "B")]
    events.append(text(0, 4, "end"))
    timeline = Timeline.of(ops, events)
    assert shape(timeline.roots[0]) == ["Ano", [1], "end"]
    assert "yes skipped" in "".join(Page(timeline.html()).words)


def test_a_tool_has_a_bar_and_its_name():
    use = Use(0, "found", "look_up")
    events = [
        text(0, 0, "t"),
        *made(0, 1, "tool", "found", start_s=0.0, stop_s=0.5),
        text(0, 1, "result"),
        *made(0, 2, "gen", "a", "A", turn=2, start_s=0.5, stop_s=1.0),
    ]
    timeline = Timeline.of((Text(0, ("t",)), use, Gen(0, "a")), events)
    html = timeline.html()
    words = "".join(Page(html).words)
    assert "found = look_up() 500 ms" in words and "a 3" in words
    assert html.count('class="run tool') == 1 and html.index('<span class="piece tool"') < html.index(">result<")
    assert timeline.summary()["tools"] == 1
    assert "░" in timeline.text() and "1 call of tools" in timeline.text()


def test_branches_that_failed_say_why():
    error = ErrorInfo(code="tool_timeout", message="too <slow>")
    events = [
        *made(0, 0, "gen", "a", "A", start_s=0.0, stop_s=1.0),
        BranchRestarted(branch=1, attempt=1, error=error),
        BranchFailed(branch=1, error=error),
        BranchFailed(branch=2, error=ErrorInfo(code="cancelled", message="stopped")),
    ]
    timeline = Timeline.of((Gen(0, "a"), Fork(0, (1, 2), True, 1)), events)
    words = "".join(Page(timeline.html()).words)
    assert "2 attempts" in words and "failed: tool_timeout" in words and "restarted after tool_timeout" in words
    assert "cancelled" in words
    assert "too <slow>" not in timeline.html()
    one, two = timeline.text().splitlines()[5:7]
    assert one.endswith("restarted after tool_timeout, failed: tool_timeout") and two.endswith("cancelled")


def test_a_program_that_failed_says_why():
    timeline = Timeline.of((Gen(0, "a"),), [Failed(error=ErrorInfo(code="engine_dead", message="gone"))])
    assert "engine_dead" in "".join(Page(timeline.html()).words)
    assert "failed   engine_dead: gone" in timeline.text()


def test_the_choices_of_each_turn_have_their_own_odds():
    events = []
    for turn, odds in enumerate(((0.9, 0.1), (0.2, 0.8))):
        value, piece = made(0, 1 + 2 * turn, "select", "s", "x", turn=turn)
        events += [replace(value, probabilities=odds), piece]
    words = "".join(Page(Timeline.of((Select(0, "s", ("x", "y")),), events).html()).words)
    assert all(f"{odds}.0%" in words for odds in (90, 10, 20, 80))


def test_calls_tell_why_tokens_were_computed():
    ops = (Text(0, ("abcd",)), Fork(0, (1, 2)), Gen(1, "x"), Gen(2, "y"))
    events = [
        text(0, 0, "a", "b", "c", "d"),
        text(1, 0, "1"),
        text(2, 0, "2"),
        *made(1, 1, "gen", "x", "X", "Y", start_s=0.1, prompt_tokens=5, cached_tokens=2, completion_tokens=2),
        *made(2, 1, "gen", "y", "Z", start_s=0.2, prompt_tokens=5, cached_tokens=3, completion_tokens=1),
    ]
    first, second = Timeline.of(ops, events).calls()
    assert (first.name, first.branch, first.known_tokens, first.why_computed) == (
        "x",
        "1",
        0,
        "3 new, 2 from before the run",
    )
    assert (second.known_tokens, second.why_computed) == (4, "1 new, 1 again")


def test_branches_that_say_the_same_know_the_same():
    ops = (Text(0, ("a",)), Fork(0, (1, 2)), Gen(1, "x"), Gen(2, "y"))
    events = [text(0, 0, "a"), text(1, 0, "b"), text(2, 0, "b")]
    events += made(1, 1, "gen", "x", "X", start_s=0.1, prompt_tokens=2, completion_tokens=1)
    events += made(2, 1, "gen", "y", "Y", start_s=0.2, prompt_tokens=2, cached_tokens=2, completion_tokens=1)
    _, second = Timeline.of(ops, events).calls()
    assert second.known_tokens == 2 and second.why_computed == ""


def test_a_run_with_everything_in_it(tmp_path):
    @bough.tool
    def look_up(topic: str) -> str:
        return f"about {topic}"

    @bough.tool
    def broken(topic: str) -> str:
        raise KeyError(topic)

    def step(s):
        s += bough.select("action", ["look", "stop"])
        s += bough.when(bough.var("action") == "look", bough.use("found", look_up, topic="x"))

    @bough.function
    def agent(s):
        s += "Go: "
        s += bough.repeat_until(bough.var("action") == "stop", step, at_most=3)
        branches = s.fork(2, isolated=True, retries=1)
        branches[0] += "good" + bough.gen("end")
        branches[1] += "bad" + bough.use("end", broken, topic="y")
        branches.join(errors="value")

    backend = bough.MockBackend({"action": ["look", "look", "stop"]})
    state = agent.run(backend=backend, trace=True)
    timeline = state.timeline()
    timeline.save(tmp_path / "page.html")
    (root,) = timeline.roots
    assert shape(root) == ["Go: lookabout xlookabout xstop", [1, 2]]
    words = "".join(Page(timeline.html()).words)
    for said in ("action 3", "found 2 = look_up()", "found skipped", "2 attempts", "failed: tool_failed"):
        assert said in words
    assert [call.name for call in timeline.calls()].count("action") == 3


def test_calls_that_the_client_makes_have_times(monkeypatch):
    monkeypatch.setattr(mock, "still", lambda event: event)  # which has its times left out
    backend = bough.MockBackend()
    seconds = itertools.count()
    backend._runs._programs._clock = lambda: float(next(seconds))

    @bough.function
    def ask(s):
        s += "x" + bough.gen("a") + bough.gen("b")

    first, second = ask.run(backend=backend, trace=True).timeline().calls()
    assert 0 < first.start_s < first.stop_s <= second.start_s < second.stop_s
