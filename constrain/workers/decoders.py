"""Decoders of types, made one at a time.

msgspec (0.22) learns what a struct is made of when the first decoder of its type is made. Another thread that decodes
by that type meanwhile reads what is not there yet, and the process dies of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

_MAKING = threading.RLock()  # what an annotation names may be a module that makes decoders when it is imported


def json_decoder(kind: Any, read: Callable[[Any, Any], Any] | None = None) -> msgspec.json.Decoder[Any]:
    """Returns a decoder of JSON, which threads may share. `read` makes values of types that msgspec does not know.

    Raises:
        TypeError: `kind` is no type that can be decoded.
    """
    with _MAKING:
        return msgspec.json.Decoder(kind, dec_hook=read)


def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Returns a decoder of MessagePack, which threads may share. Raises TypeError as `json_decoder`."""
    with _MAKING:
        return msgspec.msgpack.Decoder(kind)
