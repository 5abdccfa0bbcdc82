"""Recording and playback of the events that programs get from a backend: their tests run offline, in milliseconds."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, Self

from ...runtime.protocol.errors import BoughError, RequestError, to_info
from ...runtime.protocol.program import Done, Failed, Program, ProgramEvent
from ...runtime.tools.registry import ToolCall
from ..backend import TEXT_ONLY, Backend
from ..diagnostics.errors import ProgramError, UnsupportedError
from .cassette_file import Record, Refused, Secrets, difference, key_of, load, matter, save
from .messages.tools import NO_TOOLS

logger = logging.getLogger("bough.backends")

Mode = Literal["auto", "record", "replay"]
SAVE_EVERY_S = 1.0
MAX_STATES = 4096


class Cassette:
    """Plays back a file, or records one.

    path       the file: JSON lines, one for each program and each of its events
    backend    where programs run that are not recorded; it is not closed with the cassette
    mode       "replay": only what is recorded; "record": all anew; "auto": what is recorded, and the rest on `backend`
    secrets    texts that are never written. So are values of environment variables whose names hold KEY, TOKEN, SECRET,
               PASSWORD or CREDENTIAL

    A program is found by its instructions and by what came before it in its run; equal ones are played back in the
    order in which they were recorded. Tools are not called in playback: what they gave is recorded. Times are not
    recorded. The file is written as a whole, at the end and about every second; an error is
    raised at the end only, and logged before.

    >>> with bough.Cassette("capital.jsonl", bough.LocalBackend()) as backend:
    ...     state = capital.run("France", backend=backend)
    """

    def __init__(
        self, path: str | Path, backend: Backend | None = None, mode: Mode = "auto", *, secrets: Iterable[str] = ()
    ) -> None:
        if mode not in ("auto", "record", "replay"):
            raise RequestError(f'mode must be "auto", "record" or "replay", got {mode!r}', param="mode")
        if mode == "record" and backend is None:
            raise RequestError("recording needs a backend to run programs on", param="backend")
        self.path = Path(path)
        self.mode = mode
        self._backend = backend if mode != "replay" else None
        self._tape = _Tape(self.path, Secrets(secrets), fresh=mode == "record")
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, _Place] = OrderedDict()
        self._finalizer = weakref.finalize(self, self._tape.save)

    @property
    def modalities(self) -> frozenset[str]:
        return TEXT_ONLY if self._backend is None else self._backend.modalities

    @property
    def num_recorded(self) -> int:
        """Requests that were run on the backend and recorded."""
        return self._tape.num_new

    def run(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> Iterator[ProgramEvent]:
        record, backend = self._find(program)
        if backend is None:
            yield from _played(record)
            return
        try:
            for event in backend.run(program, tools) if tools else backend.run(program):
                record.take(event)
                yield event
        except BoughError as error:
            self._refused(record, error)
            raise
        finally:
            self._recorded(record)

    async def arun(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> AsyncIterator[ProgramEvent]:
        record, backend = self._find(program)
        if backend is None:
            for event in _played(record):
                yield event
                await asyncio.sleep(0)  # as others would, so that tasks take turns
            return
        events = backend.arun(program, tools) if tools else backend.arun(program)
        try:
            async for event in events:
                record.take(event)
                yield event
        except BoughError as error:
            self._refused(record, error)
            raise
        finally:
            aclose = getattr(events, "aclose", None)
            if aclose is not None:
                await aclose()
            self._recorded(record)

    def drop(self, program_id: str) -> None:
        with self._lock:
            place = self._runs.pop(program_id, None)
        if self._backend is not None and (place is None or place.live):
            self._backend.drop(program_id)

    def flush_cache(self) -> bool:
        return self._backend.flush_cache() if self._backend is not None else True

    def close(self) -> None:
        """Writes the file, if there is anything new. The backend stays open."""
        self._tape.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _find(self, program: Program) -> tuple[Record, Backend | None]:
        """The record of a program: one to play back, or a new one and where to run it."""
        with self._lock:
            place = self._runs.get(program.id) if program.resume else None
            what = matter(program, self._tape.secrets)
            after = place.name if place is not None else None
            key = key_of(what, after)
            # A run that is played back cannot go on elsewhere: no backend has its state.
            record = None if place is not None and place.live else self._tape.take(key)
            backend = None
            if record is None:
                if self._backend is None or (place is not None and not place.live):
                    raise self._missing(what, key, after)
                backend = self._backend
                record = self._tape.begin(what, after, key)
            self._runs[program.id] = _Place(record.name, live=backend is not None)
            self._runs.move_to_end(program.id)
            while len(self._runs) > MAX_STATES:
                self._runs.popitem(last=False)
            return record, backend

    def _missing(self, what: Mapping[str, object], key: str, after: str | None) -> ProgramError:
        same = self._tape.count(key)
        if same:
            why = f"it was recorded {same} times, and is run once more"
        else:
            alike = [record for record in self._tape.records if record.after == after]
            why = difference(what, alike or self._tape.records)
        how = 'record it anew with mode="record" and a backend (with pytest: --bough-record=all)'
        return ProgramError(f"the program is not on the cassette {self.path}: {why}\n{how}", code="not_recorded")

    def _refused(self, record: Record, error: BoughError) -> None:
        """A refusal comes again; anything else, such as a lost connection, is not worth keeping."""
        if isinstance(error, RequestError | UnsupportedError) and not record.events:
            kind = "unsupported" if isinstance(error, UnsupportedError) else "request"
            record.refused = Refused(kind, to_info(error))
        else:
            record.events.clear()

    def _recorded(self, record: Record) -> None:
        if record.lost:
            record.events.clear()
        over = bool(record.events) and isinstance(record.events[-1], Done | Failed)
        record.left = not over and record.refused is None
        with self._lock:
            self._tape.end(record)


class _Place:
    """Progress of a run: the record of its last submission, and whether the backend made it."""

    def __init__(self, name: str, *, live: bool) -> None:
        self.name = name
        self.live = live


class _Tape:
    """The records, those to be played back and new ones."""

    def __init__(self, path: Path, secrets: Secrets, *, fresh: bool) -> None:
        self.secrets = secrets
        self.num_new = 0
        self._path = path
        self.records = [] if fresh else load(path)
        self._numbers: dict[str, int] = {}
        self._waiting: dict[str, list[Record]] = {}
        for record in sorted(self.records, key=lambda record: record.number, reverse=True):
            self._waiting.setdefault(record.key, []).append(record)
            self._numbers[record.key] = self._numbers.get(record.key, 0) + 1
        self._unsaved = False
        self._warned = False
        self._saved_at = time.monotonic()
        self._saving = threading.Lock()

    def count(self, key: str) -> int:
        return self._numbers.get(key, 0)

    def take(self, key: str) -> Record | None:
        """The next record to play back."""
        waiting = self._waiting.get(key)
        return waiting.pop() if waiting else None

    def begin(self, program: dict[str, object], after: str | None, key: str) -> Record:
        """A new record, in the place that its beginning gives it."""
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        record = Record(program, after, number, key=key)
        self.records.append(record)
        self.num_new += 1
        return record

    def end(self, record: Record) -> None:
        """A record is complete, or will never be."""
        if not record.events and record.refused is None:  # nothing came: not worth a line
            self.records.remove(record)
        self._unsaved = True
        if time.monotonic() - self._saved_at > SAVE_EVERY_S:
            self._save_meanwhile()

    def _save_meanwhile(self) -> None:
        """Writes the file if that is possible now. It is no matter of the program whose end is the occasion."""
        try:
            self.save()
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning("the cassette %s cannot be written now, and is tried again: %s", self._path, error)

    def save(self) -> None:
        with self._saving:
            if self._unsaved:
                self._unsaved = False  # before what may end meanwhile
                self._saved_at = time.monotonic()
                records = [record for record in self.records if record.events or record.refused]
                try:
                    save(self._path, records, self.secrets)
                except BaseException:
                    self._unsaved = True
                    raise


def _played(record: Record) -> Iterator[ProgramEvent]:
    if record.refused is not None:
        error, kind = record.refused.error, UnsupportedError if record.refused.kind == "unsupported" else RequestError
        raise kind(error.message, code=error.code, param=error.param)
    yield from record.events
    if record.left:
        raise ProgramError("the recording was left here, before the program's end", code="not_recorded")
