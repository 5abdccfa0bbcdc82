"""Limits of keys: requests and tokens a minute, requests under way and the bytes of their bodies; what each has used.

All of it is used on the event loop only.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator

from starlette.types import Scope

from ...runtime.protocol.request import Usage
from ..errors import ApiError
from .security import Caller

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
        account.enter()

    def hold(self, num_bytes: int) -> None:
        """Counts bytes of the body, as long as the request lasts. Raises ApiError if they are too many."""
        self._account.hold(num_bytes)
        self._num_bytes += num_bytes

    def charge(self, usage: Usage) -> None:
        """Counts tokens that were used."""
        self.used += usage
        self._account.charge(usage)

    def end(self) -> None:
        self._account.release(self._num_bytes)
        self._account.leave()


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


def visit_of(scope: Scope) -> Visit:
    visit: Visit = scope["bough.visit"]
    return visit


def _duration(seconds: float) -> str:
    """A time in the form of `6m0s`, `1s` or `20ms`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
