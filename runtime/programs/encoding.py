"""Encodes texts of programs: those that were said before are known, and long ones are encoded beside the engine."""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ..protocol.errors import BoughError, EngineStoppedError, ErrorInfo, to_info
from ..tokenizer.tokenizer import Tokenizer
from .machine import Frame

logger = logging.getLogger("bough.engine")

MAX_CHARS = 1 << 20
"""Characters of all texts that are kept: some 2 MiB, with their tokens."""

ENTRY_CHARS = 64
"""Room that a kept text takes besides its characters, in characters."""


class KnownTexts:
    """Tokens of the texts that were said last, such as the instructions before each question. Lives in the engine's
    thread.

    A text is known to its own namespace alone: nobody can tell by the time it takes what others have said.
    """

    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = max_chars
        self._num_chars = 0
        self._tokens: OrderedDict[tuple[str, str], array[int]] = OrderedDict()

    def find(self, namespace: str, text: str) -> list[int] | None:
        """Returns a copy of the text's tokens; None if they are not known."""
        tokens = self._tokens.get((namespace, text))
        if tokens is None:
            return None
        self._tokens.move_to_end((namespace, text))
        return tokens.tolist()

    def keep(self, namespace: str, text: str, tokens: Sequence[int]) -> None:
        """Keeps the tokens of a text, in place of what was said longest ago."""
        if (namespace, text) in self._tokens or _size(text) > self._max_chars:
            return
        self._tokens[namespace, text] = array("i", tokens)
        self._num_chars += _size(text)
        while self._num_chars > self._max_chars:
            (_, oldest), _ = self._tokens.popitem(last=False)
            self._num_chars -= _size(oldest)


def _size(text: str) -> int:
    return len(text) + ENTRY_CHARS


class Encodings:
    """Encodes long texts beside the engine. Lives in its thread; `append` puts the tokens into their branches there.

    One text is encoded at a time, and programs take turns.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        post: Callable[[Callable[[], None]], None],
        append: Callable[[Frame, str, list[int]], None],
    ) -> None:
        self._tokenizer = tokenizer
        self._post = post
        self._append = append
        self._pool: ThreadPoolExecutor | None = None
        self._flights: dict[str, tuple[Frame, str]] = {}
        self._waiting: OrderedDict[str, deque[str]] = OrderedDict()
        self._busy = False

    def begin(self, frame: Frame, text: str) -> None:
        call_id = frame.state.new_id("text/")
        frame.branch.running.add(call_id)
        self._flights[call_id] = frame, text
        self._waiting.setdefault(frame.state.id, deque()).append(call_id)
        self._start_next()

    def stop(self, call_id: str) -> bool:
        """Leaves a text to itself; False if it is none of these."""
        return self._flights.pop(call_id, None) is not None

    def close(self) -> None:
        """Waits for none of them."""
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

        self._pool.submit(self._tokenizer.encode, self._flights[call_id][1]).add_done_callback(done)

    def _take(self, call_id: str, future: Future[list[int]]) -> None:
        self._busy = False
        self._start_next()
        if call_id not in self._flights:  # nobody waits for it any more
            return
        frame, text = self._flights.pop(call_id)
        frame.branch.running.discard(call_id)
        try:
            self._append(frame, text, future.result())
        except BoughError as error:
            frame.failed(to_info(error))
        except Exception:
            logger.exception("a text could not be encoded")
            frame.failed(ErrorInfo(code="internal_error", message="the instruction failed"))
        else:
            frame.ended()
