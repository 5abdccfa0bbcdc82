"""Resumable download of a large file over HTTP; the file appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import os
import re
import shutil
import ssl
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import httpx

from ..protocol.errors import ModelError
from .fetch import Progress, file_sha256, unwritable
from .pins import FileOrigin, read_origin, write_origin

logger = logging.getLogger("bough.checkpoints")

MAX_FAILURES = 5
"""Consecutive attempts without progress before a download fails."""

WAIT_S = 0.5
"""Wait after the first of these; each further one doubles it."""

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_SPARE_BYTES = 1 << 30  # of the disk, where the size of the file is unknown
_CHUNK_BYTES = 1 << 16  # most that an interrupted transfer loses
_MAX_TEXT_BYTES = 32 << 20
_MAGIC = b"GGUF"
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Download:
    """A GGUF file to fetch from `url` to `target`; the user named it `source`.

    sha256    SHA-256 of the file, if known
    token     token sent to the URL's host, but to none that it redirects to
    """

    source: str
    url: str
    target: Path
    sha256: str | None = None
    token: str | None = None
    progress: Progress | None = None

    def fetch(self) -> None:
        """Fetches the file unless it exists. Waits for another process that fetches the same one.

        Raises:
            ModelError: the file cannot be fetched or written, or is not the expected one.
        """
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with self._locked() as part:
                if self.target.is_file() and self.sha256 in (None, file_sha256(self.target)):
                    if not _size(part):
                        self.part.unlink()
                    return
                try:
                    self._fill(part)
                    self._accept(part)
                finally:
                    self._clear()
        except OSError as error:
            raise ModelError(unwritable(self.target.parent, error)) from error

    @property
    def part(self) -> Path:
        """Path of the partial file."""
        return self.target.with_name(f"{self.target.name}.part")

    def _clear(self) -> None:
        """Removes the remains of a download that fetched nothing."""
        with contextlib.suppress(OSError):
            if not self.part.stat().st_size:
                self.part.unlink()
        if not any(path.name.endswith((".part", ".gguf")) for path in self.target.parent.iterdir()):
            shutil.rmtree(self.target.parent, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Opens the partial file and locks it against other processes."""
        while True:
            with _open_part(self.part) as part:
                try:
                    fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    logger.warning("another process is downloading %s: waiting for it", self.source)
                    fcntl.flock(part, fcntl.LOCK_EX)
                try:
                    current = os.path.samestat(os.fstat(part.fileno()), self.part.lstat())
                except FileNotFoundError:  # it was renamed to the target, or removed, while this process waited
                    current = False
                if current:
                    yield part
                    return

    def _fill(self, part: IO[bytes]) -> None:
        """Fetches until the file is complete, resuming interrupted transfers."""
        failures, before = 0, _size(part)
        with client(self.source, self.url, self.token) as http:
            while True:
                try:
                    if self._transfer(http, part):
                        return
                    reason = "the transfer was interrupted"
                except httpx.RequestError as error:
                    reason = cause(error)
                    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) and _size(part) == before:
                        raise ModelError(unreachable(self.source, self.url, error)) from error
                failures = failures + 1 if _size(part) == before else 0
                before = _size(part)
                if failures >= MAX_FAILURES:
                    raise ModelError(
                        f"{self.source}: {reason} after {before / 1e6:,.1f} MB, {MAX_FAILURES} times: run the command "
                        "again to resume"
                    )
                time.sleep(WAIT_S * 2**failures)

    def _transfer(self, http: httpx.Client, part: IO[bytes]) -> bool:
        """Makes one request for the missing part; returns True if the file is complete."""
        known = read_origin(self.target.parent)
        begun = _size(part)
        if begun and (known is None or known.url != self.url or not (known.etag or self.sha256)):
            begun = _cut(part, 0)  # the rest might be of another file
        headers = {"Range": f"bytes={begun}-"} if begun else {}
        if begun and known is not None and known.etag:
            headers["If-Range"] = known.etag
        with http.stream("GET", self.url, headers=headers) as response:
            found = _RANGE.fullmatch(response.headers.get("content-range", ""))
            if response.status_code == 416 or (
                response.status_code == 206 and (found is None or int(found[1]) != begun)
            ):
                _cut(part, 0)
                return False
            if response.status_code not in (200, 206):
                raise_for(self.source, response)
            begun = begun if response.status_code == 206 else _cut(part, 0)
            total = int(found[2]) if found is not None else int(response.headers.get("content-length") or 0)
            etag = response.headers.get("etag", "")
            write_origin(
                self.target.parent, FileOrigin(self.source, self.url, "" if etag.startswith("W/") else etag, total)
            )
            self._check_room(total - begun)
            return self._take(response, part, begun, total)

    def _take(self, response: httpx.Response, part: IO[bytes], begun: int, total: int) -> bool:
        """Appends the body; returns True if it was complete."""
        done = begun
        for chunk in response.iter_raw(_CHUNK_BYTES):
            if not total and shutil.disk_usage(self.target.parent).free < _SPARE_BYTES:
                _cut(part, 0)
                raise ModelError(
                    f"{self.source}: its server does not say how large it is, and after {done / 1e9:.1f} GB less than "
                    f"{_SPARE_BYTES / 1e9:.1f} GB are left in {self.target.parent}: nothing was kept"
                )
            part.write(chunk)
            done += len(chunk)
            if begun == 0 and done >= len(_MAGIC) > done - len(chunk):
                self._check_kind(part)
            if self.progress is not None:
                self.progress("download", done, max(total, done))
            if done > total > 0:
                break
        part.flush()
        if total and done > total:
            _cut(part, 0)
        return done > 0 and done == (total or done)

    def _check_kind(self, part: IO[bytes]) -> None:
        part.flush()
        part.seek(0)
        first = part.read(len(_MAGIC))
        if first != _MAGIC:
            _cut(part, 0)
            self.part.unlink()
            raise ModelError(
                f"{self.source} is not a GGUF file (it begins with {first!r}): give the address of the file itself"
            )

    def _check_room(self, num_bytes: int) -> None:
        free = shutil.disk_usage(self.target.parent).free
        if num_bytes > free:
            raise ModelError(
                f"{self.source} needs {num_bytes / 1e9:.1f} GB more, but {self.target.parent} has {free / 1e9:.1f} GB "
                "free: remove a model (bough models), or set BOUGH_CACHE to a folder on another disk"
            )

    def _accept(self, part: IO[bytes]) -> None:
        """Renames the file to its target if it is the expected one."""
        part.flush()
        os.fsync(part.fileno())
        if self.sha256 is not None and (digest := file_sha256(self.part)) != self.sha256:
            self.part.unlink()
            raise ModelError(
                f"{self.source}: the download has SHA-256 {digest}, but {self.sha256} was expected; nothing was kept"
            )
        os.replace(self.part, self.target)


def _open_part(path: Path) -> IO[bytes]:
    """Opens or creates a file for appending and reading.

    Raises:
        ModelError: the path is not a plain file. Other users of a shared cache could link it to any file of this user.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "ab+")
        os.close(descriptor)
    raise ModelError(f"{path} is a link or no file, and nothing was written to it: remove it")


def client(source: str, url: str, token: str | None) -> httpx.Client:
    """Returns an HTTP client for models, with the system's proxies, and `token` for the first host only. Every address,
    including redirects, is checked before anything is sent there."""
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
    local = urlsplit(url).hostname in _LOOPBACK

    def check(request: httpx.Request) -> None:
        check_address(source, str(request.url), local=local)

    hooks = {"request": [check]}
    return httpx.Client(headers=headers, timeout=_TIMEOUT, follow_redirects=True, verify=_trusted(), event_hooks=hooks)


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Returns a context with the system's certificates, which take a while to read."""
    return httpx.create_ssl_context()


def get_json(source: str, url: str, token: str | None) -> bytes:
    """Returns the body of the response from a URL. Raises ModelError."""
    try:
        with client(source, url, token) as http, http.stream("GET", url) as response:
            if response.status_code != 200:
                raise_for(source, response)
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _MAX_TEXT_BYTES:
                    raise ModelError(f"{source}: the response of {url} is too long: check the address in HF_ENDPOINT")
            return bytes(body)
    except httpx.RequestError as error:
        raise ModelError(unreachable(source, url, error)) from error


def check_address(source: str, url: str, *, local: bool = True) -> None:
    """Raises ModelError if a file would come over an insecure connection. Addresses of this machine need no encryption;
    if not `local`, they are refused, since no other server may redirect to them."""
    try:
        address = urlsplit(url)
        usable = address.scheme in ("https", "http") and bool(address.hostname and httpx.URL(url))
    except (ValueError, httpx.InvalidURL):
        usable = False
    if not usable:
        raise ModelError(f"{source}: {url!r} is not a URL: give one that begins with https://")
    on_this_machine = address.hostname in _LOOPBACK
    if on_this_machine and not local:
        raise ModelError(f"{source}: its server redirects to {address.hostname}, this machine; nothing was fetched")
    if address.scheme != "https" and not on_this_machine:
        raise ModelError(f"{source}: {address.scheme}://{address.hostname} is not encrypted: give an https:// address")


def raise_for(source: str, response: httpx.Response) -> None:
    """Raises httpx.RequestError for an error response that may be temporary, ModelError for others."""
    status, host = response.status_code, response.url.host
    if status == 429 or status >= 500:
        raise httpx.RemoteProtocolError(f"{host} answered {status}")
    advice = {
        401: "a token is required: set HF_TOKEN to one of yours",
        403: "access is not granted: request it on the model's page, and set HF_TOKEN",
        404: "no such model or file: check the name; a private one needs HF_TOKEN",
    }.get(status, "check the address")
    raise ModelError(f"{source}: {host} answered {status}: {advice}")


def unreachable(source: str, url: str, error: httpx.RequestError) -> str:
    """Returns the message for an unreachable host."""
    return (
        f"{source} cannot be fetched: {urlsplit(url).hostname} cannot be reached ({cause(error)}). Check the network "
        "and HTTPS_PROXY, or copy the model here and give its path: --model path/to/model.gguf"
    )


def cause(error: Exception) -> str:
    """Returns the reason for a failed connection, in a few words."""
    text = str(error) or type(error).__name__
    return re.sub(r"^\[(Errno|SSL)[^\]]*\] *", "", text)


def _size(part: IO[bytes]) -> int:
    part.flush()
    return os.fstat(part.fileno()).st_size


def _cut(part: IO[bytes], size: int) -> int:
    part.flush()
    part.truncate(size)
    return size
