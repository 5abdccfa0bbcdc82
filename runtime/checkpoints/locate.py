"""Location of a model's files by its name."""

from __future__ import annotations

from pathlib import Path

from ..protocol.errors import ModelError, did_you_mean
from . import fetch as pull
from .hub import fetch_from_hub, is_hub_name, is_remote_file, is_url
from .weights import Progress


def locate(source: str | Path, *, progress: Progress | None = None) -> Path:
    """Returns the `.gguf` file or the folder of `source`; downloads it if `source` is not a path.

    Raises:
        ModelError: there is no such model.
    """
    if not str(source):
        raise ModelError("the model's name is empty: give a name, a folder or a .gguf file")
    path = pull.user_path(source)
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path.name}: a model is a folder or a .gguf file")
        return path
    name = str(source)
    if name in pull.MODELS:
        return pull.pull(name, progress=progress)
    if isinstance(source, str) and is_hub_name(name):
        return fetch_from_hub(name)
    if isinstance(source, str) and is_remote_file(name):
        from .remote import fetch_file  # noqa: PLC0415  pulls httpx

        return fetch_file(name, progress=progress)
    known = ", ".join(pull.MODELS)
    hint = did_you_mean(name, pull.MODELS) or (
        ": give a path, or a Hub name, owner/model:FILE.gguf; bough models lists local models"
    )
    raise ModelError(f"no model {name!r}: not a folder, a .gguf file, or a known model ({known}){hint}")


def model_name(source: str | Path, path: Path) -> str:
    """Returns the model's name: the given one, or that of its file or folder."""
    if is_url(str(source)):
        return path.stem
    if path.exists() and pull.user_path(source) == path:
        return path.stem if path.is_file() else path.resolve().name
    return str(source)
