"""From bytes to typed bodies. What is not understood is counted; what cannot be honoured is refused by name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from ..errors import from_decode_error, invalid
from ..openai.objects import IGNORED, REFUSED

B = TypeVar("B", bound=msgspec.Struct)

_EMPTY = frozenset({b"null", b"false", b"[]", b"{}", b'""'})
_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


@lru_cache(maxsize=32)
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(data: bytes, kind: type[B]) -> B:
    """A body of `kind`. Fields that it does not have are skipped.

    Raises:
        ApiError: the data is not JSON, or not of this kind; `param` is the path of the field to blame.
    """
    try:
        data.decode()  # raw parts would pass unchecked
        body: B = _decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise from_decode_error(error) from error
    return body


def decode_openai(data: bytes, kind: type[B], *, strict: bool = False) -> tuple[B, int]:
    """A body of `kind`, and the number of its fields that nobody knows.

    Raises:
        ApiError: as `decode`; or a field that would change the output is not offered; or, with `strict`, not known.
    """
    body = decode(data, kind)
    num_unknown = 0
    for name, value in _FIELDS.decode(data).items():
        if name in kind.__struct_fields__ or name in IGNORED:
            continue
        if name in REFUSED:
            if bytes(value) not in _EMPTY:
                raise invalid(name, f"{name} is not offered by this server", code="unsupported_parameter")
        elif strict:
            raise invalid(name[:64], f"there is no parameter {name[:64]!r}", code="unknown_parameter")
        else:
            num_unknown += 1
    return body, num_unknown
