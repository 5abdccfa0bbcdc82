"""The engine over a fake model: what a request gets does not depend on cache, batch, chunks, drafts or retraction."""

from __future__ import annotations

import itertools
import json
import random

import jsonschema
import msgspec
import pytest

from bough.constrain.spec import Choice, JsonSchema, Regex
from bough.runtime.engine import generation
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.errors import OverloadedError, RequestError
from bough.runtime.protocol.request import FORCED, Request, Timings
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import FakeRunner, byte_tokenizer, fake_engine
from ..listening import Heard, drive

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "level": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["knight", "mage"]},
        "items": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
    },
    "required": ["name", "level", "kind", "items"],
    "additionalProperties": False,
}
GRAMMAR = JsonSchema(json.dumps(SCHEMA))


def prompt(text: str) -> tuple[int, ...]:
    return tuple(byte_tokenizer().encode(text))


def generate(engine: Engine, requests: list[Request]) -> list[Heard]:
    heard = [Heard() for _ in requests]
    for request, listener in zip(requests, heard, strict=True):
        engine.submit(request, listener)
    drive(engine)
    assert all(one.over for one in heard)
    return heard


def one(engine: Engine, text: str = "hello", grammar=None, **params) -> Heard:
    return generate(engine, [Request(id="r", prompt=prompt(text), sampling=SamplingParams(**params), grammar=grammar)])[
        0
    ]


def requests_over_a_tree(count: int, seed: int = 0) -> list[Request]:
    """Requests of every kind whose prompts share prefixes in a tree."""
    rng = random.Random(seed)
    stems = ["system: be brief. " * 2, "system: be kind. ", "few shot: a b c. "]
    made = []
    for index in range(count):
        text = rng.choice(stems) + "".join(rng.choice(["tell ", "me ", "of ", "it "]) for _ in range(rng.randrange(6)))
        sampling = rng.choice(
            [
                SamplingParams(max_tokens=rng.randrange(1, 24), temperature=0.0),
                SamplingParams(max_tokens=20, temperature=0.9, top_p=0.8, seed=index),
                SamplingParams(max_tokens=20, temperature=1.2, top_k=20, min_p=0.05, seed=index),
                SamplingParams(
                    max_tokens=20, temperature=0.7, frequency_penalty=0.5, repetition_penalty=1.1, seed=index
                ),
                SamplingParams(max_tokens=40, temperature=0.0, stop=("e", "tt"), min_tokens=2, logprobs=2),
            ]
        )
        grammar = GRAMMAR if index % 4 == 0 else None
        if grammar is not None:
            sampling = SamplingParams(max_tokens=rng.choice([48, 400]), temperature=1.5, seed=index)
        made.append(Request(id=str(index), prompt=prompt(text), sampling=sampling, grammar=grammar))
    return made


def outcome(heard: list[Heard]) -> list[tuple]:
    return [(one.tokens, one.text, one.finish.reason, one.finish.matched) for one in heard]


@pytest.fixture(scope="module")
def cold() -> list[tuple]:
    """Each request alone, without a cache, in one piece."""
    results = []
    for request in requests_over_a_tree(60):
        engine, _ = fake_engine(enable_prefix_caching=False, max_num_seqs=1, max_batch_tokens=2048, jump_forward=False)
        results += outcome(generate(engine, [request]))
        engine.close()
    return results


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_batch_tokens": 16, "max_num_seqs": 16},
        {"page_size": 16, "num_pages": 600},
        {"num_pages": 620, "max_num_seqs": 32},
        {"jump_forward": False},
        {"enable_prefix_caching": False},
    ],
    ids=["batched", "chunked", "pages of 16", "retracted", "no drafts", "no cache"],
)
def test_cold_is_warm(cold: list[tuple], settings: dict) -> None:
    engine, _ = fake_engine(**settings)
    assert outcome(generate(engine, requests_over_a_tree(60))) == cold
    assert outcome(generate(engine, requests_over_a_tree(60))) == cold  # again, now with all prefixes cached
    if settings.get("num_pages") == 620:
        assert engine.stats().preemptions_total > 0
    assert engine.flush_cache()
    stats = engine.stats()
    assert stats.free_pages == stats.num_pages
    engine.close()


def test_cached_tokens_are_counted() -> None:
    engine, _ = fake_engine()
    first, second = one(engine, "the same prompt", max_tokens=2), one(engine, "the same prompt", max_tokens=2)
    assert first.finish.usage.cached_tokens == 0
    assert second.finish.usage.cached_tokens == second.finish.usage.prompt_tokens - 1
    assert second.outputs[0].cached_tokens == second.finish.usage.cached_tokens
    engine.close()


@pytest.mark.parametrize("max_tokens", [12, 20, 33, 60, 300])
def test_json_always_parses_and_validates_where_it_can(max_tokens: int) -> None:
    engine, _ = fake_engine()
    heard = generate(
        engine,
        [
            Request(
                id=str(seed),
                prompt=prompt("give"),
                sampling=SamplingParams(max_tokens=max_tokens, temperature=1.5, seed=seed),
                grammar=GRAMMAR,
            )
            for seed in range(12)
        ],
    )
    for answer in heard:
        value = json.loads(answer.text)
        assert answer.finish.usage.completion_tokens <= max_tokens
        if max_tokens >= 60:
            jsonschema.validate(value, SCHEMA)
    engine.close()


def test_what_a_grammar_forces_is_drafted_and_counted() -> None:
    engine, runner = fake_engine()
    answer = one(engine, grammar=Choice(("abcdefgh",)), max_tokens=20, temperature=1.0)
    assert answer.text == "abcdefgh"
    assert answer.finish.reason == "stop"
    origins = [origin for output in answer.outputs for origin in output.origins]
    assert origins.count(FORCED) == answer.finish.usage.forced_tokens >= 6
    assert runner.num_steps <= 3
    engine.close()


def test_regex_ends_where_nothing_can_follow() -> None:
    engine, _ = fake_engine()
    answer = one(engine, grammar=Regex("[0-9]{3}-[a-c]"), max_tokens=50, temperature=1.0, seed=3)
    assert len(answer.text) == 5
    assert answer.finish.reason == "stop"
    engine.close()


def test_stop_strings_and_tokens() -> None:
    engine, runner = fake_engine()
    whole = one(engine, max_tokens=30, temperature=0.0).text
    stop = whole[5:8]
    cut = one(engine, max_tokens=30, temperature=0.0, stop=stop)
    assert cut.text == whole[: whole.find(stop)]
    assert (cut.finish.reason, cut.finish.matched) == ("stop", stop)
    kept = one(engine, max_tokens=30, temperature=0.0, stop=stop, include_stop=True)
    assert kept.text == whole[: whole.find(stop) + len(stop)]
    runner.bias[257] = 100.0  # the end of the turn is all the model wants
    assert one(engine, max_tokens=5).finish.matched == 257
    assert len(one(engine, max_tokens=9, min_tokens=4).tokens) == 5
    assert len(one(engine, max_tokens=9, ignore_eos=True).tokens) == 9
    engine.close()


def test_logprobs_of_the_model_and_of_what_was_drawn_from() -> None:
    engine, _ = fake_engine()
    answer = one(engine, grammar=Choice(("yes", "no")), max_tokens=5, temperature=0.0, logprobs=3)
    first = answer.logprobs[0]
    assert len(first.top) == 3
    assert first.logprob <= first.top[0][1]
    assert first.masked is not None and first.masked > first.logprob  # two choices are left of 258
    assert answer.logprobs[1].masked == pytest.approx(0.0, abs=1e-5)
    engine.close()


def test_scores_are_the_logprobs_of_generation() -> None:
    engine, _ = fake_engine()
    answer = one(engine, max_tokens=6, temperature=0.0, logprobs=0)
    text = prompt("hello")
    for size in (2048, 3):
        other, _ = fake_engine(max_batch_tokens=size)
        request = Request(
            id="s", prompt=(*text, *answer.tokens), sampling=SamplingParams(max_tokens=0), score_from=len(text)
        )
        scored = generate(other, [request])[0]
        assert [entry.token for entry in scored.logprobs] == answer.tokens
        assert [entry.logprob for entry in scored.logprobs] == pytest.approx([e.logprob for e in answer.logprobs])
        other.close()
    engine.close()


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (999,)}, "prompt"),
        ({"prompt": (-1,)}, "prompt"),
        ({"prompt": (1,) * 2049}, "prompt"),
        ({"sampling": SamplingParams(max_tokens=2048)}, "prompt"),
        ({"sampling": SamplingParams(stop_token_ids=(258,))}, "stop_token_ids"),
        ({"sampling": SamplingParams(logit_bias={300: 1.0})}, "logit_bias"),
        ({"score_from": 0}, "score_from"),
        ({"score_from": 5}, "score_from"),
    ],
)
def test_what_cannot_run_is_refused_by_name(change: dict, param: str) -> None:
    engine, _ = fake_engine()
    fields = {"id": "r", "prompt": prompt("hello"), "sampling": SamplingParams(max_tokens=4), **change}
    with pytest.raises(RequestError) as caught:
        engine.submit(Request(**fields), Heard())
    assert caught.value.param == param
    assert engine.idle
    engine.close()


def test_the_queue_is_bounded() -> None:
    engine, _ = fake_engine(max_waiting=2, max_num_seqs=1)
    for index in range(3):
        engine.submit(Request(id=str(index), prompt=(1,), sampling=SamplingParams(max_tokens=1)), Heard())
    with pytest.raises(OverloadedError):
        engine.submit(Request(id="3", prompt=(1,), sampling=SamplingParams(max_tokens=1)), Heard())
    engine.close()


def test_a_bad_grammar_ends_its_own_request_only() -> None:
    engine, _ = fake_engine()
    good = Request(id="good", prompt=prompt("hi"), sampling=SamplingParams(max_tokens=8, temperature=0.0))
    alone = generate(engine, [good])[0]
    bad = Request(id="bad", prompt=prompt("hi"), sampling=SamplingParams(max_tokens=8), grammar=Regex("("))
    heard = generate(engine, [bad, good])
    assert heard[0].code == "invalid_grammar"
    assert heard[1].tokens == alone.tokens
    engine.close()


def test_a_row_that_is_not_finite_ends_its_own_request_only() -> None:
    engine, runner = fake_engine()
    good = Request(id="good", prompt=prompt("hi"), sampling=SamplingParams(max_tokens=8, temperature=0.0))
    alone = generate(engine, [good])[0]
    runner.broken = prompt("!")[0]
    bad = Request(id="bad", prompt=prompt("hi!"), sampling=SamplingParams(max_tokens=8))
    heard = generate(engine, [bad, good])
    assert heard[0].code == "nonfinite_logits"
    assert heard[1].tokens == alone.tokens
    runner.broken = None
    assert generate(engine, [bad])[0].finish.usage.cached_tokens <= 2  # nothing of the bad pass was kept
    engine.close()


def test_a_pass_that_fails_ends_its_requests_and_no_others() -> None:
    engine, runner = fake_engine(max_num_seqs=1)
    heard = [Heard(), Heard()]
    runner.fails = 1
    for index, listener in enumerate(heard):
        request = Request(id=str(index), prompt=prompt("hi"), sampling=SamplingParams(max_tokens=3, temperature=0.0))
        engine.submit(request, listener)
    drive(engine)
    assert heard[0].code == "internal_error"
    assert heard[1].finish.reason == "length"
    engine.flush_cache()
    assert engine.stats().free_pages == engine.stats().num_pages
    engine.close()


def test_abort_at_any_step_gives_the_pages_back() -> None:
    for steps in range(6):
        engine, _ = fake_engine(max_batch_tokens=4)
        listener = Heard()
        request = Request(id="r", prompt=prompt("hello there"), sampling=SamplingParams(max_tokens=9), grammar=GRAMMAR)
        engine.submit(request, listener)
        for _ in range(steps):
            engine.step()
        engine.abort("r")
        engine.abort("r")
        engine.abort("unknown")
        assert listener.finish.reason == "abort"
        drive(engine)
        engine.flush_cache()
        assert engine.stats().free_pages == engine.stats().num_pages
        engine.close()


def test_a_request_past_its_time_ends_with_an_error() -> None:
    engine, _ = fake_engine()
    clock = itertools.count()
    engine._clock = lambda: float(next(clock))
    request = Request(
        id="r", prompt=prompt("hi"), sampling=SamplingParams(max_tokens=500, ignore_eos=True), timeout_s=20
    )
    assert generate(engine, [request])[0].code == "generation_timeout"
    engine.close()


def test_seeds_make_draws_reproducible_alone_and_in_a_batch() -> None:
    engine, _ = fake_engine()
    alone = one(engine, "x", max_tokens=12, temperature=1.0, seed=5).tokens
    requests = [
        Request(id=str(i), prompt=prompt("x"), sampling=SamplingParams(max_tokens=12, temperature=1.0, seed=i))
        for i in range(10)
    ]
    batch = generate(engine, requests)
    assert batch[5].tokens == alone
    assert len({tuple(answer.tokens) for answer in batch}) > 5
    engine.close()


def test_fake_runner_reads_through_the_pages() -> None:
    engine, runner = fake_engine()
    assert isinstance(runner, FakeRunner)
    assert (
        one(engine, "a", max_tokens=4, temperature=0.0).tokens != one(engine, "b", max_tokens=4, temperature=0.0).tokens
    )
    engine.close()


def said(heard: Heard) -> tuple:
    """All that was said of a request, but the times, and which tokens were forced: a mask that is late changes that."""
    cached = [output.cached_tokens for output in heard.outputs if output.cached_tokens is not None]
    num_origins = sum(len(output.origins) for output in heard.outputs)
    usage = msgspec.structs.replace(heard.finish.usage, forced_tokens=0)
    finish = msgspec.structs.replace(heard.finish, timings=Timings(), usage=usage)
    return heard.text, heard.tokens, num_origins, heard.logprobs, cached, finish


def test_one_output_says_what_many_say() -> None:
    results = []
    for stream in (True, False):
        engine, _ = fake_engine(max_num_seqs=1)
        one(engine, grammar=GRAMMAR, max_tokens=48)  # who waits for its compilation is passed by others: another cache
        requests = [msgspec.structs.replace(request, stream=stream) for request in requests_over_a_tree(60)]
        heard = generate(engine, requests)
        if not stream:
            assert all(len(answer.outputs) <= 2 for answer in heard)
        results.append([said(answer) for answer in heard])
        engine.close()
    assert results[0] == results[1]


def test_many_log_probabilities_are_said_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read those of 24,000 tokens, all said at the end, took the server 240 ms, in which nobody else went on."""
    monkeypatch.setattr(generation, "TOLD_LOGPROBS", 8, raising=False)
    engine, _ = fake_engine()
    whole = one(engine, max_tokens=40, temperature=0.0, logprobs=2)
    for logprobs, num_outputs in ((2, 6), (None, 2)):
        sampling = SamplingParams(max_tokens=40, temperature=0.0, logprobs=logprobs)
        (heard,) = generate(engine, [Request(id="r", prompt=prompt("hello"), sampling=sampling, stream=False)])
        assert len(heard.outputs) == num_outputs
        assert (heard.text, heard.tokens) == (whole.text, whole.tokens)
        if logprobs:
            assert list(heard.logprobs) == list(whole.logprobs)
            assert max(len(output.logprobs or ()) for output in heard.outputs) == 8
    engine.close()


def test_what_had_come_is_said_at_an_early_end() -> None:
    engine, runner = fake_engine()
    whole = one(engine, max_tokens=30, temperature=0.0, logprobs=0)
    sampling = SamplingParams(max_tokens=30, temperature=0.0, logprobs=0)
    stopped, failed = Heard(), Heard()
    for heard in (stopped, failed):
        engine.submit(Request(id="r", prompt=prompt("hello"), sampling=sampling, stream=False), heard)
        for _ in range(4):
            engine.step()
        if heard is stopped:
            engine.abort("r")
        else:
            runner.fails = 1
            engine.step()
    assert (stopped.finish.reason, failed.code) == ("abort", "internal_error")
    for heard in (stopped, failed):
        assert len(heard.outputs) == 2
        assert 3 <= len(heard.tokens) < 30
        assert heard.tokens == whole.tokens[: len(heard.tokens)]
        assert len(heard.logprobs) == len(heard.tokens)
        assert heard.text and whole.text.startswith(heard.text)
    engine.close()
