"""One request against many: what is sent and counted, that rivals see the same prompts, and what is made of numbers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bough.benchmarks.harness.models import write_light_model
from bough.benchmarks.harness.server_process import Counters, ServerProcess, count_answers
from bough.benchmarks.language import language
from bough.benchmarks.language.contests import OURS, THEIRS, ContestResult
from bough.benchmarks.language.language import ModelResults, draw, tables
from bough.benchmarks.language.ways import (
    Agreement,
    GenByGen,
    OneRequest,
    OpenAICalls,
    Record,
    Round,
    Traffic,
    Way,
    WayRounds,
    WorkloadResult,
    agreement,
    is_chat,
    options_of,
    prompts_of,
    texts_in,
    texts_of,
)
from bough.benchmarks.peers.sides.peer_walk import Call, echoed_scores
from bough.benchmarks.workloads.programs import WORKLOADS, Script, Size
from bough.cli import bench
from bough.constrain.spec import Regex
from bough.runtime.protocol.errors import BoughError, EngineError
from bough.runtime.protocol.program import Piece
from bough.runtime.protocol.request import PREFILLED, SAMPLED
from bough.runtime.tokenizer.load import load_tokenizer

from ...support.tiny_model import write_tiny_model

PLACES = ("one request", "gen by gen", "openai client")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096)
    return folder


def chat() -> Script:
    script = Script()
    script.message("user", "Hello.")
    for branch in script.fork(2):
        script.message("user", f"Idea {branch}.", branch=branch)
        script.answer(3, branch=branch)
    return script


def text() -> Script:
    script = Script()
    script.text("One, two")
    script.gen(3, grammar=Regex("[a-z]{2,5}"))
    script.text(" and")
    script.select([" three", " four"])
    return script


# Ways


def test_all_ways_generate_the_same_texts_and_count_what_they_send(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)

    async def run_all(url: str, model: str) -> dict[tuple[str, str], Record]:
        ways: list[Way] = [OneRequest(url, tokenizer), GenByGen(url, model, tokenizer)]
        ways.append(OpenAICalls(url, model, tokenizer))
        found = {}
        for kind, script in (("chat", chat()), ("text", text())):
            for way in ways:
                if kind == "text" and isinstance(way, OpenAICalls):
                    continue
                found[kind, way.name] = record = Record()
                await way.run(script.ops, record, full=True)
        for way in ways:
            await way.aclose()
        return found

    with ServerProcess(["--model", str(folder)]) as server:
        before = server.counters()
        found = asyncio.run(run_all(server.url, server.model))
        counted = server.counters() - before
    for kind in ("chat", "text"):
        one, *others = (record for (k, _), record in found.items() if k == kind)
        assert len(one.values) == 2 and all(one.values.values())
        for other in others:
            assert (other.values, other.prompts) == (one.values, one.prompts)  # each token is a byte
            assert other.tokenised > one.tokenised
            assert sum(map(len, other.texts)) > sum(map(len, one.texts))
            assert other.num_bytes > sum(map(len, other.texts))
    assert counted.num_requests == 2 + 2 * 2 + 2  # a request a program; a call a value
    assert counted.generated_tokens >= 3 * 2 * 3
    assert 0 < counted.forward_s <= counted.step_s


def test_a_refusal_ends_the_program(folder: Path) -> None:
    async def run(url: str) -> None:
        way = GenByGen(url, "no-such-model", load_tokenizer(folder))
        try:
            await way.run(text().ops, Record())
        finally:
            await way.aclose()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"error": {"message": "no such model", "code": "model_not_found"}})
        writer.write(
            f"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            await run(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    with pytest.raises(EngineError, match="no such model"):
        asyncio.run(main())


# What ways send


def test_chats_are_those_of_which_each_answer_is_a_whole_message() -> None:
    chats = {name for name, make in WORKLOADS.items() if all(is_chat(ops) for ops in make(Size(0.02, 2)).programs)}
    assert chats == {"tree", "judge", "chat-short", "chat-long"}
    begun = Script()
    begun.message("user", "Hello.")
    begun.answer(3)
    assert is_chat(begun.ops)
    begun.text("loose")
    assert not is_chat(begun.ops)


def test_texts_of_bodies_and_programs() -> None:
    assert texts_in({"prompt": "a"}) == ["a"]
    assert texts_in({"prompt": ["a", "b"], "messages": []}) == ["a", "b"]
    assert texts_in({"messages": [{"role": "user", "content": "c"}]}) == ["c"]
    assert texts_of(text().ops) == ["One, two", " and", " three", " four"]


def test_options_in_the_apis_words() -> None:
    assert options_of(Call("a", "p", 3)) == {"max_tokens": 3, "temperature": 0.0, "ignore_eos": True}
    assert options_of(Call("a", "p", 3, "[a-z]{2,5}")) == {"max_tokens": 3, "temperature": 0.0, "regex": "[a-z]{2,5}"}


def test_only_tokens_that_reach_into_the_choice_are_scored() -> None:
    logprobs = {"text_offset": [0, 2, 5], "tokens": ["ab", "cde", "f"], "token_logprobs": [None, -2.0, -3.0]}
    completion = {"choices": [{"index": 1, "logprobs": logprobs}, {"index": 0, "logprobs": logprobs}]}
    assert echoed_scores(4, completion) == [-2.5, -2.5]
    assert echoed_scores(5, completion) == [-3.0, -3.0]


def test_prompts_of_a_traced_program() -> None:
    ops = chat().ops
    pieces = [
        Piece(branch=0, op=1, kind="text", texts=("Hello", "."), origins=(PREFILLED,) * 2),
        Piece(branch=1, op=1, kind="text", texts=("Idea 1",), origins=(PREFILLED,)),
        Piece(branch=1, op=4, kind="gen", name="value1", texts=("x",), origins=(SAMPLED,)),
    ]
    assert prompts_of(ops, pieces) == {(1, "value1"): ("Hello", ".", "Idea 1"), (2, "value2"): ("Hello", ".")}


# Numbers


def test_metrics_count_answers_of_the_api_only() -> None:
    metrics = """\
bough_http_responses_total{path="/health",status="200"} 7
bough_http_responses_total{path="/v1/completions",status="200"} 5
bough_http_responses_total{path="/v1/programs",status="404"} 2
bough_http_responses_total{path="/v1/models",status="200"} 1
bough_requests_total 9
"""
    assert count_answers(metrics) == 7


def rounds(*walls_s: float, num_requests: int = 2, forward_s: float = 0.5) -> WayRounds:
    counted = Counters(num_requests, 100, 75, 40, 15, 4, 0.75, forward_s)
    return WayRounds(2, tuple(Round(wall_s, 0.1, counted) for wall_s in walls_s))


def test_a_median_is_of_one_round() -> None:
    three = rounds(3.0, 1.0, 2.0)
    assert (three.wall_s, three.median.wall_s, three.requests) == (2.0, 2.0, 1.0)
    assert three.median.idle_s == 1.25
    assert three.median.counted.hit_rate == 0.75
    assert three.median.counted.mean_batch == 10.0
    assert (Counters(5, step_s=2.0) - Counters(2, step_s=0.5)) == Counters(3, step_s=1.5)


@pytest.fixture
def results() -> ModelResults:
    walls = dict(zip(PLACES, (1.0, 2.0, 8.0), strict=True))
    workload = WorkloadResult(
        name="Some workload",
        num_programs=2,
        rounds={n: {way: rounds(wall_s, num_requests=6) for way, wall_s in walls.items()} for n in (1, 2)},
        traffic={way: Traffic(1500.0, 10.0 * number, 20.0) for number, way in enumerate(walls, start=1)},
        agreement={way: Agreement(4, 0, 0) for way in walls},
    )
    sides = {OURS: rounds(1.0), THEIRS: rounds(1.5, forward_s=1.0)}
    batches = {side: [(0.0, 1), (0.5, 2)] for side in sides}
    return ModelResults("tiny", "random", [workload], [ContestResult("a judge", "short", 2, sides, 2, batches)])


def test_tables_say_times_as_multiples_of_one_request(results: ModelResults) -> None:
    lines = tables([results], markdown=True).splitlines()
    row = next(line for line in lines if line.startswith("| Some workload"))
    assert "| 3 / 3 / 3 | 1.5 / 1.5 / 1.5 | 10 / 20 / 30 |" in row
    assert "| 1.00 / 2.00 / 8.00 | 1.00 / 2.00 / 8.00 | 2.00 / 8.00 | 2.00 / 8.00 | 4 same |" in row
    assert "| 1.50 | 3.00 | 50% / 67% |" in next(line for line in lines if line.startswith("| a judge"))
    assert "Some workload" in tables([results], markdown=False)


def test_texts_that_are_wrong_are_named_and_fail(
    results: ModelResults, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(language, "_measure", lambda arguments, plan: results)
    _, light = bench.read("language", ["--light"])
    assert language.run(light) == 0
    results.workloads[0].agreement["gen by gen"] = Agreement(3, 90, 1)
    with pytest.raises(BoughError, match="of the texts differ"):
        language.run(light)
    assert "3 same, 90 retokenised, 1 DIFFERENT" in capsys.readouterr().out
    results.workloads[0].agreement["gen by gen"] = Agreement(300, 0, 1)  # a tie
    assert language.run(light) == 0


def test_the_picture_is_drawn(results: ModelResults, tmp_path: Path) -> None:
    draw([results, replace(results, contests=[])], str(tmp_path / "p.svg"))
    text = (tmp_path / "p.svg").read_text()
    assert all(word in text for word in ("where time goes", "engine idle", "programs at once"))


def test_plans_shrink_and_grow() -> None:
    def plans(*words: str) -> list[language.Plan]:
        return language.plans_of(bench.read("language", words)[1])

    assert [plan.levels for plan in plans()] == [(1, 4), (1, 32)]
    assert all(plan.num_rounds == 3 for plan in plans())
    assert all(plan.num_rounds == 1 for plan in plans("--quick"))
    large = plans("--at-once", "32", "--rounds", "5")
    assert {(plan.levels, plan.num_rounds) for plan in large} == {((1, 32), 5)}


# Models and programs


def test_texts_that_differ_are_wrong_only_after_the_same_tokens() -> None:
    one = Record({(0, "a"): "x", (0, "b"): "y", (0, "c"): "z"}, {(0, "b"): ("p", "q"), (0, "c"): ("r",)})
    other = Record({(0, "a"): "x", (0, "b"): "Y", (0, "c"): "Z"}, {(0, "b"): ("pq",), (0, "c"): ("r",)})
    assert agreement([one], [other]) == Agreement(same=1, retokenised=1, different=1)
    one.prompts[0, "c"] = other.prompts[0, "c"] = ("r\ufffd",)  # which part of a character is not told
    assert agreement([one], [other]) == Agreement(same=1, retokenised=2, different=0)


def test_a_light_model_has_the_others_tokenizer(folder: Path, tmp_path: Path) -> None:
    light = write_light_model(str(folder), tmp_path / "light")
    message = [{"role": "user", "content": "hello"}]
    assert load_tokenizer(light).encode_chat(message) == load_tokenizer(folder).encode_chat(message)
    assert json.loads((light / "config.json").read_text())["vocab_size"] == 258
