"""Attention kernels of bough and of peers at relevant sizes: decode, decode under shared prefixes, extend.

Their inputs are sequences over shuffled pages, some of which share prefixes.
"""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ....kernels.attention.interface import AttentionBatch, AttentionLayer, Int32, KVShape
from ....kernels.attention.plan.shared_reads import find_shared
from ....kernels.attention.reference import ragged_attention
from ..roofline import Heads, decode_attention, extend_attention
from .problem import AbsentError, Launch, Problem, Settings, poison

PAGE_SIZE = 16

_NOBODYS = 1e4
"""In slots of no sequence. Not NaN: some peers multiply what lies past the end of a page by a weight of 0."""

Path = Sequence[tuple[Hashable, int]]
"""One sequence, root first: (name of a segment, its tokens). Sequences that name the same segment share its pages."""


@dataclass(frozen=True)
class AttentionInputs:
    """One launch. `batch` says on the host what `page_table` and `context_len` hold on the device."""

    batch: AttentionBatch
    num_queries: int
    # [T, H, D], queries and outputs: `num_queries` tokens for each of B sequences, their newest
    q: torch.Tensor
    out: torch.Tensor
    # [num_slots, G, D]: slots that no sequence has hold numbers that would ruin a result
    keys: torch.Tensor
    values: torch.Tensor
    page_table: torch.Tensor  # [B, P] int32
    context_len: torch.Tensor  # [B] int32, queries included

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.q.shape[-1])

    @property
    def paged(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values as [num_pages, page_size, G, D]."""
        shape = (-1, PAGE_SIZE, *self.keys.shape[1:])
        return self.keys.view(shape), self.values.view(shape)


def plain_paths(lengths: Sequence[int]) -> list[Path]:
    """Sequences that share nothing."""
    return [[(index, length)] for index, length in enumerate(lengths)]


def distinct_tokens(paths: Sequence[Path]) -> int:
    return sum({name: length for path in paths for name, length in path}.values())


def make_inputs(
    paths: Sequence[Path], heads: Heads, *, device: str, dtype: torch.dtype, seed: int, num_queries: int = 1
) -> AttentionInputs:
    """Random queries, keys and values for these sequences. Shared stretches must be whole pages."""
    shuffler = np.random.default_rng(seed)
    pages = _allocate(paths, shuffler)
    lengths = [sum(length for _, length in path) for path in paths]
    table = np.zeros((len(paths), max(map(len, pages))), np.int32)
    for row, own in enumerate(pages):
        table[row, : len(own)] = own
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=device, generator=generator)

    num_slots = (1 + max(int(own.max()) for own in pages)) * PAGE_SIZE
    keys, values = (normal(num_slots, heads.num_kv_heads, heads.head_dim) for _ in range(2))
    num_tokens = num_queries * len(paths)
    q = normal(num_tokens, heads.num_heads, heads.head_dim)
    for own, length in zip(pages, lengths, strict=True):
        if length % PAGE_SIZE:
            unwritten = slice(int(own[-1]) * PAGE_SIZE + length % PAGE_SIZE, (int(own[-1]) + 1) * PAGE_SIZE)
            keys[unwritten] = values[unwritten] = _NOBODYS
    keys[:PAGE_SIZE] = values[:PAGE_SIZE] = _NOBODYS  # page 0
    slots = [_slots(own)[length - num_queries : length] for own, length in zip(pages, lengths, strict=True)]
    context_len = np.array(lengths, np.int32)
    batch = AttentionBatch(
        query_start=np.arange(0, num_tokens + 1, num_queries, dtype=np.int32),
        context_len=context_len,
        page_table=table,
        write_slot=np.concatenate(slots),
        shared=find_shared(pages) if any(len(path) > 1 for path in paths) else (),
    )
    on_device = (torch.from_numpy(each).to(device) for each in (table, context_len))
    return AttentionInputs(batch, num_queries, q, poison(torch.empty_like(q)), keys, values, *on_device)


def _allocate(paths: Sequence[Path], shuffler: np.random.Generator) -> list[Int32]:
    """Page ids of each sequence, in no order, from 1 on."""
    counts: dict[Hashable, int] = {}
    for path in paths:
        for name, length in path:
            counts[name] = -(-length // PAGE_SIZE)
    ids = 1 + shuffler.permutation(sum(counts.values())).astype(np.int32)
    starts = dict(zip(counts, np.cumsum([0, *counts.values()])[:-1].tolist(), strict=True))
    owned = {name: ids[starts[name] : starts[name] + count] for name, count in counts.items()}
    for path in paths:
        if any(length % PAGE_SIZE for _, length in path[:-1]):
            raise ValueError("a shared segment must be whole pages")
    return [np.concatenate([owned[name] for name, _ in path]) for path in paths]


def _slots(pages: Int32) -> np.ndarray[Any, np.dtype[np.int64]]:
    return (pages.astype(np.int64)[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)


def reference(inputs: AttentionInputs) -> torch.Tensor:
    """Attention of one sequence after another, in float32 (float64 for float32 inputs)."""
    wide = torch.float64 if inputs.q.dtype == torch.float32 else torch.float32
    outs = []
    for row, length in enumerate(inputs.batch.context_len.tolist()):
        slots = torch.from_numpy(_slots(inputs.batch.page_table[row])[:length]).to(inputs.q.device)
        q = inputs.q[row * inputs.num_queries : (row + 1) * inputs.num_queries]
        keys, values = inputs.keys[slots].to(wide), inputs.values[slots].to(wide)
        outs.append(ragged_attention(q.to(wide), keys, values, scale=inputs.scale))
    return torch.cat(outs)


# -- Problems ----------------------------------------------------------------------------------------------------------

Attention = Problem[AttentionInputs]
Bind = Callable[[AttentionInputs], Launch]


def _heads(settings: Settings, num_heads: int) -> Heads:
    itemsize = settings.dtype.itemsize
    return Heads(4, 2, 64, itemsize, itemsize) if settings.tiny else Heads(num_heads, 8, 128, itemsize, itemsize)


def _problem(
    settings: Settings,
    name: str,
    cfg: Mapping[str, Any],
    paths: Sequence[Path],
    heads: Heads,
    binds: tuple[Bind, Mapping[str, Bind]],
    *,
    num_queries: int = 1,
) -> Attention:
    """`binds`: ours, and the peers."""
    lengths = [sum(length for _, length in path) for path in paths]
    if num_queries > 1:
        work = extend_attention(heads, num_queries, lengths[0] - num_queries)
    else:
        work = decode_attention(heads, lengths, distinct_tokens(paths))

    def make(seed: int) -> AttentionInputs:
        how: dict[str, Any] = {"device": settings.device, "dtype": settings.dtype, "num_queries": num_queries}
        return make_inputs(paths, heads, seed=seed, **how)

    ours, peers = binds
    return Problem(name=name, cfg=cfg, work=work, make=make, ours=ours, peers=peers, reference=reference)


def _decode(settings: Settings) -> list[Attention]:
    shapes = [(1, 1024), (1, 32_768), (8, 8192), (64, 1024), (64, 4096), (256, 1024)]
    batches = [(str(length), [length] * batch) for batch, length in shapes]
    batches.append(("128..16k", _zipf_lengths(64)))
    if settings.tiny:
        batches = [("ragged", [70, 17])]
    binds = (decode, {"fa3": flash_attention, "flashinfer": flashinfer_decode})
    found = []
    for heads in [_heads(settings, num_heads) for num_heads in ((32,) if settings.tiny else (32, 16))]:
        for name, lengths in batches:
            cfg = {"heads": f"{heads.num_heads}/{heads.num_kv_heads}", "B": len(lengths), "S": name}
            found.append(_problem(settings, "decode", cfg, plain_paths(lengths), heads, binds))
    return found


def _zipf_lengths(count: int) -> list[int]:
    """128 .. 16,384 tokens, each doubling rarer by 1 / rank: many short contexts, few long ones."""
    lengths = [128 << step for step in range(8)]
    drawn = random.Random(0).choices(lengths, [1 / rank for rank in range(1, len(lengths) + 1)], k=count)
    return [min(length + random.Random(index).randrange(128), 16_384) for index, length in enumerate(drawn)]


def _tree(settings: Settings) -> list[Attention]:
    """The loads of a server with shared prompts; the last shares nothing, and must not cost more than plain decode."""
    loads: dict[str, list[Path]] = {
        "2k x 16": [[("system", 2048), (row, 512)] for row in range(16)],
        "2k x 64": [[("system", 2048), (row, 512)] for row in range(64)],
        "8k x 64": [[("document", 8192), (row, 256)] for row in range(64)],
        "2k x 128": [[("system", 2048), (row, 1024)] for row in range(128)],
        "8 x 4k x 16": [[(f"prompt {row // 16}", 4096), (row, 512)] for row in range(128)],
        "3 levels": [[("system", 1024), (f"tools {row // 8}", 2048), (row, 1024)] for row in range(64)],
        "unshared": [[(row, 2048)] for row in range(64)],
    }
    if settings.tiny:
        document: list[Path] = [[("document", 64), (row, 20)] for row in range(4)]
        loads = {"8k x 64": document, "unshared": [[(row, 48)] for row in range(2)]}
    binds = (planned, {"flat": decode, "fa3": flash_attention, "flashinfer": flashinfer_decode})
    heads = _heads(settings, 32)
    return [_problem(settings, "tree", {"load": name}, paths, heads, binds) for name, paths in loads.items()]


def _extend(settings: Settings) -> list[Attention]:
    sizes = [(32, 0), (8, 80)] if settings.tiny else [(4096, 0), (2048, 8192), (512, 8192), (64, 8192), (16, 32_768)]
    binds = (planned, {"fa3": flash_attention, "flashinfer": flashinfer_extend})
    heads = _heads(settings, 32)
    return [
        _problem(settings, "extend", {"T": new, "P": old}, [[(0, old + new)]], heads, binds, num_queries=new)
        for new, old in sizes
    ]


FAMILIES = {"decode": _decode, "tree": _tree, "extend": _extend}


# -- Ours --------------------------------------------------------------------------------------------------------------


def planned(inputs: AttentionInputs) -> Launch:
    """Attends to this batch as the engine does: what is shared once, long contexts split, many queries together."""
    from ....kernels.attention.triton_backend import TritonAttention  # needs triton

    num_slots, num_kv_heads, head_dim = inputs.keys.shape
    num_seqs, num_pages = inputs.page_table.shape
    shape = KVShape(1, num_slots // PAGE_SIZE, PAGE_SIZE, num_kv_heads, head_dim, inputs.keys.dtype)
    attention = TritonAttention(shape, inputs.q.device, max_num_seqs=num_seqs, max_model_len=num_pages * PAGE_SIZE)
    attention.keys, attention.values = inputs.keys[None], inputs.values[None]
    attention.plan(inputs.batch)
    layer = AttentionLayer(0, scale=inputs.scale)
    return lambda: attention.attend(layer, inputs.q)


def decode(inputs: AttentionInputs) -> Launch:
    """Each sequence by itself, split over the device."""
    return planned(replace(inputs, batch=replace(inputs.batch, shared=())))


# -- Others' -----------------------------------------------------------------------------------------------------------
# Planning that a peer does on the host is done before anything is timed, as ours is. Each raises AbsentError or
# ImportError where this machine has not got it.

_WORKSPACE_BYTES = 128 << 20


def _on_gpu(tensor: torch.Tensor) -> None:
    if not tensor.is_cuda:
        raise AbsentError("no GPU")


def _page_lists(inputs: AttentionInputs) -> tuple[torch.Tensor, ...]:
    """indptr, indices and last_page_len of the sequences, on the host."""
    lengths = inputs.batch.context_len
    counts = -(-lengths // PAGE_SIZE)
    indices = np.concatenate([row[:count] for row, count in zip(inputs.batch.page_table, counts, strict=True)])
    arrays = (np.cumsum([0, *counts]), indices, (lengths - 1) % PAGE_SIZE + 1)
    return tuple(torch.tensor(array, dtype=torch.int32) for array in arrays)


def flashinfer_decode(inputs: AttentionInputs) -> Launch:
    return _paged("BatchDecodeWithPagedKVCacheWrapper", {"use_tensor_cores": True}, inputs)


def flashinfer_extend(inputs: AttentionInputs) -> Launch:
    query_start = torch.from_numpy(inputs.batch.query_start)
    return _paged("BatchPrefillWithPagedKVCacheWrapper", {"backend": "fa2"}, inputs, query_start, causal=True)


def _paged(name: str, how: Mapping[str, Any], inputs: AttentionInputs, *first: torch.Tensor, **more: Any) -> Launch:
    """A wrapper of its, planned with `first` before the lists of pages and `more` beside them."""
    _on_gpu(inputs.q)
    workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.q.device)
    wrapper = getattr(importlib.import_module("flashinfer"), name)(workspace, "NHD", **how)
    indptr, indices, last = _page_lists(inputs)
    sizes = (inputs.q.shape[1], inputs.keys.shape[1], inputs.q.shape[2], PAGE_SIZE)
    dtypes = {"q_data_type": inputs.q.dtype, "kv_data_type": inputs.keys.dtype}
    wrapper.plan(*first, indptr, indices.to(inputs.q.device), last, *sizes, **dtypes, **more)
    return lambda: wrapper.run(inputs.q, inputs.paged, out=inputs.out)


def flash_attention(inputs: AttentionInputs) -> Launch:
    """Its own package over the paged cache."""
    _on_gpu(inputs.q)
    attend = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache
    query_start = torch.from_numpy(inputs.batch.query_start).to(inputs.q.device)
    options: dict[str, Any] = {"cache_seqlens": inputs.context_len, "page_table": inputs.page_table}
    options |= {"cu_seqlens_q": query_start, "max_seqlen_q": inputs.num_queries, "causal": True}

    def launch() -> torch.Tensor:
        result = attend(inputs.q, *inputs.paged, **options)
        out: torch.Tensor = result[0] if isinstance(result, tuple | list) else result
        return out

    return launch
