"""Models of the Hugging Face hub, pinned to the commit and the hashes of their first download."""

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
"""Matches names of one GGUF file of the hub: `organisation/name:file.gguf`, or a format in place of the file."""

_COMMIT = re.compile("[0-9a-f]{40}")
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]  # data files only


def is_hub_name(name: str) -> bool:
    """Returns True for `organisation/name` or `organisation/name@revision`, a commit, tag or branch."""
    return _NAME.fullmatch(name) is not None


def is_remote_file(name: str) -> bool:
    """Returns True if the name is that of one remote GGUF file: of the hub, or by its URL."""
    return is_url(name) or HUB_FILE.fullmatch(name) is not None


def is_commit(revision: str) -> bool:
    """Returns True if the revision is a full commit hash."""
    return _COMMIT.fullmatch(revision) is not None


def is_url(name: str) -> bool:
    """Returns True if the name is a URL."""
    return name.startswith(("https://", "http://"))


def fetch_from_hub(name: str, *, verify: bool = False) -> Path:
    """Returns the folder of a model, fetched through the hub's own client and cache.

    The first time, the commit that the name refers to is pinned in the cache folder with the SHA-256 of each file;
    later that commit is requested, and files that differ are refused. `verify` hashes all files; otherwise only those
    whose size or time has changed are hashed.

    Raises:
        ModelError: the hub cannot be used, or a file differs from the pinned one.
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
    """Returns True if the hub's client is installed."""
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
    """Returns the files with their current sizes and times. Raises ModelError if one differs from its pin."""
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
    """Returns the requested files of the folder; links, as in the hub's cache, count as their targets."""
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in paths if any(fnmatch(path, pattern) for pattern in _PATTERNS))
