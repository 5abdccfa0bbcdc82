"""Rules for all tests: no network beyond this machine, reproducible examples, skips where hardware is missing."""

from __future__ import annotations

import gc
import os
import socket
import tempfile
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from pathlib import Path

import hypothesis
import pytest
import torch

from bough.kernels.native.library import Library, load_library

from .support.company import Company

# Before anything imports triton: without a GPU its kernels are interpreted.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

hypothesis.settings.register_profile("bough", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "bough"))


_COMPANY = pytest.StashKey[Company]()


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:  # one of several processes, which `make test` has
        folder = Path(tempfile.gettempdir()) / f"bough-tests-{worker['testrunuid']}"
        folder.mkdir(exist_ok=True)
        config.stash[_COMPANY] = Company(folder)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # no collection goes through ten thousand tests again


@pytest.hookimpl(wrapper=True, tryfirst=True)  # no limit of time counts what it waits
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Runs a test that is marked `alone` when no other process runs one."""
    company = item.config.stash.get(_COMPANY, None)
    alone = item.get_closest_marker("alone") is not None
    with company.held(alone=alone) if company is not None else nullcontext():
        return (yield)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout, which is also the package's directory."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True, scope="session")
def _only_this_machine() -> Iterator[None]:
    """A connection to anything but this machine fails at once, by name."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def refuse_others(address: object) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if host not in ("", "0.0.0.0", "::1", "localhost") and not str(host).startswith("127."):
            raise RuntimeError(f"a test tried to reach {address!r}; tests use this machine only")

    def guarded_connect(self: socket.socket, address: object) -> None:
        refuse_others(address)
        connect(self, address)  # type: ignore[arg-type]

    def guarded_connect_ex(self: socket.socket, address: object) -> int:
        refuse_others(address)
        return connect_ex(self, address)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        yield


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The file of the default model, for tests marked `model`."""
    path = _default_model()
    assert path is not None, "a test that uses default_model is marked `model`"
    return path


@pytest.fixture(scope="session")
def native_library() -> Library:
    """The CPU library; tests/kernels/native/test_library.py fails where it could have been built and was not."""
    library = load_library()
    if library is None:
        pytest.skip("the CPU library was not built, or the processor is x86 without AVX2")
    return library


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what this machine cannot run. `make test` fetches the model, so there nothing of it is skipped.

    Files with slow tests come first, so that several processes end together; then those with tests that are alone,
    which would wait for a slow one to end.
    """
    slow, alone = ({item.path for item in items if item.get_closest_marker(name)} for name in ("slow", "alone"))
    items.sort(key=lambda item: 1 if item.path in alone else 0 if item.path in slow else 2)
    missing = {
        "gpu": (torch.cuda.is_available, "needs an NVIDIA GPU"),
        "model": (_default_model, "needs the model of `make model`"),
    }
    for marker, (present, reason) in missing.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not present():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def _default_model() -> Path | None:
    """Finds the default model if it has been fetched; never fetches it."""
    from bough.runtime.checkpoints import fetch as pull

    name, model = next(iter(pull.MODELS.items()))
    candidates = (pull.default_cache() / name / "model.gguf", pull.installed_file(model))
    return next((path for path in candidates if path is not None and path.is_file()), None)
