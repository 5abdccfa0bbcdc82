"""Access: who sends a request, the Host header, and the addresses on which the server may listen."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..config import KeyLimits, ServerConfig
from ..errors import ApiError

PUBLIC_PATHS = frozenset({"/livez", "/readyz"})
OBSERVED_PATHS = frozenset({"/metrics", "/server_info"})
"""Paths that tell of all callers together."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_HEADER_BYTES = 32 << 10
MAX_HEADERS = 100
SINGLE_HEADERS = (b"authorization", b"host", b"origin", b"content-type")
"""Headers that a request has once at most: whoever reads it before us might take another one."""


class Caller(NamedTuple):
    """The sender of a request. Without keys everyone is the same caller "", who may do everything."""

    name: str = ""
    admin: bool = False
    metrics: bool = False
    urgent: bool = False
    limits: KeyLimits = KeyLimits()


EVERYONE = Caller(admin=True, urgent=True, limits=KeyLimits(concurrent_requests=None, body_bytes=None))


def check_bind(config: ServerConfig) -> None:
    """Refuses to listen where others could reach the server without a key.

    Raises:
        ValueError: the address is not loopback, and there is no key.
    """
    if not config.keys and not config.open_without_key and not _is_loopback(config.host):
        raise ValueError(
            f"host {config.host!r} can be reached from other machines, and no API key is set. "
            "Set BOUGH_API_KEY or --api-key-file, or allow it with --allow-public-without-key (open_without_key)"
        )


class Guard:
    """Decides who may enter; no other place does."""

    def __init__(self, config: ServerConfig) -> None:
        self._keys = config.keys
        self._checks_host = not config.keys and _is_loopback(config.host)

    def admit(self, path: str, headers: Iterable[tuple[bytes, bytes]], method: str = "GET") -> Caller:
        """Returns the sender of these headers.

        Raises:
            ApiError: the caller is not admitted.
        """
        headers = list(headers)
        if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
            raise ApiError(413, "request_too_large", f"At most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes.")
        names = [name for name, _ in headers]
        for name in SINGLE_HEADERS:
            if names.count(name) > 1:
                raise ApiError(400, "invalid_request", f"More than one header `{name.decode()}`.", close=True)
        values = dict(headers)
        if self._checks_host and not _is_local_host(values.get(b"host", b"").decode("latin-1")):
            raise ApiError(
                403, "host_not_allowed", "This server answers only to localhost. Set an API key to allow other hosts."
            )
        if b"transfer-encoding" in values and b"content-length" in values:
            message = "A request must not have both Content-Length and Transfer-Encoding."
            raise ApiError(400, "invalid_request", message, close=True)
        if method not in SAFE_METHODS and _is_foreign(values):
            raise ApiError(403, "origin_not_allowed", "Cross-origin requests may not do this.")
        if path in PUBLIC_PATHS:
            return Caller()
        if not self._keys:
            return EVERYONE
        caller = self._authenticate(values.get(b"authorization", b""))
        if path in OBSERVED_PATHS and not (caller.admin or caller.metrics):
            raise ApiError(403, "metrics_key_required", "This needs a key with the right `metrics` or `admin`.")
        return caller

    def _authenticate(self, authorization: bytes) -> Caller:
        scheme, _, given = authorization.partition(b" ")
        digest = hashlib.sha256(given.strip()).digest()
        caller = None
        for key in self._keys:  # all of them, so that the time tells nothing about which one matched
            if hmac.compare_digest(key.digest, digest):
                caller = Caller(key.name, key.admin, key.metrics, key.urgent or key.admin, key.limits)
        if caller is None or scheme.lower() != b"bearer":
            raise ApiError(401, "invalid_api_key", "Missing or wrong API key. Send it as `Authorization: Bearer KEY`.")
        if caller.limits.expires is not None and time.time() >= caller.limits.expires:
            raise ApiError(401, "expired_api_key", "The API key has expired.")
        return caller


def require_admin(caller: Caller) -> None:
    """Raises ApiError unless the caller may change the server's state."""
    if not caller.admin:
        raise ApiError(403, "admin_key_required", "This needs a key with the right `admin`.")


def _is_foreign(headers: Mapping[bytes, bytes]) -> bool:
    """Returns true if a browser sends this for a page of another origin (Fetch, 3.2 and Fetch Metadata, 2.3)."""
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        return True
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local_host(header: str) -> bool:
    host = header[1 : header.find("]")] if header.startswith("[") else header.partition(":")[0]
    return _is_loopback(host.lower())
