"""Programs on peers: plans and how they are walked, checks of answers, rows of a report."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bough.benchmarks.peers import contest as peer_contest
from bough.benchmarks.peers.contest import Pairs
from bough.benchmarks.peers.programs import (
    BEST,
    BEST_CLIENT,
    WORKLOAD,
    Found,
    Level,
    Plans,
    ProgramSizes,
    Results,
    best_peer,
    check,
    failures,
    rows_of,
)
from bough.benchmarks.peers.sides import peer_side
from bough.benchmarks.peers.sides.peer_bough import BoughClient
from bough.benchmarks.peers.sides.peer_walk import (
    PRIMED_CHARS,
    Answer,
    Call,
    Plan,
    gbnf,
    gbnf_of_choices,
    run,
    run_serially,
    run_stepping,
    shared_heads,
)
from bough.runtime.tokenizer.load import load_tokenizer
from bough.runtime.tokenizer.tokenizer import Tokenizer

from ...support.tiny_model import write_tiny_model

LONG = "word " * PRIMED_CHARS
SIZES = ProgramSizes(0.05, (Level("2 at once", 2, 2), Level("one by one", 1, 1)))

FORKING: Plan = [
    ["text", 0, ["Topic."]],
    ["fork", 0, [1, 2]],
    ["gen", 0, "tip", 3, None],
    ["text", 1, ["One: ", [0, "tip"]]],
    ["gen", 1, "a", 3, None],
    ["text", 2, [" Two."]],
    ["gen", 2, "b", 3, None],
    ["join", 0, [1, 2]],
    ["text", 0, [" Both: ", [1, "a"], [2, "b"]]],
    ["gen", 0, "end", 3, None],
]


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_contest, "REST_S", 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def plans(tokenizer: Tokenizer) -> Plans:
    return Plans(tokenizer, SIZES)


def named(call: Call) -> Answer:
    return Answer(f"<{call.name}>", call.num_tokens)


def prompts_of(plans: Sequence[Plan]) -> tuple[list[str], dict[str, Any]]:
    prompts = []

    def answer(call: Call) -> Answer:
        prompts.append(call.prompt)
        return named(call)

    result = run_serially(plans, 60.0, answer)
    return prompts, result


class Engine:
    """Ends calls a step after they came, the latest first; keeps how many it had at once."""

    def __init__(self) -> None:
        self.seen: list[Call] = []
        self.most = 0

    def step(self, calls: list[Call]) -> list[tuple[Call, Answer]]:
        self.seen += calls
        self.most = max(self.most, len(calls))
        ended = calls[::-1]
        calls.clear()
        return [(call, named(call)) for call in ended]


class TestWalk:
    def test_prompts_are_what_the_program_says(self) -> None:
        prompts, result = prompts_of([FORKING])
        assert set(prompts) == {
            "Topic.",
            "Topic.One: <tip>",
            "Topic. Two.",
            "Topic.<tip> Both: <a><b>",
        }
        assert {(value[0], value[1]) for value in result["programs"][0]} == {(0, "tip"), (1, "a"), (2, "b"), (0, "end")}

    def test_what_can_run_side_by_side_does(self) -> None:
        engine = Engine()
        run_stepping([FORKING], 1, 60.0, engine.step)
        assert engine.most == 2

    def test_a_join_waits_for_branches_of_which_nothing_is_said(self) -> None:
        plan: Plan = [["fork", 0, [1]], ["gen", 1, "a", 1, None], ["join", 0, [1]], ["gen", 0, "end", 1, None]]
        engine = Engine()
        run_stepping([plan], 1, 60.0, engine.step)
        assert [call.name for call in engine.seen] == ["a", "end"]
        assert engine.most == 1

    def test_all_drivers_find_the_same(self) -> None:
        async def answer(call: Call) -> Answer:
            await asyncio.sleep(0)
            return named(call)

        plans = [FORKING, FORKING]
        found = [
            prompts_of(plans)[1],
            run_stepping(plans, 2, 60.0, Engine().step),
            asyncio.run(run(plans, 2, 60.0, answer)),
        ]
        assert [[sorted(values) for values in each["programs"]] for each in found] == [
            [sorted(values) for values in found[0]["programs"]]
        ] * 3

    @pytest.mark.parametrize("name", ["tip", "b", "end"])
    def test_a_failure_of_the_engine_is_raised_whoever_waits(self, name: str) -> None:
        async def fail(call: Call) -> Answer:
            await asyncio.sleep(0)
            if call.name == name:
                raise RuntimeError("no")
            return named(call)

        with pytest.raises(RuntimeError, match="no"):
            asyncio.run(run([FORKING], 1, 60.0, fail))

    def test_no_more_than_so_many_programs_at_once(self) -> None:
        single: Plan = [["text", 0, ["A"]], ["gen", 0, "x", 1, None]]
        engine = Engine()
        result = run_stepping([single] * 5, 2, 60.0, engine.step)
        assert engine.most == 2
        assert all(result["programs"])

    def test_without_time_only_what_was_begun_is_finished(self) -> None:
        single: Plan = [["text", 0, ["A"]], ["gen", 0, "x", 1, None]]
        result = run_serially([single] * 3, 0.0, named)
        assert [values is not None for values in result["programs"]] == [True, False, False]

    def test_a_choice_goes_on_with_the_choice(self) -> None:
        plan: Plan = [
            ["text", 0, ["A"]],
            ["select", 0, "x", [" b", " c"]],
            ["gen", 0, "y", 1, None],
        ]
        prompts = []

        def answer(call: Call) -> Answer:
            prompts.append(call.prompt)
            return Answer(call.choices[1]) if call.choices else Answer("!", 1)

        run_serially([plan], 60.0, answer)
        assert prompts == ["A", "A c"]


class TestPriming:
    def test_a_long_text_is_computed_before_its_branches(self) -> None:
        plan: Plan = [
            ["text", 0, [LONG]],
            ["fork", 0, [1, 2]],
            ["gen", 1, "a", 1, None],
            ["gen", 2, "b", 1, None],
        ]
        engine = Engine()
        run_stepping([plan], 1, 60.0, engine.step)
        assert [call.is_prime for call in engine.seen] == [True, False, False]
        assert engine.seen[0].prompt == LONG

    def test_a_short_text_is_not(self) -> None:
        engine = Engine()
        run_stepping([FORKING], 1, 60.0, engine.step)
        assert not any(call.is_prime for call in engine.seen)

    def test_nor_one_that_a_generation_has_computed(self) -> None:
        plan: Plan = [
            ["text", 0, [LONG]],
            ["gen", 0, "x", 1, None],
            ["fork", 0, [1, 2]],
            ["gen", 1, "a", 1, None],
            ["gen", 2, "b", 1, None],
        ]
        engine = Engine()
        run_stepping([plan], 1, 60.0, engine.step)
        assert not any(call.is_prime for call in engine.seen)

    def test_heads_of_several_programs(self) -> None:
        def program(head: str, question: str) -> Plan:
            return [["text", 0, [head]], ["text", 0, [question]], ["gen", 0, "x", 1, None]]

        plans = [program(LONG, "1"), program(LONG, "2"), program("own " * PRIMED_CHARS, "3"), program("short", "4")]
        assert shared_heads([*plans, program("short", "5")]) == [LONG]
        engine = Engine()
        result = run_stepping(plans, 4, 60.0, engine.step)
        assert [call.prompt for call in engine.seen if call.is_prime] == [LONG]
        assert engine.seen[0].is_prime
        assert all(result["programs"])

    def test_heads_of_branches_that_begin_empty(self) -> None:
        plan: Plan = [["fork", 0, [1]], ["text", 1, [LONG]], ["gen", 1, "x", 1, None]]
        assert shared_heads([plan, plan]) == [LONG]

    def test_one_by_one_nothing_is_computed_before(self) -> None:
        plan: Plan = [["text", 0, [LONG]], ["gen", 0, "x", 1, None]]
        engine = Engine()
        run_stepping([plan, plan], 1, 60.0, engine.step)
        assert [call.is_prime for call in engine.seen] == [False, False]


class TestPlans:
    def test_all_workloads_can_be_walked(self, plans: Plans) -> None:
        for name in plans.names:
            made = plans.make(name, 1, 2, roles=False)
            answer = run_serially(
                made, 60.0, lambda call: Answer(call.choices[0]) if call.choices else Answer("x", call.num_tokens)
            )
            found = check(made, answer)
            assert found.num_programs == len(made)
            assert found.num_short == 0

    def test_no_two_rounds_have_a_beginning_in_common(self, plans: Plans) -> None:
        for name in ("mmlu", "react", "rag", "skeleton"):
            first, second = (prompts_of(plans.make(name, number, 1, roles=False))[0][0] for number in (1, 2))
            assert first != second
            assert first[:8] != second[:8]
            assert first[8:] == second[8:]

    def test_what_programs_share_is_one_text(self, plans: Plans) -> None:
        made = {name: plans.make(name, 7, 2, roles=False) for name in ("hellaswag", "react", "rag")}
        for name, programs in made.items():
            first, second = (program[0][2] for program in programs)
            assert first == second, name
            assert len(first) == 1

    def test_messages_as_text_are_what_the_template_writes(self, plans: Plans, tokenizer: Tokenizer) -> None:
        (plan,) = plans.make("chat-short", 3, 1, roles=False)
        (spoken,) = plans.make("chat-short", 3, 1, roles=True)
        question = next(op[2][0] for op in spoken if op[0] == "text")
        prompt = prompts_of([plan])[0][0]
        tokens = tokenizer.encode_chat([{"role": "user", "content": question}])
        assert tokenizer.encode(prompt, special=True) == tokens
        assert not any(op[0] in ("role", "end") for op in plan)


class TestOurs:
    def test_programs_of_the_language_say_what_plans_say(self, folder: Path, plans: Plans) -> None:
        client = BoughClient({"model": str(folder), "settings": {"max_num_seqs": 8}})
        for name in ("hellaswag", "tree", "skeleton", "json", "chat-short"):
            for at_once, count in ((1, 1), (2, 2)):
                made = plans.make(name, at_once, count, roles=True)
                found = check(made, client.run(made, at_once, 60.0))
                assert found.num_programs == count
                assert found.num_short == 0
                assert found.num_patterned == (5 * count if name == "json" else 0)


class TestGbnf:
    @pytest.mark.parametrize(
        ("pattern", "grammar"),
        [
            (r"-?[0-9]{1,2}\.[0-9]{1,4}", '"-"? [0-9]{1,2} "." [0-9]{1,4}'),
            (r'"[A-Z]( [a-z]+)?"', r'"\"" [A-Z] ( " " [a-z]+ )? "\""'),
            (r"\[a|b\]", '"[" "a" | "b" "]"'),
        ],
    )
    def test_patterns(self, pattern: str, grammar: str) -> None:
        assert gbnf(pattern) == grammar

    def test_choices(self) -> None:
        assert gbnf_of_choices([" a.", 'b"\n\\']) == r'" a." | "b\"\n\\"'


def pairs_of(*ratios: float, num_matching: int = 0) -> Pairs[Found]:
    """Rounds in which ours takes a second for two programs."""
    ours = [Found(1.0, 2, 8, 0, num_matching, num_matching) for _ in ratios]
    return Pairs(ours, [Found(ratio, 2, 8, 0, 0, num_matching) for ratio in ratios])


class TestRows:
    def test_the_best_peer_is_the_one_we_are_least_ahead_of(self) -> None:
        key = ("mmlu", "2 at once")
        results: Results = {
            "slow": {key: pairs_of(9.0, 8.0)},
            "fast": {key: pairs_of(1.5, 2.0, 1.8)},
            "none": {key: Pairs(note="cannot")},
        }
        assert best_peer(results, key) == "fast"
        row, mean = rows_of(results, SIZES)
        assert (row.workload, row.peer) == ("mmlu, 2 at once", "fast")
        assert row.ratio == pytest.approx(1.8)
        assert "slow 8.5x" in row.note
        assert (mean.workload, mean.peer) == (WORKLOAD, BEST)

    def test_the_mean_is_over_the_best_of_each(self) -> None:
        one, two = ("a", "2 at once"), ("b", "2 at once")
        results: Results = {
            "x": {one: pairs_of(2.0), two: pairs_of(50.0)},
            "y": {one: pairs_of(3.0), two: pairs_of(8.0)},
        }
        mean = list(rows_of(results, SIZES))[-1]
        assert mean.ratio == pytest.approx(4.0)
        assert "the least is 2.00x" in mean.note

    def test_peers_that_nobody_can_have_so_have_a_mean_of_their_own(self) -> None:
        one, two = ("a", "2 at once"), ("b", "2 at once")
        results: Results = {
            "openvino": {one: pairs_of(2.0), two: pairs_of(3.0)},
            "vllm": {one: pairs_of(4.0), two: pairs_of(40.0)},
            "guidance": {one: pairs_of(8.0), two: pairs_of(9.0)},
        }
        *_, best, client = rows_of(results, SIZES)
        assert (best.peer, client.peer) == (BEST, BEST_CLIENT)
        assert (best.ratio, client.ratio) == pytest.approx((6.0**0.5, 6.0))
        results["vllm"][two] = results["guidance"][two] = Pairs(note="cannot")
        assert "geometric mean over 1" in list(rows_of(results, SIZES))[-1].note

    def test_levels_have_means_of_their_own(self) -> None:
        results: Results = {"x": {("a", "2 at once"): pairs_of(2.0), ("a", "one by one"): pairs_of(5.0)}}
        rows = list(rows_of(results, SIZES))
        wanted = ["a, 2 at once", WORKLOAD, "a, one by one", f"{WORKLOAD}, one by one"]
        assert [row.workload for row in rows] == wanted

    def test_sglangs_language_is_no_peer(self) -> None:
        key = ("a", "2 at once")
        results: Results = {"x": {key: pairs_of(2.0)}, "sglang": {key: pairs_of(1.1)}}
        rows = list(rows_of(results, SIZES))
        assert rows[0].peer == "x"
        assert rows[-1].ratio == pytest.approx(1.1)

    def test_answers_that_match_are_told(self) -> None:
        results: Results = {"x": {("json", "2 at once"): pairs_of(2.0, num_matching=5)}}
        assert "answers that match: 5 of 5, the peer's 0 of 5" in next(rows_of(results, SIZES)).note

    def test_what_could_not_be_run(self) -> None:
        results: Results = {
            "x": {("a", "l"): Pairs(note="cannot"), ("b", "l"): Pairs(note="cannot"), ("c", "l"): pairs_of(1.0)}
        }
        assert failures(results) == ["programs, x: a, l; b, l: cannot"]
        del results["x"]["c", "l"]
        assert failures(results) == ["programs, x: all: cannot"]


class TestSide:
    def test_files_that_peers_run_import_nothing_of_the_package(self) -> None:
        folder = Path(peer_side.__file__).parent
        for file in sorted({path.name for path in folder.glob("peer_*.py")} - {"peer_bough.py"}):
            assert not re.search(r"^\s*from (\.\.|bough)", (folder / file).read_text(), re.MULTILINE), file
