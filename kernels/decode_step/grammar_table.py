"""Grammars small enough to be tables: their states live and advance on the device, without the host.

A table is a deterministic automaton over equivalence classes of tokens. The tables of all running grammars are packed
in one `GrammarPool` of fixed size, whose tensors never move, so that a CUDA graph may read them; a request has an
offset in the pool and a state number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..staging import upload


@dataclass(frozen=True)
class GrammarTable:
    """One grammar, on the host.

    mask          int32 [S, W]    tokens that each state allows: bit i % 32 of word i // 32 is token i
    token_class   int32 [V]       the class of each token, 0 .. C
    next_state    int32 [S, C]    the state after a token of the class, -1 where it is not allowed

    W = ceil(V / 32). A token that the mask allows is of a class that has a next state; other tokens of the class need
    not be allowed. A token that ends the text has a class of its own and leads to a state that allows nothing.

    Raises:
        ValueError: a shape, a dtype or a number does not fit.
    """

    mask: torch.Tensor
    token_class: torch.Tensor
    next_state: torch.Tensor

    def __post_init__(self) -> None:
        for name in ("mask", "token_class", "next_state"):
            tensor = getattr(self, name)
            if tensor.dtype != torch.int32 or tensor.device.type != "cpu":
                raise ValueError(f"{name} must be int32 on the CPU, got {tensor.dtype} on {tensor.device}")
        num_states, num_classes = self.next_state.shape
        num_words = -(-len(self.token_class) // 32)
        if self.mask.shape != (num_states, num_words):
            raise ValueError(f"mask must have shape {[num_states, num_words]}, got {list(self.mask.shape)}")
        if not (num_states and num_classes and len(self.token_class)):
            raise ValueError("a grammar table has at least one state, one class and one token")
        if self.token_class.min() < 0 or self.token_class.max() >= num_classes:
            raise ValueError(f"token_class must be in 0 .. {num_classes}")
        if self.next_state.min() < -1 or self.next_state.max() >= num_states:
            raise ValueError(f"next_state must be in -1 .. {num_states}")


@dataclass(frozen=True)
class TablePlace:
    """Place of a table in a pool. `entry` is what a request brings to `advance_states`."""

    mask_base: int  # row of the pool's mask that is state 0's
    class_base: int
    next_base: int
    num_classes: int
    num_states: int

    @property
    def entry(self) -> tuple[int, int, int, int]:
        return self.mask_base, self.class_base, self.next_base, self.num_classes


class GrammarPool:
    """Device memory for the tables of many grammars; its tensors keep their addresses.

    mask          int32 [num_rows, W]          row 0 allows nothing and belongs to nobody; then rows of the tables
    token_class   int32 [num_tables * V]       class_base is a multiple of V
    next_state    int32 [num_transitions]      row major: next_base + state * num_classes + class

    `add` and `remove` only queue copies on the current stream: what reads the pool must run on the same stream, or
    wait for it.
    """

    def __init__(
        self, *, vocab_size: int, num_tables: int, num_rows: int, num_transitions: int, device: str | torch.device
    ) -> None:
        self.vocab_size = vocab_size
        num_words = -(-vocab_size // 32)
        self.mask = torch.zeros(num_rows, num_words, dtype=torch.int32, device=device)
        self.token_class = torch.zeros(num_tables * vocab_size, dtype=torch.int32, device=device)
        self.next_state = torch.full((num_transitions,), -1, dtype=torch.int32, device=device)
        self._rows = _Extents(1, num_rows)
        self._classes = _Extents(0, num_tables)
        self._transitions = _Extents(0, num_transitions)

    def could_hold(self, num_states: int, num_classes: int) -> bool:
        """Tells whether an empty pool has room for such a table."""
        return num_states < len(self.mask) and num_states * num_classes <= len(self.next_state)

    def add(self, table: GrammarTable) -> TablePlace | None:
        """Copies a table in, without waiting for the device; None if there is no room.

        Raises:
            ValueError: the table is of another vocabulary.
        """
        if len(table.token_class) != self.vocab_size:
            raise ValueError(f"the pool is for {self.vocab_size} tokens, the table for {len(table.token_class)}")
        num_states, num_classes = table.next_state.shape
        num_transitions = num_states * num_classes
        if not (self._rows.fits(num_states) and self._classes.fits(1) and self._transitions.fits(num_transitions)):
            return None
        mask, token_class, next_state = upload(  # before the room is taken: it fails where there is no memory
            self.mask.device, table.mask.numpy(), table.token_class.numpy(), table.next_state.numpy()
        )
        row, start = self._rows.take(num_states), self._transitions.take(num_transitions)
        class_base = self._classes.take(1) * self.vocab_size
        self.mask[row : row + num_states].copy_(mask)
        self.token_class[class_base : class_base + self.vocab_size].copy_(token_class)
        self.next_state[start : start + num_transitions].copy_(next_state.flatten())
        return TablePlace(row, class_base, start, num_classes, num_states)

    def remove(self, place: TablePlace) -> None:
        """Frees what `add` returned. Steps queued before may still use it, later ones may not."""
        self._rows.give_back(place.mask_base, place.num_states)
        self._classes.give_back(place.class_base // self.vocab_size, 1)
        self._transitions.give_back(place.next_base, place.num_states * place.num_classes)


class _Extents:
    """Free stretches of the numbers start .. stop, handed out first fit."""

    def __init__(self, start: int, stop: int) -> None:
        self._free = [(start, stop)]  # half open, ascending, never adjacent

    def fits(self, size: int) -> bool:
        return any(stop - start >= size for start, stop in self._free)

    def take(self, size: int) -> int:
        """The first of `size` numbers, which must fit."""
        index = next(i for i, (start, stop) in enumerate(self._free) if stop - start >= size)
        start, stop = self._free[index]
        self._free[index : index + 1] = [(start + size, stop)] if stop - start > size else []
        return start

    def give_back(self, start: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for extent in sorted([*self._free, (start, start + size)]):
            if merged and merged[-1][1] == extent[0]:
                merged[-1] = (merged[-1][0], extent[1])
            else:
                merged.append(extent)
        self._free = merged
