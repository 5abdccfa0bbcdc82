"""Tokens of texts that programs say again, such as the instructions before each one's question."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

MAX_CHARS = 1 << 20
"""Of all texts that are kept: some 2 MiB, with their tokens."""

ENTRY_CHARS = 64
"""What keeping a text takes besides its characters, in these."""


class KnownTexts:
    """The texts that were said last. Lives in the engine's thread.

    A text is known to its own namespace alone: nobody can tell by the time it takes what others have said.
    """

    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = max_chars
        self._num_chars = 0
        self._tokens: OrderedDict[tuple[str, str], array[int]] = OrderedDict()

    def find(self, namespace: str, text: str) -> list[int] | None:
        """The text's tokens, the caller's own; None if they are not known."""
        tokens = self._tokens.get((namespace, text))
        if tokens is None:
            return None
        self._tokens.move_to_end((namespace, text))
        return tokens.tolist()

    def keep(self, namespace: str, text: str, tokens: Sequence[int]) -> None:
        """Keeps what a text was found to be, in place of what was said longest ago."""
        if (namespace, text) in self._tokens or _size(text) > self._max_chars:
            return
        self._tokens[namespace, text] = array("i", tokens)
        self._num_chars += _size(text)
        while self._num_chars > self._max_chars:
            (_, oldest), _ = self._tokens.popitem(last=False)
            self._num_chars -= _size(oldest)


def _size(text: str) -> int:
    return len(text) + ENTRY_CHARS
