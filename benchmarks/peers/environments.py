"""Environments of peers: a virtual environment each, made once by pip, kept in the cache folder of `bough pull`.

What is installed in each stands in one table of pinned requirements.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from ...runtime.checkpoints.fetch import default_cache
from ...runtime.protocol.errors import BoughError

TORCH = "torch==2.13.0"
"""The release that our own tests run on: by itself first, so that `$TORCH_INDEX_URL` can say where its build for CPUs
is, and again in each later step, which might replace it otherwise."""

_LIMIT_S = 3600.0  # of one command: some packages are compiled
_READY = "ready.json"


@dataclass(frozen=True)
class Recipe:
    """Recipe of an environment.

    steps      requirements of one `pip install` after the other
    removed    packages that come along and are uninstalled afterwards
    variables  set while pip runs: what packages that are compiled look at
    imports    modules that must be importable in the end
    """

    steps: tuple[tuple[str, ...], ...]
    removed: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()


RECIPES = msgspec.json.decode(Path(__file__).with_name("recipes.json").read_bytes(), type=dict[str, Recipe])
"""Recipes of engines; "clients": of libraries with a client for programs, on llama.cpp; "sglang": of SGLang's language,
in the last release that can be installed without its engine.

llama.cpp is compiled for the processor that it is built on, as its users do, but without AMX, whose tiles that release
uses before they are configured, which ends the process; torchvision, torchaudio and torchcodec are
removed because they come built for another torch than one for CPUs."""


class PeerError(BoughError):
    """A peer cannot be measured: its environment, model or process could not be had. The text says why."""


def say(line: str) -> None:
    """Tells on standard error what is being done."""
    print(line, file=sys.stderr, flush=True)


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
    for requirements in recipe.steps:
        install = ["install", "--disable-pip-version-check", "--progress-bar", "off", *_where(requirements)]
        run_command([*pip, *install], log, recipe.variables)
    if recipe.removed:
        run_command([*pip, "uninstall", "--yes", *recipe.removed], log)
    run_command([str(interpreter), "-P", "-c", "".join(f"import {module}; " for module in recipe.imports)], log)
    (folder / _READY).write_text(json.dumps(asdict(recipe), default=dict, indent=1) + "\n")
    return interpreter


def environment_folder(name: str, recipe: Recipe, python: str) -> Path:
    """Folder of the environment: its name changes with what is in it and with the interpreter."""
    content = json.dumps([asdict(recipe), os.path.realpath(python)], sort_keys=True, default=dict)
    digest = hashlib.sha256(content.encode()).hexdigest()[:10]
    return peers_folder() / f"{name}-{digest}"


def peers_folder() -> Path:
    """Folder of all that is made for peers."""
    return default_cache() / "peers"


def run_command(command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None) -> None:
    """Runs a command to its end; `log` gets what it prints, and exists afterwards.

    Raises:
        PeerError: it failed or did not end in time.
    """
    what = " ".join(command[1:4]).strip().partition("\n")[0]
    say(f"{what} ...")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(variables or {})},
                timeout=_LIMIT_S,
                check=True,
            )
        except OSError as error:
            raise PeerError(f"{command[0]}: {error.strerror}") from error
        except subprocess.CalledProcessError as error:
            raise PeerError(f"{what} ended with status {error.returncode}; its output is in {log}") from error
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"{what} took too long; its output is in {log}") from error


def _where(requirements: Sequence[str]) -> list[str]:
    """The requirements, with the index to ask where torch alone is wanted and the user has named one for it."""
    index = os.environ.get("TORCH_INDEX_URL") if tuple(requirements) == (TORCH,) else None
    return [*requirements, *(["--index-url", index] if index else [])]
