"""A model's files as each peer wants them: made once of the same GGUF file, kept beside the environments."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ...runtime.checkpoints.gguf_file import GGUFFile
from ...runtime.models.load import locate
from ...runtime.tokenizer.load import read_gguf_tokenizer
from ..harness.models import write_tokenizer
from .environments import PeerError, peers_folder, run_command, say

KINDS = {"llama.cpp": "gguf", "openvino": "openvino-int8", "vllm": "folder", "transformers": "folder"}
"""Form of the model for each peer: the GGUF file, a folder in bfloat16, or OpenVINO's own with weights in int8."""

_CONVERT = """
import pathlib, sys, torch, transformers
source, target = map(pathlib.Path, sys.argv[1:])
where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
packed = getattr(transformers, "GgufConfig", None)  # of releases that would keep the blocks, which cannot be saved
plain = {"quantization_config": packed(dequantize=True)} if packed else {}
model = transformers.AutoModelForCausalLM.from_pretrained(**where, **plain, dtype=torch.bfloat16)
model.save_pretrained(target)
transformers.AutoTokenizer.from_pretrained(**where).save_pretrained(target)
"""
"""Script for a peer's interpreter: makes of a GGUF file a folder as transformers has it, weights in bfloat16."""


def make_model(kind: str, model: str, interpreter: Path) -> Path:
    """The model's files in a form of KINDS.

    model        a name or path of a GGUF file, as the engine takes it
    interpreter  of the peer's environment: what conversion needs is in it

    Raises:
        PeerError: the model is no GGUF file, or could not be converted.
    """
    source = locate(model)
    if not source.is_file():
        raise PeerError(f"{model} is no .gguf file, which is what peers' models are made of")
    if kind == "gguf":
        return source
    target = model_folder(source) / kind
    command = [str(interpreter), "-P"]
    if kind == "folder":
        command += ["-c", _CONVERT, str(source.resolve())]
    else:
        folder = make_model("folder", model, interpreter)
        command += ["-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", str(folder)]
        command += ["--task", "text-generation-with-past", "--weight-format", "int8"]

    def convert(part: Path) -> None:
        say(f"making {kind}")
        run_command([*command, str(part)], target.with_name(f"{kind}.log"), {"HF_HUB_OFFLINE": "1"})

    return _made_once(target, convert)


def _made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """The folder `target`, made under another name first if it is not there."""
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        make(part)
        os.replace(part, target)
    return target


def model_folder(source: Path) -> Path:
    """Folder of the forms of a file: its name changes with the file."""
    facts = source.stat()
    text = f"{source.resolve()} {facts.st_size} {facts.st_mtime_ns}"
    return peers_folder() / "models" / f"{source.stem}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def make_tokenizer(source: Path, target: Path) -> Path:
    """The folder `target` with the tokenizer of a GGUF file, made if it is not there.

    Raises:
        PeerError: the tokenizer is of a kind that this does not write.
    """

    def write(part: Path) -> None:
        parts = read_gguf_tokenizer(GGUFFile(source))
        if not parts.byte_level:
            raise PeerError("the model's tokenizer is none of bytes, which is what peers' tokenizers are written for")
        part.mkdir()
        write_tokenizer(parts, part)

    return _made_once(target, write)
