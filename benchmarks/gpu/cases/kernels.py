"""Our attention kernels beside others' at the sizes that matter: decode, decode under shared prefixes, extend."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..roofline import Heads, decode_attention, extend_attention
from . import ours as gpu_ours
from . import rivals as gpu_rivals
from .attention import AttentionInputs, Path, distinct_tokens, make_inputs, plain_paths, reference
from .case import Case, Settings
from .problem import Launch, Problem
from .rivals import fa3

Bind = Callable[[AttentionInputs], Launch]

_ESTIMATE_S = 3.0  # a row with its peers


def cases(settings: Settings, argument: str) -> list[Case]:
    """Those of one family."""
    families: dict[str, Callable[[Settings], list[Case]]] = {
        "decode": _decode_cases,
        "tree": _tree_cases,
        "extend": _extend_cases,
        "compiled": _flex_cases,
    }
    return families[argument](settings)


def _heads(settings: Settings, num_heads: int) -> Heads:
    itemsize = 4 if settings.dtype_name == "float32" else 2
    return Heads(4, 2, 64, itemsize, itemsize) if settings.tiny else Heads(num_heads, 8, 128, itemsize, itemsize)


def _case(
    settings: Settings,
    name: str,
    cfg: Mapping[str, Any],
    paths: Sequence[Path],
    heads: Heads,
    binds: tuple[Bind, Mapping[str, Bind]],
    *,
    num_queries: int = 1,
    estimate_s: float = _ESTIMATE_S,
) -> Case:
    """`binds`: ours, and the peers."""
    lengths = [sum(length for _, length in path) for path in paths]
    if num_queries > 1:
        work = extend_attention(heads, num_queries, lengths[0] - num_queries)
    else:
        work = decode_attention(heads, lengths, distinct_tokens(paths))

    def make(seed: int) -> AttentionInputs:
        dtype = getattr(torch, settings.dtype_name)
        return make_inputs(paths, heads, device=settings.device, dtype=dtype, seed=seed, num_queries=num_queries)

    ours, peers = binds
    problem = Problem(name=name, cfg=cfg, work=work, make=make, ours=ours, peers=peers, reference=reference)
    return problem.case(settings, estimate_s)


def _decode_cases(settings: Settings) -> list[Case]:
    shapes = [(1, 1024), (1, 32_768), (8, 8192), (64, 1024), (64, 4096), (256, 1024)]
    peers: dict[str, Bind] = {"fa3": fa3(settings.fa3), "flashinfer": gpu_rivals.flashinfer_decode}
    found = []
    for num_heads in (32, 16):
        heads = _heads(settings, num_heads)
        batches: list[tuple[int, str, list[int]]] = [(batch, str(length), [length] * batch) for batch, length in shapes]
        batches.append((64, "128..16k", _zipf_lengths(64)))
        if settings.tiny:
            batches = [(2, "ragged", [70, 17])]
        for batch, name, lengths in batches:
            cfg = {"heads": f"{heads.num_heads}/{heads.num_kv_heads}", "B": batch, "S": name}
            found.append(_case(settings, "decode", cfg, plain_paths(lengths), heads, (gpu_ours.decode, peers)))
        if settings.tiny:
            break
    return found


def _zipf_lengths(count: int) -> list[int]:
    """128 .. 16,384 tokens, each doubling rarer by 1 / rank: many short contexts, few long ones."""
    lengths = [128 << step for step in range(8)]
    drawn = random.Random(0).choices(lengths, [1 / rank for rank in range(1, len(lengths) + 1)], k=count)
    return [min(length + random.Random(index).randrange(128), 16_384) for index, length in enumerate(drawn)]


def _tree_cases(settings: Settings) -> list[Case]:
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
        loads = {
            "8k x 64": [[("document", 64), (row, 20)] for row in range(4)],
            "unshared": [[(row, 48)] for row in range(2)],
        }
    peers: dict[str, Bind] = {
        "flat": gpu_ours.decode,
        "fa3": fa3(settings.fa3),
        "flashinfer": gpu_rivals.flashinfer_decode,
        "cascade": gpu_rivals.flashinfer_cascade,
    }
    heads = _heads(settings, 32)
    return [
        _case(settings, "tree", {"load": name}, paths, heads, (gpu_ours.planned, peers), estimate_s=4.0)
        for name, paths in loads.items()
    ]


def _extend_cases(settings: Settings) -> list[Case]:
    sizes = [(4096, 0), (2048, 8192), (512, 8192), (64, 8192), (16, 32_768)]
    if settings.tiny:
        sizes = [(32, 0), (8, 80)]
    peers: dict[str, Bind] = {
        "fa3": fa3(settings.fa3),
        "flashinfer": gpu_rivals.flashinfer_extend,
        "cudnn": gpu_rivals.cudnn_prefill,
    }
    heads = _heads(settings, 32)
    make = partial(_case, settings, "extend", heads=heads, binds=(gpu_ours.planned, peers))
    return [
        make({"T": num_queries, "P": prefix}, [[(0, prefix + num_queries)]], num_queries=num_queries)
        for num_queries, prefix in sizes
    ]


def _flex_cases(settings: Settings) -> list[Case]:
    """flex attention takes most of a minute to compile, so one size must do."""
    heads = _heads(settings, 32)
    batch, length = (2, 32) if settings.tiny else (64, 1024)
    cfg = {"heads": f"{heads.num_heads}/{heads.num_kv_heads}", "B": batch, "S": str(length), "peer": "flex"}
    peers: dict[str, Bind] = {"flex": gpu_rivals.flex_decode}
    return [
        _case(settings, "decode", cfg, plain_paths([length] * batch), heads, (gpu_ours.decode, peers), estimate_s=40.0)
    ]
