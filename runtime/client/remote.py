"""An engine in a process of its own, so that neither side can stall the other: what the HTTP server holds."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from ..protocol.config import EngineConfig
from ..protocol.counters import EngineStats, ModelInfo
from ..protocol.errors import EngineError, EngineStoppedError, ErrorInfo, ModelError, RequestError
from ..protocol.program import Done, Failed, Program, ProgramEvent
from ..protocol.request import Finish, Request, RequestOutput
from ..tokenizer.load import load_tokenizer
from ..tokenizer.tokenizer import Tokenizer
from ..tools.registry import ToolCall, ToolRegistry
from .messages import (
    Abort,
    AskFlush,
    AskStats,
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
    Submit,
    UseTool,
    read_frames,
)
from .remote_tools import LocalTools
from .spawn import EngineProcess, spawn_engine
from .streams import StreamingClient

logger = logging.getLogger("bough.engine")

CLOSE_TIMEOUT_S = 3.0
"""Seconds that an engine may take to end by itself; one that is stuck in a step or a program is killed."""

ANSWER_TIMEOUT_S = 60.0
"""Seconds that an engine may take for the step it is in before it answers a question."""

_DEAD = ErrorInfo(code=EngineStoppedError.code, message="the engine process has died")


class RemoteClient(StreamingClient):
    """`EngineClient` over an engine process that it started. Made by `launch`.

    Tools, the registered ones too, run in this process: only their names and results go to the engine's.
    """

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, writer: FrameWriter) -> None:
        super().__init__(self, ToolRegistry())
        self.info: ModelInfo
        self.tokenizer: Tokenizer
        self._process = process
        self._connection = connection
        self._writer = writer
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._requests: dict[int, tuple[str, Callable[[RequestOutput], None]]] = {}
        self._programs: dict[int, Callable[[ProgramEvent], None]] = {}
        self._answers: dict[int, queue.SimpleQueue[Any]] = {}
        self._tools = LocalTools(self._send)
        self._alive = True
        self._reader: threading.Thread | None = None

    @classmethod
    def launch(
        cls,
        config: EngineConfig | None = None,
        progress: Callable[[str, int, int], None] | None = None,
        spawned: EngineProcess | None = None,
    ) -> RemoteClient:
        """Starts an engine process and waits until it is ready; `progress(what, done, total)` while it loads.

        `spawned` is one that was started before, which is the client's from now on.

        Raises:
            ModelError: the model cannot be loaded, or the process ended while loading.
        """
        process, connection = spawned or spawn_engine()
        client = cls(process, connection, FrameWriter(connection))
        try:
            client._wait_until_ready(config or EngineConfig(), progress)
        except BaseException:
            process.kill()
            client.close()
            raise
        return client

    def _wait_until_ready(self, config: EngineConfig, progress: Callable[[str, int, int], None] | None) -> None:
        messages = read_frames(self._connection, FromEngine)
        self._send(Start(config))
        for message in messages:
            match message:
                case Loading(what=what, done=done, total=total):
                    if progress is not None:
                        progress(what, done, total)
                case LoadFailed(error=error):
                    raise ModelError(error.message, code=error.code, param=error.param)
                case Located(path=path):  # the engine loads the weights meanwhile
                    self.tokenizer = load_tokenizer(path)
                case Ready(info=info):
                    self.info = info
                    self._reader = threading.Thread(
                        target=self._read, args=(messages,), name="bough-reader", daemon=True
                    )
                    self._reader.start()
                    return
        status = self._process.wait(timeout=30)
        raise ModelError(f"the engine process ended with status {status} while it loaded the model")

    @property
    def alive(self) -> bool:
        return self._alive

    @property
    def process_id(self) -> int:
        return self._process.pid

    def drop(self, program_id: str) -> None:
        self._send(Drop(program_id))

    def stats(self) -> EngineStats:
        answer: EngineStats = self._ask(AskStats)
        return answer

    def flush_cache(self) -> bool:
        answer: bool = self._ask(AskFlush)
        return answer

    def close(self) -> None:
        """Ends the engine process; what is running in it fails. Closing twice is fine."""
        self._writer.close(timeout_s=1.0)
        with contextlib.suppress(OSError):  # it has gone already
            self._connection.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(timeout=CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._tools.close()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(timeout=10)
        self._connection.close()

    def _send(self, message: msgspec.Struct) -> None:
        self._writer.put(message)

    def start_request(self, request: Request, listen: Callable[[RequestOutput], None]) -> None:
        key = next(self._keys)
        with self._lock:
            self._check()
            self._requests[key] = (request.id, listen)
        try:
            self._send(Submit(key, request))
        except RequestError:
            self._requests.pop(key, None)
            raise

    def abort(self, request_id: str) -> None:
        self._send(Abort(request_id))

    def start_program(
        self, program: Program, listen: Callable[[ProgramEvent], None], tools: Mapping[str, ToolCall] | None
    ) -> None:
        key = next(self._keys)
        infos = self._tools.offer(key, program, {**self._registry.tools, **(tools or {})})
        with self._lock:
            self._check()
            self._programs[key] = listen
        try:
            self._send(RunProgram(key, program, infos))
        except RequestError:
            self._programs.pop(key, None)
            self._tools.over(key)
            raise

    def _ask(self, question: type[AskStats] | type[AskFlush]) -> Any:
        key = next(self._keys)
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            self._check()
            self._answers[key] = answers
        self._send(question(key))
        try:
            answer = answers.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            with self._lock:
                self._answers.pop(key, None)
            raise EngineError("the engine has not answered in time", code="engine_overloaded") from None
        if answer is None:
            raise EngineStoppedError(_DEAD.message)
        return answer

    def _check(self) -> None:
        if not self._alive:
            raise EngineStoppedError(_DEAD.message)

    def _read(self, messages: Iterator[Any]) -> None:
        """Hands events to who waits for them until the engine closes its end, then tells all that it has died."""
        try:
            for message in messages:
                self._dispatch(message)
        except (OSError, msgspec.DecodeError):
            pass  # a broken link is a dead engine
        except Exception:  # whatever it was, nobody must be left waiting
            logger.exception("the messages of the engine process can no longer be read")
        with self._lock:
            self._alive = False
            requests, self._requests = self._requests, {}
            programs, self._programs = self._programs, {}
            answers, self._answers = self._answers, {}
        for request_id, listen in requests.values():
            listen(RequestOutput(id=request_id, finish=Finish(reason="error", error=_DEAD)))
        for tell in programs.values():
            tell(Failed(error=_DEAD))
        for waiting in answers.values():
            waiting.put(None)

    def _dispatch(self, message: Any) -> None:
        match message:
            case Output(key=key, output=output):
                with self._lock:
                    entry = self._requests.get(key) if output.finish is None else self._requests.pop(key, None)
                if entry is not None:
                    entry[1](output)
            case Event(key=key, event=event):
                last = isinstance(event, (Done, Failed))
                with self._lock:
                    listen = self._programs.pop(key, None) if last else self._programs.get(key)
                if last:
                    self._tools.over(key)
                if listen is not None:
                    listen(event)
            case UseTool():
                self._tools.use(message)
            case LeaveTool():
                self._tools.leave(message)
            case Stats(key=key, stats=answer) | Flushed(key=key, done=answer):
                with self._lock:
                    waiting = self._answers.pop(key, None)
                if waiting is not None:
                    waiting.put(answer)
