"""A model's files as each peer wants them: made once of the same GGUF file, kept beside the environments."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path

from ....runtime.models.load import locate
from . import convert as peer_convert
from .environments import PeerError, Say, locked, log_file, peers_folder, run_command

KINDS = {"llama.cpp": "gguf", "openvino": "openvino-int8", "vllm": "folder", "transformers": "folder"}
"""What each peer loads: the GGUF file itself, a folder in bfloat16, or OpenVINO's own form with weights in int8."""

_LIMIT_S = 1800.0


def make_model(
    kind: str, model: str, interpreter: Path, *, cache_dir: str | Path | None = None, say: Say = lambda line: None
) -> Path:
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
    target = model_folder(source, cache_dir) / kind
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(kind + ".part")
    if kind == "folder":
        script = str(Path(peer_convert.__file__).resolve())
        command = [str(interpreter), "-P", script, str(source.resolve()), str(part)]
    else:
        folder = make_model("folder", model, interpreter, cache_dir=cache_dir, say=say)
        command = [str(interpreter), "-P", "-m", "optimum.commands.optimum_cli", "export", "openvino"]
        command += ["--model", str(folder), "--task", "text-generation-with-past", "--weight-format", "int8", str(part)]
    with locked(target):
        if not target.is_dir():
            shutil.rmtree(part, ignore_errors=True)
            run_command(
                command,
                f"making {kind}",
                log=log_file(target),
                deadline=time.monotonic() + _LIMIT_S,
                say=say,
                variables={"HF_HUB_OFFLINE": "1"},
            )
            os.replace(part, target)
    return target


def model_folder(source: Path, cache_dir: str | Path | None = None) -> Path:
    """Where forms of a file lie: its name changes with the file."""
    facts = source.stat()
    text = f"{source.resolve()} {facts.st_size} {facts.st_mtime_ns}"
    return peers_folder(cache_dir) / "models" / f"{source.stem}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
