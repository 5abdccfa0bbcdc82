"""Random batches whose sequences have leading pages in common, in an order in which sharers are neighbours."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass

import numpy as np

from bough.kernels.attention.interface import SharedPrefix
from bough.kernels.attention.plan.shared_reads import find_shared, order_by_prefix
from bough.kernels.attention.plan.work_list import Int32


@dataclass(frozen=True)
class TreeBatch:
    """B sequences. The page table has their rows in another order; entries that are not to be read are far too large.

    pages   of each sequence, in order
    """

    page_size: int
    pages: list[list[int]]
    query_start: Int32
    context_len: Int32
    table_row: Int32
    page_table: Int32
    shared: tuple[SharedPrefix, ...]
    num_pages: int

    def slots(self, row: int) -> list[int]:
        """Slots of a sequence's keys, by position."""
        positions = range(self.context_len[row])
        return [self.pages[row][p // self.page_size] * self.page_size + p % self.page_size for p in positions]


def make_batch(chance: random.Random, page_size: int, paths: list[list[int]], num_queries: list[int]) -> TreeBatch:
    """A batch of the given paths, each the page ids of a sequence; its last page is its own, and filled at random."""
    order = order_by_prefix([array("i", path) for path in paths])
    pages = [paths[i] for i in order]
    context = [(len(path) - 1) * page_size + chance.randint(1, page_size) for path in pages]
    counts = [min(num_queries[i], length) for i, length in zip(order, context, strict=True)]
    table_row = chance.sample(range(len(pages) + 2), len(pages))
    table = np.full((len(pages) + 2, max(map(len, pages)) + 1), 10**8, np.int32)
    for row, path in zip(table_row, pages, strict=True):
        table[row, : len(path)] = path
    return TreeBatch(
        page_size,
        pages,
        np.cumsum([0, *counts]).astype(np.int32),
        np.array(context, np.int32),
        np.array(table_row, np.int32),
        table,
        find_shared([array("i", path) for path in pages]),
        1 + max(max(path) for path in pages),
    )


def random_paths(
    chance: random.Random, page_size: int, *, levels: int, branches: int, run_tokens: int
) -> list[list[int]]:
    """Paths of a random tree: at each level some children, each with some pages more; some stop early."""
    unused = iter(chance.sample(range(1, 10**5), 5 * 10**4))

    def run(at_least: int) -> list[int]:
        return [next(unused) for _ in range(max(at_least, -(-chance.randint(0, run_tokens) // page_size)))]

    def below(path: list[int], depth: int) -> list[list[int]]:
        if depth == levels or (depth and chance.random() < 0.2):
            return [path + run(1)]
        path = path + run(0)
        return [leaf for _ in range(chance.randint(1, branches)) for leaf in below(path, depth + 1)]

    return below([], 0) + ([run(1)] if chance.random() < 0.5 else [])
