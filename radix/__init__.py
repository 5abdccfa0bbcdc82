"""The prefix cache: a radix tree of token ids over the pages of the KV cache, which are shared and evicted here.

Token ids come in, page ids go out. Requests of one namespace that begin with the same tokens share whole pages
(`PrefixCache.open` finds and locks them, `commit` and `close` publish them): requests with a common system prompt, or
the children of a fork, which begin with their parent's tokens. `runtime.scheduler` decides if a request waits for a
prefix that is still being computed. When `PrefixCache.reserve` lacks pages, `RadixTree.evict` frees unlocked ones.
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
