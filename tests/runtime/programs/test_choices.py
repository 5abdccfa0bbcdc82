"""Selects: each method against scores worked out by hand, and through the executor against the model's own numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.runtime.programs.choices import probabilities, score_choices
from bough.runtime.protocol.program import Gen, Op, Select, SelectMethod, Text
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import byte_tokenizer, fake_engine
from .oracle import Oracle, assert_all_free, drive, executor_of, run

METHODS: tuple[SelectMethod, ...] = (
    "likelihood",
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)
LOGPROBS = st.lists(st.lists(st.floats(-20, 0, allow_subnormal=False), min_size=1, max_size=5), min_size=1, max_size=5)


def test_likelihood_is_the_sum() -> None:
    assert score_choices("likelihood", [[-1.0, -2.0], [-2.5]]) == [-3.0, -2.5]


def test_token_length_normalized_is_the_mean() -> None:
    assert score_choices("token_length_normalized", [[-1.0, -2.0], [-2.5]]) == [-1.5, -2.5]


def test_unconditional_likelihood_normalized_is_the_mean_gain() -> None:
    scores = score_choices("unconditional_likelihood_normalized", [[-1.0, -2.0], [-2.0]], [[0.0, -3.0], [0.0]])
    assert scores == [0.0, -2.0]


@pytest.mark.parametrize(
    ("logprobs", "order"),
    [
        ([[-0.1, -9.0], [-0.2, -0.1]], [0, 1]),  # the first token decides
        ([[-0.5, -1.0], [-0.5, -0.9], [-3.0, 0.0]], [1, 0, 2]),
        ([[-0.5, -0.4, -4.0], [-0.5, -0.4, -3.0], [-0.5, -0.9, 0.0]], [1, 0, 2]),
        ([[-0.5], [-0.5, -0.6]], [0, 1]),  # one that has ended goes on with its mean
        ([[-0.5], [-0.5, -0.4]], [1, 0]),
        ([[-math.inf], [-1.0]], [1, 0]),
    ],
)
def test_greedy_token_selection_goes_token_by_token(logprobs: list[list[float]], order: list[int]) -> None:
    scores = score_choices("greedy_token_selection", logprobs)
    assert sorted(range(len(scores)), key=lambda i: -scores[i]) == order


@given(LOGPROBS, st.sampled_from(METHODS[:3]))
def test_probabilities_sum_to_one_and_order_as_the_scores_do(logprobs: list[list[float]], method: SelectMethod) -> None:
    scores = score_choices(method, logprobs)
    chances = probabilities(scores)
    assert math.isclose(sum(chances), 1.0)
    assert chances[max(range(len(scores)), key=scores.__getitem__)] == max(chances)
    assert all(a >= b for i, a in enumerate(chances) for j, b in enumerate(chances) if scores[i] > scores[j])


@given(LOGPROBS)
def test_probabilities_under_likelihood_are_those_of_the_texts(logprobs: list[list[float]]) -> None:
    weights = [math.prod(math.exp(value) for value in values) for values in logprobs]
    assert probabilities(score_choices("likelihood", logprobs)) == pytest.approx(
        [weight / sum(weights) for weight in weights], rel=1e-9
    )


def test_choices_that_the_model_never_writes() -> None:
    assert probabilities([-math.inf, -1.0]) == (0.0, 1.0)
    assert probabilities([-math.inf, -math.inf]) == (0.5, 0.5)
    assert probabilities([-1e6, -1e6 - 1000]) == (1.0, 0.0)


CHOICES = ("yes", "no, never", "né", "y")
PROMPT = "Is it so? "


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("settings", [{}, {"max_batch_tokens": 4}, {"max_num_seqs": 1}], ids=str)
def test_scores_are_those_of_the_model(method: SelectMethod, settings: dict[str, int]) -> None:
    engine, _ = fake_engine(**settings)
    executor = executor_of(engine, lambda: 0.0, max_states=4)
    ops: list[Op] = [Text(0, (PROMPT,)), Select(0, "s", CHOICES, method)]
    heard = run(executor, engine, ops, keep=True)
    value = heard.values[0, "s"]
    encode = byte_tokenizer().encode
    oracle = Oracle()
    conditional = [oracle.logprobs(encode(PROMPT), encode(choice)) for choice in CHOICES]
    unconditional = [[0.0, *oracle.logprobs(encode(choice)[:1], encode(choice)[1:])] for choice in CHOICES]
    expected = score_choices(method, conditional, unconditional)
    assert value.scores == pytest.approx(expected, abs=1e-4)
    assert value.probabilities == pytest.approx(probabilities(expected), abs=1e-4)
    assert value.text == CHOICES[expected.index(max(expected))]
    assert heard.done.texts == {0: PROMPT + value.text}
    again = run(executor, engine, [Gen(0, "g", SamplingParams(max_tokens=3, temperature=0.0))], resume=True)
    assert again.texts[0, "g"] == oracle.generate(encode(PROMPT + value.text), SamplingParams(max_tokens=3))[1]
    assert_all_free(engine)
    engine.close()


def test_the_prompt_of_a_select_is_computed_once() -> None:
    engine, _ = fake_engine()
    executor = executor_of(engine, lambda: 0.0, max_states=4)
    prompt = "a rather long prompt that all choices share " * 4
    heard = run(executor, engine, [Text(0, (prompt,)), Select(0, "s", CHOICES)])
    num_tokens = sum(len(byte_tokenizer().encode(choice)) for choice in CHOICES)
    assert engine.counters.computed_tokens <= len(prompt) + num_tokens
    assert heard.done.requests == 1
    assert engine.counters.steps == 1
    engine.close()


def test_scores_do_not_change_when_pages_run_out() -> None:
    """Scoring that is put back to wait in the middle starts again, and gives each log-probability once."""
    endless = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    scored = Request(
        id="scored", prompt=tuple(range(60)), score_from=5, sampling=SamplingParams(max_tokens=0, temperature=0.0)
    )
    results = []
    for num_pages in (4096, 76):
        engine, _ = fake_engine(num_pages=num_pages, max_batch_tokens=5)
        outputs: list[RequestOutput] = []
        engine.submit(Request(id="long", prompt=(200, 201, 202), sampling=endless), lambda _: None)
        engine.submit(scored, outputs.append)
        drive(engine)
        assert (engine.stats().preemptions_total > 0) == (num_pages == 76)
        results.append([entry.logprob for entry in outputs[-1].logprobs or ()])
        engine.close()
    assert len(results[0]) == 55
    assert results[1] == results[0]
