"""Parts of a tokenizer, whichever file it came from: text pipelines, token texts, control tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken

from ..protocol.errors import ModelError, RequestError
from .control_tokens import ControlTokens

Description = Mapping[str, Any]
"""A normalizer or pre-tokenizer as it is written in a tokenizer.json."""

Rewrite = Callable[[Description], Description | None]
Variant = Literal["own", "plain", "exact"]

LONG_TEXT = 4096
"""Characters that are encoded in some milliseconds. A longer text may take seconds."""

END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|end_of_text|>",
    "<|endoftext|>",
)
"""Control tokens that end a turn in the models that have them, whatever their metadata says."""


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
        # The library numbers added tokens itself; where a file leaves gaps between their ids, its numbers differ.
        numbered = [(self.own.token_to_id(token.content), token_id) for token, token_id in added]
        self._renumbered = {given: token_id for given, token_id in numbered if given != token_id}

    def encode(self, text: str, variant: Variant) -> list[int]:
        """Ids of a text in one of the variants.

        Raises:
            RequestError: the text holds half of a surrogate pair, which is no character.
        """
        backend = {"own": self.own, "plain": self.plain, "exact": self.exact}[variant]
        try:
            if len(text) > LONG_TEXT:  # as a batch it leaves the interpreter to other threads
                found = backend.encode_batch_fast([text], add_special_tokens=False)[0]
            else:
                found = backend.encode(text, add_special_tokens=False)
            ids: list[int] = found.ids
        except (TypeError, UnicodeError) as error:  # which of them depends on the library's version
            raise RequestError("the text holds a lone surrogate, which is not a Unicode character") from error
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
    """All that a `Tokenizer` needs.

    spellings   each token as the vocabulary spells it; None for ids that have no token
    literal     ids whose spelling is their text as it stands (tokens added to the model's own)
    byte_level  spellings use GPT-2's alphabet of bytes; otherwise SentencePiece's: "▁" is a space, <0x0A> a byte
    control     control tokens; `reserved` are further ids that never stand for text
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

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(self.control.ids.values()) | self.reserved

    def token_bytes(self) -> tuple[bytes | None, ...]:
        """The text of each token; None for those that never stand for text."""
        decode = _byte_level_bytes if self.byte_level else _sentencepiece_bytes
        return tuple(
            None
            if spelling is None or token in self.special_ids
            else spelling.encode()
            if token in self.literal
            else decode(spelling)
            for token, spelling in enumerate(self.spellings)
        )


def end_of_turn_ids(control: ControlTokens, declared: Sequence[object]) -> tuple[int, ...]:
    """Ids that end a turn: the declared ones first (what is no id is left out), then those known by name."""
    known = [control.ids[name] for name in END_OF_TURN if name in control.ids]
    if "<|channel|>" not in control.ids:  # where answers have channels, <|end|> ends only one of them
        known += [control.ids[name] for name in ("<|end|>",) if name in control.ids]
    ids = [token for token in declared if isinstance(token, int) and not isinstance(token, bool) and token >= 0]
    return tuple(dict.fromkeys([*ids, *known]))


def _rewritten(description: Description | None, rewrite: Rewrite) -> Description | None:
    """A description with `rewrite` applied to each step of it; steps for which that returns None are left out."""
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
    """GPT-2's alphabet: code point -> the byte it spells. Printable Latin-1 characters spell themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {0x100 + index: byte for index, byte in enumerate(others)}


_NO_BYTE = 0xFFFD
_BYTE_OF = dict.fromkeys(range(256), _NO_BYTE) | _byte_alphabet()


def _byte_level_bytes(spelling: str) -> bytes:
    try:
        return spelling.translate(_BYTE_OF).encode("latin-1")
    except UnicodeEncodeError:  # some vocabularies hold a token that is not spelled in the alphabet
        return spelling.encode()


def _sentencepiece_bytes(spelling: str) -> bytes:
    if len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">"):
        try:
            return bytes.fromhex(spelling[3:5])
        except ValueError:
            pass
    return spelling.replace("▁", " ").encode()
