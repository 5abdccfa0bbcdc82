"""Inventory of the models on this machine: in the cache, in installed packages and in the hub's cache, with facts."""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..protocol.errors import ModelError, reason
from .fetch import MODELS, default_cache, installed_file, unwritable, user_path
from .gguf_file import GGUFFile
from .hub import is_commit, is_hub_name, is_remote_file
from .pins import Pin, pin_place, read_origin, read_pin, slug

_MAX_HEADER_BYTES = 100 << 20


class CachedModel(NamedTuple):
    """A model on this machine, whole or in part.

    name     name for `--model` and `bough pull`
    path     its file or folder
    owner    "cache", "package NAME" or "hub"
    whole    False: its transfer was interrupted
    """

    name: str
    path: Path
    owner: str
    whole: bool = True

    @property
    def num_bytes(self) -> int:
        """Size of its files on the disk."""
        files = [self.path] if self.path.is_file() else [path for path in self.path.rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files)


class Facts(NamedTuple):
    """Facts about a model's files; None: not stated. `weights` is the format of most of their bytes."""

    architecture: str
    weights: str
    num_parameters: int | None
    context: int | None
    num_layers: int | None


def places() -> list[CachedModel]:
    """Lists the models on this machine, by name."""
    found: dict[str, CachedModel] = {}
    for place in (*_named(), *_downloaded(), *_of_the_hub()):
        if place.name not in found or not found[place.name].whole:
            found[place.name] = place
    return sorted(found.values())


def find(name: str) -> CachedModel | None:
    """Finds a model on this machine by its name, or by the path of its file or folder."""
    found = next((place for place in places() if place.name == name), None)
    path = user_path(name)
    if found is not None or not name or not path.exists():
        return found
    return CachedModel(name, path, "path")


def read_facts(path: Path) -> Facts:
    """Reads the headers of a model's files; its numbers stay on disk. Raises ModelError."""
    try:
        return _gguf_facts(path) if path.is_file() else _folder_facts(path)
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path.name}: cannot be read as a model: {reason(error)}") from error


def remove(place: CachedModel) -> int:
    """Removes a model's files from the disk, and returns their size in bytes. Keeps its pin, and other commits of the
    same model in the cache of the hub's client.

    Raises:
        ModelError: the files are not in the cache, or cannot be removed.
    """
    if place.owner.startswith("package "):
        package = place.owner.removeprefix("package ")
        raise ModelError(f"{place.name} belongs to the package {package}: pip uninstall {package} removes it")
    if place.owner == "path":
        raise ModelError(f"{place.name} is a path, not a name of the cache: remove it as you do other files")
    num_bytes = place.num_bytes
    folder = place.path if place.owner == "hub" else place.path.parent
    if folder.is_symlink():
        raise ModelError(f"{folder} is a link: remove it, and what it leads to, yourself")
    try:
        if place.owner == "hub":
            _remove_commit(folder)
        else:
            shutil.rmtree(folder)
    except OSError as error:
        raise ModelError(unwritable(folder, error)) from error
    return num_bytes


def _remove_commit(snapshot: Path) -> None:
    """Removes a commit from the cache of the hub's client, whose commit folders link to contents in `blobs`. Raises
    OSError."""
    model = snapshot.parents[1]
    others = [path for path in _folders(snapshot.parent) if path != snapshot]
    if not others:
        shutil.rmtree(model)
        return
    used = {path.resolve() for other in others for path in other.rglob("*")}
    blobs = (model / "blobs").resolve()
    freed = {path.resolve() for path in snapshot.rglob("*") if path.is_symlink()} - used
    shutil.rmtree(snapshot)
    for path in freed:
        if path.parent == blobs:
            path.unlink(missing_ok=True)


def place_of_pin(name: str) -> Path:
    """Returns the path of a name's pin."""
    return pin_place(slug(name)) if is_remote_file(name) else pin_place(name)


def pin_of(name: str) -> Pin | None:
    """Reads the pin of a name; None if there is none. Raises ModelError."""
    return read_pin(place_of_pin(name))


# Where models are


def _named() -> Iterator[CachedModel]:
    for name, model in MODELS.items():
        cached, installed = default_cache() / name / "model.gguf", installed_file(model)
        if cached.is_file():
            yield CachedModel(name, cached, "cache")
        elif installed is not None and installed.is_file():
            yield CachedModel(name, installed, f"package {model.package}")


def _downloaded() -> Iterator[CachedModel]:
    for folder in _folders(default_cache() / "files"):
        origin = read_origin(folder)
        for path in folder.iterdir():
            if origin is not None and path.name.endswith((".gguf", ".gguf.part")):
                yield CachedModel(origin.source, path, "cache", path.suffix == ".gguf")


def _of_the_hub() -> Iterator[CachedModel]:
    """Yields the pinned models in the cache of the hub's client."""
    cache = _hub_cache()
    for folder in _folders(cache):
        kind, _, name = folder.name.partition("--")
        name = name.replace("--", "/", 1)
        if kind != "models" or not is_hub_name(name):
            continue
        for path in sorted((default_cache() / "pins").glob(f"{name.replace('/', '--')}*.json")):
            revision = path.stem.removeprefix(name.replace("/", "--"))
            commit = _commit_of(path) if revision[:1] in ("", "@") else ""
            if commit and (folder / "snapshots" / commit).is_dir():
                yield CachedModel(name + revision, folder / "snapshots" / commit, "hub")


def _commit_of(place: Path) -> str:
    """Returns the commit in a pin; "" if it cannot be read, which is reported when the model is loaded."""
    try:
        pin = read_pin(place)
    except ModelError:
        return ""
    return pin.revision if pin is not None and is_commit(pin.revision) else ""


def _hub_cache() -> Path:
    named, home = os.environ.get("HF_HUB_CACHE"), os.environ.get("HF_HOME")
    if named:
        return user_path(named)
    return (user_path(home) if home else Path.home() / ".cache" / "huggingface") / "hub"


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError:
        return []


# Facts about their files


def _gguf_facts(path: Path) -> Facts:
    file = GGUFFile(path)
    sizes: Counter[str] = Counter()
    for tensor in file.tensors().values():
        sizes[tensor.format.name] += tensor.stop - tensor.start
    architecture = str(file.metadata("general.architecture", ""))

    return Facts(
        architecture=architecture,
        weights=max(sizes, key=lambda name: sizes[name], default=""),
        num_parameters=sum(math.prod(tensor.shape) for tensor in file.tensors().values()),
        context=_count(file.metadata(f"{architecture}.context_length")),
        num_layers=_count(file.metadata(f"{architecture}.block_count")),
    )


def _folder_facts(folder: Path) -> Facts:
    config = _read_json(folder / "config.json")
    quantised = config.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    sizes: Counter[str] = Counter()
    for path in folder.glob("*.safetensors"):
        tensors = (tensor for name, tensor in _read_json(path, framed=True).items() if name != "__metadata__")
        for tensor in tensors:
            sizes[str(tensor["dtype"])] += math.prod(tensor["shape"])
    architectures = config.get("architectures")
    return Facts(
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        weights=str(method or max(sizes, key=lambda name: sizes[name], default="")),
        num_parameters=None if method in ("awq", "gptq") else sum(sizes.values()),  # several lie in one number there
        context=_count(config.get("max_position_embeddings")),
        num_layers=_count(config.get("num_hidden_layers")),
    )


def _count(value: object) -> int | None:
    return value if type(value) is int else None


def _read_json(path: Path, *, framed: bool = False) -> dict[str, Any]:
    """Reads the object in a file, or in the header of a safetensors file. Raises OSError or ValueError."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little") if framed else os.fstat(file.fileno()).st_size
        if size > _MAX_HEADER_BYTES:
            raise ValueError(f"{size} bytes of JSON are too many")
        found: dict[str, Any] = msgspec.json.decode(file.read(size), type=dict[str, Any])
        return found
