"""Prefixes that decoding rows share are read once, and the answers are those of rows that read all by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ...support.triton_interpreter import DEVICE

from bough.kernels.attention.plan.tree_cost import HeadShape, Machine  # isort: skip
from bough.kernels.attention.plan.tree_plan import TreePlanner  # isort: skip
from bough.kernels.attention.plan.planner import WorkPlanner  # isort: skip
from bough.runtime.protocol.config import EngineConfig  # isort: skip
from bough.runtime.engine.engine import Engine  # isort: skip
from bough.runtime.runner.gpu_slots import Slot  # isort: skip
from bough.runtime.runner.gpu_shared_reads import SharedReads  # isort: skip
from bough.runtime.load.load_torch import load_engine  # isort: skip
from bough.runtime.protocol.request import Request, RequestOutput  # isort: skip
from bough.runtime.protocol.sampling_params import SamplingParams  # isort: skip
from bough.runtime.scheduler.scheduler import Standing, Work  # isort: skip
from bough.runtime.scheduler.scheduler import Sequence  # isort: skip, Standing
from bough.radix import PrefixCache  # isort: skip

from ...support.tiny_model import write_tiny_model

PAGE = 16
FREE = Machine(bandwidth=1e12, flops=1e15, num_sms=4, item_overhead_s=0.0, launch_s=0.0)
"""A machine on which sharing costs nothing, so that it pays for the smallest batch."""


def planner() -> TreePlanner:
    return TreePlanner(HeadShape(PAGE, 2, 2, 64, 4), FREE, {16: 8, 64: 4})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), **shape)


def load(folder: Path, **settings: Any) -> Engine:
    fixed: dict[str, Any] = {"dtype": "float32", "device": DEVICE, "num_pages": 64, "max_num_seqs": 4}
    return load_engine(EngineConfig(model=str(folder), **(fixed | {"max_batch_tokens": 256} | settings)))


def answers(engine: Engine) -> list[list[int]]:
    stem = [40 + index % 50 for index in range(7 * PAGE)]
    heard: list[list[RequestOutput]] = [[] for _ in range(5)]
    for index, listener in enumerate(heard):
        prompt = (*stem, *(60 + index for _ in range(1 + 3 * index)))
        sampling = SamplingParams(max_tokens=4 + index, temperature=0.0, ignore_eos=True)
        engine.submit(Request(id=str(index), prompt=prompt, sampling=sampling), listener.append)
    while not engine.idle:
        engine.step()
    engine.close()
    return [[token for output in outputs for token in output.tokens] for outputs in heard]


def test_the_same_answers_with_shared_reads(folder: Path) -> None:
    alone = answers(load(folder, attention_backend="torch", page_size=PAGE))
    engine = load(folder, attention_backend="triton")
    runner: Any = engine._runner
    shared = runner._shared_reads = SharedReads(planner(), 4, PAGE, torch.device(DEVICE))
    runner._mixed.replays = type(runner._mixed.replays)()  # graphs read where the plans were
    plans = []
    update = shared.update

    def count(*arguments: Any) -> Any:
        plans.append(update(*arguments))
        return plans[-1]

    shared.update = count  # type: ignore[method-assign,assignment]
    assert answers(engine) == alone
    assert sum(plan is not None for plan in plans) >= 4, "no decode step shared its reads"


@pytest.mark.parametrize("settings", [{"max_batch_tokens": 20}, {"overlap": False}])
def test_passes_of_prompts_and_decodes_share_reads_too(folder: Path, settings: dict[str, Any]) -> None:
    """Prompts in chunks beside sequences that decode, in the order of what they share and back."""
    alone = answers(load(folder, attention_backend="torch", page_size=PAGE))
    engine = load(folder, attention_backend="triton", cuda_graphs=False, **settings)
    runner: Any = engine._runner
    attention = runner._mixed.attention
    plans: list[int] = []
    plan = attention.plan

    def count(batch: Any) -> None:
        plans.append(len(batch.shared))
        plan(batch)
        attention._planner = WorkPlanner(attention.shape, 4, torch.float32, DEVICE)
        attention._planner.tree = planner()

    attention.plan = count
    assert answers(engine) == alone
    assert sum(number > 0 for number in plans) >= 2, "no pass of any shape shared its reads"


def decoding(cache: PrefixCache, tokens: list[int], slot: int) -> tuple[Work, Slot]:
    """A sequence that decodes, all full pages of its prompt in the cache."""
    sequence = Sequence(id=str(slot), tokens=tokens, num_prompt=len(tokens), standing=Standing(slot))
    lease = sequence.lease = cache.open(tokens)
    assert cache.reserve(lease, len(tokens) + PAGE)
    cache.commit(lease, tokens, len(tokens))
    return Work(sequence, len(tokens), len(tokens) + 1, len(tokens), len(tokens) + 1), Slot(slot)


def grown(work: Work, num_tokens: int, epoch: int = 0) -> Work:
    return Work(work.sequence, work.start + num_tokens, work.stop + num_tokens, 0, 1, epoch=epoch)


def test_a_plan_holds_until_something_changes() -> None:
    cache, shared = PrefixCache(128, PAGE), SharedReads(planner(), 4, PAGE, torch.device("cpu"))
    stem = list(range(6 * PAGE))
    rows = [decoding(cache, [*stem, *range(200 + slot, 205 + slot)], slot) for slot in (1, 2, 3)]
    works, slots = [work for work, _ in rows], [slot for _, slot in rows]
    numbers: list[int] = []
    plan = shared._plan

    def counted(*arguments: Any) -> Any:
        numbers.append(1)
        return plan(*arguments)

    shared._plan = counted  # type: ignore[method-assign,assignment]
    first = shared.update(works, slots)
    assert first is not None and len(numbers) == 1
    later = [grown(work, 20) for work in works]
    assert shared.update(later, slots) is first and len(numbers) == 1
    assert shared.update([grown(work, 200) for work in works], slots) is not None and len(numbers) == 2
    assert shared.update(works[:2], slots[:2]) is not None and len(numbers) == 3  # one has left
    assert shared.update(works, slots) is not None and len(numbers) == 4  # and is back
    shared.update([grown(works[0], 0, epoch=1), *works[1:]], slots)  # one was set back
    assert len(numbers) == 5
    works[0].sequence.lease = cache.open(list(range(500, 600)))  # another sequence sits there
    shared.update(works, slots)
    assert len(numbers) == 6


def test_what_warms_up_reads_no_plan() -> None:
    """A graph of fewer rows than are planned would write past its own."""
    cache, shared = PrefixCache(128, PAGE), SharedReads(planner(), 4, PAGE, torch.device("cpu"))
    stem = list(range(6 * PAGE))
    rows = [decoding(cache, [*stem, *range(200 + slot, 205 + slot)], slot) for slot in (1, 2, 3)]
    works, slots = [work for work, _ in rows], [slot for _, slot in rows]
    planned = shared.update(works, slots)
    assert planned is not None and any(launch.num_items.any() for launch in planned.launches.values())
    nothing = shared.nothing()
    assert not any(launch.num_items.any() for launch in nothing.launches.values()) and not nothing.num_merges.any()
    again = shared.update(works, slots)
    assert again is not None and any(launch.num_items.any() for launch in again.launches.values())


def test_rows_that_share_nothing_are_read_by_themselves() -> None:
    cache, shared = PrefixCache(128, PAGE), SharedReads(planner(), 4, PAGE, torch.device("cpu"))
    rows = [decoding(cache, list(range(100 * slot, 100 * slot + 90)), slot) for slot in (1, 2, 3)]
    assert shared.update([work for work, _ in rows], [slot for _, slot in rows]) is None
