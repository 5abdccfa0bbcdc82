"""CUDA graphs as frozen shapes: what a pass launches, on which memory, done again at each replay.

While one is captured nothing is computed. Memory allocated within belongs to the graph, and holds nothing when a replay
begins. Memory from outside must still be there.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from bough.runtime.runner.gpu_graphs import Replays, Step

from .device import Device, DeviceTensor, DryRunError, Memory, inner_of, poison


@dataclass(frozen=True)
class _Node:
    """An operation or a kernel; `what` are its operands by address, and its constants: the same in all replays.

    run    computes it, on these addresses; `name` is empty where that is no launch
    """

    name: str
    what: str
    run: Callable[[], object] = field(compare=False, repr=False)


@dataclass
class _Use:
    """Memory in a graph, with the first node that uses it; `place` among the graph's own, or its number."""

    memory: weakref.ref[Memory]
    name: str
    place: tuple[str, int]


@dataclass
class Recording:
    """`Recorder` of a graph: its nodes, the memory that it takes, and the memory that it has from outside."""

    device: Device
    nodes: list[_Node] = field(default_factory=list)
    own: dict[int, _Use] = field(default_factory=dict)
    outside: dict[int, _Use] = field(default_factory=dict)

    def operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.overloadpacket.__name__
        inner_args, inner_kwargs = inner_of(args), inner_of(kwargs)
        if func._schema.is_mutable:
            self._add(name, (args, kwargs), lambda: func(*inner_args, **inner_kwargs))
            return _written(func, args, kwargs)
        shapes = func(*_on_meta(inner_args), **_on_meta(inner_kwargs))
        made = tree_map(lambda shape: self._hold(name, _like(shape)), shapes)
        outs = [each.on_host for each in tree_iter(made)]

        def compute() -> None:
            for out, found in zip(outs, tree_iter(func(*inner_args, **inner_kwargs)), strict=True):
                out.copy_(found)

        self._add(name, (args, kwargs, made), compute)
        return made

    def empty(self, inner: torch.Tensor) -> torch.Tensor:
        """Memory that is no launch; at each replay it holds nothing."""
        made = self._hold("empty", inner)
        self._add("", made, lambda: poison(inner))
        return made

    def kernel(self, name: str, run: Callable[..., None], args: Any, kwargs: Any, *, is_new: bool) -> None:
        if is_new:
            raise DryRunError(f"{name} is compiled while a graph is captured: the step before was another one")
        inner_args, inner_kwargs = inner_of(args), inner_of(kwargs)
        self._add(name, (args, kwargs), lambda: run(*inner_args, **inner_kwargs))

    def end(self) -> None:
        """Raises DryRunError if somebody has kept a tensor that the graph made: others take its memory."""
        for use in self.own.values():
            if use.memory() is not None:
                raise DryRunError(f"what {use.name} makes in a graph is kept outside: other graphs take its memory")

    def check(self) -> None:
        """Raises DryRunError if memory that the graph uses is gone."""
        for use in self.outside.values():
            if use.memory() is None:
                raise DryRunError(f"{use.name} in a graph uses memory that was given back, or has moved")

    def _hold(self, name: str, inner: torch.Tensor) -> DeviceTensor:
        made = self.device.hold(inner, in_graph=True)
        self.own[made.memory.number] = _Use(weakref.ref(made.memory), name, ("own", len(self.own)))
        return made

    def _add(self, name: str, operands: Any, run: Callable[[], object]) -> None:
        self.nodes.append(_Node(name, repr(tree_map(lambda each: self._address(name, each), operands)), run))

    def _address(self, name: str, value: Any) -> Any:
        if not isinstance(value, DeviceTensor):
            return value
        inner, memory = value.on_host, value.memory
        use = self.own.get(memory.number) or self.outside.get(memory.number)
        if use is None:
            use = self.outside[memory.number] = _Use(weakref.ref(memory), name, ("outside", memory.number))
        return (*use.place, inner.storage_offset(), tuple(inner.shape), inner.stride(), inner.dtype)


class DryGraph:
    """Stands in for torch.cuda.CUDAGraph on `device`."""

    def __init__(self, device: Device) -> None:
        self.recording: Recording | None = None
        self._device = device

    def pool(self) -> object:
        return self._device

    @contextmanager
    def capture(self) -> Iterator[None]:
        self.recording = recording = Recording(self._device)
        with recorded(recording):
            yield
        recording.end()
        self._device.counts.captured += 1

    def replay(self) -> None:
        assert self.recording is not None
        self.recording.check()
        counts = self._device.counts
        counts.launches["graph"] += 1
        counts.replayed += Counter(node.name for node in self.recording.nodes if node.name)
        with _disable_current_modes():
            for node in self.recording.nodes:
                node.run()


@contextmanager
def recorded(recording: Recording) -> Iterator[None]:
    """Records what the device is asked within, in place of computing it."""
    device = recording.device
    if device.recorder is not None:
        raise DryRunError("a graph is captured while another one is")
    device.recorder = recording
    try:
        yield
    finally:
        device.recorder = None


class Watched:
    """`Replays` that can tell whether graphs still are what their steps would do."""

    captures = True

    def __init__(self, device: Device, replays: Replays) -> None:
        self._device = device
        self._replays = replays
        self._steps: dict[Hashable, Step] = {}

    @property
    def num_keys(self) -> int:
        return len(self._captured)

    @property
    def _captured(self) -> dict[Hashable, tuple[DryGraph, torch.Tensor] | None]:
        graphs: Any = self._replays
        captured: dict[Hashable, tuple[DryGraph, torch.Tensor] | None] = graphs._captured
        return captured

    def run(self, key: Hashable, step: Step) -> torch.Tensor:
        self._steps[key] = step
        return self._replays.run(key, step)

    def changes(self) -> dict[Hashable, str]:
        """Runs the last step of each key once more, without computing it: where it differs from the graph, and how."""
        found: dict[Hashable, str] = {}
        for key, step in self._steps.items():
            graph = self._captured[key]
            frozen, now = (None if graph is None else graph[0].recording), Recording(self._device)
            if frozen is None:
                found[key] = "it was not captured"
                continue
            with recorded(now), torch.inference_mode():
                step()
            for one, other in zip(frozen.nodes, now.nodes, strict=False):
                if one != other:
                    found.setdefault(key, f"{one.name} {one.what}\nis now {other.name} {other.what}")
            if len(frozen.nodes) != len(now.nodes):
                found.setdefault(key, f"{len(frozen.nodes)} launches are now {len(now.nodes)}")
        return found


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """Returns what an operation that writes returns: what it was given to write to."""
    schema = func._schema
    if any(one.alias_info is None or not one.alias_info.is_write for one in schema.returns):
        raise DryRunError(f"{func} is not known well enough to be captured")
    given = [
        kwargs[each.name] if each.name in kwargs else args[index]
        for index, each in enumerate(schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    ]
    return given[0] if len(schema.returns) == 1 else tuple(given) if schema.returns else None


def _on_meta(values: Any) -> Any:
    """Shapes of tensors, by which torch tells those of an operation's results without computing them."""

    def shape(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("meta")
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")

    return tree_map(shape, values)


def _like(shape: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype)
