"""One run of a program: sends what was recorded, keeps what comes back, lets threads and tasks wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ..runtime.errors import BoughError
from ..runtime.program import Delta, Done, Failed, Gen, Op, Piece, Program, ProgramEvent, Select, Value
from ..runtime.request import Usage
from .backend import Backend
from .errors import BackendError, ProgramError
from .recorder import Recorder
from .stretch import Slot, Stretch


class Driver(Protocol):
    """Brings the events of stretches to their session."""

    def start(self, session: Session, stretch: Stretch) -> None:
        """Called with `session.changed` held. Does not wait."""

    def wait(self, session: Session, done: Callable[[], bool], stretch: Callable[[], Stretch | None]) -> None:
        """Blocks until `done`; `stretch` says what the caller is waiting for, once it is known."""

    def stop(self, session: Session) -> None:
        """Aborts what is running. Does not wait."""


class Settings(NamedTuple):
    """How to run: `log` keeps every event, for whoever streams them."""

    title: str = "program"
    trace: bool = False
    log: bool = False
    namespace: str = ""
    timeout_s: float | None = None


class Session:
    """One run of a program.

    The body records on one thread, which is also the one that sends; once it has returned, whoever reads may send.
    Everything else may be used from any thread. `changed` guards all that events change.
    """

    def __init__(self, backend: Backend, driver: Driver, settings: Settings) -> None:
        self.backend = backend
        self.settings = settings
        self.id = secrets.token_hex(16)
        self.recorder = Recorder()
        self.changed = threading.Condition()
        self.stretches: list[Stretch] = []
        self.texts: dict[int, str] = {}
        self.usage = Usage()
        self.num_requests = 0
        self.log: list[ProgramEvent] = []
        self.error: BaseException | None = None
        self.body_ended = False
        self.finished = False
        self.state: object = None
        self._driver = driver
        self._slots: dict[tuple[int, str], Slot] = {}
        self._owner = 0
        self._wakers: list[Callable[[], object]] = []

    # Sending

    def own(self) -> None:
        """The calling thread is the one that records."""
        self._owner = threading.get_ident()

    @property
    def records_here(self) -> bool:
        """The body is running, on this thread."""
        return not self.body_ended and self._owner == threading.get_ident()

    @property
    def may_send(self) -> bool:
        return self.error is None and (self.body_ended or self.records_here)

    @property
    def ops(self) -> tuple[Op, ...]:
        """All that was sent."""
        return tuple(op for stretch in self.stretches for op in stretch.program.ops)

    @property
    def keeps_state(self) -> bool:
        """The backend holds a state for this program."""
        return bool(self.stretches) and self.stretches[-1].program.keep

    @property
    def quiet(self) -> bool:
        """Nothing is running."""
        return all(stretch.ended for stretch in self.stretches)

    def send(self) -> None:
        """Sends what has been recorded, if anything has."""
        with self.changed:
            if self.recorder.empty or not self.may_send:
                return
            ops, places, slots = self.recorder.take()
            program = Program(
                id=self.id,
                ops=ops,
                keep=not self.body_ended,
                resume=bool(self.stretches),
                trace=self.settings.trace,
                namespace=self.settings.namespace,
                timeout_s=self.settings.timeout_s,
            )
            stretch = Stretch(program, places)
            for slot in slots:
                slot.stretch = stretch
                self._slots[slot.branch, slot.name] = slot
            self.stretches.append(stretch)
            self._driver.start(self, stretch)
            self.notify()

    # What comes back

    def feed(self, stretch: Stretch, event: ProgramEvent) -> None:
        """Takes in an event."""
        with self.changed:
            stretch.begun = True
            match event:
                case Delta(branch=branch, name=name, text=text):
                    if (slot := self._slots.get((branch, name))) is not None:
                        slot.chunks.append(text)
                case Value(branch=branch, name=name, text=text):
                    if (slot := self._slots.pop((branch, name), None)) is not None:
                        slot.chunks[:] = [text]
                        slot.value = event
                case Done(usage=usage, requests=num_requests, texts=texts):
                    stretch.ended = True
                    self.usage += usage
                    self.num_requests += num_requests
                    self.texts |= texts
                case Failed():
                    self._fail(self._explain(stretch, event))
                    stretch.ended = True
            if self.settings.log or (self.settings.trace and isinstance(event, Piece | Value | Done)):
                self.log.append(event)
            self.notify()

    def end(self, stretch: Stretch, error: BaseException | None = None) -> None:
        """No more comes from a stretch. Without a terminal event that is an error."""
        with self.changed:
            if not stretch.ended:
                stretch.begun = stretch.ended = True
                error = error or BackendError("the backend's answer ended in the middle", code="broken_stream")
                self._fail(_refused(stretch, error) if isinstance(error, BoughError) else error)
            self.notify()

    def news(self, num_seen: int) -> bool:
        """The log has more than `num_seen` events, or will never have."""
        return len(self.log) > num_seen or self.finished

    def notify(self) -> None:
        """Wakes all who wait."""
        with self.changed:
            self.changed.notify_all()
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                wake()

    def _fail(self, error: BaseException) -> None:
        if self.error is not None:
            return
        if isinstance(error, ProgramError) and error.state is None:
            error.state = self.state
        self.error = error

    def _explain(self, stretch: Stretch, failed: Failed) -> ProgramError:
        """The error with the line to blame. Every stretch in flight is told of a failure; one holds the instruction."""
        index, info = failed.index, failed.error
        known = index is not None and 0 <= index < len(stretch.places)
        return ProgramError(
            info.message,
            code=info.code,
            param=info.param,
            branch=failed.branch,
            place=stretch.places[index] if known else None,  # type: ignore[index]
            instruction=stretch.program.ops[index] if known else None,  # type: ignore[index]
        )

    # Waiting

    def wait(self, done: Callable[[], bool], stretch: Callable[[], Stretch | None]) -> None:
        """Blocks until `done`, or until the program has failed."""
        self._driver.wait(self, lambda: self.error is not None or done(), stretch)

    async def await_until(self, done: Callable[[], bool]) -> None:
        """The same for a task, whose events others bring. Also ends when the program has failed."""
        loop = asyncio.get_running_loop()
        while True:
            with self.changed:
                if self.error is not None or done():
                    return
                future: asyncio.Future[None] = loop.create_future()
                self._wakers.append(lambda future=future: loop.call_soon_threadsafe(_resolve, future))  # type: ignore[misc]
            await future

    def wait_quiet(self) -> None:
        """Blocks until nothing is running."""
        self.wait(lambda: self.quiet, lambda: next((s for s in self.stretches if not s.ended), None))

    def raise_error(self) -> None:
        """Raises what the program failed with, if it has failed."""
        error = self.error
        if isinstance(error, ProgramError):
            raise error
        if error is not None:
            raise ProgramError(f"the program was stopped by {type(error).__name__}: {error}", code="aborted") from error

    # The end

    def finish(self) -> None:
        """The body has returned: sends the rest, and waits for all of it."""
        self._close()
        self.wait_quiet()
        self.raise_error()
        if self.keeps_state:
            self._drop()
        self._finished()

    async def afinish(self) -> None:
        self._close()
        await self.await_until(lambda: self.quiet)
        self.raise_error()
        if self.keeps_state:
            await asyncio.to_thread(self._drop)
        self._finished()

    def abort(self, error: BaseException) -> None:
        """Stops the program; what has not been read raises `error` from now on."""
        if self._stop(error):
            self._drop()

    async def aabort(self, error: BaseException) -> None:
        """The same without blocking the event loop."""
        if self._stop(error):
            await asyncio.to_thread(self._drop)

    def _stop(self, error: BaseException) -> bool:
        """Whether the backend still keeps a state."""
        with self.changed:
            if self.finished:
                return False
            begun = [stretch for stretch in self.stretches if stretch.begun]
            # a failed program is gone already, and one that is left while it runs goes with that
            kept = self.error is None and bool(begun) and begun[-1].program.keep and all(s.ended for s in begun)
            self._fail(error)
            self.body_ended = True
        self._driver.stop(self)
        self._finished()
        return kept

    def _drop(self) -> None:
        with contextlib.suppress(BoughError):  # nothing is lost: the backend forgets it by itself some time later
            self.backend.drop(self.id)

    def _close(self) -> None:
        """Text to which nothing is generated is not worth a request of its own."""
        self.body_ended = True
        if self.recorder.generates or self.stretches:
            self.send()

    def _finished(self) -> None:
        with self.changed:
            self.finished = True
            self.notify()


def _refused(stretch: Stretch, refusal: BoughError) -> ProgramError:
    """A refusal, which names no instruction: if only one generates, it is that one's."""
    if isinstance(refusal, ProgramError):
        return refusal
    generating = [index for index, op in enumerate(stretch.program.ops) if isinstance(op, (Gen, Select))]
    index = generating[0] if len(generating) == 1 else None
    op = None if index is None else stretch.program.ops[index]
    error = ProgramError(
        refusal.message,
        code=refusal.code,
        param=refusal.param,
        place=None if index is None else stretch.places[index],
        branch=None if op is None else op.branch,
        instruction=op,
    )
    error.__cause__ = refusal
    return error


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
