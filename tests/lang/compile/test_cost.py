"""Cost estimates against programs whose cost is known."""

import pytest

from bough.lang.compile.cost import estimate
from bough.runtime.protocol.condition import Compare, Ref
from bough.runtime.protocol.program import Fork, Gen, Join, Repeat, Select, Text, Use, When
from bough.runtime.protocol.sampling_params import SamplingParams


class FourLetters:
    """A tokenizer of which each token is a letter."""

    def encode(self, text, *, special=False):
        return list(text)


def gen(branch, name, tokens, n=1):
    return Gen(branch, name, SamplingParams(max_tokens=tokens, n=n))


def cost(*ops):
    return estimate(ops, FourLetters())


def test_each_token_of_a_line_is_computed_once():
    found = cost(Text(0, ("x" * 10,)), gen(0, "a", 5), Text(0, ("y" * 3,)), gen(0, "b", 2))
    assert (found.calls, found.prompt_tokens, found.computed_tokens) == (
        2,
        10 + 18,
        10 + 1 + 3,
    )  # the last of what was generated, too
    assert (found.generated_tokens, found.critical_tokens, found.critical_calls) == (7, 7, 2)
    assert found.reused_tokens == 14 and found.counted


def test_branches_share_what_is_before_the_fork():
    found = cost(
        Text(0, ("x" * 100,)), Fork(0, (1, 2)), gen(1, "a", 5), gen(2, "a", 7), Join(0, (1, 2)), gen(0, "b", 1)
    )
    assert found.prompt_tokens == 300
    assert found.computed_tokens == 100 + 1 + 1  # each call computes at least one
    assert (found.critical_tokens, found.critical_calls) == (8, 2)


def test_text_waits_for_the_values_in_it():
    found = cost(Text(0, ("x",)), Fork(0, (1,)), gen(1, "a", 50), Text(0, ("y", Ref(1, "a"))), gen(0, "b", 5))
    assert found.critical_tokens == 55
    assert found.computed_tokens == 1 + 1 + 50


def test_appended_branches_count_in_the_parent():
    found = cost(Text(0, ("x",)), Fork(0, (1,)), gen(1, "a", 5), Join(0, (1,), "append"), gen(0, "b", 1))
    assert found.prompt_tokens == 1 + 6


def test_a_loop_is_counted_as_often_as_it_may_run_and_of_two_ways_the_dearer_one():
    never = Compare(Ref(0, "a"), "eq", "x")
    assert cost(Text(0, ("x",)), Repeat(0, (gen(0, "a", 5), Use(0, "u", "t")), never, 4)).generated_tokens == 20
    found = cost(Text(0, ("x",)), When(0, never, (gen(0, "b", 5),), (gen(0, "c", 9),)))
    assert (found.generated_tokens, found.calls) == (9, 1)
    assert cost(Repeat(0, (Use(0, "u", "t"),), never, 4)).tool_calls == 4


def test_samples_and_choices():
    assert cost(Text(0, ("x" * 4,)), gen(0, "a", 5, n=3)).generated_tokens == 15
    found = cost(Text(0, ("x" * 4,)), Select(0, "s", ("ab", "abc")))
    assert (found.prompt_tokens, found.computed_tokens, found.generated_tokens) == (6, 6, 0)  # "a" and "b": one path


@pytest.mark.parametrize("words", ["calls             2", "longest chain     2 calls, 7 tokens", "about"])
def test_it_can_be_read(words):
    found = estimate((Text(0, ("x" * 10,)), gen(0, "a", 5), gen(0, "b", 2)))
    assert words in str(found)
    assert not found.counted
