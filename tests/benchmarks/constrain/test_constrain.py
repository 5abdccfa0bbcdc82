"""The benchmark of constraints: what it reads, how it judges, and that a peer that hangs costs its own case only."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bough.benchmarks.constrain.cases import Case, Instance, maskbench_cases, suite_cases
from bough.benchmarks.constrain.constrain import main
from bough.benchmarks.constrain.contest import Absent, Contestant, Measured, contest, write_vocabulary
from bough.benchmarks.constrain.judge import Outcome, Refused, Score, Walk, by_group, judge, percentile, score
from bough.benchmarks.constrain.peer import State, answer
from bough.benchmarks.constrain.peer import Vocabulary as PeerVocabulary
from bough.benchmarks.constrain.regular import choices, regular_cases
from bough.benchmarks.constrain.report import Report, Standing, goals, markdown, table
from bough.constrain import Vocabulary
from tests.constrain.search.hostile import hostile_bodies, listed_bodies

VOCABULARY = Vocabulary(
    tokens=(None, b"a", b"b", b"c"), eos_ids=(0,), size=4, encode=lambda text: [*map("?abc".find, text)]
)
CASE = Case(
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
        assert judge(Case("g", "n", "odd", CASE.instances), Fake()).verdict == "refused"

    def test_impossible_is_right_only_without_a_valid_instance(self) -> None:
        assert judge(Case("g", "n", "false", CASE.instances[2:]), Fake()).verdict == "right"
        assert judge(Case("g", "n", "false", CASE.instances), Fake()).verdict == "refused"

    def test_says_what_was_wrong(self) -> None:
        outcome = judge(CASE, Fake("b", "c"))
        assert (outcome.over, outcome.under, outcome.mask_us) == ([(0, 0, "")], [2], [1.0] * 3)

    def test_scores(self) -> None:
        outcomes = [judge(CASE, Fake("ab", "b")), judge(CASE, Fake()), judge(Case("other", "n", "odd", ()), Fake())]
        assert str(score(outcomes)) == "1/3 = 33.3 % (o1 u0 e1)"
        assert by_group(outcomes) == {"group": Score(right=1, over=1), "other": Score(refused=1)}

    def test_percentiles(self) -> None:
        assert [percentile(range(100), percent) for percent in (0, 50, 99, 100)] == [0, 50, 99, 99]
        assert percentile([7.0], 99.9) == 7.0


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
            Case("type", "type/0 d", '{"type": "null"}', (Instance("t", '"é"', False),))
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
    def test_patterns_mean_what_their_instances_say(self, case: Case) -> None:
        verdicts = [re.fullmatch(case.schema, instance.text) is not None for instance in case.instances]
        assert verdicts == [instance.valid for instance in case.instances]

    def test_hostile_bodies_differ(self, tmp_path: Path) -> None:
        bodies = dict(hostile_bodies(50))
        assert len(bodies) == len({json.dumps(body) for body in bodies.values()}) == 50
        nested = {"@nest": [{"items": "@hole"}, True, 2]}
        rows = [{"id": "F1", "body": {"a": nested}}, {"id": "A1", "body": {}}, {"id": "F2", "raw": "{"}]
        (tmp_path / "rows").write_text("\n".join(map(json.dumps, rows)))
        assert list(listed_bodies(tmp_path / "rows")) == [("F1", {"a": {"items": {"items": True}}})]


class Letters:
    """An engine that wants the letters of its text, one after another."""

    eos = 0

    def compile(self, kind: str, text: str) -> Callable[[], State]:
        if text == "bad":
            raise ValueError("no\nsuch thing")
        return lambda: _LettersState(VOCABULARY.encode(text))

    def passes(self, tokens: object) -> bool:
        return tokens != [2]


class _LettersState:
    def __init__(self, left: list[int]) -> None:
        self._left = left

    def fill(self) -> None: ...

    def allows(self, token: int) -> bool:
        return token == (self._left[0] if self._left else 0)

    def accept(self, token: int) -> None:
        self._left = self._left[1:]


class TestPeer:
    def test_walks(self) -> None:
        found = answer(Letters(), {"kind": "regex", "text": "ab", "walks": [[1, 2], [1], [1, 2, 3]]})
        assert found["refused"] is None
        assert [(walk["accepted"], walk["num_tokens"]) for walk in found["walks"]] == [
            (True, 2),
            (False, 1),
            (False, 2),
        ]
        assert [len(walk["mask_us"]) for walk in found["walks"]] == [3, 2, 3]

    def test_checks_what_was_accepted(self) -> None:
        found = answer(Letters(), {"kind": "regex", "text": "b", "walks": [[2]]})
        assert not found["walks"][0]["accepted"]

    def test_refuses(self) -> None:
        found = answer(Letters(), {"kind": "regex", "text": "bad", "walks": [[1]]})
        assert (found["refused"], found["walks"]) == ("no", [])

    def test_reads_a_vocabulary(self, tmp_path: Path) -> None:
        write_vocabulary(VOCABULARY, tmp_path / "vocabulary")
        read = PeerVocabulary(str(tmp_path / "vocabulary"))
        assert (read.tokens, read.size, read.eos, read.control) == ([None, b"a", b"b", b"c"], 4, 0, {0})


SCRIPT = """
import json, sys, time
print("chatter")
print("@bench {}", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["text"] == "hang":
        time.sleep(60)
    if request["text"] == "die":
        sys.exit(1)
    walks = [{"accepted": True, "num_tokens": 1, "mask_us": [2.0], "accept_us": [1.0]} for _ in request["walks"]]
    print("@bench " + json.dumps({"refused": None, "compile_us": 1500.0, "walks": walks}), flush=True)
"""


class TestContest:
    @pytest.fixture
    def peer(self, tmp_path: Path) -> Contestant:
        (tmp_path / "peer.py").write_text(SCRIPT)
        command = [sys.executable, str(tmp_path / "peer.py")]
        return Contestant("peer", command, tmp_path / "log", budget_s=30.0, limit_s=2.0)

    def test_a_hang_costs_its_own_case(self, peer: Contestant) -> None:
        cases = [CASE, Case("g", "hang", "hang", CASE.instances), Case("g", "die", "die", CASE.instances), CASE]
        measured = contest([peer], cases, VOCABULARY)["peer"]
        peer.close()
        assert [entry.outcome.verdict for entry in measured] == ["under", "refused", "refused", "under"]
        assert (measured[0].outcome.compile_ms, measured[0].outcome.mask_us) == (1.5, [2.0] * 3)
        assert measured[1].outcome.refused == "gone: no answer within 2 s"

    def test_a_peer_whose_time_is_up_keeps_what_it_has(self, peer: Contestant) -> None:
        peer.left_s = 0.0
        assert contest([peer], [CASE], VOCABULARY) == {"peer": []}
        peer.close()

    def test_absent(self, tmp_path: Path) -> None:
        with pytest.raises(Absent):
            Contestant("peer", [str(tmp_path / "none")], tmp_path / "log", budget_s=1.0, limit_s=1.0)
        with pytest.raises(Absent, match="ended at the start"):
            Contestant("peer", [sys.executable, "-c", ""], tmp_path / "log", budget_s=1.0, limit_s=1.0)


def standing(*, right: int, under: int, mask_us: float) -> Standing:
    outcome = Outcome("g", "n", 1.0, 1, num_valid=1, mask_us=[mask_us])
    wrong = Outcome("g", "n", 1.0, 1, under=[0])
    return Standing.of([Measured(outcome, [1.0])] * right + [Measured(wrong)] * under)


class TestReport:
    def test_goals(self) -> None:
        report = Report("2026", {}, {})
        assert goals(report) == []
        report.suite = {"bough": standing(right=19, under=1, mask_us=2.0)}
        report.maskbench = {"bough": standing(right=10, under=0, mask_us=900.0)}
        met = {goal.name: goal.met for goal in goals(report)}
        assert met["official suite: groups wholly right"] is True
        assert met["official suite: groups silently wrong (under)"] is False
        assert met["MaskBench: schemas wholly right"] is True
        assert met["mask us p50 / p99, one thread"] is False

    def test_is_shown_again_from_its_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        report = Report("2026", {"cpus": 2}, {"llguidance": "1"}, absent={"xgrammar": "no --peers"})
        report.suite = {
            "bough": standing(right=3, under=1, mask_us=2.0),
            "llguidance": standing(right=1, under=0, mask_us=1.0),
        }
        (tmp_path / "r.json").write_bytes(msgspec.json.encode(report))
        assert main(["--show", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]) == 0
        shown = capsys.readouterr().out
        assert table(report) in shown
        assert "absent: xgrammar: no --peers" in shown
        assert "100.0 % (n 1)" in shown
        assert (tmp_path / "r.md").read_text() == markdown(report) + "\n"

    def test_unknown_section(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--sections", "suite,none"]) == 2
        assert "'none' is none of" in capsys.readouterr().err
