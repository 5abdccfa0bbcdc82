"""Makes a vocabulary of whatever tokenizer somebody has: ours, one of `tokenizers`, or a fast one of `transformers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llguidance import LLTokenizer

from .vocabulary import Vocabulary

_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[SEP]")
"""Names of tokens that end a sequence, for tokenizers that do not say which is theirs."""


def as_vocabulary(tokenizer: Any) -> Vocabulary:
    """The vocabulary of `tokenizer`, by what it can do.

    Raises:
        TypeError: it is no tokenizer that is known.
    """
    if isinstance(tokenizer, Vocabulary):
        return tokenizer
    if hasattr(tokenizer, "vocabulary") and hasattr(tokenizer, "vocab_size"):
        found = tokenizer.vocabulary(tokenizer.vocab_size)
        if isinstance(found, Vocabulary):
            return found
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not (hasattr(fast, "to_str") and hasattr(fast, "id_to_token") and hasattr(fast, "get_vocab_size")):
        raise TypeError(f"a tokenizer or a Vocabulary is needed, got {type(tokenizer).__name__}")
    return _of_fast(fast, getattr(tokenizer, "eos_token_id", None))


def byte_vocabulary() -> Vocabulary:
    """A vocabulary of the 256 bytes and an end of sequence: for questions that no model's tokens matter to."""
    tokens = (*(bytes([byte]) for byte in range(256)), None)
    return Vocabulary(tokens=tokens, eos_ids=(256,), size=257, encode=lambda text: list(text.encode()))


def _of_fast(fast: Any, eos_id: int | None) -> Vocabulary:
    """Adapts a tokenizer of the package `tokenizers`."""
    size = fast.get_vocab_size(with_added_tokens=True)
    if eos_id is None:
        known = (fast.token_to_id(name) for name in _ENDS)
        eos_id = next((token for token in known if token is not None), size)  # else one that no text has
    size = max(size, eos_id + 1)
    reader = LLTokenizer(fast.to_str(), n_vocab=size, eos_token=eos_id, slices=[])
    special = {token for token, added in fast.get_added_tokens_decoder().items() if added.special} | {eos_id}
    tokens = tuple(None if token in special else reader.decode_bytes([token]) or None for token in range(size))
    return Vocabulary(tokens=tokens, eos_ids=(eos_id,), size=size, encode=_encoder(fast, reader, tokens))


def _encoder(fast: Any, reader: LLTokenizer, tokens: tuple[bytes | None, ...]) -> Callable[[str], list[int]]:
    def encode(text: str) -> list[int]:
        ids: list[int] = fast.encode(text, add_special_tokens=False).ids
        if b"".join(tokens[token] or b"" for token in ids) == text.encode():
            return ids
        return list(reader.greedy_tokenize(text))  # it puts something before the text, such as a space

    return encode
