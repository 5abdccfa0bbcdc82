"""Passes as a GPU runs them, on the CPU: a pass behind, page table and last tokens on the device, drawn in the step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bough.constrain import GrammarCompiler
from bough.constrain.spec import JsonSchema
from bough.kernels.attention.decode_rows import DecodeRows
from bough.kernels.attention.interface import AttentionBatch, KVShape
from bough.kernels.attention.plan.padded_work import PaddedWork
from bough.kernels.attention.torch_backend import TorchAttention
from bough.kernels.decode_step.select import Drawing
from bough.runtime.engine.engine import Engine
from bough.runtime.models.decoder import Decoder
from bough.runtime.models.load import load_model
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.runner.gpu_grammars import DeviceGrammars
from bough.runtime.runner.gpu_graphs import Eager, Replays, graph_sizes
from bough.runtime.runner.gpu_mixed import MixedPasses
from bough.runtime.runner.gpu_runner import GpuPasses, _StepKind
from bough.runtime.runner.gpu_slots import SlotTable, page_changes
from bough.runtime.runner.runner import DirectPasses, DrawSpec
from bough.runtime.runner.torch_runner import ModelRunner
from bough.runtime.scheduler.scheduler import Sequence, Standing
from bough.runtime.tokenizer.load import load_tokenizer

from ...kernels.decode_step.reference import advance_states, torch_drawing
from ...support.fakes import model_info
from ...support.sampling import host_sampler
from ...support.tiny_model import write_tiny_model

PAGE = 4
NUM_PAGES = 160
SEQUENCES = 6


class PagedTorchAttention(TorchAttention):
    """The torch backend with a page table of its own, as a GPU's has."""

    def __init__(self, shape: KVShape, num_rows: int, num_columns: int) -> None:
        super().__init__(shape)
        self.page_table = torch.zeros(num_rows, num_columns, dtype=torch.int32)

    def set_pages(self, rows: np.ndarray, columns: np.ndarray, pages: np.ndarray) -> None:
        self.page_table[torch.from_numpy(rows).long(), torch.from_numpy(columns).long()] = torch.from_numpy(pages)

    def set_scales(self, k_scale: torch.Tensor, v_scale: torch.Tensor) -> None:
        raise AssertionError("there are none")

    def plan(self, batch: AttentionBatch) -> None:
        assert batch.table_row is not None and batch.page_table.shape[1] == 0
        table = self.page_table.numpy()[batch.table_row]
        super().plan(AttentionBatch(batch.query_start, batch.context_len, table, batch.write_slot))

    def plan_work(self, write_slot: torch.Tensor, work: PaddedWork[torch.Tensor]) -> None:
        raise AssertionError("no pass of any shape is a graph here")

    def plan_decode(self, rows: DecodeRows) -> None:
        starts = np.arange(len(rows.table_row) + 1, dtype=np.int32)
        table = self.page_table.numpy()[rows.table_row.numpy()]
        super().plan(AttentionBatch(starts, rows.context_len.numpy(), table, rows.write_slot.numpy()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def make_engine(
    folder: Path,
    *,
    gpu: bool,
    max_steps: int = 1,
    overlaps: bool = True,
    num_pages: int = NUM_PAGES,
    mask_bytes: int = 1 << 20,
    advance: Callable[..., None] = advance_states,
    drawing: Drawing | None = None,
    replays: Replays | None = None,
    **settings: Any,
) -> Engine:
    loaded = load_model(folder, dtype="float32")
    model, tokenizer = loaded.model, load_tokenizer(folder)
    assert isinstance(model, Decoder)
    shape = KVShape(model.num_layers, num_pages, PAGE, model.num_kv_heads, model.head_dim, torch.float32)
    config = EngineConfig(num_pages=num_pages, page_size=PAGE, max_num_seqs=SEQUENCES, **settings)
    runner: Any
    if gpu:
        attention = PagedTorchAttention(shape, SEQUENCES + 1, 512 // PAGE)
        runner = GpuPasses(
            MixedPasses(model, attention, replays or Eager()),
            drawing or torch_drawing(),
            grammars=DeviceGrammars(258, SEQUENCES + 1, torch.device("cpu"), advance, mask_bytes=mask_bytes),
            max_steps=max_steps,
            overlaps=overlaps,
            shared_reads=None,
        )
    else:
        runner = DirectPasses(ModelRunner(model, TorchAttention(shape), "cpu"), PAGE, host_sampler())
    return Engine(
        config=config,
        info=model_info(num_pages, PAGE, max_model_len=512),
        runner=runner,
        tokenizer=tokenizer,
        grammars=GrammarCompiler(tokenizer.vocabulary(258)),
        clock=time.monotonic,
    )


SCHEMA = JsonSchema(
    schema='{"type":"object","properties":{"name":{"type":"string","maxLength":8},"age":{"type":"integer"}},'
    '"required":["name","age"],"additionalProperties":false}'
)


def requests() -> list[Request]:
    made = []
    for index in range(14):
        prompt = [40 + (7 * index + i) % 80 for i in range(3 + 5 * index)]
        if index % 3 == 0:
            prompt = [50, 51, 52, 53, 54, 55, 56, 57, *prompt]
        sampling: dict[str, Any] = {"max_tokens": 5 + 3 * index % 17, "temperature": 0.0, "ignore_eos": True}
        if index % 7 == 1:
            sampling |= {"temperature": 0.9, "seed": index}
        if index % 7 == 2:
            sampling |= {"repetition_penalty": 1.3, "frequency_penalty": 0.4}
        if index % 7 == 3:
            sampling |= {"logprobs": 2}
        if index % 7 == 4:
            sampling |= {"min_tokens": 4, "ignore_eos": False, "temperature": 1.3, "seed": -index}
        grammar = SCHEMA if index % 7 == 5 else None
        if grammar is not None:
            sampling |= {"max_tokens": 21 + index // 7, "temperature": 1.2, "seed": index}  # closed before the limit
        made.append(Request(id=str(index), prompt=tuple(prompt), sampling=SamplingParams(**sampling), grammar=grammar))
    return made


def run(engine: Engine) -> dict[str, tuple[list[int], str]]:
    outputs: dict[str, list[RequestOutput]] = {}
    for request in requests():
        outputs[request.id] = []
        engine.submit(request, outputs[request.id].append)
    engine.wait_for_grammar(10.0)
    for _ in range(4000):
        if not engine._live and engine._passes.flight is None:
            break
        engine.step()
    assert not engine._live
    assert engine.flush_cache()
    assert engine.stats().free_pages == engine.stats().num_pages
    engine.close()
    found: dict[str, tuple[list[int], str]] = {}
    for name, heard in outputs.items():
        assert heard[-1].finish is not None and heard[-1].finish.error is None, heard[-1].finish
        found[name] = ([token for output in heard for token in output.tokens], heard[-1].finish.reason)
    return found


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, tuple[list[int], str]]:
    """On the CPU, without a cache."""
    return run(make_engine(folder, gpu=False, enable_prefix_caching=False))


@pytest.mark.parametrize("max_steps", [1, 4])
@pytest.mark.parametrize("settings", [{}, {"max_batch_tokens": 16}, {"enable_prefix_caching": False}])
def test_the_same_tokens_as_on_the_cpu(
    folder: Path, alone: dict[str, tuple[list[int], str]], max_steps: int, settings: dict[str, Any]
) -> None:
    assert run(make_engine(folder, gpu=True, max_steps=max_steps, **settings)) == alone


def test_the_same_tokens_when_each_pass_is_read_at_once(folder: Path, alone: dict[str, tuple[list[int], str]]) -> None:
    assert run(make_engine(folder, gpu=True, max_steps=3, overlaps=False)) == alone


@pytest.mark.parametrize("max_steps", [1, 4])
def test_the_same_tokens_when_sequences_are_put_back_to_wait(
    folder: Path, alone: dict[str, tuple[list[int], str]], max_steps: int
) -> None:
    engine = make_engine(folder, gpu=True, max_steps=max_steps, num_pages=34)
    assert run(engine) == alone
    assert engine.stats().preemptions_total > 0


def test_warming_up_leaves_nothing_behind(folder: Path, alone: dict[str, tuple[list[int], str]]) -> None:
    engine = make_engine(folder, gpu=True, max_steps=2)
    engine._runner.warm_up()  # type: ignore[attr-defined]
    assert run(engine) == alone


@pytest.mark.parametrize(("overlaps", "jump_forward"), [(False, True), (True, True), (False, False)])
def test_what_replaced_tokens_leave_in_the_cache_is_theirs(folder: Path, overlaps: bool, jump_forward: bool) -> None:
    """A value is closed before its limit: who continues it finds the keys of its tokens, not of those drawn."""

    def generate(engine: Engine, prompts: list[tuple[int, ...]], sampling: Any, grammar: Any) -> list[list[int]]:
        heard: list[list[RequestOutput]] = [[] for _ in prompts]
        for index, (prompt, outputs) in enumerate(zip(prompts, heard, strict=True)):
            request = Request(id=str(index), prompt=prompt, sampling=sampling(index), grammar=grammar)
            engine.submit(request, outputs.append)
        engine.wait_for_grammar(10.0)
        while not engine.idle or engine._live:
            engine.step()
        return [[token for output in outputs for token in output.tokens] for outputs in heard]

    def closed(index: int) -> SamplingParams:
        return SamplingParams(max_tokens=20 + index, temperature=1.5, seed=index)

    def greedy(index: int) -> SamplingParams:
        return SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)

    prompts = [tuple(50 + (index + i) % 70 for i in range(6)) for index in range(6)]
    engine = make_engine(folder, gpu=True, overlaps=overlaps, num_pages=400, jump_forward=jump_forward)
    values = generate(engine, prompts, closed, SCHEMA)
    texts = [(*prompt, *value, 66) for prompt, value in zip(prompts, values, strict=True)]
    warm = generate(engine, texts, greedy, None)
    assert engine.stats().cached_tokens_total > 16 * len(texts)
    engine.close()
    engine = make_engine(folder, gpu=False, num_pages=400, enable_prefix_caching=False)
    assert warm == generate(engine, texts, greedy, None)
    engine.close()


def test_scores_of_a_prompt_whose_logits_come_in_parts(folder: Path) -> None:
    found = []
    for gpu in (False, True):
        engine = make_engine(folder, gpu=gpu)
        heard: list[RequestOutput] = []
        prompt = tuple(40 + i % 80 for i in range(50))  # many more rows than sequences may run
        engine.submit(Request(id="s", prompt=prompt, sampling=SamplingParams(), score_from=3), heard.append)
        while not engine.idle:
            engine.step()
        engine.close()
        found.append([entry.logprob for output in heard for entry in output.logprobs or ()])
    assert len(found[0]) == 47
    assert found[1] == pytest.approx(found[0], abs=1e-4)


@pytest.mark.parametrize("most", [1, 2, 7, 8, 64, 100, 300])
def test_graph_sizes_rise_to_the_most_there_can_be(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes[-1] == most and sizes == sorted(set(sizes))
    assert all(b - a <= max(a / 8, 8) for a, b in itertools.pairwise(sizes))


def test_slots_are_kept_while_a_sequence_runs_and_given_on_afterwards() -> None:
    table = SlotTable(2)
    first, second, third = (Sequence(id=str(i), tokens=[1], num_prompt=1, standing=Standing(i)) for i in range(3))
    for sequence in (first, second, third):
        sequence.lease = make_lease([])
    a, b = table.assign([first, second])
    assert {a.index, b.index} == {1, 2}
    assert table.assign([second, first]) == [b, a]
    with pytest.raises(RuntimeError, match="no more slots"):
        table.assign([third])
    first.lease = None
    assert table.assign([third])[0].index == a.index


def make_lease(pages: list[int]) -> Any:
    from bough.radix import PrefixCache

    lease = PrefixCache(64, 1).open([1])
    lease.pages.extend(pages)
    return lease


def test_only_pages_that_are_new_are_sent() -> None:
    table = SlotTable(2)
    sequence = Sequence(id="a", tokens=[1], num_prompt=1, standing=Standing(0))
    sequence.lease = make_lease([5, 6])
    slots = table.assign([sequence])

    def changes() -> list[tuple[int, int, int]]:
        return list(zip(*(column.tolist() for column in page_changes([sequence], slots)), strict=True))

    index = slots[0].index
    assert changes() == [(index, 0, 5), (index, 1, 6)]
    assert changes() == []
    sequence.lease.pages.append(7)
    assert changes() == [(index, 2, 7)]
    sequence.lease.pages[0] = 9
    sequence.lease.rewrites += 1
    assert changes() == [(index, 0, 9), (index, 1, 6), (index, 2, 7)]
    sequence.lease = make_lease([8])
    assert changes() == [(index, 0, 8)]


class Recorded(Eager):
    """Runs each step as if it were recorded the first time, and counts what was."""

    captures = True

    def __init__(self) -> None:
        self.keys: set[Any] = set()

    def run(self, key: Any, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        self.keys.add(key)
        return super().run(key, step)


def test_what_is_prepared_while_idle_reads_nobodys_rows(folder: Path) -> None:
    """Steps of one row after a request in the second row asked for log-probabilities; answers before and after."""
    replays = Recorded()
    engine = make_engine(folder, gpu=True, max_steps=2, replays=replays)
    runner: Any = engine._runner
    runner.warm_up()
    at_start = len(replays.keys)

    def answer(turn: int) -> list[list[int]]:
        heard: list[list[RequestOutput]] = [[], []]
        for index, listener in enumerate(heard):
            sampling = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=index or None)
            engine.submit(Request(id=f"{turn} {index}", prompt=(40, 41 + index), sampling=sampling), listener.append)
        while not engine.idle:
            engine.step()
        return [[token for output in outputs for token in output.tokens] for outputs in heard]

    before = answer(0)
    while engine.prepare():
        pass
    assert answer(1) == before
    assert len(replays.keys) > at_start
    prepared = len(replays.keys)
    answer(2)
    assert len(replays.keys) == prepared, "everything common was there"
    engine.close()


def test_kinds_of_steps_are_few() -> None:
    """Whatever rows ask for: each kind has graphs of its own, and takes memory."""
    params = [
        SamplingParams(),
        SamplingParams(top_p=0.5),
        SamplingParams(logprobs=1),
        SamplingParams(logit_bias={1: 1}),
    ]
    params += [SamplingParams(top_k=3, logprobs=2), SamplingParams(frequency_penalty=1.0, logprobs=0)]
    kinds = {
        _StepKind.of([DrawSpec(each, 0) for each in chosen], scored)
        for count in (1, 2, 3)
        for chosen in itertools.combinations(params, count)
        for scored in (0, 1, 4, 16)
    }
    assert len(kinds) <= 6 + 1 + 3 + 1
