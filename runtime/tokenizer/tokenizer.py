"""Tokenizer of a model from any kind of file: text to token ids and back, prompts and chats included."""

from __future__ import annotations

import codecs
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Unpack

import tokenizers
from tokenizers import AddedToken

from ...constrain.vocabulary.vocabulary import Vocabulary
from ..protocol.errors import EngineError, ModelError, RequestError
from .chat_template import FALLBACK_TEMPLATE, ChatOptions, ChatTemplate, ControlTokens

Description = Mapping[str, Any]
"""A normalizer or pre-tokenizer in the format of tokenizer.json."""

Rewrite = Callable[[Description], Description | None]
Variant = Literal["own", "plain", "exact"]

LONG_TEXT = 4096
"""Characters that are encoded within milliseconds. A longer text may take seconds."""

MAX_TOKEN_CHARS = 16
"""Most characters of a text per token of its limit. Languages and code have about four."""

MAX_SPELLING = 1 << 13
"""Most characters of a token, which each generated token may add to an answer. The longest known ones have some
hundreds."""

END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|end_of_text|>",
    "<|endoftext|>",
)
"""Control tokens that end a turn in the models that have them, regardless of their metadata."""

_MISREAD = re.compile("(▁+|<0x[0-9A-Fa-f]{2}>)")
"""Texts with another meaning in SentencePiece's spelling of tokens."""


class Tokenizer:
    """Text to token ids and back. Immutable; safe to use from many threads.

    vocab_size   number of ids: the largest is at most vocab_size - 1
    bos_id       begins a prompt, if `adds_bos`
    eos_ids      ids that end a turn, the model's own first
    special_ids  control tokens: text that is not marked as special never produces them
    chat         the model's chat template, or `FALLBACK_TEMPLATE` if it has none (see `has_chat_template`)

    Spaces in SentencePiece models: a prompt may begin with one that the text does not have (`encode_prompt`,
    `encode_chat`; `encode` never adds it), and `decode` keeps all spaces of tokens, so that it can be done in pieces.
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
        """Text of each token as bytes (possibly part of a character); None for control tokens."""
        return self._parts.token_bytes()

    @cached_property
    def _sorted_bytes(self) -> list[bytes]:
        return sorted(piece for piece in self.token_bytes if piece)

    def goes_on(self, text: bytes) -> bool:
        """Returns True if some token begins with `text` and is longer."""
        place = bisect_right(self._sorted_bytes, text)
        return place < len(self._sorted_bytes) and self._sorted_bytes[place].startswith(text)

    def fewest_tokens(self, text: str, most: int | None = None) -> int:
        """Returns the least number of tokens that spell a text; `encode` may use more.

        With `most`, the count stops there: `most` + 1 stands for any larger number.
        """
        data = text.encode()
        count, reached, frontier = 0, {0}, [0]
        while len(data) not in reached:
            count += 1
            if most is not None and count > most:
                return count
            frontier = [stop for start in frontier for stop in self._stops(data, start, reached)]
            if not frontier:  # some byte has no token
                return len(data)
        return count

    def _stops(self, data: bytes, start: int, reached: set[int]) -> Iterator[int]:
        """Yields the ends of tokens that begin at `start`, except those already `reached`, to which it adds them."""
        known = self._sorted_bytes
        for stop in range(start + 1, len(data) + 1):
            piece = data[start:stop]
            place = bisect_left(known, piece)
            if place == len(known) or not known[place].startswith(piece):
                return
            if known[place] == piece and stop not in reached:
                reached.add(stop)
                yield stop

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Encodes a text at any position: without a beginning-of-sequence token or a space before it.

        With `special`, the text is a template's, and texts of control tokens in it become control tokens.

        Raises:
            RequestError: the text is not valid Unicode.
        """
        return self._encode(self._parts.control.split(text) if special else [text], at_start=False)

    def encode_pieces(self, pieces: Sequence[str | int]) -> list[int]:
        """Encodes a template's pieces at any position: plain texts, and ids of control tokens."""
        return self._encode(list(pieces), at_start=False)

    def encode_prompt(self, text: str, *, special: bool = False) -> list[int]:
        """Encodes a text at the beginning of a sequence."""
        pieces = self._parts.control.split(text) if special else [text]
        ids = self._encode(pieces, at_start=True)
        return [self.bos_id, *ids] if self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id] else ids

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, max_chars: int | None = None, **options: Unpack[ChatOptions]
    ) -> list[int]:
        """Encodes a chat: only the template's own control tokens count as such, whatever the messages contain.

        Raises:
            RequestError: the messages are malformed, the template refuses them, or it writes more than `max_chars`.
        """
        pieces = self.chat.pieces(messages, **options)
        num_chars = sum(len(piece) for piece in pieces if isinstance(piece, str))
        if max_chars is not None and num_chars > max_chars:
            message = f"the chat has {num_chars} characters as the template writes it, at most {max_chars} are allowed"
            raise RequestError(message, code="context_length_exceeded", param="messages")
        return self._encode(pieces, at_start=True)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.pieces(tokens, skip_special_tokens=skip_special_tokens)).decode(errors="replace")

    def texts(self, tokens: Sequence[int]) -> list[str]:
        """Returns each token's own text, for display; joined, they are the decoded text, control tokens included.

        A character that spans tokens belongs to the token that completes it.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(piece) for piece in self.pieces(tokens, skip_special_tokens=False)]
        if texts:
            texts[-1] += decoder.decode(b"", final=True)
        return texts

    def pieces(self, tokens: Iterable[int], *, skip_special_tokens: bool = True) -> list[bytes]:
        """Returns the bytes that each token adds to the text; empty for ids without text."""
        return [self.piece(token, skip_special_tokens=skip_special_tokens) for token in tokens]

    def vocabulary(self, size: int) -> Vocabulary:
        """Returns the vocabulary for grammars, for a model with `size` logits (at most that many tokens are named).

        Its `encode` is exact: the bytes of the tokens are those of the text, which `encode` here does not guarantee for
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
        """Returns ids whose bytes are the text's, if there are any: the model's own, unless it misreads the text.

        SentencePiece reads "▁" as a space, and some models read "<0x0A>" as the byte of the token with that name.
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
        """Returns a token for each byte that has one."""
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
        """Encodes a text without special ids: a control token that is spelled like a word is spelled out."""
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
        """Returns the bytes that one token adds to the text."""
        if not 0 <= token < self.vocab_size:
            return b""
        piece = self.token_bytes[token]
        if piece is None:
            return b"" if skip_special_tokens else self._spelling(token).encode()
        return piece

    def _spelling(self, token: int | None) -> str:
        known = token is not None and 0 <= token < self.vocab_size
        return (self._parts.spellings[token] or "") if token is not None and known else ""


# Parts of a tokenizer


class TextPipeline:
    """Text without control tokens to ids, in three variants that share one model.

    own     as the model was trained: some put a space before the text
    plain   the same without that space, for text that continues another
    exact   plain, and nothing normalised: the tokens' bytes are the text's bytes

    `prefix` says when `own` puts a space before a text: never, at the start of a prompt only, or also after each
    control token ("sections"). `added` are texts found before the model sees the rest, with their ids.

    Raises:
        ModelError: the descriptions are not valid.
    """

    def __init__(
        self,
        model: Any,
        *,
        normalizer: Description | None,
        pre_tokenizer: Description | None,
        added: Sequence[tuple[AddedToken, int]] = (),
    ) -> None:
        variants = [
            (normalizer, pre_tokenizer),
            (_rewritten(normalizer, _without_prefix), _rewritten(pre_tokenizer, _without_prefix)),
        ]
        variants.append((_rewritten(variants[1][0], _without_normalisation), variants[1][1]))
        self._added = [token for token, _ in added]
        self._model = model
        self.own = self._backend(*variants[0])
        self.plain = self.own if variants[1] == variants[0] else self._backend(*variants[1])
        self.exact = self.plain if variants[2] == variants[1] else self._backend(*variants[2])
        self.prefix: Literal["never", "start", "sections"] = "never"
        if variants[1] != variants[0]:
            self.prefix = "start" if '"prepend_scheme": "first"' in json.dumps(pre_tokenizer) else "sections"
        # The library numbers added tokens itself; if a file has gaps between their ids, its numbers differ.
        numbered = [(self.own.token_to_id(token.content), token_id) for token, token_id in added]
        self._renumbered = {given: token_id for given, token_id in numbered if given != token_id}

    def encode(self, text: str, variant: Variant) -> list[int]:
        """Encodes a text in one of the variants.

        Raises:
            RequestError: the text holds half of a surrogate pair, which is not a character.
            EngineError: the library fails, which only happens with a damaged or hostile tokenizer.
        """
        backend = {"own": self.own, "plain": self.plain, "exact": self.exact}[variant]
        try:
            found = None
            if len(text) > LONG_TEXT:
                found = _encoded_as_batch(backend, text)
            if found is None:
                found = backend.encode(text, add_special_tokens=False)
            ids: list[int] = found.ids
        except (TypeError, UnicodeError) as error:  # depending on the library's version
            raise RequestError("the text holds a lone surrogate, which is not a Unicode character") from error
        except BaseException as error:
            if not is_library_error(error):
                raise
            raise EngineError("the tokenizer failed on a text", code="tokenizer_error") from error
        return [self._renumbered.get(token, token) for token in ids] if self._renumbered else ids

    def _backend(self, normalizer: Description | None, pre_tokenizer: Description | None) -> Any:
        empty = {"type": "BPE", "vocab": {}, "merges": []}
        description = {"model": empty, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}
        absent = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
        try:
            shell = tokenizers.Tokenizer.from_str(
                json.dumps({"version": "1.0", "added_tokens": [], **absent, **description})
            )
        except Exception as error:  # the library raises no narrower class
            raise ModelError(f"the tokenizer's normalizer or pre-tokenizer cannot be used: {error}") from error
        backend = tokenizers.Tokenizer(self._model)
        if shell.normalizer is not None:
            backend.normalizer = shell.normalizer
        if shell.pre_tokenizer is not None:
            backend.pre_tokenizer = shell.pre_tokenizer
        backend.add_tokens(self._added)
        return backend


@dataclass(frozen=True)
class TokenizerParts:
    """Parts of a `Tokenizer`.

    spellings   each token as the vocabulary spells it; None for ids that have no token
    literal     ids whose spelling is their text as it stands (tokens added to the model's own)
    byte_level  spellings use GPT-2's alphabet of bytes; otherwise SentencePiece's: "▁" is a space, <0x0A> a byte
    control     control tokens; `reserved` are further ids that never stand for text

    Raises:
        ModelError: a token is too long.
    """

    pipeline: TextPipeline
    spellings: tuple[str | None, ...]
    literal: frozenset[int]
    byte_level: bool
    control: ControlTokens
    bos_id: int | None
    adds_bos: bool
    eos_ids: tuple[int, ...]
    reserved: frozenset[int] = frozenset()
    chat_template: str | None = None

    def __post_init__(self) -> None:
        longest = max((len(spelling) for spelling in self.spellings if spelling is not None), default=0)
        if longest > MAX_SPELLING:
            raise ModelError(f"the vocabulary has a token of {longest} characters, at most {MAX_SPELLING} are accepted")

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self.control.ids.values()) | self.reserved

    def token_bytes(self) -> tuple[bytes | None, ...]:
        """Text of each token; None for those that never stand for text."""
        decode = _byte_level_bytes if self.byte_level else _sentencepiece_bytes
        return tuple(
            None
            if spelling is None or token in self.special_ids
            else spelling.encode()
            if token in self.literal
            else decode(spelling)
            for token, spelling in enumerate(self.spellings)
        )


def _encoded_as_batch(backend: Any, text: str) -> Any:
    """Encodes a long text as a batch, which leaves the interpreter to other threads; returns None if that fails.

    Unless TOKENIZERS_PARALLELISM is false, the library begins threads for its first batch. If the system has none left
    then, every later batch fails as well, but not what is encoded without one.
    """
    try:
        return backend.encode_batch_fast([text], add_special_tokens=False)[0]
    except BaseException as error:
        if not is_library_error(error):
            raise
        return None


def is_library_error(error: BaseException) -> bool:
    """Returns True if the tokenizers library raised the error: it has no narrower class, and panics past Exception."""
    return not isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def end_of_turn_ids(control: ControlTokens, declared: Sequence[object], num_tokens: int) -> tuple[int, ...]:
    """Returns ids that end a turn: the declared ones first (without those out of range), then those known by name."""
    known = [control.ids[name] for name in END_OF_TURN if name in control.ids]
    if "<|channel|>" not in control.ids:  # where answers have channels, <|end|> ends only one of them
        known += [control.ids[name] for name in ("<|end|>",) if name in control.ids]
    ids = [token for token in declared if type(token) is int and 0 <= token < num_tokens]
    return tuple(dict.fromkeys([*ids, *known]))


def _rewritten(description: Description | None, rewrite: Rewrite) -> Description | None:
    """Returns a description with `rewrite` applied to each step; steps for which that returns None are left out."""
    if description is None:
        return None
    for key in ("normalizers", "pretokenizers"):
        if key in description:
            steps = [_rewritten(step, rewrite) for step in description[key]]
            return {**description, key: [step for step in steps if step is not None]}
    return rewrite(description)


def _without_prefix(step: Description) -> Description | None:
    if step.get("type") == "Prepend":
        return None
    if step.get("type") == "Metaspace":
        return {**step, "prepend_scheme": "never"}
    if step.get("type") == "ByteLevel" and step.get("add_prefix_space"):
        return {**step, "add_prefix_space": False}
    return step


def _without_normalisation(step: Description) -> Description | None:
    return step if step.get("type") == "Replace" else None


def _byte_alphabet() -> dict[int, int]:
    """Returns GPT-2's alphabet: code point -> the byte it spells. Printable Latin-1 characters spell themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {0x100 + index: byte for index, byte in enumerate(others)}


_NO_BYTE = 0xFFFD
_BYTE_OF = dict.fromkeys(range(256), _NO_BYTE) | _byte_alphabet()


def _byte_level_bytes(spelling: str) -> bytes:
    try:
        return spelling.translate(_BYTE_OF).encode("latin-1")
    except UnicodeEncodeError:  # some vocabularies have a token that is not spelled in the alphabet
        return spelling.encode()


def _sentencepiece_bytes(spelling: str) -> bytes:
    if len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">"):
        try:
            return bytes.fromhex(spelling[3:5])
        except ValueError:
            pass
    return spelling.replace("▁", " ").encode()
