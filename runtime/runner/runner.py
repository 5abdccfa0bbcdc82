"""Interface between the engine's step and the device that runs it: forward passes are launched, then read.

A plan of the scheduler becomes a batch: flat arrays for one pass.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...constrain.matchers.interface import TableMatcher
from ...kernels.attention.interface import AttentionBatch, SharedPrefix
from ..protocol.sampling_params import SamplingParams
from ..sampler.rows import Draws, Logits, Masks, Row, Sampler, bias_of
from ..scheduler.scheduler import Plan, Work


@dataclass(frozen=True, slots=True)
class DrawSpec:
    """Rule by which a device draws a sequence's tokens by itself, the same at every position.

    `matcher` follows the sequence's constraint, if it has one, up to the tokens known to the host. `banned` tokens are
    never drawn.
    """

    params: SamplingParams
    seed: int
    matcher: TableMatcher | None = None
    banned: Sequence[int] = ()

    @property
    def bias(self) -> dict[int, float]:
        """Returns the numbers that are added to the logits of single tokens."""
        return bias_of(self.params, self.banned)

    @property
    def penalised(self) -> bool:
        """True if draws depend on the previous tokens, by penalties."""
        return self.params.penalised

    @property
    def adjusts(self) -> bool:
        """True if logits are adjusted by more than a mask."""
        return self.penalised or bool(self.params.logit_bias or self.banned)


class Pass(Protocol):
    """Steps that have been launched. Unless they were launched with specs, `draw` once, and then `read` once."""

    def draw(self, rows: Sequence[Row], masks: Masks | None) -> None:
        """Draws one token for each row of logits, in the order of the plan."""

    def read(self) -> list[Draws]:
        """Waits for the draws and returns them, one entry per plan."""

    def done(self) -> bool:
        """True if `read` would not wait."""


class PassRunner(Protocol):
    """Runs plans on one device.

    overlaps     a pass can be launched before the previous one is read: `launch` does not wait for the device
    max_steps    most plans of one launch; 1 if the device cannot draw by itself
    trees        prompts may end as trees of tokens
    exact        a token's logits do not depend, to the bit, on the rest of the batch
    """

    overlaps: bool
    max_steps: int
    trees: bool
    exact: bool

    def launch(self, plans: Sequence[Plan], specs: Sequence[DrawSpec] | None) -> Pass:
        """Queues `plans`, one after another.

        With `specs`, one for each work, the device also draws the tokens: all plans then decode the same sequences, one
        token each. Without, there is one plan.
        """

    def draws(self, spec: DrawSpec, work: Work) -> bool:
        """Returns True if the device can draw the token of `work`, to be launched now, and later ones by itself."""

    def prepare(self) -> bool:
        """Does part of the work that makes later passes faster, while idle. Returns False if none is left."""


# Batches


@dataclass(frozen=True)
class Batch:
    """One forward pass over T tokens, R of whose positions need logits.

    tokens, positions   int64 [T]   tokens drawn by steps that have not been read are 0 here
    logit_rows          int64 [R]   indices into the T tokens
    fed                 int64 [F]   indices of the tokens that are known only on the device
    fed_rows            int64 [F]   work of the plan whose last drawn token each is
    attention           page tables and lengths
    """

    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    logit_rows: npt.NDArray[np.int64]
    fed: npt.NDArray[np.int64]
    fed_rows: npt.NDArray[np.int64]
    attention: AttentionBatch


def build_batch(
    plan: Plan,
    page_size: int,
    table_row: npt.NDArray[np.int32] | None = None,
    shared: tuple[SharedPrefix, ...] = (),
) -> Batch:
    """Lays out the plan's work in order: a segment of query tokens per sequence, or several if it ends as a tree.

    With `table_row`, the row of each work's page table on the device, the page tables themselves are omitted. `shared`
    is as in AttentionBatch, for the plan's work.
    """
    tokens: list[int] = []
    fed: list[int] = []
    fed_rows: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    tables: list[array[int] | npt.NDArray[np.int32]] = []
    query_start, context_len = [0], []
    for index, work in enumerate(plan.work):
        sequence = work.sequence
        assert sequence.lease is not None
        start, stop = work.start, work.stop
        offset = query_start[-1]
        known = sequence.tokens[start : stop - len(work.drafts)]
        tokens += known
        if len(known) < stop - len(work.drafts) - start:
            assert len(known) == stop - len(work.drafts) - start - 1, "only the last drawn token is on the device"
            fed.append(len(tokens))
            fed_rows.append(index)
            tokens.append(0)
        tokens += work.drafts
        pages = sequence.lease.pages[: -(-stop // page_size)]
        slots += _slots(pages, start, stop, page_size)
        tree = None if sequence.score is None else sequence.score.tree
        if tree is None:
            query_start.append(offset + stop - start)
            context_len.append(stop)
            positions += range(start, stop)
            tables.append(pages)
        else:
            assert page_size == 1, "siblings would share a page"
            for low, high, path in tree.rows(start, stop):
                query_start.append(query_start[-1] + high - low)
                context_len.append(len(path))
                positions += range(len(path) - (high - low), len(path))
                tables.append(np.asarray(pages)[path])
        rows += range(work.logits_start - start + offset, work.logits_stop - start + offset)
    page_table = np.zeros((len(tables), max(map(len, tables)) if table_row is None else 0), dtype=np.int32)
    if table_row is None:
        for row, table in zip(page_table, tables, strict=True):
            row[: len(table)] = table
    return Batch(
        tokens=np.array(tokens, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        logit_rows=np.array(rows, dtype=np.int64),
        fed=np.array(fed, dtype=np.int64),
        fed_rows=np.array(fed_rows, dtype=np.int64),
        attention=AttentionBatch(
            np.array(query_start, dtype=np.int32),
            np.array(context_len, dtype=np.int32),
            page_table,
            np.array(slots, dtype=np.int64),
            shared,
            table_row,
        ),
    )


def _slots(pages: array[int], start: int, stop: int, page_size: int) -> Iterable[int]:
    """Returns the slots of the cache that hold a sequence's tokens start .. stop."""
    if page_size == 1:
        return pages[start:stop]
    page, within = np.divmod(np.arange(start, stop), page_size)
    found: list[int] = (np.asarray(pages, dtype=np.int64)[page] * page_size + within).tolist()
    return found


# Passes that compute within the launch


class LogitsRunner(Protocol):
    """Computes the logits [R, V] of a batch's logit rows, in the host's memory, valid until the next run.

    faults    [T]: not 0 where a token of the last run had numbers that are not finite; None if none had
    """

    @property
    def faults(self) -> npt.NDArray[Any] | None: ...

    def run(self, batch: Batch) -> Logits | None: ...


class DirectPasses:
    """`PassRunner` that computes within `launch`, for the CPU, where there is nothing to overlap with."""

    overlaps = False
    max_steps = 1

    def __init__(
        self,
        model: LogitsRunner,
        page_size: int,
        sampler: Sampler,
        *,
        exact: bool = False,
        prepare: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        prepare    see PassRunner; of itself, there is nothing to do
        """
        self.model = model
        self.trees = page_size == 1
        self.exact = exact
        self._page_size = page_size
        self._sampler = sampler
        self.prepare = prepare

    def launch(self, plans: Sequence[Plan], specs: Sequence[DrawSpec] | None) -> DirectPass:
        assert specs is None and len(plans) == 1
        logits = self.model.run(build_batch(plans[0], self._page_size))
        faulty = frozenset[int]() if self.model.faults is None else _faulty_works(plans[0], self.model.faults)
        return DirectPass(logits, self._sampler, faulty)

    def draws(self, spec: DrawSpec, work: Work) -> bool:
        return False


def _faulty_works(plan: Plan, faults: npt.NDArray[Any]) -> frozenset[int]:
    """Returns the works in which a token without logits has numbers that are not finite, by `faults` [T] of all."""
    faulty, offset = set(), 0
    for index, work in enumerate(plan.work):
        own = faults[offset : offset + work.num_tokens]
        offset += work.num_tokens
        if own[: work.logits_start - work.start].any() or own[work.logits_stop - work.start :].any():
            faulty.add(index)
    return frozenset(faulty)


class DirectPass:
    """Pass whose logits are already computed."""

    def __init__(self, logits: Logits | None, sampler: Sampler, faulty: frozenset[int]) -> None:
        self._sampler = sampler
        self._logits = logits
        self._faulty = faulty
        self._draws = Draws([], [], [], faulty)

    def draw(self, rows: Sequence[Row], masks: Masks | None) -> None:
        if self._logits is not None:
            self._draws = replace(self._sampler.sample(self._logits, rows, masks), faulty=self._faulty)
            self._logits = None

    def read(self) -> list[Draws]:
        return [self._draws]

    def done(self) -> bool:
        return True
