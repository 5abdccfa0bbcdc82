"""Reads tokenizers from the metadata of a GGUF file, or from a Hugging Face folder."""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, models

from ..checkpoints.gguf_file import GGUFFile
from ..protocol.errors import ModelError, in_file
from .chat_template import ControlTokens
from .sandbox import MAX_SOURCE_CHARS
from .tokenizer import Description, TextPipeline, Tokenizer, TokenizerParts, end_of_turn_ids, is_library_error

Fields = Mapping[str, Any]
"""Metadata by key; those that begin with "tokenizer." are read."""

Added = list[tuple[AddedToken, int]]

_PREFIX = "tokenizer.ggml."
_CHAT_TEMPLATE = "tokenizer.chat_template"
_SETTINGS = (
    "model", "pre", "add_bos_token", "add_space_prefix",
    "bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "padding_token_id",
)  # fmt: skip
"""Tokenizer metadata with one value each."""

_MAX_FILE_BYTES = 64 << 20
"""Largest JSON file: twice the size of the largest known ones."""

_MAX_TOKENS = 1 << 22
_MAX_SPARE_TOKENS = 1 << 16
"""Most ids of a tokenizer beyond the model's own; some have a few."""

_MAX_PAIRS = 1 << 30
"""Most characters of all ways to cut the tokens of a SentencePiece vocabulary in two."""

_MAX_GROWTH = 128
"""Most characters that normalizer and pre_tokenizer may make of one; T5's make 72."""

_MAX_CHAT_TEMPLATE = 1 << 20
_MAX_TEMPLATE = 1 << 12
_BYTES_OF_CHARACTER = 4


def load_tokenizer(source: str | Path) -> Tokenizer:
    """Reads the tokenizer of a .gguf file, or of a Hugging Face folder with tokenizer.json.

    Raises:
        ModelError: there is no tokenizer, it cannot be read, or its kind is not supported.
    """
    path = Path(source)
    if path.is_dir():
        with _refusing("tokenizer.json"):
            return Tokenizer(read_json_tokenizer(path))
    if path.suffix == ".gguf":
        return gguf_tokenizer(GGUFFile(path))
    raise ModelError(f"a tokenizer is loaded from a .gguf file or a folder, got {path}")


def gguf_tokenizer(file: GGUFFile) -> Tokenizer:
    """Reads the tokenizer of an open GGUF file. Raises ModelError like `load_tokenizer`."""
    with _refusing(file.path.name):
        return Tokenizer(read_gguf_tokenizer(file))


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Turns any exception caused by a file's contents into a ModelError that names the file."""
    try:
        with in_file(name):
            yield
    except ModelError:
        raise
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise ModelError(f"{name}: the tokenizer cannot be built: {type(error).__name__}: {error}") from error


# From a folder


def read_json_tokenizer(folder: str | Path) -> TokenizerParts:
    """Reads the tokenizer of a model folder.

    Reads tokenizer.json (required), tokenizer_config.json, generation_config.json, config.json and
    chat_template.jinja.

    Raises:
        ModelError: a file is missing or broken, or the tokenizer's kind is not supported.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no tokenizer.json (save the tokenizer in its fast form)")
    description, settings = _read_json(path), _read_json(folder / "tokenizer_config.json")
    num_ids = _num_ids(_read_json(folder / "config.json"))
    added = _added_tokens(description, settings, num_ids)
    with _refusing(path.name):
        check_growth(description)
        original = tokenizers.Tokenizer.from_file(str(path))
        original.no_padding()  # padding may be to any length
        original.no_truncation()
    byte_level = _is_byte_level(description)
    control = ControlTokens(
        {entry["content"]: entry["id"] for entry in added if entry.get("special")},
        strips_left=[entry["content"] for entry in added if entry.get("lstrip")],
        strips_right=[entry["content"] for entry in added if entry.get("rstrip")],
    )
    vocabulary: dict[str, int] = original.get_vocab(with_added_tokens=True)
    vocabulary |= {entry["content"]: entry["id"] for entry in added}  # the library may number them differently
    num_tokens = max([*vocabulary.values(), *control.ids.values()], default=-1) + 1
    if num_tokens > num_ids:
        raise ModelError(f"{path.name}: the vocabulary has the id {num_tokens - 1}, which the model does not")
    spellings: list[str | None] = [None] * num_tokens
    for text, token in (*vocabulary.items(), *control.ids.items()):
        spellings[token] = text
    bos_id = vocabulary.get(_token_text(settings.get("bos_token")))
    begins: list[int] = original.encode("", add_special_tokens=True).ids
    if bos_id is None and begins and begins[0] in control.ids.values():
        bos_id = begins[0]
    return TokenizerParts(
        pipeline=TextPipeline(
            original.model,
            normalizer=description.get("normalizer"),
            pre_tokenizer=description.get("pre_tokenizer"),
            added=[(_added_token(entry), entry["id"]) for entry in added if not entry.get("special")],
        ),
        spellings=tuple(spellings),
        literal=frozenset(vocabulary.values()) - frozenset(original.get_vocab(with_added_tokens=False).values()),
        byte_level=byte_level,
        control=control,
        bos_id=bos_id,
        adds_bos=bool(settings.get("add_bos_token", begins[:1] == [bos_id])),
        eos_ids=_eos_ids(folder, settings, vocabulary, control, num_tokens),
        chat_template=_chat_template(folder, settings),
    )


def _read_json(path: Path) -> dict[str, Any]:
    """Reads the object in a file; returns an empty one if there is no such file."""
    if not path.is_file():
        return {}
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ModelError(f"{path.name}: more than {_MAX_FILE_BYTES >> 20} MiB of JSON")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path.name} must hold an object")
    return value


def _num_ids(config: Mapping[str, Any]) -> int:
    """Returns the most ids that the tokenizer of a model with this config.json may have."""
    text = config.get("text_config")
    sizes = [entry.get("vocab_size") for entry in (config, text) if isinstance(entry, dict)]
    known = [size for size in sizes if type(size) is int and 0 < size <= _MAX_TOKENS]
    return min(max(known, default=_MAX_TOKENS) + _MAX_SPARE_TOKENS, _MAX_TOKENS)


def _is_byte_level(description: Mapping[str, Any]) -> bool:
    """Returns True if tokens are spelled in GPT-2's alphabet of bytes. Raises ModelError if they spell no text."""
    decoder = json.dumps(description.get("decoder"))
    if '"ByteLevel"' in decoder:
        return True
    if '"Metaspace"' in decoder or '"ByteFallback"' in decoder:
        return False
    raise ModelError("tokenizer.json has no ByteLevel, Metaspace or ByteFallback decoder: its tokens have no text")


def check_growth(description: Mapping[str, Any]) -> None:
    """Checks how much the steps of a tokenizer.json expand a text.

    Raises:
        ModelError: a character may become too many, or the steps after the model add too many tokens.
    """
    growth = _growth(description.get("normalizer")) * _growth(description.get("pre_tokenizer"))
    if growth > _MAX_GROWTH:
        raise ModelError(
            f"tokenizer.json: normalizer and pre_tokenizer may turn one character into {min(growth, 10**9)} "
            f"or more, at most {_MAX_GROWTH} are accepted"
        )
    _num_added(description.get("post_processor"), 0)


def _growth(step: Any) -> int:
    """Returns the most characters that a step makes of one.

    Unicode normalisation is not counted in itself, since it is idempotent, but in the texts that other steps insert.
    """
    match step:
        case {"type": "Sequence", "normalizers": [*steps]} | {"type": "Sequence", "pretokenizers": [*steps]}:
            return _product(map(_growth, steps))
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1, -(-_longest_form(content) // len(pattern)))
        case {"type": "Replace", "content": str(content)}:  # a pattern may match between any two characters
            return 1 + _longest_form(content)
        case {"type": "Prepend", "prepend": str(prepend)}:
            return 1 + _longest_form(prepend)
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return _longest_mapped(base64.b64decode(table))
        case {"type": "ByteLevel"}:
            return _BYTES_OF_CHARACTER
        case {"type": "BertNormalizer"}:
            return 3  # spaces around a character
        case {"type": "Metaspace"}:
            return 2
        case {"type": str()} | None:
            return 1
    raise ModelError("tokenizer.json: each step of normalizer and pre_tokenizer must be an object with a type")


def _product(factors: Iterable[int]) -> int:
    """Returns the product, or a partial one above the limit: the whole may have a million digits."""
    product = 1
    for factor in factors:
        product = min(product * factor, 10**9)
    return product


def _longest_form(text: str) -> int:
    return max(len(text), len(unicodedata.normalize("NFKD", text)))


def _longest_mapped(table: bytes) -> int:
    """Returns the longest text in SentencePiece's table: the size of a trie, the trie, and texts that end in 0."""
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1, *(len(text.decode(errors="replace")) for text in texts.split(b"\0")))


def _num_added(step: Any, num_tokens: int) -> int:
    """Returns the tokens after a step of the post-processor, given the number that earlier steps add to an empty text.

    Raises:
        ModelError: there are too many at some step.
    """
    match step:
        case {"processors": [*steps]}:
            for each in steps:
                num_tokens = _num_added(each, num_tokens)
        case {"single": [*pieces], "special_tokens": dict(marks)}:
            sizes = {name: len(mark["ids"]) for name, mark in marks.items()}
            texts = sum("Sequence" in piece for piece in pieces)
            added = sum(sizes.get(piece["SpecialToken"]["id"], 0) for piece in pieces if "SpecialToken" in piece)
            num_tokens = texts * num_tokens + added
        case {"sep": _, "cls": _}:
            num_tokens += 2
    if num_tokens > _MAX_TEMPLATE:
        raise ModelError(f"tokenizer.json: post_processor adds more than {_MAX_TEMPLATE} tokens")
    return num_tokens


def _added_tokens(description: Mapping[str, Any], settings: Mapping[str, Any], num_ids: int) -> list[dict[str, Any]]:
    """Returns the added tokens; one is special if either file says so."""
    entries = description.get("added_tokens") or []
    declared = settings.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict) or not all(isinstance(entry, dict) for entry in declared.values()):
        raise ModelError("tokenizer_config.json: added_tokens_decoder must map ids to objects")
    for entry in entries if isinstance(entries, list) else [None]:
        if not isinstance(entry, dict) or type(entry.get("id")) is not int or type(entry.get("content")) is not str:
            raise ModelError("tokenizer.json: each of added_tokens must be an object with an id and a content")
        if not 0 <= entry["id"] < num_ids:
            raise ModelError(f"tokenizer.json: an id of added_tokens is {entry['id']}, not in 0 .. {num_ids - 1}")
    special = {entry.get("content") for entry in declared.values() if entry.get("special")}
    return [{**entry, "special": entry.get("special") or entry.get("content") in special} for entry in entries]


def _added_token(entry: Mapping[str, Any]) -> AddedToken:
    flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(entry["content"], special=False, **flags)


def _token_text(value: object) -> str:
    """Returns the text of a token in tokenizer_config.json: a string, or an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _eos_ids(
    folder: Path, settings: Mapping[str, Any], vocabulary: Mapping[str, int], control: ControlTokens, num_tokens: int
) -> tuple[int, ...]:
    declared: list[object] = [vocabulary.get(_token_text(settings.get("eos_token")))]
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        declared += value if isinstance(value, list) else [value]
    return end_of_turn_ids(control, declared, num_tokens)


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        if path.stat().st_size > _BYTES_OF_CHARACTER * MAX_SOURCE_CHARS:
            raise ModelError(f"{path.name}: more than {MAX_SOURCE_CHARS} characters")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"{path.name} is not UTF-8: {error}") from error
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default", next(iter(named.values()), None))
    return template if isinstance(template, str) else None


# From a GGUF file


class _Kind(IntEnum):
    """Kinds of tokens (tokenizer.ggml.token_type)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class _Split(NamedTuple):
    """Rules by which a family of models cuts text into words: patterns applied in turn, each piece of the last a word.

    byte_level_words   the last cut is GPT-2's own
    ignore_merges      a word that is a token is that token, whatever the merges say
    adds_bos           prompts begin with bos unless the file says otherwise
    normalizer         applied before the cuts
    """

    patterns: tuple[str, ...] = ()
    byte_level_words: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False
    normalizer: Description | None = None


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str) -> str:
    """Pattern of cl100k words: a letter run with one mark before it; so many digits; marks with line breaks after."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased_words(contractions: str, digits: str) -> str:
    """Pattern of o200k words, which also end where a lower-case run is followed by an upper-case letter."""
    mark = r"[^\r\n\p{L}\p{N}]?"
    letters = f"{mark}{_UPPER}*{_LOWER}+{contractions}|{mark}{_UPPER}+{_LOWER}*{contractions}"
    return rf"{letters}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_NFC = {"type": "NFC"}
_GPT2 = _Split(byte_level_words=True)
_SINGLE_DIGITS = _Split((r"\p{N}",), byte_level_words=True)
_QWEN2 = _Split((_words(r"\p{N}"),), normalizer=_NFC)
_LLAMA3 = _Split((_words(r"\p{N}{1,3}"),), ignore_merges=True, adds_bos=True)
_CL100K = _Split((_words(r"\p{N}{1,3}"),))
_DEFAULT = _Split(
    (
        r"[\p{P}\$\+<=>\^~\|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+",
        "[0-9][0-9][0-9]",
    )
)
_DEEPSEEK3 = _Split(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
        + _SPACES,
    )
)
_SPLITS: Mapping[str, _Split] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "granite-docling"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"), _SINGLE_DIGITS),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _CL100K),
    **dict.fromkeys(("gpt-4o", "llama4"), _Split((_cased_words(_CONTRACTIONS + "?", r"\p{N}{1,3}"),))),
    "tekken": _Split((_cased_words("", r"\p{N}"),), ignore_merges=True, adds_bos=True),
    "deepseek-v3": _DEEPSEEK3,
}


def read_gguf_tokenizer(file: GGUFFile) -> TokenizerParts:
    """Reads the tokenizer in a GGUF file. Raises ModelError if it has none, or its kind is not supported."""
    fields: dict[str, Any] = {_PREFIX + name: file.metadata(_PREFIX + name) for name in _SETTINGS}
    for name in ("token_type", "scores"):  # one for each token
        fields[_PREFIX + name] = file.metadata(_PREFIX + name, most=file.num_tokens)
    fields |= {_PREFIX + "tokens": file.tokens, _PREFIX + "merges": file.merges}
    fields[_CHAT_TEMPLATE] = file.metadata(_CHAT_TEMPLATE, most=_MAX_CHAT_TEMPLATE)
    return build_gguf_tokenizer({key: value for key, value in fields.items() if value is not None})


def build_gguf_tokenizer(fields: Fields) -> TokenizerParts:
    """Builds the tokenizer described by GGUF metadata. Raises like `read_gguf_tokenizer`."""
    kind = fields.get(_PREFIX + "model")
    tokens = _strings(fields, "tokens")
    if not tokens:
        raise ModelError(f"the file has no {_PREFIX}tokens, so it contains no tokenizer")
    kinds = _token_kinds(fields, len(tokens))
    of_kind: dict[int, list[int]] = {kind: [] for kind in {*kinds, *_Kind}}
    for token, kind_of_token in enumerate(kinds):
        of_kind[kind_of_token].append(token)
    added_ids = [token for token in of_kind[_Kind.USER_DEFINED] if tokens[token]]
    added = [(AddedToken(tokens[token], normalized=False, special=False), token) for token in added_ids]
    # The model never sees control tokens: no merge, and no word taken as a whole, can produce their ids.
    text_ids = sorted([*of_kind[_Kind.NORMAL], *of_kind[_Kind.USER_DEFINED], *of_kind[_Kind.BYTE]])
    vocabulary = {tokens[token]: token for token in reversed(text_ids)}  # reversed: of equal spellings the first counts
    if kind == "gpt2":
        split = _split_named(fields.get(_PREFIX + "pre"))
        pipeline = _byte_level(fields, vocabulary, split, added)
        adds_bos = split.adds_bos
    elif kind == "llama":
        pipeline = _sentencepiece(fields, tokens, kinds, vocabulary, added)
        adds_bos = True
    else:
        raise ModelError(f"{_PREFIX}model is {kind!r}; supported are 'gpt2' and 'llama'")
    control_ids = sorted([*of_kind[_Kind.CONTROL], *of_kind[_Kind.UNKNOWN]])
    control = ControlTokens({tokens[token]: token for token in control_ids})
    bos_id = _token_id(fields, "bos_token_id", len(tokens))
    declared = [_token_id(fields, f"{name}_token_id", len(tokens)) for name in ("eos", "eot", "eom")]
    adds_bos = bool(fields.get(_PREFIX + "add_bos_token", adds_bos))
    template = fields.get(_CHAT_TEMPLATE)
    return TokenizerParts(
        pipeline=pipeline,
        spellings=tuple(tokens),
        literal=frozenset(added_ids) if kind == "gpt2" else frozenset(),
        byte_level=kind == "gpt2",
        control=control,
        bos_id=bos_id,
        adds_bos=adds_bos,
        eos_ids=end_of_turn_ids(control, declared, len(tokens)),
        reserved=frozenset(of_kind[_Kind.UNUSED]),
        chat_template=template if isinstance(template, str) else None,
    )


def _split_named(name: object) -> _Split:
    if name is None:
        name = "default"
    if not isinstance(name, str) or name not in _SPLITS:
        raise ModelError(f"{_PREFIX}pre is {name!r}, which is not supported (supported: {', '.join(sorted(_SPLITS))})")
    return _SPLITS[name]


def _byte_level(fields: Fields, vocabulary: dict[str, int], split: _Split, added: Added) -> TextPipeline:
    """Builds byte-pair encoding over GPT-2's alphabet of bytes."""
    spellings = [merge.split(" ") for merge in _strings(fields, "merges")]
    if any(len(pair) != 2 or "" in pair for pair in spellings):
        raise ModelError(f"each of {_PREFIX}merges must be two tokens with a space between them")
    merges = [(left, right) for left, right in spellings]
    steps: list[Description] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in split.patterns
    ]
    prefixed = bool(fields.get(_PREFIX + "add_space_prefix", False))
    steps.append(
        {"type": "ByteLevel", "add_prefix_space": prefixed, "trim_offsets": False, "use_regex": split.byte_level_words}
    )
    return TextPipeline(
        _model(vocabulary, merges, ignore_merges=split.ignore_merges),
        normalizer=split.normalizer,
        pre_tokenizer={"type": "Sequence", "pretokenizers": steps},
        added=added,
    )


def _sentencepiece(
    fields: Fields, tokens: list[str], kinds: Sequence[int], vocabulary: dict[str, int], added: Added
) -> TextPipeline:
    """Builds SentencePiece's byte-pair encoding: the pair whose concatenation has the best score is merged first."""
    scores = fields.get(_PREFIX + "scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(f"{_PREFIX}scores must hold a number for each of the {len(tokens)} tokens")
    if sum(len(piece) ** 2 for piece in vocabulary) > _MAX_PAIRS:
        raise ModelError(f"{_PREFIX}tokens has tokens that are too long for a SentencePiece vocabulary")
    mergeable = [token for token in vocabulary.values() if kinds[token] in (_Kind.NORMAL, _Kind.USER_DEFINED)]
    merges: list[tuple[str, str]] = []
    for token in sorted(mergeable, key=lambda token: (-scores[token], token)):
        piece = tokens[token]
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))  # of a long piece never all at once
        known = [pair for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary]
        merges += sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    normalizers: list[Description] = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    if fields.get(_PREFIX + "add_space_prefix", True):
        normalizers.insert(0, {"type": "Prepend", "prepend": "▁"})
    unknown = next((tokens[token] for token, kind in enumerate(kinds) if kind == _Kind.UNKNOWN), None)
    if unknown is not None:
        vocabulary = {**vocabulary, unknown: tokens.index(unknown)}
    return TextPipeline(
        _model(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown),
        normalizer={"type": "Sequence", "normalizers": normalizers},
        pre_tokenizer=None,
        added=added,
    )


def _model(vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], **options: Any) -> Any:
    try:
        return models.BPE(vocab=vocabulary, merges=list(merges), **options)
    except Exception as error:  # the library raises no narrower class
        raise ModelError(f"the tokenizer's merges do not match its tokens: {error}") from error


def _strings(fields: Fields, name: str) -> list[str]:
    value = fields.get(_PREFIX + name) or []
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ModelError(f"{_PREFIX}{name} must be an array of strings")
    return value


def _token_id(fields: Fields, name: str, num_tokens: int) -> int | None:
    value = fields.get(_PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < num_tokens:
        raise ModelError(f"{_PREFIX}{name} must be the id of one of the {num_tokens} tokens, got {value!r}")
    return value


def _token_kinds(fields: Fields, num_tokens: int) -> list[int]:
    """Returns each token's kind. If the file has none, tokens declared as bos, eos ... are control, the others text."""
    kinds = fields.get(_PREFIX + "token_type")
    if kinds is None:
        kinds = [int(_Kind.NORMAL)] * num_tokens
        for name in ("bos", "eos", "eot", "eom", "padding"):
            token = _token_id(fields, f"{name}_token_id", num_tokens)
            if token is not None:
                kinds[token] = _Kind.CONTROL
    if not isinstance(kinds, list) or len(kinds) != num_tokens:
        raise ModelError(f"{_PREFIX}token_type must hold a number for each of the {num_tokens} tokens")
    return kinds
