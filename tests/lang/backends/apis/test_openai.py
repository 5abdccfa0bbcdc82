"""Programs over an API of OpenAI's form, before a scripted one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bough.lang.api import assistant, function, gen, select, user
from bough.lang.backends.apis.openai import OpenAI
from bough.lang.backends.mock import MockBackend
from bough.lang.diagnostics.errors import ProgramError, UnsupportedError
from bough.runtime.programs.executor import Executor
from bough.runtime.protocol.condition import Compare, Ref
from bough.runtime.protocol.program import (
    Delta,
    Done,
    Gen,
    Program,
    ProgramEvent,
    Repeat,
    RoleBegin,
    RoleEnd,
    Text,
    Value,
)
from bough.runtime.protocol.sampling_params import SamplingParams

from .api_programs import capital, completed
from .fake_api import Exchange, saying

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


# Requests


def test_messages_go_to_chats_and_usage_comes_back(api: Any) -> None:
    server, backend = api(saying("Paris. It is big."))
    state = capital.run("France", backend=backend, temperature=0.5, seed=3, frequency_penalty=0.5)
    assert state["city"] == "Paris"
    assert (state.usage.prompt_tokens, state.usage.cached_tokens, state.usage.completion_tokens) == (7, 3, 4)
    (body,) = server.bodies
    assert server.heads[0][0] == "/v1/chat/completions"
    assert server.heads[0][1]["Authorization"] == "Bearer k"
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "The capital of France?"},
    ]
    wanted = {
        "model": "m",
        "max_tokens": 8,
        "temperature": 0.5,
        "seed": 3,
        "frequency_penalty": 0.5,
        "stop": [".", "\n"],
    }
    assert {name: body[name] for name in wanted} == wanted
    assert not body.keys() & {"top_k", "response_format", "continue_final_message"}
    assert backend.calls == 1


def test_text_without_messages_is_completed_and_goes_on_with_what_came(api: Any) -> None:
    server, backend = api(saying(" three", " four! five"))
    state = completed.run(backend=backend)
    assert (state["next"], state["last"]) == (" three", " four")
    assert server.paths == ["/v1/completions"] * 2
    assert [body["prompt"] for body in server.bodies] == ["One, two,", "One, two, three and"]


def test_the_kind_of_model_can_be_said(api: Any) -> None:
    _, chat = api(saying("x"), is_chat_model=True)
    with pytest.raises(UnsupportedError, match="put the text into messages"):
        completed.run(backend=chat)
    server, completing = api(saying("x"), is_chat_model=False)
    with pytest.raises(UnsupportedError, match="messages cannot be sent"):
        capital.run("France", backend=completing)
    assert not server.bodies


def test_samples_and_log_probabilities(api: Any) -> None:
    top = [{"token": "a", "logprob": -0.5, "token_id": 4}]
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "token_id": 4, "top_logprobs": top}]}

    def answer(exchange: Exchange) -> None:
        exchange.begin()
        for index in (1, 0):
            delta = {"delta": {"content": f"a{index}"}, "logprobs": logprobs}
            exchange.event({"choices": [{"index": index, "finish_reason": "length", **delta}]})
        exchange.event("[DONE]")
        exchange.end()

    server, backend = api(answer)
    state = function(lambda s: s.__iadd__(user("?") + assistant(gen("x", n=2, logprobs=1)))).run(backend=backend)
    assert state["x"] == ["a0", "a1"]
    info = state.get_meta_info("x")
    assert info["finish_reason"]["type"] == "length"
    assert info["output_token_logprobs"] == [(-0.5, 4, "a")]
    assert (server.bodies[0]["n"], server.bodies[0]["logprobs"], server.bodies[0]["top_logprobs"]) == (2, True, 1)


def test_tokens_without_numbers_keep_their_texts(api: Any) -> None:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.7], "top_logprobs": [{"a": -0.5, "b": -1.0}, None]}
    _, backend = api(lambda exchange: exchange.say("ab", logprobs=logprobs))
    events = backend.run(Program(id="p", ops=(Text(0, ("x",)), Gen(0, "y", SamplingParams(logprobs=2)))))
    (value,) = [event for event in events if isinstance(event, Value)]
    assert [(entry.token, entry.logprob) for entry in value.logprobs or ()] == [(-1, -0.5), (-2, -0.7)]
    assert value.token_texts == {-1: "a", -2: "b"}


def test_options_that_the_api_lacks_are_refused_before_anything_is_sent(api: Any) -> None:
    server, backend = api(saying("x"))
    for options in ({"top_k": 3}, {"min_p": 0.1}, {"min_tokens": 2}, {"ignore_eos": True}, {"token_healing": True}):
        with pytest.raises(UnsupportedError, match=f"no option {next(iter(options))}"):
            completed.run(backend=backend, **options)
    assert not server.bodies
    server, extended = api(saying("x"), extensions=True)
    completed.run(backend=extended, top_k=3, min_tokens=2)
    assert (server.bodies[0]["top_k"], server.bodies[0]["min_tokens"]) == (3, 2)


def test_places_where_a_chat_cannot_generate_are_refused(api: Any) -> None:
    server, backend = api(saying("x"))
    programs = {
        "outside of messages": lambda s: s.__iadd__(user("a") + gen("x")),
        "in a user message": lambda s: s.__iadd__(user(gen("x"))),
        "text outside": lambda s: s.__iadd__("a" + user("b") + assistant(gen("x"))),
        "cannot continue an assistant message": lambda s: s.__iadd__(user("b") + assistant("So: " + gen("x"))),
    }
    for message, body in programs.items():
        with pytest.raises(UnsupportedError, match=message) as caught:
            function(body).run(backend=backend)
        assert caught.value.place is not None and caught.value.place.file == __file__
    assert not server.bodies


def test_stops_beyond_the_api_s_four_and_patterns_are_found_here(api: Any) -> None:
    server, backend = api(saying("abcdefgh-12"))
    stops = ["1", "2", "3", "4", "fg"]
    assert function(lambda s: s.__iadd__("x" + gen("x", stop=stops))).run(backend=backend)["x"] == "abcde"
    assert server.bodies[0]["stop"] == stops[:4]
    assert function(lambda s: s.__iadd__("x" + gen("x", stop_regex=r"\d+"))).run(backend=backend)["x"] == "abcdefgh-"
    state = function(lambda s: s.__iadd__("x" + gen("x", stop="d", include_stop=True))).run(backend=backend)
    assert state["x"] == "abcd" and "stop" not in server.bodies[-1]
    assert state.get_meta_info("x")["finish_reason"]["matched"] == "d"


def test_an_extended_api_looks_for_patterns_itself(api: Any) -> None:
    server, backend = api(saying("ab-12"), extensions=True)
    body = function(lambda s: s.__iadd__("x" + gen("x", stop=["-"], stop_regex=r"\d", include_stop=True)))
    assert body.run(backend=backend)["x"] == "ab-"
    asked = server.bodies[0]
    assert (asked["stop"], asked["stop_regex"], asked["include_stop_str_in_output"]) == (["-"], r"\d", True)


# Assistant messages that are begun


@function
def letter(s: Any) -> None:
    s += user("Thank Anna.")
    s += assistant("Dear Anna, " + gen("thanks", stop="."))


def test_an_extended_api_continues_a_message(api: Any) -> None:
    server, backend = api(saying("thank you."), extensions=True)
    assert letter.run(backend=backend)["thanks"] == "thank you"
    body = server.bodies[0]
    assert body["messages"][-1] == {"role": "assistant", "content": "Dear Anna, "}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


def test_a_beginning_can_be_asked_for(api: Any) -> None:
    server, backend = api(saying("Hello", "Dear Anna, thank you. Bye."), assistant_prefix="ask")
    state = letter.run(backend=backend)
    assert state["thanks"] == "thank you"
    assert state.messages()[-1]["content"] == "Dear Anna, thank you"
    assert "exactly this text" in server.bodies[0]["messages"][-1]["content"]
    _, stubborn = api(saying("Hello"), assistant_prefix="ask")
    with pytest.raises(ProgramError, match="does not begin with 'Dear Anna, '") as caught:
        letter.run(backend=stubborn)
    assert caught.value.code == "invalid_output" and "Hello" in caught.value.message


# Constraints


def chat(*args: Any, **kwargs: Any) -> Any:
    return function(lambda s: s.__iadd__(user("?") + assistant(gen("x", *args, **kwargs))))


def test_a_schema_is_enforced_by_the_api(api: Any) -> None:
    server, backend = api(saying('{"age": 3}'))
    assert chat(json_schema=AGE).run(backend=backend).json("x") == {"age": 3}
    named = server.bodies[0]["response_format"]["json_schema"]
    assert (named["schema"], named["strict"]) == (AGE, True)


def test_an_api_that_knows_no_schemas_is_asked_in_words(api: Any) -> None:
    def answer(exchange: Exchange) -> None:
        if "response_format" in exchange.body:
            exchange.refuse(400, "unknown field response_format")
        else:
            exchange.say('```json\n{"age": 4}\n```')

    server, backend = api(answer)
    assert chat(json_schema=AGE).run(backend=backend).json("x") == {"age": 4}
    chat(json_schema=AGE).run(backend=backend)
    assert ["response_format" in body for body in server.bodies] == [True, False, False]
    assert "JSON Schema" in server.bodies[1]["messages"][-1]["content"]


def test_what_is_not_valid_is_asked_for_again_with_the_reason(api: Any) -> None:
    server, backend = api(saying("about forty", "41"))
    assert chat(int).run(backend=backend)["x"] == 41
    first, second = (body["messages"] for body in server.bodies)
    assert "regular expression" in first[-1]["content"]
    assert second[-2] == {"role": "assistant", "content": "about forty"}
    assert "That is not valid: it goes wrong at 'about forty'" in second[-1]["content"]
    _, stubborn = api(saying("forty"), max_tries=2)
    with pytest.raises(
        ProgramError, match=r"try 1: it goes wrong at 'forty'; try 2: .*the last text is 'forty'"
    ) as caught:
        chat(int).run(backend=stubborn)
    assert caught.value.code == "invalid_output"
    assert stubborn.calls == 2


@pytest.mark.parametrize(
    ("fields", "answer", "value"),
    [
        ({"regex": "[a-c]{2}"}, " ab\n", "ab"),
        ({"grammar": 'start: "x" "y"*'}, "xyy", "xyy"),
        ({"json_schema": {"type": "integer"}}, "7", "7"),
    ],
)
def test_constraints_are_emulated(api: Any, fields: dict[str, Any], answer: str, value: str) -> None:
    _, backend = api(saying(answer), structured_outputs=False)
    assert chat(**fields).run(backend=backend)["x"] == value


def test_emulation_can_be_forbidden(api: Any) -> None:
    server, backend = api(saying("a"), emulate=False, structured_outputs=False, scores=False)
    for fields in ({"regex": "a"}, {"json_schema": AGE}, {"choices": ["a", "b"]}):
        with pytest.raises(UnsupportedError, match="emulate=False"):
            chat(**fields).run(backend=backend)
    assert not server.bodies


def test_an_extended_api_is_given_the_constraint(api: Any) -> None:
    server, backend = api(saying("ab"), extensions=True)
    chat(regex="a.").run(backend=backend)
    assert server.bodies[0]["structured_outputs"] == {"regex": "a."}


def test_a_choice_is_asked_for(api: Any) -> None:
    server, backend = api(saying("Hm.", "It is good", '"Bad."'))
    state = function(lambda s: s.__iadd__(user("?") + assistant(select("x", ["good", "bad"])))).run(backend=backend)
    assert state["x"] == "bad"
    assert len(server.bodies) == 3
    with pytest.raises(ProgramError, match="no probabilities"):
        state.probabilities("x")


def test_choices_are_scored_where_the_api_echoes(api: Any) -> None:
    def answer(exchange: Exchange) -> None:
        assert exchange.body["echo"] and exchange.body["max_tokens"] == 0
        choices = []
        for index, prompt in enumerate(exchange.body["prompt"]):
            tokens = ["It", " is", *([" good"] if prompt.endswith("good") else [" b", "ad"])]
            logprobs = {"tokens": tokens, "text_offset": [prompt.index(token) for token in tokens]}
            logprobs["token_logprobs"] = [None, -9.0, -1.0, -1.0][: len(tokens)]
            choices.append({"index": index, "text": prompt, "logprobs": logprobs, "finish_reason": "length"})
        exchange.json({"choices": choices[::-1], "usage": {"prompt_tokens": 7}})

    _, backend = api(answer)
    state = function(lambda s: s.__iadd__("It is" + select("x", [" bad", " good"]))).run(backend=backend)
    assert state["x"] == " good"
    assert state.probabilities("x") == pytest.approx({" bad": 0.26894, " good": 0.73106}, abs=1e-4)
    assert (backend.calls, state.usage.prompt_tokens) == (1, 7)


def test_an_api_that_does_not_echo_is_asked_for_the_choice(api: Any) -> None:
    def answer(exchange: Exchange) -> None:
        exchange.refuse(400, "echo is not supported") if exchange.body.get("echo") else exchange.say(" good, I think")

    _, backend = api(answer)
    assert function(lambda s: s.__iadd__("It is" + select("x", [" bad", " good"]))).run(backend=backend)["x"] == " good"


# One call for several generations


@function(num_api_spec_tokens=64)
def person(s: Any) -> None:
    s += user("Make up a person.")
    with s.assistant():
        s += "Name:" + gen("name", max_tokens=16, stop="\n") + "\nJob:" + gen("job", max_tokens=16, stop="\n")


def test_a_function_can_ask_for_it(api: Any) -> None:
    _, backend = api(saying("Name: Ann\nJob: cook"))
    state = person.run(backend=backend)
    assert (state["name"], state["job"]) == (" Ann", " cook")
    assert state.messages()[-1]["content"] == "Name: Ann\nJob: cook"
    assert backend.calls == 1
    _, other = api(saying("She is called Ann."))
    with pytest.raises(ProgramError, match="does not begin with 'Name:'"):
        person.run(backend=other)


def spec(backend: OpenAI, *ops: Any, tokens: int = 64) -> list[ProgramEvent]:
    return list(backend.run(Program(id="p", ops=ops, spec_tokens=tokens)))


def line(name: str, max_tokens: int = 16) -> Gen:
    return Gen(0, name, SamplingParams(max_tokens=max_tokens, stop="\n"))


TURN = (
    RoleBegin(0, "user"), Text(0, ("?",)), RoleEnd(0), RoleBegin(0, "assistant"),
    Text(0, ("Name:",)), line("a"), Text(0, ("\nJob:",)), line("b"), Text(0, ("\nTown:",)), line("c"), RoleEnd(0),
)  # fmt: skip


def test_one_call_serves_a_whole_turn(api: Any) -> None:
    server, backend = api(saying("Name: Ann\nJob: cook\nTown: Ulm"))
    events = spec(backend, *TURN)
    assert {event.name: event.text for event in events if isinstance(event, Value)} == {
        "a": " Ann",
        "b": " cook",
        "c": " Ulm",
    }
    assert backend.calls == 1
    done = events[-1]
    assert isinstance(done, Done) and done.requests == 1
    assert (server.bodies[0]["max_tokens"], "stop" in server.bodies[0]) == (80, False)
    assert server.bodies[0]["messages"][-1]["role"] == "user"


def test_one_call_serves_a_turn_in_a_block(api: Any) -> None:
    _, backend = api(saying("Name: Ann\nJob: cook\nTown: Ulm"))
    events = spec(backend, Repeat(0, TURN, Compare(Ref(0, "a"), "eq", " Ann"), 3))
    assert [event.text for event in events if isinstance(event, Value)] == [" Ann", " cook", " Ulm"]
    assert backend.calls == 1


def test_a_mismatch_is_asked_for_anew(api: Any) -> None:
    texts = ["Name: Ann\nAge: 4\n", "Name: Ann\nJob: cook\nTown: Ulm"]
    _, backend = api(saying(*texts))
    values = {event.name: event.text for event in spec(backend, *TURN) if isinstance(event, Value)}
    assert values == {"a": " Ann", "b": " cook", "c": " Ulm"}
    assert backend.calls == 2


def test_a_value_that_may_be_too_long_is_asked_for_anew(api: Any) -> None:
    turn = (
        Text(0, ("Name:",)),
        line("a"),
        Text(0, ("\nJob:",)),
        line("b", max_tokens=2),
        Text(0, ("\nEnd:",)),
        line("c"),
    )
    texts = [" Ann\nJob: cook of the whole town\nEnd: x\n", " cook of", " y"]
    server, backend = api(saying(*texts))
    values = {event.name: event.text for event in spec(backend, *turn) if isinstance(event, Value)}
    assert values == {"a": " Ann", "b": " cook of", "c": " y"}
    assert server.bodies[1]["prompt"] == "Name: Ann\nJob:"


def test_without_surplus_each_generation_is_a_call(api: Any) -> None:
    _, backend = api(saying(" a\n", " b\n"))
    list(backend.run(Program(id="p", ops=(Text(0, ("x",)), line("a"), Text(0, ("y",)), line("b")))))
    assert backend.calls == 2


# The same programs elsewhere


def shape_of(events: list[ProgramEvent]) -> list[tuple[Any, ...]]:
    """Events without their deltas: how a text is cut into these is nobody's promise."""
    found: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case Delta(branch=branch, name=name):
                found.append(("delta", branch, name))
            case Value(branch=branch, name=name, text=text, turn=turn, samples=samples):
                found.append(("value", branch, name, text, turn, samples))
            case Done(texts=texts, requests=requests):
                found.append(("done", tuple(texts.items()), requests))
            case _:
                found.append((type(event).__name__,))
    return list(dict.fromkeys(found))


def test_the_events_are_those_of_the_mock(api: Any) -> None:
    @function
    def body(s: Any) -> None:
        s += user("Hi") + assistant(gen("a"))
        branches = s.fork(2)
        branches += lambda i: user(f"{i}") + assistant(gen("b"))
        branches.join("append")
        s += user("End") + assistant(select("c", ["x", "y"]))

    def answer(exchange: Exchange) -> None:
        last = exchange.body["messages"][-1]["content"]
        exchange.say({"Hi": "one two", "0": "zero", "1": "uno"}.get(last, "y"))

    _, backend = api(answer, max_concurrency=1)
    mock = MockBackend({"a": "one two", "b": ["zero", "uno"], "c": "y"})
    found, wanted = ([*body.stream(backend=each)] for each in (backend, mock))
    key = lambda item: (str(item[0]), item[1:3] if item[0] != "done" else ())  # noqa: E731
    assert sorted(shape_of(found), key=key) == sorted(shape_of(wanted), key=key)


def test_secrets_are_not_in_what_is_shown(api: Any) -> None:
    _, backend = api(saying("x"), api_key="very-secret")
    assert "very-secret" not in repr(backend)
    assert "very-secret" not in json.dumps(str(vars(backend)))


def test_a_program_that_cannot_be_started_ends(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason: who waits for its events is told."""

    def fail(*arguments: object) -> None:
        raise MemoryError

    _, backend = api(saying("x"))
    monkeypatch.setattr(Executor, "run", fail)
    with pytest.raises(ProgramError, match="could not be started"):
        completed.run(backend=backend)
