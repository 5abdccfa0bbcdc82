"""Guesses change how many passes it takes, and nothing else."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from bough.constrain import GrammarCompiler, Matcher
from bough.constrain.matchers import completion
from bough.constrain.spec import Choice, GrammarSpec, JsonSchema, Regex, Structural, Tag
from bough.runtime.engine.engine import Engine
from bough.runtime.engine.speculation import (
    MAX_SPECULATED,
    Experience,
    Place,
    Skeleton,
    Skeletons,
    Speculation,
    Worth,
)
from bough.runtime.engine.step_size import PassTimes, Patience
from bough.runtime.protocol.counters import Counters
from bough.runtime.protocol.request import FORCED, Request
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import FakeRunner, byte_tokenizer, fake_engine
from ..listening import Heard, drive
from .test_engine import generate, prompt

CHEAP = 0.01
GREEDY = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)
SCHEMA = JsonSchema(
    '{"type": "object", "properties": {"aa": {"type": "string", "maxLength": 40}, "ab": {"enum": ["abab", "abba"]}},'
    ' "required": ["aa", "ab"], "additionalProperties": false}'
)


def babble(runner: FakeRunner) -> None:
    """The model says little but a and b, so that much is said again, and guesses are right and wrong."""
    runner.bias = {ord("a"): 9.0, ord("b"): 9.0, ord("<"): 4.0, ord('"'): 3.0}


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows cost next to nothing: all that can be guessed is. Nothing depends on how fast the machine is."""
    monkeypatch.setattr(Worth, "price", lambda self, num_sequences: CHEAP)
    monkeypatch.setattr(completion, "SEARCH_TIME_S", math.inf)


def engines(**settings: Any) -> Iterator[Engine]:
    """Without guesses, and with them."""
    for speculation in ("off", "auto"):
        engine, runner = fake_engine(ahead=0, speculation=speculation, **settings)
        babble(runner)
        yield engine
        engine.close()


def everything(heard: list[Heard]) -> list[tuple]:
    """All that was said, to the bit. Which forced tokens were foreseen, and what was cached, depends on the passes."""
    return [
        (
            one.tokens,
            one.text,
            one.logprobs,
            one.finish.reason,
            one.finish.matched,
            msgspec.structs.replace(one.finish.usage, cached_tokens=0, forced_tokens=0),
        )
        for one in heard
    ]


def requests(count: int = 60) -> list[Request]:
    """Requests of every kind."""
    rng = random.Random(1)
    grammars: list[GrammarSpec | None] = [
        None,
        SCHEMA,
        Regex("(ab|ba|aab){2,20}"),
        Choice(("abababab", "abbaabba", "bbbbaaaa")),
        Structural((Tag("<a", Regex("[ab]{4}"), "a>"),)),
    ]
    made = []
    for index in range(count):
        sampling = rng.choice(
            [
                SamplingParams(max_tokens=rng.randrange(1, 60), temperature=0.0),
                SamplingParams(max_tokens=60, temperature=0.8, top_p=0.9, seed=index, logprobs=3),
                SamplingParams(max_tokens=40, temperature=1.1, top_k=9, min_p=0.02, seed=index, min_tokens=12),
                SamplingParams(max_tokens=60, temperature=0.7, seed=index, stop=("abba", "bbb"), logprobs=0),
                SamplingParams(max_tokens=60, temperature=1.0, seed=index, stop_regex="b+a+b", include_stop=True),
                SamplingParams(max_tokens=60, temperature=1.0, seed=index, stop_token_ids=(ord("<"),)),
                SamplingParams(max_tokens=30, temperature=0.9, seed=index, frequency_penalty=0.3),
                SamplingParams(max_tokens=30, temperature=0.5, seed=index, logit_bias={ord("a"): 1.0}),
            ]
        )
        text = "".join(rng.choice(["ab", "ba", "abb", "c"]) for _ in range(rng.randrange(2, 30)))
        grammar = grammars[index % len(grammars)]
        made.append(Request(id=str(index), prompt=prompt(text), sampling=sampling, grammar=grammar))
    return made


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 1},
        {},
        {"max_batch_tokens": 16, "max_num_seqs": 16},
        {"page_size": 16, "num_pages": 600},
        {"num_pages": 260, "max_num_seqs": 32},
        {"jump_forward": False},
    ],
    ids=["alone", "batched", "chunked", "pages of 16", "retracted", "nothing forced"],
)
@pytest.mark.usefixtures("cheap")
def test_answers_are_the_same_with_and_without(settings: dict) -> None:
    answers, steps = [], []
    for engine in engines(**settings):
        answers.append(everything(generate(engine, requests())))
        stats = engine.stats()
        steps.append(stats.steps_total)
        if settings.get("num_pages") == 260:
            assert stats.preemptions_total > 0
        assert engine.flush_cache()
        assert engine.stats().free_pages == stats.num_pages
    assert answers[0] == answers[1]
    assert 0 < stats.right_guesses_total < stats.guessed_tokens_total
    if settings.get("max_num_seqs") == 1:  # else rows that are not cheap at all are taken from prompts
        assert steps[1] < steps[0]


@pytest.mark.usefixtures("cheap")
def test_samples_of_one_prompt_have_guesses_of_their_own() -> None:
    sampling = SamplingParams(max_tokens=60, temperature=1.0, logprobs=2)
    of_one_prompt = [
        Request(id=str(seed), prompt=prompt("abababba" * 4), sampling=msgspec.structs.replace(sampling, seed=seed))
        for seed in range(8)
    ]
    without, with_guesses = (everything(generate(engine, of_one_prompt)) for engine in engines())
    assert without == with_guesses
    assert len({tuple(answer[0]) for answer in without}) > 1


@pytest.mark.usefixtures("cheap")
def test_who_is_aborted_leaves_nothing_and_changes_nobody() -> None:
    answers = []
    for engine in engines():
        heard = [Heard() for _ in range(12)]
        for request, one in zip(requests(12), heard, strict=True):
            engine.submit(request, one)
        for _ in range(5):
            engine.step()
        for number in range(0, 12, 3):
            engine.abort(str(number))
        drive(engine)
        answers.append(everything([one for number, one in enumerate(heard) if number % 3]))
        assert engine.flush_cache()
        assert engine.stats().free_pages == engine.stats().num_pages
    assert answers[0] == answers[1]


@pytest.mark.usefixtures("cheap")
def test_what_repeats_takes_few_passes() -> None:
    engine, runner = fake_engine(ahead=0)
    runner.bias = {ord("a"): 1000.0}
    (heard,) = generate(engine, [Request(id="r", prompt=prompt("x"), sampling=GREEDY)])
    stats = engine.stats()
    assert heard.tokens == [ord("a")] * 48
    assert stats.steps_total < 10
    assert stats.right_guesses_total > 38
    assert FORCED not in [origin for output in heard.outputs for origin in output.origins]
    engine.close()


@pytest.mark.usefixtures("cheap")
def test_nobody_is_put_back_for_a_guess() -> None:
    engine, runner = fake_engine(ahead=0, num_pages=2 * 50 + 1, max_num_seqs=2)
    runner.bias = {ord("a"): 1000.0}
    pair = [Request(id=name, prompt=prompt(name), sampling=GREEDY) for name in "xy"]
    generate(engine, pair)
    assert engine.stats().right_guesses_total > 0
    assert engine.stats().preemptions_total == 0
    engine.close()


@pytest.mark.parametrize("settings", [{"speculation": "off"}, {"ahead": 2}], ids=["off", "a device ahead"])
@pytest.mark.usefixtures("cheap")
def test_nothing_is_guessed_where_it_is_not_to_be(settings: dict) -> None:
    engine, runner = fake_engine(**({"ahead": 0} | settings))
    runner.bias = {ord("a"): 1000.0}
    generate(engine, [Request(id="r", prompt=prompt("x"), sampling=GREEDY)])
    assert engine.stats().guessed_tokens_total == 0
    engine.close()


RECORD = JsonSchema(
    '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "kind": {"enum": ["a", "b"]}, '
    '"home": {"type": "object", "properties": {"town": {"type": "string", "maxLength": 9}}, "required": ["town"]}}, '
    '"required": ["name", "kind", "home"], "additionalProperties": false}'
)


def records(count: int, namespace: str = "") -> list[Request]:
    return [
        Request(
            id=str(seed),
            prompt=prompt(f"{seed}: "),
            sampling=SamplingParams(max_tokens=160, temperature=0.7, seed=seed),
            grammar=RECORD,
            namespace=namespace,
        )
        for seed in range(count)
    ]


@pytest.fixture
def only_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked up in a sequence's own tokens."""
    monkeypatch.setattr(Speculation, "_chance", lambda self, size: 0.0)


@pytest.mark.usefixtures("cheap", "only_others")
def test_answers_under_one_schema_are_guessed_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, right = [], []
    for shared in (False, True):
        engine, runner = fake_engine(ahead=0, max_num_seqs=4)
        babble(runner)
        if not shared:
            monkeypatch.setattr(engine._drafts.skeletons, "start", lambda request: None)
        heard.append(everything(generate(engine, records(6))))
        right.append(engine.stats().right_guesses_total)
        engine.close()
    assert heard[0] == heard[1]
    assert right[0] == 0
    assert right[1] > 3


@pytest.mark.usefixtures("cheap", "only_others")
def test_namespaces_learn_nothing_of_each_other() -> None:
    engine, runner = fake_engine(ahead=0, max_num_seqs=1)
    babble(runner)
    right = [0]
    for namespace in ("a", "b", "b"):
        (heard,) = generate(engine, records(1, namespace))
        right.append(engine.stats().right_guesses_total)
    in_a, in_b, again = (after - before for before, after in itertools.pairwise(right))
    assert again > len(heard.tokens) / 2
    assert max(in_a, in_b) < again / 2
    engine.close()


@pytest.mark.parametrize("known", ["of other texts", "nothing"])
@pytest.mark.usefixtures("cheap")
def test_what_is_taught_wrongly_changes_no_answer(known: str) -> None:
    heard = []
    for engine in engines(max_num_seqs=4):
        texts = [bytes([(7 * token) % 256]) * (token % 3) for token in range(258)] if known == "of other texts" else []
        engine._drafts.skeletons = Skeletons(texts)
        for request in records(5):  # all that can be predicted is wrong, or forbidden
            place = engine._drafts.skeletons.start(request)
            for token in (257, 300, -1, ord("{"), ord("z")):
                assert place is not None
                place = place.teach([token] * 40)
        heard.append(everything(generate(engine, records(5))))
        engine.close()
    assert heard[0] == heard[1]


# Guesses of one sequence


def after(text: str, *others: str) -> Place:
    """The place after `text` in the skeleton of `others`."""
    skeleton = Skeleton([bytes([byte]) for byte in range(256)])
    for other in others:
        skeleton.start.teach(other.encode())
    place = skeleton.start
    for token in text.encode():
        place = place.follow(token)
    return place


def test_what_other_answers_went_on_with_is_guessed_first() -> None:
    counters, text = Counters(), '{"name": "Zoe", "na'
    speculation = Speculation(Experience(counters), after(text, *['{"name": "Anna", "nation": "F'] * 20))
    drafts: list[int] = []
    speculation.extend(drafts, prompt(text), None, price=0.7, room=32, ends=(), jumps=True, patience=Patience(1.0))
    assert bytes(drafts) == b'tion": "F'
    speculation.settle(drafts, [*b'tion": "', ord("D")])
    assert (counters.guessed_tokens, counters.right_guesses) == (9, 8)
    own: list[int] = []
    speculation.extend(
        own, prompt(text + 'tion": "D'), None, price=0.7, room=32, ends=(), jumps=True, patience=Patience(1.0)
    )
    assert own == []


def test_where_others_tell_too_little_its_own_text_may_tell_more() -> None:
    text = 'a tale of Zoe the sailor. {"name": "a tale of '
    speculation = Speculation(
        Experience(Counters()), after('{"name": "a tale of ', '{"name": "a tale of ', '{"name": "b')
    )
    drafts: list[int] = []
    speculation.extend(drafts, prompt(text), None, price=0.3, room=10, ends=(), jumps=True, patience=Patience(1.0))
    assert bytes(drafts).startswith(b"Zoe")


def guess(text: str, *, price: float = CHEAP, room: int = 32, grammar: Matcher | None = None, drafts: str = "") -> str:
    found = list(drafts.encode())
    Speculation(Experience(Counters())).extend(
        found,
        prompt(text),
        grammar,
        price=price,
        room=room,
        ends=(257, ord("!")),
        jumps=True,
        patience=Patience(1.0),
    )
    return bytes(found).decode()


def test_what_followed_the_last_time_is_guessed() -> None:
    assert guess("the cat sat. the cat", room=4) == " sat"
    assert guess("nothing here twc") == ""
    assert guess("so it goes on! so it", price=0.0) == " goes on"
    assert guess("say. it is so. it is so. ", drafts="it") == "it is so. it is so. "[: 2 + MAX_SPECULATED]


def test_a_loop_goes_round() -> None:
    assert guess("xabcdabcdab", room=9) == "cdabcdabc"


def test_as_much_is_guessed_as_is_worth_its_rows() -> None:
    text = "what was said before, at some length, is said again: what was said b"
    lengths = [len(guess(text, price=price)) for price in (0.01, 0.2, 0.5, 0.7, 0.9, 1.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == MAX_SPECULATED
    assert 0 < lengths[3] < lengths[1] < MAX_SPECULATED
    assert lengths[-2:] == [0, 0]


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(byte_tokenizer().vocabulary(258))
    yield made
    made.close()


@pytest.fixture
def matcher(compiler: GrammarCompiler) -> Callable[[GrammarSpec, str], Matcher]:
    def make(spec: GrammarSpec, text: str) -> Matcher:
        made = compiler.submit(spec).result().matcher()
        for token in text.encode():
            made.accept(token)
        return made

    return make


def test_a_long_prompt_is_not_looked_through_for_a_short_answer() -> None:
    text = "as it was said before. " * 100
    assert guess(text, room=4) == ""
    assert guess(text, room=400) == "as it was said b"


def test_guesses_are_cut_where_the_grammar_forbids_them(matcher: Callable[[GrammarSpec, str], Matcher]) -> None:
    at = matcher(Regex("ab(c|d)[x-z]{3}[0-9]"), "ab")
    assert guess("zabq. zab", grammar=at) == ""
    assert guess("zabcxq. zab", grammar=at) == "cx"
    at.accept(ord("c"))  # it stands where it stood


def test_what_is_forced_after_a_guess_comes_along(matcher: Callable[[GrammarSpec, str], Matcher]) -> None:
    spec = Regex("(north|south): (up|down)[.]")
    assert guess("go n, go n", room=9, grammar=matcher(spec, "")) == ""
    assert guess("to go no. to go n", room=20, grammar=matcher(spec, "n"), drafts="orth: ") == "orth: "
    assert guess("orth: down: north: ", room=20, grammar=matcher(spec, "north: ")) == "down."


def test_no_mask_is_needed_after_the_guesses_where_none_is_made(
    matcher: Callable[[GrammarSpec, str], Matcher],
) -> None:
    at = matcher(Structural((Tag("<a", Regex("[ab]{4}"), "a>"),)), "so ")
    assert at.free
    found = guess("so x<aabab so ", grammar=at)
    assert "x".startswith(found) or found == "x<"
    trial = at.copy()
    for token in found.encode():
        trial.accept(token)
        assert trial.free


def test_what_was_right_is_guessed_further_and_what_was_wrong_is_not() -> None:
    counters = Counters()
    speculation = Speculation(Experience(counters))
    tokens = list(range(20)) * 2
    lengths = []

    def once(right: bool) -> int:
        drafts: list[int] = []
        speculation.extend(drafts, tokens, None, price=0.3, room=32, ends=(), jumps=True, patience=Patience(1.0))
        came = [*drafts, drafts[-1] + 1] if right and drafts else [-1]
        speculation.settle(drafts, came)
        return len(drafts)

    lengths = [once(True) for _ in range(8)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]
    assert counters.guessed_tokens == counters.right_guesses == sum(lengths)
    worse = list(itertools.takewhile(bool, (once(False) for _ in range(60))))
    assert 0 < len(worse) < 40
    again = [once(False) for _ in range(400)]
    assert 0 < sum(map(bool, again)) < 60  # it is tried again, but rarely


# What a row costs


class Priced:
    """A price by what was seen."""

    def __init__(self) -> None:
        self._times = PassTimes()
        self._worth = Worth(self._times)
        self.price = self._worth.price

    def observe(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        self._times.observe(num_rows, 0, 0.0, seconds)
        self._worth.observe(num_tokens, seconds)


def settled(rows: Callable[[int], int], row_s: float, fixed_s: float, noise: float = 0.0) -> Priced:
    rng, costs = random.Random(0), Priced()
    for index in range(400):
        count = rows(index)
        costs.observe(count, 1, (fixed_s + row_s * count) * rng.uniform(1 - noise, 1 + noise))
    return costs


def test_before_anything_was_seen_guesses_pay_in_small_batches() -> None:
    prices = [Priced().price(count) for count in (1, 8, 64)]
    assert prices == sorted(prices)
    assert prices[0] < 0.1
    assert prices[2] > 0.9


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize(("row_s", "low", "high"), [(0.001, 0.05, 0.2), (0.005, 0.3, 0.75), (0.0001, 0.01, 0.06)])
def test_the_price_follows_what_is_seen(row_s: float, low: float, high: float, noise: float) -> None:
    costs = settled(lambda index: 1 + index % 5, row_s, 0.010, noise)
    assert low < costs.price(1) < high


def test_passes_of_one_size_tell_nothing_of_a_row() -> None:
    costs = settled(lambda index: 1, 0.001, 0.010)
    assert costs.price(1) == pytest.approx(Priced().price(1), rel=0.05)


def test_a_large_batch_is_seen_at_once() -> None:
    costs = settled(lambda index: 1 + index % 5, 0.001, 0.010)
    assert costs.price(64) > 0.9


def test_one_slow_pass_changes_little() -> None:
    costs = settled(lambda index: 1 + index % 5, 0.001, 0.010)
    before = costs.price(1)
    costs.observe(1, 1, 10.0)
    assert costs.price(1) == pytest.approx(before, rel=0.5)


def test_a_clock_that_stands_still_does_no_harm() -> None:
    costs = Priced()
    for _ in range(20):
        costs.observe(3, 3, 0.0)
    assert 0.0 < costs.price(1) < 1.0
