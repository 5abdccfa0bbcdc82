"""The prefix cache: a radix tree of token ids over pages of a KV cache. Token ids in, page ids out."""

from __future__ import annotations

from .cache import CacheCounts, Lease, PrefixCache
from .pool import PagePool
from .tree import RadixTree

__all__ = ["CacheCounts", "Lease", "PagePool", "PrefixCache", "RadixTree"]
