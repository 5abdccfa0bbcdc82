"""What an engine is put together from, by its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..triton_interpreter import DEVICE

from bough.runtime.config import EngineConfig  # isort: skip
from bough.runtime.engine import Engine  # isort: skip
from bough.runtime.errors import ModelError, RequestError  # isort: skip
from bough.runtime.gpu_runner import GpuPasses  # isort: skip
from bough.runtime.loading import load_engine  # isort: skip
from bough.runtime.models.decoder import Decoder, Linear  # isort: skip
from bough.runtime.models.invariant import InvariantLinear  # isort: skip
from bough.runtime.models.quantised import QuantisedLinear  # isort: skip
from bough.runtime.passes import DirectPasses  # isort: skip
from bough.runtime.request import Request, RequestOutput  # isort: skip
from bough.runtime.sampling import SamplingParams  # isort: skip

from ..tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), **shape)


def load(folder: Path, **settings: Any) -> Engine:
    fixed: dict[str, Any] = {"dtype": "float32", "device": DEVICE, "num_pages": 32, "max_num_seqs": 4}
    return load_engine(EngineConfig(model=str(folder), **(fixed | {"page_size": 16} | settings)))


def answer(engine: Engine) -> list[int]:
    heard: list[RequestOutput] = []
    sampling = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    engine.submit(Request(id="r", prompt=(65, 66, 67), sampling=sampling), heard.append)
    while not engine.idle:
        engine.step()
    engine.close()
    assert heard[-1].finish is not None and heard[-1].finish.error is None
    return [token for output in heard for token in output.tokens]


def decoder_of(engine: Engine) -> Decoder:
    runner: Any = engine._runner
    model = runner._model if isinstance(runner, GpuPasses) else runner.model.model
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
    scales = runner._attention.k_scale
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


def test_a_cache_that_does_not_fit_is_refused_with_what_it_needs_and_what_there_is(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"needs [\d,]+ bytes, but [\d,]+ are free"):
        load(folder, attention_backend="torch", num_pages=1 << 40)
