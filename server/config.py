"""Settings of the HTTP server: one small frozen value."""

from __future__ import annotations

import msgspec


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that opens the server. Only its SHA-256 is kept.

    `name` separates the keys' prefix caches and program states, so two keys never share one; `admin` keys may also
    change the server's state.
    """

    name: str
    digest: bytes
    admin: bool = False


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a server.

    host, port              where to listen; port 0 takes a free one
    served_model_name       what clients call the model; None: the model's own name, which is accepted always
    keys                    who may use the server; empty: everyone who reaches it, which must be this machine only
    open_without_key        allow other addresses than loopback without a key
    max_body_bytes          of a request's body
    body_timeout_s          in which a body must have arrived
    request_timeout_s       of a generation, queueing included
    max_sequences           generations of one HTTP request: prompts times n
    ping_interval_s         of silence, after which a stream sends a comment that keeps the connection open
    drain_delay_s           after SIGTERM, in which the server says it is not ready but still listens
    drain_timeout_s         then, in which running requests may finish
    strict_params           refuse unknown fields instead of counting them
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    keys: tuple[ApiKey, ...] = ()
    open_without_key: bool = False
    max_body_bytes: int = 4 << 20
    body_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    max_sequences: int = 64
    ping_interval_s: float = 15.0
    drain_delay_s: float = 0.0
    drain_timeout_s: float = 30.0
    strict_params: bool = False
