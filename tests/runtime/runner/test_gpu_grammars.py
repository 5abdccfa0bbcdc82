"""Regular constraints whose states live on the device: the same answers as when the host fills each mask."""

from __future__ import annotations

import gc
import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bough.constrain import Choice, GrammarCompiler, Lark, Regex
from bough.constrain.compiler import _key
from bough.constrain.matchers.table.tables import RegularGrammar, RegularTables, tabulate
from bough.constrain.matchers.token_matcher import CompiledGrammar
from bough.constrain.spec import GrammarSpec
from bough.kernels.decode_step.grammar_table import GrammarTable
from bough.runtime.engine.engine import Engine
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.runner import gpu_grammars
from bough.runtime.runner.gpu_grammars import DeviceGrammars, build_table
from bough.runtime.runner.gpu_runner import GpuPasses
from bough.runtime.runner.gpu_slots import Slot

from ...kernels.decode_step import reference
from ...support.fakes import AheadPasses, byte_tokenizer, fake_engine, refuse_threads
from ...support.tiny_model import write_tiny_model
from .test_gpu_runner import make_engine

from ...support.triton_interpreter import DEVICE  # isort: skip

from bough.kernels.decode_step.grammar_rows import advance_states  # isort: skip  after the interpreter

VOCAB = 258
SPECS: list[GrammarSpec] = [
    Regex("[a-z]{14,30}(-[0-9]{1,3})*"),
    Choice(("red", "green", "blue", "bluish", "red and green")),
    Regex("(yes|no|maybe), [A-Z][a-z]+ü?\\."),
    Regex("[0-9]{4}-[01][0-9]-[0-3][0-9]"),
    Regex("x[a-w]{12,40}"),
]
Answers = dict[str, tuple[list[int], str]]


def put_tables(compiler: GrammarCompiler) -> list[RegularGrammar]:
    """Makes the tables that a compiler would make at once, or in the background."""
    tables, made = RegularTables(compiler.tokens), []
    for spec in SPECS:
        grammar = compiler.compile(spec)
        if isinstance(grammar, CompiledGrammar):
            assert grammar.tabulation is not None
            grammar = tables.grammar(tabulate(grammar.tabulation.job), grammar)
        assert isinstance(grammar, RegularGrammar)
        made.append(grammar)
        compiler._cache.put(_key(spec), grammar)
    return made


def requests(slack: int) -> list[Request]:
    """Constrained and plain ones, some of whose budgets are just enough."""
    made = []
    for index in range(18):
        sampling: dict[str, Any] = {"max_tokens": 14 + slack + index % 5, "temperature": 1.0, "seed": index}
        if index % 4 == 1:
            sampling |= {"top_p": 0.9}
        if index == 2:
            sampling |= {"logprobs": 1}
        if index == 11:
            sampling |= {"max_tokens": 9}
        if index % 9 == 4:
            sampling |= {"min_tokens": 3}
        grammar = None if index % 6 == 5 else SPECS[index % 5]
        if index == 11:
            grammar = Lark('start: "(" (WORD | start) ")"\nWORD: /[a-z]+/')
        prompt = tuple(40 + (7 * index + i) % 80 for i in range(3 + 4 * (index % 5)))
        made.append(Request(id=str(index), prompt=prompt, sampling=SamplingParams(**sampling), grammar=grammar))
    return made


def run(engine: Engine, slack: int) -> Answers:
    heard: dict[str, list[RequestOutput]] = {}
    for request in requests(slack):
        heard[request.id] = []
        engine.submit(request, heard[request.id].append)
    for _ in range(6000):
        if not engine._live and engine._passes.flight is None:
            break
        while engine._admission.compiling and not all(one.done for one in engine._admission.compiling.values()):
            time.sleep(0.001)  # so that all are admitted at once
        engine.step()
    assert not engine._live
    engine.close()
    found: Answers = {}
    for name, outputs in heard.items():
        finish = outputs[-1].finish
        assert finish is not None and finish.error is None, (name, finish)
        found[name] = ([token for output in outputs for token in output.tokens], finish.reason)
    return found


def check_texts(answers: Answers) -> None:
    for request in requests(0):
        tokens, _ = answers[request.id]
        if request.grammar is None:
            continue
        text = bytes(token for token in tokens if token < 256).decode()
        if isinstance(request.grammar, Regex):
            assert re.fullmatch(request.grammar.pattern, text), (request.grammar, text)
        if isinstance(request.grammar, Choice):
            assert text in request.grammar.options


@pytest.mark.parametrize("slack", [0, 60])
@pytest.mark.parametrize("ahead", [1, 4])
def test_on_a_device_that_is_a_pass_behind(ahead: int, slack: int) -> None:
    engine, _ = fake_engine(ahead=0, max_num_seqs=6)
    put_tables(engine._grammars)
    expected = run(engine, slack)
    check_texts(expected)
    engine, _ = fake_engine(ahead=ahead, max_num_seqs=6)
    put_tables(engine._grammars)
    runner = engine._runner
    assert run(engine, slack) == expected
    assert isinstance(runner, AheadPasses) and (runner.num_constrained > 40) == (ahead > 1 and slack > 0)


def test_tables_change_no_answer_where_the_budget_is_ample() -> None:
    engine, _ = fake_engine(ahead=0, max_num_seqs=6)
    expected = run(engine, 80)
    engine, _ = fake_engine(ahead=4, max_num_seqs=6)
    put_tables(engine._grammars)
    assert run(engine, 80) == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[int, Answers]:
    """On the CPU, without a cache."""
    found: dict[int, Answers] = {}
    for slack in (0, 60):
        engine = make_engine(folder, gpu=False, enable_prefix_caching=False)
        put_tables(engine._grammars)
        found[slack] = run(engine, slack)
        check_texts(found[slack])
    return found


@pytest.mark.parametrize("slack", [0, 60])
@pytest.mark.parametrize(
    "settings",
    [
        {"max_steps": 4},
        {"max_steps": 2, "advance": advance_states},
        {"max_steps": 3, "overlaps": False},
        {"max_steps": 4, "num_pages": 44},
        {"max_steps": 4, "mask_bytes": 4_000},  # not all tables have room
        {"max_steps": 2, "max_batch_tokens": 16},
    ],
    ids=["plain", "triton", "read at once", "few pages", "small pool", "chunks"],
)
def test_the_same_answers_as_on_the_cpu(
    folder: Path, alone: dict[int, Answers], settings: dict[str, Any], slack: int
) -> None:
    engine = make_engine(folder, gpu=True, **settings)
    runner = engine._runner
    assert isinstance(runner, GpuPasses)
    device = runner._grammars
    for grammar in put_tables(engine._grammars):
        deadline = time.monotonic() + 20.0
        while device.place(grammar) is None and time.monotonic() < deadline and "mask_bytes" not in settings:
            time.sleep(0.001)
    device.launched()
    followed = count_rows(device)
    assert run(engine, slack) == alone[slack]
    assert (followed["steps"] > 10) == (slack > 0)


def count_rows(device: DeviceGrammars) -> dict[str, int]:
    """Counts the decode steps in which masks come from the pool."""
    counts, mask_rows = {"steps": 0}, device.mask_rows

    def counted(slots: torch.Tensor) -> torch.Tensor:
        rows = mask_rows(slots)
        counts["steps"] += bool((rows > 0).any())
        return rows

    device.mask_rows = counted  # type: ignore[method-assign]
    return counts


@pytest.fixture(scope="module")
def grammars() -> list[RegularGrammar]:
    compiler = GrammarCompiler(byte_tokenizer().vocabulary(VOCAB))
    made = put_tables(compiler)
    compiler.close()
    return made


def test_tables_of_grammars(grammars: list[RegularGrammar]) -> None:
    """Following a table is following the matcher; the end of sequence leads to where nothing is allowed."""
    rng = random.Random(0)
    for grammar in grammars:
        table = build_table(grammar)
        for _ in range(10):
            matcher, state = grammar.matcher(), torch.zeros(1, dtype=torch.int32)
            row = np.zeros(grammar.tokens.num_words, np.int32)
            for _ in range(12):
                matcher.fill_mask(row)
                assert (table.mask[int(state)].numpy() == row).all()
                allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
                token = rng.choice(allowed)
                state = reference.advance(table, state, torch.tensor([token]))
                if token in grammar.tokens.eos_ids:
                    assert not table.mask[int(state)].any()
                    break
                matcher.accept(token)
                assert int(state) == matcher.state


@pytest.mark.parametrize("advance", [reference.advance_states, advance_states], ids=["torch", "triton"])
def test_states_of_slots(grammars: list[RegularGrammar], advance: Callable[..., None]) -> None:
    device = DeviceGrammars(VOCAB, 8, torch.device(DEVICE), advance, mask_bytes=1 << 20)
    wait_for(device, grammars)
    slots = [Slot(index) for index in (1, 2, 5)]
    matchers = [grammars[0].matcher(), None, grammars[3].matcher()]
    device.put(slots, matchers)
    assert device.constrained == {1, 5}
    rows = torch.tensor([5, 0, 2, 1, 0], dtype=torch.int32, device=DEVICE)
    masks = device.pool.mask[device.mask_rows(rows).long().clamp(min=0)].cpu().numpy()
    assert device.mask_rows(rows).tolist()[1:3] == [-1, -1] and device.mask_rows(rows)[4] == -1
    assert (masks[0] == grammars[3].row(0)).all() and (masks[3] == grammars[0].row(0)).all()
    device.advance(rows, torch.tensor([ord("2"), 7, 7, ord("q"), 7], device=DEVICE))
    masks = device.pool.mask[device.mask_rows(rows).long().clamp(min=0)].cpu().numpy()
    assert (masks[0] == grammars[3].row(grammars[3].following(0, ord("2")))).all()
    assert (masks[3] == grammars[0].row(grammars[0].following(0, ord("q")))).all()
    device.put([slots[2]], [None])
    assert device.constrained == {1} and slots[2].place is None
    assert device.mask_rows(rows).tolist()[0] == -1


def test_what_a_launch_needs_stays_in_a_pool_that_is_full(grammars: list[RegularGrammar]) -> None:
    grammars = sorted(grammars, key=lambda grammar: -grammar.moves.num_states)
    rows = 3 + sum(grammar.moves.num_states for grammar in grammars[:2])
    device = DeviceGrammars(VOCAB, 4, torch.device("cpu"), reference.advance_states, mask_bytes=36 * rows)
    first, second = wait_for(device, grammars[:2])
    assert first is not None and second is not None
    for _ in range(20):
        assert device.place(grammars[2]) is None and device.place(grammars[0]) is first
        time.sleep(0.002)
    device.launched()
    assert device.place(grammars[1]) is second
    assert wait_for(device, [grammars[2]])[0] is not None, "the other one can go"
    assert device.place(grammars[1]) is second
    assert device.place(grammars[0]) is None


def test_what_can_never_lie_there_is_not_built(grammars: list[RegularGrammar], monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[RegularGrammar] = []

    def counted(grammar: RegularGrammar) -> GrammarTable:
        built.append(grammar)
        return build_table(grammar)

    monkeypatch.setattr(gpu_grammars, "build_table", counted)
    small, large = min(grammars, key=_num_states), max(grammars, key=_num_states)
    rows = 1 + _num_states(large)  # with the row of nobody, and that after the end, one too few
    device = DeviceGrammars(VOCAB, 4, torch.device("cpu"), reference.advance_states, mask_bytes=36 * rows)
    assert wait_for(device, [small])[0] is not None
    assert device.place(large) is None and not device._building
    assert built == [small]
    device = DeviceGrammars(VOCAB, 4, torch.device("cpu"), reference.advance_states, mask_bytes=36 * (rows + 1))
    assert wait_for(device, [large])[0] is not None


def _num_states(grammar: RegularGrammar) -> int:
    return grammar.moves.num_states


def test_tables_that_nobody_waits_for_are_given_up(
    grammars: list[RegularGrammar], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def held(grammar: RegularGrammar) -> GrammarTable:
        assert gate.wait(10.0)
        return build_table(grammar)

    monkeypatch.setattr(gpu_grammars, "build_table", held)
    monkeypatch.setattr(gpu_grammars, "MAX_BUILDING", 3)
    device = DeviceGrammars(VOCAB, 4, torch.device("cpu"), reference.advance_states, mask_bytes=1 << 20)
    for grammar in grammars:
        assert device.place(grammar) is None
    assert list(device._building) == grammars[:3], "the others are told to ask again"
    for _ in range(gpu_grammars.MAX_LAUNCHES_UNASKED + 1):
        device.place(grammars[0])
        device.launched()
    assert list(device._building) == grammars[:1]
    gate.set()
    assert all(wait_for(device, grammars)) and not device._building


def test_who_builds_tables_ends_with_whom_it_builds_them_for(grammars: list[RegularGrammar]) -> None:
    others = threading.enumerate()
    device = DeviceGrammars(VOCAB, 4, torch.device("cpu"), reference.advance_states, mask_bytes=1 << 20)
    wait_for(device, grammars[:1])
    (thread,) = [each for each in threading.enumerate() if each.name == "bough-tables" and each not in others]
    del device
    gc.collect()
    thread.join(10.0)
    assert not thread.is_alive()


def test_a_table_without_a_thread_to_build_it_is_asked_for_again(
    grammars: list[RegularGrammar], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = DeviceGrammars(VOCAB, 4, torch.device("cpu"), reference.advance_states, mask_bytes=1 << 20)
    allow = refuse_threads(monkeypatch, "bough-tables")
    assert [device.place(grammar) for grammar in grammars[:3]] == [None] * 3
    allow()
    assert all(wait_for(device, grammars[:3]))


def wait_for(device: DeviceGrammars, grammars: list[RegularGrammar]) -> list[Any]:
    deadline = time.monotonic() + 5.0
    while any(device.place(grammar) is None for grammar in grammars) and time.monotonic() < deadline:
        time.sleep(0.001)
    return [device.place(grammar) for grammar in grammars]
