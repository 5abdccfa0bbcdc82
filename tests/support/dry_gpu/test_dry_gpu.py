"""A GPU that is not there refuses what a GPU refuses, counts what it is asked, and finds graphs that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ..triton_interpreter import HAS_GPU

import triton  # isort: skip
import triton.language as tl  # isort: skip
from bough.kernels.staging import Download, upload  # isort: skip
from bough.runtime.runner.gpu_graphs import CudaGraphs  # isort: skip

from .cuda import dry_gpu  # isort: skip
from .device import DEVICE, Device, DeviceTensor, DryRunError
from .graphs import Watched

pytestmark = pytest.mark.skipif(HAS_GPU, reason="there is a GPU")


@pytest.fixture
def device() -> Iterator[Device]:
    with dry_gpu() as device, torch.inference_mode():
        yield device


@triton.jit
def _add_kernel(x, out, amount, width, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < width, other=0.0) + amount, mask=at < width)


def add(x: torch.Tensor, amount: int = 3, block: int = 16) -> torch.Tensor:
    out = torch.empty_like(x)
    _add_kernel[(1,)](x, out, amount, x.shape[0], BLOCK=block)
    return out


def numbers(tensor: torch.Tensor) -> list[float]:
    """Numbers on the device, without asking it."""
    assert isinstance(tensor, DeviceTensor)
    found: list[float] = tensor.on_host.numpy().tolist()
    return found


class Pass:
    """A pass that doubles a buffer into another, as graphs do it; `fault` goes wrong in the way named."""

    def __init__(self) -> None:
        self.source = torch.arange(4.0, device=DEVICE)
        self.result = torch.zeros(4, device=DEVICE)
        self.kept: list[torch.Tensor] = []
        self.times = 2.0
        self.width = 16

    def step(self) -> torch.Tensor:
        return self.result.copy_(add(self.source * self.times))

    def reads(self) -> torch.Tensor:
        if self.source.sum().item() < 0:
            raise AssertionError
        return self.step()

    def finds(self) -> torch.Tensor:
        return self.result.copy_(self.source[self.source >= 0])

    def uploads(self) -> torch.Tensor:
        (more,) = upload(DEVICE, np.ones(4, np.float32))
        return self.result.copy_(self.source + more)

    def keeps(self) -> torch.Tensor:
        self.kept = [add(self.source)]
        return self.step()

    def compiles(self) -> torch.Tensor:
        self.width *= 2
        return self.result.copy_(add(self.source, block=self.width))

    def allocates(self) -> torch.Tensor:
        self.source = self.source * 1.0
        return self.step()


def test_tensors_are_on_a_gpu(device: Device) -> None:
    x = torch.ones(4, device="cuda")
    assert x.device == DEVICE and x.is_cuda and x[1:].view(3).is_cuda
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    with pytest.raises(DryRunError, match="on the CPU"):
        x + torch.ones(4)
    with pytest.raises(DryRunError, match="host's memory"):
        _add_kernel[(1,)](x, torch.ones(4), 3, 4, BLOCK=16)


def test_memory_begins_as_nothing(device: Device) -> None:
    assert np.isnan(numbers(torch.empty(2, device=DEVICE))).all()


def test_what_the_host_waits_for_is_counted(device: Device) -> None:
    x = torch.arange(4.0, device=DEVICE)
    waits: list[Callable[[], Any]] = [
        lambda: x.sum().item(), lambda: x.tolist(), lambda: bool((x > 0).all()), lambda: x.cpu(), lambda: x.nonzero(),
        lambda: x[x > 1], lambda: torch.zeros(4).to(DEVICE),
    ]  # fmt: skip
    for count, wait in enumerate(waits):
        assert device.counts.host_reads.total() == count
        wait()
    assert device.counts.host_reads.total() == len(waits)


def test_one_upload_and_its_bytes(device: Device) -> None:
    a, b = upload(DEVICE, np.arange(3), np.ones((2, 2), np.float32))
    counts = device.counts
    assert (counts.uploads, counts.upload_bytes, counts.host_reads.total()) == (1, 128, 0)
    assert numbers(a) == [0, 1, 2] and numbers(b.view(-1)) == [1, 1, 1, 1]


def test_a_download_is_there_when_it_was_waited_for(device: Device) -> None:
    x = torch.arange(3, device=DEVICE)
    download = Download([x])
    x.zero_()
    assert download._host[0].tolist() == [-1, -1, -1]
    assert download.wait()[0].tolist() == [0, 1, 2]
    assert device.counts.host_reads.total() == 0 and device.counts.download_bytes == 24


def test_launches_allocations_and_compilations_are_counted(device: Device) -> None:
    x = torch.zeros(16, device=DEVICE)
    before, live = device.counts.copy(), device.live_bytes
    y = add(x[:8] + 1)
    assert device.live_bytes == live + 32
    del y
    add(x, 4)  # the same kernel but for a width divisible by 16
    add(x, 5)
    add(x, 1)  # a constant
    found = device.counts - before
    assert device.live_bytes == live
    assert dict(found.launches) == {"add": 1, "_add_kernel": 4}
    assert found.compiled.total() == 3
    assert (found.allocations, found.allocated_bytes) == (5, 32 + 32 + 3 * 64)


def test_a_graph_does_the_same_again(device: Device) -> None:
    one, graphs = Pass(), CudaGraphs()
    watched = Watched(device, graphs)
    for turn in range(3):
        one.source.fill_(float(turn))
        before = device.counts.copy()
        assert numbers(watched.run("key", one.step)) == [2.0 * turn + 3] * 4
        counts = device.counts - before
    assert (device.counts.captured, watched.num_keys) == (1, 1)
    assert dict(counts.launches) == {"graph": 1} and counts.allocations == 0
    assert dict(counts.replayed) == {"mul": 1, "_add_kernel": 1, "copy_": 1}
    assert watched.changes() == {}


def test_nothing_is_computed_while_a_graph_is_captured(device: Device) -> None:
    total = torch.zeros(1, device=DEVICE)
    graphs = CudaGraphs()
    assert [numbers(graphs.run("key", lambda: total.add_(1)))[0] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("reads", "waits for the device"),
        ("finds", "waits for the device"),
        ("uploads", "between host and device"),
        ("keeps", "kept outside"),
        ("compiles", "is compiled while"),
    ],
)
def test_what_cannot_be_captured(device: Device, fault: str, message: str) -> None:
    with pytest.raises(DryRunError, match=message):
        CudaGraphs().run("key", getattr(Pass(), fault))


def test_a_buffer_that_has_moved(device: Device) -> None:
    one, graphs = Pass(), CudaGraphs()
    graphs.run("key", one.step)
    graphs.run("key", one.step)
    one.source = torch.zeros(4, device=DEVICE)
    with pytest.raises(DryRunError, match="mul in a graph uses memory that was given back"):
        graphs.run("key", one.step)


def test_a_buffer_that_is_kept_but_not_used_any_more(device: Device) -> None:
    one = Pass()
    watched = Watched(device, CudaGraphs())
    watched.run("key", one.step)
    old, one.source = one.source, torch.zeros(4, device=DEVICE)
    watched.run("key", one.step)
    assert "mul" in watched.changes()["key"]
    one.source = old
    assert watched.changes() == {}


def test_a_number_that_a_graph_has_frozen(device: Device) -> None:
    one = Pass()
    watched = Watched(device, CudaGraphs())
    watched.run("key", one.step)
    one.times = 3.0
    assert "2.0" in watched.changes()["key"] and "3.0" in watched.changes()["key"]


def test_what_a_graph_left_in_its_memory_is_gone(device: Device) -> None:
    """A pass that leaves a part of its own memory unwritten reads nothing there."""
    result = torch.zeros(4, device=DEVICE)

    def step() -> torch.Tensor:
        part = torch.empty(4, device=DEVICE)
        part[:2].fill_(1.0)
        return result.copy_(part)

    graphs = CudaGraphs()
    for _ in range(2):
        found = numbers(graphs.run("key", step))
        assert found[:2] == [1, 1] and np.isnan(found[2:]).all()
