"""The script on a GPU that is not there and on torch: the same answers; what the device is asked for each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ...support.triton_interpreter import HAS_GPU

from bough.runtime.load.load_torch import load_engine  # isort: skip
from bough.runtime.protocol.config import EngineConfig  # isort: skip

from ...support.dry_gpu.cuda import dry_gpu  # isort: skip
from ...support.dry_gpu.device import Counts, Device
from ...support.dry_gpu.graphs import Watched
from .script import SMALL, Answer, Wave, full, play
from .wide_model import write_wide_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(HAS_GPU, reason="there is a GPU: `make test-gpu`"),
]

FULL = os.environ.get("BOUGH_GPU_DRY") == "full"
small = pytest.mark.skipif(FULL, reason="the figures are those of two sequences")
SEQUENCES = 4 if FULL else 2


def waves() -> Iterator[Wave]:
    return full() if FULL else iter(SMALL)


def options(folder: Path, **fields: Any) -> EngineConfig:
    fixed: dict[str, Any] = {"dtype": "float32", "page_size": 16, "num_pages": 12 if FULL else 6}
    fixed |= {"max_num_seqs": SEQUENCES, "max_batch_tokens": 16 * SEQUENCES // 2, "max_decode_steps": 2}
    return EngineConfig(model=str(folder), **fixed, **fields)


@dataclass
class Run:
    """Answers to the script on both, and what the device was asked in each step, by wave."""

    expected: dict[str, Answer]
    answers: dict[str, Answer] = field(default_factory=dict)
    steps: dict[str, list[Counts]] = field(default_factory=dict)
    at_start: Counts = field(default_factory=Counts)
    serving: Counts = field(default_factory=Counts)
    keys_at_start: int = 0
    keys: int = 0
    live_bytes: list[int] = field(default_factory=list)  # after each step
    changes: dict[Any, str] = field(default_factory=dict)
    retractions: int = 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = write_wide_model(tmp_path_factory.mktemp("wide"))
    engine = load_engine(options(folder, device="cpu", attention_backend="torch", enable_prefix_caching=False))
    result = Run(play(engine, waves(), lambda name: nullcontext()))
    with dry_gpu() as device:
        _run(device, options(folder, device="cuda"), result)
    return result


def _run(device: Device, config: EngineConfig, result: Run) -> None:
    engine = load_engine(config)
    runner: Any = engine._runner
    mixed, tables = runner._mixed, runner._grammars._builder
    while engine.prepare():
        pass
    mixed.replays = watched = Watched(device, mixed.replays)
    result.at_start = device.counts.copy()
    result.keys_at_start = watched.num_keys

    @contextmanager
    def count(name: str) -> Iterator[None]:
        tables.submit("", int).result()  # tables asked for in the step before are built: steps are the same each time
        before = device.counts.copy()
        yield
        result.steps.setdefault(name, []).append(device.counts - before)
        result.live_bytes.append(device.live_bytes)

    result.answers = play(engine, waves(), count)
    result.serving = device.counts - result.at_start
    result.keys = watched.num_keys
    result.changes = watched.changes()
    result.retractions = engine.stats().preemptions_total


def test_the_same_answers(run: Run) -> None:
    for name, answer in run.expected.items():
        found = run.answers[name]
        assert (found.tokens, found.reason) == (answer.tokens, answer.reason), name
        for one, other in zip(found.logprobs, answer.logprobs, strict=True):
            assert [token for token, _ in one.top] == [token for token, _ in other.top], name
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4), name
    assert run.answers.keys() == run.expected.keys()
    assert any(answer.logprobs for answer in run.answers.values())
    assert run.retractions > 0


def test_choices_are_clear(run: Run) -> None:
    """So that equality may be asked for: rounding is some 1e-5."""
    tops = [entry.top for answer in run.expected.values() for entry in answer.logprobs]
    assert min(top[0][1] - top[1][1] for top in tops) > 1e-3


def test_nothing_is_captured_or_compiled_while_serving(run: Run) -> None:
    assert run.keys_at_start > 30
    assert run.keys == run.keys_at_start
    assert run.serving.captured == 0
    assert run.serving.compiled.total() == 0, run.serving.compiled
    assert run.changes == {}, "graphs are not what their steps would be now"


def test_no_step_waits_unasked_or_keeps_memory(run: Run) -> None:
    assert run.serving.host_reads.total() == 0, run.serving.host_reads
    assert run.serving.replayed.total() > 500
    assert max(run.live_bytes) - min(run.live_bytes) <= 1 << 12  # downloads under way


@dataclass(frozen=True)
class Cost:
    """Demands of a step on the device. `within` are launches within graphs."""

    launches: int
    within: int
    uploads: int
    upload_bytes: int
    downloads: int
    download_bytes: int
    allocations: int
    allocated_bytes: int

    @classmethod
    def of(cls, counts: Counts) -> Cost:
        return cls(
            counts.launches.total(),
            counts.replayed.total(),
            counts.uploads,
            counts.upload_bytes,
            counts.downloads,
            counts.download_bytes,
            counts.allocations,
            counts.allocated_bytes,
        )


STEADY = {
    "decode": Cost(4, 44, 0, 0, 2, 32, 2, 32),
    "constrained": Cost(4, 52, 0, 0, 2, 16, 2, 16),
    "scored": Cost(6, 90, 0, 0, 4, 704, 4, 704),
    "penalised": Cost(4, 56, 0, 0, 2, 32, 2, 32),
    "sampled": Cost(4, 48, 0, 0, 2, 16, 2, 16),
}
"""Two decode steps launched at once that go on with the sequences of those before: nothing is sent. A graph each, and a
copy of what it drew, since the second writes there, too."""


@pytest.mark.parametrize("wave", STEADY)
def test_steps_that_go_on(run: Run, wave: str) -> None:
    steps = [step for step in run.steps[wave] if step.launches["graph"] == 2 and not step.uploads]
    assert steps, "each step sends something"
    assert {Cost.of(step) for step in steps} == {STEADY[wave]}


MASK = 19_008  # bytes: a bit a token
LOGITS = 608_256  # bytes: float32

MOST = {
    "decode": Cost(17, 44, 5, 8_000, 2, 32, 12, 3 * LOGITS),
    "mixed": Cost(18, 44, 5, 8_000, 2, 32, 12, 3 * LOGITS),
    "drafts": Cost(21, 17, 6, 33 * MASK, 1, 64, 20, 10 * LOGITS),
    "program": Cost(57, 44, 9, 8_768, 2, 48, 58, 10 * LOGITS),
    "penalised": Cost(44, 56, 6, 10_560, 2, 32, 33, 3 * LOGITS),
}
"""Bounds of any step: prompts, mixed passes, drafts and their masks, choices of a select, who comes and goes."""


@small
@pytest.mark.parametrize("wave", MOST)
def test_steps_of_any_kind(run: Run, wave: str) -> None:
    most = vars(MOST[wave])
    found = {name: max(getattr(Cost.of(step), name) for step in run.steps[wave]) for name in most}
    assert {name: count for name, count in found.items() if count > most[name]} == {}


def test_a_masked_step_sends_its_mask(run: Run) -> None:
    """One row under a mask that the host has filled: a graph, and the draw."""
    steps = [step for step in run.steps["drafts"] if step.upload_bytes > MASK and "mm" not in step.launches]
    launches = Counter({"graph": 1, "cat": 1, "index_select": 1, "scan": 1, "settle": 1, "clamp": 1, "index_copy_": 2})
    assert any(step.launches == launches for step in steps)
    assert min(step.upload_bytes for step in steps) <= MASK + 1_024


@small
def test_drafts_are_verified_in_one_pass(run: Run) -> None:
    """Forced tokens by the dozen: their logits come as many at a time as sequences may run."""
    (step, *_) = [step for step in run.steps["drafts"] if step.launches["mm"] > 1]
    assert step.launches["graph"] == 1
    assert step.launches["scan"] == step.launches["mm"] == step.launches["settle"]
    assert (step.uploads, step.downloads) == (4, 1)
