"""Settings of the HTTP server, as one frozen value."""

from __future__ import annotations

import msgspec

from ..runtime.protocol.errors import RequestError

_ABOVE_0 = (
    "body_timeout_s", "header_timeout_s", "send_timeout_s", "request_timeout_s", "ping_interval_s",
    "response_ttl_s",
)  # fmt: skip
_AT_LEAST = {
    "max_body_bytes": 1, "max_connections": 1, "max_sequences": 1, "drain_delay_s": 0, "drain_timeout_s": 0,
    "max_response_bytes": 0, "max_responses": 0,
}  # fmt: skip


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the requests of a key; None: no limit.

    requests_per_minute   requests started
    tokens_per_minute     tokens of prompts and answers; a request starts while some are left, and counts at its end
    concurrent_requests   running requests
    body_bytes            total size of the bodies of running requests
    logprob_bytes         memory for log-probabilities that are kept until their answers are whole
    tools                 names of tools that its programs may call
    programs              names of deployed programs that it may call
    expires               expiry, in seconds since 1970
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = 512
    body_bytes: int | None = 64 << 20
    logprob_bytes: int | None = 256 << 20
    tools: tuple[str, ...] | None = None
    programs: tuple[str, ...] | None = None
    expires: float | None = None


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key of the server. Only its SHA-256 is kept.

    `name` separates the keys' prefix caches and program states, so two keys never share one. `admin` keys may also
    change the server's state; `metrics` keys, like admins, see the activity of all callers. `urgent` keys may send a
    `priority` below 0. `weight` is the key's share of the engine.
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

    host, port              address to listen on; port 0 chooses a free one
    served_model_name       name of the model for clients; None: the model's own name, which is always accepted
    keys                    keys that may use the server; empty: anyone who can connect, only from this machine
    open_without_key        allow addresses other than loopback without a key
    max_body_bytes          maximum size of a request's body
    body_timeout_s          time limit for receiving a body
    header_timeout_s        time limit for receiving a request's headers
    send_timeout_s          time in which a client must read 2 kB a second of the data waiting for it, or all of it
    max_connections         maximum open connections; None: as many as the file descriptors allow
    request_timeout_s       time limit of a generation, queueing included
    max_sequences           maximum generations of one HTTP request: prompts times n
    ping_interval_s         seconds of silence after which a stream sends a comment that keeps the connection open
    drain_delay_s           time after SIGTERM in which the server reports itself not ready but still listens
    drain_timeout_s         time after that in which running requests may finish
    max_responses           responses that are kept for a key; 0: none are
    max_response_bytes      memory that they may take, for each key
    response_ttl_s          time after its last use for which a response is kept
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
    max_responses: int = 1024
    max_response_bytes: int = 64 << 20
    response_ttl_s: float = 1800.0
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
