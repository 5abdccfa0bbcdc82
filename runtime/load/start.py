"""Starts an engine on the CPU library or on torch, which is imported only if the engine needs it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from ..checkpoints.inventory import read_facts
from ..checkpoints.locate import locate
from ..engine.engine import Engine
from ..protocol.config import STORED, EngineConfig
from ..protocol.errors import ModelError
from ..runner.host import may_have_gpu
from ..runner.host_memory import free_memory
from .load_native import load_gguf_engine, obstacle_to_native

Progress = Callable[[str, int, int], None]

SWITCH_INTERVAL_S = 0.001


def start_engine(config: EngineConfig, progress: Progress | None = None) -> Engine:
    """Loads the model that `config` names and returns an engine ready to step.

    `progress(what, done, total)` is called while it loads.

    Raises:
        ModelError: the model's files cannot be used, its cache does not fit into memory, or its logits are not finite.
        RequestError: settings exclude each other, or do not fit the machine.
    """
    # Limits the time for which threads that answer clients or fill masks wait for the one that steps.
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
    with _without_collections(), _within_memory():
        config = _as_stored(config, progress)
        engine = load_gguf_engine(config, progress) or _load_torch(config)(config, progress)
        try:
            engine.self_test()
        except BaseException:
            engine.close()
            raise
        return engine


def _load_torch(config: EngineConfig) -> Callable[[EngineConfig, Progress | None], Engine]:
    """Imports the function that starts engines on torch.

    Raises:
        ModelError: torch is not installed.
    """
    try:
        from .load_torch import load_engine  # noqa: PLC0415  pulls torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModelError(_why_torch(config)) from None
    return load_engine


def _why_torch(config: EngineConfig) -> str:
    """Returns the error message if torch is missing: what needs it, and the extra that installs it."""
    if config.device.startswith("cuda"):
        return f'device {config.device} needs torch, which is not installed: pip install "bough[gpu]"'
    if config.device == "auto" and may_have_gpu():
        return (
            'this machine has an NVIDIA GPU, which needs torch: pip install "bough[gpu]", or force the CPU with '
            '--device cpu (device="cpu")'
        )
    obstacle = obstacle_to_native(config, "cpu")
    if config.attention_backend not in ("auto", "native"):
        what = f"attention_backend {config.attention_backend}"
    elif obstacle is None:
        what = f"{config.model}, not a GGUF file of the Llama family with quantised weights,"
    elif obstacle.param == "attention_backend":
        what = "bough without its CPU library (x86 with AVX2 or ARM64, and a C compiler at installation)"
    else:
        what = f"{obstacle.param} {getattr(config, obstacle.param or '')}"
    return f'{what} needs torch, which is not installed: pip install "bough[torch]"'


def _as_stored(config: EngineConfig, progress: Progress | None) -> EngineConfig:
    """Unsets a `quantization` that names a stored format (STORED), after checking that the checkpoint has it.

    Raises:
        ModelError: the checkpoint has another format.
    """
    wanted = config.quantization
    if wanted not in STORED:
        return config
    path = locate(config.model, progress=progress)
    found = read_facts(path).weights if path.is_dir() else "gguf"
    if found != wanted:
        raise ModelError(
            f"quantization is {wanted}, but the weights of {config.model} are {found}: leave it out to use them as "
            "they are"
        )
    return msgspec.structs.replace(config, quantization=None)


@contextmanager
def _within_memory() -> Iterator[None]:
    """Raises ModelError if memory runs out while loading; torch raises RuntimeError for that on a CPU."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        raise ModelError(
            f"not enough memory to load the model ({error}; of the host's bytes {free_memory()}): choose "
            "a smaller model, use quantization, lower max_model_len or num_pages, or give it more memory"
        ) from error


@contextmanager
def _without_collections() -> Iterator[None]:
    """Pauses garbage collection: loading makes hundreds of thousands of objects, none of them garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
