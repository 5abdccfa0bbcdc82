"""List with forks in constant time and space: earlier items are shared, and never copied.

Pages of the cache are shared elsewhere, where requests are admitted (`Scheduler._awaits_prefix`, `PrefixCache.open`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, MutableSequence
from typing import Generic, SupportsIndex, TypeVar, cast, overload

T = TypeVar("T")


class _Segment(Generic[T]):
    """Items that no longer change, after those of `before`; `stop` in all."""

    __slots__ = ("before", "items", "start", "stop")

    def __init__(self, before: _Segment[T] | None, items: MutableSequence[T]) -> None:
        self.before = before
        self.items = items
        self.start: int = 0 if before is None else before.stop
        self.stop: int = self.start + len(items)


class Shared(Generic[T]):
    """List that grows, or is cut, at its end. Forks share their common items, as a chain of segments.

    With `compact` the items are 32-bit ints of four bytes each.
    """

    __slots__ = ("_before", "_compact", "_own")

    def __init__(self, items: Iterable[T] = (), *, compact: bool = False) -> None:
        self._compact = compact
        self._before: _Segment[T] | None = None
        self._own = self._new(items)

    def _new(self, items: Iterable[T]) -> MutableSequence[T]:
        return cast(MutableSequence[T], array("i", cast(Iterable[int], items))) if self._compact else list(items)

    def fork(self) -> Shared[T]:
        """Returns a list with the same items that is independent from here on."""
        if self._own:
            self._before, self._own = _Segment(self._before, self._own), self._new(())
        other = Shared[T](compact=self._compact)
        other._before = self._before
        return other

    @property
    def num_shared(self) -> int:
        """Number of leading items that other lists may share."""
        return 0 if self._before is None else self._before.stop

    def append(self, item: T) -> None:
        self._own.append(item)

    def extend(self, items: Iterable[T]) -> None:
        self._own.extend(items)

    def cut(self, length: int) -> None:
        """Drops all but the first `length` items; forks keep theirs."""
        before = self._before
        if before is None or length >= before.stop:
            del self._own[max(length - self.num_shared, 0) :]
            return
        items = self._own
        while before is not None and length < before.stop:
            items, before = before.items[: max(length - before.start, 0)], before.before
        self._before, self._own = before, items

    def replace(self, start: int, stop: int, items: Iterable[T]) -> None:
        """Replaces items start .. stop (half open) by `items`; the following ones are copied and no longer shared."""
        after = self[stop:]
        self.cut(start)
        self.extend(items)
        self.extend(after)

    def __len__(self) -> int:
        return self.num_shared + len(self._own)

    def __iter__(self) -> Iterator[T]:
        return iter(self[:])

    @overload
    def __getitem__(self, place: SupportsIndex) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: SupportsIndex | slice) -> T | list[T]:
        """Returns an item, or a copy of a range. The time grows with the number of items after it."""
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            assert step == 1
            return self._between(start, stop)
        index = place.__index__()
        index += len(self) if index < 0 else 0
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._between(index, index + 1)[0]

    def _between(self, start: int, stop: int) -> list[T]:
        """Returns the items start .. stop (half open)."""
        parts: list[MutableSequence[T]] = []
        first, items, before = self.num_shared, self._own, self._before
        while True:
            if start < first + len(items) and first < stop:
                parts.append(items[max(start - first, 0) : stop - first])
            if before is None or first <= start:
                break
            first, items, before = before.start, before.items, before.before
        found: list[T] = []
        for part in reversed(parts):
            found.extend(part)
        return found

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Shared | list | tuple):
            return len(self) == len(other) and self[:] == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Shared({self[:]!r})"
