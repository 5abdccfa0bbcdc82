"""Other people's kernels on our inputs: FlashInfer, cuDNN, flex attention, plain torch and torch compiled.

Each function binds a kernel to inputs and returns a launch. Planning that a peer does on the host is done here, before
anything is timed, as ours is.

Raises:
    AbsentError, ImportError: this machine has not got the peer.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ....kernels.sampling.mask_logits import unpack_mask
from ....kernels.sampling.reference import SampleRows
from .attention import PAGE_SIZE, AttentionInputs
from .problem import AbsentError, Launch

_WORKSPACE_BYTES = 128 << 20


def _on_gpu(tensor: torch.Tensor) -> None:
    if not tensor.is_cuda:
        raise AbsentError("no GPU")


# -- FlashInfer --------------------------------------------------------------------------------------------------------


def _flashinfer() -> Any:
    return importlib.import_module("flashinfer")


def _workspace(inputs: AttentionInputs) -> torch.Tensor:
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=inputs.q.device)


def _geometry(inputs: AttentionInputs) -> tuple[int, int, int, int]:
    """Query heads, key-value heads, head size, page size: the order in which FlashInfer takes them."""
    return inputs.q.shape[1], inputs.keys.shape[1], inputs.q.shape[2], PAGE_SIZE


def _page_lists(tables: Sequence[np.ndarray[Any, Any]], lengths: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """indptr, indices and last_page_len of stretches, each given by its pages and its tokens; on the host."""
    counts = [-(-length // PAGE_SIZE) for length in lengths]
    indices = np.concatenate([table[:count] for table, count in zip(tables, counts, strict=True)])
    indptr = np.cumsum([0, *counts])
    last = [(length - 1) % PAGE_SIZE + 1 for length in lengths]
    return tuple(torch.tensor(np.asarray(array), dtype=torch.int32) for array in (indptr, indices, last))


def flashinfer_decode(inputs: AttentionInputs) -> Launch:
    _on_gpu(inputs.q)
    wrapper = _flashinfer().BatchDecodeWithPagedKVCacheWrapper(_workspace(inputs), "NHD", use_tensor_cores=True)
    indptr, indices, last = _page_lists(list(inputs.batch.page_table), inputs.batch.context_len.tolist())
    wrapper.plan(
        indptr, indices.to(inputs.q.device), last, *_geometry(inputs), q_data_type=inputs.q.dtype,
        kv_data_type=inputs.keys.dtype,
    )  # fmt: skip
    return lambda: wrapper.run(inputs.q, inputs.paged, out=inputs.out)


def flashinfer_extend(inputs: AttentionInputs) -> Launch:
    _on_gpu(inputs.q)
    wrapper = _flashinfer().BatchPrefillWithPagedKVCacheWrapper(_workspace(inputs), "NHD", backend="fa2")
    indptr, indices, last = _page_lists(list(inputs.batch.page_table), inputs.batch.context_len.tolist())
    query_start = torch.from_numpy(inputs.batch.query_start)
    wrapper.plan(
        query_start, indptr, indices.to(inputs.q.device), last, *_geometry(inputs), causal=True,
        q_data_type=inputs.q.dtype, kv_data_type=inputs.keys.dtype,
    )  # fmt: skip
    return lambda: wrapper.run(inputs.q, inputs.paged, out=inputs.out)


def flashinfer_cascade(inputs: AttentionInputs) -> Launch:
    """Its multi-level cascade: a level for each depth of sharing, and one for what is each sequence's own."""
    _on_gpu(inputs.q)
    if not inputs.batch.shared:
        raise AbsentError("nothing is shared")
    levels = _levels(inputs)
    wrapper = _flashinfer().MultiLevelCascadeAttentionWrapper(len(levels), _workspace(inputs), "NHD")
    lists = [_page_lists(tables, lengths) for _, tables, lengths in levels]
    device = inputs.q.device
    wrapper.plan(
        [torch.tensor(rows, dtype=torch.int32, device=device) for rows, _, _ in levels],
        [indptr.to(device) for indptr, _, _ in lists],
        [indices.to(device) for _, indices, _ in lists],
        [last.to(device) for _, _, last in lists],
        *_geometry(inputs),
        q_data_type=inputs.q.dtype,
        kv_data_type=inputs.keys.dtype,
    )
    return lambda: wrapper.run(inputs.q, inputs.paged)


def _levels(inputs: AttentionInputs) -> list[tuple[list[int], list[np.ndarray[Any, Any]], list[int]]]:
    """Levels, outermost first: where each segment's queries begin (and the last one's end), its pages, its tokens.

    Every level must cover every sequence, which holds for the balanced trees that are measured.
    """
    table, context_len = inputs.batch.page_table, inputs.batch.context_len
    num_rows = len(context_len)
    taken = np.zeros(num_rows, np.int64)  # pages of each row that outer levels have
    levels = []
    groups = list(inputs.batch.shared)
    while groups:
        level, inner, end = [], [], 0
        for group in sorted(groups, key=lambda group: (group.start, -group.stop)):
            if group.start >= end:
                level.append(group)
                end = group.stop
            else:
                inner.append(group)
        if [group.start for group in level] != [0, *[group.stop for group in level[:-1]]] or end != num_rows:
            raise AbsentError("a level that covers some sequences only")
        stretches = [table[group.start, taken[group.start] : group.num_pages] for group in level]
        levels.append(([0, *[g.stop for g in level]], stretches, [len(pages) * PAGE_SIZE for pages in stretches]))
        for group in level:
            taken[group.start : group.stop] = group.num_pages
        groups = inner
    own = [table[row, taken[row] :] for row in range(num_rows)]
    levels.append((list(range(num_rows + 1)), own, (context_len - taken * PAGE_SIZE).tolist()))
    return levels


def flashinfer_add_norm(hidden: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, eps: float) -> Launch:
    """Leaves the sum in `delta` and the norm of it in `hidden`."""
    _on_gpu(hidden)
    fused = _flashinfer().norm.fused_add_rmsnorm

    def run() -> torch.Tensor:
        fused(hidden, delta, weight, eps)
        return hidden

    return run


def flashinfer_silu(gate_up: torch.Tensor) -> Launch:
    _on_gpu(gate_up)
    silu_and_mul = _flashinfer().activation.silu_and_mul
    return lambda: silu_and_mul(gate_up)


def flashinfer_sample(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> Launch:
    """Temperature, top-k, top-p; it has no joint min-p."""
    _on_gpu(logits)
    sample = _flashinfer().sampling.top_k_top_p_sampling_from_logits
    wide = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)

    def run() -> torch.Tensor:
        torch.div(logits, temperature[:, None], out=wide)
        tokens: torch.Tensor = sample(wide, top_k, top_p)
        return tokens.long()

    return run


# -- torch -------------------------------------------------------------------------------------------------------------


def cudnn_prefill(inputs: AttentionInputs) -> Launch:
    """cuDNN through torch: one sequence, nothing cached before it; each query head is given its keys beforehand."""
    _on_gpu(inputs.q)
    if len(inputs.batch.context_len) != 1 or inputs.num_queries != inputs.batch.context_len[0]:
        raise AbsentError("it has no paged cache")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    slots = torch.from_numpy(inputs.batch.write_slot).to(inputs.q.device)
    group = inputs.q.shape[1] // inputs.keys.shape[1]
    keys, values = (cache[slots].repeat_interleave(group, dim=1) for cache in (inputs.keys, inputs.values))
    q, k, v = (tensor.transpose(0, 1)[None].contiguous() for tensor in (inputs.q, keys, values))

    def run() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=inputs.scale)
        return out[0].transpose(0, 1)

    return run


def flex_decode(inputs: AttentionInputs) -> Launch:
    """flex_attention's split decoding over keys and values gathered beforehand, each context padded to the longest."""
    _on_gpu(inputs.q)
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch, longest = inputs.context_len.shape[0], int(inputs.batch.context_len.max())
    offsets = torch.arange(PAGE_SIZE, device=inputs.q.device)
    slots = (inputs.page_table[:, :, None].long() * PAGE_SIZE + offsets).flatten(1)[:, :longest]
    q = inputs.q[:, :, None, :]  # [B, H, 1, D]
    k, v = (cache[slots].transpose(1, 2).contiguous() for cache in (inputs.keys, inputs.values))
    lengths = inputs.context_len

    def visible(b: torch.Tensor, h: torch.Tensor, q_at: torch.Tensor, k_at: torch.Tensor) -> torch.Tensor:
        return k_at < lengths[b]

    mask = create_block_mask(visible, batch, None, 1, longest, device=str(inputs.q.device))
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=mask, scale=inputs.scale, enable_gqa=True)[:, :, 0]


def compiled(function: Callable[..., torch.Tensor], *arguments: Any) -> Launch:
    """Plain torch, fused by torch.compile."""
    _on_gpu(arguments[0])
    fused = torch.compile(function, dynamic=False)
    return lambda: fused(*arguments)


def torch_sample(logits: torch.Tensor, rows: SampleRows, mask: torch.Tensor | None, *, filters: bool) -> Launch:
    """Mask, temperature, sort, filters, draw: as it is written without a kernel of one's own."""
    _on_gpu(logits)
    vocab_size = logits.shape[1]
    greedy = not bool((rows.temperature > 0).any())

    def run() -> torch.Tensor:
        scores = logits.float()
        if mask is not None:
            scores = scores.masked_fill(~unpack_mask(mask, vocab_size), -torch.inf)
        if greedy:
            return scores.argmax(-1)
        probabilities = torch.softmax(scores / rows.temperature[:, None], -1)
        if not filters:
            return _draw(probabilities)
        ordered, tokens = probabilities.sort(-1, descending=True)
        rank = torch.arange(vocab_size, device=logits.device)
        kept = ordered.masked_fill(rank >= rows.top_k[:, None], 0.0)
        kept = kept / kept.sum(-1, keepdim=True)
        kept = kept.masked_fill(kept.cumsum(-1) - kept >= rows.top_p[:, None], 0.0)
        kept = kept.masked_fill(kept < kept[:, :1] * rows.min_p[:, None], 0.0)
        return tokens.gather(-1, _draw(kept)[:, None])[:, 0]

    return run


def _draw(weights: torch.Tensor) -> torch.Tensor:
    """Index drawn by weight: the race of exponential clocks, which needs no sum."""
    return (weights / torch.empty_like(weights).exponential_()).argmax(-1)


# -- FlashAttention 3 -------------------------------------------------------------------------------------------------


_MODULES = ("vllm.vllm_flash_attn._vllm_fa3_C", "vllm_flash_attn._vllm_fa3_C")


def fa3(library: str | None) -> Callable[[AttentionInputs], Launch]:
    """A function that binds it to inputs. `library`: a file that registers its operators, if no module does.

    Raises (when it binds):
        AbsentError, ImportError: it is not here.
    """

    def bind(inputs: AttentionInputs) -> Launch:
        if not inputs.q.is_cuda:
            raise AbsentError("no GPU")
        query_start = torch.from_numpy(inputs.batch.query_start).to(inputs.q.device)
        operators = _operators(library)
        return _bind_package(inputs, query_start) if operators is None else _bind(operators, inputs, query_start)

    return bind


def _operators(library: str | None) -> Any:
    """The registered operators; None if it is FlashAttention's own package that is here."""
    if library is not None:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call, unused-ignore]
        return torch.ops._vllm_fa3_C
    for name in _MODULES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        return torch.ops._vllm_fa3_C
    importlib.import_module("flash_attn_interface")
    return None


def _bind(operators: Any, inputs: AttentionInputs, query_start: torch.Tensor) -> Launch:
    keys, values = inputs.paged
    common = {
        "max_seqlen_q": inputs.num_queries,
        "max_seqlen_k": int(inputs.batch.context_len.max()),
        "seqused_k": inputs.context_len,
        "cu_seqlens_q": query_start,
        "is_causal": True,
        "window_size_left": -1,
        "window_size_right": -1,
        "num_splits": 0,
        "sm_margin": 0,
    }
    sizes = {
        "batch_size": len(inputs.context_len),
        "num_heads": inputs.q.shape[1],
        "num_heads_k": inputs.keys.shape[1],
        "headdim": inputs.q.shape[2],
        "headdim_v": inputs.q.shape[2],
        "qkv_dtype": inputs.q.dtype,
        "page_size": PAGE_SIZE,
        "max_seqlen_k_new": 0,
        "has_softcap": False,
    }
    # As an engine does once a step, not once a layer.
    metadata = operators.get_scheduler_metadata(*_in_order(operators.get_scheduler_metadata, common | sizes))
    given = common | {
        "q": inputs.q,
        "k": keys,
        "v": values,
        "out": inputs.out,
        "page_table": inputs.page_table,
        "softmax_scale": inputs.scale,
        "softcap": 0.0,
        "is_rotary_interleaved": True,
        "scheduler_metadata": metadata,
        "cp_world_size": 1,
        "cp_rank": 0,
    }
    arguments = _in_order(operators.fwd, given)

    def launch() -> torch.Tensor:
        operators.fwd(*arguments)
        return inputs.out

    return launch


def _in_order(operator: Any, given: Mapping[str, Any]) -> list[Any]:
    """Positional arguments by name: versions differ in some that are optional, and None here."""
    return [given.get(argument.name) for argument in operator.default._schema.arguments]


def _bind_package(inputs: AttentionInputs, query_start: torch.Tensor) -> Launch:
    attend = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache
    keys, values = inputs.paged

    def launch() -> torch.Tensor:
        result = attend(
            inputs.q,
            keys,
            values,
            cache_seqlens=inputs.context_len,
            page_table=inputs.page_table,
            cu_seqlens_q=query_start,
            max_seqlen_q=inputs.num_queries,
            causal=True,
        )
        out: torch.Tensor = result[0] if isinstance(result, tuple | list) else result
        return out

    return launch
