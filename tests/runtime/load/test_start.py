"""An engine on the CPU library starts without torch, and computes what it does with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file, save_file

from bough.kernels.native.library import Library
from bough.runtime.engine.engine import Engine
from bough.runtime.load import load_native as native_loading
from bough.runtime.load import load_torch, start
from bough.runtime.load.load_native import load_gguf_engine
from bough.runtime.load.load_torch import load_engine
from bough.runtime.load.start import start_engine
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.errors import ModelError, RequestError
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.runner import host
from bough.runtime.runner.native_runner import NativeRunner

from ...support.tiny_model import write_tiny_model

INSTRUCTIONS = ("AVX2", "AVX-VNNI", "AVX-512", "NEON", "NEON-DotProd", "NEON-I8MM")

HEAVY = ("torch", "transformers", "gguf", "sympy", "starlette", "jsonschema")

GENERATE = """
import sys
from bough import LLM, SamplingParams
from bough.constrain.spec import Regex
llm = LLM(sys.argv[1], num_pages=512, device="cpu")
params = [SamplingParams(max_tokens=2, temperature=0, logprobs=2), SamplingParams(max_tokens=2, top_p=0.5, seed=1)]
llm.generate(["The capital of France is"] * 2, params, use_tqdm=False)
llm.generate("A number:", SamplingParams(max_tokens=4), grammar=Regex("[0-9]+"), use_tqdm=False)
print(*[name for name in sys.argv[2:] if name in sys.modules])
"""


def answer(engine: Engine) -> list[int]:
    heard: list[RequestOutput] = []
    prompt = tuple(engine.tokenizer.encode("The capital of France is"))
    engine.submit(Request(id="r", prompt=prompt, sampling=SamplingParams(max_tokens=8, temperature=0.0)), heard.append)
    while not engine.idle:
        engine.step()
    engine.close()
    return [token for output in heard for token in output.tokens]


@pytest.mark.model
@pytest.mark.usefixtures("native_library")
def test_what_takes_long_to_import_is_not_imported(default_model: Path) -> None:
    command = [sys.executable, "-c", GENERATE, str(default_model), *HEAVY]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stdout.strip()) == (0, ""), result.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cuda"}, ["device cuda needs torch", "bough[gpu]"]),
        ({}, ["an NVIDIA GPU", "bough[gpu]", "--device cpu"]),
        ({"device": "cpu", "attention_backend": "torch"}, ["attention_backend torch needs torch", "bough[torch]"]),
        ({"device": "cpu", "dtype": "float32"}, ["dtype float32 needs torch", "bough[torch]"]),
        ({"device": "cpu"}, ["not a GGUF file", "needs torch, which is not installed", "bough[torch]"]),
    ],
    ids=str,
)
@pytest.mark.usefixtures("native_library")
def test_what_needs_torch_names_the_extra(
    settings: dict[str, Any], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "bough.runtime.load.load_torch")
    for module in (start, native_loading):
        monkeypatch.setattr(module, "may_have_gpu", lambda: "device" not in settings)
    config = EngineConfig(model=str(write_tiny_model(tmp_path)), **settings)  # a folder of float weights
    with pytest.raises(ModelError) as refused:
        start_engine(config)
    assert all(word in refused.value.message for word in words), refused.value.message


@pytest.mark.model
@pytest.mark.usefixtures("native_library")
def test_both_ways_lead_to_the_same_engine(default_model: Path) -> None:
    config = EngineConfig(model=str(default_model), num_pages=512, device="cpu")
    short, long = start_engine(config), load_engine(config)
    assert short.info == long.info
    assert (short.info.backend, short.info.weights, short.info.kv_cache) == ("native", "Q4_1", "12-bit")
    assert short.info.instructions in INSTRUCTIONS
    assert answer(short) == answer(long)


@pytest.mark.model
@pytest.mark.parametrize(
    "settings", [{"dtype": "float32"}, {"attention_backend": "torch"}, {"kv_cache_dtype": "float32"}], ids=str
)
def test_what_is_for_torch_is_left_to_it(default_model: Path, settings: dict[str, Any]) -> None:
    assert load_gguf_engine(EngineConfig(model=str(default_model), device="cpu", **settings)) is None


@pytest.mark.model
def test_a_gpu_is_left_to_torch(default_model: Path, native_library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(model=str(default_model), num_pages=512)
    monkeypatch.setattr(native_loading, "may_have_gpu", lambda: True)
    assert load_gguf_engine(config) is None
    monkeypatch.setattr(native_loading, "may_have_gpu", lambda: False)
    engine = load_gguf_engine(config)
    assert engine is not None and isinstance(engine._runner.model, NativeRunner)  # type: ignore[attr-defined]
    engine.close()


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert host.num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(host, "_quota", lambda: 16)
    monkeypatch.setattr(host, "_core", lambda processor: str(processor // 2))
    assert host.num_threads() == 2
    monkeypatch.setattr(host, "_quota", lambda: 1)
    assert host.num_threads() == 1


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/nvidiactl")
    assert host.may_have_gpu()
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert not host.may_have_gpu()
    monkeypatch.setattr(sys, "platform", "win32")
    assert host.may_have_gpu()


def test_a_gpu_that_torch_cannot_see_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor is for who asks for it."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("glob.glob", lambda pattern: ["/dev/nvidia0"] if pattern.startswith("/dev/") else [])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(
        RequestError, match=r"has an NVIDIA GPU \(/dev/nvidia0\), but .* cannot use it: install .*--device cpu"
    ):
        load_torch._device("auto")
    assert load_torch._device("cpu") == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert load_torch._device("auto") == "cpu"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("glob.glob", lambda pattern: [])
    assert load_torch._device("auto") == "cpu"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_missing_library_is_told_where_it_could_be_there(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(load_torch, "load_library", lambda: None)
    monkeypatch.setattr("platform.machine", lambda: machine)
    folder = EngineConfig(model=str(write_tiny_model(tmp_path / "tiny")))
    load_torch._warn_of_torch(folder)
    assert caplog.messages == []  # torch is the one that computes such weights anyway
    load_torch._warn_of_torch(msgspec.structs.replace(folder, quantization="int8"))
    (line,) = caplog.messages
    assert "install a C compiler" in line and "--attention-backend torch" in line


def test_a_format_that_the_checkpoint_has_not_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    with pytest.raises(ModelError, match=r"quantization is awq, but the weights of .*tiny are F32: leave it out"):
        start_engine(EngineConfig(model=str(folder), quantization="awq"))


def test_an_engine_says_how_it_computes(tmp_path: Path) -> None:
    engine = start_engine(EngineConfig(model=str(write_tiny_model(tmp_path / "tiny")), num_pages=64, device="cpu"))
    info = engine.info
    engine.close()
    assert (info.backend, info.weights, info.activations, info.kv_cache) == (
        "torch",
        info.dtype,
        info.dtype,
        info.dtype,
    )
    assert (
        info.described()
        == f"torch on {info.instructions}: {info.dtype} weights, {info.dtype} activations, {info.dtype} KV cache"
    )


@pytest.mark.parametrize(
    "error", [MemoryError("8 GiB"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 GiB")], ids=repr
)
def test_what_does_not_fit_is_a_model_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(start, "load_gguf_engine", fail)
    with pytest.raises(ModelError, match=r"not enough memory to load the model .*8 GiB"):
        start_engine(EngineConfig(model="any"))
    monkeypatch.setattr(start, "load_gguf_engine", lambda *_: (_ for _ in ()).throw(RuntimeError("another fault")))
    with pytest.raises(RuntimeError, match="another fault"):
        start_engine(EngineConfig(model="any"))


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "lm_head.weight"])
def test_weights_that_are_not_finite_are_found_before_anything_is_asked(name: str, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    tensors = load_file(folder / "model.safetensors")
    tensors[name][3, 5] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="numbers that are not finite"):
        start_engine(EngineConfig(model=str(folder), num_pages=64, device="cpu"))


def test_nothing_is_kept_of_the_first_pass(tmp_path: Path) -> None:
    engine = start_engine(EngineConfig(model=str(write_tiny_model(tmp_path / "tiny")), num_pages=64, device="cpu"))
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.cached_pages, stats.steps_total, stats.requests_total) == (0,) * 5
    assert stats.free_pages == stats.num_pages and engine.idle
    engine.close()
