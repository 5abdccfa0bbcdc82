"""The engine: schedules requests, runs one forward pass a step, and sends their outputs. Single-threaded."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec

from ...constrain import GrammarCompiler
from ...radix import PrefixCache
from ..protocol.config import EngineConfig
from ..protocol.counters import Counters, EngineStats, ModelInfo
from ..protocol.errors import BoughError, DeviceLostError, EngineStoppedError, ErrorInfo, ModelError, to_info
from ..protocol.request import Finish, Request, RequestOutput
from ..protocol.sampling_params import SamplingParams
from ..runner.runner import DrawSpec, Pass, PassRunner
from ..sampler.rows import Row
from ..scheduler.scheduler import Advance, Plan, Scheduler, Sequence, Standing, Work
from ..tokenizer.tokenizer import Tokenizer
from .admission import Admission
from .checks import Checks
from .generation import Generation, Listener
from .masks import LATE_MASK_SLEEP_S, MaskStage, StepMasks
from .speculation import DraftStage
from .step_size import Patience, StepSize

logger = logging.getLogger("bough.engine")

STEP_PATIENCE_S = 0.02
"""Time per step, for all rows, to search for ways to the grammar's end near token limits; other threads do the rest."""
MAX_FAILED_PASSES = 8
"""Consecutive failed passes, over at least `MAX_FAILING_S`, after which the engine gives up: a new process may succeed
where this one no longer does."""
MAX_FAILING_S = 10.0

Outputs = list[tuple[Generation, RequestOutput]]


@dataclass
class _LaunchedSteps:
    """Steps that were launched and have not been read. All plans are of the same sequences, in the same order.

    started     time of the launch, by the engine's clock
    drawn       true if the device draws the tokens by itself
    masks       masks of the step, unless the device draws by itself; None until the steps before it have been read
    expected_s  expected seconds of the steps
    first_row   index of each work's first row of logits
    """

    plans: list[Plan]
    generations: list[Generation]
    launched: Pass
    started: float
    drawn: bool
    masks: StepMasks | None
    expected_s: float
    first_row: list[int] = field(default_factory=list)


@dataclass
class _Passes:
    """The steps in flight, and the failures before them: `num_failed` in a row, the first at `failing_since`."""

    flight: _LaunchedSteps | None = None
    num_failed: int = 0
    failing_since: float = 0.0

    def failed(self, now: float) -> bool:
        """Counts a failed pass. Returns true once the engine should give up."""
        if not self.num_failed:
            self.failing_since = now
        self.num_failed += 1
        return self.num_failed >= MAX_FAILED_PASSES and now - self.failing_since >= MAX_FAILING_S


class Engine:
    """Runs requests in steps on the caller's thread. Its parts are built by `runtime.load`; see `MaskStage` for
    `mask_patience_s`.

    wake    called from another thread when a grammar or a stop pattern has been compiled, or a finished value checked,
            to wake a sleeping loop
    """

    def __init__(
        self,
        *,
        config: EngineConfig,
        info: ModelInfo,
        runner: PassRunner,
        tokenizer: Tokenizer,
        grammars: GrammarCompiler,
        clock: Callable[[], float],
        mask_patience_s: float = 0.002,
    ) -> None:
        limits = config.limits(info.device)
        self.info = info = msgspec.structs.replace(info, max_requests=config.max_waiting + limits.max_num_seqs)
        self.tokenizer = tokenizer
        self.counters = Counters()
        self.wake: Callable[[], None] = lambda: None
        self._runner = runner
        self._grammars = grammars
        self._clock = clock
        cache = PrefixCache(
            info.num_pages, info.page_size, sharing=config.enable_prefix_caching, weights=config.tenant_weights
        )
        self._scheduler = Scheduler(cache, limits, config.tenant_weights)
        self._size = StepSize(config, limits)
        self._admission = Admission(
            config, info, tokenizer, grammars, self.counters, trees=runner.trees, wake=lambda: self.wake()
        )
        self._masks = MaskStage(info.vocab_size, self._scheduler, mask_patience_s)
        self._drafts = DraftStage(
            config, runner, self._scheduler, self.counters, self._size.times, grammars.tokens.vocabulary.tokens
        )
        self._checks = Checks(grammars.check, grammars.abandon, lambda: self.wake())
        self._live: dict[str, Generation] = {}
        self._passes = _Passes()

    # Requests

    def submit(self, request: Request, listener: Listener, *, healable: int | None = None) -> int:
        """Submits a request. `listener` gets its outputs from within `step`, `abort` or `close`; the last has `finish`.

        Returns the number of tokens, at most `healable`, that token healing takes back from the end of the prompt if
        the request asks for it. They are generated again with what follows them.

        Raises:
            RequestError: the request is invalid. Nothing was admitted.
            OverloadedError: too many requests or prompt tokens wait or run, in all or for this key; or the machine has
                no threads left.
            EngineStoppedError: the engine was closed.
        """
        generation = self._admission.take(request, listener, self._live, self._clock(), healable)
        self._drafts.begin(generation)
        self._live[request.id] = generation
        if request.id not in self._admission.compiling:
            self._scheduler.add(generation.sequence)
        return len(request.prompt) - len(generation.request.prompt)

    @property
    def takes_trees(self) -> bool:
        """True if prompts may end as trees of tokens."""
        return self._runner.trees

    def abort(self, request_id: str) -> None:
        """Ends a request with reason "abort". Unknown ids, and requests that have ended, are ignored."""
        generation = self._live.get(request_id)
        if generation is not None and (generation.finish is None or self._checks.drop(generation)):
            self._emit(generation, generation.end(self._clock(), "abort"))

    @property
    def idle(self) -> bool:
        """True if `step` has nothing to do now; grammars may still be compiling, and values being checked."""
        busy = self._passes.flight is not None or not self._scheduler.idle
        busy = busy or (bool(self._checks.under_way) and self._checks.any_done)
        return not busy and not self._admission.any_compiled

    @property
    def expected_s(self) -> float:
        """Expected seconds of the passes of the current step, for which a watchdog allows."""
        return self._size.under_way_s

    @expected_s.setter
    def expected_s(self, seconds: float) -> None:
        self._size.under_way_s = seconds

    def sleep_s(self) -> float | None:
        """Returns the seconds until the first deadline of the requests that wait for a compilation or a check.

        An idle engine may sleep that long unless it is woken. None: there is no deadline.
        """
        held = (*(self._live[request_id] for request_id in self._admission.compiling), *self._checks.under_way)
        first = min((generation.sequence.standing.deadline for generation in held), default=math.inf)
        return None if first == math.inf else max(first - self._clock(), 0.0)

    def wait_for_grammar(self, timeout_s: float) -> None:
        """Waits, at most `timeout_s`, until a compilation or a check ends; returns at once if there is none."""
        compiling = [future for one in self._admission.compiling.values() for future in one.futures]
        futures: list[Future[Any]] = [*compiling, *self._checks.futures]
        wait(futures, timeout_s, return_when=FIRST_COMPLETED)

    # Steps

    def step(self) -> None:
        """Admits requests, launches the next pass, reads the one before it, and sends the resulting outputs.

        If the runner does not overlap passes, the new pass is read in the same step. If there is nothing to launch, the
        step reads the pass in flight, or pauses briefly for late masks.

        Raises:
            DeviceLostError: the device no longer computes; requests that are still live end when the engine is closed.
            EngineStoppedError: all passes have failed for some time.
        """
        now = self._clock()
        self._size.under_way_s = 0.0 if self._passes.flight is None else self._passes.flight.expected_s
        self._admit(now)
        outputs: Outputs = []
        plan = self._schedule(now, outputs)
        before, self._passes.flight = self._passes.flight, None
        failures: list[tuple[Plan, Exception]] = []
        if plan.work:
            try:
                self._passes.flight = self._launch(plan, before, now, outputs)
            except MemoryError as error:
                failures += self._run_in_parts(plan, error, outputs)
            except Exception as error:
                logger.exception("a forward pass failed")
                failures.append((plan, error))
        elif before is not None:
            outputs += self._read(before)
        elif self._masks.any_deferred:
            time.sleep(LATE_MASK_SLEEP_S)
        if self._passes.flight is not None and not self._runner.overlaps:
            flight, self._passes.flight = self._passes.flight, None
            outputs += self._read(flight)
        for generation, output in outputs:
            self._emit(generation, output)
        for failed, failure in failures:
            self._fail(failed, failure)

    def _admit(self, now: float) -> None:
        """Continues the requests whose grammar is compiled, whose value is checked, or whose late mask is ready.

        Ends those that still wait for one of these after their deadline.
        """
        if self._admission.compiling:
            for generation, ended in self._admission.compiled(self._live, now):
                if ended is not None:
                    self._emit(generation, ended)
                else:
                    self._scheduler.add(generation.sequence)
        if self._checks.under_way:
            for generation, output in chain(self._checks.take_done(), self._checks.take_late(now)):
                self._emit(generation, output)
        self._masks.resume_ready()

    def _schedule(self, now: float, outputs: Outputs) -> Plan:
        """Plans this step, and adds the terminal events of requests whose deadline has passed to `outputs`.

        They are sent only after the launch: a listener may end other planned requests, whose tokens would then be
        published although they were not computed.
        """
        scheduler = self._scheduler
        plan = scheduler.schedule(now, self._size.prompt_tokens(scheduler, now))
        for sequence in plan.expired:
            generation = self._live.get(sequence.id)
            if generation is not None:
                outputs.append((generation, generation.expire(now)))
        return plan

    def _launch(self, plan: Plan, before: _LaunchedSteps | None, now: float, outputs: Outputs) -> _LaunchedSteps:
        """Launches `plan`; meanwhile reads the flight before it into `outputs`, fills the masks, and begins to draw."""
        plans, masks = [plan], None
        try:
            generations = [self._live[work.sequence.id] for work in plan.work]
            for generation in generations:
                generation.admitted(now)
            specs = self._device_specs(plan.work, generations)
            if specs is not None:
                plans += self._scheduler.repeat(plan, self._steps_ahead(before) - 1)
            elif before is None:  # masks depend on the tokens of an unread flight; without one they are filled now
                masks = self._masks.start(plan.work, generations)
            expected_s = self._size.expected_s(plans)
            self._size.under_way_s += expected_s
            launched = self._runner.launch(plans, specs)
        except Exception:
            self._scheduler.cancel(plan)
            if masks is not None:
                self._masks.abandon(masks)
            raise
        finally:  # even if this fails, or the sequences of that flight alone would never end
            if before is not None:
                outputs += self._read(before)
        flight = _LaunchedSteps(plans, generations, launched, now, specs is not None, masks, expected_s)
        self._draw(flight)
        return flight

    def _draw(self, flight: _LaunchedSteps) -> None:
        """Waits for the masks of `flight` and has tokens drawn under them, unless the device draws by itself."""
        work, generations = flight.plans[0].work, flight.generations
        if flight.drawn:
            flight.first_row = list(range(len(work)))
            return
        forwarded = self._clock()
        masks = flight.masks = flight.masks or self._masks.start(work, generations)
        self._masks.finish(masks, forwarded - flight.started)
        masked = self._clock()
        rows: list[Row] = []
        for index, (item, generation) in enumerate(zip(work, generations, strict=True)):
            flight.first_row.append(len(rows))
            rows += generation.rows(item, masks.first(index))
        flight.launched.draw(rows, masks.rows)
        self.counters.seconds["forward"] += forwarded - flight.started
        self.counters.seconds["mask"] += masked - forwarded
        self.counters.seconds["sample"] += self._clock() - masked

    def _device_specs(self, work: list[Work], generations: list[Generation]) -> list[DrawSpec] | None:
        """Returns the rules by which the device draws by itself; None if it cannot draw all of `work`."""
        specs = []
        for item, generation in zip(work, generations, strict=True):
            if self._runner.max_steps == 1:
                return None
            spec = generation.spec(item, self._runner.max_steps)
            if spec is None or not self._runner.draws(spec, item):
                return None
            specs.append(spec)
        return specs

    def _steps_ahead(self, before: _LaunchedSteps | None) -> int:
        return self._size.num_steps(
            self._runner.max_steps,
            anybody_waits=bool(self._scheduler.waiting.lines or self._admission.compiling),
            found_idle=before is not None and before.drawn and before.launched.done(),
        )

    def _run_in_parts(self, plan: Plan, error: MemoryError, outputs: Outputs) -> list[tuple[Plan, Exception]]:
        """Repeats a pass that ran out of memory in halves, and halves again each part that runs out of memory.

        Returns the plans that still fail, each with its error: those of a single token that runs out of memory, and
        those that fail for another reason. Their sequences end.
        """
        logger.warning("no memory for a pass of %d tokens, which is made again in parts: %s", plan.num_tokens, error)
        self._size.shrink(plan.num_tokens)
        self._scheduler.take_back(plan)
        whole = [(work.sequence, work.num_tokens - len(work.drafts)) for work in plan.work]
        parts = _halves(whole) or [whole]
        failures: list[tuple[Plan, Exception]] = []
        while parts:
            part = parts.pop(0)
            again = self._scheduler.replan(part)
            if not again.work:
                continue
            self.counters.retried_passes += 1
            try:
                outputs += self._read(self._launch(again, None, self._clock(), outputs))
            except MemoryError as failure:
                self._scheduler.take_back(again)
                smaller = _halves(part)
                parts = smaller + parts
                if not smaller:
                    failures.append((again, failure))
            except Exception as failure:
                logger.exception("a forward pass failed")
                failures.append((again, failure))
        return failures

    def _read(self, flight: _LaunchedSteps) -> Outputs:
        """Waits for the draws of `flight` and returns the outputs; proposes drafts for the next pass.

        If the pass failed, its sequences end.
        """
        try:
            draws_of = flight.launched.read()
        except Exception as error:
            logger.exception("a forward pass failed")
            self._fail(flight.plans[0], error)
            return []
        self._passes.num_failed = 0
        now, patience = self._clock(), Patience(STEP_PATIENCE_S)
        outputs: Outputs = []
        right, dead_ends = (flight.masks.right, flight.masks.dead_ends) if flight.masks is not None else ({}, {})
        for plan, draws in zip(flight.plans, draws_of, strict=True):
            advances: list[Advance] = []
            for index, (work, generation) in enumerate(zip(plan.work, flight.generations, strict=True)):
                if not work.live:  # ended, or put back to wait, since it was launched
                    advances.append(Advance())
                    continue
                if index in draws.faulty:
                    advance, output = generation.end_poisoned(now)
                elif index in dead_ends:
                    advance, output = generation.end_at(dead_ends[index], now)
                else:
                    advance, output = generation.take(
                        work, draws, flight.first_row[index], right.get(index), now, patience
                    )
                advances.append(advance)
                self._drafts.settle(generation, work, right.get(index), advance.tokens)
                if generation.undecided is not None:
                    self._masks.defer_undecided(generation, self._grammars.foresee)
                if output is not None:
                    outputs.append((generation, output))
            self._scheduler.apply(plan, advances)
            self._drafts.observe(plan, advances, self._clock() - flight.started)
            self.counters.steps += 1
            self.counters.computed_tokens += plan.num_tokens
        self._size.observe(flight.plans, flight.started, self._clock())
        self._drafts.propose(flight.plans[-1], flight.generations)
        seconds = self._clock() - flight.started
        self.counters.seconds["step"] += seconds
        if self._runner.overlaps:
            self._masks.pass_s = seconds
        return outputs

    def _fail(self, plan: Plan, error: Exception) -> None:
        """Ends the sequences of a failed pass with an error; all others go on.

        Raises:
            DeviceLostError: `error`, after which no other pass can run.
            EngineStoppedError: all passes have failed for some time.
        """
        if isinstance(error, BoughError):
            info = to_info(error)
        elif isinstance(error, MemoryError):
            info = ErrorInfo(code="out_of_memory", message="there is too little memory to compute the request")
        else:
            info = ErrorInfo(code="internal_error", message="the forward pass failed")
        self.counters.failed_passes += 1
        self._scheduler.discard(plan)
        for work in plan.work:
            generation = self._live.get(work.sequence.id)
            if generation is not None and generation.sequence is work.sequence:
                self._emit(generation, generation.end(self._clock(), "error", info))
        if isinstance(error, DeviceLostError):
            raise error
        if self._passes.failed(self._clock()):
            raise EngineStoppedError(f"the last {self._passes.num_failed} passes have failed") from error

    def _emit(self, generation: Generation, output: RequestOutput) -> None:
        request_id, finish = generation.request.id, output.finish
        if self._live.get(request_id) is not generation:  # a listener that got another output has ended this request
            return
        if finish is not None and generation.must_be_checked:
            self._checks.begin(generation, finish)
            output, finish = msgspec.structs.replace(output, finish=None), None
        try:
            if finish is not None:
                self._forget(generation, finish)
        finally:  # even if the engine fails here, the listener gets the end
            try:
                generation.listener(output)
            except Exception:
                logger.exception("the listener of request %s failed", request_id)
                self.abort(request_id)

    def _forget(self, generation: Generation, finish: Finish) -> None:
        del self._live[generation.request.id]
        self._admission.drop(generation)
        self._drafts.drop(generation)
        self._masks.drop(generation)
        self._scheduler.remove(generation.sequence)
        self.counters.ended(finish)

    # Lifecycle

    def self_test(self) -> None:
        """Computes one token before any request is served; nothing is kept.

        Raises:
            ModelError: the logits are not finite.
        """
        sequence = Sequence(id="", tokens=[self.tokenizer.bos_id or 0], num_prompt=1, standing=Standing(0))
        self._scheduler.add(sequence)
        plan = self._scheduler.schedule(self._clock())
        try:
            launched = self._runner.launch([plan], None)
            launched.draw([Row(SamplingParams(temperature=0.0), position=1)], None)
            (draws,) = launched.read()
        finally:
            self._scheduler.discard(plan)
            self._scheduler.remove(sequence)
        if draws.faulty or any(draws.poisoned):
            raise ModelError("the model computes numbers that are not finite: its weights, or the dtype, are to blame")

    def warm(self) -> None:
        """Starts to warm up the grammar compiler, so that the first constraint delays no other request."""
        self._grammars.warm()

    def prepare(self) -> bool:
        """Does part of the work that makes later passes faster, while idle. Returns False if none is left."""
        return self._runner.prepare()

    def flush_cache(self) -> bool:
        """Empties the prefix cache; returns False, and does nothing, while requests are live."""
        if self._live:
            return False
        self._scheduler.cache.flush()
        return True

    def stats(self) -> EngineStats:
        counts = self._scheduler.cache.counts()
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting) + len(self._admission.compiling),
            num_pages=counts.num_pages,
            free_pages=counts.free,
            cached_pages=counts.cached,
            locked_pages=counts.locked + counts.private,
            preemptions_total=self._scheduler.num_retractions,
            evicted_tokens_total=counts.evicted_tokens_total,
            grammars_compiled_total=self._grammars.compiled,
            grammar_cache_hits_total=self._grammars.cache_hits,
            **self.counters.totals(),
        )

    def close(self) -> None:
        """Ends every live request with an error and stops the engine's threads; further requests are refused."""
        self._admission.close()
        error = ErrorInfo(code="engine_dead", message="the engine has stopped")
        for generation in list(self._live.values()):
            try:
                self._emit(generation, generation.end(self._clock(), "error", error))
            except BaseException:  # the error that ended the engine may recur
                logger.exception("request %s did not end in order", generation.request.id)
        self._masks.close()
        self._grammars.close()


def _halves(part: list[tuple[Sequence, int]]) -> list[list[tuple[Sequence, int]]]:
    """Returns two halves of the sequences; for one sequence, the first half of its tokens; for one token, nothing."""
    if len(part) > 1:
        middle = len(part) // 2
        return [part[:middle], part[middle:]]
    return [[(sequence, size // 2)] for sequence, size in part if size > 1]
