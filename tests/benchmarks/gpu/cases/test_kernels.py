"""Our kernels bound to a benchmark's inputs, interpreted where there is no GPU."""

import pytest
import torch

from ....support.triton_interpreter import DEVICE

pytest.importorskip("triton")

from bough.benchmarks.gpu.cases import kernels as gpu_kernels
from bough.benchmarks.gpu.cases.kernels import make_inputs, reference
from bough.benchmarks.gpu.cases.problem import AbsentError, Settings, measure, problems_of, relative_error
from bough.benchmarks.gpu.roofline import Heads
from bough.kernels.attention.plan import planner
from bough.kernels.attention.plan.tree_cost import Machine
from bough.kernels.attention.plan.tree_plan import TreePlanner

QUICK = Settings(DEVICE, quick=True)
FAMILIES = (
    *("kernels:decode", "kernels:tree", "kernels:extend"),
    *("layers:sampler", "layers:small", "layers:linear"),
)


@pytest.mark.parametrize("family", ["kernels:decode", "kernels:extend", "layers:small", "layers:linear"])
def test_every_row_of_a_family_is_right(family):
    for problem in problems_of(family, QUICK):
        *_, row = measure(problem, QUICK)
        assert row.us is not None and row.us > 0
        assert row.err is not None and row.err < (5e-2 if row.cfg.get("kind") == "fp8" else 1e-4)
        assert row.pct_floor is None or 0 < row.pct_floor < 150


def test_cublas_has_a_time_beside_every_product():
    """It multiplies the weight as it is, and is not held to the rounded one."""
    rows = [list(measure(problem, QUICK))[-1] for problem in problems_of("layers:linear", QUICK)]
    assert {row.cfg["kind"] for row in rows} == {"bf16", "invariant", "fp8", "int8", "int4"}
    assert all(row.peers.get("cublas") is not None for row in rows)


def test_the_sampler_draws_the_references_tokens():
    labels = {problem.label: problem for problem in problems_of("layers:sampler", QUICK)}
    *_, row = measure(labels["sampler 3 greedy, mask"], QUICK)
    assert row.us is not None and row.us > 0


def test_a_tree_is_read_as_a_tree(monkeypatch):
    """On a machine whose memory is so slow that whatever is shared is worth it."""
    slow = Machine(bandwidth=1e9, flops=1e15, num_sms=4, item_overhead_s=0.0, launch_s=0.0)
    monkeypatch.setattr(planner, "H200", slow)
    levels = []

    def plan(*arguments, planned=TreePlanner.plan):
        tree = planned(*arguments)
        levels.append(tree.num_levels)
        return tree

    monkeypatch.setattr(TreePlanner, "plan", plan)
    paths = [[("system", 64), (f"tool {row // 2}", 64), (row, 5 + row)] for row in range(4)]
    inputs = make_inputs(paths, Heads(4, 2, 64), device=DEVICE, dtype=torch.float32, seed=1)
    assert relative_error(gpu_kernels.planned(inputs)(), reference(inputs)) < 1e-4
    assert levels == [3]
    assert relative_error(gpu_kernels.decode(inputs)(), reference(inputs)) < 1e-4
    assert levels == [3]  # nothing is shared where each sequence is attended to by itself


@pytest.mark.parametrize("family", FAMILIES)
def test_full_sizes_are_listed_and_distinct(family):
    labels = [problem.label for problem in problems_of(family, Settings("cuda"))]
    assert labels and len(labels) == len(set(labels))


@pytest.mark.skipif(DEVICE == "cuda", reason="what happens without a GPU")
def test_peers_are_absent_without_a_gpu():
    inputs = make_inputs([[(0, 20)]], Heads(4, 2, 64), device="cpu", dtype=torch.float32, seed=0)
    for bind in (gpu_kernels.flashinfer_decode, gpu_kernels.flashinfer_extend, gpu_kernels.flash_attention):
        with pytest.raises(AbsentError):
            bind(inputs)


def test_lists_of_pages_are_those_of_the_table():
    paths = [[("system", 32), (row, 20 + 12 * row)] for row in range(2)]
    inputs = make_inputs(paths, Heads(4, 2, 8), device="cpu", dtype=torch.float32, seed=0)
    indptr, indices, last = (each.tolist() for each in gpu_kernels._page_lists(inputs))
    table = inputs.batch.page_table.tolist()
    assert (indptr, last) == ([0, 4, 8], [4, 16])
    assert indices == [*table[0][:4], *table[1][:4]]
