"""The engine's own process: reads messages from the socket it inherited, runs the engine, sends events back."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys

from ..checkpoints.locate import locate
from ..load.start import start_engine
from ..protocol.config import EngineConfig
from ..protocol.errors import BoughError, EngineStoppedError, ErrorInfo, to_info
from ..protocol.program import Failed, ProgramEvent
from ..protocol.request import Finish, RequestOutput
from .local import EngineLoop
from .messages import (
    Abort,
    AskFlush,
    AskStats,
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

EXIT_LOAD_FAILED = 3
EXIT_ENGINE_DIED = 5


def main(descriptor: int) -> int:
    """Serves one client until it closes its end. Returns the exit status."""
    # An interrupt at the terminal is for the client, which ends this process in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    writer = FrameWriter(connection)
    messages = read_frames(connection, ToEngine, lambda message: _refuse(message, writer))
    start = next(messages, None)
    if not isinstance(start, Start):
        return 0
    try:
        loop = _load(start.config, writer)
    except BoughError as error:
        writer.put(LoadFailed(to_info(error)))
        writer.close()
        return EXIT_LOAD_FAILED
    tools = RemoteTools(writer.put)
    writer.put(Ready(loop.engine.info))
    for message in messages:
        if not loop.alive:
            break
        with contextlib.suppress(EngineStoppedError):  # seen above, at the next message
            _serve(message, loop, writer, tools)
    died = not loop.alive
    loop.close()
    writer.close()
    connection.close()
    return EXIT_ENGINE_DIED if died else 0


def _load(config: EngineConfig, writer: FrameWriter) -> EngineLoop:
    def progress(what: str, done: int, total: int) -> None:
        writer.put(Loading(what, done, total))

    writer.put(Located(str(locate(config.model, progress=progress))))
    engine = start_engine(config, progress)
    # The model, the vocabulary and the modules stay: collections that walk them would stop the steps for up to 0.1 s.
    gc.collect()
    gc.freeze()

    def died() -> None:
        writer.close()
        os._exit(EXIT_ENGINE_DIED)

    return EngineLoop(engine, config, on_death=died, serves=True)


def _serve(message: object, loop: EngineLoop, writer: FrameWriter, tools: RemoteTools) -> None:
    match message:
        case Submit(key=key, request=request):
            loop.start_request(request, lambda output: writer.put(Output(key, output)))
        case RunProgram(key=key, program=program, tools=infos):
            loop.start_program(program, lambda event: _tell(writer, key, event), tools.of(key, infos))
        case ToolResult():
            tools.take(message)
        case Abort(request_id=request_id):
            loop.abort(request_id)
        case Drop(program_id=program_id):
            loop.drop(program_id)
        case AskStats(key=key):
            loop.ask(loop.stats, lambda stats: writer.put(Stats(key, stats)))
        case AskFlush(key=key):
            loop.ask(loop.engine.flush_cache, lambda done: writer.put(Flushed(key, done)))


def _tell(writer: FrameWriter, key: int, event: ProgramEvent) -> None:
    writer.put(Event(key, event))
    writer.wait_for_room()


def _refuse(message: Unreadable, writer: FrameWriter) -> None:
    """Tells who sent a request or program with a value of the wrong type; others are not concerned."""
    error = ErrorInfo(code="invalid_type", message=message.reason)
    if message.kind == "run":
        writer.put(Event(message.key, Failed(error=error)))
    elif message.kind == "submit":
        writer.put(Output(message.key, RequestOutput(id="", finish=Finish(reason="error", error=error))))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
