"""A branch's tokens say what its text says, and the timeline accounts for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.constrain.spec import Choice
from bough.runtime.programs.engine_machine import EngineMachine
from bough.runtime.programs.executor import Executor
from bough.runtime.programs.interpreter import write
from bough.runtime.programs.shared import Shared
from bough.runtime.programs.state import Barrier, Branch, Failure, Values
from bough.runtime.programs.tokens import TokenContent, append_text, close_message, content_of, keep_text, open_message
from bough.runtime.protocol.condition import NotYetError
from bough.runtime.protocol.errors import EngineError, ErrorInfo, RequestError
from bough.runtime.protocol.program import Fork, Gen, Join, Op, Piece, Ref, RoleBegin, RoleEnd, Select, Text
from bough.runtime.protocol.request import CACHED, FORCED, PREFILLED, SAMPLED, UNUSED
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import byte_tokenizer, fake_engine
from .oracle import Heard, Oracle, executor_of, random_program, run

GREEDY = SamplingParams(max_tokens=5, temperature=0.0)


class Words:
    """A tokenizer of a few byte strings, some of which cut characters in two; the last one is a control token."""

    pieces_of = (b"a", b"ab", b"b", b"bc", b"c", b"\xf0\x9f", b"\xa6\x8a", b"\xa6", b"\x8a", b"\xe2", b"")

    def pieces(self, tokens: Iterable[int], *, skip_special_tokens: bool = True) -> list[bytes]:
        control = b"" if skip_special_tokens else b"<end>"
        return [self.pieces_of[token] or control for token in tokens]

    def encode(self, text: str) -> list[str]:
        return [text]

    def decode(self, tokens: Sequence[int | str], **options: bool) -> str:
        parts = [t.encode() if isinstance(t, str) else self.pieces([t], **options)[0] for t in tokens]
        return b"".join(parts).decode(errors="replace")


def blank(number: int, **fields: Any) -> Branch:
    return Branch(number, TokenContent(), **fields)


TOKENS = st.lists(st.integers(0, len(Words.pieces_of) - 1), max_size=12)


@given(TOKENS, st.integers(0, 40), st.booleans())
def test_kept_tokens_say_just_the_text(tokens: list[int], length: int, skip: bool) -> None:
    """Wherever the text is cut: the tokens before stay as they are, and all together say it exactly."""
    words = Words()
    text = words.decode([*tokens], skip_special_tokens=skip)[:length]
    kept = keep_text(tokens, text, words, skip_special_tokens=skip)  # type: ignore[arg-type]
    assert words.decode([*kept], skip_special_tokens=skip) == text
    same = [token for token in kept if isinstance(token, int)]
    assert same == tokens[: len(same)] == kept[: len(same)]
    following = tokens[len(same) : len(same) + 1]
    if following and following[0] < 5:  # whole characters: no longer stretch of tokens would do
        assert not text.startswith(words.decode(same + following, skip_special_tokens=skip))


def test_a_character_that_a_stop_string_cuts_off_is_encoded_anew() -> None:
    tokens = [0, 5, 6, 3]  # a, two halves of a fox, bc
    assert keep_text(tokens, "a🦊b", Words()) == [0, 5, 6, "b"]  # type: ignore[arg-type]
    assert keep_text(tokens, "a🦊", Words()) == [0, 5, 6]  # type: ignore[arg-type]
    assert keep_text(tokens, "a", Words()) == [0]  # type: ignore[arg-type]
    assert keep_text(tokens, "", Words()) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", ["🦊", "日", "é", "end", "日本"])
@pytest.mark.parametrize("include_stop", [False, True])
def test_a_stop_string_leaves_tokens_that_say_the_text(stop: str, include_stop: bool) -> None:
    engine, _ = fake_engine()
    executor = executor_of(engine, lambda: 0.0, max_states=4)
    grammar = Choice((f"né 🦊🦊 日日本 end {stop}!",))
    sampling = SamplingParams(max_tokens=60, temperature=0.0, stop=stop, include_stop=include_stop)
    heard = run(executor, engine, [Text(0, ("x",)), Gen(0, "g", sampling, grammar)], keep=True)
    whole = grammar.options[0]
    place = whole.index(stop) + (len(stop) if include_stop else 0)
    value = heard.values[0, "g"]
    assert (value.text, value.matched) == (whole[:place], stop)
    assert content_of(executor._states["p"].branches[0]).tokens == byte_tokenizer().encode("x" + whole[:place])
    engine.close()


def test_text_and_messages() -> None:
    tokenizer = byte_tokenizer()
    branch = blank(0)
    content = content_of(branch)
    append_text(branch, "", tokenizer)
    assert not content.tokens and not content.texts and not content.appended
    append_text(branch, "<|im_start|>", tokenizer)  # text is never a control token
    assert len(content.tokens) == len("<|im_start|>")
    open_message(branch, "user", tokenizer)
    with pytest.raises(RequestError, match="inside a user message"):
        open_message(branch, "assistant", tokenizer)
    close_message(branch, tokenizer)
    with pytest.raises(RequestError, match="no open message"):
        close_message(branch, tokenizer)
    assert content.roles[:] == ["user"]
    assert tokenizer.decode(content.tokens[:], skip_special_tokens=False) == content.text


def test_a_fork_is_a_copy() -> None:
    given = TokenContent(Shared([1], compact=True), Shared(["x"]), Shared(["user"]), suffix="!")
    parent = Branch(0, given, values=Values({"a": "1"}))
    child = blank(1)
    child.start_from(parent)
    copy = content_of(child)
    copy.tokens.append(2)
    copy.texts.append("y")
    child.keep("b", "2")
    assert (given.tokens[:], given.texts[:], dict(parent.values)) == ([1], ["x"], {"a": "1"})
    assert (copy.tokens[:], copy.texts[:]) == ([1, 2], ["x", "y"])
    assert (copy.roles[:], copy.suffix, copy.forked.num_tokens, copy.forked.num_texts) == (["user"], "!", 1, 1)


def test_a_chat_that_begins_anew_asks_for_the_date_again() -> None:
    tokenizer = byte_tokenizer()
    parent, child, grandchild = blank(0), blank(1), blank(2)
    child.start_from(parent)
    open_message(child, "user", tokenizer)
    start = content_of(child).start
    grandchild.start_from(child)
    close_message(grandchild, tokenizer)
    open_message(grandchild, "assistant", tokenizer)
    content_of(grandchild).restart()
    assert content_of(grandchild).start is start is not None
    content_of(child).restart()
    assert content_of(child).start is None


def test_adopting_keeps_what_is_there() -> None:
    given = TokenContent(Shared([1], compact=True), Shared(["x"]))
    parent = Branch(0, given, values=Values({"a": "1"}))
    child = blank(1)
    child.start_from(parent)
    content_of(child).tokens.extend([2, 3])
    content_of(child).texts.extend(["y", "z"])
    child.keep("a", "changed")
    child.keep("b", "2")
    barrier = Barrier()
    barrier.reach(child)
    content_of(child).tokens.append(4)
    child.keep("b", "changed later")
    child.keep("c", "later")
    given.tokens.append(9)
    parent.adopt(child, barrier)
    assert (given.tokens[:], given.texts[:]) == ([1, 9, 2, 3], ["x", "y", "z"])
    assert dict(parent.values) == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (blank(1, values=Values({"v": "there"})), "a there"),
        (blank(1, started=False), NotYetError),  # it may come to have one
        (blank(1, running={"r"}), NotYetError),
        (blank(1, values=Values({"v": "there"}), failure=Failure(1, ErrorInfo(code="x", message="no"))), "a there"),
        (blank(1, failure=Failure(1, ErrorInfo(code="x", message="no luck"))), EngineError),
        (blank(1), RequestError),
    ],
    ids=["there", "not begun", "running", "failed after it", "failed before it", "ended"],
)
def test_references_are_waited_for_while_they_can_come(source: Branch, expected: Any) -> None:
    branch = blank(0)
    parts = ("a ", Ref(1, "v"))
    if isinstance(expected, str):
        assert write(parts, branch, {0: branch, 1: source}) == expected
        return
    match = {RequestError: "no value named 'v' in branch 1", EngineError: "no luck", NotYetError: None}
    with pytest.raises(expected, match=match[expected]):
        write(parts, branch, {0: branch, 1: source})


# The timeline


@pytest.fixture
def executor() -> Iterator[Executor]:
    engine, _ = fake_engine()
    yield executor_of(engine, lambda: 0.0, max_states=4)
    engine.close()


def trace(executor: Executor, ops: list[Op], program_id: str = "p") -> Heard:
    machine = executor._machine
    assert isinstance(machine, EngineMachine)
    return run(executor, machine._engine, ops, program_id, trace=True)


def of(pieces: list[Piece], branch: int) -> list[Piece]:
    return sorted((piece for piece in pieces if piece.branch == branch), key=lambda piece: piece.op)


@pytest.mark.parametrize("seed", range(12))
def test_the_pieces_add_up_to_the_branches(seed: int) -> None:
    """Each token that an instruction appended is in one piece, with one origin; together they say the text."""
    ops: list[Op] = [op for op in random_program(seed) if not isinstance(op, Join)]
    engine, _ = fake_engine(max_batch_tokens=(8, 512)[seed % 2])
    heard = trace(executor_of(engine, lambda: 0.0, max_states=4), ops)
    expected = Oracle().run(ops)
    for number, branch in expected.branches.items():
        pieces = of(heard.pieces, number)
        assert len({piece.op for piece in pieces}) == len(pieces)
        assert all(len(piece.texts) == len(piece.origins) for piece in pieces)
        own = branch.tokens[branch.forked[0] :]
        assert sum(len(piece.origins) for piece in pieces) == len(own)
        if "\ufffd" not in "".join(branch.texts):
            told = [text for piece in pieces for text in piece.texts]
            assert "".join(told) == "".join(branch.texts[branch.forked[1] :])
    engine.close()


def test_origins(executor: Executor) -> None:
    warm: list[Op] = [Text(0, ("the same beginning",)), Gen(0, "g", GREEDY)]
    cold = of(trace(executor, warm).pieces, 0)
    assert cold[0].origins == (PREFILLED,) * len("the same beginning")
    assert cold[1].origins == (SAMPLED,) * 5
    assert [piece.kind for piece in cold] == ["text", "gen"]
    heard = trace(executor, [Text(0, ("the same ",)), Text(0, ("beginning!",)), Gen(0, "g", GREEDY), Text(0, ("end",))])
    pieces = of(heard.pieces, 0)
    assert pieces[0].origins == (CACHED,) * len("the same ")
    assert pieces[1].origins == (CACHED,) * len("beginning") + (PREFILLED,)
    assert pieces[3].origins == (UNUSED,) * 3
    assert pieces[2].name == "g"


def test_what_a_grammar_forces_is_seen(executor: Executor) -> None:
    grammar = Choice(("abcdefgh",))
    sampling = SamplingParams(max_tokens=20, temperature=0.0)
    pieces = of(trace(executor, [Text(0, ("x",)), Gen(0, "g", sampling, grammar)]).pieces, 0)
    assert pieces[1].origins.count(FORCED) >= 6
    assert "".join(pieces[1].texts) == "abcdefgh"


def test_a_shared_prefix_is_told_once(executor: Executor) -> None:
    ops: list[Op] = [
        RoleBegin(0, "user"),
        Text(0, ("shared",)),
        RoleEnd(0),
        Fork(0, (1, 2)),
        Gen(1, "a", GREEDY),
        Text(2, ("more",)),
        Gen(2, "b", GREEDY),
    ]
    pieces = trace(executor, ops).pieces
    assert sorted((piece.branch, piece.op, piece.kind) for piece in pieces) == [
        (0, 0, "role"),
        (0, 1, "text"),
        (0, 2, "role"),
        (1, 0, "gen"),
        (2, 0, "text"),
        (2, 1, "gen"),
    ]
    assert of(pieces, 0)[0].role == "user"


def test_joined_text_is_told_in_the_branch_that_wrote_it(executor: Executor) -> None:
    """Appended by a child that generates nothing, it is computed by the parent, where it lies further on."""
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1, 2)),
        Text(1, ("one ",)),
        Text(2, ("two ",)),
        Join(0, (1, 2), "append"),
        Gen(0, "g", GREEDY),
    ]
    pieces = trace(executor, ops).pieces
    assert [(p.branch, p.texts, p.origins) for p in pieces[:3]] == [
        (0, ("x",), (PREFILLED,)),
        (1, tuple("one "), (PREFILLED,) * 4),
        (2, tuple("two "), (PREFILLED,) * 4),
    ]
    assert trace(executor, ops).pieces[2].origins == (CACHED,) * 3 + (PREFILLED,)  # logits need one computed
    other: list[Op] = [ops[0], ops[1], ops[2], Text(2, ("TWO ",)), *ops[4:]]
    assert [piece.origins for piece in trace(executor, other).pieces[1:3]] == [(CACHED,) * 4, (PREFILLED,) * 4]


def test_a_child_that_goes_on_after_a_join_keeps_its_own_places(executor: Executor) -> None:
    """A piece's place in the parent does not count for the child that computes it first."""
    warm = "a" * 40
    trace(executor, [Text(0, (warm,)), Gen(0, "g", GREEDY)], "warm")
    ops: list[Op] = [
        Fork(0, (1,)),
        Text(1, (warm,)),
        Text(0, ("b" * 64,)),
        Join(0, (1,), "append"),
        Gen(1, "g", GREEDY),
    ]
    pieces = trace(executor, ops).pieces
    assert of(pieces, 1)[0].origins == (CACHED,) * 39 + (PREFILLED,)


def test_scoring_without_the_prompt_says_nothing_of_its_origins() -> None:
    """A request for an unconditional likelihood is not about the branch, though it is admitted and ends first."""
    engine, _ = fake_engine(max_batch_tokens=16)
    executor = executor_of(engine, lambda: 0.0, max_states=4)
    run(executor, engine, [Text(0, ("yes",)), Gen(0, "g", GREEDY)], "warm")
    ops: list[Op] = [
        Text(0, ("y" + "?" * 64,)),
        Select(0, "s", ("yes", "not"), "unconditional_likelihood_normalized"),
    ]
    pieces = trace(executor, ops).pieces
    assert pieces[0].origins == (CACHED,) + (PREFILLED,) * 64
    engine.close()
