"""The benchmark of constraints: what it reads, how it judges, and that a peer that hangs costs its own case only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bough.benchmarks.constrain.cases import Instance, SchemaCase, choices, maskbench_cases, regular_cases, suite_cases
from bough.benchmarks.constrain.contest import Score, write_vocabulary
from bough.benchmarks.peers.sides.peer_masks import MaskEngine, PeerVocabulary, State
from bough.cli import bench
from bough.constrain import Vocabulary
from bough.runtime.protocol.errors import RequestError

from ...constrain.search.hostile import hostile_bodies, listed_bodies
from ...constrain.search.judge import Refused, Walk, by_group, judge

VOCABULARY = Vocabulary(
    tokens=(None, b"a", b"b", b"c"), eos_ids=(0,), size=4, encode=lambda text: [*map("?abc".find, text)]
)
CASE = SchemaCase(
    "group", "name", "a?b", (Instance("one", "ab", True), Instance("two", "b", True), Instance("three", "c", False))
)


class Fake:
    """Accepts the texts that it is told of."""

    name = "fake"

    def __init__(self, *accepted: str) -> None:
        self._accepted = accepted

    def compile(self, schema: str) -> Callable[[str], Walk]:
        if schema == "false":
            raise Refused("nothing satisfies it", impossible=True)
        if schema == "odd":
            raise Refused("odd")
        return lambda text: Walk(text in self._accepted, None if text in self._accepted else 0, [1.0])


class TestJudge:
    @pytest.mark.parametrize(
        ("accepted", "verdict"),
        [(("ab", "b"), "right"), (("ab",), "over"), (("ab", "b", "c"), "under"), (("c",), "under")],
    )
    def test_verdicts(self, accepted: tuple[str, ...], verdict: str) -> None:
        assert judge(CASE, Fake(*accepted)).verdict == verdict

    def test_refused(self) -> None:
        assert judge(SchemaCase("g", "n", "odd", CASE.instances), Fake()).verdict == "refused"

    def test_impossible_is_right_only_without_a_valid_instance(self) -> None:
        assert judge(SchemaCase("g", "n", "false", CASE.instances[2:]), Fake()).verdict == "right"
        assert judge(SchemaCase("g", "n", "false", CASE.instances), Fake()).verdict == "refused"

    def test_says_what_was_wrong(self) -> None:
        outcome = judge(CASE, Fake("b", "c"))
        assert (outcome.over, outcome.under, outcome.mask_us) == ([(0, 0, "")], [2], [1.0] * 3)

    def test_scores(self) -> None:
        outcomes = [
            judge(CASE, Fake("ab", "b")),
            judge(CASE, Fake()),
            judge(SchemaCase("other", "n", "odd", ()), Fake()),
        ]
        assert str(Score.of(outcomes)) == "1/3 = 33.3 % (o1 u0 e1)"
        assert by_group(outcomes) == {"group": Score(right=1, over=1), "other": Score(refused=1)}


class TestCases:
    def test_the_suite(self, tmp_path: Path) -> None:
        group = {
            "description": "d",
            "schema": {"type": "null"},
            "tests": [{"description": "t", "data": "é", "valid": False}],
        }
        (tmp_path / "optional").mkdir()
        for name in ("type.json", "optional/other.json"):
            (tmp_path / name).write_text(json.dumps([group]))
        assert list(suite_cases(tmp_path)) == [
            SchemaCase("type", "type/0 d", '{"type": "null"}', (Instance("t", '"é"', False),))
        ]
        assert [case.group for case in suite_cases(tmp_path, optional=True)] == ["optional/other", "type"]

    def test_maskbench(self, tmp_path: Path) -> None:
        content = {"schema": True, "tests": [{"data": {"a": [1, 2]}, "valid": True}]}
        for name in ("BFCL_java_52", "Github_easy---o1", "Glaiveai2K---x_1"):
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        cases = list(maskbench_cases(tmp_path))
        assert [case.group for case in cases] == ["BFCL", "Github_easy", "Glaiveai2K"]
        assert cases[0].instances == (Instance("0", '{"a": [1, 2]}', True),)

    @pytest.mark.parametrize("case", [*regular_cases(), choices(200)], ids=lambda case: case.name)
    def test_patterns_mean_what_their_instances_say(self, case: SchemaCase) -> None:
        verdicts = [re.fullmatch(case.schema, instance.text) is not None for instance in case.instances]
        assert verdicts == [instance.valid for instance in case.instances]

    def test_hostile_bodies_differ(self, tmp_path: Path) -> None:
        bodies = dict(hostile_bodies(50))
        assert len(bodies) == len({json.dumps(body) for body in bodies.values()}) == 50
        nested = {"@nest": [{"items": "@hole"}, True, 2]}
        rows = [{"id": "F1", "body": {"a": nested}}, {"id": "A1", "body": {}}, {"id": "F2", "raw": "{"}]
        (tmp_path / "rows").write_text("\n".join(map(json.dumps, rows)))
        assert list(listed_bodies(tmp_path / "rows")) == [("F1", {"a": {"items": {"items": True}}})]


class Letters(MaskEngine):
    """Wants the letters of its text, one after another."""

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        if text == "bad":
            raise ValueError("no\nsuch thing")

        def start() -> State:
            left = [*VOCABULARY.encode(text), self.eos]

            def fill() -> None:
                self.row[0] = 1 << left[0]

            return fill, lambda token: left.pop(0)

        return start

    def passes(self, tokens: object) -> bool:
        return tokens != [2]


class TestPeer:
    def test_walks(self) -> None:
        found = Letters(4, 0).walk(kind="regex", text="ab", walks=[[1, 2], [1], [1, 2, 3]])
        assert found["refused"] is None
        assert [(walk["accepted"], walk["num_tokens"]) for walk in found["walks"]] == [
            (True, 2),
            (False, 1),
            (False, 2),
        ]
        assert [len(walk["mask_us"]) for walk in found["walks"]] == [3, 2, 3]

    def test_checks_what_was_accepted(self) -> None:
        found = Letters(4, 0).walk(kind="regex", text="b", walks=[[2]])
        assert not found["walks"][0]["accepted"]

    def test_a_token_that_is_allowed_and_then_refused_ends_the_walk(self) -> None:
        class Fickle(Letters):
            def compile(self, kind: str, text: str) -> Callable[[], State]:
                start = super().compile(kind, text)
                return lambda: (start()[0], lambda token: False)

        found = Fickle(4, 0).walk(kind="regex", text="ab", walks=[[1, 2]])["walks"][0]
        assert (found["accepted"], found["num_tokens"]) == (False, 0)

    def test_refuses(self) -> None:
        found = Letters(4, 0).walk(kind="regex", text="bad", walks=[[1]])
        assert (found["refused"], found["walks"]) == ("no", [])

    def test_reads_a_vocabulary(self, tmp_path: Path) -> None:
        write_vocabulary(VOCABULARY, tmp_path / "vocabulary")
        read = PeerVocabulary(str(tmp_path / "vocabulary"))
        assert (read.tokens, read.size, read.eos) == ([None, b"a", b"b", b"c"], 4, 0)


class TestCommand:
    def test_unknown_section(self) -> None:
        module, options = bench.read("constrain", ["--sections", "suite,none"])
        with pytest.raises(RequestError, match="'none' is none of"):
            module.run(options)
