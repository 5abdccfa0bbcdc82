"""The prefix cache: a radix tree of token ids over pages of a KV cache. Token ids in, page ids out."""

from __future__ import annotations

from .cache import CacheCounts, Lease, PagePool, PrefixCache
from .tree import RadixTree, first_difference

__all__ = ["CacheCounts", "Lease", "PagePool", "PrefixCache", "RadixTree", "first_difference"]
