"""Parts that an engine is put together from, by its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ...support.triton_interpreter import DEVICE

from bough.runtime.load import load_native as native_loading  # isort: skip
from bough.runtime.load import load_torch as torch_loading  # isort: skip
from bough.runtime.protocol.config import EngineConfig  # isort: skip
from bough.runtime.engine.engine import Engine  # isort: skip
from bough.runtime.protocol.errors import ModelError, RequestError  # isort: skip
from bough.runtime.runner.gpu_runner import GpuPasses  # isort: skip
from bough.runtime.load.load_torch import load_engine  # isort: skip
from bough.runtime.models.decoder import Decoder, Linear  # isort: skip
from bough.runtime.models.invariant import InvariantLinear  # isort: skip
from bough.runtime.models.quantised_linear import QuantisedLinear  # isort: skip
from bough.runtime.runner.native_runner import NativeRunner  # isort: skip
from bough.runtime.runner.runner import DirectPasses  # isort: skip
from bough.runtime.protocol.request import Request, RequestOutput  # isort: skip
from bough.runtime.runner.torch_runner import ModelRunner  # isort: skip
from bough.runtime.protocol.sampling_params import SamplingParams  # isort: skip
from bough.runtime.sampler.torch_sampler import TorchSampler  # isort: skip

from ...support.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), **shape)


def load(folder: Path, **settings: Any) -> Engine:
    fixed: dict[str, Any] = {"dtype": "float32", "device": DEVICE, "num_pages": 32, "max_num_seqs": 4}
    return load_engine(EngineConfig(model=str(folder), **(fixed | {"page_size": 16} | settings)))


def answer(engine: Engine, **options: Any) -> list[int]:
    heard: list[RequestOutput] = []
    sampling = SamplingParams(**({"max_tokens": 4, "temperature": 0.0, "ignore_eos": True} | options))
    engine.submit(Request(id="r", prompt=(65, 66, 67), sampling=sampling), heard.append)
    while not engine.idle:
        engine.step()
    engine.close()
    assert heard[-1].finish is not None and heard[-1].finish.error is None
    return [token for output in heard for token in output.tokens]


def decoder_of(engine: Engine) -> Decoder:
    runner: Any = engine._runner
    model = runner._mixed.model if isinstance(runner, GpuPasses) else runner.model.model
    assert isinstance(model, Decoder)
    return model


@pytest.mark.parametrize("kind", ["fp8", "int8", "w8a8", "int4"])
def test_quantised_weights_answer_much_like_the_others(folder: Path, kind: str) -> None:
    engine = load(folder, attention_backend="torch", quantization=kind)
    decoder = decoder_of(engine)
    assert isinstance(decoder.layers[0].qkv, QuantisedLinear) and isinstance(decoder.head, Linear)
    assert len(answer(engine)) == 4


def test_the_cpu_computes_within_the_launch_and_triton_ahead(folder: Path) -> None:
    assert isinstance(load(folder, attention_backend="torch")._runner, DirectPasses)
    runner = load(folder, attention_backend="triton")._runner
    assert isinstance(runner, GpuPasses) and runner.overlaps and runner.max_steps == 4
    runner = load(folder, attention_backend="triton", overlap=False, max_decode_steps=1)._runner
    assert not runner.overlaps and runner.max_steps == 1


def test_deterministic_products_are_of_one_kind(folder: Path) -> None:
    engine = load(folder, attention_backend="triton", deterministic=True)
    decoder = decoder_of(engine)
    assert isinstance(decoder.head, InvariantLinear) and isinstance(decoder.layers[0].down, InvariantLinear)
    expected = answer(load(folder, attention_backend="torch"))
    assert answer(engine) == expected


def test_deterministic_and_quantised_go_together(folder: Path) -> None:
    decoder = decoder_of(load(folder, attention_backend="triton", deterministic=True, quantization="int8"))
    qkv = decoder.layers[0].qkv
    assert isinstance(qkv, QuantisedLinear) and qkv.invariant
    assert isinstance(decoder.head, InvariantLinear)


def test_an_8_bit_cache_gets_scales_and_answers_the_same(folder: Path) -> None:
    engine = load(folder, attention_backend="triton", kv_cache_dtype="fp8_e4m3")
    runner: Any = engine._runner
    scales = runner._mixed.attention.k_scale
    assert (scales > 0).all() and len(set(scales.flatten().tolist())) > 1
    assert len(answer(engine)) == 4


def test_triton_on_a_cpu_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RequestError, match="need a GPU") as caught:
        load(folder, device="cpu", attention_backend="triton")
    assert caught.value.param == "attention_backend"


def test_what_needs_triton_is_refused_without_it(folder: Path) -> None:
    with pytest.raises(RequestError, match="fp8_e4m3"):
        load(folder, attention_backend="torch", kv_cache_dtype="fp8_e4m3")
    with pytest.raises(RequestError, match="kv_cache_dtype int8 needs"):
        load(folder, attention_backend="torch", kv_cache_dtype="int8")
    with pytest.raises(RequestError, match="activations mixed needs"):
        load(folder, attention_backend="torch", activations="mixed")


def test_a_cache_that_does_not_fit_is_refused_with_what_it_needs_and_what_there_is(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"needs [\d,]+ bytes, plus [\d,]+ for passes, but [\d,]+ are free"):
        load(folder, attention_backend="torch", num_pages=1 << 40)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of sizes that the CPU library computes."""
    shape = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "num_attention_heads": 2}
    return write_tiny_model(tmp_path_factory.mktemp("wide"), **shape)


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the Hadamard form."""
    shape = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 64, "num_attention_heads": 2}
    return write_tiny_model(tmp_path_factory.mktemp("wider"), **shape)


def load_on_cpu(folder: Path, **settings: Any) -> Engine:
    return load(folder, **({"dtype": "auto", "device": "cpu", "page_size": None} | settings))


def runner_of(engine: Engine) -> Any:
    runner: Any = engine._runner
    return runner.model


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("kind", ["int8", "int4", "w8a8"])
def test_the_library_computes_what_it_can(wide: Path, wider: Path, kind: str) -> None:
    wide = wider if kind == "w8a8" else wide
    engine = load_on_cpu(wide, quantization=kind)
    assert isinstance(runner_of(engine), NativeRunner)
    assert (engine.info.dtype, engine.info.page_size) == ("float32", 1)
    torch = load_on_cpu(wide, quantization=kind, attention_backend="torch")
    assert isinstance(runner_of(torch), ModelRunner)
    assert engine.info.num_parameters == torch.info.num_parameters
    assert len(answer(engine)) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {},  # float weights stay what they are
        {"quantization": "w8a8"},  # heads are too narrow
        {"quantization": "int8", "dtype": "float32"},
        {"quantization": "int8", "kv_cache_dtype": "float32"},
    ],
    ids=str,
)
def test_torch_computes_the_rest(wide: Path, folder: Path, settings: dict[str, Any]) -> None:
    assert isinstance(runner_of(load_on_cpu(wide, **settings)), ModelRunner)


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.8, "logprobs": 2}])
def test_torch_draws_the_same_where_the_library_was_not_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    options |= {"seed": 5, "max_tokens": 12}
    expected = answer(load(folder, attention_backend="torch"), **options)
    monkeypatch.setattr(torch_loading, "load_library", lambda: None)
    engine = load(folder, attention_backend="torch")
    runner: Any = engine._runner
    assert isinstance(runner._sampler, TorchSampler)
    assert answer(engine, **options) == expected


def test_torch_computes_where_the_library_was_not_built(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_loading, "load_library", lambda: None)
    assert isinstance(runner_of(load_on_cpu(wide, quantization="int8")), ModelRunner)
    with pytest.raises(RequestError, match=r"needs x86 with AVX2 or ARM64, and .* C compiler") as caught:
        load_on_cpu(wide, quantization="int8", attention_backend="native")
    assert caught.value.param == "attention_backend"


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"dtype": "float32"}, "dtype auto, got float32"),
        ({"kv_cache_dtype": "float32"}, "kv_cache_dtype auto or int8, got float32"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "kv_cache_dtype auto or int8, got fp8_e4m3"),
        ({"activations": "mixed", "quantization": "w8a8"}, "activations auto or int8, got mixed"),
        ({"quantization": "fp8"}, "quantization none or int8 or int4 or w8a8, got fp8"),
    ],
)
def test_what_the_library_has_not_is_refused_by_name(wide: Path, settings: dict[str, Any], wanted: str) -> None:
    with pytest.raises(RequestError) as caught:
        load_on_cpu(wide, **({"attention_backend": "native", "quantization": "int8"} | settings))
    assert (str(caught.value), caught.value.param) == (f"attention_backend native needs {wanted}", next(iter(settings)))


@pytest.mark.usefixtures("native_library")
def test_models_that_the_library_has_no_formats_for_are_refused(wide: Path, tmp_path: Path) -> None:
    narrow = write_tiny_model(tmp_path)  # 32 wide, 48 in between
    for model, quantization in ((wide, None), (narrow, "int8")):
        with pytest.raises(ModelError, match=rf"whose layers are quantised.*{model.name} is not such a model"):
            load_on_cpu(model, attention_backend="native", quantization=quantization)
