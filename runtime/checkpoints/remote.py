"""Remote GGUF files, pinned at first use: `organisation/name:file.gguf`, `organisation/name:Q4_K_M`, or https URLs."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

import msgspec

from ..protocol.errors import ModelError
from .download import Download, check_address, get_json
from .fetch import Progress, default_cache
from .hub import HUB_FILE, is_url
from .pins import Pin, PinnedFile, looked_at, pin_place, pinned, read_pin, slug, write_pin

_HUB = "https://huggingface.co"
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_SHOWN = 12


class _Blob(msgspec.Struct):
    sha256: str = ""


class _Sibling(msgspec.Struct):
    rfilename: str
    lfs: _Blob | None = None


class _Revision(msgspec.Struct):
    """The hub's response about a revision, as far as it is used."""

    sha: str
    siblings: list[_Sibling] = []


def folder_of(source: str) -> Path:
    """Returns the folder in the cache for the file of `source`."""
    return default_cache() / "files" / slug(source)


def place_of_pin(source: str) -> Path:
    """Returns the path of the pin of `source`."""
    return pin_place(slug(source))


def fetch_file(
    source: str, *, progress: Progress | None = None, verify: bool = False, sha256: str | None = None
) -> Path:
    """Returns the file of `source`, from the cache or downloaded.

    The first time, the commit (or URL) and the SHA-256 are pinned; later they are required. `verify` hashes an existing
    file even if its size and time are unchanged. `sha256` is the required hash of the file.

    Raises:
        ModelError: there is no such file, it cannot be fetched, or it differs from the pinned one.
    """
    place = place_of_pin(source)
    pin = read_pin(place)
    if pin is not None:
        (path, known), *_ = pin.files.items()
        target = folder_of(source) / PurePosixPath(path).name
        if sha256 not in (None, known.sha256):
            raise ModelError(f"{source}: {sha256} was requested, but the file is pinned with SHA-256 {known.sha256}")
        if target.is_file():
            return _checked(source, target, path, pin, place, verify=verify)
        url = pin.revision if is_url(source) else _resolved(source, pin.revision, path)
        Download(source, url, target, known.sha256, _token(source), progress).fetch()
    else:
        url, revision, path, stated = _found(source)
        target = folder_of(source) / PurePosixPath(path).name
        if sha256 is not None and stated not in (None, sha256):
            raise ModelError(f"{source}: {sha256} was requested, but the Hub lists SHA-256 {stated}")
        Download(source, url, target, sha256 or stated, _token(source), progress).fetch()
        pin = Pin(revision, {path: pinned(target)})
        write_pin(place, pin)
        return target
    write_pin(place, Pin(pin.revision, {path: _timed(target, known)}))
    return target


def _timed(target: Path, known: PinnedFile) -> PinnedFile:
    status = target.stat()
    return PinnedFile(known.sha256, status.st_size, status.st_mtime_ns)


def _checked(source: str, target: Path, path: str, pin: Pin, place: Path, *, verify: bool) -> Path:
    """Returns the existing file. Raises ModelError if it differs from its pin."""
    known = pin.files[path]
    now = looked_at(target, known, verify=verify)
    if now.sha256 != known.sha256:
        raise ModelError(
            f"{target} does not match its hash in {place}: bough models remove {source}, then bough pull {source}"
        )
    if now != known:
        write_pin(place, Pin(pin.revision, {path: now}))
    return target


def _found(source: str) -> tuple[str, str, str, str | None]:
    """Returns URL, revision, path and SHA-256 (if the hub states one) of a file to fetch for the first time."""
    if is_url(source):
        check_address(source, source)
        if "@" in urlsplit(source).netloc:
            host = urlsplit(source).hostname
            raise ModelError(f"an address with a password would be stored on disk: leave out the part before @{host}")
        name = PurePosixPath(urlsplit(source).path).name
        if not name.endswith(".gguf"):
            raise ModelError(f"{source}: a model's address must end in .gguf: give that of the file itself")
        return source, source, name, None
    match = HUB_FILE.fullmatch(source)
    assert match is not None
    url = f"{_endpoint()}/api/models/{match['name']}/revision/{quote(match['revision'] or 'main', safe='')}?blobs=true"
    try:
        revision = msgspec.json.decode(get_json(source, url, _token(source)), type=_Revision)
    except msgspec.DecodeError as error:
        raise ModelError(f"{source}: {url} does not answer like the Hub: check HF_ENDPOINT ({error})") from error
    sibling = _chosen(match["name"], match["wanted"], revision.siblings)
    stated = sibling.lfs.sha256 if sibling.lfs is not None else ""
    path = sibling.rfilename
    return _resolved(source, revision.sha, path), revision.sha, path, stated or None


def _chosen(name: str, wanted: str, siblings: list[_Sibling]) -> _Sibling:
    """Returns the one file that matches. Raises ModelError: there is none, or there are several."""
    files = {one.rfilename: one for one in siblings if one.rfilename.endswith(".gguf") and one.rfilename.isprintable()}
    if not files:
        raise ModelError(f"{name} has no GGUF files: leave out :{wanted} to take its safetensors")
    listing = ", ".join(list(files)[:_SHOWN]) + (", ..." if len(files) > _SHOWN else "")
    if wanted in files:
        chosen = [wanted]
    else:
        part = re.compile(rf"(?<![A-Za-z0-9]){re.escape(wanted)}(?![A-Za-z0-9_])", re.IGNORECASE)
        chosen = [] if wanted.endswith(".gguf") else [path for path in files if part.search(PurePosixPath(path).name)]
    if not chosen:
        raise ModelError(f"{name} has no file {wanted}: it has {listing}")
    if any(_PART.search(path) for path in chosen):
        raise ModelError(f"{chosen[0]} is part of a split file: choose a whole one of {listing}")
    if len(chosen) > 1:
        raise ModelError(
            f"{name} has several {wanted} files: name one, {name}:{chosen[0]} (or {', '.join(chosen[1:])})"
        )
    return files[chosen[0]]


def _resolved(source: str, revision: str, path: str) -> str:
    match = HUB_FILE.fullmatch(source)
    assert match is not None
    return f"{_endpoint()}/{match['name']}/resolve/{quote(revision, safe='')}/{quote(path)}"


def _endpoint() -> str:
    """Returns the hub's address. Raises ModelError: HF_ENDPOINT is invalid, or its connection insecure."""
    address = (os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
    check_address("HF_ENDPOINT", address)
    return address


def _token(source: str) -> str | None:
    """Returns the user's token for the hub, which is sent to no other address. Raises ModelError: it is invalid."""
    token = "" if is_url(source) else os.environ.get("HF_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise ModelError("HF_TOKEN contains characters that no token has: copy it again from the Hub's settings")
    return token or None
