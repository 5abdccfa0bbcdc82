"""Main module of the engine process: reads messages from an inherited socket, runs the engine, sends events back."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import socket
import sys
import threading
import time

import msgspec

from ...constrain.workers.child import die_with_parent
from ..checkpoints.locate import locate
from ..load.start import start_engine
from ..protocol.config import EngineConfig
from ..protocol.errors import BoughError, EngineStoppedError, ErrorInfo, RequestError, to_info
from ..protocol.program import Done, Failed
from ..protocol.request import Finish, RequestOutput
from .lines import log_to_stderr
from .local import EngineLoop
from .messages import (
    Abort,
    AskFlush,
    AskStats,
    Beat,
    Constrain,
    Drop,
    Event,
    Flushed,
    FrameWriter,
    LoadFailed,
    Loading,
    Located,
    Output,
    Ready,
    RunProgram,
    Start,
    Stats,
    Submit,
    ToEngine,
    ToolResult,
    Unreadable,
    read_frames,
)
from .remote_tools import RemoteTools
from .spawn import DUMP_SIGNAL
from .watchdog import BEAT_S, StepTimer

logger = logging.getLogger("bough.engine")

EXIT_LOAD_FAILED = 3
EXIT_ENGINE_DIED = 5

FULL_COLLECTION = 1_000
"""Collections of the middle generation per full one, which takes 0.3 s for a million objects."""


def serve(descriptor: int) -> int:
    """Serves one client until it closes its end. Returns the exit status."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its pool does not outlive a shortage of threads
    connection = socket.socket(fileno=descriptor)
    writer = FrameWriter(connection)
    messages = read_frames(connection, ToEngine, lambda message: _refuse(message, writer))
    start = next(messages, None)
    if not isinstance(start, Start):
        return 0
    heart = _Heart(writer)
    try:
        heart.loop = loop = _load(start.config, writer)
    except BoughError as error:
        heart.stop()
        writer.put(LoadFailed(to_info(error)))
        writer.close()
        return EXIT_LOAD_FAILED
    tools = RemoteTools(writer.put)
    writer.put(Ready(loop.engine.info))
    last: Constrain | None = None
    for message in messages:
        if not loop.alive:
            break
        if isinstance(message, Constrain):
            last = message
            continue
        if isinstance(message, Submit) and message.constraint is not None:
            if last is None or last.number != message.constraint:
                _refuse(Unreadable("submit", message.key, "its constraint cannot be read"), writer)
                continue
            message = Submit(message.key, msgspec.structs.replace(message.request, grammar=last.grammar))
        with contextlib.suppress(EngineStoppedError):  # seen above, at the next message
            _serve(message, loop, writer, tools)
    died = not loop.alive
    heart.stop()
    loop.close()
    writer.close()
    connection.close()
    return EXIT_ENGINE_DIED if died else 0


def _load(config: EngineConfig, writer: FrameWriter) -> EngineLoop:
    def progress(what: str, done: int, total: int) -> None:
        writer.put(Loading(what, done, total))

    writer.put(Located(str(locate(config.model, progress=progress))))
    engine = start_engine(config, progress)
    # The model, the vocabulary and the modules are permanent: walking them in a collection stops steps for up to 0.1 s.
    gc.collect()
    gc.freeze()
    # Ended programs are freed by reference counting, so full collections, which walk all that run, can be rare.
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION)

    return EngineLoop(engine, config, on_death=lambda: end(writer), serves=True)


def end(writer: FrameWriter) -> None:
    """Ends the process of an engine that has died, after its queued messages have been sent."""
    writer.close()
    logging.shutdown()
    os._exit(EXIT_ENGINE_DIED)


class _Heart:
    """Sends heartbeats from a separate thread: plain ones while loading, then with the timing of the loop's steps."""

    def __init__(self, writer: FrameWriter) -> None:
        self.loop: EngineLoop | None = None
        self._writer = writer
        self._over = threading.Event()
        threading.Thread(target=self._beat, name="bough-heart", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _beat(self) -> None:
        timer = StepTimer()
        while not self._over.wait(BEAT_S):
            loop = self.loop
            if loop is None:
                self._writer.put(Beat())
                continue
            expected_s = loop.engine.expected_s  # read before the step's time, since a new step sets its time first
            self._writer.put(Beat(timer.look(loop.step_began, time.monotonic()), expected_s))


def _serve(message: object, loop: EngineLoop, writer: FrameWriter, tools: RemoteTools) -> None:
    match message:
        case Submit(key=key, request=request):
            loop.start_request(request, lambda output: tell(writer, Output(key, output)))
        case RunProgram(key=key, program=program, tools=infos):
            loop.start_program(
                program, lambda event: _tell_of_program(writer, Event(key, event)), tools.of(key, infos), key
            )
        case ToolResult():
            tools.take(message)
        case Abort(request_id=request_id):
            loop.abort(request_id)
        case Drop(program_id=program_id, key=key):
            loop.drop(program_id, key or None)
        case AskStats(key=key):
            loop.ask(loop.stats, lambda stats: writer.put(Stats(key, stats)))
        case AskFlush(key=key):
            loop.ask(loop.engine.flush_cache, lambda done: writer.put(Flushed(key, done)))


def tell(writer: FrameWriter, message: Output | Event) -> None:
    """Sends an output or event. A terminal one that cannot be sent is replaced by an error that says so.

    Raises:
        RequestError: an output or event before the terminal one cannot be sent.
    """
    try:
        writer.put(message)
    except RequestError as error:
        info = ErrorInfo(code="invalid_output", message=error.message)
        match message:
            case Output(key=key, output=RequestOutput(id=request_id, finish=Finish(usage=usage, timings=timings))):
                finish = Finish(reason="error", usage=usage, timings=timings, error=info)
                writer.put(Output(key, RequestOutput(id=request_id, finish=finish)))
            case Event(key=key, event=Done() | Failed()):
                writer.put(Event(key, Failed(error=info)))
            case _:
                raise


def _tell_of_program(writer: FrameWriter, message: Event) -> None:
    tell(writer, message)
    writer.wait_for_room()


def _refuse(message: Unreadable, writer: FrameWriter) -> None:
    """Reports a message with a value of the wrong type to its sender; other streams are not affected."""
    error = ErrorInfo(code="invalid_type", message=message.reason)
    if message.kind == "run":
        writer.put(Event(message.key, Failed(error=error)))
    elif message.kind == "submit":
        writer.put(Output(message.key, RequestOutput(id="", finish=Finish(reason="error", error=error))))
    else:
        logger.error("a message %r of the client was left out: %s", message.kind, message.reason)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    try:
        log_to_stderr()
    except RequestError as refusal:
        sys.exit(f"bough: {refusal.message}")
    with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):  # there is no standard error
        faulthandler.register(DUMP_SIGNAL)
    sys.exit(serve(int(sys.argv[2])))
