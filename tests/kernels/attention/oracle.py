"""Attention in plain torch, short and obviously right: backend, work lists and merges to compare the kernels with."""

from __future__ import annotations

import torch

from bough.kernels.attention.interface import AttentionBatch, AttentionLayer, KVShape, Rotation
from bough.kernels.attention.plan.work_list import DeviceWork, WorkList
from bough.kernels.attention.reference import ragged_attention, split_heads


class ReferenceAttention:
    """The attention backend that reads its pages one sequence at a time; the oracle of all others.

    Holds the cache as `keys` and `values`, each [num_layers, num_pages * page_size, num_kv_heads, head_dim]. Slots
    never written hold NaN, so that reading one shows.
    """

    def __init__(self, shape: KVShape, device: str | torch.device = "cpu") -> None:
        self.shape = shape
        slots = (shape.num_layers, shape.num_pages * shape.page_size, shape.num_kv_heads, shape.head_dim)
        self.keys = torch.full(slots, float("nan"), dtype=shape.dtype, device=device)
        self.values = torch.full(slots, float("nan"), dtype=shape.dtype, device=device)
        self._write_slot = torch.empty(0, dtype=torch.int64, device=device)
        self._sequences: list[tuple[slice, torch.Tensor]] = []

    def plan(self, batch: AttentionBatch) -> None:
        """Lists, for each sequence, its query rows and the slots of its tokens in order."""
        device = self.keys.device
        self._write_slot = torch.from_numpy(batch.write_slot).to(device)
        offsets = torch.arange(self.shape.page_size)
        self._sequences = []
        for row, context_len in enumerate(batch.context_len.tolist()):
            num_pages = -(-context_len // self.shape.page_size)
            pages = torch.from_numpy(batch.page_table[row, :num_pages]).long()
            slots = (pages[:, None] * self.shape.page_size + offsets).flatten()[:context_len].to(device)
            start, stop = batch.query_start[row : row + 2].tolist()
            self._sequences.append((slice(start, stop), slots))

    def run(self, layer: AttentionLayer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See HeadAttention.run."""
        all_keys, all_values = self.keys[layer.index], self.values[layer.index]
        all_keys[self._write_slot] = k.to(self.shape.dtype)
        all_values[self._write_slot] = v.to(self.shape.dtype)
        out = torch.empty_like(q)
        for rows, slots in self._sequences:
            keys, values = all_keys[slots], all_values[slots]
            out[rows] = ragged_attention(
                q[rows], keys, values, scale=layer.scale, window=layer.window, softcap=layer.softcap
            )
        return out

    def run_qkv(self, layer: AttentionLayer, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        """See AttentionBackend.run_qkv."""
        return self.run(layer, *split_heads(qkv, self.shape, layer.norm, rotation))


def upload(work: WorkList, device: torch.device | str) -> list[DeviceWork]:
    """One for each of `work.launches`, without room to spare."""
    rows = torch.from_numpy(work.query_rows).to(device)
    limit = torch.from_numpy(work.query_limit).to(device)
    return [
        DeviceWork(
            torch.from_numpy(tiles.items).to(device),
            torch.tensor([len(tiles.items)], dtype=torch.int32, device=device),
            rows,
            limit,
        )
        for tiles in work.launches
    ]


def work_attention_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    *,
    work: DeviceWork,
    page_table: torch.Tensor,
    page_size: int,
    scale: float,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    window: int | None = None,
    softcap: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """Computes what `work.work_attention` does, in the dtype of the partials; any head size, also float64."""
    wide = partial_out.dtype
    num_heads, num_kv_heads = q.shape[1], keys.shape[1]
    for item in work.items[: int(work.num_items)].tolist():
        first, num_queries, table_row, kv_start, kv_stop, partial, _, _ = item
        if num_queries == 0:
            continue
        tokens = work.query_rows[first : first + num_queries].long()
        limit = work.query_limit[tokens].long()[:, None]
        position = torch.arange(kv_start, max(kv_start, min(kv_stop, int(limit.max()))), device=q.device)
        slots = page_table[table_row, position // page_size].long() * page_size + position % page_size
        k, v = keys[slots].to(wide), values[slots].to(wide)
        if k_scale is not None and v_scale is not None:
            k, v = k * k_scale.to(wide)[:, None], v * v_scale.to(wide)[:, None]
        k, v = (x.repeat_interleave(num_heads // num_kv_heads, dim=1) for x in (k, v))
        scores = torch.einsum("nhd,khd->nhk", q[tokens].to(wide), k) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        visible = position < limit
        if window is not None:
            visible &= position >= limit - window
        scores = scores.masked_fill(~visible[:, None], float("-inf"))
        lse = torch.logsumexp(scores, dim=-1)  # [n, H]; -inf where nothing is seen
        weights = torch.exp(scores - torch.where(lse.isneginf(), 0.0, lse)[..., None])
        result = torch.einsum("nhk,khd->nhd", weights, v)
        if partial < 0:
            out[tokens] = result.to(out.dtype)
        else:
            partial_out[partial : partial + num_queries] = result
            partial_lse[partial : partial + num_queries] = lse / torch.log(torch.tensor(2.0, dtype=wide))


def attend_work_list(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    work: WorkList,
    page_table: torch.Tensor,
    page_size: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attention of all launches of `work`, merged: [T, H, D] in the dtype of `q`; NaN where no item has a query."""
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.full_like(q, float("nan"))
    partial_out = torch.full((work.num_partials, *q.shape[1:]), float("nan"), dtype=wide, device=q.device)
    partial_lse = torch.full((work.num_partials, q.shape[1]), float("nan"), dtype=wide, device=q.device)
    for launch in upload(work, q.device):
        work_attention_reference(
            q,
            keys,
            values,
            out,
            work=launch,
            page_table=page_table,
            page_size=page_size,
            scale=scale,
            partial_out=partial_out,
            partial_lse=partial_lse,
            window=window,
            softcap=softcap,
        )
    rows, starts, partials = (torch.from_numpy(x) for x in (work.merge_rows, work.merge_start, work.merge_partials))
    merge_lists(out, partial_out, partial_lse, rows=rows, starts=starts, partials=partials)
    return out


def merge_partials(partial_out: torch.Tensor, partial_lse: torch.Tensor) -> torch.Tensor:
    """Attention over the union of N disjoint sets of keys, from the attention over each.

    partial_out   [N, H, D]   results, each normalised by its own sum of weights; not read where its lse is -inf
    partial_lse   [N, H]      logarithm to base 2 of that sum; -inf: the set was empty
    returns       [H, D]      in the dtype of `partial_out`; 0 where all sets were empty, or N is 0
    """
    if not len(partial_lse):
        return partial_out.new_zeros(partial_out.shape[1:])
    top = partial_lse.amax(dim=0)
    weight = torch.exp2(partial_lse - torch.where(top.isneginf(), 0.0, top))
    parts = torch.where(partial_lse.isneginf()[..., None], 0.0, partial_out)
    total = weight.sum(dim=0)
    merged = (weight[..., None] * parts).sum(dim=0) / torch.where(total == 0.0, 1.0, total)[:, None]
    return merged.to(partial_out.dtype)


def merge_lists(
    out: torch.Tensor,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    *,
    rows: torch.Tensor,
    starts: torch.Tensor,
    partials: torch.Tensor,
) -> None:
    """Writes out[rows[i]], for every i, from the partial rows partials[starts[i] : starts[i + 1]].

    out           [T, H, D]        rows that are not listed are left as they are
    partial_out   [P, H, D]        see merge_partials
    partial_lse   [P, H]
    rows          [N]       int    distinct
    starts        [N + 1]   int
    partials      [...]     int
    """
    for index, row in enumerate(rows.tolist()):
        chosen = partials[int(starts[index]) : int(starts[index + 1])].long()
        out[row] = merge_partials(partial_out[chosen], partial_lse[chosen]).to(out.dtype)
