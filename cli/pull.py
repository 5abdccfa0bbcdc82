"""`bough pull`: downloads a model into the cache folder, or verifies the one that is there."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from ..runtime.checkpoints import fetch as pull
from ..runtime.checkpoints.hub import fetch_from_hub, is_hub_name, is_remote_file
from ..runtime.protocol.errors import RequestError, printable
from .progress import LoadingBar

_EXAMPLES = """\
examples:
  bough pull                                      the default model, smollm2-135m
  bough pull organisation/name:Q4_K_M             the GGUF file of that format, from the Hugging Face hub
  bough pull organisation/name:model.gguf         or the file of that name
  bough pull organisation/name                    a folder of safetensors (needs pip install huggingface_hub)
  bough pull https://example.org/model.gguf       a GGUF file from anywhere

An interrupted download resumes where it stopped. bough models lists the models on this machine.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        default="smollm2-135m",
        help="a name, a hub id, or an https:// address (default: %(default)s)",
    )
    parser.add_argument("--sha256", metavar="HEX", help="expected hash of the file; any other file is refused")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES


def run(arguments: argparse.Namespace) -> int:
    model, digest = arguments.model, arguments.sha256
    if digest is not None and not (is_remote_file(model) and re.fullmatch("[0-9a-fA-F]{64}", digest)):
        raise RequestError(
            f"--sha256 takes the 64 hexadecimal digits of one GGUF file, got {digest!r}: name the file by address, or "
            "as ORG/NAME:FILE"
        )
    if model and model not in pull.MODELS and pull.user_path(model).exists():
        raise RequestError(f"{model} is on this machine already: use it with --model {model}")
    path = _pulled(model, digest.lower() if digest else None)
    print(printable(str(path)))
    print(f"ready: bough chat --model {model}", file=sys.stderr)
    return 0


def _pulled(model: str, digest: str | None) -> Path:
    with LoadingBar() as bar:
        if is_remote_file(model):
            from ..runtime.checkpoints.remote import fetch_file

            return fetch_file(model, progress=bar, verify=True, sha256=digest)
        if is_hub_name(model):
            return fetch_from_hub(model, verify=True)
        return pull.pull(model, progress=bar, verify=True)
