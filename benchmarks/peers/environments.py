"""Environments of peers, and the model's files in their formats: created once, in the cache folder of `bough pull`.

An environment is created by pip from one table of pinned requirements. All formats of a model are converted from the
same GGUF file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ...runtime.checkpoints.fetch import default_cache
from ...runtime.checkpoints.gguf_file import GGUFFile
from ...runtime.models.load import locate
from ...runtime.tokenizer.load import read_gguf_tokenizer
from ..harness.report import say
from .process import PeerError

TORCH = "torch==2.13.0"
"""The release that our own tests run on: by itself first, so that `$TORCH_INDEX_URL` can say where its build for CPUs
is, and again in each later step, which might replace it otherwise."""

_LIMIT_S = 3600.0  # of one command: some packages are compiled
_READY = "ready.json"


@dataclass(frozen=True)
class Recipe:
    """Recipe of an environment."""

    steps: tuple[tuple[str, ...], ...]  # requirements of one `pip install` after the other
    removed: tuple[str, ...] = ()  # packages that come along and are uninstalled afterwards
    # set while pip runs: what packages that are compiled look at
    variables: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()  # modules that must be importable in the end


RECIPES = msgspec.json.decode(Path(__file__).with_name("recipes.json").read_bytes(), type=dict[str, Recipe])
"""Recipes of engines; "clients": of libraries with a client for programs, on llama.cpp; "sglang": of SGLang's language,
in the last release that can be installed without its engine.

llama.cpp is compiled for the processor that it is built on, as its users do, but without AMX, whose tiles that release
uses before they are configured, which ends the process; torchvision, torchaudio and torchcodec are
removed because they come built for another torch than one for CPUs."""


def make_environment(name: str, python: str | None = None) -> Path:
    """The interpreter of an environment of RECIPES, made first, by `python` or by this one, if it is not there.

    What was begun and not finished is begun anew.

    Raises:
        PeerError: it could not be made.
    """
    base, recipe = python or sys.executable, RECIPES[name]
    folder = environment_folder(name, recipe, base)
    interpreter = folder / "bin" / "python"
    if (folder / _READY).is_file():
        return interpreter
    shutil.rmtree(folder, ignore_errors=True)
    log = folder.with_name(f"{folder.name}.log")
    run_command([base, "-m", "venv", str(folder)], log)
    pip = [str(interpreter), "-m", "pip"]
    fresh = ["--no-cache-dir"] if recipe.variables else []  # pip keeps wheels, however they were compiled
    for requirements in recipe.steps:
        index = os.environ.get("TORCH_INDEX_URL") if requirements == (TORCH,) else None
        where = ["--index-url", index] if index else []
        install = ["install", "--disable-pip-version-check", "--progress-bar", "off", *fresh, *requirements, *where]
        run_command([*pip, *install], log, recipe.variables)
    if recipe.removed:
        run_command([*pip, "uninstall", "--yes", *recipe.removed], log)
    run_command([str(interpreter), "-P", "-c", "".join(f"import {module}; " for module in recipe.imports)], log)
    (folder / _READY).write_text(json.dumps(asdict(recipe), default=dict, indent=1) + "\n")
    return interpreter


def environment_folder(name: str, recipe: Recipe, python: str) -> Path:
    """Folder of the environment: its name changes with what is in it and with the interpreter."""
    content = json.dumps([asdict(recipe), os.path.realpath(python)], sort_keys=True, default=dict)
    return peers_folder() / f"{name}-{_digest(content)}"


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def peers_folder() -> Path:
    """Folder of all that is made for peers."""
    return default_cache() / "peers"


def run_command(command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None) -> None:
    """Runs a command to its end; `log` gets what it prints, and exists afterwards. Raises PeerError: it failed or did
    not end in time."""
    what = " ".join(command[1:4]).strip().partition("\n")[0]
    say(f"{what} ...")
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **(variables or {})}
    with log.open("a") as output:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        try:
            subprocess.run(command, **streams, env=environment, timeout=_LIMIT_S, check=True)
        except OSError as error:
            raise PeerError(f"{command[0]}: {error.strerror}") from error
        except subprocess.CalledProcessError as error:
            raise PeerError(f"{what} ended with status {error.returncode}; its output is in {log}") from error
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"{what} took too long; its output is in {log}") from error


# -- Models ------------------------------------------------------------------------------------------------------------

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
    return peers_folder() / "models" / f"{source.stem}-{_digest(text)}"


def make_tokenizer(source: Path) -> Path:
    """A folder with the tokenizer of a GGUF file, made if it is not there. Raises PeerError: the tokenizer
    is of a kind that this does not write."""
    from ..harness.models import write_tokenizer  # needs torch

    def write(part: Path) -> None:
        parts = read_gguf_tokenizer(GGUFFile(source))
        if not parts.byte_level:
            raise PeerError("the model's tokenizer is none of bytes, which is what peers' tokenizers are written for")
        part.mkdir()
        write_tokenizer(parts, part)

    return _made_once(model_folder(source) / "tokenizer", write)
