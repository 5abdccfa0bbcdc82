"""Loading: GGUF files equal to the Hugging Face model they were made of, every tensor type, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from bough.runtime.models import load as loading
from bough.runtime.models.decoder import Decoder, Linear
from bough.runtime.models.load import load_model, resolve_dtype
from bough.runtime.models.rope_frequencies import rope_frequencies
from bough.runtime.protocol.errors import ModelError

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
Encode = Callable[[str, np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType]]
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def as_float32(_: str, values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    return values, gguf.GGMLQuantizationType.F32


def gguf_name(name: str) -> str:
    module, _, suffix = name.rpartition(".")
    if module.startswith("model.layers."):
        _, _, layer, inner = module.split(".", 3)
        return f"blk.{layer}.{NAMES[inner]}.{suffix}"
    return f"{NAMES[module]}.{suffix}"


def pair_rows(values: np.ndarray, num_heads: int) -> np.ndarray:
    """The row order of llama files: within a head, row i next to row i + head_dim / 2."""
    half = values.shape[0] // num_heads // 2
    order = [head * 2 * half + part * half + i for head in range(num_heads) for i in range(half) for part in (0, 1)]
    return np.ascontiguousarray(values[order])


def write_gguf(
    model: Any, path: Path, *, encode: Encode = as_float32, extra: dict[str, np.ndarray] | None = None, **changes: Any
) -> Path:
    config = model.config
    architecture = config.model_type
    writer = gguf.GGUFWriter(path, changes.get("architecture", architecture))
    writer.add_block_count(changes.get("block_count", config.num_hidden_layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(changes.get("embedding_length", config.hidden_size))
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(64)
    writer.add_value_length(64)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_token_list([f"t{i}" for i in range(changes.get("num_tokens", config.vocab_size))])
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if (name == "lm_head.weight" and config.tie_word_embeddings) or name in changes.get("leave_out", ()):
            continue
        if architecture in ("llama", "smollm3") and "q_proj" in name:
            values = pair_rows(values, config.num_attention_heads)
        if architecture in ("llama", "smollm3") and "k_proj" in name:
            values = pair_rows(values, config.num_key_value_heads)
        raw, kind = encode(name, values)
        writer.add_tensor(gguf_name(name), raw, raw_dtype=kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def make_reference(model_type: str, folder: Path, save_checkpoint: Any, **options: Any) -> Any:
    sizes = {key: value for key, value in SIZES.items() if key != "head_dim" or model_type in ("llama", "qwen3")}
    return save_checkpoint(transformers.CONFIG_MAPPING[model_type](**(sizes | options)), folder)


def assert_same_logits(path: Path, reference: Any, make_runner: Any, make_stream: Any) -> None:
    tokens = [(7 * i) % 40 for i in range(30)]
    loaded = load_model(path, dtype="float32")
    logits = make_runner(loaded.model, page_size=8).step([(make_stream(tokens), len(tokens))])[0]
    with torch.no_grad():
        expected = reference(input_ids=torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-4 * float(expected.abs().max()))
    assert expected.std() > 0.3


GGUF_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "smollm3": ("smollm3", {}),
}


@pytest.mark.parametrize("name", GGUF_MODELS)
def test_gguf_equals_its_origin(
    name: str, tmp_path: Path, save_checkpoint: Any, make_runner: Any, make_stream: Any
) -> None:
    model_type, options = GGUF_MODELS[name]
    reference = make_reference(model_type, tmp_path, save_checkpoint, **options)
    path = write_gguf(reference, tmp_path / "tiny.gguf")
    assert_same_logits(path, reference, make_runner, make_stream)
    loaded = load_model(path, dtype="float32")
    assert (loaded.name, loaded.eos_ids, loaded.bos_id, loaded.path) == ("tiny", (2,), 1, path)
    assert loaded.num_parameters == sum(parameter.numel() for parameter in reference.parameters())


def test_gguf_with_frequency_factors(tmp_path: Path, save_checkpoint: Any, make_runner: Any, make_stream: Any) -> None:
    """Llama 3 files carry the scaled frequencies as a tensor of divisors."""
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    reference = make_reference("llama", tmp_path, save_checkpoint, rope_parameters=scaling)
    plain = 1.0 / 10_000.0 ** (np.arange(0, 64, 2) / 64)
    factors = (plain / reference.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    assert factors.max() > 7.9
    path = write_gguf(reference, tmp_path / "tiny.gguf", extra={"rope_freqs.weight": factors})
    assert_same_logits(path, reference, make_runner, make_stream)
    model = load_model(path, dtype="float32").model
    assert isinstance(model, Decoder)
    torch.testing.assert_close(
        torch.from_numpy(rope_frequencies(model.config.rope, 64)), reference.model.rotary_emb.inv_freq
    )


ROUND_TRIP_ERRORS = {"F16": 1e-3, "BF16": 5e-3, "Q8_0": 0.01, "Q5_0": 0.06, "Q5_1": 0.06, "Q4_0": 0.12, "Q4_1": 0.12}


@pytest.fixture(scope="module")
def small_llama(tmp_path_factory: pytest.TempPathFactory, save_checkpoint: Any) -> Any:
    return make_reference("llama", tmp_path_factory.mktemp("llama"), save_checkpoint, num_hidden_layers=1)


@pytest.mark.parametrize("kind_name", ROUND_TRIP_ERRORS)
def test_tensor_types_round_trip(kind_name: str, tmp_path: Path, small_llama: Any) -> None:
    kind = gguf.GGMLQuantizationType[kind_name]

    def encode(_: str, values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        if values.ndim == 1:
            return values, gguf.GGMLQuantizationType.F32
        return gguf.quantize(values, kind), kind

    model = load_model(write_gguf(small_llama, tmp_path / "tiny.gguf", encode=encode), dtype="float32").model
    assert isinstance(model, Decoder)
    origin = small_llama.state_dict()
    prefix = "model.layers.0.self_attn."
    qkv = model.layers[0].qkv
    assert isinstance(qkv, Linear)
    fused = torch.cat([origin[f"{prefix}{part}_proj.weight"] for part in "qkv"])
    for ours, theirs in ((model.embedding, origin["model.embed_tokens.weight"]), (qkv.weight, fused)):
        error = (ours - theirs).norm() / theirs.norm()
        assert error < ROUND_TRIP_ERRORS[kind_name]
    assert torch.equal(model.norm, origin["model.norm.weight"])


def scalar_q4_k(block: bytes) -> list[float]:
    """One block of Q4_K, number by number: eight groups of 32, 6-bit scales and minima, 4-bit values."""
    scale, minimum = np.frombuffer(block[:4], "<f2").astype(float)
    packed, nibbles = block[4:16], block[16:]
    numbers = []
    for group in range(8):
        if group < 4:
            group_scale, group_minimum = packed[group] & 63, packed[group + 4] & 63
        else:
            group_scale = packed[group + 4] & 15 | (packed[group - 4] >> 6) << 4
            group_minimum = packed[group + 4] >> 4 | (packed[group] >> 6) << 4
        for byte in nibbles[group // 2 * 32 : group // 2 * 32 + 32]:
            numbers.append(scale * group_scale * (byte >> 4 if group % 2 else byte & 15) - minimum * group_minimum)
    return numbers


def scalar_q5_k(block: bytes) -> list[float]:
    """Q4_K with a fifth bit: the group's bit of the byte in `high` at the value's place in the group."""
    high = block[16:48]
    scale = float(np.frombuffer(block[:2], "<f2")[0])
    base = scalar_q4_k(block[:16] + block[48:])
    numbers = []
    for group in range(8):
        packed = block[4:16]
        group_scale = packed[group] & 63 if group < 4 else packed[group + 4] & 15 | (packed[group - 4] >> 6) << 4
        for i in range(32):
            numbers.append(base[group * 32 + i] + scale * group_scale * 16 * (high[i] >> group & 1))
    return numbers


def scalar_q6_k(block: bytes) -> list[float]:
    """One block of Q6_K: sixteen groups of 16 with 8-bit scales; 4 low bits and 2 high bits a number, minus 32."""
    low, high, scales = block[:128], block[128:192], np.frombuffer(block[192:208], np.int8)
    scale = float(np.frombuffer(block[208:], "<f2")[0])
    numbers = []
    for i in range(256):
        half, inside = divmod(i, 128)
        quarter, place = divmod(inside, 32)
        byte = low[half * 64 + (quarter % 2) * 32 + place]
        four = byte >> 4 if quarter >= 2 else byte & 15
        two = high[half * 32 + place] >> (2 * quarter) & 3
        numbers.append(scale * int(scales[i // 16]) * ((four | two << 4) - 32))
    return numbers


@pytest.mark.parametrize(
    ("kind_name", "scales_at", "decode"),
    [("Q4_K", (0, 2), scalar_q4_k), ("Q5_K", (0, 2), scalar_q5_k), ("Q6_K", (208,), scalar_q6_k)],
)
def test_super_block_types(
    kind_name: str, scales_at: tuple[int, ...], decode: Callable[[bytes], list[float]], tmp_path: Path, small_llama: Any
) -> None:
    kind = gguf.GGMLQuantizationType[kind_name]
    num_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = np.random.default_rng(0).integers(0, 256, (40, num_bytes), np.uint8)
    for row in blocks:
        for at in scales_at:
            row[at : at + 2] = np.array([0.01], "<f2").view(np.uint8)

    def encode(name: str, values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        return (blocks, kind) if name == "model.embed_tokens.weight" else (values, gguf.GGMLQuantizationType.F32)

    model = load_model(write_gguf(small_llama, tmp_path / "tiny.gguf", encode=encode), dtype="float32").model
    assert isinstance(model, Decoder)
    expected = torch.tensor([decode(row.tobytes()) for row in blocks], dtype=torch.float32)
    torch.testing.assert_close(model.embedding, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        ({"architecture": "mamba"}, "mamba"),
        ({"leave_out": ("model.layers.0.mlp.up_proj.weight",)}, "mlp.up_proj.weight"),
        ({"leave_out": ("model.embed_tokens.weight",)}, "token_embd"),
        ({"leave_out": ("model.norm.weight",)}, "model.norm.weight"),
        ({"block_count": 2}, "layers.1"),
        ({"block_count": 1 << 31}, "block_count"),
        ({"embedding_length": 512}, "shape"),
        ({"num_tokens": 41}, "41 tokens"),
        ({"extra": {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}}, "attn_sinks"),
        ({"extra": {"rope_freqs.weight": np.ones(8, np.float32)}}, "rope_freqs"),
        ({"extra": {"rope_freqs.weight": np.zeros(32, np.float32)}}, "rope_freqs"),
    ],
)
def test_gguf_that_does_not_fit_its_config(
    changes: dict[str, Any], blamed: str, tmp_path: Path, small_llama: Any
) -> None:
    with pytest.raises(ModelError, match=blamed):
        load_model(write_gguf(small_llama, tmp_path / "tiny.gguf", **changes))


# -- folders -----------------------------------------------------------------------------------------------------


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))


def test_sharded_folder(tmp_path: Path, save_checkpoint: Any, make_runner: Any, make_stream: Any) -> None:
    sharded, steps = tmp_path / "sharded", []
    reference = save_checkpoint(transformers.LlamaConfig(**SIZES), sharded, max_shard_size="1MB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert_same_logits(sharded, reference, make_runner, make_stream)
    load_model(sharded, progress=lambda stage, done, total: steps.append((stage, done, total)))
    assert steps[0][:2] == ("load", 1)
    assert steps[-1][1] == steps[-1][2] == len(steps)
    next(iter(sharded.glob("*.safetensors"))).unlink()
    with pytest.raises(ModelError, match="missing"):
        load_model(sharded)


@pytest.fixture
def folder(tmp_path: Path, save_checkpoint: Any) -> Path:
    path = tmp_path / "tiny"
    save_checkpoint(transformers.LlamaConfig(**(SIZES | {"num_hidden_layers": 1})), path)
    return path


def test_native_folder_ignores_auto_map(folder: Path) -> None:
    marker = folder / "marker"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    edit_json(folder / "config.json", auto_map={"AutoConfig": "evil.A", "AutoModelForCausalLM": "evil.B"})
    assert isinstance(load_model(folder).model, Decoder)
    assert not marker.exists()


def test_generation_config_is_read(folder: Path) -> None:
    edit_json(folder / "generation_config.json", eos_token_id=[2, 5], do_sample=True, temperature=0.7, top_p=0.9)
    loaded = load_model(folder)
    assert loaded.eos_ids == (2, 5)
    assert loaded.sampling_defaults == {"temperature": 0.7, "top_p": 0.9}
    edit_json(folder / "generation_config.json", do_sample=False)
    assert load_model(folder).sampling_defaults == {}


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        ({"hidden_size": 128}, "shape"),
        ({"num_hidden_layers": 2}, "layers.1"),
        ({"vocab_size": 1 << 23}, "shape"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"attention_bias": True}, "bias"),
    ],
)
def test_folder_that_does_not_fit_its_config(folder: Path, changes: dict[str, Any], blamed: str) -> None:
    edit_json(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=blamed):
        load_model(folder)


def test_unused_tensors_are_refused(tmp_path: Path, save_checkpoint: Any) -> None:
    save_checkpoint(transformers.LlamaConfig(**(SIZES | {"attention_bias": True})), tmp_path)
    edit_json(tmp_path / "config.json", attention_bias=False)
    with pytest.raises(ModelError, match="does not use"):
        load_model(tmp_path)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle"):
        load_model(folder)


# -- sources and dtypes ------------------------------------------------------------------------------------------


def test_sources_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    (tmp_path / "empty").mkdir()
    for source, reason in (
        (tmp_path / "weights.bin", r"a folder or a \.gguf"),
        (tmp_path / "empty", r"no config\.json"),
        (tmp_path / "absent", "no model"),
        ("absent", "smollm2-135m"),
        ("../absent/model", "no model"),
    ):
        with pytest.raises(ModelError, match=reason):
            load_model(source)


def test_ids_that_are_none_of_the_models_are_left_out() -> None:
    assert loading._ids([-1, 5, 99, 100, 1 << 40, "7", None, True, 5, 2.0], 100) == (5, 99)


def test_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_dtype("float64", "cpu") == torch.float64
    assert resolve_dtype("auto", "cuda") == torch.bfloat16
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False})
    assert resolve_dtype("auto", "cpu") == torch.float32
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert resolve_dtype("auto", "cpu") == torch.bfloat16
    with pytest.raises(ModelError, match="dtype must be auto"):
        resolve_dtype("int8", "cpu")
