"""Writes what tags allow as one grammar for the grammar compiler (llguidance)."""

from __future__ import annotations

import json
from typing import Any

import regex

from ...lowered import Lowered
from ...spec import Choice, Regex, Tag
from ...vocabulary.token_table import TokenTable
from ...vocabulary.triggers import FIRST_CONTROL, Symbols, to_symbols

_ONE_TERMINAL = regex.compile(r"\s*start\s*:\s*(/(?:\\.|[^/\\\n])+/[a-z]*)\s*")
"""A grammar that is one regular expression."""


class Source:
    """The grammar of some tags, or of one part alone. With `leaves`, anything may follow the first tag.

    `parts` are the grammars within it; `ends` end the contents that are no grammars but plain text; `words` are some
    that are known.

    A tag ends where its `end` appears first, as far as its content leaves a choice. Where one tag's beginning is also
    the beginning of another's, the longer one counts.
    """

    def __init__(
        self,
        tokens: TokenTable,
        *,
        leaves: bool = False,
        repeats: bool = False,
        optional: bool = False,
        after_reasoning: bool = False,
    ) -> None:
        self.parts: list[Lowered] = []
        self.ends: list[Symbols] = []
        self.words: list[Symbols] = []
        self._names: dict[int, str] = {}
        self._tokens = tokens
        self._leaves = leaves
        self._repeat = {(False, False): "", (False, True): "?", (True, False): "+", (True, True): "*"}[
            (repeats, optional)
        ]
        self._before = '("\\n" "\\n"?)? ' if after_reasoning else ""
        self._alternatives: list[str] = []
        self._rules: list[str] = []
        self._grammars: list[dict[str, Any]] = []

    @property
    def empty(self) -> bool:
        """There is nothing in it."""
        return not self._alternatives

    def add_part(self, lowered: Lowered) -> None:
        """Adds the words of a grammar."""
        self._alternatives.append(self._part(lowered))

    def add_tag(self, begin: Symbols, lowered: Lowered | None, tag: Tag, *, leaves: bool) -> None:
        """Adds a tag of which only `begin` is left to be written before its content."""
        end = to_symbols(tag.end, self._tokens.control)
        terminal = _terminal(tag, lowered)
        number = len(self._rules)
        if terminal is None:
            assert lowered is not None
            body = f"{self._part(lowered)} {literal(end)}"
        else:
            # Text and end are one terminal: its text may hold the end's characters, and stops at the first whole end.
            # A control token ends every text, so what leads to one may be as long as it can.
            stop = next((place for place, symbol in enumerate(end) if symbol >= FIRST_CONTROL), len(end))
            first = "[lazy]" if stop == len(end) and (end or leaves) else ""
            self._rules.append(f"body_{number}{first}: TEXT_{number}\nTEXT_{number}: {terminal} {literal(end[:stop])}")
            body = f"body_{number} {literal(end[stop:])}"
            self.ends.append(end)
            if lowered is not None:
                self.parts.append(lowered)
        if lowered is not None and lowered.witness is not None:
            self.words.append((*begin, *lowered.witness.encode(), *end))
        self._alternatives.append(f"{literal(begin)} {body}")

    def text(self) -> str:
        """The grammar."""
        tags = "\n    | ".join(self._alternatives)
        rest = " REST?" if self._leaves else ""
        lines = [f"start: {self._before}tag{self._repeat}{rest}", f"tag: {tags}", *self._rules]
        if self._leaves:
            lines.append("REST: /(?s:.+)/")
        main = {"lark_grammar": "\n".join(lines) + "\n"}
        return json.dumps({"grammars": [main, *self._grammars]})

    def _part(self, lowered: Lowered) -> str:
        """A reference to another grammar, which keeps its own names."""
        if id(lowered) in self._names:
            return f"@{self._names[id(lowered)]}"
        name = self._names[id(lowered)] = f"part_{len(self._names)}"
        self.parts.append(lowered)
        source = lowered.source
        grammar = json.loads(source)["grammars"][0] if source.lstrip().startswith("{") else {"lark_grammar": source}
        self._grammars.append({**grammar, "name": name})
        return f"@{name}"


def literal(symbols: Symbols) -> str:
    """A text, with control tokens in it, as the grammar compiler writes it; nothing for an empty one."""
    pieces: list[str] = []
    text = bytearray()
    for symbol in symbols:
        if symbol < FIRST_CONTROL:
            text.append(symbol)
            continue
        if text:
            pieces.append(_quoted(text.decode()))
            text.clear()
        pieces.append(f"<[{symbol - FIRST_CONTROL}]>")
    return " ".join([*pieces, _quoted(text.decode())] if text else pieces)


def _terminal(tag: Tag, lowered: Lowered | None) -> str | None:
    """The content of a tag as a regular expression, where it is one."""
    if tag.content is None:
        return "/(?s:.*)/"
    if isinstance(tag.content, Choice):
        return f"({' | '.join(map(_quoted, dict.fromkeys(tag.content.options)))})"
    if not isinstance(tag.content, Regex) or lowered is None:
        return None
    source = lowered.source
    if source.lstrip().startswith("{"):
        source = json.loads(source)["grammars"][0].get("lark_grammar") or ""
    whole = _ONE_TERMINAL.fullmatch(source)
    return whole[1] if whole else None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
