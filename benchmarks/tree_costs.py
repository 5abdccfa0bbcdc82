"""Savings of tree decode attention as estimated by its planner: plans for typical loads, without a GPU.

Time is that of one layer by the cost model (kernels/attention/plan/tree_cost.py): the busiest multiprocessor of each
launch, then the merge. The model ignores the GPU's cache, which may serve some of the repeated reads of the flat plan.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass

import numpy as np

from ..kernels.attention.interface import SharedPrefix
from ..kernels.attention.plan.tree_cost import H200, HeadShape, processor_loads, tile_costs
from ..kernels.attention.plan.tree_plan import TreePlan, TreePlanner
from ..kernels.attention.plan.work_list import PROGRAMS_PER_PROCESSOR
from .harness.report import table

SHAPE = HeadShape(page_size=16, group=4, num_kv_heads=8, head_dim=128, kv_itemsize=2)
"""A layer of Qwen3-8B in bfloat16."""

NUM_LAYERS = 36
REST_S = 15.1e9 / H200.bandwidth  # seconds of a decode step besides attention: the weights, once
NUM_PROGRAMS = {block_m: count * H200.num_sms for block_m, count in PROGRAMS_PER_PROCESSOR.items()}
TILES = tile_costs(SHAPE, H200, NUM_PROGRAMS)


@dataclass(frozen=True)
class Load:
    """Equal sequences under a tree: `levels` are (sequences of a group, tokens they share beyond the level above)."""

    name: str
    num_sequences: int
    levels: tuple[tuple[int, int], ...]
    own_tokens: int


LOADS = (
    Load("2k system prompt, 512 own", 16, ((16, 2048),), 512),
    Load("2k system prompt, 512 own", 64, ((64, 2048),), 512),
    Load("8k document, 256 own", 64, ((64, 8192),), 256),
    Load("2k system prompt, 1k own", 128, ((128, 2048),), 1024),
    Load("1k few-shot, 256 own", 256, ((256, 1024),), 256),
    Load("8 prompts of 4k x 16 samples, 512 own", 128, ((16, 4096),), 512),
    Load("1k system / 8 x 2k tools / 1k own", 64, ((64, 1024), (8, 2048)), 1024),
    Load("4k shared, 512 own", 8, ((8, 4096),), 512),
    Load("nothing shared, 2k own", 64, (), 2048),
)


@dataclass(frozen=True)
class Cost:
    """Cost of one plan: cached tokens and gigabytes read a layer, microseconds of a layer's attention as expected, and
    milliseconds of a whole step, the weights' reading included."""

    kv_tokens: int
    gigabytes: float
    layer_us: float
    step_ms: float


def plan_load(load: Load, *, tree: bool = True) -> TreePlan:
    """The plan of one decode step; without `tree`, as if nothing were shared."""
    shared, num_tokens = [], 0
    for size, tokens in load.levels:
        num_tokens += tokens
        starts = range(0, load.num_sequences, size)
        shared += [SharedPrefix(start, start + size, num_tokens // SHAPE.page_size) for start in starts]
    rows = np.arange(load.num_sequences + 1, dtype=np.int32)
    context = np.full(load.num_sequences, num_tokens + load.own_tokens, np.int32)
    return TreePlanner(SHAPE, H200, NUM_PROGRAMS).plan(rows, context, rows[:-1], shared if tree else ())


def cost_of(plan: TreePlan) -> Cost:
    """Adds up a plan as the cost model has it."""
    work, heads = plan.work, SHAPE.num_kv_heads
    merge_bytes = work.num_partials * SHAPE.partial_bytes * heads
    query_bytes = 2 * len(work.query_rows) * SHAPE.group * SHAPE.head_dim * 2 * heads
    seconds = merge_bytes / H200.bandwidth + (H200.launch_s if work.num_partials else 0.0)
    for launch, item_s in zip(work.launches, plan.item_s, strict=True):
        seconds += float(processor_loads(item_s, heads, TILES[launch.block_m]).max()) + H200.launch_s
    gigabytes = (plan.kv_tokens * SHAPE.token_bytes * heads + merge_bytes + query_bytes) / 1e9
    return Cost(plan.kv_tokens, gigabytes, seconds * 1e6, (seconds * NUM_LAYERS + REST_S) * 1e3)


def run(arguments: argparse.Namespace) -> int:
    """Prints a table, or one JSON object a load. Returns the exit status."""
    rows = []
    for load in LOADS:
        flat, tree = cost_of(plan_load(load, tree=False)), cost_of(plan_load(load))
        if arguments.json:
            about = {"load": load.name, "num_sequences": load.num_sequences}
            print(json.dumps(about | {"flat": asdict(flat), "tree": asdict(tree)}))
        for name, cost in (("flat", flat), ("tree", tree)):
            cells = [load.name, str(load.num_sequences), name, f"{cost.kv_tokens:,}", f"{cost.gigabytes:.3f}"]
            cells += [f"{cost.layer_us:.1f}", f"{cost.step_ms:.2f}"]
            gains = (flat.layer_us / cost.layer_us, flat.step_ms / cost.step_ms)
            rows.append((*cells, *(f"{gain:.2f}x" for gain in gains)))
    if not arguments.json:
        heads = ("load", "B", "plan", "KV tokens", "GB", "us/layer", "ms/step", "a layer's gain", "a step's")
        print(table(heads, rows, right=(1, *range(3, 9))))
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a load")
