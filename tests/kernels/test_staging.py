"""Small arrays to the device and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bough.kernels.staging import Download, upload

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_arrive_as_they_are(device: str) -> None:
    arrays: list[npt.NDArray[Any]] = [
        np.arange(5, dtype=np.int64),
        np.array([[1.5, -2.5, 3.0]], dtype=np.float32),
        np.empty(0, dtype=np.int32),
        np.arange(12, dtype=np.int32).reshape(3, 4).T,
        np.arange(5, dtype=np.uint8),
        np.empty((0, 8), np.int32),
    ]
    for array, tensor in zip(arrays, upload(torch.device(device), *arrays), strict=True):
        assert tensor.device.type == device and tensor.is_contiguous()
        assert np.array_equal(tensor.cpu().numpy(), array) and tensor.shape == array.shape
        assert tensor.data_ptr() % 16 == 0


def test_nothing_to_send() -> None:
    assert upload(torch.device("cpu")) == []


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_sent_may_be_overwritten_at_once(device: str) -> None:
    for round_number in range(50):
        array = np.full(1000, round_number, dtype=np.int64)
        (tensor,) = upload(torch.device(device), array)
        array[:] = -1
        assert (tensor == round_number).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_download_keeps_what_was_there_when_it_was_asked_for(device: str) -> None:
    tensor = torch.arange(4, device=device)
    download = Download([tensor, tensor[:2]])
    tensor.fill_(9)
    first, second = download.wait()
    assert first.tolist() == [0, 1, 2, 3] and second.tolist() == [0, 1]
    assert download.done()


def test_a_download_from_a_device_that_failed_does_not_wait_and_says_so() -> None:
    class Failed:
        def query(self) -> bool:
            raise RuntimeError("an illegal memory access was encountered")

        synchronize = query

    download = Download([torch.zeros(1)])
    download._event = Failed()  # type: ignore[assignment]
    assert download.done()
    with pytest.raises(RuntimeError, match="illegal"):
        download.wait()
