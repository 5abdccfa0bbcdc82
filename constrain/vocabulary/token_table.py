"""A vocabulary as the grammar compiler wants it, made once per model and shared by all grammars."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import numpy as np
import numpy.typing as npt
from llguidance import LLTokenizer

from .element_tokens import DistinctTokens
from .triggers import TokenIndex
from .vocabulary import MaskRow, Vocabulary

IN_STRING = ('"}]', '"}}', '"]}', '"]]', '"}', '"]', '"')
"""Texts that bring a JSON text nearer to its end from within a string, best first."""

BETWEEN = (
    *("]}", "}]", "}}", "]]", "}", "]", '""', ' ""', "[]", " []", "{}", " {}", '"', ' "', ","),
    *("0", " 0", "1", "null", " null", "true", " true", "false", " false", "[", " [", "{", " {", "-"),
)
"""The same outside of strings. The quotation mark comes first of what can also be content of one."""

MAX_FORCED_BYTES = 256
"""Bytes of a forced text that are turned into tokens: more than the drafts of one step. All of it, at each step anew,
would take time with the square of its length."""
_UNSETTLED = 32
"""Bytes before a cut whose tokens may be others once the text goes on."""

_PLAIN = r'[^"\\\x00-\x1F\x7F]'
SLICES = (
    *(f"{_PLAIN}{{1,{length}}}" for length in (3, 6, 10, 16)),
    *(_PLAIN + "+", r"[\x20\x21\x23-\x5B\x5D-\x7E]+", "[a-zA-Z0-9]+", "[a-z]+"),
)
"""Parts of the vocabulary of which a mask takes all at once where a string may go on with any of them: by length, so
that a string that may not be much longer still takes most of its tokens that way; what `.` of a pattern matches, and
what stands in identifiers. Each makes every grammar take longer to compile."""


class TokenTable:
    """The tokens of one model: ids by text, the compiler's tokenizer, and the ids that bring words to an end.

    Control tokens have no text here: only their ids exist, and no grammar allows them but for the end of sequence.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.eos_ids:
            raise ValueError("a vocabulary needs at least one end-of-sequence token")
        if len(vocabulary.tokens) > vocabulary.size:
            raise ValueError(
                f"size must be at least {len(vocabulary.tokens)}, the number of tokens, got {vocabulary.size}"
            )
        self.vocabulary = vocabulary
        self.eos_ids = frozenset(vocabulary.eos_ids)
        self.num_words = (vocabulary.size + 31) // 32
        self._lock = Lock()
        self._tokenizer: LLTokenizer | None = None
        self.control = {
            name: token
            for name, token in vocabulary.control.items()
            if name and (token >= len(vocabulary.tokens) or not vocabulary.tokens[token] or token in self.eos_ids)
        }
        self._ids: dict[bytes, int] = {}
        self._doubles: dict[bytes, list[int]] = {}
        for token, text in enumerate(vocabulary.tokens):
            if text and token not in self.eos_ids and self._ids.setdefault(text, token) != token:
                self._doubles.setdefault(text, []).append(token)
        self.in_string = self.known(IN_STRING)
        self.between = self.known(BETWEEN)
        self.brackets = self.known(("]", "}"))
        # A grammar may allow only tokens that hold more than the sign that ends a value, such as `",`.
        self.string_ends = [token for text, token in self._ids.items() if text.startswith(b'"')]
        self.value_ends = [token for text, token in self._ids.items() if text.startswith((b",", b"]", b"}"))]
        self.fillers = self._fillers()
        self.single_bytes = [self._ids[byte] for byte in map(_byte, _BYTES_BY_USE) if byte in self._ids]

    @property
    def has_tokenizer(self) -> bool:
        """The compiler's tokenizer is made."""
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> LLTokenizer:
        """Made when it is first asked for: it takes a quarter of a second, all of it under the interpreter's lock."""
        with self._lock:
            if self._tokenizer is None:
                plain = LLTokenizer(
                    _Inventory(self.vocabulary),  # type: ignore[arg-type]  # it has what is asked of it
                    n_vocab=self.vocabulary.size,
                    eos_token=list(self.vocabulary.eos_ids),
                    slices=[],
                )
                time.sleep(0)  # in between other threads go on
                self._tokenizer = plain.with_slices(list(SLICES))
            return self._tokenizer

    @cached_property
    def index(self) -> TokenIndex:
        """The tokens by what they begin with and hold."""
        texts = self.vocabulary.tokens
        return TokenIndex([None if token in self.eos_ids else text for token, text in enumerate(texts)])

    @cached_property
    def elements(self) -> DistinctTokens:
        """The tokens that can complete an element of a JSON text."""
        return DistinctTokens(self.vocabulary.tokens, self.eos_ids)

    def known(self, texts: Iterable[str]) -> list[int]:
        """The ids of those of `texts` that are one token."""
        return [self._ids[text.encode()] for text in texts if text.encode() in self._ids]

    def spelling(self, text: bytes) -> list[int]:
        """Every token whose text is `text`."""
        return [self._ids[text], *self._doubles.get(text, ())] if text in self._ids else []

    def prefix(self, text: bytes) -> int | None:
        """The longest token that `text` starts with."""
        for length in range(min(len(text), 32), 0, -1):
            if text[:length] in self._ids:
                return self._ids[text[:length]]
        return None

    def prefixes(self, texts: Iterable[str]) -> list[int]:
        """Every token that one of `texts` starts with, the longest of each text first."""
        found: dict[int, None] = {}
        for text in texts:
            data = text.encode()
            for length in range(min(len(data), 32), 0, -1):
                if data[:length] in self._ids:
                    found[self._ids[data[:length]]] = None
        return list(found)

    def text(self, tokens: Sequence[int]) -> bytes:
        """The bytes of `tokens`; control tokens have none."""
        table = self.vocabulary.tokens
        return b"".join(table[token] or b"" for token in tokens if token < len(table) and token not in self.eos_ids)

    def spell(self, token: int) -> list[int]:
        """Returns tokens of the single bytes of a token, as far as there are any."""
        return [self._ids[byte] for byte in map(_byte, self.vocabulary.tokens[token] or b"") if byte in self._ids]

    def encode(self, data: bytes) -> list[int]:
        """The model's tokens for `data`, which need not be whole characters."""
        try:
            return self.vocabulary.encode(data.decode())
        except UnicodeDecodeError:
            return list(self.tokenizer.tokenize_bytes(data))

    def encode_beginning(self, data: bytes) -> list[int]:
        """The model's first tokens for `data`, which is longer than `MAX_FORCED_BYTES`: one token at least."""
        tokens = self.encode(data[:MAX_FORCED_BYTES])
        place, settled = 0, 0
        for token in tokens:
            place += len(self.vocabulary.tokens[token] or b"")
            if place > MAX_FORCED_BYTES - _UNSETTLED:
                break
            settled += 1
        return tokens[: max(settled, 1)]

    def single(self, token: int) -> MaskRow:
        """A mask row that allows `token` alone."""
        row = np.zeros(self.num_words, dtype=np.uint32)
        row[token // 32] = 1 << (token % 32)
        return row.view(np.int32)

    def end(self) -> MaskRow:
        """A mask row that allows the end of sequence alone."""
        row = np.zeros(self.num_words, dtype=np.int32)
        for token in self.eos_ids:
            row |= self.single(token)
        return row

    def _fillers(self) -> list[int]:
        """Tokens for the content of a string that must not end yet: long words first, then single characters."""
        by_length: dict[int, bytes] = {}
        for text in self._ids:
            if len(text) <= 12 and text.isalpha() and text.isascii() and text.islower():
                by_length[len(text)] = min(text, by_length.get(len(text), text))
        return [self._ids[text] for _, text in sorted(by_length.items(), reverse=True)]


class _Inventory:
    """The interface that `LLTokenizer` needs of a tokenizer."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        # A model may have more logits than there are tokens; a mask has a bit for each of them.
        texts = [*vocabulary.tokens, *[None] * (vocabulary.size - len(vocabulary.tokens))]
        control = {token for token, text in enumerate(texts) if not text} | set(vocabulary.eos_ids)
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(control)
        self.tokens = [
            b"<|control %d|>" % token if token in control else text or b"" for token, text in enumerate(texts)
        ]
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def _byte(value: int) -> bytes:
    return bytes([value])


_USE = b"0a1A-./:@_ ,+=#%?&z"
_BYTES_BY_USE = sorted(
    range(256), key=lambda byte: (byte < 32 or byte > 126, _USE.find(byte) < 0, _USE.find(byte), byte)
)


Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Level:
    """The prefixes of tokens of one length, in order.

    parent   int32 [N]   the place, in the level before, of each without its last byte
    byte     uint8 [N]   its last byte
    tokens   int32 [K]   tokens that end at this level
    nodes    int32 [K]   where
    """

    parent: Int32
    byte: npt.NDArray[np.uint8]
    tokens: Int32
    nodes: Int32


def build_trie(tokens: Sequence[bytes | None], without: Container[int] = ()) -> tuple[Level, ...]:
    """The levels 1, 2, ... of the trie of `tokens`. Tokens `without` text of their own, None and empty ones are left
    out; level 0 is the root."""
    texts = sorted((text, token) for token, text in enumerate(tokens) if text and token not in without)
    if not texts:
        return ()
    order = np.array([token for _, token in texts], np.int32)
    length = np.array([len(text) for text, _ in texts])
    longest = int(length.max())
    padded = np.frombuffer(b"".join(text.ljust(longest, b"\0") for text, _ in texts), np.uint8)
    matrix = padded.reshape(len(texts), longest)
    # How many bytes each has in common with the one before it; at most both their lengths.
    differ = np.ones((len(texts), longest + 1), np.bool_)
    differ[1:, :-1] = matrix[1:] != matrix[:-1]
    common = np.minimum(differ.argmax(axis=1), length)
    common[1:] = np.minimum(common[1:], length[:-1])
    common[0] = 0
    levels = []
    before = np.zeros(len(texts), np.int32)
    for depth in range(1, longest + 1):
        rows = np.flatnonzero(length >= depth)
        fresh = common[rows] < depth
        node = np.zeros(len(texts), np.int32)
        node[rows] = np.cumsum(fresh) - 1
        ending = rows[length[rows] == depth]
        first = rows[fresh]
        levels.append(Level(before[first], matrix[first, depth - 1].copy(), order[ending], node[ending]))
        before = node
    return tuple(levels)
