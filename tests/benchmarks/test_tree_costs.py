"""The simulated costs of tree decode attention: what they must be, whatever the machine's figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bough.benchmarks.tree_costs import LOADS, NUM_PROGRAMS, SHAPE, Load, cost_of, plan_load, run
from bough.cli import bench


@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.num_sequences} x {load.name}")
def test_a_tree_costs_no_more_than_none(load: Load) -> None:
    flat, tree = plan_load(load, tree=False), plan_load(load)
    contexts = load.num_sequences * (sum(tokens for _, tokens in load.levels) + load.own_tokens)
    distinct = sum(load.num_sequences // size * tokens for size, tokens in load.levels)
    assert flat.kv_tokens == contexts
    assert distinct + load.num_sequences * load.own_tokens <= tree.kv_tokens <= contexts
    assert cost_of(tree).layer_us <= cost_of(flat).layer_us
    assert cost_of(tree).gigabytes <= cost_of(flat).gigabytes


def test_with_nothing_shared_the_plans_are_the_same() -> None:
    flat, tree = (plan_load(LOADS[-1], tree=tree) for tree in (False, True))
    assert LOADS[-1].levels == ()
    assert cost_of(flat) == cost_of(tree)
    for one, other in zip(flat.work.launches, tree.work.launches, strict=True):
        assert np.array_equal(one.items, other.items)


def test_a_shared_document_is_worth_several_steps() -> None:
    document = next(load for load in LOADS if load.name.startswith("8k document"))
    flat, tree = cost_of(plan_load(document, tree=False)), cost_of(plan_load(document))
    assert flat.layer_us > 6 * tree.layer_us and flat.step_ms > 3 * tree.step_ms
    # 64 sequences take two tiles of 128 rows: the document is read twice.
    assert tree.kv_tokens == 2 * 8192 + 64 * 256
    assert 128 in NUM_PROGRAMS and 64 * SHAPE.group == 2 * 128


def test_bytes_are_those_of_the_tokens_read() -> None:
    cost = cost_of(plan_load(LOADS[-1]))
    queries = 2 * 64 * 32 * 128 * 2
    assert cost.gigabytes == pytest.approx((64 * 2048 * 8 * 2 * 128 * 2 + queries) / 1e9)
    assert plan_load(LOADS[-1]).work.num_partials == 0


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(bench.read("tree_costs", ["--json"])[1]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["load"] for row in rows] == [load.name for load in LOADS]
    assert run(bench.read("tree_costs", [])[1]) == 0
    table = capsys.readouterr().out
    assert all(load.name in table for load in LOADS)
