"""Long texts in flight: encoded beside the engine, and brought back to its thread."""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from ..protocol.errors import BoughError, EngineStoppedError, ErrorInfo, to_info
from ..tokenizer.tokenizer import Tokenizer
from .branch import Branch, Step
from .known_texts import KnownTexts
from .model_calls import Ended, FailedCall
from .state import State

logger = logging.getLogger("bough.engine")


@dataclass(eq=False, slots=True)
class _Flight:
    state: State
    branch: Branch
    step: Step
    text: str


class Encodings:
    """Appends long texts to branches. Lives in the engine's thread; `ended` and `failed` hear of each there.

    One text is encoded at a time, and programs take turns.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        known: KnownTexts,
        post: Callable[[Callable[[], None]], None],
        ended: Ended,
        failed: FailedCall,
        *,
        max_tokens: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._known = known
        self._post = post
        self._ended = ended
        self._failed = failed
        self._max_tokens = max_tokens
        self._pool: ThreadPoolExecutor | None = None
        self._flights: dict[str, _Flight] = {}
        self._waiting: OrderedDict[str, deque[str]] = OrderedDict()
        self._busy = False

    def begin(self, state: State, branch: Branch, step: Step, text: str) -> None:
        call_id = f"{state.id}/text/{state.num_requests}"
        state.num_requests += 1
        branch.running.add(call_id)
        self._flights[call_id] = _Flight(state, branch, step, text)
        self._waiting.setdefault(state.id, deque()).append(call_id)
        self._start_next()

    def stop(self, call_id: str) -> bool:
        """Leaves a text to itself; False if it is none of ours."""
        return self._flights.pop(call_id, None) is not None

    def close(self) -> None:
        """Waits for nobody."""
        self._flights.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _start_next(self) -> None:
        while not self._busy and self._waiting:
            state_id, calls = self._waiting.popitem(last=False)
            call_id = calls.popleft()
            if calls:
                self._waiting[state_id] = calls  # behind the others
            if call_id in self._flights:
                self._start(call_id)

    def _start(self, call_id: str) -> None:
        self._busy = True
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bough-encode")

        def done(future: Future[list[int]]) -> None:
            with contextlib.suppress(EngineStoppedError):
                self._post(lambda: self._take(call_id, future))

        self._pool.submit(self._tokenizer.encode, self._flights[call_id].text).add_done_callback(done)

    def _take(self, call_id: str, future: Future[list[int]]) -> None:
        self._busy = False
        self._start_next()
        flight = self._flights.pop(call_id, None)
        if flight is None:  # nobody waits for it any more
            return
        state, branch, step = flight.state, flight.branch, flight.step
        branch.running.discard(call_id)
        try:
            tokens, num_tokens = future.result(), len(branch.tokens)
            self._known.keep(state.namespace, flight.text, tokens)
            branch.append_tokens(flight.text, tokens, self._tokenizer)
            state.add_tokens(len(branch.tokens) - num_tokens, branch)
            branch.check_length(self._max_tokens)
        except BoughError as error:
            self._failed(state, branch, step, to_info(error))
        except Exception:
            logger.exception("a text could not be encoded")
            self._failed(state, branch, step, ErrorInfo(code="internal_error", message="the instruction failed"))
        else:
            self._ended(state, branch, step)
