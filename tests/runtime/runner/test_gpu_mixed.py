"""Passes of any mix, padded to the size of a graph: the answers are those of passes of their own size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ...support.triton_interpreter import DEVICE

from bough.kernels.attention.plan.planner import WorkPlanner  # isort: skip
from bough.runtime.engine.engine import Engine  # isort: skip
from bough.runtime.load.load_torch import load_engine  # isort: skip
from bough.runtime.protocol.config import EngineConfig  # isort: skip
from bough.runtime.protocol.request import Request, RequestOutput  # isort: skip
from bough.runtime.protocol.sampling_params import SamplingParams  # isort: skip
from bough.runtime.runner.gpu_graphs import Eager  # isort: skip
from bough.runtime.runner.gpu_mixed import SIZES, MixedPasses, sizes_up_to  # isort: skip

from ...support.tiny_model import write_tiny_model

PAGE = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), **shape)


def load(folder: Path, **settings: Any) -> Engine:
    fixed: dict[str, Any] = {"dtype": "float32", "device": DEVICE, "num_pages": 64, "max_num_seqs": 4}
    return load_engine(EngineConfig(model=str(folder), page_size=PAGE, **(fixed | {"max_batch_tokens": 24} | settings)))


class Counted(MixedPasses):
    """Counts passes by the size that they are padded to; the last states of padding are made poison."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.padded: list[tuple[int, int]] = []
        self.eager = 0

    def forward(self, batch: Any, feed: Any) -> torch.Tensor:
        before = len(self.padded)
        hidden = super().forward(batch, feed)
        self.eager += len(self.padded) == before
        if len(self.padded) > before:
            size, _ = self.padded[-1]
            self.padded[-1] = size, len(batch.tokens)
            hidden[len(batch.tokens) :] = float("nan")
        return hidden

    def _run(self, size: int) -> torch.Tensor:
        self.padded.append((size, size))
        return super()._run(size)


def mix(engine: Engine, sizes: tuple[int, ...]) -> Counted:
    """Has the engine run its passes in these sizes, and counts them."""
    runner: Any = engine._runner
    old = runner._mixed
    device = old.attention.page_table.device
    fixed = 128 if old.attention.deterministic else None
    planner = WorkPlanner(old.attention.shape, old.model.num_heads, torch.float32, device, fixed_split=fixed)
    runner._mixed = Counted(old.model, old.attention, Eager(), planner, sizes=sizes)
    return runner._mixed


def answers(engine: Engine, count: int = 3) -> list[list[int]]:
    """Prompts that share their beginnings, in chunks beside what decodes; all come twice, then cached."""
    stem = [40 + index % 50 for index in range(3 * PAGE)]
    heard: list[list[RequestOutput]] = []
    for turn in range(2):
        for index in range(count):
            heard.append([])
            prompt = (*stem[: PAGE * index], *(60 + index for _ in range(1 + 7 * index)))
            sampling = SamplingParams(max_tokens=3 + index, temperature=0.0, ignore_eos=True)
            engine.submit(Request(id=f"{turn} {index}", prompt=prompt, sampling=sampling), heard[-1].append)
        while not engine.idle:
            engine.step()
    engine.close()
    return [[token for output in outputs for token in output.tokens] for outputs in heard]


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[list[int]]:
    return answers(load(folder, attention_backend="torch"))


@pytest.mark.parametrize("settings", [{}, {"overlap": False}])
def test_the_same_answers(folder: Path, plain: list[list[int]], settings: dict[str, Any]) -> None:
    engine = load(folder, attention_backend="triton", **settings)
    mixed = mix(engine, (8, 16, 24))
    assert answers(engine) == plain
    assert {size for size, _ in mixed.padded} <= {8, 16, 24}
    assert any(used < size for size, used in mixed.padded)
    assert mixed.eager == 0


def test_larger_passes_run_eagerly(folder: Path, plain: list[list[int]]) -> None:
    engine = load(folder, attention_backend="triton")
    mixed = mix(engine, (16,))
    assert answers(engine) == plain
    assert mixed.padded and mixed.eager


def test_deterministic_answers_stay_the_same(folder: Path) -> None:
    eager = answers(load(folder, attention_backend="triton", deterministic=True), 2)
    engine = load(folder, attention_backend="triton", deterministic=True)
    mixed = mix(engine, (8, 16, 24))
    assert answers(engine, 2) == eager
    assert mixed.padded


def test_warm_ups_write_no_key(folder: Path) -> None:
    engine = load(folder, attention_backend="triton")
    mixed = mix(engine, (8, 16))
    attention: Any = mixed.attention
    attention.keys.zero_()  # on a GPU the engine has warmed up its own graphs
    attention.values.zero_()
    for step in mixed.warm_ups():
        step()
    assert [size for size, _ in mixed.padded] == [16, 8]
    assert not attention.keys.any() and not attention.values.any()
    engine.close()


def test_no_graph_is_larger_than_a_pass_needs() -> None:
    assert sizes_up_to(1) == SIZES[:1]
    assert sizes_up_to(64) == (16, 32, 48, 64)
    assert sizes_up_to(65) == (16, 32, 48, 64, 96)
    assert sizes_up_to(8192) == SIZES
