"""What is to be generated, in llama.cpp's notation for grammars. Runs in peers' interpreters: by its path."""

from __future__ import annotations

import re
from collections.abc import Sequence


def gbnf(pattern: str) -> str:
    """A regular expression of literals, classes, groups and counts."""
    written: list[str] = []
    for part in re.findall(r"\[(?:\\.|[^\]])*\]|\{[^}]*\}|\\.|.", pattern):
        if part[0] in "{?*+":
            written[-1] += part
        elif part in ("(", ")", "|") or (part[0] == "[" and len(part) > 1):
            written.append(part)
        else:
            written.append(_literal(part[-1]))
    return " ".join(written)


def gbnf_of_choices(choices: Sequence[str]) -> str:
    """One of several texts."""
    return " | ".join(_literal(choice) for choice in choices)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
