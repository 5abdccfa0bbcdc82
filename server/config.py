"""Settings of the HTTP server: one small frozen value."""

from __future__ import annotations

import msgspec

from ..runtime.protocol.errors import RequestError

_ABOVE_0 = (
    "body_timeout_s", "header_timeout_s", "send_timeout_s", "request_timeout_s", "ping_interval_s",
)  # fmt: skip
_AT_LEAST = {"max_body_bytes": 1, "max_connections": 1, "max_sequences": 1, "drain_delay_s": 0, "drain_timeout_s": 0}


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the requests of a key; None: there is none.

    requests_per_minute   that begin
    tokens_per_minute     of prompts and answers; a request begins while some are left, and is counted when it ends
    concurrent_requests   under way
    body_bytes            of the bodies of requests under way
    tools                 names of tools that its programs may call
    programs              names of deployed programs that it may call
    expires               seconds since 1970 from which on it opens nothing
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = 512
    body_bytes: int | None = 64 << 20
    tools: tuple[str, ...] | None = None
    programs: tuple[str, ...] | None = None
    expires: float | None = None


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that opens the server. Only its SHA-256 is kept.

    `name` separates the keys' prefix caches and program states, so two keys never share one. `admin` keys may also
    change the server's state, and `metrics` keys, as admins, see what all callers together do. `urgent` keys may send a
    `priority` below 0. `weight` is how many shares of the engine it has.
    """

    name: str
    digest: bytes
    admin: bool = False
    metrics: bool = False
    urgent: bool = False
    weight: int = 1
    limits: KeyLimits = KeyLimits()


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a server.

    host, port              where to listen; port 0 takes a free one
    served_model_name       what clients call the model; None: the model's own name, which is accepted always
    keys                    who may use the server; empty: everyone who reaches it, which must be this machine only
    open_without_key        allow other addresses than loopback without a key
    max_body_bytes          of a request's body
    body_timeout_s          in which a body must have arrived
    header_timeout_s        in which a request's headers must have arrived
    send_timeout_s          in which a client must take 2 kB a second of what waits for it, or all
    max_connections         at a time; None: as many as there are descriptors for
    request_timeout_s       of a generation, queueing included
    max_sequences           generations of one HTTP request: prompts times n
    ping_interval_s         of silence, after which a stream sends a comment that keeps the connection open
    drain_delay_s           after SIGTERM, in which the server says it is not ready but still listens
    drain_timeout_s         then, in which running requests may finish
    strict_params           refuse unknown fields instead of counting them
    request_log             log a line of JSON for each request
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    keys: tuple[ApiKey, ...] = ()
    open_without_key: bool = False
    max_body_bytes: int = 4 << 20
    body_timeout_s: float = 30.0
    header_timeout_s: float = 10.0
    send_timeout_s: float = 30.0
    max_connections: int | None = None
    request_timeout_s: float = 600.0
    max_sequences: int = 64
    ping_interval_s: float = 15.0
    drain_delay_s: float = 0.0
    drain_timeout_s: float = 30.0
    strict_params: bool = False
    request_log: bool = True

    def __post_init__(self) -> None:
        for name in _ABOVE_0:
            if not getattr(self, name) > 0:
                raise self._wrong(name, "above 0")
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise self._wrong(name, f"at least {least}")
        if not 0 <= self.port <= 65535:
            raise self._wrong("port", "0 to 65535")
        if self.served_model_name is not None and not self.served_model_name.strip():
            raise RequestError("served_model_name must not be empty: leave it out", param="served_model_name")

    def _wrong(self, name: str, bounds: str) -> RequestError:
        return RequestError(f"{name} must be {bounds}, got {getattr(self, name)}", param=name)
