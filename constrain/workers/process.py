"""Handles of worker processes: each does one job at a time and can be interrupted or killed at any moment."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from threading import RLock
from typing import NoReturn

from .child import start_child
from .clocks import Clock, clock_of_process
from .decoders import msgpack_decoder
from .jobs import HEADER_BYTES, MAX_FRAME_BYTES, Answer, FromWorker, Interrupted, Job, Limits, Ready, frame

logger = logging.getLogger("bough.constrain")

MEMORY_BYTES = 1536 << 20
START_TIMEOUT_S = 30.0
RETRY_START_S = 60.0
"""Time after a failed start before another process is started."""
TICK_S = 0.05
"""Time between two checks of a running job."""
INTERRUPT_TIMEOUT_S = 0.5
"""Time that an interrupted process may spend in native code before it is killed."""
EXIT_TIMEOUT_S = 1.0
KILL_TIMEOUT_S = 2.0
"""Time to wait for a killed process to be gone. One blocked in a driver or a file system may stay forever."""


class ProcessEndedError(RuntimeError):
    """The process ended before it answered: killed by a limit, or by a fault of native code."""


class ProcessKilledError(ProcessEndedError):
    """The process was killed from outside, for example for lack of memory: its job need not be to blame."""


class LateError(RuntimeError):
    """The job was given up, or the process did not start in time. The process was killed."""


class NoProcessError(RuntimeError):
    """No process can be started."""


class WorkerProcess:
    """Handle of a process that runs `constrain/worker.py`. Used by one thread at a time, except for `kill`."""

    def __init__(self, *, memory_bytes: int, seconds: float) -> None:
        """Starts the process without waiting until it is ready. Raises OSError if no process can be started."""
        self._process = start_child(
            f"{__package__}.worker",
            variables={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)  # some jobs are larger than a pipe's buffer
        self._room = select.poll()
        self._room.register(self._stdin, select.POLLOUT)
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._decoder = msgpack_decoder(FromWorker)
        self._ready = False
        self._closed = False
        with contextlib.suppress(BrokenPipeError):  # noticed when its answer is awaited
            self._stdin.write(frame(Limits(memory_bytes, seconds)))

    @property
    def alive(self) -> bool:
        return not self._closed and self._process.poll() is None

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def clock(self) -> Clock:
        """Clock of the process's processor time."""
        return clock_of_process(self._process.pid)

    def wait_until_ready(self) -> None:
        """Waits until the process is ready. Raises ProcessEndedError, LateError: it did not start."""
        if not self._ready:
            answer = self._receive(time.monotonic() + START_TIMEOUT_S)
            assert isinstance(answer, Ready)
            self._ready = True

    def do(self, job: Job, *, crowded: Callable[[], bool], given_up: Callable[[], bool]) -> Answer:
        """Returns the answer to `job`, which is interrupted if others should go first (`crowded`).

        Raises:
            LateError: the job is no longer needed, or its time is over (`given_up`).
            ProcessEndedError: the process crashed, or was killed.
        """
        self._send(job, given_up)
        while not self._poll.poll(TICK_S * 1000):
            if given_up():
                self.close(kill=True)
                raise LateError
            if crowded():
                return self._interrupt()
        answer = self._receive(time.monotonic() + EXIT_TIMEOUT_S)
        assert not isinstance(answer, Ready)
        return answer

    def kill(self) -> None:
        """Kills the process; its user cleans up. May be called from any thread."""
        self._process.kill()

    def close(self, *, kill: bool = False) -> None:
        """Ends the process, in order or by force, and waits until it is gone. One that is not ready yet is killed: it
        has nothing to finish. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if kill or not self._ready:
            self._process.kill()
        with contextlib.suppress(OSError):
            self._stdin.close()
        if not self._ends_within(EXIT_TIMEOUT_S):
            self._process.kill()
            if not self._ends_within(KILL_TIMEOUT_S):
                logger.error("process %d was killed and does not end: it is left behind", self.process_id)
        self._stdout.close()

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _interrupt(self) -> Answer:
        self._process.send_signal(signal.SIGALRM)
        try:
            answer = self._receive(time.monotonic() + INTERRUPT_TIMEOUT_S)
        except LateError:
            return Interrupted()
        assert not isinstance(answer, Ready)
        return answer

    def _send(self, job: Job, given_up: Callable[[], bool]) -> None:
        data = memoryview(frame(job))
        while data:
            try:
                data = data[self._stdin.write(data) or 0 :]
            except OSError:
                self._end()
            if data and not self._room.poll(TICK_S * 1000) and given_up():
                self.close(kill=True)
                raise LateError

    def _receive(self, deadline: float) -> Ready | Answer:
        size = int.from_bytes(self._read(HEADER_BYTES, deadline), "little")
        if size > MAX_FRAME_BYTES:
            self.close(kill=True)
            raise ProcessEndedError("the process gave an answer that is too large")
        answer: Ready | Answer = self._decoder.decode(self._read(size, deadline))
        return answer

    def _read(self, count: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            if not self._poll.poll(max(deadline - time.monotonic(), 0.0) * 1000):
                self.close(kill=True)
                raise LateError
            part = os.read(self._stdout.fileno(), min(count - len(parts), 1 << 20))
            if not part:
                self._end()
            parts += part
        return bytes(parts)

    def _end(self) -> NoReturn:
        """Raises the error of a process that has closed its end of the pipe."""
        self._ends_within(EXIT_TIMEOUT_S)  # so that its own exit status is read, not that of a kill from here
        status = self._process.returncode
        self.close(kill=True)
        kind = ProcessKilledError if status == -signal.SIGKILL else ProcessEndedError
        raise kind(f"the process ended with status {status}")


class Processes:
    """Pool of idle worker processes, started on demand. Thread-safe."""

    def __init__(self, max_idle: int, timeout_s: float) -> None:
        self._max_idle = max_idle
        self._timeout_s = timeout_s
        self._lock = RLock()  # reentrant: garbage collection may close the pool meanwhile
        self._idle: list[WorkerProcess] = []
        self._closed = False
        self._retry_at = 0.0

    def take(self) -> WorkerProcess:
        """Takes a process that is ready, or starts one. Raises NoProcessError."""
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                return self._wait(self._start())
            if process.alive:
                return self._wait(process)
            process.close()

    def start_ahead(self) -> None:
        """Starts a process if none is idle and one can be started, without waiting for it: `take` does."""
        with self._lock:
            if self._idle or self._closed:
                return
        with contextlib.suppress(NoProcessError):
            self.give_back(self._start())

    def give_back(self, process: WorkerProcess) -> None:
        with self._lock:
            if process.alive and not self._closed and len(self._idle) < self._max_idle:
                self._idle.append(process)
                return
        process.close()

    def idle_ids(self) -> list[int]:
        with self._lock:
            return [process.process_id for process in self._idle]

    def kill(self) -> None:
        """Kills the idle processes; `close` cleans up."""
        with self._lock:
            for process in self._idle:
                process.kill()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()

    def _start(self) -> WorkerProcess:
        if time.monotonic() < self._retry_at:
            raise NoProcessError
        try:
            return WorkerProcess(memory_bytes=MEMORY_BYTES, seconds=self._timeout_s)
        except OSError as error:
            raise self._no_process(error) from error

    def _wait(self, process: WorkerProcess) -> WorkerProcess:
        try:
            process.wait_until_ready()
        except (ProcessEndedError, LateError) as error:
            raise self._no_process(error) from error
        return process

    def _no_process(self, error: Exception) -> NoProcessError:
        logger.warning("constraints are compiled without a worker process: %s", error)
        self._retry_at = time.monotonic() + RETRY_START_S
        return NoProcessError()
