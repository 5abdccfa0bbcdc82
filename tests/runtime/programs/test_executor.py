"""Programs beside the scheduler: what comes of one does not depend on how it is cut, batched or interleaved."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from bough.runtime.programs import engine_machine
from bough.runtime.programs.validate import MAX_BRANCHES, MAX_OPS
from bough.runtime.protocol.program import (
    BranchRestarted,
    Delta,
    Fork,
    Gen,
    Join,
    Op,
    Ref,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    Value,
)
from bough.runtime.protocol.request import Request
from bough.runtime.protocol.sampling_params import SamplingParams

from .oracle import EOS, Oracle, assert_all_free, drive, random_program
from .place import EVERYTHING, GREEDY, Place

BIAS = {EOS: 4.0, ord("e"): 4.0}


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.executor.close()
    assert made.executor.num_states == 0
    assert_all_free(made.engine)
    made.engine.close()


def cuts(ops: list[Op], lengths: Iterator[int]) -> list[list[Op]]:
    """`ops` in stretches."""
    parts, start = [], 0
    while start < len(ops):
        stop = start + next(lengths)
        parts.append(ops[start:stop])
        start = stop
    return parts


def in_stretches(place: Place, parts: list[list[Op]]) -> tuple[dict, dict, dict]:
    """Each stretch once the one before has ended."""
    texts: dict[tuple[int, str], str] = {}
    for index, part in enumerate(parts):
        heard = place.run(part, keep=True, resume=index > 0)
        texts |= heard.texts
    return texts, heard.done.texts, place.tokens()


def overlapping(place: Place, parts: list[list[Op]], seed: int) -> tuple[dict, dict, dict]:
    """Stretches that follow while those before them are still running."""
    rng = random.Random(seed)
    all_heard = []
    for index, part in enumerate(parts):
        all_heard.append(place.start(part, keep=True, resume=index > 0))
        for _ in range(rng.randrange(4)):
            place.engine.step()
    drive(place.engine)
    texts = {key: text for heard in all_heard for key, text in heard.texts.items()}
    assert all(heard.done for heard in all_heard)
    last = place.run([Text(0, ("",))], keep=True, resume=True)
    return texts, last.done.texts, place.tokens()


def whole(place: Place, ops: list[Op]) -> tuple[dict, dict, dict]:
    heard = place.run(ops, keep=True)
    return heard.texts, heard.done.texts, place.tokens()


def test_everything_at_once_and_bit_by_bit() -> None:
    """A program of forks, references, joins and roles: whole, op by op, in stretches, overlapping, in tiny batches."""
    results = []
    for number, settings in enumerate(({}, {"max_batch_tokens": 16, "max_num_seqs": 2}, {"page_size": 4})):
        place = Place(**settings)
        results.append(whole(place, EVERYTHING))
        place.executor.drop("p")
        results.append(in_stretches(place, cuts(EVERYTHING, iter(lambda: 1, 0))))
        place.executor.drop("p")
        results.append(overlapping(place, cuts(EVERYTHING, iter(lambda: 3, 0)), number))
        place.engine.close()
    assert all(result == results[0] for result in results)
    texts, branches, tokens = results[0]
    assert len(texts) == 3 * 4 + 3
    assert branches[0].count("<|im_start|>") == 3
    assert branches[2] in branches[0]
    assert tokens[1][: len("<|im_start|>")] != tokens[1][:1]  # several tokens were kept


def test_everything_equals_the_interpreter() -> None:
    ops = [*EVERYTHING[:-2], RoleEnd(0)]
    place = Place()
    texts, branches, tokens = whole(place, ops)
    expected = Oracle().run(ops)
    assert texts == expected.values
    assert branches == expected.texts
    assert tokens == {branch: copy.tokens for branch, copy in expected.branches.items()}
    place.engine.close()


@pytest.mark.parametrize("seed", range(32))
def test_random_programs_equal_the_oracle(seed: int) -> None:
    ops = random_program(seed)
    expected = Oracle(BIAS).run(ops)
    wanted = expected.values, expected.texts, {branch: copy.tokens for branch, copy in expected.branches.items()}
    rng = random.Random(seed)
    place = Place(max_batch_tokens=rng.choice([8, 512]), max_num_seqs=rng.choice([1, 3, 64]))
    place.model.bias = BIAS
    assert whole(place, ops) == wanted
    place.executor.drop("p")
    parts = cuts(ops, iter(lambda: rng.randrange(1, 9), 0))
    assert in_stretches(place, parts) == wanted
    place.executor.drop("p")
    assert overlapping(place, parts, seed) == wanted
    place.executor.close()
    assert_all_free(place.engine)
    place.engine.close()


def test_a_join_takes_what_a_child_had_then(place: Place) -> None:
    """A child that goes on while its parent is busy does not slip more into the join."""
    ops: list[Op] = [
        Text(0, ("a",)),
        Fork(0, (1,)),
        Gen(0, "slow", GREEDY),
        Text(1, ("-early",)),
        Join(0, (1,), "append"),
        Text(1, ("-late",)),
    ]
    done = place.run(ops).done
    assert done.texts[0].endswith("-early")
    assert done.texts[1] == "a-early-late"


def test_a_join_takes_the_open_message_of_its_child(place: Place) -> None:
    ops: list[Op] = [
        RoleBegin(0, "user"),
        Fork(0, (1,)),
        Text(1, ("hi",)),
        RoleEnd(1),
        RoleBegin(1, "assistant"),
        Join(0, (1,), "append"),
        Text(0, ("yes",)),
        RoleEnd(0),
        Fork(0, (2,)),
        Join(0, (2,), "append"),
        RoleBegin(0, "user"),
    ]
    assert place.run(ops).done.texts[0] == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\n"
    )


def test_what_ends_an_answer_is_not_said_twice(place: Place) -> None:
    """The end token that the model gave is no part of the branch: the template closes the message."""
    place.model.bias = {EOS: 100.0}
    place.run([RoleBegin(0, "assistant"), Gen(0, "x", GREEDY), RoleEnd(0)], keep=True)
    assert place.tokens()[0].count(EOS) == 1


def test_tokens_stay_as_the_model_ran_them(place: Place) -> None:
    """Half a character at the end of a generation is not re-encoded as a replacement character."""
    place.model.bias = {0xE2: 100.0}
    heard = place.run([Text(0, ("x",)), Gen(0, "half", SamplingParams(max_tokens=2, temperature=0.0))], keep=True)
    assert heard.texts == {(0, "half"): "\ufffd\ufffd"}
    assert place.tokens()[0] == [ord("x"), 0xE2, 0xE2]
    assert heard.streamed(0, "half") == "\ufffd\ufffd"


def test_references_to_a_branch_that_has_not_begun_are_waited_for(place: Place) -> None:
    ops: list[Op] = [
        Text(0, ("x",)),
        Fork(0, (1,)),
        Gen(0, "slow", GREEDY),
        Fork(0, (2,)),
        Text(1, ("so ", Ref(2, "slow"))),  # inherited: branch 2 has no instruction of its own
    ]
    heard = place.run(ops)
    assert heard.done.texts[1] == "xso " + heard.texts[0, "slow"]


DEADLOCKS: dict[str, list[Op]] = {
    "two that wait for each other": [
        Text(0, ("x",)),
        Fork(0, (1, 2)),
        Text(1, (Ref(2, "b"),)),
        Gen(1, "a"),
        Text(2, (Ref(1, "a"),)),
        Gen(2, "b"),
    ],
    "a join of a branch that never begins": [
        Text(0, ("x",)),
        Fork(0, (1,)),
        Text(1, (Ref(2, "b"),)),
        Fork(1, (2,)),
        Gen(2, "b"),
        Join(0, (2,)),
    ],
    "a parent that waits for its child's child": [
        Text(0, ("x",)),
        Fork(0, (1,)),
        Text(0, (Ref(1, "late"),)),
        Text(1, (Ref(0, "never"),)),
        Gen(1, "late"),
        Gen(0, "never"),
    ],
}


@pytest.mark.parametrize("ops", DEADLOCKS.values(), ids=DEADLOCKS.keys())
def test_a_deadlock_fails(place: Place, ops: list[Op]) -> None:
    failed = place.start(ops).failed
    assert failed.error.code == "invalid_program"
    assert failed.index is not None
    assert ops[failed.index].branch == failed.branch
    assert place.executor.num_states == 0
    assert place.run([Text(0, ("again",))]).done.texts == {0: "again"}  # the id is free


def test_a_deadlock_behind_a_generation_fails_once_that_has_ended(place: Place) -> None:
    ops = DEADLOCKS["two that wait for each other"]
    heard = place.start([ops[0], Gen(0, "first", GREEDY), *ops[1:]])
    assert not heard.over
    drive(place.engine)
    assert heard.failed.error.code == "invalid_program"
    assert (0, "first") in heard.texts


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([], "1 to"),
        ([Text(0, ("x",))] * (MAX_OPS + 1), "1 to"),
        ([Text(1, ("x",))], "branch 1, which does not exist"),
        ([Fork(0, (1, 1))], "forks branch 1, which exists"),
        ([Fork(0, (0,))], "forks branch 0, which exists"),
        ([Fork(0, (1,)), Text(2, ("x",))], "instruction 1 is for branch 2"),
        ([Join(0, (1,))], "joins branch 1"),
        ([Join(0, (0,))], "joins branch 0"),
        ([Fork(0, tuple(range(1, MAX_BRANCHES + 1)))], "branches at most"),
    ],
)
def test_what_is_not_well_formed_is_refused(place: Place, ops: list[Op], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        place.start(ops)
    assert caught.value.param == "ops"  # type: ignore[attr-defined]
    assert (place.executor.num_states, place.executor.num_programs) == (0, 0)


def test_a_refused_stretch_leaves_the_state_as_it_was(place: Place) -> None:
    place.run([Text(0, ("x",))], keep=True)
    with pytest.raises(ValueError, match="which does not exist"):
        place.start([Fork(0, (1,)), Text(1, ("y",)), Text(7, ("z",))], resume=True)
    assert place.run([Fork(0, (1,)), Text(0, ("!",))], resume=True).done.texts == {0: "x!", 1: "x"}


@pytest.mark.parametrize(
    ("op", "code", "param"),
    [
        (Text(0, (Ref(0, "nothing"),)), "invalid_value", "ops"),
        (Text(0, (Ref(9, "nothing"),)), "invalid_value", "ops"),
        (RoleEnd(0), "invalid_value", "role"),
        (RoleBegin(0, "narrator"), "invalid_value", "messages"),
        (Select(0, "s", ()), "invalid_value", "choices"),
        (Select(0, "s", ("a", "")), "invalid_value", "choices"),
        (Gen(0, "g", SamplingParams(max_tokens=4000)), "context_length_exceeded", "prompt"),
        (Gen(0, "g", SamplingParams(stop_token_ids=(999,))), "invalid_token_id", "stop_token_ids"),
    ],
)
def test_an_instruction_that_cannot_be_done_fails_by_name(place: Place, op: Op, code: str, param: str) -> None:
    heard = place.start([Text(0, ("x",)), op])
    assert (heard.failed.error.code, heard.failed.error.param) == (code, param)
    assert (heard.failed.branch, heard.failed.index) == (0, 1)


@pytest.mark.parametrize("op", [Gen(0, "g"), Select(0, "s", ("a", "b"))])
def test_nothing_can_be_asked_of_an_empty_branch(place: Place, op: Op) -> None:
    assert place.start([op]).failed.error.code == "empty_prompt"


def test_samples(place: Place) -> None:
    sampling = SamplingParams(max_tokens=5, temperature=1.0, seed=3, n=4)
    heard = place.run([Text(0, ("x",)), Gen(0, "g", sampling), Text(0, ("!",))])
    value = heard.values[0, "g"]
    assert value.samples is not None
    assert len(value.samples) == 4
    assert len(set(value.samples)) > 1
    assert value.samples[0] == value.text == heard.streamed(0, "g")
    assert heard.done.texts[0] == f"x{value.text}!"
    assert heard.done.usage.completion_tokens == 20
    single = place.run([Text(0, ("x",)), Gen(0, "g", SamplingParams(max_tokens=5, temperature=1.0, seed=3))])
    assert single.values[0, "g"].text == value.text
    assert single.values[0, "g"].samples is None
    assert single.done.requests == 1


def test_log_probabilities_are_asked_of_the_first_sample_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    submit = place.engine.submit

    def heard(request: Request, *args: Any, **options: Any) -> int:
        asked.append(request.sampling.logprobs)
        return submit(request, *args, **options)

    sampling = SamplingParams(max_tokens=9, temperature=1.0, seed=3, n=4, logit_bias=BIAS)
    plain = place.run([Text(0, ("x",)), Gen(0, "g", sampling)]).values[0, "g"]
    monkeypatch.setattr(place.engine, "submit", heard)
    told = msgspec.structs.replace(sampling, logprobs=2)
    value = place.run([Text(0, ("x",)), Gen(0, "g", told)]).values[0, "g"]
    assert asked == [2, None, None, None]
    assert value.samples == plain.samples
    one = msgspec.structs.replace(told, n=1)
    assert value.logprobs == place.run([Text(0, ("x",)), Gen(0, "g", one)]).values[0, "g"].logprobs


@pytest.mark.parametrize("n", [1, 3])
def test_deltas_have_the_log_probabilities_of_their_tokens(place: Place, n: int) -> None:
    """Those of text that is held back, as what could become a stop, come with that, or with the value."""
    sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=3, n=n, logprobs=1, stop=("zq",), logit_bias=BIAS)
    heard = place.run([Text(0, ("x",)), Gen(0, "g", sampling), Gen(0, "h", GREEDY)])
    value, deltas = heard.values[0, "g"], [event for event in heard.events if isinstance(event, Delta)]
    assert value.logprobs
    told = [entry for delta in deltas if delta.name == "g" for entry in delta.logprobs]
    assert 0 < len(told) <= len(value.logprobs) and told == list(value.logprobs[: len(told)])
    for delta in deltas:
        assert delta.token_texts.keys() == {
            token for entry in delta.logprobs for token in (entry.token, *(other for other, _ in entry.top))
        }
    assert not any(delta.logprobs for delta in deltas if delta.name == "h")
    assert all(delta.token_texts.items() <= value.token_texts.items() for delta in deltas if delta.name == "g")


def test_a_delta_without_log_probabilities_is_written_as_ever() -> None:
    assert msgspec.json.encode(Delta(0, "x", "y")) == b'{"type":"delta","branch":0,"name":"x","text":"y"}'


def test_a_text_that_is_said_again_is_not_tokenised_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are tokens shared between programs, nor does one namespace know what is said in another."""
    encode, said = place.engine.tokenizer.encode, []

    def count(text: str, *, special: bool = False) -> list[int]:
        said.append(text)
        return encode(text, special=special)

    monkeypatch.setattr(place.engine.tokenizer, "encode", count)
    ops: list[Op] = [Text(0, ("Be brief.",)), Gen(0, "g", GREEDY), Text(0, ("Be brief.",))]
    tokens = []
    for program_id in ("first", "second"):
        place.run(ops, program_id, keep=True)
        tokens.append(place.tokens(program_id))
        place.executor.drop(program_id)
    assert said.count("Be brief.") == 1
    assert tokens[0] == tokens[1]
    place.run(ops, "third", namespace="another")
    assert said.count("Be brief.") == 2


def test_without_deltas_values_are_the_same(place: Place) -> None:
    with_deltas, without = (place.run(EVERYTHING, deltas=deltas) for deltas in (True, False))
    assert with_deltas.values.keys() == without.values.keys()
    assert with_deltas.texts == without.texts
    assert with_deltas.done.texts == without.done.texts
    assert sum(isinstance(event, Delta) for event in with_deltas.events) > 20
    assert [event.text for event in without.events if isinstance(event, Delta)] == [""]  # it has begun


def test_without_deltas_what_had_come_of_a_value_is_told_when_it_ends_early(place: Place) -> None:
    """Tokens are told of the generation that fails, and of others that run then; not of those that were done."""
    endless = SamplingParams(max_tokens=300, temperature=0.0, ignore_eos=True)
    ops: list[Op] = [
        Text(0, ("Say ",)),
        Fork(0, (1, 2)),
        Gen(1, "done", GREEDY),
        Gen(1, "x", SamplingParams(max_tokens=300, temperature=0.0, ignore_eos=True), timeout_s=5.0),
        Gen(2, "y", endless),
    ]
    heard = place.start(ops, deltas=False)
    for _ in range(20):
        place.engine.step()
    assert [type(event) for event in heard.events] == [Delta, Value]
    place.clock.now += 6.0
    drive(place.engine)
    assert heard.failed.error.code == "generation_timeout"
    assert heard.streamed(1, "done") == ""
    whole = place.run([Text(0, ("Say ",)), Gen(0, "y", endless)], "q").texts[0, "y"]
    assert 10 <= len(heard.streamed(2, "y")) < len(whole)
    assert whole.startswith(heard.streamed(2, "y"))
    assert len(heard.streamed(1, "x")) >= 5


@pytest.mark.parametrize("seed", range(8))
def test_without_deltas_text_that_a_sample_has_is_told_when_another_fails(seed: int, place: Place) -> None:
    """Also of one that had ended."""
    both = SamplingParams(max_tokens=300, temperature=0.8, n=2, seed=seed, logit_bias={EOS: 6.0})
    ops: list[Op] = [Text(0, ("Say ",)), Gen(0, "x", both)]
    whole = place.run(ops, "q", deltas=False).values[0, "x"]
    heard = place.start(ops, deltas=False)
    branch = place.executor._states["p"].branches[0]
    while len(branch.running) == 2:
        place.engine.step()
    if heard.over:  # both ended in one step
        return
    place.model.fails = 1
    drive(place.engine)
    assert heard.failed.error.code == "internal_error"
    assert whole.text.startswith(heard.streamed(0, "x"))
    assert heard.streamed(0, "x")


def test_a_branch_that_begins_anew_hears_nothing_of_the_attempt_before(place: Place) -> None:
    """Not of what ended in the very step in which another of its generations failed either."""
    ops: list[Op] = [
        Text(0, ("Say ",)),
        Fork(0, (1,), isolated=True, retries=1),
        Gen(1, "x", SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True, n=2, seed=1)),
    ]
    heard = place.start(ops, deltas=False)
    for _ in range(10):
        place.engine.step()
    place.model.fails = 1
    drive(place.engine)
    kinds = [type(event) for event in heard.events]
    again = kinds.index(BranchRestarted)
    assert "".join(event.text for event in heard.events[:again] if isinstance(event, Delta))
    assert "".join(event.text for event in heard.events[again:] if isinstance(event, Delta)) == ""
    assert heard.values[1, "x"].text


def test_a_value_has_so_many_log_probabilities_at_most(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """They went to the server in one message, which held it up as a whole."""
    monkeypatch.setattr(engine_machine, "MAX_VALUE_LOGPROBS", 12)
    sampling = SamplingParams(max_tokens=4, temperature=0.0, logprobs=2, ignore_eos=True)
    assert len(place.run([Text(0, ("a",)), Gen(0, "x", sampling)]).values[0, "x"].logprobs or ()) == 4
    for more in ({"max_tokens": 5}, {"max_tokens": 50}, {"logprobs": 3}):
        heard = place.run([Text(0, ("a",)), Gen(0, "x", msgspec.structs.replace(sampling, **more))])
        assert (heard.failed.error.code, heard.failed.error.param) == ("result_too_long", "logprobs")
        assert heard.failed.usage.completion_tokens >= 4
    assert place.engine.idle
