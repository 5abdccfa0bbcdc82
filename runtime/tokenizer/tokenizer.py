"""A model's tokenizer: text to token ids and back, prompts and chats included."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ...constrain.vocabulary.vocabulary import Vocabulary
from ..checkpoints.gguf_file import GGUFFile
from ..protocol.errors import ModelError
from .chat_template import FALLBACK_TEMPLATE, ChatTemplate
from .from_gguf import read_gguf_tokenizer
from .from_json import read_json_tokenizer
from .pipeline import TokenizerParts, Variant

_MISREAD = re.compile("(▁+|<0x[0-9A-Fa-f]{2}>)")
"""Texts that SentencePiece's spelling of tokens stands for something else with."""


class Tokenizer:
    """Text to token ids and back. Immutable; safe to use from many threads.

    vocab_size   number of ids: the largest is at most vocab_size - 1
    bos_id       begins a prompt, if `adds_bos`
    eos_ids      ids that end a turn, the model's own first
    special_ids  control tokens: text that is not marked as special never produces them
    chat         the model's chat template, or `FALLBACK_TEMPLATE` if it has none (`has_chat_template` tells)

    Two things that SentencePiece models do with spaces: a prompt may begin with one that the text does not have
    (`encode_prompt`, `encode_chat`; `encode` never adds it), and `decode` keeps all that tokens say, so that it can
    be done in pieces.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self.vocab_size = len(parts.spellings)
        self.bos_id = parts.bos_id
        self.adds_bos = parts.adds_bos and parts.bos_id is not None
        self.eos_ids = parts.eos_ids
        self.special_ids = parts.special_ids
        self.has_chat_template = parts.chat_template is not None
        bos_text = self._spelling(parts.bos_id) if self.has_chat_template or self.adds_bos else ""
        self.chat = ChatTemplate(
            FALLBACK_TEMPLATE if parts.chat_template is None else parts.chat_template,
            control=parts.control,
            bos_token=bos_text,
            eos_token=self._spelling(parts.eos_ids[0] if parts.eos_ids else None),
        )

    @cached_property
    def token_bytes(self) -> tuple[bytes | None, ...]:
        """The text of each token as bytes (possibly part of a character); None for control tokens."""
        return self._parts.token_bytes()

    @cached_property
    def _sorted_bytes(self) -> list[bytes]:
        return sorted(piece for piece in self.token_bytes if piece)

    def goes_on(self, text: bytes) -> bool:
        """Tells whether some token begins with `text` and does not end with it."""
        place = bisect_right(self._sorted_bytes, text)
        return place < len(self._sorted_bytes) and self._sorted_bytes[place].startswith(text)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of a text that may stand anywhere: no beginning-of-sequence token, no space put before it.

        With `special`, the text is a template's: control tokens' texts in it become control tokens.

        Raises:
            RequestError: the text is not valid Unicode.
        """
        return self._encode(self._parts.control.split(text) if special else [text], at_start=False)

    def encode_prompt(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of a text that begins a sequence."""
        pieces = self._parts.control.split(text) if special else [text]
        ids = self._encode(pieces, at_start=True)
        return [self.bos_id, *ids] if self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id] else ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a chat: control tokens are the template's alone, whatever the messages contain.

        Raises:
            RequestError: the messages are malformed, or the template refuses them.
        """
        pieces = self.chat.pieces(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )
        return self._encode(pieces, at_start=True)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.pieces(tokens, skip_special_tokens=skip_special_tokens)).decode(errors="replace")

    def texts(self, tokens: Sequence[int]) -> list[str]:
        """Each token's own text, for display: together they are the decoded text, control tokens included.

        A character that spans tokens belongs to the token that completes it.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(piece) for piece in self.pieces(tokens, skip_special_tokens=False)]
        if texts:
            texts[-1] += decoder.decode(b"", final=True)
        return texts

    def pieces(self, tokens: Iterable[int], *, skip_special_tokens: bool = True) -> list[bytes]:
        """The bytes that each token adds to the text; none for ids that have no text."""
        return [self.piece(token, skip_special_tokens=skip_special_tokens) for token in tokens]

    def vocabulary(self, size: int) -> Vocabulary:
        """The tokens as grammars see them, for a model with `size` logits (at most so many are named).

        Its `encode` is exact: the bytes of the tokens are those of the text, which `encode` does not promise for
        models that normalise text.
        """
        return Vocabulary(
            tokens=self.token_bytes[:size],
            eos_ids=tuple(token for token in self.eos_ids if token < size),
            size=size,
            encode=self._encode_exact,
            control={name: token for name, token in self._parts.control.ids.items() if token < size},
        )

    def _encode_exact(self, text: str) -> list[int]:
        """Ids whose bytes are the text's, if there are such: the model's own, unless it takes the text for another.

        To SentencePiece "▁" is a space, and some models read "<0x0A>" as the byte that a token of that name stands for.
        """
        ids = self._plain_text(text, "exact")
        if self._says(ids, text):
            return ids
        spelled: list[int] = []
        for part in _MISREAD.split(text):
            ids = self._plain_text(part, "exact")
            if self._says(ids, part):
                spelled += ids
                continue
            for char in part:
                ids = self._plain_text(char, "exact")
                spelled += ids if self._says(ids, char) else self._encode_bytes(char.encode())
        return spelled

    def _says(self, ids: Sequence[int], text: str) -> bool:
        return b"".join(self.token_bytes[token] or b"" for token in ids) == text.encode()

    def _encode_bytes(self, data: bytes) -> list[int]:
        """A token for each byte that has one."""
        return [self._byte_ids[byte] for byte in data if byte in self._byte_ids]

    @cached_property
    def _byte_ids(self) -> dict[int, int]:
        single = [
            (piece, token) for token, piece in enumerate(self.token_bytes) if piece is not None and len(piece) == 1
        ]
        return {piece[0]: token for piece, token in reversed(single)}

    def _encode(self, pieces: Sequence[str | int], *, at_start: bool) -> list[int]:
        pipeline = self._parts.pipeline
        ids: list[int] = []
        prefixed = at_start and pipeline.prefix != "never"
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
                prefixed = pipeline.prefix == "sections"
            elif piece:
                ids += self._plain_text(piece, "own" if prefixed else "plain")
                prefixed = False
        return ids

    def _plain_text(self, text: str, variant: Variant) -> list[int]:
        """Ids of a text, none of them special: a model that spells a control token like a word has it spelled out."""
        ids = self._parts.pipeline.encode(text, variant)
        if self.special_ids.isdisjoint(ids):
            return ids
        spelled: list[int] = []
        for token in ids:
            if token in self.special_ids:
                parts = [self._parts.pipeline.encode(char, "exact") for char in self._spelling(token)]
                spelled += [part for char in parts for part in char if part not in self.special_ids]
            else:
                spelled.append(token)
        return spelled

    def piece(self, token: int, *, skip_special_tokens: bool = True) -> bytes:
        """The bytes that one token adds to the text."""
        if not 0 <= token < self.vocab_size:
            return b""
        piece = self.token_bytes[token]
        if piece is None:
            return b"" if skip_special_tokens else self._spelling(token).encode()
        return piece

    def _spelling(self, token: int | None) -> str:
        known = token is not None and 0 <= token < self.vocab_size
        return (self._parts.spellings[token] or "") if token is not None and known else ""


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a .gguf file, or of a folder with tokenizer.json as Hugging Face writes it.

    Raises:
        ModelError: there is none, it cannot be read, or it is of a kind that is not supported.
    """
    path = Path(source)
    if path.is_dir():
        return Tokenizer(read_json_tokenizer(path))
    if path.suffix == ".gguf":
        return gguf_tokenizer(GGUFFile(path))
    raise ModelError(f"a tokenizer comes from a .gguf file or a folder, got {path}")


def gguf_tokenizer(file: GGUFFile) -> Tokenizer:
    """The tokenizer of a GGUF file that is open. Raises ModelError as `load_tokenizer`."""
    return Tokenizer(read_gguf_tokenizer(file))
