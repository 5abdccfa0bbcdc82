"""The worker process: lowers constraints and checks values where it can be interrupted, starved or killed."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

import msgspec

from ..errors import GrammarError, GrammarTooComplexError
from ..lower import lower
from ..lowered import Tabulate
from ..matchers.table.tables import tabulate
from .child import die_with_parent
from .jobs import (
    HEADER_BYTES,
    Answer,
    Check,
    Checked,
    Done,
    Failed,
    Interrupted,
    Job,
    Limits,
    Lower,
    Ready,
    Refused,
    Tabulated,
    ToWorker,
    frame,
)

RECYCLE_BYTES = 512 << 20
"""Memory use beyond which a process ends after its job: otherwise the memory is not returned."""


_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def _peak_bytes() -> int:
    """Returns the peak memory of this process. On Linux, `ru_maxrss` includes the process that it was forked from."""
    with contextlib.suppress(OSError), Path("/proc/self/status").open("rb") as file:
        for line in file:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


class _Interrupt(BaseException):
    """Ends the current job."""


class Worker:
    """Reads jobs from one descriptor and writes answers to another, until the first is closed."""

    def __init__(self, source: int, target: int) -> None:
        self._source = source
        self._target = target
        self._limits = Limits(memory_bytes=0, seconds=0.0)
        self._busy = False
        self._idle = True
        self._interrupted = False

    def run(self) -> None:
        signal.signal(signal.SIGALRM, self._on_alarm)
        decoder = msgspec.msgpack.Decoder(ToWorker)
        while data := self._read():
            self._idle = False
            message = decoder.decode(data)
            if isinstance(message, Limits):
                self._limits = message
                with contextlib.suppress(ValueError, OSError):  # not every system can limit memory
                    resource.setrlimit(resource.RLIMIT_AS, (message.memory_bytes, message.memory_bytes))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                self._write(Ready())
                self._import_ahead()
            else:
                self._bound_processor_time()
                self._write(self._answer(message))
                _import_validation()
                self._interrupted = False
                if _peak_bytes() > RECYCLE_BYTES:
                    return
            self._idle = True

    def _import_ahead(self) -> None:
        """Imports what most jobs need, and unless a job already waits, what the others need."""
        from ..json_schema import lower as lower_schema  # noqa: F401, PLC0415

        if not select.select([self._source], [], [], 0)[0]:
            _import_validation()

    def _bound_processor_time(self) -> None:
        """Sets a limit on processor time, so that native code that hangs ends even if no parent is left to kill it."""
        limit = int(time.process_time() + 2 * self._limits.seconds) + 1
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))

    def _answer(self, job: Job) -> Answer:
        if isinstance(job, Check):
            _import_validation()  # here, where no interrupt stops it
        try:
            self._busy = True
            answer = Interrupted() if self._interrupted else self._attempt(job)
            self._busy = False
        except _Interrupt:
            return Interrupted()
        return answer

    def _attempt(self, job: Job) -> Answer:
        try:
            return _do(job)
        except GrammarError as error:
            return Refused.of(error)
        except RecursionError:
            return Refused.of(GrammarTooComplexError("the constraint is nested too deeply"))
        except MemoryError:
            limit = self._limits.memory_bytes >> 20
            return Refused.of(GrammarTooComplexError(f"the constraint takes more than {limit} MiB to compile"))
        except Exception:  # noqa: BLE001  # it is reported to the sender
            return Failed(traceback.format_exc())

    def _on_alarm(self, number: int, stack: FrameType | None) -> None:
        if self._busy:
            self._busy = False  # so that a job is interrupted only once
            raise _Interrupt
        self._interrupted = not self._idle  # before the job begins: its imports continue

    def _read(self) -> bytes:
        """Returns the data of the next frame; empty at the end."""
        header = self._read_exactly(HEADER_BYTES)
        return self._read_exactly(int.from_bytes(header, "little")) if header else b""

    def _read_exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = os.read(self._source, min(count - len(parts), 1 << 20))
            if not part:
                return b""
            parts += part
        return bytes(parts)

    def _write(self, message: msgspec.Struct) -> None:
        data = memoryview(frame(message))
        while data:
            data = data[os.write(self._target, data) :]


def _import_validation() -> None:
    """Imports what checks need: before the first check, and after the first answer if one is awaited."""
    if "jsonschema" not in sys.modules:
        from ..json_schema import validate  # noqa: F401, PLC0415

        gc.freeze()  # permanent objects, which collections can skip


def _do(job: Job) -> Done | Checked | Tabulated:
    match job:
        case Lower(spec=spec):
            return Done(lower(spec))
        case Check(schema=schema, text=text, formats=formats):
            from ..json_schema.validate import violations  # noqa: PLC0415

            return Checked(violations(schema, text, formats=formats))
        case Tabulate():
            return Tabulated(tabulate(job))


def main(parent: int) -> int:
    """Serves the process `parent` at the other end of standard input and output."""
    die_with_parent(parent)
    target = os.dup(1)
    os.dup2(2, 1)  # printed output must not be read as an answer
    with contextlib.suppress(BrokenPipeError):
        Worker(0, target).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
