"""Calls of the model in flight: submits the requests of a Gen or Select, and sends on what they bring."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..engine.engine import Engine
from ..protocol.errors import ErrorInfo, RequestError
from ..protocol.program import Delta, Gen, Piece, Select
from ..protocol.request import UNUSED, Request, RequestOutput
from .branch import Branch, Step
from .calls import Call, GenCall, Result, SelectCall
from .state import Run, State

logger = logging.getLogger("bough.engine")

Ended = Callable[[State, Branch, Step], None]
FailedCall = Callable[[State, Branch, Step, ErrorInfo], None]


class ModelCalls:
    """Makes the calls of one engine. `ended` and `failed` hear of each, from within the engine's step."""

    def __init__(self, engine: Engine, clock: Callable[[], float], ended: Ended, failed: FailedCall) -> None:
        self._engine = engine
        self._clock = clock
        self._ended = ended
        self._failed = failed
        self._max_tree = engine.info.max_request_tokens if engine.takes_trees else None

    def begin(self, state: State, branch: Branch, step: Step) -> None:
        """Raises BoughError: a request is refused; others of the call may run already."""
        run, op = step.stretch, step.item.op
        assert isinstance(run, Run) and isinstance(op, (Gen, Select))
        if not branch.tokens:
            raise RequestError("the branch is empty: there is no text to continue", code="empty_prompt", param="ops")
        call: Call = (
            GenCall(op, branch, self._engine.tokenizer)
            if isinstance(op, Gen)
            else SelectCall(op, branch, self._engine.tokenizer, self._max_tree)
        )
        started = self._clock()
        timeout_s = run.time_left(started, call.timeout_s)
        attempts, kept = branch.attempts, list[str]()  # text that has come, while deltas are not sent
        for index, ask in enumerate(call.asks()):
            request = Request(
                id=f"{state.id}/{state.num_requests}",
                prompt=tuple(ask.prompt),
                sampling=ask.sampling,
                grammar=ask.grammar,
                score_from=ask.score_from,
                tree=ask.tree,
                prefix=ask.prefix,
                namespace=state.namespace,
                timeout_s=timeout_s,
                stream=run.program.deltas or run.program.trace,
            )
            state.num_requests += 1
            run.num_requests += 1

            def listener(output: RequestOutput, index: int = index, continues: bool = ask.continues) -> None:
                if run.over:
                    return
                if output.id not in branch.running:  # it was stopped: there is no value, but what has come is not lost
                    kept.append(call.take(index, output))
                    if not run.program.deltas and branch.attempts == attempts:
                        self._send_text(run, branch, op, kept)
                    return
                if continues and output.cached_tokens is not None:
                    self.send_appended(run, branch, output.cached_tokens)
                try:
                    kept.append(call.take(index, output))
                    self._take(state, branch, step, call, output, started, kept)
                except Exception:
                    logger.exception("a program failed")
                    self._failed(state, branch, step, ErrorInfo(code="internal_error", message="the program failed"))

            self._engine.submit(request, listener)
            branch.running.add(request.id)

    def send_appended(self, run: Run, branch: Branch, num_cached: int | None) -> None:
        """Tells where appended text came from; None: it was never computed."""
        for start, piece in branch.appended:
            if piece.origins is not None:
                continue
            if num_cached is None:
                piece.origins = (UNUSED,) * len(piece.tokens)
            else:
                piece.resolve(start, num_cached)
            assert piece.origins is not None
            if run.program.trace:
                run.listener(
                    Piece(
                        branch=piece.branch,
                        op=piece.op,
                        kind=piece.kind,
                        role=piece.role,
                        texts=tuple(self._engine.tokenizer.texts(piece.tokens)),
                        origins=piece.origins,
                    )
                )
        branch.appended = []

    def send_unused(self, state: State, run: Run) -> None:
        """The program is over: tells of appended text that was never computed."""
        for branch in state.branches.values():
            self.send_appended(run, branch, None)
        last = Branch(0, appended=state.untold)
        self.send_appended(run, last, None)

    def _take(
        self,
        state: State,
        branch: Branch,
        step: Step,
        call: Call,
        output: RequestOutput,
        started: float,
        kept: list[str],
    ) -> None:
        run, op = step.stretch, step.item.op
        assert isinstance(run, Run) and isinstance(op, (Gen, Select))
        failed = output.finish is not None and output.finish.error is not None
        if run.program.deltas or failed:
            self._send_text(run, branch, op, kept)
        elif not run.begun and output.finish is None:
            run.listener(Delta(branch.id, op.name, ""))
        run.begun = True
        if output.finish is not None:
            branch.running.discard(output.id)
            run.usage += output.finish.usage
            if output.finish.error is not None:
                self._failed(state, branch, step, output.finish.error)
                return
        if not branch.running:
            self._end(state, run, branch, op, call.end(), started)
            self._ended(state, branch, step)

    def _send_text(self, run: Run, branch: Branch, op: Gen | Select, kept: list[str]) -> None:
        text = "".join(kept)
        kept.clear()
        if text:
            run.listener(Delta(branch.id, op.name, text))

    def _end(self, state: State, run: Run, branch: Branch, op: Gen | Select, result: Result, started: float) -> None:
        value = result.value
        branch.tokens[len(branch.tokens) - result.num_taken_back :] = result.tokens
        branch.texts.append(value.text)
        branch.keep(value.name, value.text)
        run.listener(value)
        if run.program.trace:
            piece = Piece(
                branch=branch.id,
                op=branch.num_ops,
                kind="gen" if isinstance(op, Gen) else "select",
                name=value.name,
                texts=tuple(self._engine.tokenizer.texts(result.tokens)),
                origins=result.origins,
                start_s=started - state.born,
                stop_s=self._clock() - state.born,
                queue_s=value.timings.queue_s,
                prefill_s=value.timings.prefill_s,
            )
            run.listener(piece)
