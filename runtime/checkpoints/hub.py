"""Models of the Hugging Face hub, pinned: the commit and the hashes of the first time are those of all times."""

from __future__ import annotations

import importlib
import importlib.util
import re
from fnmatch import fnmatch
from pathlib import Path

from ..protocol.errors import ModelError
from .pins import Pin, PinnedFile, looked_at, pin_place, pinned, read_pin, write_pin

_NAME = re.compile(r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]{1,200}))?", re.ASCII)
HUB_FILE = re.compile(
    r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]{1,200}))?:(?P<wanted>\w[\w./-]{0,200})", re.ASCII
)
"""Names of one GGUF file of the hub: `organisation/name:file.gguf`, or a format in place of the file."""

_COMMIT = re.compile("[0-9a-f]{40}")
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]  # data files only


def is_hub_name(name: str) -> bool:
    """Tells whether it is `organisation/name` or `organisation/name@revision`: a commit, a tag or a branch."""
    return _NAME.fullmatch(name) is not None


def is_remote_file(name: str) -> bool:
    """Tells whether it names one GGUF file elsewhere: of the hub, or by its address."""
    return is_url(name) or HUB_FILE.fullmatch(name) is not None


def is_commit(revision: str) -> bool:
    """Tells whether it is a commit's name in full."""
    return _COMMIT.fullmatch(revision) is not None


def is_url(name: str) -> bool:
    """Tells whether it is an address."""
    return name.startswith(("https://", "http://"))


def fetch_from_hub(name: str, *, verify: bool = False) -> Path:
    """The folder of a model, through the hub's own client and cache.

    The first time, the commit that the name stands for is written down with the SHA-256 of each file, below the cache
    folder; from then on that commit is asked for, and files that are others are refused. `verify` hashes all of them,
    otherwise only those whose size or time has changed.

    Raises:
        ModelError: the hub cannot be used, or a file is not the one of the first time.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ModelError(f"{name!r} is not a Hub name: use organisation/name or organisation/name@revision")
    if not has_client():
        raise ModelError(
            f"no folder {name!r}; to load it from the Hub: pip install huggingface_hub, or name one of its GGUF files, "
            f"which needs nothing else: {name}:Q4_K_M"
        )
    place = pin_place(name)
    pin = read_pin(place)
    folder = _download(match["name"], match["revision"] if pin is None else pin.revision, name)
    commit = folder.name if is_commit(folder.name) else ""
    if pin is None:
        if not any(folder.rglob("*.safetensors")):
            raise ModelError(
                f"{name} has no safetensors; to take one of its GGUF files, name its format: {name}:Q4_K_M"
            )
        pin = Pin(commit, {path: pinned(folder / path) for path in _files(folder)})
        write_pin(place, pin)
        return folder
    if commit != pin.revision:
        raise ModelError(f"{name}: the Hub client has commit {commit or 'unknown'}, {place} says {pin.revision}")
    known = Pin(commit, _checked(name, folder, pin, place, verify=verify))
    if known != pin:
        write_pin(place, known)
    return folder


def has_client() -> bool:
    """Tells whether the hub's client is installed."""
    return importlib.util.find_spec("huggingface_hub") is not None


def _download(name: str, revision: str | None, shown: str) -> Path:
    hub = importlib.import_module("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, revision=revision or None, allow_patterns=_PATTERNS))
    except Exception as error:  # network, authentication and storage errors have no common base
        reason = str(error).splitlines()[0].removeprefix("Got: ") if str(error) else type(error).__name__
        raise ModelError(
            f"no folder {shown!r}, and the Hub could not be used ({reason}): check the name and the network, or copy "
            "the model here and give its folder"
        ) from error


def _checked(name: str, folder: Path, pin: Pin, place: Path, *, verify: bool) -> dict[str, PinnedFile]:
    """The files, with their sizes and times as they are now. Raises ModelError if one is not what the pin says."""
    found = _files(folder)
    for path in sorted(set(found) ^ set(pin.files)):
        problem = "is missing, but listed" if path in pin.files else "is not listed"
        raise ModelError(f"{name}: {path} {problem} in {place}")
    checked = {}
    for path in found:
        known = pin.files[path]
        checked[path] = looked_at(folder / path, known, verify=verify)
        if checked[path].sha256 != known.sha256:
            raise ModelError(f"{name}: {path} does not match its hash in {place}: remove that file to trust this one")
    return checked


def _files(folder: Path) -> list[str]:
    """Those of the folder's files that are asked for; links, as in the hub's cache, count as what they lead to."""
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in paths if any(fnmatch(path, pattern) for pattern in _PATTERNS))
