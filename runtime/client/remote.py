"""Client of an engine in a separate process, so that neither can stall the other. Used by the HTTP server."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from ...constrain.workers.turns import settle
from ..protocol.config import EngineConfig
from ..protocol.counters import EngineStats, ModelInfo
from ..protocol.errors import (
    BoughError,
    EngineError,
    EngineStoppedError,
    EngineStuckError,
    ErrorInfo,
    ModelError,
    to_info,
)
from ..protocol.program import Done, Failed, Program, ProgramEvent
from ..protocol.request import Finish, Request, RequestOutput
from ..tokenizer.load import load_tokenizer
from ..tokenizer.tokenizer import Tokenizer
from ..tools.registry import ToolCall, ToolRegistry
from .forks import forks, not_ours
from .messages import (
    Abort,
    AskFlush,
    AskStats,
    Beat,
    Drop,
    Event,
    Flushed,
    FrameWriter,
    FromEngine,
    LeaveTool,
    LoadFailed,
    Loading,
    Located,
    Output,
    Ready,
    RunProgram,
    Start,
    Stats,
    UseTool,
    read_frames,
)
from .remote_tools import LocalTools
from .spawn import DUMP_SIGNAL, EngineProcess, spawn_engine
from .streams import StreamingClient
from .watchdog import TICK_S, Watchdog

logger = logging.getLogger("bough.engine")

CLOSE_TIMEOUT_S = 3.0
"""Seconds for an engine to end by itself before it is killed."""

KILL_TIMEOUT_S = 5.0
"""Seconds to wait for a killed process to be gone. One that is stuck in a driver or a file system may never be."""

LOAD_SILENCE_S = 60.0
"""Seconds without a heartbeat after which an engine is killed while it loads its model."""

LOAD_STALL_S = 600.0
"""Seconds without progress after which an engine is killed while it loads its model, despite heartbeats."""

DUMP_S = 0.3
"""Seconds that a stuck process has to write its threads' stacks before it is killed."""

LATE_S = 10.0
"""Seconds past its deadline after which the client fails a request or program that the engine has not ended."""

CRASHES_WITHIN_S = 600.0
"""Seconds between two crashes within which work that the second one ended must not be sent again: it may have caused
both."""

ANSWER_TIMEOUT_S = 60.0
"""Seconds to wait for the answer to a question, which the engine gives after its current step."""

Progress = Callable[[str, int, int], None]

Told = TypeVar("Told")


class _Stream(NamedTuple):
    """A request or program in flight: its listener, its deadline, and the message that ends it early."""

    listen: Callable[[Any], None]
    fail: Callable[[ErrorInfo], None]
    stop: msgspec.Struct
    deadline: float


class RemoteClient(StreamingClient):
    """`EngineClient` for an engine process that it owns. `launch` makes one that is ready.

    All tools run in this process; only their descriptions and results go to the engine's. To notice an engine that is
    stuck, call `watch` regularly.
    """

    def __init__(self, spawned: EngineProcess | None = None, *, crashed_at: float = -math.inf) -> None:
        """Takes over a process that was started before, or starts one, which then waits for `load`.

        crashed_at    time at which the engine before it crashed, by the monotonic clock
        """
        super().__init__(self, ToolRegistry())
        self.info: ModelInfo
        self.tokenizer: Tokenizer
        self.load_s = 0.0
        self._spawned = (spawned or spawn_engine())._replace(crashed_at=crashed_at)
        try:
            self._writer = FrameWriter(self._spawned.connection)
        except BaseException:
            self.kill()
            self._see_it_end()
            self._spawned.connection.close()
            raise
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._answers: dict[int, queue.SimpleQueue[Any]] = {}
        self._tools = LocalTools(self._send)
        self._alive = True
        self._killed = False
        self._watchdog = Watchdog()
        self._fate: BoughError = EngineStoppedError("the engine process has died")
        self._reader: threading.Thread | None = None
        forks.watch(self._after_fork)

    @classmethod
    def launch(
        cls,
        config: EngineConfig | None = None,
        progress: Progress | None = None,
        spawned: EngineProcess | None = None,
    ) -> RemoteClient:
        """Starts an engine process and waits until it is ready; calls `progress(what, done, total)` while it loads.

        `spawned` is a process that was started before, which the client owns from now on.

        Raises:
            ModelError: the model cannot be loaded, or the process ended while loading.
        """
        client = cls(spawned)
        client.load(config or EngineConfig(), progress)
        return client

    def load(
        self,
        config: EngineConfig,
        progress: Progress | None = None,
        silence_s: float = LOAD_SILENCE_S,
        stall_s: float = LOAD_STALL_S,
    ) -> None:
        """Has the engine load the model and waits until it is ready; sets `load_s` to the seconds since its start.

        Raises:
            ModelError: the model cannot be loaded, or the process ended, was silent for `silence_s`, or made no
                progress for `stall_s`. The client is closed, as after any other exception.
        """
        loaded, steps = threading.Event(), Watchdog()
        given_up: list[str] = []
        watcher = threading.Thread(
            target=self._watch_load,
            args=(silence_s, stall_s, steps, loaded, given_up),
            name="bough-load-watch",
            daemon=True,
        )
        try:
            watcher.start()
            self._wait_until_ready(config, progress, stall_s, steps)
        except BaseException as error:
            self.kill()
            self.close()
            if given_up:
                raise ModelError(f"the engine process {given_up[0]} while it loaded the model") from error
            raise
        finally:
            loaded.set()

    def _watch_load(
        self, silence_s: float, stall_s: float, steps: Watchdog, loaded: threading.Event, given_up: list[str]
    ) -> None:
        while not loaded.wait(TICK_S):
            now = time.monotonic()
            self._watchdog.look(now)
            steps.look(now)
            if self._watchdog.silence_s >= silence_s:
                given_up.append(f"said nothing for {silence_s:.0f} s")
            elif steps.silence_s >= stall_s:
                given_up.append(f"made no progress for {stall_s:.0f} s")
            else:
                continue
            self._kill_stuck()
            return

    def _wait_until_ready(
        self, config: EngineConfig, progress: Progress | None, stall_s: float, steps: Watchdog
    ) -> None:
        messages = read_frames(self._spawned.connection, FromEngine)
        with contextlib.ExitStack() as unread:
            unread.callback(messages.close)
            if self._is_ready(config, messages, progress, stall_s, steps):
                unread.pop_all()  # the reader's thread continues with them
                return
        if not self._ends_within(KILL_TIMEOUT_S if self._killed else 30.0):
            raise ModelError("the engine process closed its link while it loaded the model")
        status = self._spawned.process.returncode
        raise ModelError(f"the engine process ended with status {status} while it loaded the model")

    def _is_ready(
        self,
        config: EngineConfig,
        messages: Generator[Any, None, None],
        progress: Progress | None,
        stall_s: float,
        steps: Watchdog,
    ) -> bool:
        """Waits until the engine is ready, then starts the reader of messages; returns False if it ends before."""
        tokenizer: Future[Tokenizer] | None = None
        self._send(Start(config))
        for message in messages:
            self._watchdog.beat(0.0)
            if not isinstance(message, Beat):
                steps.beat(0.0)
            match message:
                case Loading(what=what, done=done, total=total):
                    if progress is not None:
                        progress(what, done, total)
                case LoadFailed(error=error):
                    raise ModelError(error.message, code=error.code, param=error.param)
                case Located(path=path):  # read on a thread: heartbeats that wait for it would count as silence
                    tokenizer = _begin_tokenizer(path)
                case Ready(info=info):
                    self.info = info
                    reader = threading.Thread(target=self._read, args=(messages,), name="bough-reader", daemon=True)
                    reader.start()
                    self._reader = reader
                    if tokenizer is not None:
                        self.tokenizer = _result_of(tokenizer, stall_s)
                    if not self._alive:
                        raise ModelError("the engine process ended as soon as it had loaded the model")
                    self.load_s = time.monotonic() - self._spawned.begun
                    return True
            if tokenizer is not None and tokenizer.done():
                tokenizer.result()
        return False

    @property
    def alive(self) -> bool:
        return self._alive

    @property
    def process_id(self) -> int:
        return self._spawned.process.pid

    def check(self) -> None:
        if not self._alive:
            raise self._ended()
        if self._watchdog.stuck:
            raise self._stuck()

    def _after_fork(self) -> None:
        self._spawned = self._spawned._replace(forked=True)
        self._alive = False
        with contextlib.suppress(OSError):  # the link is closed already
            # Sends nothing. The engine ends when nobody has its link any more: that must not wait for this process.
            os.close(self._spawned.connection.detach())
        self._streams, self._answers = {}, {}
        # Threads that are not here may hold the locks of these.
        self._lock = threading.Lock()
        self._tools = LocalTools(self._send)

    @property
    def _forked(self) -> bool:
        return self._spawned.forked

    def _ended(self) -> EngineStoppedError:
        if self._forked:
            return not_ours()
        return EngineStoppedError(self._fate.message, code=self._fate.code)

    def _stuck(self) -> EngineStuckError:
        error = EngineStuckError(f"the engine has made no progress for {self._watchdog.stuck_s:.0f} s")
        error.retry_after_s = self._watchdog.left_s()
        return error

    def watch(self, limit_s: float) -> None:
        """Checks that the engine makes progress; to be called every TICK_S.

        If it makes none, requests and programs fail at their deadlines. After `limit_s` seconds without progress, or
        more if its passes are expected to take long, the process is killed and all of them fail; as one may be to
        blame, none must be sent again. If it makes progress, they fail here LATE_S past their deadlines.
        """
        self._watchdog.limit_s = limit_s
        now = time.monotonic()
        self._watchdog.look(now)
        if self._killed or not self._alive:
            return
        if not self._watchdog.stuck:
            late = EngineError("the time was over, and the engine did not end the work", code="generation_timeout")
            self._expire(now - LATE_S, late)
            return
        error = self._stuck()
        if self._watchdog.hangs():
            logger.error("%s: process %d is killed", error.message, self.process_id)
            error.may_retry = False
            self._fate = error
            self._kill_stuck()
        else:
            self._expire(now, error)

    def _expire(self, time_over: float, error: BoughError) -> None:
        """Fails the streams whose deadline is `time_over` or earlier, and ends their work."""
        with self._lock:
            late = {key: stream for key, stream in self._streams.items() if time_over >= stream.deadline}
        for key, stream in late.items():
            if self._leave(key) is not None:
                self._send(stream.stop)
                _tell(stream.fail, to_info(error))

    def _kill_stuck(self) -> None:
        """Kills the process after it has written its threads' stacks to standard error."""
        self._spawned.process.send_signal(DUMP_SIGNAL)
        time.sleep(DUMP_S)
        self.kill()

    def kill(self) -> None:
        """Kills the process. Its work fails at once, even if the system cannot end it. Does nothing in a child."""
        if self._forked:
            return
        self._killed = True
        self._spawned.process.kill()
        with contextlib.suppress(OSError):  # the link is closed already
            self._spawned.connection.shutdown(socket.SHUT_RDWR)

    def _see_it_end(self) -> None:
        """Waits for a killed process to end, for a limited time."""
        if not self._ends_within(KILL_TIMEOUT_S):
            logger.error("process %d was killed and does not end: it is left behind", self.process_id)

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._spawned.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def drop(self, program_id: str) -> None:
        self._send(Drop(program_id))

    def stats(self, timeout_s: float = ANSWER_TIMEOUT_S) -> EngineStats:
        """Returns the counters of the engine.

        Raises:
            EngineError: the engine has not answered in time.
            EngineStoppedError: its process has ended.
        """
        answer: EngineStats = self._ask(AskStats, timeout_s)
        return msgspec.structs.replace(answer, abandoned_tools=self._tools.num_abandoned)

    def flush_cache(self) -> bool:
        answer: bool = self._ask(AskFlush, ANSWER_TIMEOUT_S)
        return answer

    def close(self, *, at_once: bool = False) -> None:
        """Ends the engine process, by force `at_once` or after CLOSE_TIMEOUT_S; its work fails. May be called twice.
        Does nothing in a child.
        """
        if self._forked:
            return
        if at_once:
            self.kill()
        self._writer.close(timeout_s=1.0)
        with contextlib.suppress(OSError):  # it has gone already
            self._spawned.connection.shutdown(socket.SHUT_WR)
        if self._killed or not self._ends_within(CLOSE_TIMEOUT_S):
            self.kill()
            self._see_it_end()
        self._tools.close()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(timeout=10)
        self._spawned.connection.close()

    def _send(self, message: msgspec.Struct) -> None:
        if not self._forked:
            self._writer.put(message)

    def start_request(self, request: Request, listen: Callable[[RequestOutput], None]) -> None:
        def fail(error: ErrorInfo) -> None:
            listen(RequestOutput(id=request.id, finish=Finish(reason="error", error=error)))

        stream = _Stream(listen, fail, Abort(request.id), _deadline(request.timeout_s))
        self._start(next(self._keys), stream, lambda key: self._writer.submit(key, request))

    def abort(self, request_id: str) -> None:
        self._send(Abort(request_id))

    def start_program(
        self, program: Program, listen: Callable[[ProgramEvent], None], tools: Mapping[str, ToolCall] | None
    ) -> Callable[[], None]:
        key = next(self._keys)
        infos = self._tools.offer(key, program, {**self._registry.tools, **(tools or {})})
        stop = Drop(program.id, key)
        stream = _Stream(listen, lambda error: listen(Failed(error=error)), stop, _deadline(program.timeout_s))
        self._start(key, stream, lambda key: self._send(RunProgram(key, program, infos)))
        return lambda: self._send(stop)

    def _start(self, key: int, stream: _Stream, send: Callable[[int], None]) -> None:
        try:
            self.check()
            with self._lock:
                if not self._alive:
                    raise self._ended()
                self._streams[key] = stream
            send(key)
        except BoughError:
            self._leave(key)
            raise

    def _leave(self, key: int) -> _Stream | None:
        """Removes and returns a stream whose end is to be reported; None if another thread has removed it."""
        self._tools.over(key)
        with self._lock:
            return self._streams.pop(key, None)

    def _ask(self, question: type[AskStats] | type[AskFlush], timeout_s: float) -> Any:
        key = next(self._keys)
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            if not self._alive:
                raise self._ended()
            self._answers[key] = answers
        self._send(question(key))
        try:
            answer = answers.get(timeout=timeout_s)
        except queue.Empty:
            with self._lock:
                self._answers.pop(key, None)
            raise EngineError("the engine has not answered in time", code="engine_overloaded") from None
        if answer is None:
            raise self._ended()
        return answer

    def _read(self, messages: Generator[Any, None, None]) -> None:
        """Hands events to their listeners until the engine closes its end, then fails all that is still open."""
        try:
            for message in messages:
                self._dispatch(message)
        except (OSError, msgspec.DecodeError):
            pass  # a broken link is a dead engine
        except Exception:  # whatever the reason, no listener must be left waiting
            logger.exception("the messages of the engine process can no longer be read")
        messages.close()
        if self._crashed_again:
            self._fate.may_retry = False
        with self._lock:
            self._alive = False
            streams, self._streams = self._streams, {}
            answers, self._answers = self._answers, {}
        for stream in streams.values():
            _tell(stream.fail, to_info(self._fate))
        for waiting in answers.values():
            waiting.put(None)

    @property
    def _crashed_again(self) -> bool:
        """True if a crash now would be the second within CRASHES_WITHIN_S."""
        return time.monotonic() - self._spawned.crashed_at < CRASHES_WITHIN_S

    def _dispatch(self, message: Any) -> None:
        match message:
            case Output(key=key, output=output):
                self._hand(key, output, last=output.finish is not None)
            case Event(key=key, event=event):
                self._hand(key, event, last=isinstance(event, (Done, Failed)))
            case Beat(stalled_s=stalled_s, expected_s=expected_s):
                self._watchdog.beat(stalled_s, expected_s)
            case UseTool():
                self._tools.use(message)
            case LeaveTool():
                self._tools.leave(message)
            case Stats(key=key, stats=answer) | Flushed(key=key, done=answer):
                with self._lock:
                    waiting = self._answers.pop(key, None)
                if waiting is not None:
                    waiting.put(answer)

    def _hand(self, key: int, event: RequestOutput | ProgramEvent, *, last: bool) -> None:
        if last:
            stream = self._leave(key)
            if self._crashed_again:
                event = _not_again(event)
        else:
            with self._lock:
                stream = self._streams.get(key)
        if stream is not None and not _tell(stream.listen, event) and self._leave(key) is not None:
            self._send(stream.stop)


def _not_again(event: RequestOutput | ProgramEvent) -> RequestOutput | ProgramEvent:
    """Returns a terminal event that forbids a retry if a dying engine ended the request or program."""
    match event:
        case RequestOutput(finish=Finish(error=ErrorInfo(code=EngineStoppedError.code) as error) as finish):
            told = msgspec.structs.replace(finish, error=msgspec.structs.replace(error, may_retry=False))
            return msgspec.structs.replace(event, finish=told)
        case Failed(error=ErrorInfo(code=EngineStoppedError.code) as error):
            return msgspec.structs.replace(event, error=msgspec.structs.replace(error, may_retry=False))
    return event


def _tell(listen: Callable[[Told], None], event: Told) -> bool:
    """Calls a listener; returns False if it raises, which is logged and does not affect other streams."""
    try:
        listen(event)
    except Exception:
        logger.exception("the listener of a request or program failed")
        return False
    return True


def _begin_tokenizer(path: str) -> Future[Tokenizer]:
    """Loads a tokenizer on a thread of its own."""
    made: Future[Tokenizer] = Future()
    read = partial(load_tokenizer, path)
    threading.Thread(target=settle, args=(made, read), name="bough-tokenizer", daemon=True).start()
    return made


def _result_of(tokenizer: Future[Tokenizer], timeout_s: float) -> Tokenizer:
    """Waits for a tokenizer. Raises ModelError if it was not loaded in time."""
    try:
        return tokenizer.result(timeout_s)
    except TimeoutError as error:
        raise ModelError(f"the tokenizer was not read within {timeout_s:.0f} s") from error


def _deadline(timeout_s: float | None) -> float:
    return math.inf if timeout_s is None else time.monotonic() + timeout_s
