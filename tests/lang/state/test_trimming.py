"""Conversations are shortened by a policy, and what stays cached is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import bough
from bough import Conversation, KeepLast, MockBackend, Summarise, assistant, function, gen, user
from bough.runtime.protocol.program import Gen
from bough.runtime.protocol.request import Usage

from ...support.tiny_model import write_tiny_model
from ..fakes import FakeBackend, value


@function
def ask(s: Any, question: str) -> None:
    s += user(question) + assistant(gen("answer", max_tokens=6, temperature=0))


def talk(num_turns: int, *, system: bool = True) -> Conversation:
    messages = [{"role": "system", "content": "Be brief."}] if system else []
    for turn in range(num_turns):
        messages += [{"role": "user", "content": f"q{turn}"}, {"role": "assistant", "content": f"a{turn}"}]
    return Conversation(messages)


def contents(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.messages]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bough.LocalBackend]:
    with bough.LocalBackend(str(write_tiny_model(tmp_path_factory.mktemp("tiny"))), num_pages=4096) as backend:
        yield backend


def test_the_system_message_and_the_last_turns_are_kept() -> None:
    short = KeepLast(turns=2).trim(talk(4), backend=MockBackend())
    assert contents(short) == ["Be brief.", "q2", "a2", "q3", "a3"]
    assert short.trimming is not None
    assert [message.content for message in short.trimming.dropped] == ["q0", "a0", "q1", "a1"]
    assert contents(KeepLast(turns=9).trim(talk(2), backend=MockBackend())) == contents(talk(2))
    assert contents(KeepLast(turns=1).trim(talk(2, system=False), backend=MockBackend())) == ["q1", "a1"]


def test_first_turns_stay_too() -> None:
    short = KeepLast(turns=1, first=1).trim(talk(4), backend=MockBackend())
    assert contents(short) == ["Be brief.", "q0", "a0", "q3", "a3"]
    assert contents(KeepLast(turns=3, first=3).trim(talk(4), backend=MockBackend())) == contents(talk(4))


def test_what_comes_before_the_first_question_goes_with_it() -> None:
    messages = [{"role": "text", "content": "Note."}, {"role": "assistant", "content": "Hi!"}]
    greeted = Conversation([*messages, *talk(2, system=False).messages])
    assert contents(KeepLast(turns=1).trim(greeted, backend=MockBackend())) == ["q1", "a1"]
    assert contents(KeepLast(turns=2).trim(greeted, backend=MockBackend())) == contents(greeted)


@pytest.mark.parametrize("limit", [20, 23, 30, 44, 45, 200])
def test_as_many_turns_are_kept_as_have_room(limit: int) -> None:
    backend, whole = MockBackend(), talk(9)
    short = KeepLast(max_tokens=limit).trim(whole, backend=backend)
    assert short.trimming is not None and short.trimming.num_tokens == short.count_tokens(backend) <= limit
    one_more = KeepLast(turns=(len(short.messages) - 1) // 2 + 1).trim(whole, backend=backend)
    assert len(short.messages) == len(whole.messages) or one_more.count_tokens(backend) > limit
    fewer = KeepLast(turns=1, max_tokens=limit).trim(whole, backend=backend)
    assert contents(fewer) == ["Be brief.", "q8", "a8"]


def test_a_history_is_trimmed_only_when_it_is_long() -> None:
    backend, whole = MockBackend(), talk(9)
    length = whole.count_tokens(backend)
    for policy in (KeepLast(turns=1, above_tokens=length), KeepLast(max_tokens=20, above_tokens=length)):
        kept = policy.trim(whole, backend=backend)
        assert contents(kept) == contents(whole)
        assert kept.trimming is not None and kept.trimming.dropped == ()
        assert kept.trimming.num_tokens == kept.trimming.cached_tokens == length
    for policy in (KeepLast(turns=1, above_tokens=length - 1), KeepLast(max_tokens=20, above_tokens=length - 1)):
        assert policy.trim(whole, backend=backend).count_tokens(backend) <= 20
    few = KeepLast(turns=1, max_tokens=20, above_tokens=length - 1).trim(whole, backend=backend)
    assert contents(few) == ["Be brief.", "q8", "a8"]


def test_a_turn_without_room_is_an_error() -> None:
    with pytest.raises(bough.ProgramError, match="has more than 5 tokens: shorten it, or raise max_tokens") as caught:
        KeepLast(max_tokens=5).trim(talk(3), backend=MockBackend())
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.place is not None and caught.value.place.file == __file__


def test_what_is_told_to_be_cached_is_cached(local: bough.LocalBackend) -> None:
    state = ask.after(talk(0)).run("hello", backend=local)
    for question in ("and now?", "more"):
        state = ask.after(state).run(question)
    short = KeepLast(turns=1).trim(state)
    assert short.trimming is not None and len(short.messages) == 3
    system = Conversation(short.messages[:1]).count_tokens(local)
    assert short.trimming.cached_tokens == system > 0
    assert short.trimming.num_tokens == short.count_tokens()
    further = ask.after(short).run("last")
    assert system <= further.usage.cached_tokens < short.trimming.num_tokens
    first = KeepLast(turns=1, first=1).trim(state)
    assert first.trimming is not None and first.trimming.cached_tokens is not None
    assert system < first.trimming.cached_tokens <= ask.after(first).run("x").usage.cached_tokens


def test_a_history_beyond_the_context_is_cut_to_what_has_room(local: bough.LocalBackend) -> None:
    long = Conversation([{"role": "user", "content": "x" * 100}] * 12)
    short = KeepLast(max_tokens=400).trim(long, backend=local)
    assert 1 < len(short.messages) < 5
    assert short.trimming is not None and (short.trimming.num_tokens or 0) <= 400


def test_turns_need_no_tokenizer() -> None:
    backend: Any = FakeBackend(lambda program: iter([bough.Done(texts={0: ""})]))
    short = KeepLast(turns=1).trim(talk(3), backend=backend)
    assert contents(short) == ["Be brief.", "q2", "a2"]
    assert short.trimming is not None and short.trimming.num_tokens is None is short.trimming.cached_tokens
    loaded = KeepLast(turns=1).trim(talk(3))  # there is no backend at all
    assert contents(loaded) == contents(short) and loaded.trimming == short.trimming
    with pytest.raises(bough.ProgramError, match="there is no backend to run on"):
        KeepLast(max_tokens=50).trim(talk(3))
    for policy in (KeepLast(max_tokens=50), KeepLast(turns=1, above_tokens=50)):
        with pytest.raises(bough.ProgramError, match="FakeBackend has no tokenizer, so it cannot count"):
            policy.trim(talk(3), backend=backend)


def test_a_summary_takes_the_place_of_old_turns() -> None:
    backend = MockBackend({"summary": " All was said. "})
    short = Summarise(turns=1, prompt="Sum up.", max_tokens=50, temperature=0.5).trim(talk(3), backend=backend)
    assert contents(short) == ["Be brief.", "Sum up.", "All was said.", "q2", "a2"]
    assert [message.role for message in short.messages][1:3] == ["user", "assistant"]
    (asked,) = [op for program in backend.requests for op in program.ops if isinstance(op, Gen)]
    assert (asked.sampling.max_tokens, asked.sampling.temperature) == (50, 0.5)
    assert short.trimming is not None and short.trimming.usage.completion_tokens == 4
    assert [message.content for message in short.trimming.dropped] == ["q0", "a0", "q1", "a1"]
    assert short.trimming.cached_tokens == Conversation(short.messages[:1]).count_tokens(backend)
    again = Summarise(turns=1, prompt="Sum up.").trim(short, backend=backend)
    assert contents(again) == ["Be brief.", "Sum up.", "All was said.", "q2", "a2"]


@pytest.mark.parametrize(("above", "num_messages"), [(10, 5), (10_000, 7)])
def test_a_summary_is_made_only_of_what_is_long(above: int, num_messages: int) -> None:
    backend = MockBackend()
    short = Summarise(turns=1, above_tokens=above).trim(talk(3), backend=backend)
    assert len(short.messages) == num_messages
    assert len(Summarise(turns=5).trim(talk(3), backend=backend).messages) == 7


def test_a_summary_reads_the_cache(local: bough.LocalBackend) -> None:
    state = ask.after(talk(0)).run("hello", backend=local)
    state = ask.after(state).run("and now?")
    short = Summarise(turns=1, max_tokens=4).trim(state)
    assert short.trimming is not None
    assert short.trimming.usage.cached_tokens > Conversation(short.messages[:1]).count_tokens(local)


def test_a_summary_that_fails_is_an_error_with_its_line() -> None:
    backend = MockBackend({"summary": lambda text, name: 1 / 0})
    with pytest.raises(bough.ProgramError, match="there is no answer to 'summary'") as caught:
        Summarise(turns=1).trim(talk(3), backend=backend)
    assert caught.value.place is not None and caught.value.place.file == __file__


def test_on_an_event_loop() -> None:
    backend = MockBackend()

    @function
    def inside(s: Any) -> None:
        s += ask.after(KeepLast(turns=1).trim(talk(3)))("q")["answer"]

    async def main() -> None:
        assert len((await KeepLast(turns=1).atrim(talk(3), backend=backend)).messages) == 3
        with pytest.raises(bough.ProgramError, match=r"this would block the event loop: use `await policy\.atrim"):
            KeepLast(turns=1).trim(talk(3), backend=backend)
        assert (await inside.arun(backend=backend)).text() == "(answer)"

    with bough.use_backend(backend):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KeepLast(), "KeepLast needs turns=..., max_tokens=... or both"),
        (lambda: KeepLast(turns=0), "turns must be a whole number of at least 1, got 0"),
        (lambda: KeepLast(turns=True), "turns must be a whole number"),
        (lambda: KeepLast(max_tokens=0), "max_tokens must be a whole number of at least 1"),
        (lambda: KeepLast(above_tokens=10), "KeepLast needs turns=..., max_tokens=... or both"),
        (lambda: KeepLast(turns=1, above_tokens=0), "above_tokens must be a whole number of at least 1"),
        (lambda: KeepLast(turns=1, first=-1), "first must be a whole number of at least 0"),
        (lambda: Summarise(-1), "turns must be a whole number of at least 0"),
        (lambda: Summarise(above_tokens=0), "above_tokens must be a whole number of at least 1"),
        (lambda: Summarise(temperature=-1.0), "temperature"),
    ],
)
def test_wrong_policies_are_refused(make: Any, message: str) -> None:
    with pytest.raises(bough.RequestError, match=message) as caught:
        make()
    assert f"{__file__}:" in str(caught.value)


def test_the_usage_of_a_summary_is_that_of_the_api() -> None:
    told = value(0, "summary", "Short.", usage=Usage(prompt_tokens=7, completion_tokens=2))
    backend: Any = FakeBackend(lambda program: iter([told, bough.Done(texts={0: ""})]))
    short = Summarise(turns=1).trim(talk(3), backend=backend)
    assert short.trimming is not None and short.trimming.usage.prompt_tokens == 7
    assert contents(short)[2] == "Short."
