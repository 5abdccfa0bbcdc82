"""Access control: the sender and origin of a request, and each key's limits and usage of the server.

Usage is counted on the event loop only.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from starlette.types import Scope

from ...runtime.protocol.request import RequestOutput, Usage
from ..config import KeyLimits, ServerConfig
from ..errors import ApiError

PUBLIC_PATHS = frozenset({"/livez", "/readyz"})
OBSERVED_PATHS = frozenset({"/metrics", "/server_info"})
"""Paths that tell of all callers together."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ENDING_PATHS = "/v1/responses/"
"""Beginning of the paths of requests that only end work: no limit of a key refuses them."""

MAX_HEADER_BYTES = 32 << 10
MAX_HEADERS = 100
SINGLE_HEADERS = (b"authorization", b"x-api-key", b"host", b"origin", b"content-type")
"""Headers that a request has once at most: whoever reads it before us might take another one."""


class Caller(NamedTuple):
    """The sender of a request. Without keys everyone is the same caller "", who may do everything."""

    name: str = ""
    admin: bool = False
    metrics: bool = False
    urgent: bool = False
    limits: KeyLimits = KeyLimits()


EVERYONE = Caller(
    admin=True, urgent=True, limits=KeyLimits(concurrent_requests=None, body_bytes=None, logprob_bytes=None)
)


def check_bind(config: ServerConfig) -> None:
    """Refuses to listen where others could reach the server without a key.

    Raises:
        ValueError: the address is not loopback, and there is no key.
    """
    if not config.keys and not config.open_without_key and not _is_loopback(config.host):
        raise ValueError(
            f"--host {config.host} can be reached from other machines, and no API key is set. "
            "Set BOUGH_API_KEY or --api-key-file, or allow it with --allow-public-without-key"
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
        caller = self._authenticate(_given_key(values))
        if path in OBSERVED_PATHS and not (caller.admin or caller.metrics):
            raise ApiError(403, "metrics_key_required", "This needs a key with the right `metrics` or `admin`.")
        return caller

    def _authenticate(self, given: bytes | None) -> Caller:
        digest = hashlib.sha256(given or b"").digest()
        caller = None
        for key in self._keys:  # all of them, so that the time tells nothing about which one matched
            if hmac.compare_digest(key.digest, digest):
                caller = Caller(key.name, key.admin, key.metrics, key.urgent or key.admin, key.limits)
        if caller is None or given is None:
            message = "Missing or wrong API key. Send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."
            raise ApiError(401, "invalid_api_key", message)
        if caller.limits.expires is not None and time.time() >= caller.limits.expires:
            raise ApiError(401, "expired_api_key", "The API key has expired.")
        return caller


def _given_key(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Returns the key in the headers; None if there is none.

    Raises:
        ApiError: there are two headers for it, which do not hold the same key.
    """
    own, authorization = headers.get(b"x-api-key"), headers.get(b"authorization")
    scheme, _, bearer = (authorization or b"").partition(b" ")
    given = bearer.strip() if scheme.lower() == b"bearer" else None
    if own is None:
        return given
    if authorization is not None and not hmac.compare_digest(given or b"", own.strip()):
        message = "The headers `Authorization` and `x-api-key` do not hold the same key. Send one of them."
        raise ApiError(401, "invalid_api_key", message)
    return own.strip()


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


# Limits of keys: requests and tokens a minute, requests under way and the bytes of their bodies


Clock = Callable[[], float]


class Bucket:
    """An allowance of so much a minute, all of which may be taken at once. More may be taken than is left."""

    def __init__(self, a_minute: int, clock: Clock) -> None:
        self.size = a_minute
        self._clock = clock
        self._level = float(a_minute)
        self._filled = clock()

    @property
    def left(self) -> float:
        """The amount that may be taken now; below 0 if too much was taken."""
        now = self._clock()
        self._level = min(self._level + (now - self._filled) * self.size / 60, self.size)
        self._filled = now
        return self._level

    def take(self, amount: int) -> None:
        self._level = self.left - amount

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` is left."""
        return max(amount - self.left, 0.0) * 60 / self.size


class Account:
    """Limits and use of one key.

    used      tokens of prompts and answers
    refused   requests that were refused, by the limit
    """

    def __init__(self, caller: Caller, clock: Clock = time.monotonic) -> None:
        limits = caller.limits
        self.name = caller.name
        self.num_requests = 0
        self.used = Usage()
        self.refused: Counter[str] = Counter()
        self._limits = limits
        self._num_running = 0
        self._num_bytes = 0
        self._num_kept = 0
        self._requests = Bucket(limits.requests_per_minute, clock) if limits.requests_per_minute else None
        self._tokens = Bucket(limits.tokens_per_minute, clock) if limits.tokens_per_minute else None

    def enter(self) -> None:
        """Lets a request begin. Raises ApiError if a limit is reached."""
        most = self._limits.concurrent_requests
        if most is not None and self._num_running >= most:
            raise self._refusal("concurrent_requests", f"{most} requests at a time", 1.0)
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None and bucket.left < 1:
                raise self._refusal(f"{name}_per_minute", f"{bucket.size} {name} a minute", bucket.wait_s(1))
        if self._requests is not None:
            self._requests.take(1)
        self._num_running += 1
        self.num_requests += 1

    def leave(self) -> None:
        self._num_running -= 1

    def hold(self, num_bytes: int) -> None:
        """Counts bytes of a body. Raises ApiError if they are too many."""
        most = self._limits.body_bytes
        if most is not None and self._num_bytes + num_bytes > most:
            raise self._refusal("body_bytes", f"{most} bytes of bodies at a time", 1.0)
        self._num_bytes += num_bytes

    def release(self, num_bytes: int) -> None:
        self._num_bytes -= num_bytes

    def keep(self, num_bytes: int) -> None:
        """Counts bytes of log-probabilities. Raises ApiError if they are too many."""
        most = self._limits.logprob_bytes
        if most is not None and self._num_kept + num_bytes > most:
            told = f"{most} bytes of log-probabilities at a time in answers that are sent whole, and of echoed prompts"
            raise self._refusal("logprob_bytes", told, 1.0)
        self._num_kept += num_bytes

    def forget(self, num_bytes: int) -> None:
        self._num_kept -= num_bytes

    def charge(self, usage: Usage) -> None:
        """Counts tokens."""
        self.used += usage
        if self._tokens is not None:
            self._tokens.take(usage.prompt_tokens + usage.completion_tokens)

    def headers(self) -> Iterator[tuple[str, str]]:
        """The limits a minute as OpenAI's servers say them."""
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                yield f"x-ratelimit-limit-{name}", str(bucket.size)
                yield f"x-ratelimit-remaining-{name}", str(max(math.floor(bucket.left), 0))
                yield f"x-ratelimit-reset-{name}", _duration(bucket.wait_s(bucket.size))

    def _refusal(self, limit: str, told: str, wait_s: float) -> ApiError:
        self.refused[limit] += 1
        message = f"This key is limited to {told}. Try again after {_duration(wait_s)}."
        return ApiError(429, "rate_limit_exceeded", message, retry_after_s=wait_s)


class Visit:
    """One request in its key's account."""

    def __init__(self, account: Account) -> None:
        self.used = Usage()
        self._account = account
        self._num_bytes = 0
        self._num_kept = 0
        self._num_ends = 1
        account.enter()

    def stay(self) -> None:
        """Lets the visit last until it has ended once more: work goes on after the answer."""
        self._num_ends += 1

    def hold(self, num_bytes: int) -> None:
        """Counts bytes of the body, as long as the request lasts. Raises ApiError if they are too many."""
        self._account.hold(num_bytes)
        self._num_bytes += num_bytes

    def keep(self, num_bytes: int) -> None:
        """Counts log-probabilities, as long as the request lasts. Raises ApiError if they are too many."""
        self._account.keep(num_bytes)
        self._num_kept += num_bytes

    def charge(self, usage: Usage) -> None:
        """Counts tokens that were used."""
        self.used += usage
        self._account.charge(usage)

    def end(self) -> None:
        self._num_ends -= 1
        if self._num_ends:
            return
        self._account.release(self._num_bytes)
        self._account.forget(self._num_kept)
        self._account.leave()


class Bill:
    """Tokens of one generation that a visit pays for: all that were generated, whoever has read them.

    It is paid when the reader leaves, by what is known then; what the engine tells later is paid on top.
    """

    def __init__(self, visit: Visit, num_prompt_tokens: int) -> None:
        self._visit = visit
        self._read = Usage(prompt_tokens=num_prompt_tokens)
        self._told: Usage | None = None
        self._paid: Usage | None = None

    def add(self, output: RequestOutput) -> None:
        """Counts what was read."""
        self._read += Usage(completion_tokens=len(output.tokens))

    def settle(self, last: RequestOutput) -> None:
        """Takes note of what the engine tells in its last output, which may come before others are read."""
        self._told = Usage() if last.finish is None else last.finish.usage
        if self._paid is not None:
            self._visit.charge(_rest(self._used, self._paid))

    def waive(self) -> None:
        """Makes it free."""
        self._read = self._told = Usage()

    def pay(self) -> None:
        self._paid = self._used
        self._visit.charge(self._paid)

    @property
    def _used(self) -> Usage:
        """Tokens that the engine tells of, or those that were read: one that has ended itself tells of none."""
        if self._told is None or (self._told == Usage() and self._read.completion_tokens):
            return self._read
        return self._told


def _rest(used: Usage, paid: Usage) -> Usage:
    """Subtracts what is paid from what was used."""
    return Usage(**{name: max(getattr(used, name) - getattr(paid, name), 0) for name in used.__struct_fields__})


class Accounts:
    """The accounts of all keys that have sent something."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._of: dict[str, Account] = {}

    def of(self, caller: Caller) -> Account:
        if caller.name not in self._of:
            self._of[caller.name] = Account(caller, self._clock)
        return self._of[caller.name]

    def __iter__(self) -> Iterator[Account]:
        return iter(self._of.values())


def _duration(seconds: float) -> str:
    """A time in the form of `6m0s`, `1s` or `20ms`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


# What the gate tells of a request


def caller_of(scope: Scope) -> Caller:
    caller: Caller = scope["bough.caller"]
    return caller


def request_id_of(scope: Scope) -> str:
    name: str = scope["bough.request_id"]
    return name


def visit_of(scope: Scope) -> Visit:
    visit: Visit = scope["bough.visit"]
    return visit
