"""Emulation of constraints: checks a finished text against one, and asks for such a text in words."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....constrain.errors import GrammarError
from ....constrain.matchers.interface import Grammar
from ....constrain.spec import Choice, Gbnf, GrammarSpec, JsonSchema, Lark, Regex, Structural

_LAST_BYTE = 255
_MASK_WORDS = 9
"""Words of a mask for 256 bytes and the end."""

if TYPE_CHECKING:
    from ....constrain.compiler import GrammarCompiler

_FENCE = re.compile(r"```[\w-]*\n(.*?)\n?```", re.DOTALL)


class Judge:
    """Judges texts by constraints; compiled ones are kept. Safe to use from many threads."""

    def __init__(self) -> None:
        self._compiler: GrammarCompiler | None = None
        self._lock = threading.Lock()

    def fault(self, text: str, grammar: GrammarSpec) -> str | None:
        """Describes what is wrong with `text`; None if it keeps to the constraint.

        Raises:
            GrammarError: the constraint itself is wrong.
        """
        if isinstance(grammar, Choice):
            return None if text in grammar.options else "it is none of the choices"
        if isinstance(grammar, JsonSchema):
            from ....constrain.json_schema.validate import violations  # noqa: PLC0415  # jsonschema is slow to import

            found = violations(grammar.schema, text)
            return None if not found else "; ".join(f"{v.pointer or 'the value'}: {v.message}" for v in found[:3])
        return self._by_grammar(text, grammar)

    def check(self, grammar: GrammarSpec) -> None:
        """Checks the constraint. Raises GrammarError if it is wrong."""
        self.fault("", grammar)

    def close(self) -> None:
        """Lets go of what compiling needed."""
        with self._lock:
            compiler, self._compiler = self._compiler, None
        if compiler is not None:
            compiler.close()

    def follows(self, text: str, grammar: GrammarSpec) -> bool:
        """Returns true if decoding under the constraint could write `text`."""
        return self._by_grammar(text, grammar) is None

    def shortest(self, grammar: GrammarSpec) -> str | None:
        """About the shortest text that decoding under the constraint could write; None if none was found.

        Raises:
            GrammarError: the constraint itself is wrong.
        """
        compiled = self._compiled(grammar)
        return None if (room := compiled.min_tokens()) is None else _completed(compiled, room)

    def _compiled(self, grammar: GrammarSpec) -> Grammar:
        """Compiled for bytes."""
        from ....constrain.compiler import GrammarCompiler  # noqa: PLC0415
        from ....constrain.vocabulary.adapters import byte_vocabulary  # noqa: PLC0415  # llguidance, only if it is needed

        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(byte_vocabulary(), num_threads=1, cache_bytes=16 << 20)
            compiler = self._compiler
        return compiler.compile(grammar)

    def _by_grammar(self, text: str, grammar: GrammarSpec) -> str | None:
        from ....constrain.accepting import walk  # noqa: PLC0415
        from ....constrain.vocabulary.adapters import byte_vocabulary  # noqa: PLC0415  # as above

        refused = walk(self._compiled(grammar), text, byte_vocabulary())
        if refused is None:
            return None
        data = text.encode(errors="replace")
        if refused.offset >= len(data):
            return "it ends too early"
        return f"it goes wrong at {data[refused.offset : refused.offset + 20].decode(errors='replace')!r}"


def _completed(grammar: Grammar, room: int) -> str | None:
    """The text that comes of asking for any byte, with room for so many: those that lead to no end are replaced."""
    import numpy as np  # noqa: PLC0415  # as above

    matcher = grammar.matcher()
    allowed = np.zeros(_MASK_WORDS, dtype=np.int32)
    data = bytearray()
    while len(data) < room and not matcher.finished:
        matcher.fill_mask(allowed)
        first = int(np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little"))[0])
        token = matcher.accept(first, room - len(data) - 1)
        if token > _LAST_BYTE:
            break
        data.append(token)
    try:
        return data.decode() if matcher.accepting or matcher.finished else None
    except UnicodeDecodeError:
        return None


def candidates(text: str) -> list[str]:
    """The text, and what it is without what models put around an answer: white space, a code fence."""
    found = [text, text.strip()]
    if (fenced := _FENCE.search(text)) is not None:
        found += [fenced[1], fenced[1].strip()]
    return list(dict.fromkeys(found))


def chosen(text: str, choices: Sequence[str]) -> str | None:
    """The choice that a text names: as a whole, or by how it begins (the longest one)."""
    stripped = [candidate.strip().strip("\"'`.").casefold() for candidate in candidates(text)]
    for choice in choices:
        if choice.strip().casefold() in stripped:
            return choice
    begun = [c for c in choices if any(s.startswith(c.strip().casefold()) for s in stripped) and c.strip()]
    return max(begun, key=len, default=None)


def in_words(grammar: GrammarSpec) -> str:
    """Asks for a text that keeps to the constraint."""
    match grammar:
        case Choice(options=options):
            return "Answer with exactly one of these, and nothing else:\n" + "\n".join(options)
        case Regex(pattern=pattern):
            return f"Answer with only a text that matches this regular expression as a whole: {pattern}"
        case JsonSchema(schema=schema):
            text = json.dumps(json.loads(schema), ensure_ascii=False)
            return f"Answer with only a JSON value, without anything around it, that satisfies this JSON Schema: {text}"
        case Lark(grammar=text):
            return f"Answer with only a text that this grammar (Lark's notation, rule start) derives:\n{text}"
        case Gbnf(grammar=text):
            return f"Answer with only a text that this grammar (GBNF, rule root) derives:\n{text}"
        case Structural():
            raise GrammarError("marked parts in free text cannot be asked for in words")
