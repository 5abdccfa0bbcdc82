"""Access: API keys, the Host header, and the addresses on which the server may listen."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..config import ApiKey, ServerConfig
from ..errors import ApiError

PUBLIC_PATHS = frozenset({"/livez", "/readyz"})
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_HEADER_BYTES = 32 << 10
MAX_HEADERS = 100


class Caller(NamedTuple):
    """The sender of a request. Without keys everyone is the same caller "", who may do everything."""

    name: str = ""
    admin: bool = False


def parse_keys(lines: Iterable[str], *, admin: bool = False) -> tuple[ApiKey, ...]:
    """Keys, one a line: `key`, or `name key`, or `name key admin`. Empty lines and lines that begin with # are skipped.

    Raises:
        ValueError: a line has another form, or two keys one name. The message does not show the key.
    """
    keys: list[ApiKey] = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 3 or (len(words) == 3 and words[2] != "admin"):
            raise ValueError(f"line {number} of the API keys must be `key`, `name key` or `name key admin`")
        digest = hashlib.sha256(words[min(len(words), 2) - 1].encode()).digest()
        name = words[0] if len(words) > 1 else digest.hex()[:12]
        if not _NAME.fullmatch(name):
            raise ValueError(f"line {number} of the API keys: a name has 1 to 64 letters, digits, '_', '.' or '-'")
        if any(key.name == name for key in keys):
            raise ValueError(f"line {number} of the API keys: a second key with the name of an earlier one")
        keys.append(ApiKey(name=name, digest=digest, admin=admin or len(words) == 3))
    return tuple(keys)


def read_keys(path: str | Path) -> tuple[ApiKey, ...]:
    """The keys of a file; see `parse_keys`.

    Raises:
        OSError, ValueError: the file cannot be read, or is not a list of keys.
    """
    return parse_keys(Path(path).read_text(encoding="utf-8").splitlines())


def check_bind(config: ServerConfig) -> None:
    """Refuses to listen where others could reach the server without a key.

    Raises:
        ValueError: the address is not loopback, and there is no key.
    """
    if not config.keys and not config.open_without_key and not _is_loopback(config.host):
        raise ValueError(
            f"host {config.host!r} can be reached from other machines, and no API key is set. "
            "Set a key, or allow it with --allow-public-without-key (open_without_key)"
        )


class Guard:
    """Decides who may enter; no other place does."""

    def __init__(self, config: ServerConfig) -> None:
        self._keys = config.keys
        self._checks_host = not config.keys and _is_loopback(config.host)

    def admit(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Returns the sender of these headers.

        Raises:
            ApiError: the caller is not admitted.
        """
        headers = list(headers)
        if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
            raise ApiError(413, "request_too_large", f"At most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes.")
        values = dict(headers)
        if self._checks_host and not _is_local_host(values.get(b"host", b"").decode("latin-1")):
            raise ApiError(403, "host_not_allowed", "This server answers to localhost only. Set an API key to open it.")
        if path in PUBLIC_PATHS:
            return Caller()
        if not self._keys:
            return Caller(admin=True)
        return self._authenticate(values.get(b"authorization", b""))

    def _authenticate(self, authorization: bytes) -> Caller:
        scheme, _, given = authorization.partition(b" ")
        digest = hashlib.sha256(given.strip()).digest()
        caller = None
        for key in self._keys:  # all of them, so that the time tells nothing about which one matched
            if hmac.compare_digest(key.digest, digest):
                caller = Caller(name=key.name, admin=key.admin)
        if caller is None or scheme.lower() != b"bearer":
            raise ApiError(401, "invalid_api_key", "Missing or wrong API key. Send it as `Authorization: Bearer KEY`.")
        return caller


def require_admin(caller: Caller) -> None:
    """Raises ApiError unless the caller may change the server's state."""
    if not caller.admin:
        raise ApiError(403, "admin_key_required", "This needs a key with the right `admin`.")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local_host(header: str) -> bool:
    host = header[1 : header.find("]")] if header.startswith("[") else header.partition(":")[0]
    return _is_loopback(host.lower())
