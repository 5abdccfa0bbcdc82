"""Attention backend for GPUs: plans ragged batches and decode steps, and runs Triton kernels on the paged cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..staging import upload
from .decode import DecodeSplits
from .decode_rows import DecodeRows
from .interface import AttentionBatch, AttentionLayer, Int32, KVShape, Rotation
from .merge import merge_lists
from .plan.padded_work import PaddedWork
from .plan.planner import WorkPlanner
from .plan.work_list import FIXED_BLOCK_M, FIXED_SPLIT, DeviceWork
from .rope_store import rope_store
from .work import work_attention


@dataclass(frozen=True)
class _Partials:
    """float32 [P, H, D] and [P, H]."""

    out: torch.Tensor
    lse: torch.Tensor


@dataclass(frozen=True)
class _Merge:
    """Partial results and the rows they make up, as merge_lists takes them."""

    rows: torch.Tensor
    starts: torch.Tensor
    partials: torch.Tensor
    num_lists: torch.Tensor


@dataclass(frozen=True)
class _Work:
    """A work list on the device: launches by rows of a tile, and the merge that follows them, if any does."""

    launches: tuple[tuple[int, DeviceWork], ...]
    partials: _Partials
    merge: _Merge | None


@dataclass(frozen=True)
class _PlannedWork:
    """Arguments of `plan_work`."""

    write_slot: torch.Tensor
    work: PaddedWork[torch.Tensor]


@dataclass
class _Step:
    """One planned forward pass.

    flat      table_row and context_len, int32 [B], where each row is one new token and attended to by itself; by layers
              with a window only, if `work` says how the others do it
    planned   splits of `flat` that layers before have planned
    """

    write_slot: torch.Tensor
    page_table: torch.Tensor
    work: _Work | None = None
    flat: tuple[torch.Tensor, torch.Tensor] | None = None
    planned: list[DecodeSplits] = field(default_factory=list)


class TritonAttention:
    """`AttentionBackend` in Triton kernels.

    Keys and values are `keys` and `values`, [num_layers, num_slots, num_kv_heads, head_dim] each. An 8-bit cache holds
    them divided by `k_scale` and `v_scale`, float32 [num_layers, num_kv_heads], which are 1 until they are set.

    Its page table is `page_table`, int32 [max_num_seqs + 1, pages of max_model_len]; `set_pages` writes it. Batches
    without `table_row` bring one of their own.

    A step is planned by `plan`, from host arrays, or by `plan_decode` or `plan_work`, from tensors on the device. After
    the latter a CUDA graph can capture the layers that follow, once the same step has run outside of it, and be
    replayed on other contents of these tensors.

    deterministic   a row's result depends on its own query, keys and position alone, to the bit: not on the batch, on
                    how a prompt was cut into chunks, or on what was in the cache already
    fixed_split     tokens, a multiple of 128 and of the page size: where keys are split in deterministic mode
    """

    def __init__(
        self,
        shape: KVShape,
        device: torch.device | str,
        *,
        max_num_seqs: int,
        max_model_len: int,
        deterministic: bool = False,
        fixed_split: int = FIXED_SPLIT,
    ) -> None:
        self.shape = shape
        self.max_model_len = max_model_len
        self.deterministic = deterministic
        self._fixed_split = fixed_split if deterministic else None
        size = (shape.num_layers, shape.num_pages * shape.page_size, shape.num_kv_heads, shape.head_dim)
        # Zeros: unused rows of a decode step read the null page.
        self.keys = torch.zeros(size, dtype=shape.dtype, device=device)
        self.values = torch.zeros(size, dtype=shape.dtype, device=device)
        self.k_scale = self.v_scale = None
        if shape.dtype.itemsize == 1:
            self.k_scale = torch.ones(size[0], size[2], dtype=torch.float32, device=device)
            self.v_scale = torch.ones_like(self.k_scale)
        num_pages = -(-max_model_len // shape.page_size)
        self.page_table = torch.zeros(max_num_seqs + 1, num_pages, dtype=torch.int32, device=device)
        self._planned: AttentionBatch | DecodeRows | _PlannedWork | None = None
        self._step: _Step | None = None  # of what is planned; the first layer makes it, which tells how many heads ask
        self._planner: WorkPlanner | None = None
        self._splits: dict[tuple[int, int | None], DecodeSplits] = {}
        self._partials: _Partials | None = None
        self._kept_partials: list[_Partials] = []  # graphs hold their addresses

    def set_pages(self, rows: Int32, columns: Int32, pages: Int32) -> None:
        """Writes page_table[rows[i], columns[i]] = pages[i] for every i; no place may come up twice."""
        at = rows.astype(np.int64) * self.page_table.shape[1] + columns
        places, values = upload(self.page_table.device, at, pages)
        self.page_table.view(-1).index_copy_(0, places, values)

    def set_scales(self, k_scale: torch.Tensor, v_scale: torch.Tensor) -> None:
        """Sets the scales of an 8-bit cache, float32 [num_layers, num_kv_heads] each, before anything is in it."""
        if self.k_scale is None or self.v_scale is None:
            raise ValueError(f"a cache of {self.shape.dtype} has no scales")
        self.k_scale.copy_(k_scale)
        self.v_scale.copy_(v_scale)

    def plan(self, batch: AttentionBatch) -> None:
        """See AttentionBackend.plan."""
        self._planned, self._step = batch, None

    def plan_decode(self, rows: DecodeRows) -> None:
        """Plans a step of one new token a row from tensors alone: nothing is read back, shapes are those given.

        Raises:
            ValueError: there are more rows than `max_num_seqs` + 1, or shared work in deterministic mode.
        """
        if len(rows.context_len) > len(self.page_table):
            raise ValueError(f"a decode step has {len(self.page_table)} rows at most, got {len(rows.context_len)}")
        if self.deterministic and rows.work is not None:
            raise ValueError("rows share no work in deterministic mode: work must be None")
        self._planned, self._step = rows, None

    def plan_work(self, write_slot: torch.Tensor, work: PaddedWork[torch.Tensor]) -> None:
        """See DeviceAttention.plan_work."""
        self._planned, self._step = _PlannedWork(write_slot, work), None

    def run(self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See HeadAttention.run."""
        step = self._start(q)
        slots = step.write_slot.long().clamp(min=0)  # the null page is there to be overwritten
        for cache, scales, new in ((self.keys, self.k_scale, k), (self.values, self.v_scale, v)):
            _write(cache[layer.index], slots, new, None if scales is None else scales[layer.index])
        return self.attend(layer, q.contiguous())

    def run_qkv(self, layer: AttentionLayer, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        """See AttentionBackend.run_qkv."""
        head_dim = self.shape.head_dim
        num_heads = qkv.shape[1] // head_dim - 2 * self.shape.num_kv_heads
        q = qkv.new_empty(len(qkv), num_heads, head_dim)
        step = self._start(q)
        rope_store(
            qkv,
            num_heads=num_heads,
            norm=layer.norm,
            rotation=rotation,
            write_slot=step.write_slot,
            q_out=q,
            **self._cache(layer.index),
        )
        return self.attend(layer, q)

    def _cache(self, layer: int) -> dict[str, torch.Tensor]:
        """One layer's keys and values, and their scales if they have any, by name."""
        cache = {"keys": self.keys[layer], "values": self.values[layer]}
        if self.k_scale is not None and self.v_scale is not None:
            cache |= {"k_scale": self.k_scale[layer], "v_scale": self.v_scale[layer]}
        return cache

    def attend(self, layer: AttentionLayer, q: torch.Tensor) -> torch.Tensor:
        """`run` where the cache holds the new keys and values already."""
        step, out = self._start(q), torch.empty_like(q)
        if not len(q):
            return out
        options: dict[str, Any] = {"page_table": step.page_table, "page_size": self.shape.page_size}
        options |= {"scale": layer.scale, "window": layer.window, "softcap": layer.softcap}
        options |= self._cache(layer.index)
        if step.work is not None and (step.flat is None or layer.window is None):
            self._run_work(step.work, q, out, **options)
        else:
            self._run_flat(step, q, out, **options)
        return out

    def _run_work(self, work: _Work, q: torch.Tensor, out: torch.Tensor, **options: Any) -> None:
        partials: dict[str, Any] = {"partial_out": work.partials.out, "partial_lse": work.partials.lse}
        for block_m, launch in work.launches:
            work_attention(q, out=out, work=launch, block_m=block_m, **partials, **options)
        if (merge := work.merge) is not None:
            lists = {"rows": merge.rows, "starts": merge.starts, "partials": merge.partials}
            merge_lists(out, **partials, **lists, num_lists=merge.num_lists)

    def _run_flat(self, step: _Step, q: torch.Tensor, out: torch.Tensor, *, window: int | None, **options: Any) -> None:
        """Each row by itself. The first layer of each window plans the splits: a graph then holds that, too."""
        assert step.flat is not None
        table_row, context_len = step.flat
        # With fixed splits all windows have the same: the kernel of work lists finds out what is before one.
        splits = self._splits_for(q.shape[1], None if self.deterministic else window)
        if splits not in step.planned:
            splits.plan(table_row, context_len)
            step.planned.append(splits)
        if not self.deterministic:
            splits.attend(q, out=out, **options)
            return
        work = DeviceWork(splits.items, splits.num_items, splits.query_rows, context_len)
        partials: dict[str, Any] = {"partial_out": splits.partial_out, "partial_lse": splits.partial_lse}
        options |= {"window": window, "block_m": FIXED_BLOCK_M}
        work_attention(q, out=out, work=work, **partials, **options)
        splits.merge(out)

    def _splits_for(self, num_heads: int, window: int | None) -> DecodeSplits:
        key = num_heads, window
        if key not in self._splits:
            self._splits[key] = DecodeSplits(
                len(self.page_table),
                num_heads=num_heads,
                num_kv_heads=self.shape.num_kv_heads,
                head_dim=self.shape.head_dim,
                device=self.page_table.device,
                window=window,
                fixed_split=self._fixed_split,
                max_context=self.max_model_len,
            )
        return self._splits[key]

    def _start(self, q: torch.Tensor) -> _Step:
        """Returns the layers' inputs for this step on the device; the first layer copies them there."""
        if self._step is None:
            match self._planned:
                case DecodeRows(table_row, context_len, write_slot, padded):
                    work = None if padded is None else self._padded_work(padded, context_len, q.shape[1])
                    self._step = _Step(write_slot, self.page_table, work, (table_row, context_len))
                case _PlannedWork(write_slot, padded):
                    work = self._padded_work(padded, padded.query_limit, q.shape[1])
                    self._step = _Step(write_slot, self.page_table, work)
                case AttentionBatch() as batch:
                    self._step = self._upload(batch, q.shape[1], q.dtype)
                case None:
                    raise RuntimeError("nothing is planned: call plan or plan_decode before the first layer")
        if len(q) != len(self._step.write_slot):
            raise ValueError(f"{len(self._step.write_slot)} tokens were planned, got {len(q)}")
        return self._step

    def _upload(self, batch: AttentionBatch, num_heads: int, dtype: torch.dtype) -> _Step:
        """Plans a batch, and brings all of it to the device in one copy."""
        if self._planner is None:
            self._planner = WorkPlanner(
                self.shape, num_heads, dtype, self.page_table.device, fixed_split=self._fixed_split
            )
        table_row = batch.table_row
        table = []
        if table_row is None:
            table_row, table = np.arange(len(batch.context_len), dtype=np.int32), [batch.page_table]
        work = self._planner.plan(batch, table_row)
        if work is None:
            write_slot, rows, contexts, *rest = upload(
                self.page_table.device, batch.write_slot, table_row, batch.context_len, *table
            )
            return _Step(write_slot, rest[0] if rest else self.page_table, flat=(rows, contexts))
        counts = [np.array([len(items)], np.int32) for items in (work.merge_rows, *(x.items for x in work.launches))]
        queries = [work.query_rows, work.query_limit]
        lists = [work.merge_rows, work.merge_start, work.merge_partials]
        launches = [tiles.items for tiles in work.launches]
        uploaded = iter(upload(self.page_table.device, batch.write_slot, *queries, *lists, *counts, *launches, *table))
        write_slot, query_rows, query_limit, *merged = (next(uploaded) for _ in range(6))
        num_merges, *num_items = (next(uploaded) for _ in counts)
        on_device = tuple(
            (tiles.block_m, DeviceWork(next(uploaded), count, query_rows, query_limit))
            for tiles, count in zip(work.launches, num_items, strict=True)
        )
        merge = _Merge(merged[0], merged[1], merged[2], num_merges) if len(work.merge_rows) else None
        partials = self._partials_for(work.num_partials, num_heads)
        return _Step(write_slot, next(uploaded, self.page_table), _Work(on_device, partials, merge))

    def _padded_work(self, padded: PaddedWork[torch.Tensor], query_limit: torch.Tensor, num_heads: int) -> _Work:
        """Launches for all tile sizes, also those that have no items now: a graph may be replayed when they have."""
        launches = tuple(
            (block_m, DeviceWork(launch.items, launch.num_items, padded.query_rows, query_limit))
            for block_m, launch in padded.launches.items()
        )
        merge = _Merge(padded.merge_rows, padded.merge_start, padded.merge_partials, padded.num_merges)
        return _Work(launches, self._partials_to_keep(len(padded.merge_partials), num_heads), merge)

    def _partials_for(self, size: int, num_heads: int) -> _Partials:
        """Room for as many or more, that of the last batch if it suffices."""
        if self._partials is None or len(self._partials.lse) < size:
            self._partials = self._new_partials(size + size // 2, num_heads)
        return self._partials

    def _partials_to_keep(self, size: int, num_heads: int) -> _Partials:
        """Room that stays where it is, for as many or more: steps on one stream take turns in it."""
        for kept in self._kept_partials:
            if len(kept.lse) >= size:
                return kept
        self._kept_partials.append(self._new_partials(size, num_heads))
        return self._kept_partials[-1]

    def _new_partials(self, size: int, num_heads: int) -> _Partials:
        out = torch.empty(size, num_heads, self.shape.head_dim, dtype=torch.float32, device=self.page_table.device)
        return _Partials(out, out.new_empty(size, num_heads))


def _write(cache: torch.Tensor, slots: torch.Tensor, new: torch.Tensor, scale: torch.Tensor | None) -> None:
    """cache[slots] = new / scale, saturating.

    cache   [num_slots, G, D]
    new     [T, G, D]
    scale   float32 [G], with an 8-bit cache
    """
    if scale is not None:
        largest = torch.finfo(cache.dtype).max
        new = (new.float() / scale[:, None]).clamp(-largest, largest).to(cache.dtype)
        cache, new = cache.view(torch.uint8), new.view(torch.uint8)  # index_copy_ is not there for 8-bit floats
    cache.index_copy_(0, slots, new.to(cache.dtype))
