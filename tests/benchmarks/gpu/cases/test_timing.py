"""Timing and checking of launches."""

import math
from statistics import median

import pytest
import torch

from bough.benchmarks.gpu.cases.problem import (
    AbsentError,
    Problem,
    Settings,
    measure,
    num_input_sets,
    poison,
    relative_error,
    time_calls,
)
from bough.benchmarks.gpu.roofline import Work

CPU = Settings("cpu", quick=True)


def test_calls_take_turns():
    called = []
    seconds = time_calls([lambda: called.append(0), lambda: called.append(1)], device="cpu")
    assert called[:4] == [0, 1, 0, 1]
    assert len(seconds) == 4 and min(seconds) > 0


@pytest.mark.gpu
def test_launches_are_timed_in_graphs():
    x = torch.randn(1 << 26, device="cuda")
    assert 50e-6 < median(time_calls([lambda: x.mul_(1.0)], device="cuda")) < 5e-3  # 512 MB
    assert len(time_calls([lambda: float(x[0])], device="cuda")) >= 7  # it waits for the device, which graphs refuse


def test_small_inputs_rotate_over_more_than_the_cache():
    assert num_input_sets(1e9, quick=False) == 1
    assert num_input_sets(10e6, quick=False) == 20
    assert num_input_sets(1e3, quick=False) == 64
    assert num_input_sets(1e3, quick=True) == 2


def test_relative_errors():
    reference = torch.tensor([3.0, 4.0])
    assert relative_error(reference, reference) == 0
    assert relative_error(torch.tensor([3.0, 4.5]), reference) == pytest.approx(0.1)
    assert relative_error(torch.tensor([3.0, math.nan]), reference) == math.inf
    assert relative_error(torch.zeros(3), reference) == math.inf


def test_poison_shows():
    assert poison(torch.zeros(3)).isnan().all()
    assert (poison(torch.zeros(3, dtype=torch.int64)) < 0).all()


def doubling(ours=lambda x: lambda: 2 * x, **peers):
    return Problem(
        name="double",
        cfg={"T": 8},
        work=Work(64.0, 8.0),
        make=lambda seed: torch.arange(8.0) + seed,
        ours=ours,
        peers=peers,
        reference=lambda x: x.double() + x.double(),
    )


def test_ours_comes_first_and_again_with_the_peers():
    alone, both = (row.peers.copy() for row in measure(doubling(other=lambda x: lambda: x + x), CPU))
    assert alone == {} and set(both) == {"other"}


def test_peers_that_cannot_have_no_time():
    def absent(x):
        raise AbsentError("not here")

    def broken(x):
        raise RuntimeError("no such size")

    problem = doubling(absent=absent, broken=broken, wrong=lambda x: lambda: 3 * x, right=lambda x: lambda: x * 2)
    *_, row = measure(problem, CPU)
    assert {name: us is None for name, us in row.peers.items()} == {
        "absent": True,
        "broken": True,
        "wrong": True,
        "right": False,
    }
    assert "no such size" in row.note and "wrong" in row.note and "absent" not in row.note
    assert row.err == 0
    assert row.noise is not None and row.noise >= 0
    assert row.ratio_peer is not None and row.ratio_peer > 0


def test_a_wrong_kernel_of_ours_has_no_row():
    with pytest.raises(ValueError, match="wrong"):
        list(measure(doubling(ours=lambda x: lambda: 2.1 * x), CPU))
    unwritten = poison(torch.empty(8))
    with pytest.raises(ValueError, match="inf"):
        list(measure(doubling(ours=lambda x: lambda: unwritten), CPU))


def test_sizes_are_tiny_on_a_cpu():
    assert not Settings("cuda").tiny and Settings("cpu").tiny and Settings("cuda", quick=True).tiny
    assert (Settings("cuda").dtype, Settings("cpu").dtype) == (torch.bfloat16, torch.float32)
