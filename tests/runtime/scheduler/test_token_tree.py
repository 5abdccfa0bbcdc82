"""Choices as a tree of tokens: the same numbers as one by one, with what is shared computed once."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bough.runtime.engine.engine import Engine
from bough.runtime.load.load_torch import load_engine
from bough.runtime.programs.choices import score_choices
from bough.runtime.programs.executor import Executor
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Gen, Op, Select, SelectMethod, Text
from bough.runtime.protocol.request import Request, RequestOutput, TokenTree
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.scheduler.token_tree import TreeLayout, plant

from ...support.fakes import fake_engine
from ...support.tiny_model import write_tiny_model
from ..programs.oracle import Oracle, assert_all_free, drive, executor_of, run
from ..programs.place import GREEDY
from ..programs.test_choices import METHODS

SCORE = SamplingParams(max_tokens=0, temperature=0.0)
WORDS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=5), min_size=1, max_size=12)


def paths(tokens: Sequence[int], tree: TokenTree) -> list[list[int]]:
    """The path of each token of a prompt: all that come before it, and itself."""
    first = len(tokens) - len(tree.parents)
    found: list[list[int]] = []
    for index, token in enumerate(tokens):
        parent = index - 1 if index < first else tree.parents[index - first]
        found.append([*(found[parent] if parent >= 0 else []), token])
    return found


@given(st.lists(st.integers(1, 3), max_size=4), WORDS, st.integers(1, 30))
def test_each_choice_is_a_path(prompt: list[int], choices: list[list[int]], max_tokens: int) -> None:
    trees = list(plant(prompt, choices, max_tokens))
    told: dict[int, list[tuple[list[int], int]]] = {}
    for tree in trees:
        before = paths(tree.tokens, tree.tree)
        assert tree.tokens[: len(prompt)] == prompt
        assert len(tree.tree.targets) == len(tree.tokens) + 1 - tree.score_from
        assert len(set(map(tuple, before))) == len(before), "something is computed twice"
        assert len(tree.choices) == 1 or len(tree.tokens) <= max_tokens
        for choice, path in zip(tree.choices, tree.paths, strict=True):
            assert choice not in told
            told[choice] = [(before[tree.score_from - 1 + entry], token) for entry, token in path]
            assert all(token in tree.tree.targets[entry] for entry, token in path)
    for index, tokens in enumerate(choices):
        asked = [([*prompt, *tokens[:count]], token) for count, token in enumerate(tokens) if prompt or count]
        assert told.get(index, []) == asked


@given(st.lists(st.integers(1, 3), max_size=4), WORDS, st.data())
def test_the_stretches_of_a_tree(prompt: list[int], choices: list[list[int]], data: st.DataObject) -> None:
    for tree in plant(prompt, choices, 1000):
        layout, before = TreeLayout(len(tree.tokens), tree.tree), paths(tree.tokens, tree.tree)
        assert before[layout.num_linear - 1] == tree.tokens[: layout.num_linear]
        start = data.draw(st.integers(0, len(tree.tokens)))
        stop = data.draw(st.integers(start, len(tree.tokens)))
        covered: list[int] = []
        for low, high, path in layout.rows(start, stop):
            assert [tree.tokens[index] for index in path] == before[high - 1]
            assert path[-(high - low) :].tolist() == list(range(low, high))
            covered += range(low, high)
        assert covered == list(range(start, stop))


def test_a_layout_that_waits_holds_no_paths() -> None:
    """Paths of a thousand choices after a long prompt take 33 MB, and many selects may wait."""
    tracemalloc.start()
    try:
        (tree,) = plant([0] * 4000, [[1 + number, 0] for number in range(1024)], 1 << 20)
        before = tracemalloc.get_traced_memory()[0]
        layout = TreeLayout(len(tree.tokens), tree.tree)
        assert tracemalloc.get_traced_memory()[0] - before < 400_000
    finally:
        tracemalloc.stop()
    assert [len(path) for _, _, path in layout.rows(3000, len(tree.tokens))] == [4001] * 1024


# Through the engine


LONG = "the quick brown fox jumps over the lazy dog and then it "
FAMILIES: dict[str, tuple[str, ...]] = {
    "long shared beginnings": tuple(LONG + end for end in ("runs", "runs away", "rests", "eats", "eats well", "r")),
    "one": ("yes",),
    "twice the same": ("yes", "no", "yes"),
    "nothing shared": ("a", "bc", "def"),
    "prefixes": ("a", "ab", "abc", "abcd"),
    "deep": tuple("x" * (count + 1) + "y" for count in range(20)),
    "characters of several tokens": ("né", "nè", "日本", "日木", "🦊", "🦝"),
}


LIMITS: list[tuple[SelectMethod, dict[str, int]]] = [
    *((method, {}) for method in METHODS),
    ("unconditional_likelihood_normalized", {"max_batch_tokens": 3}),
    ("unconditional_likelihood_normalized", {"page_size": 4}),
    ("likelihood", {"enable_prefix_caching": False}),
]


@pytest.mark.parametrize("choices", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize(("method", "limits"), LIMITS, ids=str)
def test_scores_are_those_of_the_model(method: SelectMethod, choices: tuple[str, ...], limits: dict[str, int]) -> None:
    engine, _ = fake_engine(**limits)
    executor = executor_of(engine, lambda: 0.0, max_states=4)
    ops: list[Op] = [Text(0, ("Well: ",)), Select(0, "s", choices, method)]
    heard = run(executor, engine, [*ops, Gen(0, "g", GREEDY)])
    value = heard.values[0, "s"]
    encode, oracle = engine.tokenizer.encode, Oracle()
    conditional = [oracle.logprobs(encode("Well: "), encode(choice)) for choice in choices]
    unconditional = [[0.0, *oracle.logprobs(encode(choice)[:1], encode(choice)[1:])] for choice in choices]
    expected = score_choices(method, conditional, unconditional)
    assert value.scores == pytest.approx(expected, abs=1e-4)
    assert value.choice_logprobs is not None
    assert [[entry.token for entry in entries] for entries in value.choice_logprobs] == [encode(c) for c in choices]
    assert value.text == choices[expected.index(max(expected))]
    assert heard.texts[0, "g"] == oracle.generate(encode("Well: " + value.text), GREEDY)[1]
    assert_all_free(engine)
    engine.close()


def one_by_one(engine: Engine, prompt: str, choices: Sequence[str]) -> list[list[float]]:
    """The log-probabilities of each choice's tokens, each choice as a request of its own."""
    found: list[list[float]] = []
    start = engine.tokenizer.encode(prompt)
    for index, choice in enumerate(choices):
        outputs: list[RequestOutput] = []
        tokens = (*start, *engine.tokenizer.encode(choice))
        engine.submit(Request(id=str(index), prompt=tokens, sampling=SCORE, score_from=len(start)), outputs.append)
        drive(engine)
        found.append([entry.logprob for entry in outputs[-1].logprobs or ()])
    return found


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    engine = load_engine(EngineConfig(model=str(folder), num_pages=4096, dtype="float32"))
    yield engine
    engine.close()


@pytest.mark.parametrize("choices", FAMILIES.values(), ids=FAMILIES)
def test_a_real_model_says_the_same_of_a_tree(tiny: Engine, choices: tuple[str, ...]) -> None:
    executor = executor_of(tiny, lambda: 0.0, max_states=4)
    expected = one_by_one(tiny, "Which one? ", choices)
    assert tiny.flush_cache()
    steps, computed = tiny.counters.steps, tiny.counters.computed_tokens
    value = run(executor, tiny, [Text(0, ("Which one? ",)), Select(0, "s", choices)]).values[0, "s"]
    assert tiny.counters.steps - steps == 1
    encode = tiny.tokenizer.encode
    nodes = {tuple(encode(choice)[:count]) for choice in choices for count in range(1, len(encode(choice)))}
    assert tiny.counters.computed_tokens - computed == len(encode("Which one? ")) + len(nodes)
    assert value.choice_logprobs is not None
    for entries, numbers in zip(value.choice_logprobs, expected, strict=True):
        assert [entry.logprob for entry in entries] == pytest.approx(numbers, abs=1e-5)


def test_what_choices_share_is_computed_once() -> None:
    engine, _ = fake_engine(max_batch_tokens=4096)
    executor = executor_of(engine, lambda: 0.0, max_states=4)
    choices = tuple(f"{LONG}{number:02}" for number in range(64))
    heard = run(executor, engine, [Text(0, ("x" * 100,)), Select(0, "s", choices)])
    assert heard.done.requests == 1
    assert engine.counters.steps == 1
    assert engine.counters.computed_tokens == 100 + len(LONG) + 7  # the tens, and no last digit
    engine.close()


def test_choices_that_do_not_fit_together_are_several_trees() -> None:
    engine, _ = fake_engine(num_pages=200)
    executor = executor_of(engine, lambda: 0.0, max_states=4)
    choices = tuple(f"{number:02}" + "z" * 60 for number in range(10))
    heard = run(executor, engine, [Text(0, ("x" * 50,)), Select(0, "s", choices)])
    assert heard.done.requests == 5
    oracle, encode = Oracle(), engine.tokenizer.encode
    expected = [sum(oracle.logprobs(encode("x" * 50), encode(choice))) for choice in choices]
    assert heard.values[0, "s"].scores == pytest.approx(expected, abs=1e-4)
    assert_all_free(engine)
    too_long = executor_error(executor, engine, "x" * 50, ("a", "z" * 200))
    assert too_long == "context_length_exceeded"
    engine.close()


def executor_error(executor: Executor, engine: Engine, prompt: str, choices: tuple[str, ...]) -> str:
    return run(executor, engine, [Text(0, (prompt,)), Select(0, "s", choices)], "error").failed.error.code


def test_a_tree_that_is_put_back_to_wait_starts_again() -> None:
    endless = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    choices = tuple(f"{a}{b}{c}zzzz." for a in "abc" for b in "de" for c in "fg")
    results = []
    for num_pages in (4096, 80):
        engine, _ = fake_engine(num_pages=num_pages, max_batch_tokens=5)
        executor = executor_of(engine, lambda: 0.0, max_states=4)
        engine.submit(Request(id="long", prompt=(200, 201, 202), sampling=endless), lambda _: None)
        heard = run(executor, engine, [Text(0, ("prompt",)), Select(0, "s", choices)])
        results.append(heard.values[0, "s"].scores)
        assert (engine.stats().preemptions_total > 0) == (num_pages == 80)
        assert_all_free(engine)
        engine.close()
    assert results[0] == results[1]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_nothing_of_a_tree_is_mistaken_for_a_prompt(seed: int) -> None:
    """Its tokens lie in a row in the cache's pages, but only those that follow one another may be found there."""
    rng = random.Random(seed)
    engine, _ = fake_engine(num_pages=rng.choice([64, 4096]), max_batch_tokens=rng.choice([4, 512]))
    executor = executor_of(engine, lambda: 0.0, max_states=4)
    oracle, encode = Oracle(), engine.tokenizer.encode
    for number in range(4):
        prompt = "ab" * rng.randrange(1, 3)
        choices = tuple("".join(rng.choices("ab", k=rng.randrange(1, 5))) for _ in range(rng.randrange(1, 5)))
        ops: list[Op] = [Text(0, (prompt,)), Select(0, "s", choices), Gen(0, "g", GREEDY)]
        value = run(executor, engine, ops, str(number)).values[0, "s"]
        expected = [sum(oracle.logprobs(encode(prompt), encode(choice))) for choice in choices]
        assert value.scores == pytest.approx(expected, abs=1e-4)
        text = "ab" + "".join(rng.choices("ab", k=6))
        heard = run(executor, engine, [Text(0, (text,)), Gen(0, "g", GREEDY)], f"check{number}")
        assert heard.texts[0, "g"] == oracle.generate(encode(text), GREEDY)[1]
    engine._scheduler.cache.check([])
    assert_all_free(engine)
    engine.close()


TREE = TokenTree((1, 1), ((5, 6), (7,), (8,)))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"score_from": None}, "score_from"),
        ({"score_from": 1}, "score_from"),
        ({"tree": TokenTree((1, 3), TREE.targets)}, "tree"),
        ({"tree": TokenTree((-2, 1), TREE.targets)}, "tree"),
        ({"tree": TokenTree((1, 1), TREE.targets[:2])}, "tree"),
        ({"tree": TokenTree((1, 1), ((5,), (), (8,)))}, "tree"),
        ({"tree": TokenTree((1, 1), ((5,), (999,), (8,)))}, "tree"),
        ({"tree": TokenTree((1,) * 9, TREE.targets)}, "score_from"),
    ],
)
def test_what_is_no_tree_is_refused(fields: dict[str, object], param: str) -> None:
    engine, _ = fake_engine()
    asked = {"prompt": (1, 2, 5, 6), "score_from": 2, "tree": TREE, "sampling": SCORE}
    outputs: list[RequestOutput] = []
    engine.submit(Request(id="right", **asked), outputs.append)  # type: ignore[arg-type]
    drive(engine)
    assert [(entry.token, len(entry.top)) for entry in outputs[-1].logprobs or ()] == [(5, 1), (7, 0), (8, 0)]
    with pytest.raises(RequestError) as caught:
        engine.submit(Request(id="wrong", **{**asked, **fields}), outputs.append)  # type: ignore[arg-type]
    assert caught.value.param == param
    engine.close()


def test_an_engine_without_trees_refuses_them() -> None:
    engine, _ = fake_engine(page_size=4)
    assert not engine.takes_trees
    with pytest.raises(RequestError, match="no trees"):
        engine.submit(Request(id="r", prompt=(1, 2, 5, 6), score_from=2, tree=TREE, sampling=SCORE), lambda _: None)
    engine.close()
