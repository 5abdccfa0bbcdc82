"""Regular constraints on the device: the tables in its pool, and each slot's table and state."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ...constrain.matchers.interface import Table, TableMatcher
from ...constrain.workers.turns import FairThreads
from ...kernels.decode_step.grammar_table import GrammarPool, GrammarTable, TablePlace
from ...kernels.staging import upload
from .gpu_slots import Slot

logger = logging.getLogger("bough.engine")

MASK_BYTES = 64 << 20
MAX_TABLES = 64
MAX_TRANSITIONS = 4 << 20
MAX_BUILDING = 8
"""Most tables being built or waiting for room; requests for others must be repeated."""
MAX_LAUNCHES_UNASKED = 256
"""Launches without a request after which a table is given up before it is placed."""


@dataclass(eq=False, slots=True)
class _Placed:
    """A table in the pool. `used`: the last launch that needed it."""

    place: TablePlace
    used: int


@dataclass(eq=False, slots=True)
class _Building:
    """A table being built or waiting for room. `asked`: the last launch before which it was requested."""

    table: Future[GrammarTable]
    asked: int


class DeviceGrammars:
    """Tables in a pool of fixed size, the least recently used evicted first, and the state of each slot.

    constrained   numbers of the slots that have a table, for the device

    A decode step reads the masks of its rows' states from the pool, and advances the states by the drawn tokens; the
    host follows when it reads the tokens.
    """

    def __init__(
        self,
        vocab_size: int,
        num_slots: int,
        device: torch.device,
        advance: Callable[..., None],
        *,
        mask_bytes: int = MASK_BYTES,
    ) -> None:
        self.device = device
        self.pool = GrammarPool(
            vocab_size=vocab_size,
            num_tables=MAX_TABLES,
            num_rows=max(mask_bytes // (4 * -(-vocab_size // 32)), 2),
            num_transitions=MAX_TRANSITIONS,
            device=device,
        )
        self._advance = advance
        self._states = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self._places = torch.zeros(num_slots, 4, dtype=torch.int32, device=device)
        self._own = torch.full((num_slots,), -1, dtype=torch.int32, device=device)  # a slot with a table: its number
        self._no_tokens = torch.full((num_slots,), -1, dtype=torch.int64, device=device)
        self._under = torch.full((num_slots,), -1, dtype=torch.int32, device=device)
        self._placed: dict[Table, _Placed] = {}
        self._building: dict[Table, _Building] = {}
        self._failed: weakref.WeakSet[Table] = weakref.WeakSet()
        self.constrained: set[int] = set()
        self._launch = 1
        self._builder = FairThreads("tables", 1)
        weakref.finalize(self, self._builder.close)

    def place(self, grammar: Table) -> TablePlace | None:
        """Returns the place of `grammar`'s table, fixed until `launched`; None if it is not placed (yet)."""
        placed = self._placed.get(grammar)
        if placed is not None:
            placed.used = self._launch
            return placed.place
        building = self._building.get(grammar) or self._begin(grammar)
        if building is None:
            return None
        building.asked = self._launch
        if not building.table.done():
            return None
        if building.table.exception() is not None:
            del self._building[grammar]
            self._failed.add(grammar)
            return None
        place = self._add(building.table.result())
        if place is not None:
            del self._building[grammar]
            self._placed[grammar] = _Placed(place, self._launch)
        return place

    def launched(self) -> None:
        """Records that everything requested so far has been launched: tables that are not requested again may go."""
        self._launch += 1
        last = self._launch - MAX_LAUNCHES_UNASKED
        for grammar, building in list(self._building.items()):
            if building.asked < last:
                building.table.cancel()
                del self._building[grammar]

    def put(self, slots: Sequence[Slot], matchers: Sequence[TableMatcher | None]) -> None:
        """Sets the table and the state of each slot to those of its matcher, whose table must be in the pool; None: no
        constraint."""
        entries, states, own = [], [], []
        for slot, matcher in zip(slots, matchers, strict=True):
            slot.place = self._placed[matcher.grammar].place if matcher is not None else None
            entries.append(slot.place.entry if slot.place is not None else (0, 0, 0, 0))
            states.append(matcher.state if matcher is not None else 0)
            own.append(slot.index if matcher is not None else -1)
            (self.constrained.discard if matcher is None else self.constrained.add)(slot.index)
        where, entry, state, number = upload(
            self.device,
            np.array([slot.index for slot in slots], np.int64),
            np.array(entries, np.int32),
            np.array(states, np.int32),
            np.array(own, np.int32),
        )
        self._places.index_copy_(0, where, entry)
        self._states.index_copy_(0, where, state)
        self._own.index_copy_(0, where, number)

    def mask_rows(self, slots: torch.Tensor) -> torch.Tensor:
        """Returns the mask row in the pool for each of `slots` int32 [B], int32 [B]; -1: none."""
        return self.advance(slots, self._no_tokens[: len(slots)])

    def advance(self, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Advances `slots` int32 [B], distinct except for slot 0, by `tokens` int64 [B] (negative: no change).

        Returns their new mask rows in the pool, int32 [B].
        """
        under = self._under[: len(slots)]
        self._advance(
            self.pool,
            states=self._states,
            places=self._places,
            state_row=self._own.index_select(0, slots),
            tokens=tokens,
            mask_row=under,
        )
        return under

    def _begin(self, grammar: Table) -> _Building | None:
        """Starts to build a table; returns None if it can never fit, too many are being built, or no thread is free."""
        num_states, num_classes = grammar.size
        if grammar in self._failed or not self.pool.could_hold(num_states, num_classes):
            return None
        if len(self._building) >= MAX_BUILDING:
            return None
        try:
            table = self._builder.submit("", partial(build_table, grammar))
        except RuntimeError:
            return None
        building = self._building[grammar] = _Building(table, self._launch)
        return building

    def _add(self, table: GrammarTable) -> TablePlace | None:
        """Puts a table into the pool; if there is no room, evicts others that this launch does not need."""
        place = self.pool.add(table)
        idle = [grammar for grammar, placed in self._placed.items() if placed.used < self._launch]
        for grammar in sorted(idle, key=lambda grammar: self._placed[grammar].used):
            if place is not None:
                break
            self.pool.remove(self._placed.pop(grammar).place)
            place = self.pool.add(table)
        return place


def build_table(grammar: Table) -> GrammarTable:
    """Returns a grammar's table as tensors."""
    try:
        return GrammarTable(*map(torch.from_numpy, grammar.arrays()))
    except Exception:
        logger.exception("a constraint could not be made a table for the device")
        raise
