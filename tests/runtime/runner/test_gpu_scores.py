"""Rows with log-probabilities, penalties, biases or a least length stay on the device with the rest of their batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ...support.triton_interpreter import HAS_GPU  # isort: skip

from bough.kernels import staging
from bough.kernels.decode_step.select import triton_drawing
from bough.kernels.sampling.reference import SampleRows, SampleTables, likeliest
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.request import Request, RequestOutput, TokenLogprob
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.runner import gpu_runner
from bough.runtime.runner.gpu_scores import DeviceScores, asking, fill
from bough.runtime.runner.runner import DrawSpec
from bough.runtime.sampler.rows import Row
from bough.runtime.sampler.torch_sampler import TorchSampler, draw_rows, to_draws
from bough.runtime.scheduler.scheduler import Plan

from ...support.tiny_model import write_tiny_model
from .test_gpu_runner import SCHEMA, make_engine

ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"logprobs": 3},
    "its own logprob": {"logprobs": 0, "temperature": 0.8},
    "frequency": {"frequency_penalty": 1.2},
    "presence": {"presence_penalty": 1.5, "temperature": 0.7},
    "repetition": {"repetition_penalty": 1.6},
    "bias": {"logit_bias": {70: 4.0, 71: 4.5, 5: -20.0}},
    "min_tokens": {"min_tokens": 9, "ignore_eos": False, "stop_token_ids": tuple(range(40, 90))},
    "all": {
        "logprobs": 20, "repetition_penalty": 1.3, "frequency_penalty": 0.3, "presence_penalty": -0.4,
        "logit_bias": {80: 3.0, 81: 2.5}, "temperature": 0.9, "top_p": 0.9,
    },
    "constrained": {"logprobs": 2, "presence_penalty": 0.6, "max_tokens": 21, "temperature": 1.2},
}  # fmt: skip

Answers = dict[str, tuple[list[int], list[TokenLogprob], str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def request_of(index: int, name: str) -> Request:
    stem = [50, 51, 52, 53, 54, 55, 56, 57] if index % 2 else []
    prompt = (*stem, *(40 + (7 * index + i) % 40 for i in range(3 + 2 * index)))
    sampling = {"max_tokens": 14 + index, "temperature": 0.0, "ignore_eos": True, "seed": index} | ASKED[name]
    grammar = SCHEMA if name == "constrained" else None
    return Request(id=f"{index} {name}", prompt=prompt, sampling=SamplingParams(**sampling), grammar=grammar)


def run(engine: Engine, requests: Sequence[Request]) -> Answers:
    heard: dict[str, list[RequestOutput]] = {request.id: [] for request in requests}
    for request in requests:
        engine.submit(request, heard[request.id].append)
    engine.wait_for_grammar(10.0)
    while not engine.idle or engine._live:
        engine.step()
    answers: Answers = {}
    for name, outputs in heard.items():
        finish = outputs[-1].finish
        assert finish is not None and finish.error is None, finish
        tokens = [token for output in outputs for token in output.tokens]
        answers[name] = (tokens, [entry for output in outputs for entry in output.logprobs or ()], finish.reason)
    return answers


def assert_same(answers: Answers, expected: Answers) -> None:
    for name, (tokens, logprobs, reason) in answers.items():
        assert (tokens, reason) == (expected[name][0], expected[name][2]), name
        assert len(logprobs) == len(expected[name][1])
        for one, other in zip(logprobs, expected[name][1], strict=True):
            # Passes of other shapes round the model's own sums otherwise.
            assert (one.token, [token for token, _ in one.top]) == (other.token, [token for token, _ in other.top])
            assert numbers(one) == pytest.approx(numbers(other), abs=1e-4), name


def numbers(entry: TokenLogprob) -> list[float]:
    assert entry.masked is not None
    return [entry.logprob, entry.masked, *(value for _, value in entry.top)]


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    return [request_of(index, name) for index, name in enumerate([*ASKED, *ASKED])]


@pytest.fixture(scope="module")
def expected(folder: Path, requests: list[Request]) -> Answers:
    """On the CPU, without a cache."""
    engine = make_engine(folder, gpu=False, enable_prefix_caching=False)
    try:
        return run(engine, requests)
    finally:
        engine.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"max_steps": 4},
        {"max_steps": 2, "max_batch_tokens": 16},
        {"max_steps": 4, "num_pages": 34},
        {"max_steps": 3, "overlaps": False},
    ],
    ids=str,
)
def test_the_same_answers_as_on_the_cpu(
    folder: Path, requests: list[Request], expected: Answers, settings: dict[str, Any]
) -> None:
    engine = make_engine(folder, gpu=True, **settings)
    assert_same(run(engine, requests), expected)
    if "num_pages" in settings:
        assert engine.stats().preemptions_total > 0
    assert_same(run(engine, requests), expected)  # with prompts that are cached, in slots that others had
    engine.close()


@pytest.mark.skipif(HAS_GPU, reason="nothing is interpreted here")
def test_the_same_answers_by_the_kernels(folder: Path, requests: list[Request], expected: Answers) -> None:
    drawing = triton_drawing(torch.device("cpu"), 6, 258)
    engine = make_engine(folder, gpu=True, max_steps=2, drawing=drawing, advance=drawing.advance)
    answers = run(engine, [request for request in requests[: len(ASKED)] if request.grammar is None])
    engine.close()
    assert_same(answers, expected)


@pytest.mark.parametrize("name", [name for name in ASKED if name not in ("plain", "constrained")])
def test_one_such_row_leaves_the_batch_on_the_device(
    folder: Path, name: str, expected: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode passes are launched with specs, of several steps; each pass is read once, and nothing else waits."""
    engine = make_engine(folder, gpu=True, max_steps=4)
    runner = engine._runner
    assert isinstance(runner, gpu_runner.GpuPasses)
    launches: list[tuple[int, bool]] = []
    downloads = 0
    launch, begin = runner.launch, staging.Download.__init__

    def watched(plans: Sequence[Plan], specs: Sequence[DrawSpec] | None) -> Any:
        if all(work.num_tokens == 1 for work in plans[0].work):
            launches.append((len(plans), specs is not None))
        return launch(plans, specs)

    def counted(self: staging.Download, tensors: Sequence[torch.Tensor]) -> None:
        nonlocal downloads
        downloads += 1
        begin(self, tensors)

    monkeypatch.setattr(runner, "launch", watched)
    monkeypatch.setattr(staging.Download, "__init__", counted)
    chosen = [request_of(0, "plain"), request_of(list(ASKED).index(name), name)]
    assert_same(run(engine, chosen), expected)
    engine.close()
    host = sum(not drawn for _, drawn in launches)
    assert host <= (3 if name == "min_tokens" else 0)  # the steps before the last token that is not allowed
    assert max(num_plans for num_plans, _ in launches) > 1
    assert downloads <= len(launches) + 2  # and those of the prompts


def test_a_pass_of_any_shape_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw does not wait for the device, though log-probabilities, scores and penalties are asked for."""
    engine = make_engine(folder, gpu=True, max_steps=1)
    stock = {name: getattr(torch.Tensor, name) for name in ("tolist", "item", "cpu", "numpy")}

    def draw(of: Any, logits: Any, rows: Sequence[Row], masks: Any, *rest: Any) -> Any:
        def forbidden(*_: Any) -> None:
            raise AssertionError("waits for the device")

        def draw(*arguments: Any, **options: Any) -> None:
            with monkeypatch.context() as allowed:  # the reference draws on the host
                for name, method in stock.items():
                    allowed.setattr(torch.Tensor, name, method)
                of(*arguments, **options)

        with monkeypatch.context() as watching:
            for name in stock:
                watching.setattr(torch.Tensor, name, forbidden)
            return draw_rows(draw, logits, rows, masks, *rest)

    monkeypatch.setattr(gpu_runner, "draw_rows", draw)
    heard: list[RequestOutput] = []
    scored = Request(id="s", prompt=tuple(range(40, 60)), sampling=SamplingParams(logprobs=1), score_from=3)
    engine.submit(scored, heard.append)
    answers = run(engine, [request_of(index, name) for index, name in enumerate(ASKED)])
    assert [len(answers[f"{index} {name}"][1]) > 0 for index, name in enumerate(ASKED)] == [
        "logprobs" in asked for asked in ASKED.values()
    ]
    assert len([entry for output in heard for entry in output.logprobs or ()]) == 17
    engine.close()


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("adjusted", [False, True])
def test_what_the_device_tells_is_what_draw_rows_tells(count: int, adjusted: bool) -> None:
    """To the bit: rows of a step are drawn by the same formulas, whoever knows how."""
    vocab, size = 3000, 9
    logits = torch.randn(size, vocab, generator=torch.Generator().manual_seed(count)) * 3
    bias = {7: 2.0, 9: -3.0} if adjusted else None
    params = [SamplingParams(temperature=0.0, logprobs=i if i < count else None, logit_bias=bias) for i in range(size)]
    draws = TorchSampler().sample(logits.numpy(), [Row(each) for each in params], None)
    specs = [DrawSpec(each, 0) for each in params]
    scores = DeviceScores(size, vocab, torch.device("cpu"), likeliest)
    rows, tables = SampleRows.greedy(size, "cpu"), SampleTables()
    if adjusted:
        ids = torch.full((1, 4), vocab, dtype=torch.int32)
        ids[0, :2] = torch.tensor([7, 9])
        counts = torch.zeros(1, vocab, dtype=torch.int16)
        tables = SampleTables(counts=counts, bias_ids=ids, bias_values=torch.tensor([[2.0, -3.0, 0.0, 0.0]]))
        rows.bias_row[:] = 0
    num_computed = scores.seat(asking(specs), size)
    assert count <= num_computed <= size
    lines = scores.begin(num_computed, logits, rows, tables)
    scores.end(lines, torch.tensor(draws.tokens))
    found = to_draws(draws.tokens)
    fill(found, specs, scores.values[:count].numpy())
    assert found.logprobs == draws.logprobs


def test_nobody_asks() -> None:
    scores = DeviceScores(4, 10, torch.device("cpu"), likeliest)
    assert scores.seat([], 4) == 0
    assert np.isfinite(scores.values.numpy()).all()
