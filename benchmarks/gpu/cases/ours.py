"""Our kernels on a benchmark's inputs: each function plans what is planned once a step, and returns a launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ....kernels.attention.decode import DecodeSplits
from ....kernels.attention.interface import HeadNorm, Int32, KVShape
from ....kernels.attention.merge import merge_lists
from ....kernels.attention.plan.planner import WorkPlanner
from ....kernels.attention.plan.work_list import DeviceWork, WorkList
from ....kernels.attention.rope_store import rope_store
from ....kernels.attention.work import work_attention
from ....kernels.decoder.norm import add_rms_norm
from ....kernels.decoder.silu import silu_multiply
from ....kernels.sampling.reference import SampleRows, SampleTables
from ....kernels.sampling.sample import SampleWorkspace, sample_rows
from .attention import PAGE_SIZE, AttentionInputs
from .problem import Launch, poison


def decode(inputs: AttentionInputs) -> Launch:
    """Each sequence by itself, split over the device."""
    batch, num_heads, head_dim = inputs.q.shape
    splits = DecodeSplits(
        batch, num_heads=num_heads, num_kv_heads=inputs.keys.shape[1], head_dim=head_dim, device=inputs.q.device
    )
    splits.plan(torch.arange(batch, dtype=torch.int32, device=inputs.q.device), inputs.context_len)

    def launch() -> torch.Tensor:
        splits.attend(
            inputs.q,
            inputs.keys,
            inputs.values,
            inputs.out,
            page_table=inputs.page_table,
            page_size=PAGE_SIZE,
            scale=inputs.scale,
        )
        return inputs.out

    return launch


def planned(inputs: AttentionInputs) -> Launch:
    """Attends to this batch as the engine would: what is shared once, long contexts split, many queries together."""
    num_slots, num_kv_heads, head_dim = inputs.keys.shape
    shape = KVShape(1, num_slots // PAGE_SIZE, PAGE_SIZE, num_kv_heads, head_dim, inputs.keys.dtype)
    planner = WorkPlanner(shape, inputs.q.shape[1], inputs.q.dtype, inputs.q.device)
    work = planner.plan(inputs.batch, np.arange(len(inputs.context_len), dtype=np.int32))
    return decode(inputs) if work is None else listed(inputs, work)


def listed(inputs: AttentionInputs, plan: WorkList) -> Launch:
    """The items of a work list, and the merge that follows them."""
    device, (_, num_heads, head_dim) = inputs.q.device, inputs.q.shape

    def upload(array: Int32) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int32)).to(device)

    query_rows, query_limit = upload(plan.query_rows), upload(plan.query_limit)
    launches = [
        (tiles.block_m, DeviceWork(upload(tiles.items), upload(_count(tiles.items)), query_rows, query_limit))
        for tiles in plan.launches
    ]
    partial_out = torch.empty(max(plan.num_partials, 1), num_heads, head_dim, dtype=torch.float32, device=device)
    partial_lse = torch.empty(max(plan.num_partials, 1), num_heads, dtype=torch.float32, device=device)
    rows, starts, partials = map(upload, (plan.merge_rows, plan.merge_start, plan.merge_partials))
    num_lists = upload(_count(plan.merge_rows))

    def launch() -> torch.Tensor:
        for block_m, work in launches:
            work_attention(
                inputs.q,
                inputs.keys,
                inputs.values,
                inputs.out,
                work=work,
                block_m=block_m,
                page_table=inputs.page_table,
                page_size=PAGE_SIZE,
                scale=inputs.scale,
                partial_out=partial_out,
                partial_lse=partial_lse,
            )
        if len(plan.merge_rows):
            merge_lists(
                inputs.out, partial_out, partial_lse, rows=rows, starts=starts, partials=partials, num_lists=num_lists
            )
        return inputs.out

    return launch


def _count(array: Int32) -> Int32:
    return np.array([len(array)], np.int32)


def add_norm(hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> Launch:
    return lambda: add_rms_norm(hidden, delta, weight, eps)


def silu(gate_up: torch.Tensor) -> Launch:
    return lambda: silu_multiply(gate_up)


@dataclass(frozen=True)
class RopeInputs:
    """The projection's output of T tokens and where its parts go; see rope_store for shapes."""

    qkv: torch.Tensor
    num_heads: int
    norm: HeadNorm
    rotation: tuple[torch.Tensor, torch.Tensor]
    keys: torch.Tensor
    values: torch.Tensor
    write_slot: torch.Tensor
    out: torch.Tensor


def rope(inputs: RopeInputs) -> Launch:
    def launch() -> torch.Tensor:
        rope_store(
            inputs.qkv,
            num_heads=inputs.num_heads,
            norm=inputs.norm,
            rotation=inputs.rotation,
            keys=inputs.keys,
            values=inputs.values,
            write_slot=inputs.write_slot,
            q_out=inputs.out,
        )
        return inputs.out

    return launch


@dataclass(frozen=True)
class SampleInputs:
    """Logits [B, V] and how each row is drawn. `filters`: some row has top-k, top-p or min-p."""

    logits: torch.Tensor
    rows: SampleRows
    tables: SampleTables
    filters: bool


def sample(inputs: SampleInputs) -> Launch:
    num_rows, vocab_size = inputs.logits.shape
    workspace = SampleWorkspace.create(num_rows, vocab_size, inputs.logits.device)
    out = poison(torch.empty(num_rows, dtype=torch.int64, device=inputs.logits.device))

    def launch() -> torch.Tensor:
        sample_rows(inputs.logits, inputs.rows, inputs.tables, workspace, out, filters=inputs.filters)
        return out

    return launch
