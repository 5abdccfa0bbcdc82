"""The comparison with peers: environments, the protocol, rounds, ratios, tables, with sides that are made up."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bough.benchmarks.peers import contest as peer_contest
from bough.benchmarks.peers import environments as peer_environments
from bough.benchmarks.peers import peers
from bough.benchmarks.peers.contest import (
    Key,
    Pairs,
    PeerReport,
    PeerRow,
    PeerRun,
    Quality,
    Starts,
    Turns,
    judge,
    prompt_rounds,
    row_of,
    start_rows,
    tables,
    take_turns,
)
from bough.benchmarks.peers.environments import (
    RECIPES,
    TORCH,
    Recipe,
    environment_folder,
    make_environment,
    run_command,
)
from bough.benchmarks.peers.process import PeerError, Side, side_command
from bough.benchmarks.peers.sides import peer_side
from bough.benchmarks.workloads.prompts import QUICK, Prompts, PromptWorkload, RoundTime, Sizes, count, workloads
from bough.cli import bench

FAKE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("side", sys.argv[1])
side = importlib.util.module_from_spec(spec)
spec.loader.exec_module(side)

class Fake:
    def generate(self, prompts, num_tokens):
        print("chatter of a library")
        return [[sum(prompt) % 7] * num_tokens for prompt in prompts]
    def constrained(self, prompts, schema, num_tokens):
        raise NotImplementedError("no constraints here")
    def score(self, tokens):
        return [-1.0] * (len(tokens) - 1), None

side.send({"ready": 0.5})
side.serve(Fake())
"""


class Letters:
    """A tokenizer whose tokens are the characters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    encode_prompt = encode

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return self.encode(messages[0]["content"])

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


class FakeSide(Side):
    """A side that answers at once and says how long it took."""

    def __init__(self, name: str, seconds: float, fails: str = "") -> None:
        self.name, self.seconds, self.fails, self.ended = name, seconds, fails, ""
        self.asked: list[dict[str, Any]] = []

    def ask(self, job: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
        self.asked.append({"job": job, **arguments})
        if job == self.fails:
            raise PeerError(f"{self.name}: cannot")
        lists = arguments.get("prompts") or arguments["chats"]
        length = 5 if job == "constrained" else arguments["num_tokens"]
        return {"seconds": self.seconds, "tokens": [[ord("x")] * length for _ in lists]}


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_contest, "REST_S", 0.0)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BOUGH_CACHE", str(tmp_path))


@pytest.fixture
def prompts() -> Prompts:
    return Prompts(Letters())  # type: ignore[arg-type]


@pytest.fixture
def fake(tmp_path):
    command = [sys.executable, "-P", "-u", "-c", FAKE, str(Path(peer_side.__file__))]
    side = Side("fake", command, log=tmp_path / "log")
    yield side
    side.close()


# Environments


def test_every_engine_has_a_recipe_and_a_form_of_the_model():
    assert (
        set(RECIPES) - {"clients", "sglang"}
        == set(peer_environments.KINDS)
        == set(peer_side.KINDS["prompts"]) - {"bough"}
    )
    for name, recipe in RECIPES.items():
        pinned = ["==" in requirement for step in recipe.steps for requirement in step]
        assert all(pinned) or (name in ("clients", "sglang") and any(pinned))
        if TORCH in (requirement for step in recipe.steps for requirement in step):
            assert recipe.steps[0] == (TORCH,) and all(TORCH in step for step in recipe.steps)
    for place in (*peer_side.KINDS["prompts"].values(), *peer_side.KINDS["programs"].values()):
        file, _, name = place.partition(".")
        assert f"class {name}" in Path(peer_side.__file__).with_name(f"{file}.py").read_text()


def test_a_folder_is_named_after_what_is_in_it(tmp_path):
    one, two = Recipe((("a==1",),)), Recipe((("a==2",),))
    names = {environment_folder("x", recipe, sys.executable) for recipe in (one, two, Recipe((("a==1",),)))}
    assert len(names) == 2 and {name.parent for name in names} == {tmp_path / "peers"}
    assert environment_folder("x", one, "/elsewhere/python") not in names


def test_an_environment_is_made_once(tmp_path, monkeypatch):
    ran: list[tuple[str, ...]] = []

    def run(command, log, variables=None):
        ran.append(tuple(command[1:]))
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)

    monkeypatch.setattr(peer_environments, "run_command", run)
    monkeypatch.setenv("TORCH_INDEX_URL", "https://example.invalid/cpu")
    recipe = Recipe(((TORCH,), (TORCH, "thing==1")), removed=("torchvision",), imports=("thing",))
    monkeypatch.setitem(RECIPES, "thing", recipe)
    interpreter = make_environment("thing")
    assert interpreter.parent.parent.parent == tmp_path / "peers"
    assert ["venv" in each for each in ran] == [True, False, False, False, False]
    assert ran[1][-3:] == (TORCH, "--index-url", "https://example.invalid/cpu") and ran[2][-2:] == (TORCH, "thing==1")
    assert ran[3][-1] == "torchvision" and "import thing" in ran[4][-1]
    assert make_environment("thing") == interpreter and len(ran) == 5
    monkeypatch.setitem(RECIPES, "thing", Recipe((("thing==1",),), variables={"FLAGS": "-O3"}))
    assert "--no-cache-dir" not in ran[1]
    make_environment("thing")
    assert "--no-cache-dir" in ran[6], "a wheel that was compiled with other flags may be kept"


def test_what_was_not_finished_is_begun_anew(tmp_path, monkeypatch):
    def fail(command, log, variables=None):
        Path(environment_folder("x", recipe, sys.executable) / "half").mkdir(parents=True)
        raise PeerError("no network")

    recipe = Recipe((("a==1",),))
    monkeypatch.setattr(peer_environments, "run_command", fail)
    monkeypatch.setitem(RECIPES, "x", recipe)
    for _ in range(2):  # mkdir would fail if the folder were still there
        with pytest.raises(PeerError, match="no network"):
            make_environment("x")


@pytest.mark.parametrize(
    ("code", "message"),
    [("print(1); raise SystemExit(3)", "status 3"), ("import time; time.sleep(60)", "too long")],
)
def test_a_command_that_fails_names_its_log(tmp_path, monkeypatch, code, message):
    monkeypatch.setattr(peer_environments, "_LIMIT_S", 2.0)
    with pytest.raises(PeerError, match=message) as caught:
        run_command([sys.executable, "-c", code], tmp_path / "logs" / "log")
    assert str(tmp_path / "logs" / "log") in str(caught.value)


def test_only_files_are_made_into_others(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_environments, "locate", lambda model: tmp_path)
    with pytest.raises(PeerError, match=r"no \.gguf file"):
        peer_environments.make_model("folder", "thing", Path(sys.executable))


def test_a_form_is_made_once_and_of_another(tmp_path, monkeypatch):
    source = tmp_path / "model.gguf"
    source.write_bytes(b"x")
    made: list[str] = []

    def run(command, log, variables):
        made.append(log.name)
        Path(command[-1]).mkdir()

    monkeypatch.setattr(peer_environments, "locate", lambda model: source)
    monkeypatch.setattr(peer_environments, "run_command", run)
    for _ in range(2):
        found = peer_environments.make_model("openvino-int8", "m", Path("python"))
        assert found.is_dir() and found.name == "openvino-int8"
    assert made == ["folder.log", "openvino-int8.log"]
    assert peer_environments.make_model("gguf", "m", Path("python")) == source


# The protocol


def test_a_side_answers(fake):
    assert fake.wait_ready(20) == {"ready": 0.5}
    answer = fake.ask("generate", 20, prompts=[[1, 2], [3]], num_tokens=2)
    assert answer["tokens"] == [[3, 3], [3, 3]] and answer["seconds"] >= 0
    chat = fake.ask("chat", 20, chats=[[[1], [1]]], num_tokens=1)
    assert chat["tokens"] == [[(1 + 1 + 1) % 7]]  # the second turn follows the first and its answer
    assert fake.ask("shared", 20, prompts=[[1], [2]], num_tokens=1)["tokens"] == [[1], [2]]
    if sys.platform == "linux":
        assert fake.ask("memory", 20)["peak_bytes"] > 1 << 20
    with pytest.raises(PeerError, match="fake: NotImplementedError: no constraints here"):
        fake.ask("constrained", 20, prompts=[[1]], schema="{}", num_tokens=1)
    assert judge(fake, range(9), 20) == Quality((-1.0,) * 8, {4: 6, 8: 0})


def test_a_side_that_ends_or_is_not_there(tmp_path):
    side = Side("gone", [sys.executable, "-c", "pass"], log=tmp_path / "log")
    with pytest.raises(PeerError, match="gone ended"):
        side.wait_ready(20)
    with pytest.raises(PeerError, match="gone ended with status 0"):
        side.ask("generate", 20)
    side.close()
    with pytest.raises(PeerError):
        Side("none", [str(tmp_path / "nothing")], log=tmp_path / "log")


def test_a_peer_runs_the_folder_and_not_the_package(tmp_path):
    ours = side_command("prompts", "bough", None, {})
    assert ours[-4:-1] == ["bough.benchmarks.peers.sides.peer_side", "prompts", "bough"]
    theirs = side_command("programs", "guidance", Path("/x/python"), {"a": 1})
    assert theirs[0] == "/x/python" and theirs[-3:-1] == ["programs", "guidance"] and json.loads(theirs[-1]) == {"a": 1}
    folder = tmp_path / "sides"
    shutil.copytree(Path(theirs[-4]) / "sides", folder, ignore=shutil.ignore_patterns("peer_bough.py"))
    (folder / "peer_clients.py").write_text("from .peer_walk import Plan\nclass GuidanceClient(dict):\n  pass\n")
    command = [sys.executable, "-I", *theirs[3:5], str(tmp_path), *theirs[-3:]]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    assert done.stdout.startswith('@bench {"ready"')
    command[-3:] = ["--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "engine" in done.stdout


# Workloads and rounds


@pytest.mark.parametrize("sizes", [Sizes(), QUICK])
def test_no_two_rounds_share_prompts(prompts, sizes):
    for workload in workloads(sizes):
        one, two = (workload.make(prompts, number) for number in (1, 2))
        assert one == workload.make(prompts, 1) and one != two
        json.dumps(one)
        if workload.job == "shared":
            assert len({tuple(prompt[: sizes.prefix]) for prompt in one["prompts"]}) == 1
            assert len({tuple(prompt) for prompt in one["prompts"]}) == sizes.num_shared


def test_tokens_are_counted():
    one = PromptWorkload("w", "generate", lambda prompts, number: {})
    answer = {"seconds": 2.0, "tokens": [[1, 2], [3, 4]]}
    asked_for = {"prompts": [[1] * 10, [2] * 10], "num_tokens": 2}
    assert count(one, asked_for, answer, bool) == RoundTime(2.0, 4)
    prefill = PromptWorkload("p", "generate", lambda prompts, number: {}, counts="prompt")
    assert count(prefill, asked_for, answer, bool).rate == 10.0
    chat = PromptWorkload("c", "chat", lambda prompts, number: {})
    assert count(chat, {"chats": [[[1]] * 3] * 2, "num_tokens": 2}, answer, bool).num_tokens == 12
    bound = PromptWorkload("j", "constrained", lambda prompts, number: {})
    judged = count(bound, {"num_tokens": 9}, answer, lambda tokens: tokens == [1, 2])
    assert (judged.num_tokens, judged.num_valid) == (4, 1)
    with pytest.raises(ValueError, match="answers of"):
        count(one, asked_for | {"num_tokens": 3}, answer, bool)


def play(ours, theirs, chosen, prompts, num_rounds, *, limit_s=60.0):
    """The contests of these workloads by their names."""
    turns = Turns(ours, theirs, time.monotonic() + limit_s)
    contests: dict[Key, Pairs[RoundTime]] = {(each.name,): Pairs() for each in chosen}
    turns.play(contests, num_rounds, prompt_rounds(chosen, prompts, itertools.count(), turns.deadline))
    return {name: pairs for (name,), pairs in contests.items()}


def test_sides_take_turns_on_the_same_work(prompts):
    ours, theirs = FakeSide("bough", 1.0), FakeSide("them", 3.0)
    chosen = workloads(QUICK)
    contests = play(ours, theirs, chosen, prompts, 3)
    assert ours.asked == theirs.asked and len(ours.asked) == 3 * len(chosen)
    jobs = [each["job"] for each in ours.asked]
    assert jobs[: len(chosen)] == [each.job for each in chosen]  # each once before any a second time
    for contest in contests.values():
        assert contest.ratios == pytest.approx([3.0] * 3)


def test_who_begins_changes(prompts):
    order: list[str] = []

    class Noting(FakeSide):
        def ask(self, job: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
            order.append(self.name)
            return super().ask(job, limit_s, **arguments)

    play(Noting("bough", 1.0), Noting("them", 1.0), workloads(QUICK)[:1], prompts, 2)
    assert order == ["bough", "them", "them", "bough"]


def test_what_a_peer_cannot_do_is_left_out(prompts):
    ours, theirs = FakeSide("bough", 1.0), FakeSide("them", 1.0, fails="constrained")
    contests = play(ours, theirs, workloads(QUICK), prompts, 2)
    notes = {name: contest.note for name, contest in contests.items() if contest.note}
    assert notes == {f"JSON schema, batch {QUICK.num_json}": "them: cannot"}
    assert Counter(each["job"] for each in theirs.asked)["constrained"] == 1  # not tried again


def test_a_peer_that_has_ended_is_asked_no_more(prompts):
    class Ending(FakeSide):
        def ask(self, job: str, limit_s: float, **arguments: Any) -> dict[str, Any]:
            self.ended = "them: it ended"
            raise PeerError(self.ended)

    ours, theirs = FakeSide("bough", 1.0), Ending("them", 1.0)
    contests = play(ours, theirs, workloads(QUICK), prompts, 2)
    assert len(ours.asked) == 1 and {contest.note for contest in contests.values()} == {"them: it ended"}


def test_our_own_failure_is_told(prompts):
    ours, theirs = FakeSide("bough", 1.0, fails="generate"), FakeSide("them", 1.0)
    with pytest.raises(PeerError, match="single stream decode: bough: cannot"):
        play(ours, theirs, workloads(QUICK), prompts, 1)


def test_no_time_is_told(prompts):
    sides = FakeSide("bough", 1.0), FakeSide("them", 1.0)
    (contest,) = play(*sides, workloads(QUICK)[:1], prompts, 1, limit_s=-1).values()
    assert contest.note == "no time for more than 0 rounds" and not sides[0].asked


def test_answers_are_checked_against_the_schema(prompts):
    town = {"town": "Rye", "climate": "mild"}
    value = {"name": "A", "description": "", "role": "hero", "home": town, "age": 3, "alive": True}
    for text, valid in ((json.dumps(value), True), (json.dumps(value | {"age": 0}), False), ('{"name": "', False)):
        assert prompts.is_character([ord(letter) for letter in text]) is valid


def test_fresh_processes(prompts, tmp_path):
    command = [sys.executable, "-P", "-u", "-c", FAKE, str(Path(peer_side.__file__))]
    sides = [Starts("a"), Starts("b")]
    starters = [(each, lambda: Side("fake", command, log=tmp_path / "log")) for each in sides]
    take_turns(starters, 2, prompts, QUICK, limit_s=60)
    assert [len(each.first_token_s) for each in sides] == [2, 2] and all(t > 0 for t in sides[0].first_token_s)
    start, *memory = start_rows(*sides)
    assert start.ratios and start.workload == "start to first token"
    if sys.platform == "linux":
        assert memory[0].ratio == pytest.approx(1.0, rel=0.2)


# Tables


def made_report() -> PeerReport:
    fast, slow = (
        [RoundTime(seconds, 100, valid) for seconds, valid in rounds]
        for rounds in (((1.0, 4), (1.0, 3), (2.0, 4)), ((3.0, 0), (4.0, 0), (5.0, 1)))
    )
    report = PeerReport({"model": "m"})
    report.rows.append(row_of("JSON schema, batch 16", "openvino", Pairs(fast, slow)))
    report.rows.append(row_of("prefill, 1,400 tokens", "llama.cpp", Pairs(note="it ended")))
    report.rows.append(PeerRow("batch 8 decode", "vllm", [0.5, 0.7, 0.6], "5 tok/s", "9 tok/s"))
    report.quality["float32"] = Quality((-1.0, -2.0), {1: 5, 2: 6})
    report.quality["bough"] = Quality((-1.1, -2.0), {1: 5, 2: 7})
    report.quality["openvino"] = Quality((), {2: 6})
    report.left_out.append("vllm: no network")
    return report


def test_the_table():
    text = tables(made_report())
    lines = text.splitlines()
    assert lines[2].startswith("| JSON schema, batch 16 | openvino | 100 tok/s | 25 tok/s | 3.00x | 2.50 | 4.00")
    assert "valid answers a round: 3.67 / 0.333" in lines[2]
    assert "| - | - | - |" in lines[3] and "it ended" in lines[3]
    assert "0.60x |" in lines[4]
    assert "| bough | 4.711 | +5.13% | 50.0% of 2 |" in text and "| openvino | - | - | 100.0% of 1 |" in text
    assert text.endswith("- vllm: no network")
    assert "|" not in tables(made_report(), markdown=False)


def test_the_file(tmp_path):
    report = made_report()
    peers.write(report, tmp_path / "out")
    numbers = json.loads((tmp_path / "out" / "peers.json").read_text())
    assert numbers["rows"][0]["ratio"] == 3.0
    assert numbers["rows"][1]["ratio"] is None and numbers["quality"]["bough"]["agreement"] == 0.5
    assert (tmp_path / "out" / "peers.md").read_text() == tables(report) + "\n"


def test_options(capsys):
    assert bench.read("peers", ["--peers", "vllm, openvino"])[1].peers == ["vllm", "openvino"]
    with pytest.raises(SystemExit):
        bench.read("peers", ["--peers", "nobody"])
    assert "unknown: nobody" in capsys.readouterr().err


def run_of(words: str, default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PeerRun:
    monkeypatch.setattr(peers, "peers_folder", lambda: tmp_path)
    arguments = ["--workloads", words, "--quick", "--model", str(default_model)]
    return peers.make_run(bench.read("peers", arguments)[1])


@pytest.mark.model
def test_workloads_are_chosen_by_words_in_whatever_case(default_model, tmp_path, monkeypatch):
    run = run_of("json, PREFILL,Start", default_model, tmp_path, monkeypatch)
    names = [each.name for each in run.workloads]
    assert len(names) == 2 and names[0].startswith("prefill") and names[1].startswith("JSON schema")
    assert run.extras == {"start"}


@pytest.mark.model
@pytest.mark.parametrize("words", ["jsno", "json,jsno"])
def test_a_word_that_no_workload_has_is_an_error(words, default_model, tmp_path, monkeypatch):
    with pytest.raises(PeerError, match="jsno"):
        run_of(words, default_model, tmp_path, monkeypatch)
