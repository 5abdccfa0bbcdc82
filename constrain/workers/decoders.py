"""Decoders of types, created one at a time.

msgspec (0.22) inspects a struct when the first decoder of its type is created. If another thread decodes that type
meanwhile, it reads incomplete data and the process crashes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

_MAKING = threading.RLock()  # reentrant: resolving an annotation may import a module that creates decoders


def json_decoder(kind: Any, read: Callable[[Any, Any], Any] | None = None) -> msgspec.json.Decoder[Any]:
    """Returns a thread-safe decoder of JSON. `read` creates values of types that msgspec does not know.

    Raises:
        TypeError: `kind` cannot be decoded.
    """
    with _MAKING:
        return msgspec.json.Decoder(kind, dec_hook=read)


def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Returns a thread-safe decoder of MessagePack. Raises TypeError like `json_decoder`."""
    with _MAKING:
        return msgspec.msgpack.Decoder(kind)
