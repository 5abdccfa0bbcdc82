"""The timeline: numbers against hand counts, and the tree's order."""

import pytest

from bough.lang.observe.timelines.timeline import Timeline
from bough.lang.observe.timelines.tree import ForkPoint, MessagePieces, arrange
from bough.runtime.protocol.program import Done, Fork, Gen, Join, Piece, RoleBegin, RoleEnd, Select, Text, Value
from bough.runtime.protocol.request import FORCED, PREFILLED, SAMPLED, Usage

OPS = (
    RoleBegin(0, "user"),
    Text(0, ("one two three",)),
    RoleEnd(0),
    Fork(0, (1, 2)),
    Gen(1, "a"),
    Select(2, "b", ("yes", "no")),
    Join(0, (1, 2)),
    Text(0, ("end",)),
    Gen(0, "c"),
)


def piece(branch, op, kind, words="", origin=PREFILLED, **fields):
    texts = tuple(words.split(" ")) if words else ()
    return Piece(branch=branch, op=op, kind=kind, texts=texts, origins=(origin,) * len(texts), **fields)


PIECES = (
    piece(0, 0, "role", "<user>", role="user"),
    piece(0, 1, "text", "one two three", role="user"),
    piece(0, 2, "role", "</user>", role="user"),
    Piece(
        branch=1,
        op=0,
        kind="gen",
        name="a",
        texts=("x", "y"),
        origins=(SAMPLED, FORCED),
        start_s=0.1,
        stop_s=0.4,
        queue_s=0.05,
        prefill_s=0.05,
    ),
    piece(2, 0, "select", "yes", SAMPLED, name="b", start_s=0.1, stop_s=0.2),
    piece(0, 5, "text", "end", start_s=0.4, stop_s=0.4),
    piece(0, 6, "gen", "z z", SAMPLED, name="c", start_s=0.4, stop_s=1.0),
)


@pytest.fixture
def timeline():
    events = [*PIECES, Value(branch=2, name="b", text="yes", probabilities=(0.75, 0.25))]
    return Timeline.of(OPS, events, title="small <program>")


def test_counts_each_token_once_and_each_prompt_in_full(timeline):
    # Prompts: 5 tokens for each child, then 6 for the last generation. Computed as prompt: 5 + 1.
    assert timeline.summary() == {
        "title": "small <program>",
        "branches": 3,
        "generations": 3,
        "tools": 0,
        "elapsed_s": 1.0,
        "cached_tokens": 0,
        "prefilled_tokens": 6,
        "sampled_tokens": 4,
        "forced_tokens": 1,
        "unused_tokens": 0,
        "prompt_tokens": 16,
        "saved_tokens": 10,
        "cached_share": 10 / 16,
    }


def test_the_engines_own_count_comes_first():
    events = [Done(usage=Usage(prompt_tokens=30, cached_tokens=6)), *PIECES, Done(usage=Usage(prompt_tokens=10))]
    summary = Timeline.of(OPS, events).summary()
    assert (summary["prompt_tokens"], summary["saved_tokens"], summary["cached_share"]) == (40, 6, 0.15)


def test_the_children_stand_where_the_fork_was(timeline):
    (root,) = timeline.roots
    _, *children = root.walk()
    assert [(child.id, child.label, child.depth) for child in children] == [(1, "1", 1), (2, "2", 1)]
    assert [isinstance(item, MessagePieces) for item in root.items] == [True, False, True]
    assert outline(root) == [("user", 3, 0), ("", 2, 5)]


def test_a_fork_without_its_instruction_is_placed_by_time():
    (root,) = Timeline(PIECES, forks=[(0, [1, 2])]).roots
    assert [isinstance(item, MessagePieces) for item in root.items] == [True, False, True]


def test_nested_forks_are_labelled_by_their_path():
    forks = [ForkPoint(0, (1, 2), 0), ForkPoint(2, (3,), 0), ForkPoint(0, (4,), 1)]
    (root,) = arrange([], forks)
    assert [branch.label for branch in root.walk()] == ["main", "1", "2", "2.1", "3"]


def test_a_branch_forked_twice_is_refused():
    with pytest.raises(ValueError, match="branch 1 is forked twice"):
        arrange([], [ForkPoint(0, (1,)), ForkPoint(0, (1,))])


def outline(branch):
    """Its messages as (role, pieces, position)."""
    messages = [item for item in branch.items if isinstance(item, MessagePieces)]
    return [(message.role, len(message.pieces), message.position) for message in messages]


def test_messages_of_the_same_role_are_kept_apart():
    pieces = [piece(0, op, kind, "w", role="user") for op, kind in enumerate(["role", "text", "role"] * 2)]
    (root,) = arrange(pieces, [])
    assert outline(root) == [("user", 3, 0), ("user", 3, 3)]


def test_what_is_said_in_an_open_message_has_its_role_in_children_too():
    kinds = ["role", "text", "role", "text", "role"]
    roles = ["user", "", "user", "", "assistant"]
    pieces = [piece(0, op, kind, "w", role=role) for op, (kind, role) in enumerate(zip(kinds, roles, strict=True))]
    pieces += [piece(1, 0, "gen", "w", name="x"), piece(1, 1, "role", "w", role="assistant"), piece(1, 2, "text", "w")]
    (root,) = arrange(pieces, [ForkPoint(0, (1,), 5)])
    _, child = root.walk()
    assert outline(root) == [("user", 3, 0), ("", 1, 3), ("assistant", 1, 4)]
    assert outline(child) == [("assistant", 2, 5), ("", 1, 7)]


def test_the_terminal_shows_each_branch_and_its_phases(timeline):
    lines = timeline.text().splitlines()
    assert lines[0] == "small <program>: 3 branches, 3 generations, 1.00 s"
    assert "16 tokens, 10 from the cache (62%)" in lines[1]
    main, first, second = lines[4:7]
    assert main.endswith("c")
    assert first.endswith("a")
    assert second.endswith("b")
    assert set("·▒█") <= set(first)
    assert main.index("█") > first.rindex("█")


def test_an_empty_program_has_a_timeline():
    timeline = Timeline([])
    assert timeline.summary()["cached_share"] == 0.0
    assert "0 branches" in timeline.text()
    assert "0 branches" in timeline.html()


def test_save_writes_the_page(timeline, tmp_path):
    timeline.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == timeline.html()
