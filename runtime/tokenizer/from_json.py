"""Reads a tokenizer from a folder as Hugging Face writes it: tokenizer.json and the small files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from ..protocol.errors import ModelError
from .control_tokens import ControlTokens
from .pipeline import TextPipeline, TokenizerParts, end_of_turn_ids


def read_json_tokenizer(folder: str | Path) -> TokenizerParts:
    """The tokenizer of a model folder.

    Read are tokenizer.json (needed), tokenizer_config.json, generation_config.json, config.json and
    chat_template.jinja.

    Raises:
        ModelError: a file is missing or broken, or the tokenizer is of a kind that is not supported.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no tokenizer.json (save the tokenizer in its fast form)")
    description, settings = _read_json(path), _read_json(folder / "tokenizer_config.json")
    try:
        original = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise ModelError(f"{path.name} cannot be used: {error}") from error
    byte_level = _is_byte_level(description)
    added = _added_tokens(description, settings)
    control = ControlTokens(
        {entry["content"]: entry["id"] for entry in added if entry.get("special")},
        strips_left=[entry["content"] for entry in added if entry.get("lstrip")],
        strips_right=[entry["content"] for entry in added if entry.get("rstrip")],
    )
    vocabulary: dict[str, int] = original.get_vocab(with_added_tokens=True)
    vocabulary |= {entry["content"]: entry["id"] for entry in added}  # the library may number them otherwise
    spellings: list[str | None] = [None] * (max([*vocabulary.values(), *control.ids.values()], default=-1) + 1)
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
        eos_ids=_eos_ids(folder, settings, vocabulary, control),
        chat_template=_chat_template(folder, settings),
    )


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path.name} must hold an object")
    return value


def _is_byte_level(description: Mapping[str, Any]) -> bool:
    """Tells whether tokens are spelled in GPT-2's alphabet of bytes. Raises ModelError if they spell no text at all."""
    decoder = json.dumps(description.get("decoder"))
    if '"ByteLevel"' in decoder:
        return True
    if '"Metaspace"' in decoder or '"ByteFallback"' in decoder:
        return False
    raise ModelError("tokenizer.json has no ByteLevel, Metaspace or ByteFallback decoder: its tokens do not spell text")


def _added_tokens(description: Mapping[str, Any], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The added tokens; one is special if either file says so."""
    entries = description.get("added_tokens") or []
    declared = settings.get("added_tokens_decoder") or {}
    valid = isinstance(declared, dict) and all(isinstance(entry, dict) for entry in [*entries, *declared.values()])
    if not valid or any(type(entry.get("id")) is not int or entry["id"] < 0 for entry in entries):
        raise ModelError("tokenizer.json: each of added_tokens must be an object with an id and a content")
    special = {entry.get("content") for entry in declared.values() if entry.get("special")}
    return [{**entry, "special": entry.get("special") or entry.get("content") in special} for entry in entries]


def _added_token(entry: Mapping[str, Any]) -> AddedToken:
    flags = {name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(entry["content"], special=False, **flags)


def _token_text(value: object) -> str:
    """The text of a token in tokenizer_config.json: a string, or an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _eos_ids(
    folder: Path, settings: Mapping[str, Any], vocabulary: Mapping[str, int], control: ControlTokens
) -> tuple[int, ...]:
    declared: list[object] = [vocabulary.get(_token_text(settings.get("eos_token")))]
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        declared += value if isinstance(value, list) else [value]
    return end_of_turn_ids(control, declared)


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"{path.name} is not UTF-8: {error}") from error
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default", next(iter(named.values()), None))
    return template if isinstance(template, str) else None
