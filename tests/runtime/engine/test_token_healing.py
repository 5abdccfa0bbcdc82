"""Token healing: what is taken back of a prompt, and what an engine and programs make of it."""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bough.constrain import GrammarCompiler, JsonSchema, Regex
from bough.runtime.engine.engine import Engine
from bough.runtime.engine.token_healing import Healed, heal, take_back
from bough.runtime.programs.tokens import content_of
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.program import Fork, Gen, Join, Program, RoleBegin, Text, Value
from bough.runtime.protocol.request import Request
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.runner.runner import DirectPasses
from bough.runtime.tokenizer.load import load_tokenizer
from bough.runtime.tokenizer.tokenizer import Tokenizer

from ...support.fakes import AheadPasses, FakeRunner, model_info, write_byte_tokenizer
from ...support.sampling import host_sampler
from ..listening import Heard
from ..programs.oracle import executor_of

MERGES = ("h t", "t p", "ht tp", "http :", ": /", ":/ /", "u n", "un t", "Ġ c", "Ġc o", "Ġco unt", "Ġ 4", "Ġ4 2")


@functools.cache
def tokenizer() -> Tokenizer:
    """The byte tokenizer with tokens like "http", "://" and " count"."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_byte_tokenizer(folder)
        path = folder / "tokenizer.json"
        description = json.loads(path.read_text())
        vocabulary, merges = description["model"]["vocab"], []
        for index, merge in enumerate(MERGES):
            vocabulary[merge.replace(" ", "")] = 258 + index  # past the two control tokens
            merges.append(merge.split())
        description["model"]["merges"] = merges
        description["pre_tokenizer"]["use_regex"] = False
        path.write_text(json.dumps(description))
        return load_tokenizer(folder)


SIZE = 300


def engine(ahead: int = 0) -> tuple[Engine, FakeRunner]:
    """With `ahead` its device is a pass behind, and makes up to so many steps by itself."""
    made = tokenizer()
    runner = FakeRunner(4096, 1, SIZE)
    info = model_info(4096, 1)
    return (
        Engine(
            config=EngineConfig(num_pages=4096, page_size=1),
            info=type(info)(**{**{name: getattr(info, name) for name in info.__struct_fields__}, "vocab_size": SIZE}),
            runner=AheadPasses(runner, ahead) if ahead else DirectPasses(runner, 1, host_sampler(), exact=True),
            tokenizer=made,
            grammars=GrammarCompiler(made.vocabulary(SIZE)),
            clock=time.monotonic,
        ),
        runner,
    )


@pytest.fixture(params=[0, 1, 4])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, FakeRunner]]:
    made, runner = engine(request.param)
    yield made, runner
    assert made.flush_cache()
    made.close()


def request(text: str, **fields: Any) -> Request:
    sampling = SamplingParams(**{"max_tokens": 6, "token_healing": True, "ignore_eos": True, "seed": 3, **fields})
    return Request(id=text, prompt=tuple(tokenizer().encode(text)), sampling=sampling)


def run(engine: Engine, asked: Request) -> Heard:
    heard = Heard()
    engine.submit(asked, heard)
    deadline = time.monotonic() + 20
    while not heard.over:
        assert time.monotonic() < deadline
        engine.wait_for_grammar(0.01)
        engine.step()
    return heard


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("see http", b"http"),
        ("see http:", b""),  # nor from "http:"
        ("a cou", b" cou"),
        ("a ", b" "),
        ("the", b""),  # no token goes on from "e"
        ("h", b""),  # it is the whole prompt
        ("xh", b"h"),
    ],
)
def test_what_is_taken_back(text: str, taken: bytes) -> None:
    made = tokenizer()
    prompt = made.encode(text)
    healed = take_back(prompt, made)
    assert healed.prefix == taken
    assert b"".join(made.pieces(prompt[len(prompt) - healed.num_tokens :])) == taken


def test_control_tokens_stay() -> None:
    made = tokenizer()
    assert take_back([104, *made.encode("<|im_start|>", special=True)], made) == Healed()
    assert take_back([-1, 10_000, 5], made).num_tokens <= 1


def test_a_request_is_healed_once() -> None:
    made = tokenizer()
    asked = request("see http", min_tokens=2)
    healed = heal(asked, made)
    assert healed.prompt == asked.prompt[:-1]
    assert (healed.prefix, healed.sampling.max_tokens, healed.sampling.min_tokens) == (b"http", 7, 3)
    assert heal(healed, made) is healed
    assert heal(asked, made, limit=0) is asked
    assert heal(request("the"), made) == request("the")


def test_a_request_is_healed_only_if_it_asks(place: tuple[Engine, FakeRunner]) -> None:
    made, _ = place
    assert made.submit(request("see http"), lambda _: None) == 1
    asked = request("see http", token_healing=False)
    assert made.submit(Request(id="b", prompt=asked.prompt, sampling=asked.sampling), lambda _: None) == 0
    assert (
        made.submit(Request(id="c", prompt=asked.prompt, sampling=request("x").sampling), lambda _: None, healable=0)
        == 0
    )
    for request_id in (asked.id, "b", "c"):
        made.abort(request_id)


def test_the_end_of_the_prompt_is_written_anew_and_not_returned(place: tuple[Engine, FakeRunner]) -> None:
    made, runner = place
    (bridge,) = tokenizer().encode("http:")
    runner.bias = {bridge: 30.0}
    heard = run(made, request("see http", max_tokens=3))
    assert heard.tokens == [bridge] * 4
    assert heard.text == ":" + 3 * "http:"
    assert heard.finish.usage.prompt_tokens == len(tokenizer().encode("see http")) - 1
    assert heard.finish.usage.completion_tokens == 4


def test_all_that_is_drawn_agrees_with_the_prompt(place: tuple[Engine, FakeRunner]) -> None:
    made, _ = place
    seen = set()
    for seed in range(40):
        heard = run(made, request("a cou", seed=seed, temperature=3.0))
        text = b"".join(tokenizer().pieces(heard.tokens, skip_special_tokens=True))
        assert text.startswith(b" cou")
        assert heard.text == text[4:].decode(errors="replace")
        seen.add(heard.tokens[0])
    assert len(seen) >= 3  # " ", " c", " co", " count"


def test_a_stop_that_the_prompt_holds_does_not_count(place: tuple[Engine, FakeRunner]) -> None:
    made, runner = place
    (bridge,) = tokenizer().encode("http:")
    runner.bias = {bridge: 30.0}
    heard = run(made, request("see http", stop=("tp",)))
    assert heard.text == ":ht"
    assert heard.finish.matched == "tp"


def test_with_a_grammar_the_first_token_may_reach_into_it(place: tuple[Engine, FakeRunner]) -> None:
    made, _ = place
    first = set()
    for seed in range(30):
        asked = request("Age: ", seed=seed, temperature=3.0, max_tokens=8)
        constrained = Request(id=asked.id, prompt=asked.prompt, sampling=asked.sampling, grammar=Regex("42|4|7[0-9]"))
        heard = run(made, constrained)
        assert heard.finish.reason == "stop"
        assert heard.text in {"42", "4", *(f"7{digit}" for digit in range(10))}
        first.add(tokenizer().decode(heard.tokens[:1]))
    assert first == {" ", " 4", " 42"}


def test_a_finished_value_is_checked_without_the_prompt(place: tuple[Engine, FakeRunner]) -> None:
    made, _ = place
    schema = JsonSchema('{"type": "array", "maxItems": 2, "items": {"type": "integer", "minimum": 4, "maximum": 42}}')
    for seed in range(5):
        asked = request("List: ", seed=seed, max_tokens=24)
        heard = run(made, Request(id=asked.id, prompt=asked.prompt, sampling=asked.sampling, grammar=schema))
        assert heard.finish.reason == "stop"
        assert all(4 <= item <= 42 for item in json.loads(heard.text))


def test_a_prompt_that_needs_no_healing_is_left_as_it_is(place: tuple[Engine, FakeRunner]) -> None:
    made, _ = place
    healed, plain = (run(made, request("the", token_healing=flag)) for flag in (True, False))
    assert healed.tokens == plain.tokens


# Programs


def programs(*parts: Any) -> tuple[list[Value], dict[int, str], list[int]]:
    """Values, texts and the main branch's tokens after running `parts`."""
    made, runner = engine()
    (bridge,) = tokenizer().encode("http:")
    runner.bias = {bridge: 30.0}
    executor = executor_of(made, time.monotonic, max_states=1)
    events: list[Any] = []
    executor.run(Program(id="p", ops=tuple(parts), keep=True), events.append)
    deadline = time.monotonic() + 20
    while not events or type(events[-1]).__name__ not in ("Done", "Failed"):
        assert time.monotonic() < deadline
        made.step()
    assert type(events[-1]).__name__ == "Done", events[-1]
    tokens = content_of(executor._states["p"].branches[0]).tokens[:]
    executor.close()
    made.close()
    return [event for event in events if isinstance(event, Value)], events[-1].texts, tokens


SAMPLING = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True, token_healing=True)


def test_a_program_goes_on_with_the_tokens_that_were_chosen() -> None:
    (bridge,) = tokenizer().encode("http:")
    values, texts, tokens = programs(Text(0, ("see http",)), Gen(0, "x", SAMPLING), Gen(0, "y", SAMPLING))
    assert [value.text for value in values] == [":http:http:", "http:http:"]  # after a value nothing is taken back
    assert texts[0] == "see http:http:http:http:http:"
    assert tokens == [*tokenizer().encode("see "), *[bridge] * 5]


def test_a_branch_takes_back_only_its_own_text() -> None:
    values, texts, tokens = programs(
        Text(0, ("see http",)),
        Fork(0, (1, 2)),
        Gen(1, "x", SAMPLING),
        Text(2, (" http",)),
        Gen(2, "x", SAMPLING),
        Join(0, (1, 2), "append"),
    )
    assert {value.branch: value.text for value in values} == {1: "http:http:", 2: ":http:http:"}
    assert texts[0] == "see http" + "http:http:" + " http" + ":http:http:"
    assert tokenizer().decode(tokens) == texts[0]


def test_the_template_is_not_taken_back() -> None:
    values, texts, _ = programs(RoleBegin(0, "assistant"), Gen(0, "x", SAMPLING))
    assert values[0].text == "http:http:"
    assert texts[0].endswith("assistant\nhttp:http:")


def test_a_stop_within_the_first_token_keeps_the_text() -> None:
    sampling = SamplingParams(max_tokens=4, temperature=0.0, stop=(":",), token_healing=True)
    values, texts, tokens = programs(Text(0, ("see http",)), Gen(0, "x", sampling), Text(0, ("s",)))
    assert values[0].text == ""
    assert texts[0] == "see https"
    assert tokenizer().decode(tokens) == "see https"
