"""The prefix cache: a radix tree of token ids over the pages of the KV cache, which are shared and evicted here.

Token ids come in, page ids go out. Requests whose tokens begin alike share whole pages within a namespace
(`PrefixCache.open` finds and locks them, `commit` publishes them): those with a common system prompt, or a fork's
children, which begin with their parent's tokens. Whether a request waits for a prefix that is still being computed is
decided in `runtime.scheduler`. When `PrefixCache.reserve` lacks pages, `RadixTree.evict` drops some that nobody uses.
"""

from __future__ import annotations

from .cache import CacheCounts, Lease, PagePool, PrefixCache
from .tenants import EQUAL, Weights, tenant_of
from .tree import Found, RadixTree

__all__ = [
    "EQUAL",
    "CacheCounts",
    "Found",
    "Lease",
    "PagePool",
    "PrefixCache",
    "RadixTree",
    "Weights",
    "tenant_of",
]
