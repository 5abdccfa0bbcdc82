"""The engine: requests in, one forward pass a step, one event a step and request out. Single-threaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...constrain import Grammar, GrammarCompiler, GrammarError
from ...constrain.matchers.healing import Healer
from ...constrain.spec import GrammarSpec
from ...radix import PrefixCache
from ..protocol.config import EngineConfig
from ..protocol.counters import Counters, EngineStats, ModelInfo
from ..protocol.errors import BoughError, DeviceLostError, EngineStoppedError, ErrorInfo, OverloadedError, RequestError
from ..protocol.request import Request, RequestOutput
from ..runner.runner import DrawSpec, Pass, PassRunner
from ..sampler.random_numbers import derive
from ..sampler.rows import Row
from ..scheduler.scheduler import Advance, Plan, Scheduler, Work
from ..scheduler.sequence import Sequence
from ..scheduler.token_tree import TreeLayout
from ..tokenizer.tokenizer import Tokenizer
from .checks import Checks
from .deferred import LateMasks
from .detokenizer import Detokenizer
from .generation import Generation, Listener
from .json_drafts import Skeletons
from .masks import MaskFiller, MaskJob
from .speculation import Experience, Guesser, PassCosts
from .token_healing import heal
from .validate import check_request

logger = logging.getLogger("bough.engine")

MAX_SLEEP_S = 60.0
MIN_DEVICE_DRAFTS = 8
LATE_MASK_SLEEP_S = 0.0005
"""Between two looks at masks that are late, while there is nothing else to do."""


@dataclass
class _Flight:
    """Steps that were launched and not read yet. All plans are of the same sequences, in the same order.

    first_row   of each work, its first row of logits
    right       of each work with a grammar, how many of its rows had a right mask
    """

    plans: list[Plan]
    generations: list[Generation]
    launched: Pass
    started: float
    drawn: bool
    first_row: list[int] = field(default_factory=list)
    right: dict[int, int] = field(default_factory=dict)


class Engine:
    """Composed of its parts by the caller; `load_torch.load_engine` is the one place that builds them.

    `wake` is called from another thread when a compiled grammar is ready, or a finished value has been checked, so that
    a sleeping loop can go on. A mask is waited for as long as most of a pass takes after the pass, but at least
    `mask_patience_s`; a sequence whose mask is late sits a step out.
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
        self.info = info
        self.tokenizer = tokenizer
        self.counters = Counters()
        self.wake: Callable[[], None] = lambda: None
        self._config = config
        self._runner = runner
        self._grammars = grammars
        self.warm, self.prepare = grammars.warm, runner.prepare
        self._clock = clock
        self._cache = PrefixCache(info.num_pages, info.page_size, sharing=config.enable_prefix_caching)
        limits = config.limits(info.device)
        self._max_live = config.max_waiting + limits.max_num_seqs
        self._scheduler = Scheduler(self._cache, limits)
        self._healer = Healer(grammars.tokens)
        self._masks = MaskFiller(info.vocab_size)
        self._mask_patience_s = mask_patience_s
        self._late = LateMasks(self._masks)
        self._checks = Checks(grammars.check, lambda: self.wake())
        self._pass_s = 0.0
        self._speculates = config.speculation == "auto" and runner.exact and not runner.overlaps
        self._costs, self._experience = PassCosts(), Experience(self.counters)
        self._skeletons = Skeletons(grammars.tokens.vocabulary.tokens)
        self._live: dict[str, Generation] = {}
        self._compiling: dict[str, Future[Grammar]] = {}
        self._finished: dict[str, int] = {}
        self._flight: _Flight | None = None
        self._num_steps = 1
        self._closed = False

    # Requests

    def submit(self, request: Request, listener: Listener) -> None:
        """Takes a request; `listener` gets its events, from within `step` or `abort`, the last with `finish`.

        Raises:
            RequestError: the request is wrong. Nothing was taken.
            OverloadedError: the queue is full.
        """
        if self._closed:
            raise EngineStoppedError("the engine has stopped")
        request = heal(request, self.tokenizer)
        max_tokens = self._check(request)
        now = self._clock()
        sequence = Sequence(
            id=request.id,
            tokens=list(request.prompt),
            num_prompt=len(request.prompt),
            arrival=self.counters.requests,
            namespace=request.namespace,
            priority=request.priority,
            limit=len(request.prompt) + max_tokens if request.score_from is None else len(request.prompt),
            score_from=request.score_from,
            tree=None if request.tree is None else TreeLayout(len(request.prompt), request.tree),
            deadline=None if request.timeout_s is None else now + request.timeout_s,
        )
        params = request.sampling
        generation = Generation(
            request,
            sequence,
            Detokenizer(
                self.tokenizer,
                stop=params.stop_strings,
                stop_regex=params.stop_regex,
                include_stop=params.include_stop,
                skip_special_tokens=params.skip_special_tokens,
                num_hidden_bytes=len(request.prefix),
                at_end=not request.stream,
            ),
            max_tokens=max_tokens,
            seed=params.seed if params.seed is not None else derive(self._config.seed, self.counters.requests + 1),
            eos_ids=self.tokenizer.eos_ids,
            listener=listener,
            now=now,
        )
        if self._speculates:
            generation.guesser = Guesser(self._experience, self._skeletons.start(request))
        compiling = None if request.grammar is None else self._compile(request.grammar)
        self.counters.requests += 1
        self._live[request.id] = generation
        if compiling is None:
            generation.matcher = self._healer.after(request.prefix, None)
            self._scheduler.add(sequence)
            return
        self._compiling[request.id] = compiling
        compiling.add_done_callback(lambda _: self.wake())

    @property
    def takes_trees(self) -> bool:
        """Prompts may end as trees of tokens."""
        return self._runner.trees

    def _compile(self, spec: GrammarSpec) -> Future[Grammar]:
        try:
            return self._grammars.submit(spec)
        except (TypeError, ValueError) as error:  # text that is not Unicode, for one
            message = f"the constraint cannot be read: {error}"
            raise RequestError(message, code="invalid_grammar", param="grammar") from error

    def _check(self, request: Request) -> int:
        """Refuses what cannot run; returns the bound on generated tokens."""
        if request.id in self._live:
            raise RequestError(f"a request with id {request.id!r} is running already", param="id")
        if len(self._live) >= self._max_live:
            raise OverloadedError(f"{len(self._live)} requests are waiting or running, which is the limit")
        if request.tree is not None and not self.takes_trees:
            raise RequestError("this engine takes no trees of tokens", param="tree")
        return check_request(request, self.info)

    def abort(self, request_id: str) -> None:
        """Ends a request with reason "abort". Unknown ids are ignored."""
        generation = self._live.get(request_id)
        if generation is not None and (generation.finish is None or self._checks.drop(generation)):
            self._emit(generation, generation.end(self._clock(), "abort"))

    @property
    def idle(self) -> bool:
        """Nothing can be computed now (grammars may still be compiling)."""
        busy = self._flight is not None or not self._scheduler.idle
        return not busy and not self._checks.any_done and not any(f.done() for f in self._compiling.values())

    def sleep_s(self) -> float | None:
        """How long an idle engine may sleep if nothing happens: until the first deadline of what is being compiled."""
        deadlines = [self._live[request_id].sequence.deadline for request_id in self._compiling]
        first = min((deadline for deadline in deadlines if deadline is not None), default=None)
        return None if first is None else min(max(first - self._clock(), 0.0), MAX_SLEEP_S)

    def wait_for_grammar(self, timeout_s: float) -> None:
        """Sleeps until a grammar is compiled or a value checked, if any is."""
        futures: list[Future[Any]] = [*self._compiling.values(), *self._checks.futures]
        wait(futures, timeout_s, return_when=FIRST_COMPLETED)

    # Steps

    def step(self) -> None:
        """Admits what is ready, launches a pass, reads the one before it, and sends the events that gives rise to.

        On a device that does not overlap the pass is read in the same step.

        Raises:
            DeviceLostError: the device computes no more; what is still live ends when the engine is closed.
        """
        started = self._clock()
        self._admit_compiled(started)
        for generation, output in self._checks.take_done():
            self._emit(generation, output)
        self._late.free()
        plan = self._scheduler.schedule(started)
        for sequence in plan.expired:
            self._expire(sequence.id, started)
        # Who heard of that may have ended others, which were planned.
        work = [item for item in plan.work if item.live]
        before, self._flight = self._flight, None
        outputs: list[tuple[Generation, RequestOutput]] = []
        failed: tuple[Plan, Exception] | None = None
        if work:
            plan = Plan(work, plan.preempted, plan.expired)
            try:
                self._flight = self._launch(plan, before, started, outputs)
            except Exception as error:
                logger.exception("a forward pass failed")
                failed = plan, error
        elif before is not None:
            outputs += self._read(before)
        elif self._late:
            time.sleep(LATE_MASK_SLEEP_S)
        if self._flight is not None and not self._runner.overlaps:
            flight, self._flight = self._flight, None
            outputs += self._read(flight)
        for generation, output in outputs:
            self._emit(generation, output)
        if failed is not None:
            self._fail(*failed)

    def _admit_compiled(self, now: float) -> None:
        for request_id, future in list(self._compiling.items()):
            generation = self._live.get(request_id)
            if generation is None:  # who heard of another one's end has ended it
                continue
            if not future.done():
                deadline = generation.sequence.deadline
                if deadline is not None and now >= deadline:
                    self._expire(request_id, now)
                continue
            del self._compiling[request_id]
            try:
                grammar = future.result()
                generation.receipt = grammar.receipt
                generation.matcher = self._healer.after(generation.request.prefix, grammar.matcher())
            except GrammarError as error:
                info = ErrorInfo(code=error.code, message=str(error), param="grammar")
                self._emit(generation, generation.end(now, "error", info))
            except Exception:
                logger.exception("a constraint could not be compiled")
                info = ErrorInfo(code="internal_error", message="the constraint could not be compiled")
                self._emit(generation, generation.end(now, "error", info))
            else:
                self._scheduler.add(generation.sequence)

    def _expire(self, request_id: str, now: float) -> None:
        generation = self._live.get(request_id)
        if generation is not None:
            error = ErrorInfo(code="generation_timeout", message=f"not done within {generation.request.timeout_s:g} s")
            self._emit(generation, generation.end(now, "error", error))

    def _launch(
        self, plan: Plan, before: _Flight | None, started: float, outputs: list[tuple[Generation, RequestOutput]]
    ) -> _Flight:
        """Launches `plan`; meanwhile reads the flight before it into `outputs`, and fills the masks."""
        generations = [self._live[work.sequence.id] for work in plan.work]
        for generation in generations:
            generation.admitted(started)
        known = self._device_specs(plan.work, generations)
        drawn = known is not None
        plans = [plan]
        if drawn:
            plans += self._scheduler.repeat(plan, self._steps_ahead(before) - 1)
        jobs = {} if drawn or before is not None else self._mask_jobs(plan.work, generations)
        filling = self._masks.start(list(jobs.values()))
        try:
            launched = self._runner.launch(plans, known)
        except Exception:
            # One that the pass before ends now must not publish what this pass was to compute.
            for work in plan.work:
                work.sequence.num_computed = min(work.sequence.num_computed, work.start)
            raise
        finally:
            if before is not None:
                outputs += self._read(before)
        forwarded = self._clock()
        flight = _Flight(plans, generations, launched, started, drawn)
        if drawn:
            flight.first_row = list(range(len(plan.work)))
            return flight
        if before is not None:  # what it drew had to be accepted first
            jobs = self._mask_jobs(plan.work, generations)
            filling = self._masks.start(list(jobs.values()))
        if filling is not None:
            # A device that is asked ahead takes about as long as the last time.
            expected_s = max(forwarded - started, self._pass_s if self._runner.overlaps else 0.0)
            late = self._masks.finish(filling, max(0.8 * expected_s, self._mask_patience_s))
            for index in [index for index, job in jobs.items() if job in late]:
                self._late.sit_out(generations[index], jobs.pop(index))
        for index, job in jobs.items():
            if job.right is not None:  # one that was late may have been begun with drafts, which are void by now
                flight.right[index] = min(job.right, 1 + len(plan.work[index].drafts))
        masked = self._clock()
        rows: list[Row] = []
        for index, (work, generation) in enumerate(zip(plan.work, generations, strict=True)):
            flight.first_row.append(len(rows))
            rows += generation.rows(work, jobs[index].first if index in jobs else None)
        launched.draw(rows, filling.rows if filling is not None else None)
        self.counters.forward_seconds += forwarded - started
        self.counters.mask_seconds += masked - forwarded
        self.counters.sample_seconds += self._clock() - masked
        return flight

    def _device_specs(self, work: list[Work], generations: list[Generation]) -> list[DrawSpec] | None:
        """How the device is to draw by itself; None if it cannot draw all of `work`."""
        specs = []
        for item, generation in zip(work, generations, strict=True):
            if self._runner.max_steps == 1:
                return None
            spec = generation.spec(item, self._runner.max_steps)
            if spec is None or not self._runner.draws(spec, item):
                return None
            specs.append(spec)
        return specs

    def _steps_ahead(self, before: _Flight | None) -> int:
        """Steps to launch at once: more while the device is found idle, one while somebody waits to be admitted."""
        if self._scheduler.waiting or self._compiling:
            self._num_steps = 1
        elif before is not None and before.drawn and before.launched.done():
            self._num_steps = min(2 * self._num_steps, self._runner.max_steps)
        return self._num_steps

    def _mask_jobs(self, work: list[Work], generations: list[Generation]) -> dict[int, MaskJob]:
        """By index into `work`."""
        jobs: dict[int, MaskJob] = {}
        for index, (item, generation) in enumerate(zip(work, generations, strict=True)):
            matcher = generation.matcher
            if matcher is None or not item.samples or not item.live or matcher.free:
                continue
            jobs[index] = self._late.resume(generation, matcher, item.drafts)
        return jobs

    def _read(self, flight: _Flight) -> list[tuple[Generation, RequestOutput]]:
        """Waits for what was drawn, and takes it in."""
        try:
            draws_of = flight.launched.read()
        except Exception as error:
            logger.exception("a forward pass failed")
            self._fail(flight.plans[0], error)
            return []
        now = self._clock()
        outputs: list[tuple[Generation, RequestOutput]] = []
        for plan, draws in zip(flight.plans, draws_of, strict=True):
            advances: list[Advance] = []
            for index, (work, generation) in enumerate(zip(plan.work, flight.generations, strict=True)):
                if not work.live:  # ended, or put back to wait, since it was launched
                    advances.append(Advance())
                    continue
                advance, output = generation.take(work, draws, flight.first_row[index], flight.right.get(index), now)
                advances.append(advance)
                if generation.undecided is not None:
                    self._late.foresee(generation, self._grammars.foresee)
                if output is not None:
                    outputs.append((generation, output))
            self._scheduler.apply(plan, advances)
            if self._speculates and all(work.samples and work.num_tokens == 1 + len(work.drafts) for work in plan.work):
                num_drawn = sum(len(advance.tokens) for advance in advances)
                self._costs.observe(plan.num_tokens, num_drawn, self._clock() - flight.started)
            self.counters.steps += 1
            self.counters.computed_tokens += plan.num_tokens
        self._propose(flight)
        self._pass_s = self._clock() - flight.started
        self.counters.step_seconds += self._pass_s
        return outputs

    def _propose(self, flight: _Flight) -> None:
        """Drafts for the pass after `flight`, which has been read."""
        price = self._costs.price(len(self._scheduler.running)) if self._speculates else 1.0
        for work, generation in zip(flight.plans[-1].work, flight.generations, strict=True):
            if work.samples and work.live and not work.sequence.blocked:
                # Few drafts are not worth a pass that the device cannot draw by itself.
                by_itself = self._runner.max_steps > 1 and generation.table_matcher is not None
                at_least = MIN_DEVICE_DRAFTS if by_itself else 1
                work.sequence.drafts = generation.propose(price, at_least if self._config.jump_forward else None)

    def _fail(self, plan: Plan, error: Exception) -> None:
        """A pass failed: its sequences end with an error, all others go on.

        Raises:
            DeviceLostError: `error`, after which no other pass could run.
        """
        info = ErrorInfo(code="internal_error", message="the forward pass failed")
        if isinstance(error, BoughError):
            info = ErrorInfo(code=error.code, message=error.message)
        for work in plan.work:
            work.sequence.rewind(0)  # what this pass wrote is not to be shared
        for work in plan.work:
            generation = self._live.get(work.sequence.id)
            if generation is not None and generation.sequence is work.sequence:
                self._emit(generation, generation.end(self._clock(), "error", info))
        if isinstance(error, DeviceLostError):
            raise error

    def _emit(self, generation: Generation, output: RequestOutput) -> None:
        request_id, finish = generation.request.id, output.finish
        if self._live.get(request_id) is not generation:  # who heard of another one's event has ended it
            return
        if finish is not None and generation.must_be_checked:
            self._checks.begin(generation, finish)
            output, finish = msgspec.structs.replace(output, finish=None), None
        if finish is not None:
            del self._live[request_id]
            compiling = self._compiling.pop(request_id, None)
            if compiling is not None and compiling not in self._compiling.values():
                self._grammars.abandon(compiling)
            self._scheduler.remove(generation.sequence)
            self._finished[finish.reason] = self._finished.get(finish.reason, 0) + 1
            self.counters.prompt_tokens += finish.usage.prompt_tokens
            self.counters.cached_tokens += finish.usage.cached_tokens
            self.counters.generated_tokens += finish.usage.completion_tokens
            self.counters.forced_tokens += finish.usage.forced_tokens
        try:
            generation.listener(output)
        except Exception:
            logger.exception("who listens to request %s failed", request_id)
            self.abort(request_id)

    # Around it

    def flush_cache(self) -> bool:
        """Empties the prefix cache; False while requests are live."""
        if self._live:
            return False
        self._cache.flush()
        return True

    def stats(self) -> EngineStats:
        counts, totals = self._cache.counts(), self.counters
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting) + len(self._compiling),
            num_pages=counts.num_pages,
            free_pages=counts.free,
            cached_pages=counts.cached,
            locked_pages=counts.locked + counts.private,
            steps_total=totals.steps,
            requests_total=totals.requests,
            finished_total=dict(self._finished),
            prompt_tokens_total=totals.prompt_tokens,
            cached_tokens_total=totals.cached_tokens,
            computed_tokens_total=totals.computed_tokens,
            generated_tokens_total=totals.generated_tokens,
            forced_tokens_total=totals.forced_tokens,
            guessed_tokens_total=totals.guessed_tokens,
            right_guesses_total=totals.right_guesses,
            preemptions_total=self._scheduler.num_preemptions,
            evicted_tokens_total=counts.evicted_tokens_total,
            grammars_compiled_total=self._grammars.compiled,
            grammar_cache_hits_total=self._grammars.cache_hits,
            step_seconds_total=totals.step_seconds,
            forward_seconds_total=totals.forward_seconds,
            mask_seconds_total=totals.mask_seconds,
            sample_seconds_total=totals.sample_seconds,
        )

    def close(self) -> None:
        """Ends every live request with an error and stops the engine's threads; no more is taken."""
        self._closed = True
        error = ErrorInfo(code="engine_dead", message="the engine has stopped")
        for generation in list(self._live.values()):
            self._emit(generation, generation.end(self._clock(), "error", error))
        self._masks.close()
        self._grammars.close()
