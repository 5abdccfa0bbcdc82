"""Explanations of a program before it runs, also of one that cannot be compiled."""

from __future__ import annotations

import pytest

import bough
from bough.lang.compile.cost import itemise
from bough.runtime.protocol.condition import Compare, Ref
from bough.runtime.protocol.program import Fork, Gen, Repeat, RoleBegin, RoleEnd, Text
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.tokenizer.chat_template import RolePieces


class Letters:
    """A tokenizer of which each token is a letter."""

    def encode(self, text, *, special=False):
        return list(text)


class Chatting(Letters):
    """With a template that writes `<role>` before a message and `.` after it."""

    @property
    def chat(self):
        return self

    def role_pieces(self, history, role):
        return RolePieces(f"{len(history)}<{role}>", ".")


@bough.function
def compare(s, product):
    s += f"About {product}: "
    branches = s.fork(2)
    branches += lambda i: f"{i}" + bough.gen("point", max_tokens=10)
    branches.join()
    s += "So " + s.ref("point", 0) + s.ref("point", 1) + bough.gen("end", max_tokens=5)
    s += bough.gen("unread", max_tokens=50)
    return s["end"]


@bough.function
def reading(s, question, limit=3):
    s += question + bough.gen("first", max_tokens=8)
    if s["first"] == "x":
        s += bough.gen("second")


def test_a_program_is_listed_counted_and_its_longest_chain_named():
    text = compare.explain(product="x", tokenizer=Letters())
    assert text.startswith("program compare()\n")
    assert "one request to the engine, with at most 3 model calls" in text
    assert "\npoint   1           1       1" not in text
    assert "longest chain   2 calls, 15 tokens: point > end" in text
    assert "shared          9 tokens before the fork into 1 2: computed once, not 2 times" in text
    assert "shared          6 tokens at the start of every run" in text  # "About "
    assert "removed: not needed" in text and "unread" not in text
    assert "counted" not in text and "about 9" not in text


def test_without_a_tokenizer_it_is_said_that_tokens_are_estimated():
    text = compare.explain(product="x")
    assert "prompt tokens   about " in text
    assert "from the length of the text: the model's tokenizer" in text


def test_arguments_that_are_not_given_are_not_counted():
    text = compare.explain(tokenizer=Letters())
    assert "{product}" in text
    assert "not counted     the text of product: pass a value to count it" in text


def test_options_are_those_of_the_generations():
    assert "gen end (max_tokens=5, temperature=0" in compare.explain(product="x", temperature=0)
    assert "temperature=0.5" in compare.bind(temperature=0.5).explain(product="x")


def test_what_cannot_be_compiled_is_told_with_its_line():
    text = reading.explain(question="Where? ", tokenizer=Letters())
    assert text.startswith("program reading cannot be compiled: ")
    assert f"at {__file__}:" in text and 'if s["first"] == "x":' in text
    assert '0 | "Where? "' in text and "gen first (max_tokens=8)" in text
    assert "its first request has at most 1 model call" in text
    assert "prompt tokens   7 at most; 7 computed" in text
    assert "No value for: question. With one" in reading.explain()


def test_of_a_program_that_looks_at_once_nothing_is_known():
    @bough.function
    def at_once(s, names):
        for name in names:
            s += name

    text = at_once.explain()
    assert "cannot be compiled" in text and text.endswith("It records nothing before that line.")


def test_what_the_body_raises_passes_through():
    @bough.function
    def broken(s):
        raise KeyError("own")

    with pytest.raises(KeyError):
        broken.explain()


def test_nothing_is_sent():
    backend = bough.MockBackend()
    with bough.use_backend(backend):
        compare.explain(product="x")
        reading.explain(question="x")
    assert backend.requests == []


def gen(branch, name, tokens):
    return Gen(branch, name, SamplingParams(max_tokens=tokens))


def test_items_add_up_to_the_whole():
    loop = Repeat(0, (gen(0, "a", 5), Text(0, ("--",))), Compare(Ref(0, "a"), "eq", "x"), 3)
    ops = (
        Text(0, ("x" * 10,)),
        loop,
        Fork(0, (1, 2)),
        Text(1, ("yy",)),
        gen(1, "b", 7),
        gen(2, "b", 2),
        gen(0, "c", 1),
    )
    bill = itemise(ops, Letters())
    assert [(item.branch, item.name, item.times) for item in bill.items] == [
        (0, "a", 3),
        (1, "b", 1),
        (2, "b", 1),
        (0, "c", 1),
    ]
    for field in ("prompt_tokens", "computed_tokens", "generated_tokens"):
        assert sum(getattr(item, field) for item in bill.items) == getattr(bill.cost, field)
    turns = 2 * (1 + 2)  # what is generated is computed as it comes, but for its last token
    assert bill.cost.computed_tokens == 10 + turns + (1 + 2 + 2) + 2 * (1 + 2)  # too short to be waited for
    assert bill.chain == (("a", 3), ("b", 1))
    assert [(share.children, share.num_tokens) for share in bill.shares] == [((1, 2), 31)]


def test_the_first_call_anywhere_pays_for_what_is_before_a_fork():
    ops = (Text(0, ("x" * 20,)), Fork(0, (1, 2)), gen(2, "b", 2), gen(0, "c", 1))
    assert [item.computed_tokens for item in itemise(ops, Letters()).items] == [20, 1]
    assert itemise(ops[:2], Letters()).cost.computed_tokens == 0


def test_messages_are_counted_by_the_chat_template():
    ops = (RoleBegin(0, "user"), Text(0, ("hey",)), RoleEnd(0), RoleBegin(0, "assistant"), gen(0, "a", 1))
    assert itemise(ops, Chatting()).cost.prompt_tokens == len("0<user>hey.") + len("1<assistant>")
    assert itemise(ops, Letters()).cost.prompt_tokens == 3 + 3 * 4
