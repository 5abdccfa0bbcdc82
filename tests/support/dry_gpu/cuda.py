"""Stand-ins for what the engine uses of torch.cuda and Triton on a GPU, on a `Device`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from .. import triton_interpreter  # noqa: F401  before anything imports a kernel

import triton.runtime.interpreter as interpreter  # isort: skip
from bough.kernels.processor import is_roomy  # isort: skip

from .device import Device, DeviceTensor, DryRunError
from .graphs import DryGraph

NUM_PROCESSORS = 4
_BYTES = 16 << 30


class _Event:
    """Stands in for torch.cuda.Event: waiting for it brings the downloads that were asked for before it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._before: list[Any] = []

    def record(self) -> None:
        self._before = self._device.waiting()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._device.deliver(self._before)


def _graph(graph: DryGraph, *, pool: object, capture_error_mode: str) -> AbstractContextManager[None]:
    """Stands in for torch.cuda.graph."""
    assert capture_error_mode == "thread_local"
    return graph.capture()


@contextmanager
def dry_gpu() -> Iterator[Device]:
    """A GPU on this thread, as `cuda`, with 4 processors."""
    device = Device()
    stand_ins: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: "a GPU that is not there",
        "get_device_properties": lambda device=None: SimpleNamespace(multi_processor_count=NUM_PROCESSORS),
        "mem_get_info": lambda device=None: (_BYTES - device_bytes(), _BYTES),
        "device": nullcontext,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "Event": partial(_Event, device),
        "CUDAGraph": partial(DryGraph, device),
        "graph": _graph,
    }

    def device_bytes() -> int:
        return device.live_bytes

    with pytest.MonkeyPatch.context() as patch:
        for name, stand_in in stand_ins.items():
            patch.setattr(torch.cuda, name, stand_in)
        patch.setattr(interpreter.InterpretedFunction, "run", _launched(device, interpreter.InterpretedFunction.run))
        # Tests of kernels look for overflows; here they would take a tenth of the time.
        builder = interpreter.interpreter_builder
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        is_roomy.cache_clear()
        try:
            with device:
                yield device
        finally:
            is_roomy.cache_clear()


def _launched(device: Device, stock: Callable[..., None]) -> Callable[..., None]:
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        compute = partial(stock, self, grid=grid, warmup=warmup)
        if not warmup and any(isinstance(each, DeviceTensor) for each in (*args, *kwargs.values())):
            device.kernel(self.fn.__name__, _variant(self, args, kwargs), compute, args, kwargs)
        else:
            compute(*args, **kwargs)

    return run


def _variant(kernel: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Variant of a kernel that Triton compiles for these arguments: by constants and types, by which numbers are 1 or
    divisible by 16, and by which pointers are."""
    options: Any = kernel.kwargs
    names, loose = kernel.arg_names, set(options.get("do_not_specialize") or ())
    unaligned = set(options.get("do_not_specialize_on_alignment") or ())
    constants = set(interpreter.GridExecutor(kernel.fn, names, ()).constexprs)
    values = dict(zip(names, args, strict=False)) | kwargs
    found: list[Any] = [kernel.fn]
    for name, value in values.items():
        match value:
            case _ if name in constants or name not in names:
                found.append((name, value))
            case DeviceTensor():
                found.append((name, value.dtype, name not in unaligned and value.data_ptr() % 16 == 0))
            case torch.Tensor():
                raise DryRunError(f"{kernel.fn.__name__}: {name} points into the host's memory")
            case bool() | float() | None:
                found.append((name, type(value)))
            case int() if name in loose:
                found.append((name, "i32" if -(1 << 31) <= value < 1 << 31 else "i64"))
            case int():
                kind = "1" if value == 1 else "16" if value % 16 == 0 and name not in unaligned else ""
                found.append((name, "i32" if -(1 << 31) <= value < 1 << 31 else "i64", kind))
            case _:
                raise TypeError(f"{kernel.fn.__name__}: {name} is {value!r}")
    return tuple(found)
