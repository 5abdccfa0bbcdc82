"""From a model's name to its files."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from ..protocol.errors import ModelError
from . import fetch as pull
from .weights import Progress


def locate(source: str | Path, *, progress: Progress | None = None) -> Path:
    """The `.gguf` file or the folder that `source` means; downloads what has a name only.

    Raises:
        ModelError: there is no such model.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path.name}: a model is a folder or a .gguf file")
        return path
    name = str(source)
    if name in pull.MODELS:
        return pull.pull(name, progress=progress)
    if isinstance(source, str) and name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _download(name)
    raise ModelError(f"no model {name!r}: it is no folder, no .gguf file and none of {', '.join(pull.MODELS)}")


def model_name(source: str | Path, path: Path) -> str:
    """Returns the model's name: the given one, or its file's or folder's."""
    if path.exists() and Path(source).expanduser() == path:
        return path.stem if path.is_file() else path.resolve().name
    return str(source)


def _download(name: str) -> Path:
    """A model of the Hugging Face hub, through its own client and cache; data files only."""
    if not _has_hub():
        raise ModelError(f"no folder {name!r}; to load it from the hub: pip install huggingface_hub")
    hub = importlib.import_module("huggingface_hub")
    try:
        folder = hub.snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer.model"])
    except Exception as error:  # network, authentication and storage errors have no common base
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"no folder {name!r}, and the hub could not be used: {reason}") from error
    return Path(folder)


def _has_hub() -> bool:
    return importlib.util.find_spec("huggingface_hub") is not None
