"""The tree of tokens by which costs are counted."""

from bough.lang.compile.prefix_tree import HOLD_BACK, ROOT, TokenTree
from bough.runtime.protocol.config import SchedulerLimits

LONG = tuple(range(HOLD_BACK))


def test_it_waits_as_the_scheduler_does():
    assert SchedulerLimits().hold_back == HOLD_BACK


def test_what_was_computed_before_is_there():
    tree = TokenTree()
    node = tree.after(ROOT, "abc")
    assert tree.after(ROOT, "abc") == node != tree.after(ROOT, "abd")
    assert tree.missing(node) == 3 and tree.missing(ROOT) == 0
    assert tree.compute(node, (0, 0)) == 3
    assert tree.compute(tree.after(ROOT, "abd"), (1, 1)) == 1
    assert tree.compute(tree.after(node, "ef"), (1, 1)) == 2
    assert tree.between(node, tree.after(node, "ef")) == ["e", "f"]


def test_what_others_compute_at_the_same_time_is_waited_for_if_it_is_long():
    for beginning, expected in ((LONG, 1), (LONG[1:], HOLD_BACK)):
        tree = TokenTree()
        shared = tree.after(ROOT, beginning)
        assert tree.compute(tree.after(shared, "a"), (0, 0)) == len(beginning) + 1
        assert tree.compute(tree.after(shared, "b"), (0, 0)) == expected
        assert tree.compute(tree.after(shared, "c"), (1, 1)) == 1


def test_choices_share_what_they_begin_with():
    tree = TokenTree()
    node = tree.after(ROOT, "q")
    assert tree.compute_all(node, ["ab", "abc", "x"], (0, 0)) == 1 + 2
    assert tree.compute(tree.after(node, "abc"), (1, 1)) == 1
