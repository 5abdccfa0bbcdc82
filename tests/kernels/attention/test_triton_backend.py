"""The Triton backend against the reference one over random plans, decode steps from the device, deterministic mode."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ...support.triton_interpreter import DEVICE

pytest.importorskip("triton")

from bough.kernels.attention.decode_rows import DecodeRows
from bough.kernels.attention.interface import AttentionBatch, AttentionLayer, HeadNorm
from bough.kernels.attention.plan.padded_work import WorkCapacity, write_padded
from bough.kernels.attention.plan.planner import WorkPlanner
from bough.kernels.attention.plan.tree_cost import HeadShape, Machine
from bough.kernels.attention.plan.tree_plan import TreePlanner
from bough.kernels.attention.plan.work_list import Int32
from bough.kernels.attention.select import select_attention
from bough.kernels.attention.torch_backend import TorchAttention
from bough.kernels.attention.triton_backend import TritonAttention
from bough.kernels.decoder.reference import rms_norm, rotate

from ..engine_steps import Engine, Work, make_backend, make_reference, make_shape
from .oracle import ReferenceAttention

NAN = float("nan")
OPTIONS: dict[str, Any] = {"scale": 0.125}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def check(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.isfinite().all()
    error = (got.double() - expected.double()).norm() / expected.double().norm()
    assert error < TOLERANCE[got.dtype], f"{error:.2e}"


@pytest.mark.parametrize("seed", range(6))
def test_random_plans_equal_the_reference(seed: int) -> None:
    """Prefills, chunks, decodes and forks in one batch, over the steps of a small engine."""
    chance = random.Random(seed)
    kv_heads, group = chance.choice([(1, 1), (1, 4), (2, 3)])
    dtype = chance.choice([torch.float32, torch.bfloat16])
    shape = make_shape(chance.choice([1, 4, 16]), num_kv_heads=kv_heads, dtype=dtype)
    engine = Engine(shape, kv_heads * group, dtype, 300)
    backend, reference = make_backend(engine.shape), make_reference(engine.shape)
    layer_options = [OPTIONS, chance.choice([OPTIONS, OPTIONS | {"window": 20}, OPTIONS | {"softcap": 3.0}])]
    for step in range(4):
        for _ in range(chance.randrange(1, 3)):
            parent = chance.choice([None, *engine.sequences]) if engine.sequences else None
            engine.add(len(engine.sequences), parent)
        chosen = chance.sample(engine.sequences, chance.randrange(1, min(4, len(engine.sequences)) + 1))
        longest = 1 if step == 3 else 70
        work = [(sequence, chance.choice([1, chance.randrange(1, longest + 1)])) for sequence in chosen]
        batch = engine.step(work, shared=chance.random() < 0.5)
        reference.plan(batch)
        if chance.random() < 0.5:
            own = engine.step(work, own_table=True)
            engine.write_table(backend)
            backend.plan(own)
        else:
            backend.plan(batch)
        for layer, options in enumerate(layer_options):
            tokens = engine.tokens(work, layer)
            asked = AttentionLayer(layer, **options)
            check(backend.run(asked, *tokens), reference.run(asked, *tokens))
        engine.advance(work)


@dataclass
class Fork:
    engine: Engine
    backend: TritonAttention
    reference: ReferenceAttention
    work: Work

    def share_always(self) -> None:
        """Makes the planner believe in a machine so slow to read that the least sharing pays."""
        shape = self.engine.shape
        planner = WorkPlanner(shape, 2, torch.float32, DEVICE, fixed_split=self.backend._fixed_split)
        heads = HeadShape(shape.page_size, 2, shape.num_kv_heads, shape.head_dim, 4)
        machine = Machine(bandwidth=1e6, flops=1e15, num_sms=4, item_overhead_s=0.0, launch_s=0.0)
        planner.tree = TreePlanner(heads, machine, planner.num_programs)
        self.backend._planner = planner

    def rows(self, work: Work, num_unused: int = 0) -> DecodeRows:
        """A decode step on the device, with unused rows at its end."""
        batch = self.engine.step(work, own_table=True)
        assert batch.table_row is not None

        def padded(values: npt.NDArray[Any], fill: int) -> torch.Tensor:
            return torch.from_numpy(np.append(values, np.full(num_unused, fill, values.dtype))).to(DEVICE)

        return DecodeRows(padded(batch.table_row, 0), padded(batch.context_len, 0), padded(batch.write_slot, -1))

    def layers(self) -> list[tuple[int, dict[str, Any]]]:
        return [(0, OPTIONS), (1, OPTIONS | {"window": 150})]


def fork(backend_options: dict[str, Any] | None = None, *, num_own: tuple[int, ...] = (3, 20, 1, 7)) -> Fork:
    """Sequences with 320 tokens in common, each with some of its own, in a backend and in the reference."""
    engine = Engine(make_shape(16), 2, torch.float32, 30)
    backend, reference = make_backend(engine.shape, **(backend_options or {})), make_reference(engine.shape)
    root = engine.add(99)
    engine.step([(root, 320)])
    caches = [(backend.keys, backend.values), (reference.keys, reference.values)]
    root.length = 320
    for seed, count in enumerate(num_own):
        child = engine.add(seed, root)
        engine.step([(child, count)])
        child.length += count
    for sequence in engine.sequences:
        slots = torch.tensor([p * 16 + i for p in sequence.pages for i in range(16)])[: sequence.length]
        chance = torch.Generator().manual_seed(sequence.seed)
        for index in (0, 1):
            # What is shared, each writes anew, and the last as the others will then find it.
            content = torch.randn(2, sequence.length, 1, 64, generator=chance)
            for cache in caches:
                cache[index][:, slots.to(DEVICE)] = content.to(DEVICE)
    engine.write_table(backend)
    return Fork(engine, backend, reference, [(sequence, 1) for sequence in engine.sequences[1:]])


def test_what_is_shared_is_attended_to_once() -> None:
    case = fork()
    case.share_always()
    batch = case.engine.step(case.work, shared=True)
    case.backend.plan(batch)
    case.reference.plan(batch)
    for layer, options in case.layers():
        tokens = case.engine.tokens(case.work, layer)
        asked = AttentionLayer(layer, **options)
        check(case.backend.run(asked, *tokens), case.reference.run(asked, *tokens))
    step = case.backend._step
    assert step is not None and step.work is not None and step.work.merge is not None, "this was a tree"


def test_decode_steps_from_the_device() -> None:
    """One plan, several steps: as a graph is replayed on tensors whose contents change. Unused rows give 0."""
    case = fork()
    rows = case.rows(case.work, num_unused=2)
    case.backend.plan_decode(rows)
    for count in (4, 3, 4):
        work = case.work[:count]
        now = case.rows(work, num_unused=len(rows.context_len) - count)
        case.engine.write_table(case.backend)
        for name in ("table_row", "context_len", "write_slot"):
            getattr(rows, name).copy_(getattr(now, name))
        case.backend.plan_decode(rows)
        case.reference.plan(case.engine.step(work))
        for layer, options in case.layers():
            q, k, v = case.engine.tokens(work, layer)
            qkv = torch.full((len(rows.context_len), 4 * 64), 5.0, device=DEVICE)
            qkv[:count] = torch.cat((q.flatten(1), k.flatten(1), v.flatten(1)), 1)
            got = case.backend.run_qkv(AttentionLayer(layer, **options), qkv, None)
            check(got[:count], case.reference.run(AttentionLayer(layer, **options), q, k, v))
            assert (got[count:] == 0.0).all()
        case.engine.advance(work)


def test_decode_steps_of_a_tree_in_a_buffer_of_fixed_size() -> None:
    """The tree is planned once; contexts then grow on the device, as in a graph that is replayed."""
    case = fork()
    case.share_always()
    planner = case.backend._planner
    assert planner is not None
    batch = case.engine.step(case.work, shared=True, own_table=True)
    assert batch.table_row is not None
    tree = planner.tree.plan(batch.query_start, batch.context_len, batch.table_row, batch.shared)
    assert tree.num_levels
    capacity = WorkCapacity((64, 16), 5, 400, 600)
    buffer = np.full(capacity.size, 10**8, np.int32)
    write_padded(tree.work, capacity, buffer)
    for _ in range(3):
        case.engine.write_table(case.backend)
        rows = case.rows(case.work)
        shared = capacity.views(torch.from_numpy(buffer).to(DEVICE))
        case.backend.plan_decode(DecodeRows(rows.table_row, rows.context_len, rows.write_slot, shared))
        case.reference.plan(case.engine.step(case.work))
        for layer, options in case.layers():
            tokens = case.engine.tokens(case.work, layer)
            asked = AttentionLayer(layer, **options)
            check(case.backend.run(asked, *tokens), case.reference.run(asked, *tokens))
        case.engine.advance(case.work)


def test_head_norm_and_rotation_come_before_the_cache() -> None:
    case = fork()
    batch = case.engine.step(case.work)
    case.backend.plan(batch)
    case.reference.plan(batch)
    chance = torch.Generator().manual_seed(1)
    weights = [torch.rand(64, generator=chance).to(DEVICE) + 0.5 for _ in range(2)]
    angle = torch.randn(len(case.work), 1, 32, generator=chance).to(DEVICE)
    rotation = (torch.cat((angle.cos(), angle.cos()), -1), torch.cat((-angle.sin(), angle.sin()), -1))
    q, k, v = case.engine.tokens(case.work, 0)
    qkv = torch.cat((q.flatten(1), k.flatten(1), v.flatten(1)), 1)
    norm = HeadNorm(weights[0], weights[1], 1e-6)
    got = case.backend.run_qkv(AttentionLayer(0, norm=norm, **OPTIONS), qkv, rotation)
    q, k = (rotate(rms_norm(x, weight, 1e-6), *rotation) for x, weight in zip((q, k), weights, strict=True))
    check(got, case.reference.run(AttentionLayer(0, **OPTIONS), q, k, v))


def test_an_8_bit_cache() -> None:
    """Against the reference on what the cache holds, times the scales."""
    shape = make_shape(16, num_kv_heads=2, dtype=torch.float8_e4m3fn)
    engine = Engine(shape, 4, torch.bfloat16)
    backend = make_backend(shape)
    assert backend.k_scale is not None and backend.v_scale is not None
    backend.k_scale.copy_(torch.tensor([[0.01, 0.02], [1.0, 2.0]]))
    backend.v_scale.copy_(torch.tensor([[0.5, 0.001], [3.0, 2.0]]))
    sequences = [engine.add(0), engine.add(1)]
    for work in ([(sequences[0], 40), (sequences[1], 3)], [(sequences[0], 1), (sequences[1], 1)]):
        batch = engine.step(work)
        backend.plan(batch)
        for layer in range(2):
            tokens = engine.tokens(work, layer)
            got = backend.run(AttentionLayer(layer, **OPTIONS), *tokens)
            reference = make_reference(make_shape(16, num_kv_heads=2, dtype=torch.float64))
            reference.keys[layer] = backend.keys[layer].double() * backend.k_scale[layer, :, None]
            reference.values[layer] = backend.values[layer].double() * backend.v_scale[layer, :, None]
            reference.plan(batch)
            slots = torch.from_numpy(batch.write_slot).to(DEVICE)
            stored = [cache[layer, slots] for cache in (reference.keys, reference.values)]
            check(got, reference.run(AttentionLayer(layer, **OPTIONS), tokens[0].double(), *stored))
            largest = stored[0].abs().amax()
            assert largest <= 448 * 0.02 if layer == 0 else (stored[0] - tokens[1].double()).abs().max() < 0.5
        engine.advance(work)


def run_alone(chunks: list[int], options: dict[str, Any], *, beside: int = 0, decode: bool = False) -> torch.Tensor:
    """Outputs of one sequence's tokens in deterministic mode, computed in these chunks beside other sequences.

    decode   chunks of one token are planned on the device
    """
    engine = Engine(make_shape(16), 2, torch.float32, 70)
    backend = make_backend(engine.shape, deterministic=True, fixed_split=128)
    others = [engine.add(seed) for seed in range(1, beside + 1)]
    sequence = engine.add(0)
    outs = []
    for index, chunk in enumerate(chunks):
        work = [*((other, 1 + 30 * (index % 2)) for other in others), (sequence, chunk)]
        if decode and chunk == 1 and not others:
            batch = engine.step(work, own_table=True)
            engine.write_table(backend)
            assert batch.table_row is not None
            row, context, slot = (
                torch.from_numpy(x).to(DEVICE) for x in (batch.table_row, batch.context_len, batch.write_slot)
            )
            backend.plan_decode(DecodeRows(row, context, slot))
        else:
            backend.plan(engine.step(work))
        outs.append(backend.run(AttentionLayer(0, **options), *engine.tokens(work, 0))[-chunk:])
        engine.advance(work)
    return torch.cat(outs)


@pytest.mark.parametrize("options", [OPTIONS, OPTIONS | {"window": 100}, OPTIONS | {"softcap": 2.0}], ids=str)
def test_deterministic_results_depend_on_the_sequence_alone(options: dict[str, Any]) -> None:
    """To the bit: in one piece, in chunks, token by token, planned by the host or on the device, and in company."""
    whole = run_alone([150], options)
    assert torch.equal(run_alone([90, 57, 3], options), whole)
    assert torch.equal(run_alone([126, *[1] * 6, 18], options, decode=True), whole)
    assert torch.equal(run_alone([120, 1, 6, 20, 1, 2], options, beside=1), whole)


def test_deterministic_mode_shares_nothing() -> None:
    case = fork({"deterministic": True, "fixed_split": 128})
    case.share_always()
    batch = case.engine.step(case.work, shared=True)
    assert batch.shared
    case.backend.plan(batch)
    together = case.backend.run(AttentionLayer(0, **OPTIONS), *case.engine.tokens(case.work, 0))
    for index, one in enumerate(case.work):
        case.backend.plan(case.engine.step([one]))
        alone = case.backend.run(AttentionLayer(0, **OPTIONS), *case.engine.tokens([one], 0))
        assert torch.equal(alone[0], together[index])
    rows = case.rows(case.work)
    buffer = WorkCapacity((16,), 1, 1, 1).views(torch.zeros(100, dtype=torch.int32))
    with pytest.raises(ValueError, match="deterministic"):
        case.backend.plan_decode(DecodeRows(rows.table_row, rows.context_len, rows.write_slot, buffer))


def test_pages_are_written_where_they_belong() -> None:
    backend = make_backend(make_shape(16))
    expected = backend.page_table.cpu().numpy().copy()
    chance = np.random.default_rng(0)
    for count in (1, 7, 0, 200):
        places = chance.choice(expected.size, count, replace=False)
        rows, columns = (x.astype(np.int32) for x in np.divmod(places, expected.shape[1]))
        pages = chance.integers(1, 10**6, count, dtype=np.int32)
        backend.set_pages(rows, columns, pages)
        expected[rows, columns] = pages
        assert np.array_equal(backend.page_table.cpu().numpy(), expected)


def test_an_empty_batch() -> None:
    backend = make_backend(make_shape(16))
    none: Int32 = np.empty(0, np.int32)
    backend.plan(AttentionBatch(np.zeros(1, np.int32), none, none.reshape(0, 0), none.astype(np.int64)))
    empty = torch.empty(0, 1, 64, device=DEVICE)
    assert backend.run(AttentionLayer(0, **OPTIONS), empty, empty, empty).shape == (0, 1, 64)


def test_misuse_is_told() -> None:
    backend = make_backend(make_shape(16))
    token = torch.zeros(1, 1, 64, device=DEVICE)
    with pytest.raises(RuntimeError, match="nothing is planned"):
        backend.run(AttentionLayer(0, **OPTIONS), token, token, token)
    engine = Engine(backend.shape, 1, torch.float32)
    backend.plan(engine.step([(engine.add(0), 2)]))
    with pytest.raises(ValueError, match="2 tokens were planned, got 1"):
        backend.run(AttentionLayer(0, **OPTIONS), token, token, token)
    many = torch.zeros(17, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="16 rows at most, got 17"):
        backend.plan_decode(DecodeRows(many, many, many))


def test_which_backend_serves_what(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = make_shape(16)
    assert isinstance(select_attention(shape, "cpu"), TorchAttention)
    assert isinstance(select_attention(shape, DEVICE, backend="torch"), TorchAttention)
    backend = select_attention(shape, DEVICE, backend="triton", max_num_seqs=3, max_model_len=100, deterministic=True)
    assert isinstance(backend, TritonAttention) and backend.deterministic
    assert backend.page_table.shape == (4, 7) and backend.keys.shape == (2, 4096, 1, 64)
    whole = select_attention(shape, DEVICE, backend="triton")
    assert isinstance(whole, TritonAttention) and whole.max_model_len == 4096
    with pytest.raises(ValueError, match="auto, torch or triton, got 'flash'"):
        select_attention(shape, "cpu", backend="flash")
    with pytest.raises(ValueError, match="deterministic"):
        select_attention(shape, "cpu", deterministic=True)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        select_attention(shape, "cpu", backend="triton")
