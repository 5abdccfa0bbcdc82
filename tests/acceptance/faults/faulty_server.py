"""A server whose engine breaks where a prompt says so: run as a program.

faulty_server.py FOLDER STUCK_TIMEOUT_S    serves; FOLDER has the tokenizer
faulty_server.py engine DESCRIPTOR         is its engine's process
"""

from __future__ import annotations

import faulthandler
import socket
import subprocess
import sys
import time
from typing import Any

from bough.runtime.client import engine_process, remote
from bough.runtime.client.lines import log_to_stderr
from bough.runtime.client.local import EngineLoop
from bough.runtime.client.messages import FrameWriter, Located
from bough.runtime.client.spawn import DUMP_SIGNAL, EngineProcess
from bough.runtime.client.supervisor import Supervisor
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import DeviceLostError
from bough.server.config import ServerConfig
from bough.server.serve import serve
from tests.acceptance.prompts import HANG, LOSE, POISON, SWELL
from tests.support.fakes import fake_engine

STEP_S = 0.01


def run_engine(descriptor: int) -> int:
    def load(config: EngineConfig, writer: FrameWriter) -> EngineLoop:
        writer.put(Located(config.model))
        engine, runner = fake_engine(ahead=0)
        runner.broken = ord(POISON)
        runner.bias = dict.fromkeys(map(ord, (HANG, LOSE, POISON, SWELL)), -1e9)
        compute = runner.run

        def compute_or_break(batch: Any) -> Any:
            if ord(HANG) in batch.tokens:
                time.sleep(3600.0)
            if ord(LOSE) in batch.tokens:
                raise DeviceLostError("the device is gone")
            if ord(SWELL) in batch.tokens:
                raise MemoryError("no memory for it")
            time.sleep(STEP_S)
            return compute(batch)

        runner.run = compute_or_break  # type: ignore[method-assign]
        return EngineLoop(engine, config, on_death=lambda: engine_process.end(writer), serves=True)

    engine_process._load = load
    log_to_stderr()
    faulthandler.register(DUMP_SIGNAL)
    return engine_process.serve(descriptor)


def spawn() -> EngineProcess:
    begun = time.monotonic()
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", __file__, "engine", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return EngineProcess(process, ours, begun)


def run_server(folder: str, stuck_timeout_s: float) -> int:
    def announce(url: str) -> None:
        print(f"listening on {url}", file=sys.stderr, flush=True)

    vars(remote)["spawn_engine"] = spawn
    log_to_stderr()
    config = ServerConfig(port=0, served_model_name="tiny", request_log=False)
    return serve(config, lambda: Supervisor(EngineConfig(model=folder), stuck_timeout_s=stuck_timeout_s), announce)


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        sys.exit(run_engine(int(sys.argv[2])))
    sys.exit(run_server(sys.argv[1], float(sys.argv[2])))
