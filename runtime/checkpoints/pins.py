"""Pins: the commit and the hashes of a model's first download, which later ones must match; and the origins of single
files."""

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
    """A file's hash, with its size in bytes and its time in ns, by which later changes are detected."""

    sha256: str
    num_bytes: int
    modified_ns: int


class Pin(msgspec.Struct, frozen=True):
    """Commit that a name refers to, or the URL, and its files by path in the folder."""

    revision: str
    files: dict[str, PinnedFile]


class FileOrigin(msgspec.Struct, frozen=True):
    """Origin of the file beside it. `source` is the user's name for it; `etag` and `num_bytes` are the server's, and
    must be unchanged when a transfer is resumed."""

    source: str
    url: str
    etag: str = ""
    num_bytes: int = 0


def pin_place(name: str) -> Path:
    """Returns the path of a name's pin."""
    return default_cache() / "pins" / f"{name.replace('/', '--')}.json"


def pinned(path: Path) -> PinnedFile:
    """Hashes a file in its current state."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        status = os.fstat(file.fileno())
    return PinnedFile(digest, status.st_size, status.st_mtime_ns)


def looked_at(path: Path, known: PinnedFile, *, verify: bool) -> PinnedFile:
    """Returns the file's current state; hashes it only with `verify`, or if its size or time has changed."""
    status = path.stat()
    same = (known.num_bytes, known.modified_ns) == (status.st_size, status.st_mtime_ns)
    return known if same and not verify else pinned(path)


def read_pin(place: Path) -> Pin | None:
    """Reads a pin; None if there is none. Raises ModelError if it cannot be read, rather than trusting files anew."""
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
    """Writes a pin, whole or not at all. Raises ModelError."""
    content: Any = msgspec.json.format(msgspec.json.encode(pin), indent=1)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, content)
    except OSError as error:
        raise ModelError(f"{place}: the revision cannot be pinned: {error.strerror}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file, whole or not at all. Raises OSError."""
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
    """Reads the origin of the file in a folder; None if it is not recorded."""
    try:
        return msgspec.json.decode((folder / "origin.json").read_bytes(), type=FileOrigin)
    except (OSError, msgspec.DecodeError):
        return None


def write_origin(folder: Path, origin: FileOrigin) -> None:
    """Writes the origin of the file in a folder. Raises OSError."""
    write_whole(folder / "origin.json", msgspec.json.encode(origin))


def slug(source: str) -> str:
    """Returns a readable, unique folder name for a source."""
    readable = PurePosixPath(urlsplit(source).path).stem if source.startswith(("https://", "http://")) else source
    plain = re.sub(r"[^A-Za-z0-9._-]+", "--", readable)[:120].lstrip(".")
    return f"{plain}-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
