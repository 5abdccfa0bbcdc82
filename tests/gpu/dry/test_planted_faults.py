"""Faults of the kinds that the dry run is there to find, planted in the runner: each is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ...support.triton_interpreter import HAS_GPU

from bough.kernels.staging import upload  # isort: skip
from bough.runtime.engine.engine import Engine  # isort: skip
from bough.runtime.load.load_torch import load_engine  # isort: skip
from bough.runtime.protocol.config import EngineConfig  # isort: skip
from bough.runtime.runner import gpu_runner  # isort: skip
from bough.runtime.runner.gpu_runner import GpuPasses  # isort: skip

from ...support.dry_gpu.cuda import dry_gpu  # isort: skip
from ...support.dry_gpu.device import Counts, Device, DryRunError
from ...support.dry_gpu.graphs import Watched
from ...support.tiny_model import write_tiny_model
from .script import ask

pytestmark = pytest.mark.skipif(HAS_GPU, reason="there is a GPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=1, head_dim=16)


@contextmanager
def started(folder: Path) -> Iterator[tuple[Device, Engine, Watched]]:
    config = EngineConfig(
        model=str(folder), dtype="float32", device="cuda", num_pages=16, max_num_seqs=1, max_batch_tokens=16,
        enable_prefix_caching=False,
    )  # fmt: skip
    with dry_gpu() as device:
        engine = load_engine(config)
        mixed: Any = engine._runner._mixed  # type: ignore[attr-defined]
        mixed.replays = watched = Watched(device, mixed.replays)
        yield device, engine, watched
        engine.close()


def serve(device: Device, engine: Engine) -> Counts:
    """Counts of three decode steps that go on."""
    runner: Any = engine._runner
    runner.max_steps = 2
    heard: list[Any] = []
    engine.submit(ask("", 1, 4, 12), heard.append)
    for _ in range(3):
        engine.step()
    before = device.counts.copy()
    for _ in range(3):
        engine.step()
    return device.counts - before


def wrap(patch: pytest.MonkeyPatch, owner: Any, name: str, before: Callable[[Any], object]) -> None:
    """Has `before` run, with the object itself, whenever the method is called."""
    stock = getattr(owner, name)

    def planted(self: Any, *args: Any, **kwargs: Any) -> Any:
        before(self)
        return stock(self, *args, **kwargs)

    patch.setattr(owner, name, planted)


def test_there_is_none(folder: Path) -> None:
    with started(folder) as (device, engine, watched):
        counts, keys = serve(device, engine), watched.num_keys
        assert counts.launches["graph"] == 6 and not counts.host_reads and not counts.uploads
        assert watched.changes() == {} and watched.num_keys == keys and not counts.captured


def test_a_host_read_within_a_graph(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrap(monkeypatch, GpuPasses, "_decode", lambda runner: runner._tensors.drawn[0].item())
    with pytest.raises(DryRunError, match="waits for the device while a graph is captured"), started(folder):
        pass


def test_a_host_read_between_graphs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(folder) as (device, engine, _):
        wrap(monkeypatch, GpuPasses, "_launch", lambda runner: runner._state.position.cpu())
        assert serve(device, engine).host_reads.total() == 3


def test_an_upload_in_each_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(folder) as (device, engine, _):
        wrap(monkeypatch, GpuPasses, "_launch", lambda runner: upload(runner.device, np.zeros(3)))
        counts = serve(device, engine)
        assert (counts.uploads, counts.upload_bytes) == (3, 3 * 64)


def test_a_buffer_that_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def again(runner: Any) -> None:
        runner._state.last_token = runner._state.last_token.clone()

    with started(folder) as (_, engine, _):
        wrap(monkeypatch, GpuPasses, "_draw_step", again)
        heard: list[Any] = []
        engine.submit(ask("", 1, 4, 12), heard.append)
        for _ in range(4):
            engine.step()
        assert heard[-1].finish.reason == "error"


def test_a_kind_of_graph_that_was_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(folder) as (device, engine, watched):
        keys = watched.num_keys
        monkeypatch.setattr(gpu_runner, "_StepKind", _OtherKind)
        serve(device, engine)
        assert watched.num_keys == keys + 1 == device.counts.captured


class _OtherKind(gpu_runner._StepKind):
    """The same, by other keys."""


def test_a_number_frozen_in_a_graph(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with started(folder) as (device, engine, watched):
        serve(device, engine)
        model: Any = engine._runner._mixed.model  # type: ignore[attr-defined]
        model.config = _Changed(model.config)
        assert any("rms_norm" in change for change in watched.changes().values())


class _Changed:
    """A configuration with another epsilon."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return 1e-3 if name == "norm_eps" else getattr(self._config, name)
