"""A GPU that is not there: tensors that say they lie on one, in memory of their own, and a count of what it is asked.

A `DeviceTensor` tells Python that it is on `cuda:0`; its numbers lie in the host's memory, where torch and Triton's
interpreter compute. What a GPU refuses is refused here: numbers read without a copy, operands on two devices. Memory
begins as NaN; a download that nobody has waited for is not there yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

DEVICE = torch.device("cuda:0")
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_NOTHING = 255
"""Value of each byte of memory that nobody has written: NaN as a float, -1 as a whole number."""


class DryRunError(Exception):
    """A GPU would not do this, or would do it wrongly. No RuntimeError: nobody handles it."""


@dataclass
class Counts:
    """Counts of what has been asked of the device.

    launches      operations and kernels by name, a whole graph as "graph"
    replayed      the operations and kernels within graphs
    host_reads    copies that the host waits for, by the operation that asks for them
    compiled      variants of Triton kernels that came for the first time
    captured      graphs
    uploads, downloads, allocations   how many, and their bytes; memory within graphs is not counted
    """

    launches: Counter[str] = field(default_factory=Counter)
    replayed: Counter[str] = field(default_factory=Counter)
    host_reads: Counter[str] = field(default_factory=Counter)
    compiled: Counter[str] = field(default_factory=Counter)
    captured: int = 0
    uploads: int = 0
    upload_bytes: int = 0
    downloads: int = 0
    download_bytes: int = 0
    allocations: int = 0
    allocated_bytes: int = 0

    def __sub__(self, before: Counts) -> Counts:
        return Counts(**{name: value - getattr(before, name) for name, value in vars(self).items()})

    def copy(self) -> Counts:
        return self - Counts()


class Recorder(Protocol):
    """Takes operations instead of their being computed; see graphs.Recording."""

    def operation(self, func: Any, args: Any, kwargs: Any) -> Any: ...

    def empty(self, inner: torch.Tensor) -> torch.Tensor: ...

    def kernel(self, name: str, run: Callable[..., None], args: Any, kwargs: Any, *, is_new: bool) -> None: ...


class Memory:
    """An allocation: alive as long as a tensor in it is. `number` is its alone, as an address is."""

    __slots__ = ("__weakref__", "_device", "number", "size")

    def __init__(self, device: Device, size: int, *, in_graph: bool) -> None:
        self._device: Device | None = None if in_graph else device
        self.size = size
        device.num_memories += 1
        self.number = device.num_memories
        if not in_graph:
            device.live_bytes += size
            device.counts.allocations += 1
            device.counts.allocated_bytes += size

    def __del__(self) -> None:
        if self._device is not None:
            self._device.live_bytes -= self.size


class DeviceTensor(torch.Tensor):
    """A tensor on the device: `on_host` has its numbers, in `memory`."""

    on_host: torch.Tensor
    memory: Memory
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor, memory: Memory) -> DeviceTensor:
        # For C++ it is "meta", since a build without CUDA computes no shape on a GPU; and always a common tensor, of
        # which views can be made in inference mode as well.
        with torch.inference_mode(False):
            made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
                cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
                device=torch.device("meta"),
            )  # fmt: skip
        made.on_host, made.memory = inner, memory
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.on_host})"

    def data_ptr(self) -> int:
        return self.on_host.data_ptr()

    def numpy(self, **options: Any) -> npt.NDArray[Any]:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise DryRunError(f"{func} on another thread than the device's")


@dataclass(eq=False)
class _Waiting:
    """A copy to the host that has been asked for: `host` gets `numbers` when somebody has waited for it."""

    host: torch.Tensor
    numbers: torch.Tensor


class Device(TorchDispatchMode):
    """The device, while it is entered: whatever torch does on this thread goes through it.

    live_bytes   of all that is allocated, graphs aside
    recorder     takes operations while a graph is captured
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self.live_bytes = 0
        self.num_memories = 0
        self.recorder: Recorder | None = None
        self._waiting: list[_Waiting] = []
        self._variants: set[Any] = set()

    # Operations of torch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(_with_index, (args, kwargs or {}))
        if func.has_kernel_for_dispatch_key(_COMPOSITE):
            with self:
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, DeviceTensor)]
        asked = kwargs.get("device")
        pinned = bool(kwargs.pop("pin_memory", False))
        to_device = bool(tensors) if asked is None else torch.device(asked).type in ("cuda", "meta")
        if not tensors and not to_device:
            made = func(*args, **kwargs)
            if pinned:
                made.is_dry_pinned = True
            return made
        name = func.overloadpacket.__name__
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        if name in ("_to_copy", "copy_") and (found := self._copy(name, args, kwargs, to_device=to_device)) is not None:
            return found
        self._refuse(func, name, args, kwargs)
        if func.is_view or name in ("_reshape_alias", "alias"):
            (memory,) = {each.memory for each in tensors}
            return tree_map(lambda made: DeviceTensor(made, memory), func(*inner_of(args), **inner_of(kwargs)))
        if name in _EMPTY:
            inner = func(*inner_of(args), **inner_of(kwargs))
            poison(inner)
            return self.hold(inner) if self.recorder is None else self.recorder.empty(inner)
        if self.recorder is not None:
            return self.recorder.operation(func, args, kwargs)
        self.counts.launches[name] += 1
        return self.wrap(func, args, func(*inner_of(args), **inner_of(kwargs)))

    def wrap(self, func: Any, args: Any, made: Any) -> Any:
        """Returns what an operation made as tensors on the device; what it wrote is the tensor that it was given."""
        given = {id(each.on_host): each for each in tree_iter(args) if isinstance(each, DeviceTensor)}

        def back(one: Any) -> Any:
            if not isinstance(one, torch.Tensor):
                return one
            return given[id(one)] if id(one) in given else self.hold(one)

        return tree_map(back, made)

    def hold(self, inner: torch.Tensor, *, in_graph: bool = False) -> DeviceTensor:
        """A tensor in memory of its own."""
        return DeviceTensor(inner, Memory(self, inner.untyped_storage().nbytes(), in_graph=in_graph))

    def _refuse(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        """Counts what the host waits for, and raises for what no GPU does."""
        indices = args[1] if name.startswith("index") and isinstance(args[1], list | tuple) else ()
        masked = any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices)
        reads = torch.Tag.data_dependent_output in func.tags
        reads = reads or (torch.Tag.dynamic_output_shape in func.tags and (masked or name != "index"))
        if reads or (name == "index_put_" and masked):
            self.host_read(name)
        for each in tree_iter((args, kwargs)):
            if isinstance(each, torch.Tensor) and not isinstance(each, DeviceTensor) and each.dim():
                raise DryRunError(f"{name}: operands on cuda:0 and on the CPU")

    def host_read(self, name: str) -> None:
        if self.recorder is not None:
            raise DryRunError(f"{name} waits for the device while a graph is captured")
        self.counts.host_reads[name] += 1
        self.deliver()

    # Copies

    def _copy(self, name: str, args: Any, kwargs: Any, *, to_device: bool) -> torch.Tensor | None:
        """Does a copy between host and device; None if it is none."""
        target, source = (args[0], args[1]) if name == "copy_" else (None, args[0])
        from_device = isinstance(source, DeviceTensor)
        to_device = to_device if target is None else isinstance(target, DeviceTensor)
        if from_device == to_device:
            return None
        if self.recorder is not None:
            raise DryRunError(f"{name} between host and device while a graph is captured: it would send the same again")
        waits = not (kwargs.pop("non_blocking", False) or (target is not None and len(args) > 2 and args[2]))
        if to_device:
            return self._upload(name, source, target, kwargs, waits=waits or not hasattr(source, "is_dry_pinned"))
        self.counts.downloads += 1
        self.counts.download_bytes += source.nbytes
        numbers = source.on_host.clone()
        if target is None:
            kwargs.pop("device")
            numbers = torch.ops.aten._to_copy.default(numbers, **kwargs)
            target = torch.empty_like(numbers)
        if waits:
            self.host_read(name)
            return target.copy_(numbers)
        poison(target)
        self._waiting.append(_Waiting(target, numbers))
        return target

    def _upload(
        self, name: str, source: torch.Tensor, target: DeviceTensor | None, kwargs: Any, *, waits: bool
    ) -> DeviceTensor:
        self.counts.uploads += 1
        self.counts.upload_bytes += source.nbytes
        if waits and source.dim():
            self.host_read(name)
        if target is None:
            return self.hold(torch.ops.aten._to_copy.default(source, **kwargs))
        target.on_host.copy_(source)
        return target

    def waiting(self) -> list[_Waiting]:
        """The copies that an event recorded now is behind."""
        return list(self._waiting)

    def deliver(self, copies: Iterable[_Waiting] | None = None) -> None:
        """Somebody has waited: the copies are there. None: all."""
        with _disable_current_modes(), torch.inference_mode():
            for copy in self._waiting if copies is None else copies:
                copy.host.copy_(copy.numbers)
        self._waiting = [] if copies is None else [each for each in self._waiting if each not in set(copies)]

    # Kernels

    def kernel(self, name: str, variant: Any, run: Callable[..., None], args: Any, kwargs: Any) -> None:
        """A launch of a Triton kernel, interpreted by `run`; a `variant` of it is compiled when it first comes."""
        is_new = variant not in self._variants
        self._variants.add(variant)
        self.counts.compiled[name] += is_new
        if self.recorder is not None:
            self.recorder.kernel(name, run, args, kwargs, is_new=is_new)
            return
        self.counts.launches[name] += 1
        with _disable_current_modes():
            run(*inner_of(args), **inner_of(kwargs))


def _with_index(value: Any) -> Any:
    """The GPU by its number: a build without CUDA cannot tell which one is current."""
    return DEVICE if isinstance(value, torch.device) and value.type == "cuda" else value


def inner_of(values: Any) -> Any:
    """The host's tensors behind those of the device, in whatever holds them."""
    return tree_map(lambda each: each.on_host if isinstance(each, DeviceTensor) else each, values)


def poison(tensor: torch.Tensor) -> None:
    """Makes the memory of a tensor on the host what nobody has written."""
    storage: Any = tensor.untyped_storage()
    storage.fill_(_NOTHING)
