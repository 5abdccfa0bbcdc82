"""A GGUF file's tokenizer as other libraries read it, for peers that are given text.

What transformers makes of such a file splits digits and line breaks in other ways, puts a token before each text, and
writes spaces as letters: no two sides would have the same tokens.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ....runtime.checkpoints.gguf_file import GGUFFile
from ....runtime.tokenizer.load import read_gguf_tokenizer
from ....runtime.tokenizer.tokenizer import TokenizerParts
from .environments import PeerError, locked

_END = "<|im_end|>"


def make_tokenizer(source: Path, target: Path) -> Path:
    """The folder `target` with tokenizer.json and its settings, made of a GGUF file if it is not there.

    Raises:
        PeerError: the tokenizer is of a kind that this does not write.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        if not target.is_dir():
            part = target.with_name(target.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            document, settings = described(read_gguf_tokenizer(GGUFFile(source)))
            (part / "tokenizer.json").write_text(json.dumps(document))
            (part / "tokenizer_config.json").write_text(json.dumps(settings))
            os.replace(part, target)
    return target


def described(parts: TokenizerParts) -> tuple[dict[str, Any], dict[str, Any]]:
    """What tokenizer.json and tokenizer_config.json say. Raises as `make_tokenizer`."""
    if not parts.byte_level:
        raise PeerError("the model's tokenizer is none of bytes, which is what peers' tokenizers are written for")
    document: dict[str, Any] = json.loads(parts.pipeline.own.to_str())
    document["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    document["post_processor"] = None
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for text, token in sorted(parts.control.ids.items(), key=lambda entry: entry[1]):
        document["model"]["vocab"][text] = token
        document["added_tokens"].append({"id": token, "content": text, **plain})
    document["added_tokens"].sort(key=lambda entry: entry["id"])
    end = _END if _END in parts.control.ids else parts.spellings[min(parts.eos_ids)]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1 << 20,
    }
    return document, settings
