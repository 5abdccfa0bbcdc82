"""Types without a JSON counterpart, which are written as strings, and the patterns of these strings.

Without a pattern any string would be allowed, and hardly any could be converted back.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

DECIMAL = r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?"

_FRACTION = r"(\.[0-9]{1,6})?"
_SECONDS = rf"[0-9]{{1,5}}{_FRACTION}S"
_MINUTES = rf"[0-9]{{1,4}}M([0-9]{{1,2}}{_FRACTION}S)?"
_HOURS = rf"[0-9]{{1,4}}H([0-9]{{1,2}}M)?([0-9]{{1,2}}{_FRACTION}S)?"
_TIME = f"T({_HOURS}|{_MINUTES}|{_SECONDS})"
DURATION = f"-?P([0-9]{{1,5}}D({_TIME})?|{_TIME})"
BASE64 = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
PATH = r"[^\x00-\x1f\x7f]+"

_PATTERNS = {("format", "decimal"): DECIMAL, ("format", "duration"): DURATION, ("contentEncoding", "base64"): BASE64}

_HOLDING = ("anyOf", "prefixItems")
_BELOW = ("items", "additionalProperties")
_NAMED = ("$defs", "properties")


def add_patterns(schema: Any) -> None:
    """Gives each string in msgspec's `schema` that stands for another type the pattern of those that can be read."""
    left = [schema]
    while left:
        node = left.pop()
        if not isinstance(node, dict):
            continue
        if node.get("type") == "string":
            for (keyword, value), pattern in _PATTERNS.items():
                if node.get(keyword) == value:
                    node.setdefault("pattern", f"^({pattern})$")
        left += (inner for keyword in _HOLDING for inner in node.get(keyword, ()))
        left += (node.get(keyword) for keyword in _BELOW)
        left += (inner for keyword in _NAMED for inner in node.get(keyword, {}).values())


def schema_of_text(kind: Any) -> dict[str, Any]:
    """The schema of a type that only this module knows. Raises NotImplementedError for others."""
    if isinstance(kind, type) and issubclass(kind, pathlib.PurePath):
        return {"type": "string", "format": "path", "pattern": f"^{PATH}$"}
    raise NotImplementedError


def from_text(kind: Any, value: Any) -> Any:
    """The value of such a type. Raises NotImplementedError for others, ValueError if it says none."""
    if isinstance(kind, type) and issubclass(kind, pathlib.PurePath):
        if not isinstance(value, str):
            raise ValueError(f"expected a path, got {type(value).__name__}")
        make: Callable[[str], Any] = kind
        return make(value)
    raise NotImplementedError
