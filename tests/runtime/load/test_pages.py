"""Memory is planned before it is taken: what does not fit is refused with what is needed and what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bough.kernels.native.library import Library
from bough.kernels.native.threads import Threads
from bough.kernels.native.weights import TiledWeight
from bough.runtime.checkpoints.config import RopeConfig, read_config
from bough.runtime.checkpoints.gguf_file import GGUFFile
from bough.runtime.checkpoints.gguf_tensors import GGUFTensors
from bough.runtime.load import pages, start
from bough.runtime.load.load_torch import load_engine
from bough.runtime.load.pages import RESERVE, check_pages, claim_host, host_pages, torch_pass_bytes
from bough.runtime.load.start import start_engine
from bough.runtime.models import rope_frequencies
from bough.runtime.models.load import load_model
from bough.runtime.models.native import NativeDecoder, NativeTarget, decoder_bytes, load_native
from bough.runtime.models.rope_frequencies import rope_table, rope_table_bytes
from bough.runtime.protocol.config import EngineConfig, SchedulerLimits
from bough.runtime.protocol.errors import ModelError
from bough.runtime.runner.host_memory import FreeMemory

from ...support.tiny_model import write_tiny_model

MIB = 1 << 20
LIMITS = SchedulerLimits(max_num_seqs=4, max_batch_tokens=64)
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture
def set_free(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_free(num_bytes: int) -> None:
        monkeypatch.setattr(pages, "free_memory", lambda: FreeMemory(num_bytes, "RLIMIT_AS"))

    return set_free


def planned(**settings: Any) -> int:
    return host_pages(EngineConfig(**settings), 1000, 5 * MIB, LIMITS, 1, 100_000)


def test_the_cache_is_a_share_of_what_passes_leave(set_free: Any) -> None:
    set_free(RESERVE + 5 * MIB + 80 * MIB)
    assert planned() == 20 * MIB // 1000
    assert planned(memory_fraction=0.5) == 40 * MIB // 1000


def test_never_more_than_all_that_may_run(set_free: Any) -> None:
    set_free(1 << 50)
    assert planned() == 4 * 100_000 + 1


@pytest.mark.parametrize("settings", [{"num_pages": 81 * MIB // 1000}, {"kv_cache_memory": 81 * MIB}])
def test_named_pages_must_fit_beside_passes(set_free: Any, settings: dict[str, int]) -> None:
    set_free(RESERVE + 5 * MIB + 82 * MIB)
    assert planned(**settings) == 81 * MIB // 1000
    set_free(RESERVE + 5 * MIB + 80 * MIB)
    with pytest.raises(ModelError, match=rf"plus {RESERVE + 5 * MIB:,} for passes, but [\d,]+ are free") as caught:
        planned(**settings)
    assert "RLIMIT_AS" in str(caught.value) and "lower max_model_len" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("free", [0, RESERVE, RESERVE + 5 * MIB, RESERVE + 5 * MIB + 3000])
def test_no_room_for_a_page(set_free: Any, free: int) -> None:
    set_free(free)
    with pytest.raises(ModelError, match=r"needs 2,000 bytes, plus [\d,]+ for passes, but [\d,]+ are free"):
        planned()


def test_bytes_that_hold_no_page_are_refused_by_their_name() -> None:
    with pytest.raises(ModelError, match=r"kv_cache_memory=1,000 is too small: one page takes 1,000 bytes; raise it"):
        planned(kv_cache_memory=1000)


def test_pages_of_a_gpu_need_nothing_of_the_host() -> None:
    check_pages(10, 1000, FreeMemory(10_000, "cuda"))
    with pytest.raises(ModelError, match=r"needs 11,000 bytes, but 10,000 are free \(by cuda\)"):
        check_pages(11, 1000, FreeMemory(10_000, "cuda"))


def test_a_model_that_does_not_fit_is_refused(set_free: Any) -> None:
    set_free(RESERVE + 1000)
    claim_host(1000)
    with pytest.raises(ModelError, match=r"needs 1,001 bytes for weights and tables, plus [\d,]+, but"):
        claim_host(1001)


def test_a_torch_model_is_refused_before_it_is_read(
    tmp_path: Path, set_free: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_model(tmp_path)
    claimed: list[int] = []
    loaded = load_model(folder, dtype="float32", claim=claimed.append)
    assert claimed == [4 * loaded.num_parameters]
    monkeypatch.setattr("bough.runtime.models.load.load_parameters", lambda *_, **__: pytest.fail("it was read"))
    set_free(RESERVE + claimed[0] - 1)
    with pytest.raises(ModelError, match=rf"needs {claimed[0]:,} bytes for weights"):
        load_engine(EngineConfig(model=str(folder), device="cpu", dtype="float32"))


@pytest.mark.parametrize("kind", ["int8", "int4", "w8a8"])
def test_a_native_model_is_refused_before_it_is_packed(
    tmp_path: Path, set_free: Any, native_library: Library, kind: str
) -> None:
    heads = {"head_dim": 64, "num_attention_heads": 2} if kind == "w8a8" else {}
    sizes = {"hidden_size": 128, "intermediate_size": 192} if kind == "w8a8" else {}
    folder = write_tiny_model(tmp_path, **(SHAPE | sizes | heads))
    config = EngineConfig(model=str(folder), device="cpu", quantization=kind, num_pages=64)  # type: ignore[arg-type]
    claimed: list[int] = []
    target = NativeTarget(native_library, Threads(native_library, 1), kind, claim=claimed.append)
    decoder = load_model(folder, native=target).model
    assert isinstance(decoder, NativeDecoder)
    packed = sum(one.tiles.nbytes for one in decoder.kept if isinstance(one, TiledWeight))
    others = sum(one.nbytes for one in decoder.kept if isinstance(one, np.ndarray))
    assert 0.8 * (packed + others) <= claimed[0] <= packed + others
    set_free(RESERVE + claimed[0] - 1)
    with pytest.raises(ModelError, match=rf"needs {claimed[0]:,} bytes for weights and tables"):
        load_engine(config)


@pytest.mark.model
def test_the_plan_of_the_default_model_is_what_it_takes(default_model: Path, native_library: Library) -> None:
    file = GGUFFile(default_model)
    model = read_config(file)
    claimed: list[int] = []
    target = NativeTarget(native_library, Threads(native_library, 1), claim=claimed.append)
    decoder = load_native(model, GGUFTensors(file, model), target)
    assert decoder is not None
    tiles = sum(one.tiles.nbytes for one in decoder.kept if isinstance(one, TiledWeight))
    others = sum(one.nbytes for one in decoder.kept if isinstance(one, np.ndarray))
    assert claimed == [tiles + others] == [decoder_bytes(model, GGUFTensors(file, model), target)]


def test_passes_of_a_native_model_are_planned_with_their_logits(tmp_path: Path, native_library: Library) -> None:
    folder = write_tiny_model(tmp_path, **SHAPE)
    engine = load_engine(EngineConfig(model=str(folder), device="cpu", quantization="int8", num_pages=64))
    runner: Any = engine._runner
    decoder = runner.model._decoder
    vocab = decoder.config.vocab_size
    assert decoder.pass_bytes(512, 512) - decoder.pass_bytes(512, 1) >= 511 * vocab * 4
    assert decoder.pass_bytes(512, 1) > decoder.pass_bytes(64, 1) + 448 * 4 * 64
    engine.close()


def test_passes_of_torch_grow_with_tokens_and_vocabulary(tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path), dtype="float32").config
    small, large = (torch_pass_bytes(model, SchedulerLimits(max_batch_tokens=size), 4) for size in (64, 512))
    assert large == 8 * small >= 512 * model.vocab_size * 8


@pytest.mark.parametrize("error", [MemoryError("12 GiB"), np.exceptions.AxisError("other")], ids=repr)
def test_running_out_of_memory_while_loading_is_an_error_of_the_model(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(start, "load_gguf_engine", fail)
    expected = ModelError if isinstance(error, MemoryError) else type(error)
    with pytest.raises(expected) as caught:
        start_engine(EngineConfig())
    if expected is ModelError:
        assert re.search(
            r"not enough memory .* \(12 GiB; of the host's bytes [\d,]+ are free.*\): choose", str(caught.value)
        )


@pytest.mark.parametrize("num_positions", [1, 4095, 4096, 4097, 9000])
@pytest.mark.parametrize("kind", ["default", "yarn"])
def test_rope_tables_are_made_in_blocks_to_the_same_bit(
    num_positions: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = RopeConfig(kind=kind, factor=4.0, original_max_position=2048)
    tables = rope_table(rope, 64, num_positions)
    monkeypatch.setattr(rope_frequencies, "_BLOCK", 1 << 20)
    for table, whole in zip(tables, rope_table(rope, 64, num_positions), strict=True):
        assert np.array_equal(table, whole)
    assert sum(table.nbytes for table in tables) == rope_table_bytes(64, num_positions)
