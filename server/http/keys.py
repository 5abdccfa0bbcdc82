"""File of API keys, with the rights of each and its limits on the use of the server."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ...runtime.protocol.config import MAX_WEIGHT
from ..config import ApiKey, KeyLimits

SHORTEST_KEY = 4
SHORT_KEY = 16
"""Characters; a shorter key is refused, or warned of."""

MAX_DIGITS = 15

RIGHTS = ("admin", "metrics", "urgent")
FORM = f"`KEY`, or `NAME KEY`, then any of {', '.join(RIGHTS)} and of LIMIT=VALUE"

logger = logging.getLogger("bough.server")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LIMIT = re.compile(rf"(?:{'|'.join((*KeyLimits.__struct_fields__, 'weight'))})=|[a-z_]+=[^=]", re.IGNORECASE)
"""Begins like a limit, also one that there is not; unlike a key in base64, which may end in `=`."""


def parse_keys(lines: Iterable[str], known: tuple[ApiKey, ...] = ()) -> tuple[ApiKey, ...]:
    """Keys, one a line: `KEY`, or `NAME KEY` followed by rights, by limits as `KeyLimits` has them, and by a `weight`.

    Empty lines and lines that begin with # are skipped. `known` are keys of another source.

    Raises:
        ValueError: a line has another form, a key is too short, or two lines have one name or one key. The message does
            not show the key.
    """
    keys: list[ApiKey] = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if words and not words[0].startswith("#"):
            try:
                key = _parse(words)
                _check_new(key, (*known, *keys))
            except ValueError as error:
                raise ValueError(f"line {number} of the API keys: {error}") from None
            keys.append(key)
    return tuple(keys)


def read_keys(path: str | Path, known: tuple[ApiKey, ...] = ()) -> tuple[ApiKey, ...]:
    """The keys of a file; see `parse_keys`. Warns if others may read or change it.

    Raises:
        OSError, ValueError: the file cannot be read, is not a list of keys, or an empty one.
    """
    mode = Path(path).stat().st_mode
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        logger.warning("%s can be read by other users: chmod 600", path)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        logger.warning("%s can be changed by other users, who may add keys: chmod 600", path)
    keys = parse_keys(Path(path).read_text(encoding="utf-8").splitlines(), known)
    if not keys:
        raise ValueError(f"there is no key in {path}")
    return keys


def _parse(words: list[str]) -> ApiKey:
    if len(words) > 1 and (words[1].lower() in RIGHTS or _LIMIT.match(words[1])):
        raise ValueError(f"a key with options needs a name before it: a line is {FORM}")
    secret, more = words[min(len(words), 2) - 1], words[2:]
    if len(secret) < SHORTEST_KEY:
        raise ValueError(f"a key has at least {SHORTEST_KEY} characters")
    if len(secret) < SHORT_KEY:
        logger.warning("an API key of less than %d characters can be guessed", SHORT_KEY)
    digest = hashlib.sha256(secret.encode()).digest()
    name = words[0] if len(words) > 1 else digest.hex()[:12]
    if not _NAME.fullmatch(name):
        raise ValueError("a name has 1 to 64 letters, digits, '_', '.' or '-'")
    rights = dict.fromkeys(RIGHTS, False)
    limits: dict[str, Any] = {}
    for word in more:
        field, is_limit, value = word.partition("=")
        if field in rights and not is_limit:
            rights[field] = True
        elif field in _READERS and is_limit and field not in limits:
            limits[field] = _READERS[field](field, value)
        else:
            raise ValueError(f"a line is {FORM}, each once; limits are {', '.join(_READERS)}")
    weight = limits.pop("weight", 1)
    return ApiKey(name=name, digest=digest, weight=weight, limits=KeyLimits(**limits), **rights)


def _check_new(key: ApiKey, known: Iterable[ApiKey]) -> None:
    for other in known:
        if other.name == key.name:
            raise ValueError("the name of an earlier key")
        if hmac.compare_digest(other.digest, key.digest):
            raise ValueError("the same key as on an earlier line")


def _count(field: str, value: str) -> int:
    if not value.isdecimal() or len(value) > MAX_DIGITS or not int(value):
        raise ValueError(f"{field} is a number above 0")
    return int(value)


def _weight(field: str, value: str) -> int:
    if not value.isdecimal() or len(value) > MAX_DIGITS or not 1 <= int(value) <= MAX_WEIGHT:
        raise ValueError(f"{field} is a number from 1 to {MAX_WEIGHT}")
    return int(value)


def _names(_: str, value: str) -> tuple[str, ...]:
    return tuple(name for name in value.split(",") if name)


def _moment(field: str, value: str) -> float:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{field} is a day or a moment: 2027-01-31, 2027-01-31T12:00+01:00") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


_READERS: dict[str, Callable[[str, str], Any]] = {
    **{field.name: _count for field in msgspec.structs.fields(KeyLimits)},
    "tools": _names,
    "programs": _names,
    "expires": _moment,
    "weight": _weight,
}
