"""Pins: the commit and the hashes of the first time that a model was fetched, which are those of all times; and where
a single file comes from."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..protocol.errors import ModelError
from .fetch import default_cache


class PinnedFile(msgspec.Struct, frozen=True):
    """A file's hash, and by what it is seen that it cannot have changed since: size in bytes, and time in ns."""

    sha256: str
    num_bytes: int
    modified_ns: int


class Pin(msgspec.Struct, frozen=True):
    """The commit that a name stands for, or the URL, and its files by path in the folder."""

    revision: str
    files: dict[str, PinnedFile]


class FileOrigin(msgspec.Struct, frozen=True):
    """Source of the file beside it. `source` is what the user named; `etag` and `num_bytes` are the server's,
    and must still be the same when a transfer is taken up again."""

    source: str
    url: str
    etag: str = ""
    num_bytes: int = 0


def pin_place(name: str) -> Path:
    """Returns the file that the pin of a name is in."""
    return default_cache() / "pins" / f"{name.replace('/', '--')}.json"


def pinned(path: Path) -> PinnedFile:
    """Hashes a file as it is now."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        status = os.fstat(file.fileno())
    return PinnedFile(digest, status.st_size, status.st_mtime_ns)


def looked_at(path: Path, known: PinnedFile, *, verify: bool) -> PinnedFile:
    """The file as it is now; it is hashed only if `verify` asks for it, or its size or time has changed."""
    status = path.stat()
    same = (known.num_bytes, known.modified_ns) == (status.st_size, status.st_mtime_ns)
    return known if same and not verify else pinned(path)


def read_pin(place: Path) -> Pin | None:
    """Reads a pin; None if there is none. Raises ModelError: it cannot be read, which is no reason to trust anew."""
    try:
        return msgspec.json.decode(place.read_bytes(), type=Pin)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(
            f"{place}: the pinned revision cannot be read ({error.strerror}): check BOUGH_CACHE and its "
            "file permissions"
        ) from error
    except msgspec.DecodeError as error:
        raise ModelError(
            f"{place}: the pinned revision cannot be read ({error}): remove this file to trust the next pull"
        ) from error


def write_pin(place: Path, pin: Pin) -> None:
    """Writes it whole or not at all. Raises ModelError."""
    content: Any = msgspec.json.format(msgspec.json.encode(pin), indent=1)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, content)
    except OSError as error:
        raise ModelError(f"{place}: the revision cannot be pinned: {error.strerror}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        scratch = Path(file.name)
        try:
            file.write(content)
            file.flush()
            os.replace(scratch, path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise


def read_origin(folder: Path) -> FileOrigin | None:
    """Reads where the file in a folder comes from; None if nothing says so."""
    try:
        return msgspec.json.decode((folder / "origin.json").read_bytes(), type=FileOrigin)
    except (OSError, msgspec.DecodeError):
        return None


def write_origin(folder: Path, origin: FileOrigin) -> None:
    """Writes where the file in a folder comes from. Raises OSError."""
    write_whole(folder / "origin.json", msgspec.json.encode(origin))


def slug(source: str) -> str:
    """Returns a folder's name for a source: readable, and another for each."""
    readable = PurePosixPath(urlsplit(source).path).stem if source.startswith(("https://", "http://")) else source
    plain = re.sub(r"[^A-Za-z0-9._-]+", "--", readable)[:120].lstrip(".")
    return f"{plain}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
