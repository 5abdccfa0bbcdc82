"""Programs that ask for far more than they say: each is charged for it, and none holds the engine's thread long."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bough.constrain import compiler
from bough.constrain.spec import Lark
from bough.runtime.programs import costs, interpreter, state
from bough.runtime.programs.costs import MAX_SLICE_S, MAX_SLICE_WORK
from bough.runtime.programs.tokens import content_of
from bough.runtime.programs.validate import MAX_OPS
from bough.runtime.protocol.condition import (
    Compare,
    Condition,
    Count,
    Either,
    Every,
    Matches,
    Negation,
    Ref,
    search_cost,
)
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.patterns import MAX_NESTED_COUNTS, Matching, Pattern, nested_counts, num_classes
from bough.runtime.protocol.program import (
    Assign,
    BranchFailed,
    BranchRestarted,
    Cancel,
    Fork,
    Gen,
    Join,
    Op,
    Program,
    Repeat,
    RoleBegin,
    RoleEnd,
    Select,
    SelectMethod,
    Skipped,
    Text,
    Value,
    When,
)
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.tokenizer import chat_template as chat
from bough.runtime.tokenizer.chat_template import ChatTemplate, Turn
from bough.runtime.tokenizer.tokenizer import LONG_TEXT, MAX_TOKEN_CHARS, Tokenizer

from ...tokenizer.test_tokenizer import SMOLLM
from ..oracle import Heard
from ..place import GREEDY, bound
from ..tool_place import ToolPlace
from .attack import Attack, count_calls

FALSE: Condition = Either(())
TRUE: Condition = Every(())
UNCONDITIONAL: SelectMethod = "unconditional_likelihood_normalized"


@pytest.fixture
def place() -> Iterator[ToolPlace]:
    made = ToolPlace()
    yield made
    made.close()


def loop(*body: Op, turns: int = 1000) -> Op:
    return Repeat(0, body, FALSE, turns)


# Text


def test_a_long_text_is_encoded_beside_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ToolPlace()
    text, may_go_on, threads = "ab " * (LONG_TEXT // 3) + "end", threading.Event(), []
    encode = Tokenizer.encode

    def slow(self: Tokenizer, given: str, **options: bool) -> list[int]:
        if len(given) > LONG_TEXT:
            threads.append(threading.current_thread())
            assert may_go_on.wait(10.0)
        return encode(self, given, **options)

    place.machine._max_tokens = 1 << 20
    monkeypatch.setattr(Tokenizer, "encode", slow)
    hostile = place.start([Text(0, (text,)), Assign(0, "x", ("y",), tell=True)], "hostile", keep=True)
    other = place.run([Text(0, ("x",)), Gen(0, "g", GREEDY)], "other")
    assert other.done
    assert not hostile.over
    may_go_on.set()
    place.drive(lambda: hostile.over)
    assert content_of(place.executor._states["hostile"].branches[0]).tokens == encode(place.engine.tokenizer, text)
    assert [thread is threading.current_thread() for thread in threads] == [False]
    place.close()


@pytest.mark.parametrize("text", ["a b\n" * 3000, "日本 🦊" * 2000, "x" * 9000, " " * 20_000])
def test_long_texts_have_the_same_tokens(text: str) -> None:
    backend = SMOLLM._parts.pipeline.plain
    assert SMOLLM.encode(text) == backend.encode(text, add_special_tokens=False).ids


def test_a_long_text_that_is_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match="lone surrogate"):
        SMOLLM.encode("x" * LONG_TEXT + "\ud800")


def test_what_fits_into_no_context_is_not_encoded(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, Tokenizer, "encode")
    attack = Attack(place, [Text(0, ("x" * 2000,)), Text(0, ("y" * (MAX_TOKEN_CHARS * 48 + 1),))])
    assert attack.code == "context_length_exceeded"
    assert len(calls) == 1


def test_a_text_is_abandoned_with_its_branch(place: ToolPlace) -> None:
    ops: list[Op] = [Text(0, ("x",)), Fork(0, (1, 2)), Text(1, ("y" * 5000,)), Text(2, ("z" * 5000,)), Join(0, (1, 2))]
    heard = place.start([*ops, Assign(0, "x", ("y",), tell=True)], "p", keep=True)
    place.start([Cancel(1), Cancel(2)], "p", resume=True, keep=True)
    place.drive(lambda: heard.over)
    assert heard.done.texts[0] == "x"
    state = place.executor._states["p"]
    assert not any(branch.running for branch in state.branches.values())


def test_characters_are_charged(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    bound(place.machine, work=5000)
    calls = count_calls(monkeypatch, Tokenizer, "encode")
    body: tuple[Op, ...] = (Fork(0, (1,)), Text(1, ("a" * 1000,)), Join(0, (1,)))
    assert Attack(place, [Text(0, ("x",)), loop(*body)]).code == "program_too_long"
    assert sum(len(text) for _, text in calls) <= 5000 * costs.ENCODED_PER_WORK


def test_what_is_told_is_charged(place: ToolPlace) -> None:
    bound(place.machine, work=5000)
    body: tuple[Op, ...] = (Fork(0, (1,)), Assign(1, "y", (Ref(0, "x"),), tell=True), Join(0, (1,)))
    attack = Attack(place, [Assign(0, "x", ("a" * 20_000,)), loop(*body)])
    assert attack.code == "program_too_long"
    told = [event for event in attack.heard.events if isinstance(event, Value)]
    assert 0 < sum(len(value.text) for value in told) <= 5000 * costs.ENCODED_PER_WORK


def test_choices_are_bounded(place: ToolPlace) -> None:
    choices = tuple("ab c" * 1000 + str(index) for index in range(100))
    assert Attack(place, [Text(0, ("x",)), Select(0, "s", choices)]).code == "invalid_value"


# Conditions


def test_many_long_matches_make_way(place: ToolPlace) -> None:
    """Each of them is as much work as may be done in one go."""
    number = 40
    matches = tuple(Matches(Ref(0, "x"), f"(.|\n)*{index}") for index in range(number))
    text, decided = "ab cd\n" * 5000 + "37", Compare(Count(matches), "eq", 2.0)  # it ends with 7, and with 37
    attack = Attack(place, [Assign(0, "x", (text,)), When(0, decided, (Assign(0, "y", ("two",), tell=True),))])
    assert attack.heard.values[0, "y"].text == "two"
    assert attack.num_goes >= number // 2


def test_many_matches_make_way_by_their_work(place: ToolPlace) -> None:
    matches = Count(tuple(Matches(Ref(0, "x"), f"[a-z ]*{index}") for index in range(60)))
    decided = When(0, Compare(matches, "eq", 1.0), (Assign(0, "y", ("one",), tell=True),))
    attack = Attack(place, [Assign(0, "x", ("ab cd " * 500 + "37",)), decided])
    assert attack.heard.values[0, "y"].text == "one"
    assert attack.num_goes >= 60 * 3000 // 16 // MAX_SLICE_WORK - 1
    assert attack.most <= MAX_SLICE_WORK + 2 * (3000 // 16)


def test_searches_make_way_by_what_they_may_take(place: ToolPlace) -> None:
    """CPython compares some 1,500,000 pairs of characters in each of them: half a millisecond."""
    number, text = 300, "a" * 2499
    parts = [f"{'a' * 1248}b{index}" for index in range(number)]
    never = tuple(Compare(Ref(0, "x"), "contains", part) for part in parts)
    last = Compare(Ref(0, "x"), "contains", "a" * 1250)
    attack = Attack(
        place, [Assign(0, "x", (text,)), When(0, Either((*never, last)), (Assign(0, "y", ("yes",), tell=True),))]
    )
    assert attack.heard.values[0, "y"].text == "yes"
    works = [search_cost(text, part) // costs.SEARCHED_PER_WORK for part in parts]
    assert min(works) >= 20
    assert attack.num_goes >= sum(works) // MAX_SLICE_WORK
    looked_at = number * len(text + parts[-1]) // costs.COPIED_PER_WORK + number
    assert attack.most <= MAX_SLICE_WORK + max(works) + looked_at


def test_a_search_is_made_once(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = count_calls(monkeypatch, interpreter, "search_cost")
    same = Either((Compare(Ref(0, "x"), "contains", "a" * 1248 + "b"),) * 1000)
    place.run([Assign(0, "x", ("a" * 2499,)), When(0, same)])
    assert len(searches) == 1


def test_a_match_is_gone_on_with() -> None:
    pattern, text = Pattern("(a|b)*c"), "ab" * 1000 + "c"
    matching = Matching(pattern, text)
    goes = 0
    while (found := matching.done_by(0.0)) is None:
        goes += 1
    assert found is pattern.matches(text) is True
    assert goes > 20
    assert matching.done_by(0.0) is True


@pytest.mark.parametrize(
    ("source", "product"),
    [
        ("a{9}b{0,9}", 1),
        ("(a{0,9}){0,9}", 81),
        ("((a{0,30}){0,30}){0,30}", 27_000),
        ("([0-9]{1,3}\\.){3}", 9),
        ("[{0,9}]{0,9}", 1),
        ("[a[b{0,3}]]{0,4}", 1),
        ("\\x{41}{0,5}", 1),
        ("(?x)(a{0,30}) # {\n {30}", 900),
        ("((a|b){100}){100}", 1),
        ("((a|bb){100}){100}", 10_000),
        ("((a?){100}b*){100}", 10_000),
        ("(a|){9}{9}", 81),
        (")a{0,3}|{0,3}", 1),
    ],
)
def test_counts_in_counts(source: str, product: int) -> None:
    assert nested_counts(source) == product


def test_patterns_whose_characters_take_long_are_refused() -> None:
    """The states of such a pattern grow with each character: five levels of 30 took a second for the fiftieth."""
    with pytest.raises(RequestError, match=f"multiply to more than {MAX_NESTED_COUNTS}"):
        Pattern("(" * 4 + "a{0,30}" + "){0,30}" * 4)


def test_conditions_in_loops_are_charged_by_their_size(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    bound(place.machine, work=20_000)
    calls = count_calls(monkeypatch, interpreter, "holds")
    many = Either(tuple(Negation(TRUE) for _ in range(4000)))
    attack = Attack(place, [loop(When(0, many))])
    assert attack.code == "program_too_long"
    assert len(calls) < 50
    long = Compare("a" * 500_000 + "b", "contains", "ac")
    attack = Attack(place, [loop(When(0, long))])
    assert attack.code == "program_too_long"
    assert attack.most < 3 * MAX_SLICE_WORK


def test_what_one_instruction_goes_through_is_bounded(place: ToolPlace) -> None:
    for op in (Text(0, ("a",) * 20_000), When(0, Either((TRUE,) * 20_000))):
        assert "parts, but 16384 is the limit" in place.refusal([op]).message
    compares = Either(tuple(Compare(Ref(0, "x"), "contains", "no") for _ in range(100)))
    attack = Attack(place, [Assign(0, "x", ("a" * 100_000,)), When(0, compares)])
    assert attack.code == "condition_too_complex"


# Blocks


def test_skipped_values_are_charged(place: ToolPlace) -> None:
    bound(place.machine, work=20_000)
    never = When(0, FALSE, tuple(Gen(0, f"v{index}", GREEDY) for index in range(500)))
    attack = Attack(place, [Text(0, ("x",)), loop(loop(never))])
    assert attack.code == "program_too_long"
    assert 0 < sum(isinstance(event, Skipped) for event in attack.heard.events) <= 20_000


def test_branches_that_are_made_ready_are_charged(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    bound(place.machine, work=20_000)
    calls = count_calls(monkeypatch, state, "reset")
    children = tuple(range(1, 1000))
    attack = Attack(place, [Text(0, ("x",)), loop(When(0, FALSE, (Fork(0, children), Join(0, children))))])
    assert attack.code == "program_too_long"
    assert len(calls) <= 4 * 20_000
    assert attack.most < 3 * MAX_SLICE_WORK


def test_bodies_that_are_empty_or_fail_at_once_end(place: ToolPlace) -> None:
    bound(place.machine, work=20_000)
    attack = Attack(place, [loop(loop(loop()))])
    assert attack.code == "program_too_long"
    assert attack.most < MAX_SLICE_WORK + 10
    idle = tuple(Assign(1, "v", ("x",)) for _ in range(2000))
    body: tuple[Op, ...] = (Fork(0, (1,), isolated=True, retries=16), RoleEnd(1), *idle, Join(0, (1,)))
    attack = Attack(place, [Text(0, ("x",)), loop(*body)])
    assert attack.code == "program_too_long"
    assert sum(isinstance(event, BranchRestarted) for event in attack.heard.events) < 60


# Branches


def test_a_fork_makes_way_between_its_children(place: ToolPlace) -> None:
    number, text = 2500, "abcdefg " * 100
    attack = Attack(place, [Text(0, (text,)), Fork(0, tuple(range(1, number + 1))), Text(0, ("!",)), Text(7, ("?",))])
    assert attack.heard.done.texts == {0: text + "!", **dict.fromkeys(range(1, number + 1), text), 7: text + "?"}
    assert attack.num_goes >= 2
    assert attack.most <= MAX_SLICE_WORK + 4


def test_forks_and_barriers_share_values(place: ToolPlace) -> None:
    ops: list[Op] = [*(Assign(0, f"v{index}", ("x",)) for index in range(100)), Fork(0, (1, 2, 3))]
    ops += [Assign(1, "a", (str(index),)) for index in range(50)]
    ops += [Join(0, (1,), "append") for _ in range(50)]
    attack = Attack(place, [*ops, Assign(0, "b", (Ref(1, "v7"), Ref(0, "a")), tell=True)], keep=True)
    assert attack.heard.values[0, "b"].text == "x49"
    assert attack.state is not None
    values = [attack.state.branches[number].values for number in (1, 2, 3)]
    assert len({id(each._before) for each in values}) == 1
    assert all(len(each) >= 100 for each in values)


def test_who_waits_is_not_tried_again_and_again(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two branches go on in turns, while many others wait for what comes last."""
    calls = count_calls(monkeypatch, interpreter, "write")
    number, turns = 50, 100
    ops: list[Op] = [Fork(0, tuple(range(1, number + 3)))]
    many = tuple(Ref(1, "a0") for _ in range(200))
    ops += [Text(branch, (*many, Ref(2, "last"))) for branch in range(3, number + 3)]
    for index in range(turns):
        before = (Ref(2, f"b{index - 1}"),) if index else ("x",)
        ops += [Assign(1, f"a{index}", before), Assign(2, f"b{index}", (Ref(1, f"a{index}"),))]
    attack = Attack(place, [*ops, Assign(2, "last", ("!",))])
    assert attack.heard.done.texts[number + 2] == "x" * 200 + "!"
    assert len(calls) < 6 * turns + 3 * number


def test_cancelling_a_chain_from_its_end_looks_at_each_branch_once(place: ToolPlace) -> None:
    number = 300
    ops: list[Op] = [Text(0, ("x",)), *(Fork(index, (index + 1,)) for index in range(number))]
    attack = Attack(place, [*ops, *(Cancel(branch) for branch in range(number, 0, -1))], keep=True)
    assert sum(isinstance(event, BranchFailed) for event in attack.heard.events) == number
    assert attack.state is not None
    assert attack.state.work < 4 * number


def test_what_was_never_computed_is_kept_only_for_a_timeline(place: ToolPlace) -> None:
    body: tuple[Op, ...] = (Fork(0, (1,)), Text(1, ("unused " * 20,)), Join(0, (1,)))
    attack = Attack(place, [Text(0, ("x",)), loop(*body, turns=50)], keep=True)
    assert attack.state is not None
    assert attack.state.untold == []
    bound(place.machine, tokens=3000)
    place.executor.drop("attack")
    assert Attack(place, [Text(0, ("x",)), loop(*body, turns=50)], trace=True).code == "invalid_value"


# Messages


def test_a_branch_keeps_what_the_template_said(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many other orders of roles others ask for: a new message renders the chat at most twice."""
    turn: tuple[Op, ...] = (RoleBegin(0, "user"), RoleEnd(0))
    place.run([*turn * 30], "mine", keep=True)
    monkeypatch.setattr(chat, "_CACHED_TURNS", 4)
    template = place.engine.tokenizer.chat
    for index in range(8):
        template.role_pieces(tuple("user" if index >> bit & 1 else "assistant" for bit in range(3)), "user")
    calls = count_calls(monkeypatch, template, "_render")
    place.run([*turn, RoleBegin(0, "assistant")], "mine", resume=True)
    assert len(calls) <= 4


def test_messages_that_were_joined_make_way_and_are_charged(place: ToolPlace) -> None:
    ops: list[Op] = [RoleBegin(0, "user"), RoleEnd(0), Fork(0, (1, 2))]
    ops += [Repeat(branch, (RoleBegin(branch, "user"), RoleEnd(branch)), FALSE, 100) for branch in (1, 2)]
    attack = Attack(place, [*ops, Join(0, (1, 2), "append"), RoleBegin(0, "assistant"), RoleEnd(0)], keep=True)
    assert attack.state is not None
    branch = content_of(attack.state.branches[0])
    assert branch.turn is not None
    assert [turn.role for turn in branch.turn.path()] == list(branch.roles) == ["user"] * 201 + ["assistant"]
    assert attack.most <= MAX_SLICE_WORK + 100
    expected = place.engine.tokenizer.chat.role_pieces(("user",) * 201, "assistant")
    assert branch.turn.pieces == expected


def test_what_follows_many_messages_is_found_out_beside_the_engine(
    place: ToolPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[tuple[int, bool]] = []
    after = ChatTemplate.after

    def noted(self: ChatTemplate, turn: Turn, role: str) -> Turn:
        threads.append((turn.depth, threading.current_thread() is threading.main_thread()))
        return after(self, turn, role)

    monkeypatch.setattr(ChatTemplate, "after", noted)
    monkeypatch.setattr(place.engine.tokenizer.chat, "_start", Turn())
    number = costs.MESSAGES_AT_ONCE + 3
    heard = place.run([*(RoleBegin(0, "user"), RoleEnd(0)) * number, RoleBegin(0, "assistant")], keep=True)
    assert threads == [(depth, depth <= costs.MESSAGES_AT_ONCE) for depth in range(number + 1)]
    branch = content_of(place.executor._states["p"].branches[0])
    assert branch.turn is not None and [turn.role for turn in branch.turn.path()] == ["user"] * number + ["assistant"]
    assert heard.done.texts[0] == place.engine.tokenizer.decode(branch.tokens[:], skip_special_tokens=False)
    known = place.run([*(RoleBegin(0, "user"), RoleEnd(0)) * number], "q", namespace="another")
    assert known.done and len(threads) == number + 1


def test_a_template_that_refuses_beside_the_engine_ends_its_program_alone(
    place: ToolPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ChatTemplate, turn: Turn, role: str) -> Turn:
        if turn.depth > costs.MESSAGES_AT_ONCE:
            raise RequestError("the chat template refused the messages", param="messages")
        return after(self, turn, role)

    after = ChatTemplate.after
    monkeypatch.setattr(ChatTemplate, "after", refuse)
    monkeypatch.setattr(place.engine.tokenizer.chat, "_start", Turn())
    error = place.refusal([*(RoleBegin(0, "user"), RoleEnd(0)) * (costs.MESSAGES_AT_ONCE + 2)])
    assert "refused the messages" in error.message
    assert place.run([Text(0, ("x",))], "q").done


# Time

NO = tuple(f"{chr(97 + index % 26)}{chr(97 + index // 26)}" for index in range(64))
LARGE: dict[str, list[Op]] = {
    "100,000 instructions": [Text(0, ("",)) for _ in range(MAX_OPS)],
    "50,000 conditions": [When(0, TRUE) for _ in range(MAX_OPS // 2)],
    "64 patterns": [When(0, Matches("a", r"\w?" * 46 + no)) for no in NO],
    "8,000 values that are skipped": [When(0, FALSE, tuple(Gen(0, "x", GREEDY) for _ in range(8000)))],
    "a block of 8,000": [When(0, TRUE, tuple(Text(0, ("",)) for _ in range(8000)))],
    "a loop of 8,000": [Repeat(0, tuple(Assign(0, "x", ("",)) for _ in range(8000)), TRUE, 1)],
    "4,095 branches": [Text(0, ("x",)), Fork(0, tuple(range(1, 4096))), Join(0, tuple(range(1, 4096)), "append")],
    "4,095 branches in a block": [Text(0, ("x",)), When(0, TRUE, (Fork(0, tuple(range(1, 4096))),))],
    "16,384 parts": [Assign(0, "x", ("a",)), Assign(0, "y", (Ref(0, "x"),) * 16_384)],
    "16,000 terms": [Assign(0, "x", ("a",)), When(0, Every((Compare(Ref(0, "x"), "eq", "a"),) * 5300))],
    "128 samples": [Text(0, ("x" * 1900,)), Gen(0, "g", SamplingParams(max_tokens=2, n=128))],
    "1,000 choices": [Text(0, ("x",)), Select(0, "s", tuple(f"{n:032}" for n in range(1000)), UNCONDITIONAL)],
    "a choice of 131,000 characters": [Text(0, ("x",)), Select(0, "s", ("1" * 131_000,), UNCONDITIONAL)],
}


@pytest.mark.parametrize("ops", LARGE.values(), ids=LARGE)
def test_no_go_takes_long(place: ToolPlace, ops: list[Op]) -> None:
    """Some 20 ms of processor time for an instruction, and for each part of a start; one go may do two of them."""
    gc.collect()
    gc.freeze()
    heard, longest_s = Heard(), 0.0

    def go(call: Callable[[], object]) -> None:
        nonlocal longest_s
        began = time.thread_time()
        call()
        longest_s = max(longest_s, time.thread_time() - began)

    go(lambda: place.executor.run(Program(id="p", ops=tuple(ops)), heard))
    while not heard.over:
        if place.has_calls or place.engine.idle:
            go(place.next_call())
        if not place.engine.idle:
            place.engine.step()
    assert longest_s < 0.15


def test_patterns_that_take_long_to_compile_are_refused() -> None:
    """This one took 70 ms, in which no other thread goes on."""
    with pytest.raises(RequestError, match="more than 48 classes of characters"):
        Pattern(r"\w?" * 338 + "ab")
    assert num_classes(r"\w+\.[^.]*.(?i)\\w") == 4


def test_patterns_are_compiled_between_others(place: ToolPlace) -> None:
    """64 of them held up the engine for five seconds, before any of the program was done."""
    hostile = []
    for index in range(6):
        ops: list[Op] = [When(0, Matches("a", r"\w?" * 46 + f"{no}{index}")) for no in NO]
        hostile.append(place.start(ops, f"p{index}", namespace="hostile"))
    quiet = place.start([Text(0, ("x",)), Gen(0, "g", GREEDY)], "quiet", namespace="quiet")
    while not quiet.over:
        place.make_calls()
        place.engine.step()
    assert quiet.done
    assert not any(heard.over for heard in hostile)
    for index in range(6):
        place.executor.drop(f"p{index}")
    assert all(heard.failed.error.code == "aborted" for heard in hostile)


def test_submissions_of_one_program_stay_in_order(place: ToolPlace) -> None:
    """The second one waits until the first, which takes long to read, is in the queues."""
    long = place.start([*LARGE["64 patterns"], Text(0, ("x",)), Fork(0, (1,))], keep=True)
    after = place.start([Text(1, ("y",))], resume=True)
    assert not long.over and not after.over
    wrong = place.start([Text(9, ("z",))], resume=True)
    place.drive(lambda: long.over and after.over and wrong.over)
    assert long.done
    assert after.done.texts == {0: "x", 1: "xy"}
    assert wrong.failed.error.message.startswith("the program's state is gone")


def test_a_program_that_is_read_can_be_dropped(place: ToolPlace) -> None:
    heard = [place.start(LARGE["64 patterns"], keep=True), place.start([Text(0, ("x",))], resume=True)]
    place.executor.drop("p")
    assert [each.failed.error.code for each in heard] == ["aborted", "aborted"]
    assert place.run([Text(0, ("y",))]).done.texts == {0: "y"}
    while place.has_calls:
        place.next_call()()
    assert place.executor.num_states == 0


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_a_submission_that_is_read_is_dropped_by_its_key(place: ToolPlace, dropped: int) -> None:
    """Those that wait behind it are another's, and go on: the second only if the first has begun its program."""
    heard = [
        place.start(LARGE["64 patterns"], keep=True, key=0),
        place.start([Text(0, ("x",))], resume=True, keep=True, key=1),
        place.start([Text(0, ("y",))], resume=True, keep=True, key=2),
    ]
    assert not any(each.over for each in heard)
    place.executor.drop("p", 3)
    assert not any(each.over for each in heard)
    place.executor.drop("p", dropped)
    assert heard[dropped].failed.error.code == "aborted"
    place.drive(lambda: all(each.over for each in heard))
    for index in {0, 1, 2} - {dropped}:
        if dropped == 0:
            assert heard[index].failed.error.code == "state_not_found"
        else:
            assert heard[index].done


def test_the_time_of_a_submission_ends_while_it_is_read(place: ToolPlace) -> None:
    late = place.start(LARGE["64 patterns"], "late", timeout_s=1.0)
    behind = place.start([Text(0, ("x",))], "late", resume=True)
    quiet = place.start(LARGE["64 patterns"], "quiet")
    place.clock.now += 1.0
    place.drive(lambda: late.over and behind.over and quiet.over)
    assert late.failed.error.code == "generation_timeout"
    assert behind.failed.error.code == "state_not_found"
    assert quiet.done


def test_a_large_constraint_is_read_once(place: ToolPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was encoded for each of 128 samples, in one go: four seconds."""
    calls = count_calls(monkeypatch, compiler, "_key")
    sampling = SamplingParams(max_tokens=2, n=64)
    heard = place.start([Text(0, ("x",)), Gen(0, "g", sampling, Lark("x" * 4_000_000))])
    while not heard.over:
        place.engine.step()
    assert heard.failed.error.code == "grammar_too_complex"
    assert not calls
    place.start([Text(0, ("x",)), Gen(0, "g", sampling, Lark('start: "ab"\n// ' + "x" * 100_000))])
    assert len(calls) == 1
    place.executor.drop("p")


# Several keys


def rounds(place: ToolPlace, over: Callable[[], bool]) -> tuple[int, float]:
    """Makes what is posted until `over`, as if the engine made a step after each round: their number, and the seconds
    that the longest took.
    """
    gc.collect()
    gc.freeze()  # as the engine's process does: no collection goes through what other tests have left
    num_rounds, longest_s = 0, 0.0
    while not over():
        num_rounds += 1
        began = time.thread_time()
        place.make_calls()
        longest_s = max(longest_s, time.thread_time() - began)
    return num_rounds, longest_s


def test_all_programs_together_leave_time_for_steps(place: ToolPlace) -> None:
    ops: list[Op] = [Assign(0, "x", ("y",)), loop(*[Assign(0, "x", ("z",))] * 30)]
    flood = [place.start(ops, f"flood {number}", namespace="flood") for number in range(30)]
    _, longest_s = rounds(place, lambda: any(heard.over for heard in flood))
    assert longest_s < 8 * MAX_SLICE_S  # thirty of them would take a slice each
    for number in range(30):
        place.executor.drop(f"flood {number}")


def test_programs_of_one_key_do_not_hold_up_those_of_another(place: ToolPlace) -> None:
    ops: list[Op] = [Assign(0, "x", ("y",)), loop(*[Assign(0, "x", ("z",))] * 30)]
    flood = [place.start(ops, f"flood {number}", namespace="flood/salt") for number in range(30)]
    quiet = place.start([*ops, Assign(0, "end", ("of it",), tell=True)], "quiet", namespace="quiet")
    rounds(place, lambda: quiet.over)
    assert quiet.values[0, "end"].text == "of it"
    assert not any(heard.over for heard in flood)
    for number in range(30):
        place.executor.drop(f"flood {number}")


def test_long_texts_of_one_key_do_not_hold_up_those_of_another(
    place: ToolPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, order = threading.Event(), list[str]()
    encode = Tokenizer.encode

    def noted(self: Tokenizer, text: str, **options: bool) -> list[int]:
        if len(text) > LONG_TEXT:
            assert gate.wait(10.0)
            order.append(text[0])
        return encode(self, text, **options)

    place.machine._max_tokens = 1 << 20
    monkeypatch.setattr(Tokenizer, "encode", noted)
    heard = [
        place.start([Text(0, ("f" * 5000 + str(number),))], f"flood {number}", namespace="flood")
        for number in range(20)
    ]
    heard.append(place.start([Text(0, ("q" * 5000,))], "quiet", namespace="quiet"))
    gate.set()
    place.drive(lambda: all(each.over for each in heard))
    assert order.index("q") == 1
    encodings = place.machine._encodings
    assert encodings is not None and not encodings._programs._turns._shares
