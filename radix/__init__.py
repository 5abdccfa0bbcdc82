"""The prefix cache: a radix tree of token ids over the pages of the KV cache, which are shared and evicted here.

Token ids come in, page ids go out. Equal tokens of a namespace share pages, whoever asks (`PrefixCache.open` finds and
locks them, `commit` publishes them): a request with a common system prompt, or a fork's children, which begin with
their parent's tokens; `runtime.scheduler` holds them back until the prefix is there. When `PrefixCache.reserve` lacks
pages, and for `flush`, `RadixTree.evict` drops what nobody uses.
"""

from __future__ import annotations

from .cache import CacheCounts, Lease, PagePool, PrefixCache
from .tenants import EQUAL, Weights, tenant_of
from .tree import RadixTree, first_difference

__all__ = [
    "EQUAL",
    "CacheCounts",
    "Lease",
    "PagePool",
    "PrefixCache",
    "RadixTree",
    "Weights",
    "first_difference",
    "tenant_of",
]
