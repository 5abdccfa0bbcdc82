"""Small tokenizers of the families that models use, trained here, and vocabularies with all that can be odd in one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from bough.constrain import Vocabulary
from bough.runtime.tokenizer.load import load_tokenizer
from bough.runtime.tokenizer.tokenizer import Tokenizer

_TEXTS = [
    json.dumps({"name": name, "tags": ["red", "green", word], "n": [number, -number / 8], "ok": True, "no": None})
    for number, (name, word) in enumerate(
        [("Ada", "the count"), ("Müller", "東京 is a city"), ("Zoë 😀", "a_b-c/d")] * 20
    )
] + ["The name and the value of the city: 東京, Zürich, naïve, \n\tcount = 10000; // 😀 http://a.example/x?y=z"] * 20
_CONTROL = ["<unk>", "<s>", "</s>", "<|im_start|>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level_bpe() -> Vocabulary:
    """GPT-2, Llama 3, Qwen: tokens are spelled in an alphabet of bytes, and may split characters."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(_TEXTS, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet))
    backend.add_special_tokens(_CONTROL)
    backend.add_tokens(["<tool>", '{"name', "日本"])  # text like any other
    return _vocabulary(backend, spare=37)


def sentencepiece_bpe() -> Vocabulary:
    """Llama 2, Mistral, Gemma: "▁" is a space, and bytes stand for the characters that are no token."""
    trained = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    ascii_texts = [text for text in _TEXTS if text.isascii()]
    trained.train_from_iterator(ascii_texts, trainers.BpeTrainer(vocab_size=400, special_tokens=[*_CONTROL, *_BYTES]))
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    backend = tokenizers.Tokenizer(
        models.BPE(model["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(_CONTROL)
    return _vocabulary(backend, spare=5)


def unigram() -> Vocabulary:
    """T5-like: pieces by score, with bytes for the rest."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", special_tokens=_CONTROL)
    backend.train_from_iterator([text for text in _TEXTS if text.isascii()], trainer)
    pieces = json.loads(backend.to_str())["model"]["vocab"]
    pieces += [(name, -20.0) for name in _BYTES]
    backend.model = models.Unigram([(piece, score) for piece, score in pieces], 0, True)
    backend.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always"), decoders.Fuse()]
    )
    return _vocabulary(backend, spare=0)


def word_pieces() -> Vocabulary:
    """Whole words with and without a space, single characters of ASCII: what is not ASCII cannot be written."""
    words = sorted(
        {word for text in _TEXTS if text.isascii() for word in text.replace('"', " ").split() if len(word) > 1}
    )
    texts = [chr(code).encode() for code in range(32, 127)] + [word.encode() for word in words]
    return greedy([None, None, *texts, *(b" " + word.encode() for word in words)], eos_ids=(1,), spare=70)


def odd() -> Vocabulary:
    """Texts under two ids, control tokens between, ids without text, tokens that begin and end inside of characters."""
    single = [bytes([byte]) for byte in range(256)]
    parts = ["東京😀é".encode()[start:stop] for start in range(12) for stop in range(start + 2, 12)]
    marks = [
        b'"',
        b'{"',
        b'", "',
        b'":',
        b": ",
        b" ",
        b"  ",
        b"true",
        b"tr",
        b"ue}",
        b'"}',
        b"]}",
        b"<|im_end|>",
        b"\xff\xfe",
    ]
    texts: list[bytes | None] = [None, *single, b"", *parts, None, *marks, *marks, b" true", b" true", None]
    return greedy(texts, eos_ids=(0, len(texts) - 1), spare=100)


FAMILIES: dict[str, Callable[[], Vocabulary]] = {
    family.__name__: family for family in (byte_level_bpe, sentencepiece_bpe, unigram, word_pieces, odd)
}


def large(size: int) -> Vocabulary:
    """A vocabulary of the size of Llama 3's or Qwen's: all short runs of common letters, with and without a space."""
    texts: dict[bytes, None] = dict.fromkeys(bytes([byte]) for byte in range(256))
    texts.update(
        (mark.encode(), None) for mark in ('": ', '", "', '": "', '"}', '"]', "}]", ", ", "\\n", "\\u", "00", "://")
    )
    letters = "etaoinshrdlucmfwygpbvk"
    words = [""]
    while len(texts) < size - 2:
        words = [word + letter for word in words for letter in letters]
        for word in words:
            for form in (word, f" {word}", word.capitalize()):
                texts[form.encode()] = None
            if len(texts) >= size - 2:
                break
    return greedy([None, *list(texts)[: size - 2], None], eos_ids=(0, size - 1))


def greedy(texts: Iterable[bytes | None], *, eos_ids: tuple[int, ...], spare: int = 0) -> Vocabulary:
    """A vocabulary whose tokens for a text are the longest that fit, from the left."""
    tokens = tuple(texts)
    ids: dict[bytes, int] = {}
    for token, text in enumerate(tokens):
        if text and token not in eos_ids:
            ids.setdefault(text, token)
    longest = max(map(len, ids))

    def encode(text: str) -> list[int]:
        data, start, result = text.encode(), 0, []
        while start < len(data):
            for stop in range(min(start + longest, len(data)), start, -1):
                if data[start:stop] in ids:
                    result.append(ids[data[start:stop]])
                    break
            else:
                stop = start + 1  # it has no token
            start = stop
        return result

    return Vocabulary(tokens=tokens, eos_ids=eos_ids, size=len(tokens) + spare, encode=encode)


def load(backend: Any) -> Tokenizer:
    """A trained tokenizer as a model's folder brings it."""
    with tempfile.TemporaryDirectory() as name:
        backend.save(str(Path(name) / "tokenizer.json"))
        (Path(name) / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
        return load_tokenizer(name)


def _vocabulary(backend: Any, *, spare: int) -> Vocabulary:
    tokenizer = load(backend)
    return tokenizer.vocabulary(tokenizer.vocab_size + spare)
