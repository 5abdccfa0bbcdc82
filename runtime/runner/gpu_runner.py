"""Passes on a GPU: launched without waiting, one ahead of the last one read; decode steps draw on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from ...constrain.matchers.interface import TableMatcher
from ...kernels.attention.decode_rows import DecodeRows
from ...kernels.attention.interface import SharedPrefix
from ...kernels.attention.plan.padded_work import PaddedWork
from ...kernels.decode_step.inputs import DecodeInputs
from ...kernels.decode_step.select import Drawing
from ...kernels.sampling.reference import SampleRows, SampleTables
from ...kernels.staging import Download, upload
from ..protocol.sampling_params import SamplingParams
from ..sampler.rows import Draws, Masks, Row
from ..sampler.torch_sampler import Scores, draw_rows, to_draws
from ..scheduler.scheduler import Plan, Work
from .gpu_adjustments import DeviceAdjustments
from .gpu_device import on_device
from .gpu_grammars import DeviceGrammars
from .gpu_graphs import graph_sizes
from .gpu_mixed import MixedPasses
from .gpu_scores import DeviceScores, asking, fill
from .gpu_shared_reads import SharedReads, arrange
from .gpu_slots import DeviceState, Slot, SlotTable, page_changes
from .runner import DrawSpec, Pass, build_batch


@dataclass(frozen=True, slots=True)
class _StepKind:
    """Kind of a decode step, by the features of its draws: each kind has its own graphs.

    filters    there may be rows with top-k, top-p or min-p
    tables     rows that are constrained by a table
    adjusted   rows with penalties or a bias; `tables` then, too
    scored     rows of which log-probabilities are computed
    """

    filters: bool
    tables: bool
    adjusted: bool
    scored: int

    @classmethod
    def of(cls, specs: Sequence[DrawSpec], scored: int) -> _StepKind:
        filters = any(spec.params.cuts for spec in specs)
        adjusted = any(spec.adjusts for spec in specs)
        tables = adjusted or any(spec.matcher is not None for spec in specs)
        if scored > 1 or (scored and (filters or tables)):
            return cls(filters=True, tables=True, adjusted=True, scored=scored)  # else there would be 24 more kinds
        return cls(filters, tables, adjusted, scored)


_COMMON_KINDS = (
    _StepKind(filters=False, tables=False, adjusted=False, scored=0),
    _StepKind(filters=True, tables=False, adjusted=False, scored=0),
    _StepKind(filters=False, tables=True, adjusted=False, scored=0),
    _StepKind(filters=True, tables=True, adjusted=False, scored=0),
    _StepKind(filters=False, tables=False, adjusted=False, scored=1),
    _StepKind(filters=False, tables=True, adjusted=True, scored=0),
    _StepKind(filters=True, tables=True, adjusted=True, scored=0),
    _StepKind(filters=True, tables=True, adjusted=True, scored=1),
)
"""Kinds whose graphs are captured before they are needed, the most common first."""


class _DecodeTensors:
    """Tensors of decode steps at fixed addresses for graphs, for up to R rows in as many slots.

    rows      int32 [R]    slot of each row; 0 for padding
    inputs    model inputs of each row
    drawn     int64 [R]    token drawn for each row
    off       sampling parameters of unused rows
    """

    def __init__(self, max_num_seqs: int, device: torch.device) -> None:
        self.rows = torch.zeros(max_num_seqs, dtype=torch.int32, device=device)
        self.inputs = DecodeInputs.empty(max_num_seqs, device)
        self.drawn = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self.off = SampleRows.greedy(max_num_seqs, device)
        self._seated: list[int] = []
        self._logits: torch.Tensor | None = None

    def seat(self, row_slots: list[int]) -> None:
        """Sets the slot of each row, if that has changed."""
        if self._seated != row_slots:
            (rows,) = upload(self.rows.device, np.array(row_slots, np.int32))
            self.rows[: len(row_slots)].copy_(rows)
            self._seated = row_slots

    def logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns a copy of `logits` [size, V], in float32, at a fixed address."""
        if self._logits is None:
            shape = len(self.rows), logits.shape[1]
            self._logits = torch.empty(shape, dtype=torch.float32, device=self.rows.device)
        return self._logits[: len(logits)].copy_(logits)


class GpuPasses:
    """`PassRunner` over a model on a GPU.

    shared_reads   None: each row of a decode step reads its whole context by itself
    mixed          the model, and its passes of any shape

    A step in which each sequence computes one token, and the device can draw it, is a graph: one launch.
    """

    exact = False
    trees = False  # siblings would share pages of several tokens

    def __init__(
        self,
        mixed: MixedPasses,
        drawing: Drawing,
        *,
        grammars: DeviceGrammars,
        max_steps: int,
        overlaps: bool,
        shared_reads: SharedReads | None,
    ) -> None:
        self.overlaps = overlaps
        self.max_steps = max_steps
        self._mixed = mixed
        self._drawing = drawing
        self.device = device = self._mixed.attention.page_table.device
        max_num_seqs = len(self._mixed.attention.page_table) - 1
        self._shared_reads = shared_reads
        self._warm_ups: list[Callable[[], object]] = []
        self._sizes = graph_sizes(max_num_seqs)
        self._slots = SlotTable(max_num_seqs)
        self._state = DeviceState(max_num_seqs + 1, device)
        self._tensors = _DecodeTensors(max_num_seqs, device)
        self._grammars = grammars
        self._adjustments = DeviceAdjustments(max_num_seqs + 1, grammars.pool.vocab_size, device)
        self._scores = DeviceScores(max_num_seqs, grammars.pool.vocab_size, device, drawing.likeliest)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs every pass that has a graph on padding rows, to compile kernels and capture common graphs.

        The other graphs are left to `prepare`.
        """
        *smaller, largest = self._sizes if self._mixed.replays.captures else self._sizes[-1:]
        with on_device(self.device):
            for step in self._mixed.warm_ups():
                step()
            first, *others = self._decode_kinds()
            for size in (largest, *reversed(smaller)):
                first(size)
            for kind in others:
                kind(largest)
            common, rare = self._draw_kinds()
            for draw in common:
                draw()
            self._warm_ups = [functools.partial(kind, size) for kind in reversed(others) for size in smaller]
            self._warm_ups += rare

    @torch.inference_mode()
    def prepare(self) -> bool:
        if not self._warm_ups:
            return False
        with on_device(self.device):
            self._warm_ups.pop()()
        return bool(self._warm_ups)

    def _decode_kinds(self) -> list[Callable[[int], object]]:
        """Returns decode steps of each kind on padding rows, by their number of rows; the most common first."""

        def warm(shares: bool, size: int) -> PaddedWork[torch.Tensor] | None:
            self._tensors.seat([0] * size)
            return self._shared_reads.nothing() if shares and self._shared_reads is not None else None

        def drawn(kind: _StepKind, shares: bool, size: int) -> None:
            if kind.scored:
                self._scores.seat([0] * kind.scored, size)
            self._draw_step(size, warm(shares, size), kind)

        def scored(shares: bool, size: int) -> None:
            self._logits_step(size, warm(shares, size))

        reads = (False,) if self._shared_reads is None else (False, True)
        draws = [functools.partial(drawn, kind, shares) for kind in _COMMON_KINDS for shares in reads]
        return [*draws, *(functools.partial(scored, shares) for shares in reads)]

    def _draw_kinds(self) -> tuple[list[Callable[[], object]], list[Callable[[], object]]]:
        """Returns draws that the host may request, of each kind that is compiled separately: common, and biased."""

        def draw(params: SamplingParams, masked: int | None) -> None:
            logits = self._logits_step(1, None)
            masks = None if masked is None else np.full((1, -(-logits.shape[1] // 32)), -1, np.int32)
            self.draw(logits.clone(), [Row(params, masked=masked)], masks)

        def kinds(bias: dict[int, float] | None) -> list[Callable[[], object]]:
            greedy, filtered = (
                SamplingParams(temperature=0.0, logit_bias=bias),
                SamplingParams(top_p=0.9, logit_bias=bias),
            )
            return [functools.partial(draw, params, masked) for params in (greedy, filtered) for masked in (None, 0)]

        return kinds(None), kinds({0: 1.0})

    def draws(self, spec: DrawSpec, work: Work) -> bool:
        slot = self._slots.find(work.sequence)
        if spec.adjusts and not self._adjustments.could_hold(spec, slot):
            return False
        if spec.matcher is None:
            return True
        with on_device(self.device):
            place = self._grammars.place(spec.matcher.grammar)
        if place is None:
            return False
        # The state is known here, or on the device, which has followed the unread tokens.
        return work.start < len(work.sequence.tokens) or (slot is not None and slot.place is place)

    @torch.inference_mode()
    def launch(self, plans: Sequence[Plan], specs: Sequence[DrawSpec] | None) -> Pass:
        with on_device(self.device):
            return self._launch(plans, specs)

    def _launch(self, plans: Sequence[Plan], specs: Sequence[DrawSpec] | None) -> Pass:
        plan = plans[0]
        sequences = [work.sequence for work in plan.work]
        slots = self._slots.assign(sequences)
        rows, columns, pages = page_changes(sequences, slots)
        if len(rows):
            try:
                self._mixed.attention.set_pages(rows, columns, pages)
            except BaseException:  # a pass without memory is repeated
                for slot in slots:
                    slot.lease = None
                raise
        if any(work.num_tokens != 1 or not work.samples for work in plan.work):
            return GpuPass(self, plan, slots, self._in_parts(self._forward(plan, slots)))
        size = next(size for size in self._sizes if size >= len(slots))
        asked = asking(specs or ())
        kind = _StepKind.of(specs or (), self._scores.seat(asked, size))
        self._prepare(plan, slots, specs, tables=kind.tables)
        shared = self._shared_reads.update(plan.work, slots) if self._shared_reads is not None else None
        self._tensors.seat([slot.index for slot in slots] + [0] * (size - len(slots)))
        if specs is None:
            logits = self._logits_step(size, shared)
            return GpuPass(self, plan, slots, iter([logits[: len(slots)]]))
        penalised = [index for index, spec in enumerate(specs) if spec.penalised]
        if penalised:
            works = [plan.work[index] for index in penalised]
            self._adjustments.count([slots[i] for i in penalised], works, self._state.last_token, len(plans))
        drawn, scores = [], []
        for _ in plans:
            tokens = self._draw_step(size, shared, kind)[: len(slots)]
            values = self._scores.values[: len(asked)]
            drawn.append(tokens if len(plans) == 1 else tokens.clone())
            if asked:
                scores.append(values if len(plans) == 1 else values.clone())
        for slot in slots:
            slot.position += len(plans)
        self._grammars.launched()
        return DrawnPass(Download(drawn + scores), specs, self.device)

    def _draw_step(self, size: int, shared: PaddedWork[torch.Tensor] | None, kind: _StepKind) -> torch.Tensor:
        return self._mixed.replays.run(("draw", size, kind, shared is None), lambda: self._decode(size, shared, kind))

    def _logits_step(self, size: int, shared: PaddedWork[torch.Tensor] | None) -> torch.Tensor:
        return self._mixed.replays.run(("logits", size, shared is None), lambda: self._score(size, shared))

    def _in_parts(self, hidden: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yields logits of rows [R, hidden_size], at most max_num_seqs at a time: memory for these is reserved."""
        most = self._sizes[-1]
        for start in range(0, len(hidden), most):
            yield self._mixed.model.logits(hidden[start : start + most])

    def _forward(self, plan: Plan, slots: list[Slot]) -> torch.Tensor:
        """Returns the model's last states at the plan's logit rows, [R, hidden_size]."""
        order = list(range(len(slots)))
        shared: tuple[SharedPrefix, ...] = ()
        if self._shared_reads is not None:
            order, shared = arrange(plan.work, self._mixed.attention.shape.page_size)
        works = [plan.work[index] for index in order]
        indices = np.array([slots[index].index for index in order], np.int32)
        batch = build_batch(Plan(works, [], []), self._mixed.attention.shape.page_size, indices, shared)
        logit_rows, fed, fed_slots = upload(
            self.device,
            _in_plan_order(batch.logit_rows, works, order),
            batch.fed,
            indices[batch.fed_rows].astype(np.int64),
        )

        def feed(tokens: torch.Tensor) -> None:
            if len(batch.fed):
                tokens.index_copy_(0, fed, self._state.last_token.index_select(0, fed_slots))

        return self._mixed.forward(batch, feed).index_select(0, logit_rows)

    def _prepare(self, plan: Plan, slots: list[Slot], specs: Sequence[DrawSpec] | None, *, tables: bool) -> None:
        """Sends the state that the device lacks of the sequences in the step.

        tables    the step uses tables of constraints
        """
        stale: list[tuple[Slot, Work]] = []
        for work, slot in zip(plan.work, slots, strict=True):
            if slot.position != work.start or slot.epoch != work.epoch:
                stale.append((slot, work))
                slot.position, slot.epoch = work.start, work.epoch
        if specs is not None and tables:
            self._prepare_grammars(slots, specs, {slot for slot, _ in stale})
        if stale:
            tokens = [work.sequence.tokens[work.start] for _, work in stale]
            self._state.put([slot for slot, _ in stale], tokens, [work.start for _, work in stale])
        news = [(slot, spec) for slot, spec in zip(slots, specs or (), strict=specs is not None) if slot.spec != spec]
        if news:
            self._state.put_specs([slot for slot, _ in news], [spec for _, spec in news])
            self._adjustments.put([slot for slot, _ in news], [spec for _, spec in news])
        for slot, spec in news:
            slot.spec = spec

    def _prepare_grammars(self, slots: list[Slot], specs: Sequence[DrawSpec], stale: AbstractSet[Slot]) -> None:
        """Sends tables and states of new sequences, and of those that were rewound."""
        news = []
        for slot, spec in zip(slots, specs, strict=True):
            place = self._grammars.place(spec.matcher.grammar) if spec.matcher is not None else None
            changed = slot in stale if place is not None else slot.index in self._grammars.constrained
            if slot.place is not place or changed:
                news.append((slot, spec.matcher))
        if news:
            self._grammars.put([slot for slot, _ in news], [matcher for _, matcher in news])

    def _hidden(self, size: int, shared: PaddedWork[torch.Tensor] | None) -> torch.Tensor:
        """Returns the model's last states for the tokens drawn last in the first `size` rows, [size, hidden_size]."""
        rows, inputs = self._tensors.rows[:size], self._tensors.inputs.first(size)
        state, attention = self._state, self._mixed.attention
        page_size = attention.shape.page_size
        self._drawing.begin(rows, state.last_token, state.position, attention.page_table, page_size, inputs)
        attention.plan_decode(DecodeRows(rows, inputs.context_len, inputs.write_slot, shared))
        return self._mixed.model.forward(inputs.tokens, inputs.positions, attention)

    def _score(self, size: int, shared: PaddedWork[torch.Tensor] | None) -> torch.Tensor:
        """Returns logits for one more token of each of the first `size` rows; `keep` advances the rows."""
        return self._tensors.logits(self._mixed.model.logits(self._hidden(size, shared), keep_dtype=True))

    def _decode(self, size: int, shared: PaddedWork[torch.Tensor] | None, kind: _StepKind) -> torch.Tensor:
        """Draws one token for each of the first `size` rows, and keeps it for the next step."""
        rows, inputs, state = self._tensors.rows[:size], self._tensors.inputs.first(size), self._state
        drawn = self._tensors.drawn[:size]
        logits = self._mixed.model.logits(self._hidden(size, shared), keep_dtype=True)
        sample_rows = state.sample_rows(rows, inputs.draw_positions, self._tensors.off.select(slice(0, size)))
        found = SampleTables()
        if kind.adjusted:
            sample_rows = replace(sample_rows, **self._adjustments.sample_rows(rows))
            found = self._adjustments.tables
        if kind.tables:
            sample_rows = replace(sample_rows, mask_row=self._grammars.mask_rows(rows))
            found = replace(found, mask=self._grammars.pool.mask)
        lines = self._scores.begin(kind.scored, logits, sample_rows, found) if kind.scored else None
        self._drawing.draw(logits, sample_rows, found, drawn, filters=kind.filters)
        if lines is not None:
            self._scores.end(lines, drawn)
        if kind.tables:
            self._grammars.advance(rows, drawn)
        self._drawing.end(rows, drawn, state.last_token, state.position)
        return drawn

    def draw(
        self, logits: torch.Tensor, rows: Sequence[Row], masks: Masks | None
    ) -> tuple[torch.Tensor, Scores | None]:
        """See torch_sampler.draw_rows."""
        off = self._tensors.off.select(slice(0, len(rows)))
        return draw_rows(self._drawing.draw, logits, rows, masks, off, self._drawing.likeliest)

    def keep(self, plan: Plan, slots: list[Slot], tokens: torch.Tensor, rows: Sequence[Row]) -> None:
        """Stores the tokens drawn from a pass of any shape for the next pass; `tokens` int64 [R].

        Advances the constraints whose tables are on the device.
        """
        picked, kept, positions = [], [], []
        followed: list[tuple[Slot, TableMatcher]] = []
        row = 0
        for work, slot in zip(plan.work, slots, strict=True):
            if work.samples and not work.drafts:
                picked.append(row)
                kept.append(slot.index)
                positions.append(work.stop)
                slot.position, slot.epoch = work.stop, work.epoch
                matcher = rows[row].matcher
                slot.place = None
                if matcher is not None and self._grammars.place(matcher.grammar) is not None:
                    followed.append((slot, matcher))
            elif work.samples:
                slot.position = -1  # the number of right drafts is not known yet
            row += work.logits_stop - work.logits_start
        if not picked:
            return
        source, where, position = upload(
            self.device, np.array(picked, np.int64), np.array(kept, np.int64), np.array(positions, np.int64)
        )
        drawn = tokens.index_select(0, source)
        self._state.last_token.index_copy_(0, where, drawn.clamp(min=0))
        self._state.position.index_copy_(0, where, position)
        if followed:
            self._grammars.put([slot for slot, _ in followed], [matcher for _, matcher in followed])
            places = [kept.index(slot.index) for slot, _ in followed]
            index, own = upload(self.device, np.array(places, np.int64), np.array(kept, np.int32)[places])
            self._grammars.advance(own, drawn.index_select(0, index))
        self._grammars.launched()


class GpuPass:
    """A pass of any shape: tokens are drawn from its logits, in parts, once the host has the parameters."""

    def __init__(self, runner: GpuPasses, plan: Plan, slots: list[Slot], logits: Iterator[torch.Tensor]) -> None:
        self._runner, self._plan, self._slots, self._logits = runner, plan, slots, logits
        self._scores: list[tuple[int, Scores]] = []  # with the first row of each part
        self._download: Download | None = None

    @torch.inference_mode()
    def draw(self, rows: Sequence[Row], masks: Masks | None) -> None:
        if not rows:
            return
        with on_device(self._runner.device):
            parts, start = [], 0
            for logits in self._logits:
                tokens, scores = self._runner.draw(logits, rows[start : start + len(logits)], masks)
                parts.append(tokens)
                if scores is not None:
                    self._scores.append((start, scores))
                start += len(logits)
            tokens = torch.cat(parts)
            self._runner.keep(self._plan, self._slots, tokens, rows)
            values = [torch.cat([scores.values for _, scores in self._scores])] if self._scores else []
            self._download = Download([tokens, *values])

    def read(self) -> list[Draws]:
        if self._download is None:
            return [Draws([], [], [])]
        with on_device(self._runner.device):
            tokens, *values = self._download.wait()
        draws = to_draws(tokens.tolist())
        if values:
            ends = np.cumsum([len(scores.values) for _, scores in self._scores])
            for (start, scores), own in zip(self._scores, np.split(values[0], ends[:-1]), strict=True):
                scores.fill(draws, start, own)
        return [draws]

    def done(self) -> bool:
        return self._download is None or self._download.done()


class DrawnPass:
    """Decode steps whose tokens were drawn on the device.

    download   tokens of each step, and its log-probabilities, if any are requested
    """

    def __init__(self, download: Download, specs: Sequence[DrawSpec], device: torch.device) -> None:
        self._download = download
        self._specs = specs
        self._device = device

    def draw(self, rows: Sequence[Row], masks: Masks | None) -> None:
        raise AssertionError("drawn already")

    def read(self) -> list[Draws]:
        with on_device(self._device):
            found = self._download.wait()
        if not asking(self._specs):
            return [to_draws(tokens.tolist()) for tokens in found]
        steps = [to_draws(tokens.tolist()) for tokens in found[: len(found) // 2]]
        for draws, values in zip(steps, found[len(steps) :], strict=True):
            fill(draws, self._specs, values)
        return steps

    def done(self) -> bool:
        return self._download.done()


def _in_plan_order(
    logit_rows: npt.NDArray[np.int64], works: Sequence[Work], order: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Returns the logit rows of the reordered `works` in the order of the plan."""
    stops = np.cumsum([work.logits_stop - work.logits_start for work in works])
    parts = np.split(logit_rows, stops[:-1])
    place = np.argsort(order)
    return np.concatenate([parts[index] for index in place])
