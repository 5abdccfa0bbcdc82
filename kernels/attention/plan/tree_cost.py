"""Cost model of attention on a GPU, used to plan tree decode attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Machine:
    """Rates that a GPU reaches in practice.

    bandwidth        bytes/s of its memory
    flops            FLOP/s of its tensor cores in the dtype of the products
    num_sms          multiprocessors
    item_overhead_s  of a program from one item to the next: loads that nothing hides yet, and the epilogue
    launch_s         one more kernel in a graph
    """

    bandwidth: float
    flops: float
    num_sms: int
    item_overhead_s: float
    launch_s: float = 3e-6


H200 = Machine(bandwidth=4.3e12, flops=780e12, num_sms=132, item_overhead_s=2e-6)


@dataclass(frozen=True)
class HeadShape:
    """Geometry of one layer's attention; `group` query heads read each key-value head."""

    page_size: int
    group: int
    num_kv_heads: int
    head_dim: int
    kv_itemsize: int

    @property
    def token_bytes(self) -> int:
        """Size of one token's key and value, one head."""
        return 2 * self.head_dim * self.kv_itemsize

    @property
    def partial_bytes(self) -> int:
        """Written and read again for one query's partial results, the `group` heads of one key-value head."""
        return 8 * self.group * (self.head_dim + 1)


@dataclass(frozen=True)
class TileCost:
    """Cost of tiles of `block_m` rows to a multiprocessor, for one key-value head, while all are busy.

    num_programs   of the launch; `num_sms` multiprocessors hold them all at a time
    token_s        for each token that a tile attends to
    item_s         for each item, with no other program beside it to fill the gap
    """

    block_m: int
    num_programs: int
    num_sms: int
    token_s: float
    item_s: float

    def overhead_s(self, num_units: int) -> float:
        """For each item of a launch of so many units, (item, head) pairs: side by side they hide each other's gaps."""
        return self.item_s / max(1.0, min(self.num_programs, num_units) / self.num_sms)


def tile_costs(shape: HeadShape, machine: Machine, num_programs: Mapping[int, int]) -> dict[int, TileCost]:
    """The cost of each tile size that a plan may use, in the order of `num_programs`.

    num_programs   block_m -> programs of the launch with that tile size
    """
    costs = {}
    for block_m, programs in num_programs.items():
        token_s = max(shape.token_bytes / machine.bandwidth, 4 * block_m * shape.head_dim / machine.flops)
        sms = machine.num_sms
        costs[block_m] = TileCost(block_m, programs, sms, token_s * sms, machine.item_overhead_s)
    return costs


def processor_loads(item_s: Float64, num_kv_heads: int, cost: TileCost) -> Float64:
    """Seconds that each multiprocessor is busy with a launch.

    item_s   [N] of each item and head, in the order of the items. Unit i * num_kv_heads + head goes to the programs in
             turn, every other turn backwards; programs go to the multiprocessors in turn.
    """
    num_units, num_programs = len(item_s) * num_kv_heads, cost.num_programs
    turns = np.zeros((-(-num_units // num_programs), num_programs))
    turns.reshape(-1)[:num_units] = np.repeat(item_s, num_kv_heads)
    loads = np.zeros((-(-num_programs // cost.num_sms), cost.num_sms))
    loads.reshape(-1)[:num_programs] = turns[::2].sum(axis=0) + turns[1::2].sum(axis=0)[::-1]
    return np.asarray(loads.sum(axis=0))


_SPLITS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
"""Candidates, for each multiprocessor: more even loads against more items and partial results."""

MAX_SPLITS = _SPLITS[-1]

_EVEN_ENOUGH = 1.05
"""Times the mean load of a candidate: if none is busier, those with more items are not looked at."""

_MIN_SPLIT = 256
"""Tokens of an item below which more items cost more than they bring. As the decode kernel without a tree has it."""


def split_tiles(
    lengths: Int64, partial_s: Float64, alone: Bools, cost: TileCost, num_kv_heads: int, *, alignment: int
) -> tuple[Int64, Int64]:
    """Into how many items each tile's keys are split so that a launch ends soonest: (items [N], tokens of each [N]).

    lengths     [N] tokens of each tile, at least 1
    partial_s   [N] what each item's partial results cost, in seconds of the whole machine
    alone       [N] whether a single item would have none
    alignment   items have a multiple of so many tokens, but for the last
    """
    fair = int(lengths.sum()) * num_kv_heads / cost.num_sms
    best, best_s, tried = (lengths, lengths), np.inf, 0.0
    for splits in _SPLITS:
        wanted = max(fair / splits, _MIN_SPLIT)
        if wanted == tried:
            break
        tried = wanted
        counts = np.maximum((lengths / wanted + 0.5).astype(np.int64), 1)
        tokens = -(-lengths // (counts * alignment)) * alignment
        counts = -(-lengths // tokens)
        num_units = int(counts.sum()) * num_kv_heads
        longest_first = np.argsort(-tokens)
        item_s = cost.overhead_s(num_units) + cost.token_s * np.minimum(tokens, lengths)[longest_first]
        loads = processor_loads(np.repeat(item_s, counts[longest_first]), num_kv_heads, cost)
        busiest_s = float(loads.max())
        seconds = busiest_s + float((counts * partial_s)[~alone | (counts > 1)].sum())
        if seconds < best_s:
            best, best_s = (counts, tokens), seconds
        if num_units >= cost.num_programs and busiest_s * cost.num_sms <= _EVEN_ENOUGH * float(loads.sum()):
            break
    return best
