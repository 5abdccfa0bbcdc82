"""FlashAttention 3 on our inputs: paged attention, from vLLM's build of it or from its own package."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .attention import PAGE_SIZE, AttentionInputs
from .problem import AbsentError, Launch

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
