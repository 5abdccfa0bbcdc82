"""Programs over Anthropic's Messages API, before a scripted one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from bough.lang.api import assistant, function, gen, select, system, user
from bough.lang.backends.apis.anthropic import Anthropic
from bough.lang.diagnostics.errors import ProgramError, UnsupportedError

from .fake_api import Answer, Api, Exchange, serving


@pytest.fixture
def api() -> Iterator[Any]:
    with ExitStack() as stack:

        def start(answer: Answer, **options: Any) -> tuple[Api, Anthropic]:
            server = stack.enter_context(serving(answer))
            backend = stack.enter_context(Anthropic("m", base_url=server.url, api_key="k", max_retries=2, **options))
            backend._client._pause_s = 0.001
            return server, backend

        yield start


def saying(*texts: str, **fields: Any) -> Answer:
    return lambda exchange: exchange.message(texts[min(exchange.number, len(texts) - 1)], **fields)


def chat(**options: Any) -> Any:
    return function(lambda s: s.__iadd__(user("?") + assistant(gen("x", **options))))


@function
def talk(s: Any) -> None:
    s += system("Be brief.")
    s += user("One?") + assistant(gen("one", max_tokens=9))
    s += user("Two?") + assistant(gen("two", stop=["\n", "."]))


def test_the_system_message_goes_with_every_request(api: Any) -> None:
    server, backend = api(saying("eins", "zwei\ndrei"))
    state = talk.run(backend=backend, temperature=0.5)
    assert (state["one"], state["two"]) == ("eins", "zwei")
    first, second = server.bodies
    assert [body["system"] for body in server.bodies] == ["Be brief."] * 2
    assert first["messages"] == [{"role": "user", "content": "One?"}]
    assert second["messages"][1:] == [{"role": "assistant", "content": "eins"}, {"role": "user", "content": "Two?"}]
    assert (first["max_tokens"], first["temperature"]) == (9, 0.5)
    assert (second["max_tokens"], second["stop_sequences"]) == (128, ["."])  # white space is none there
    path, head = server.heads[0]
    assert (path, head["x-api-key"], head["anthropic-version"]) == ("/v1/messages", "k", "2023-06-01")
    assert (state.usage.prompt_tokens, state.usage.cached_tokens) == (14, 4)
    assert backend.calls == 2


def test_an_assistant_message_is_begun_for_the_model(api: Any) -> None:
    server, backend = api(saying(" thank you"))
    body = function(lambda s: s.__iadd__(user("Write.") + assistant("Dear Anna, " + gen("thanks"))))
    state = body.run(backend=backend)
    assert server.bodies[0]["messages"][-1] == {"role": "assistant", "content": "Dear Anna,"}
    assert state.messages()[-1]["content"] == "Dear Anna, thank you"


def test_why_it_ended_is_told(api: Any) -> None:
    _, backend = api(saying("abc", reason="stop_sequence", sequence="x"))
    info = (
        function(lambda s: s.__iadd__(user("?") + assistant(gen("x", stop="x"))))
        .run(backend=backend)
        .get_meta_info("x")
    )
    assert info["finish_reason"] == {"type": "stop", "matched": "x"}
    _, backend = api(saying("abc", reason="max_tokens"))
    info = chat().run(backend=backend).get_meta_info("x")
    assert info["finish_reason"]["type"] == "length"


def test_samples_are_requests_of_their_own(api: Any) -> None:
    _, backend = api(saying("a", "b", "c"))
    assert chat(n=3).run(backend=backend)["x"] == [
        "a",
        "b",
        "c",
    ]


def test_constraints_and_choices_are_asked_for(api: Any) -> None:
    server, backend = api(saying("It is 7.", "7", "Good!"))
    state = function(lambda s: s.__iadd__(user("?") + assistant(gen("n", int)))).run(backend=backend)
    assert state["n"] == 7
    assert "regular expression" in server.bodies[0]["messages"][0]["content"]
    chosen = function(lambda s: s.__iadd__(user("?") + assistant(select("x", ["bad", "good"])))).run(backend=backend)
    assert chosen["x"] == "good"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda s: s.__iadd__("text" + gen("x")), "put the text into messages"),
        (lambda s: s.__iadd__(user("?") + assistant(gen("x", seed=1))), "no option seed"),
        (lambda s: s.__iadd__(user("?") + assistant(gen("x", logprobs=1))), "no option logprobs"),
        (lambda s: s.__iadd__(user("?") + assistant(gen("x", temperature=1.5))), "temperatures up to 1"),
    ],
)
def test_what_the_api_cannot_do_is_refused(api: Any, body: Any, message: str) -> None:
    server, backend = api(saying("x"))
    with pytest.raises(UnsupportedError, match=message):
        function(body).run(backend=backend)
    assert not server.bodies


def test_overload_is_tried_again(api: Any) -> None:
    def answer(exchange: Exchange) -> None:
        if exchange.number == 0:
            exchange.refuse(529, "overloaded")
        elif exchange.number == 1:
            exchange.begin()
            exchange.event({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
            exchange.end()
        else:
            exchange.message("fine")

    _, backend = api(answer)
    assert talk.run(backend=backend)["one"] == "fine"


YOUNG, OLD = '{"age": 3}', '{"age": 36}'


class Adult(BaseModel):
    age: int = Field(ge=0)

    @field_validator("age")
    @classmethod
    def of_age(cls, age: int) -> int:
        if age < 18:
            raise ValueError("must be at least 18")
        return age


def test_a_value_that_is_not_right_is_asked_for_again(api: Any) -> None:
    server, backend = api(saying(YOUNG, OLD, "You are welcome."))

    def body(s: Any) -> None:
        s += system("Be brief.")
        s += user("Who?") + assistant(gen("person", Adult, retries=2))
        s += user("Thanks.") + assistant(gen("end"))

    state = function(body).run(backend=backend)
    assert (state["person"], state["end"], backend.calls) == (Adult(age=36), "You are welcome.", 3)
    _, again, last = (body["messages"] for body in server.bodies)
    assert [message["role"] for message in again] == ["user", "assistant", "user"]
    assert again[1]["content"] == YOUNG
    assert again[2]["content"].startswith("This answer is not right: age: must be at least 18\nAnswer again.")
    assert "JSON Schema" in again[2]["content"]
    assert [message["content"] for message in last] == ["Who?", OLD, "Thanks."]
    assert [body["system"] for body in server.bodies] == ["Be brief."] * 3


def test_what_an_answer_begins_with_is_begun_again(api: Any) -> None:
    server, backend = api(saying(" 3", " 36"))
    age = gen("age", int, check=lambda age: age >= 18, retries=1)
    state = function(lambda s: s.__iadd__(user("?") + assistant("Age: " + age + "."))).run(backend=backend)
    assert state.messages()[-1]["content"] == "Age: 36."
    begun = [body["messages"][-1] for body in server.bodies]
    assert begun == [{"role": "assistant", "content": "Age:"}] * 2
    assert server.bodies[1]["messages"][1] == {"role": "assistant", "content": "Age: 3"}


def test_branches_ask_again_each_for_itself(api: Any) -> None:
    def answer(exchange: Exchange) -> None:
        told = exchange.body["messages"]
        exchange.message(OLD if len(told) > 1 or "old" in told[0]["content"] else YOUNG)

    def body(s: Any) -> None:
        s += system("Be brief.")
        branches = s.fork(3)
        branches += lambda i: user(("young?", "old?", "young?")[i]) + assistant(gen("p", Adult, retries=1))
        branches.join()

    server, backend = api(answer)
    state = function(body).run(backend=backend)
    assert [one.age for one in state["p"]] == [36] * 3
    assert len(server.bodies) == 5


def test_after_the_last_attempt_the_api_is_left_alone(api: Any) -> None:
    server, backend = api(saying(YOUNG))
    with pytest.raises(ProgramError, match="rejected in 3 attempts: age: must be at least 18") as caught:
        function(lambda s: s.__iadd__(user("?") + assistant(gen("p", Adult, retries=2)))).run(backend=backend)
    assert (caught.value.code, len(server.bodies)) == ("invalid_output", 3)


def cut(*events: Any) -> Answer:
    def answer(exchange: Exchange) -> None:
        exchange.begin()
        for event in events:
            exchange.event(event)
        exchange.end()

    return answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (cut({"type": "message_start", "message": {}}), "ended in the middle"),
        (cut({"type": "message_stop"}), "did not end"),
        (cut("{"), "event that is not one"),
        (cut({"type": "message_delta", "delta": {"stop_reason": "refusal"}}), "refused to answer"),
    ],
)
def test_what_is_no_answer_is_an_error(api: Any, answer: Answer, message: str) -> None:
    _, backend = api(answer)
    with pytest.raises(ProgramError, match=message):
        talk.run(backend=backend)
