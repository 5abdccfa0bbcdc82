"""A GPU that failed for good is told apart from an error of one pass."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from bough.runtime.protocol.errors import DeviceLostError
from bough.runtime.runner.gpu_device import on_device

GPU = torch.device("cuda:1")


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that were made current."""
    devices: list[torch.device] = []

    def enter(device: torch.device) -> nullcontext[None]:
        devices.append(device)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return devices


def test_the_device_is_current_within(entered: list[torch.device]) -> None:
    with on_device(GPU):
        assert entered == [GPU]


def test_a_cpu_needs_nothing(entered: list[torch.device]) -> None:
    with on_device(torch.device("cpu")):
        assert not entered


@pytest.mark.usefixtures("entered")
def test_an_error_that_the_device_survives_stays_what_it_is() -> None:
    error = RuntimeError("a shape is wrong")
    with pytest.raises(RuntimeError) as caught, on_device(GPU):
        raise error
    assert caught.value is error


@pytest.mark.usefixtures("entered")
def test_a_gpu_without_memory_gives_back_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    with pytest.raises(MemoryError, match="no memory"), on_device(GPU):
        raise torch.OutOfMemoryError("no memory")
    assert emptied == [True]


def test_a_host_without_memory_is_told_by_the_same_error() -> None:
    with pytest.raises(MemoryError, match="allocate"), on_device(torch.device("cpu")):
        torch.empty(1 << 50)


@pytest.mark.usefixtures("entered")
def test_an_error_after_which_every_call_fails_is_the_end_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(DeviceLostError, match=r"cuda:1.*illegal memory access") as caught, on_device(GPU):
        fail(GPU)
    assert caught.value.code == "engine_dead"
