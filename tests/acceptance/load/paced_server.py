"""A server whose engine takes a fixed time for each step, so that its capacity is known: run as a program.

paced_server.py FOLDER SEATS WAITING STEP_S    serves; FOLDER has the tokenizer
paced_server.py engine DESCRIPTOR STEP_S       is its engine's process
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import Any

from bough.runtime.client import engine_process
from bough.runtime.client.local import EngineLoop
from bough.runtime.client.messages import FrameWriter, Located
from bough.runtime.client.spawn import EngineProcess
from bough.runtime.client.supervisor import Supervisor
from bough.runtime.protocol.config import EngineConfig
from bough.server.config import ServerConfig
from bough.server.serve import serve
from tests.support.fakes import fake_engine


def run_engine(descriptor: int, step_s: float) -> int:
    def load(config: EngineConfig, writer: FrameWriter) -> EngineLoop:
        writer.put(Located(config.model))
        engine, runner = fake_engine(
            num_pages=1 << 16, ahead=0, max_num_seqs=config.max_num_seqs, max_waiting=config.max_waiting
        )
        compute = runner.run

        def compute_and_rest(batch: Any) -> Any:
            ends = time.monotonic() + step_s
            logits = compute(batch)
            time.sleep(max(ends - time.monotonic(), 0.0))
            return logits

        runner.run = compute_and_rest  # type: ignore[method-assign]
        return EngineLoop(engine, config, serves=True)

    engine_process._load = load
    return engine_process.serve(descriptor)


def run_server(folder: str, num_seats: int, num_waiting: int, step_s: float) -> int:
    def launch() -> Supervisor:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", __file__, "engine", str(theirs.fileno()), str(step_s)]
        with theirs:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        config = EngineConfig(model=folder, max_num_seqs=num_seats, max_waiting=num_waiting)
        return Supervisor(config, None, EngineProcess(process, ours, time.monotonic()), restarts=0)

    def announce(url: str) -> None:
        print(f"listening on {url}", file=sys.stderr, flush=True)

    return serve(ServerConfig(port=0, request_log=False), launch, announce)


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        sys.exit(run_engine(int(sys.argv[2]), float(sys.argv[3])))
    sys.exit(run_server(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
