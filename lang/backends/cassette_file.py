"""File format of cassettes: programs and their events, one per line, so that files can be read and compared."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ...constrain.workers.decoders import json_decoder
from ...runtime.protocol.errors import ErrorInfo
from ...runtime.protocol.program import BranchFailed, BranchRestarted, Done, Failed, Piece, Program, ProgramEvent, Value
from ...runtime.protocol.request import Timings
from ..diagnostics.errors import BackendError, CausedInfo, ProgramError

VERSION = 1
MAX_BYTES = 64 << 20
MAX_SHOWN = 300
MAX_COMPARED = 200

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_MIN_SECRET = 8


@dataclass(eq=False)
class Record:
    """A submission, and what came of it.

    program    what matters of it, as JSON
    after      the submission that it continues: that one's name; None for a first one
    number     of the submissions that are alike, from 0
    refused    the error that was raised instead of events
    left       whoever ran it left before the last event
    lost       it ended in an error of the backend that need not come again: not worth keeping
    """

    program: dict[str, Any]
    after: str | None
    number: int
    events: list[ProgramEvent] = field(default_factory=list)
    refused: Refused | None = None
    left: bool = False
    lost: bool = False
    key: str = ""

    def take(self, event: ProgramEvent) -> None:
        """One more event has come."""
        self.events.append(plain(still(event)))
        cause = event.error.cause if isinstance(event, Failed) and isinstance(event.error, CausedInfo) else None
        self.lost = isinstance(cause, BackendError) and cause.retryable

    @property
    def name(self) -> str:
        return f"{self.key}.{self.number}"


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A program that the backend did not take."""

    kind: str
    error: ErrorInfo


class Left(msgspec.Struct, frozen=True, tag="left"):
    """The end of a recording that was left early."""


class Heading(msgspec.Struct, frozen=True, tag="program"):
    """Begins a record."""

    key: str
    number: int
    program: dict[str, Any]
    after: str | None = None


class Header(msgspec.Struct, frozen=True, tag="cassette"):
    """The first line."""

    version: int


_Line = Header | Heading | Refused | Left | ProgramEvent


class Secrets:
    """Texts that are never written: values of environment variables whose names say so, and those given."""

    def __init__(self, given: Iterable[str] = (), environment: Mapping[str, str] = os.environ) -> None:
        named = {value: name for name, value in environment.items() if _SECRET_NAME.search(name)}
        named |= dict.fromkeys(given, "secret")
        found = {value: name for value, name in named.items() if len(value) >= _MIN_SECRET or value in set(given)}
        self._names = {json.dumps(value, ensure_ascii=False)[1:-1]: name for value, name in found.items() if value}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def hide(self, text: str) -> str:
        """JSON text in which each of them is replaced by a name in brackets."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: f"[{self._names[match.group()]}]", text)


def matter(program: Program, secrets: Secrets) -> dict[str, Any]:
    """Returns the parts of a program that decide its events: neither its id, nor its time limit, nor its caller."""
    bare = msgspec.structs.replace(program, id="", namespace="", timeout_s=None)
    found: dict[str, Any] = json.loads(secrets.hide(to_json(bare)))
    found.pop("id", None)
    return found


def key_of(program: Mapping[str, Any], after: str | None) -> str:
    text = json.dumps([program, after], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def still(event: ProgramEvent) -> ProgramEvent:
    """An event without times, which differ from run to run."""
    match event:
        case Value():
            return msgspec.structs.replace(event, timings=Timings())
        case Done():
            return msgspec.structs.replace(event, elapsed_s=0.0)
        case Piece():
            return msgspec.structs.replace(event, start_s=0.0, stop_s=0.0, queue_s=0.0, prefill_s=0.0)
    return event


def plain(event: ProgramEvent) -> ProgramEvent:
    """An event as it can be written down."""
    if isinstance(event, Failed | BranchFailed | BranchRestarted) and isinstance(event.error, CausedInfo):
        return msgspec.structs.replace(event, error=event.error.plain())
    return event


def to_json(value: object) -> str:
    """One line of JSON, without fields that have their default."""
    return json.dumps(_lean(value), ensure_ascii=False)


def _lean(value: object) -> Any:
    if isinstance(value, msgspec.Struct) and not value.__struct_config__.array_like:
        config = value.__struct_config__
        fields = msgspec.structs.fields(value)
        kept = {f.encode_name: getattr(value, f.name) for f in fields if not _is_default(f, getattr(value, f.name))}
        tag = {config.tag_field: config.tag} if config.tag_field is not None else {}
        return {**tag, **{name: _lean(item) for name, item in kept.items()}}
    if isinstance(value, list | tuple):
        return [_lean(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _lean(item) for name, item in value.items()}
    return msgspec.to_builtins(value)


def _is_default(info: msgspec.structs.FieldInfo, value: object) -> bool:
    if info.default is not msgspec.NODEFAULT:
        return bool(value == info.default)
    return info.default_factory is not msgspec.NODEFAULT and value == info.default_factory()


def load(path: Path) -> list[Record]:
    """The records of a file; none if there is no file.

    Raises:
        ProgramError: it is no cassette, or a newer one.
    """
    if not path.exists():
        return []
    if path.stat().st_size > MAX_BYTES:
        raise ProgramError(f"the cassette {path} is larger than {MAX_BYTES >> 20} MB", code="invalid_cassette")
    decoder: msgspec.json.Decoder[_Line] = json_decoder(_Line)
    records: list[Record] = []
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # a text may hold other ends of lines
    for number, line in enumerate(lines, start=1):
        try:
            item = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise ProgramError(f"{path}, line {number}: {error}; record it anew", code="invalid_cassette") from error
        if number == 1:
            if not isinstance(item, Header) or item.version != VERSION:
                message = f"{path} is no cassette of version {VERSION}: record it anew"
                raise ProgramError(message, code="invalid_cassette")
        elif isinstance(item, Heading):
            records.append(Record(item.program, item.after, item.number, key=item.key))
        elif isinstance(item, Header) or not records:
            raise ProgramError(f"{path}, line {number}: this belongs to no program", code="invalid_cassette")
        elif isinstance(item, Refused):
            records[-1].refused = item
        elif isinstance(item, Left):
            records[-1].left = True
        else:
            records[-1].events.append(item)
    return records


def save(path: Path, records: Sequence[Record], secrets: Secrets) -> None:
    """Writes the file as a whole, or not at all.

    Raises:
        ProgramError: it would be too large.
    """
    lines = [to_json(Header(VERSION))]
    for record in records:
        lines.append(to_json(Heading(record.key, record.number, record.program, record.after)))
        lines += [secrets.hide(to_json(event)) for event in record.events]
        lines += [secrets.hide(to_json(record.refused))] if record.refused is not None else []
        lines += [to_json(Left())] if record.left else []
    data = ("\n".join(lines) + "\n").encode(errors="replace")
    if len(data) > MAX_BYTES:
        raise ProgramError(f"the cassette {path} would be larger than {MAX_BYTES >> 20} MB", code="invalid_cassette")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def difference(program: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Describes how a program differs from the recorded one that is most like it."""
    if not records:
        return "nothing is recorded"
    lines = _lines(program)
    compared = records[-MAX_COMPARED:]
    nearest = max(compared, key=lambda r: difflib.SequenceMatcher(None, lines, _lines(r.program), False).ratio())
    recorded = _lines(nearest.program)
    for index, (old, new) in enumerate(zip(recorded, lines, strict=False)):
        if old != new:
            where = "its settings differ" if index == 0 else f"instruction {index - 1} differs"
            return f"{where}.\n  recorded: {_shown(old, new)}\n  now:      {_shown(new, old)}"
    if len(recorded) != len(lines):
        same = min(len(recorded), len(lines))
        longer, which = (
            (recorded, "recorded one") if len(recorded) > same else (lines, f"new one, instruction {same - 1}")
        )
        counts = f"it has {len(lines) - 1} instructions, the recorded one {len(recorded) - 1}"
        return f"{counts}; the first {which}: {longer[same][:MAX_SHOWN]}"
    return "it is the same, but follows something else" if nearest.after else "it was recorded less often"


def _lines(program: Mapping[str, Any]) -> list[str]:
    """The settings, and each instruction: those in a block after the one that holds them."""
    settings = {name: value for name, value in program.items() if name != "ops"}
    parts = (settings, *_walked(program.get("ops", ())))
    return [json.dumps(part, ensure_ascii=False, sort_keys=True) for part in parts]


def _walked(ops: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for op in ops:
        inner = [name for name in ("then", "otherwise", "body") if name in op]
        yield {**op, **{name: len(op[name]) for name in inner}}
        for name in inner:
            yield from _walked(op[name])


def _shown(line: str, other: str) -> str:
    """The part of a line around the first difference."""
    same = next((i for i, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), min(len(line), len(other)))
    start = max(0, same - MAX_SHOWN // 2)
    return ("..." if start else "") + line[start : start + MAX_SHOWN]
