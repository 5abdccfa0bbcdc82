"""Folders of AWQ, GPTQ and FP8 loaded end to end: undone, kept as they are, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bough.runtime.models.decoder import Decoder, Linear
from bough.runtime.models.load import load_model
from bough.runtime.models.quantised_linear import QuantisedLinear, StackedLinear
from bough.runtime.protocol.errors import ModelError

from .quantised_folders import (
    PROJECTIONS,
    Tensors,
    Writer,
    quantise_folder,
    write_awq,
    write_fp8,
    write_gptq,
)

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
FORMATS: dict[str, tuple[dict[str, Any], Writer]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}, write_awq(32)),
    "awq-g128": ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, write_awq(128)),
    "gptq": (GPTQ, write_gptq(32)),
    "gptq-v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, write_gptq(32, version=2)),
    "gptq-symmetric": (GPTQ | {"sym": True}, write_gptq(32, symmetric=True)),
    "gptq-activation-order": (GPTQ | {"desc_act": True}, write_gptq(32, shuffled=True)),
    "gptq-rows": (GPTQ | {"group_size": -1}, write_gptq(-1)),
    "gptq-8": (GPTQ | {"bits": 8, "group_size": 64}, write_gptq(64, bits=8)),
    "gptq-8-symmetric": (GPTQ | {"bits": 8}, write_gptq(32, bits=8, symmetric=True)),
    "gptq-with-biases-of-zeros": (GPTQ, write_gptq(32, bias=True)),
    "fp8-tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, write_fp8("tensor")),
    "fp8-row": ({"quant_method": "compressed-tensors", "format": "float-quantized"}, write_fp8("row")),
    "fp8-block": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, write_fp8("block")),
}


def make_folder(folder: Path, save_checkpoint: Any, **options: Any) -> Path:
    """A tiny llama whose widths are not all multiples of 128."""
    sizes: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
    save_checkpoint(transformers.CONFIG_MAPPING["llama"](**(sizes | options)), folder)
    return folder


def logits_of(model: Any, make_runner: Any, make_stream: Any) -> torch.Tensor:
    tokens = [(7 * i) % 40 for i in range(24)]
    return make_runner(model, page_size=8).step([(make_stream(tokens), len(tokens))])[0]


def reference_logits(folder: Path, dense: Tensors) -> torch.Tensor:
    """transformers' own, of a model that was given the dense weights."""
    config = transformers.AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model = transformers.LlamaForCausalLM(config).float().eval()
    model.load_state_dict({name: tensor.float() for name, tensor in dense.items()})
    with torch.no_grad():
        return model(input_ids=torch.tensor([[(7 * i) % 40 for i in range(24)]])).logits[0]


@pytest.mark.parametrize("name", FORMATS)
def test_loads_end_to_end(name: str, tmp_path: Path, save_checkpoint: Any, make_runner: Any, make_stream: Any) -> None:
    settings, write = FORMATS[name]
    dense = quantise_folder(make_folder(tmp_path, save_checkpoint), settings, write)
    expected = reference_logits(tmp_path, dense)
    assert float(expected.std()) > 0.1
    undone = load_model(tmp_path, dtype="float32")
    assert isinstance(undone.model, Decoder)
    qkv = undone.model.layers[1].qkv
    assert isinstance(qkv, Linear)
    weights = [dense[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(qkv.weight, torch.cat(weights)), "the format's numbers, to the bit"
    tolerance = 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(logits_of(undone.model, make_runner, make_stream), expected, rtol=0, atol=tolerance)

    kept = load_model(tmp_path, dtype="float32", keep_quantised=True)
    assert isinstance(kept.model, Decoder) and kept.num_parameters == undone.num_parameters
    projections = [getattr(layer, part) for layer in kept.model.layers for part in ("qkv", "out", "gate_up", "down")]
    assert all(isinstance(projection, QuantisedLinear) for projection in projections)
    if name in ("fp8-tensor", "fp8-row"):  # these round activations, too
        got = logits_of(kept.model, make_runner, make_stream)
        assert 1e-4 < float((got - expected).norm() / expected.norm()) < 0.3
    else:
        torch.testing.assert_close(logits_of(kept.model, make_runner, make_stream), expected, rtol=0, atol=tolerance)


def test_columns_in_another_order_stay_apart(
    tmp_path: Path, save_checkpoint: Any, make_runner: Any, make_stream: Any
) -> None:
    """Projections that are computed together, but whose columns a quantiser sorted each in its own way."""
    folder = make_folder(tmp_path, save_checkpoint)
    seeds = iter(range(1000))

    def write(random: Any, rows: int, columns: int) -> Any:
        tensors, weight = write_gptq(32)(random, rows, columns)
        order = torch.randperm(columns, generator=torch.Generator().manual_seed(next(seeds)))
        return tensors | {"g_idx": tensors["g_idx"][order]}, weight  # another weight than this one: not used

    quantise_folder(folder, GPTQ | {"desc_act": True}, write)
    kept = load_model(folder, dtype="float32", keep_quantised=True)
    undone = load_model(folder, dtype="float32")
    assert isinstance(kept.model, Decoder) and isinstance(kept.model.layers[0].qkv, StackedLinear)
    assert kept.num_parameters == undone.num_parameters
    expected = logits_of(undone.model, make_runner, make_stream)
    got = logits_of(kept.model, make_runner, make_stream)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_biases_go_with_their_weights(tmp_path: Path, save_checkpoint: Any, make_runner: Any, make_stream: Any) -> None:
    folder = make_folder(tmp_path, save_checkpoint, attention_bias=True)
    quantise_folder(folder, *FORMATS["gptq"])
    undone, kept = (load_model(folder, dtype="float32", keep_quantised=keep) for keep in (False, True))
    assert undone.num_parameters == kept.num_parameters
    assert isinstance(kept.model, Decoder) and isinstance(kept.model.layers[0].qkv, QuantisedLinear)
    assert kept.model.layers[0].qkv.bias is not None and kept.model.layers[0].qkv.bias.any()
    expected = logits_of(undone.model, make_runner, make_stream)
    got = logits_of(kept.model, make_runner, make_stream)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_a_projection_left_alone_stays_dense(
    tmp_path: Path, save_checkpoint: Any, make_runner: Any, make_stream: Any
) -> None:
    folder = make_folder(tmp_path, save_checkpoint)
    dense = quantise_folder(folder, *FORMATS["awq"])
    stored = load_file(folder / "model.safetensors")
    for part in ("qweight", "qzeros", "scales"):
        del stored[f"model.layers.0.self_attn.k_proj.{part}"]
    stored["model.layers.0.self_attn.k_proj.weight"] = dense["model.layers.0.self_attn.k_proj.weight"]
    save_file(stored, folder / "model.safetensors")
    kept = load_model(folder, dtype="float32", keep_quantised=True).model
    assert isinstance(kept, Decoder) and isinstance(kept.layers[0].qkv, Linear)
    assert isinstance(kept.layers[0].out, QuantisedLinear)
    expected = reference_logits(folder, dense)
    got = logits_of(kept, make_runner, make_stream)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("name", "changes", "blamed"),
    [
        ("awq", {"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ("awq", {"quant_method": "compressed-tensors", "format": "pack-quantized"}, "pack-quantized"),
        ("awq", {"version": "gemv"}, "gemv"),
        ("awq", {"bits": 8}, "bits"),
        ("awq", {"zero_point": False}, "zero_point"),
        ("awq", {"group_size": 48}, "group_size 48"),
        ("awq", {"group_size": 64}, "qzeros has shape"),
        ("gptq", {"bits": 3}, "bits"),
        ("gptq", {"checkpoint_format": "marlin"}, "marlin"),
        ("gptq", {"group_size": 64}, "qzeros has shape"),
        ("gptq-activation-order", {"group_size": 32, "bits": 8}, "shape"),
        ("fp8-block", {"weight_block_size": [64, 64]}, "weight_block_size"),
        ("fp8-block", {"quant_method": "gptq"}, "no weights of gptq"),
    ],
)
def test_what_is_not_supported_is_named(
    name: str, changes: dict[str, Any], blamed: str, tmp_path: Path, save_checkpoint: Any
) -> None:
    settings, write = FORMATS[name]
    quantise_folder(make_folder(tmp_path, save_checkpoint), settings | changes, write)
    with pytest.raises(ModelError, match=blamed):
        load_model(tmp_path, dtype="float32")


@pytest.mark.parametrize(
    ("name", "part", "change", "blamed"),
    [
        ("awq", "scales", None, "no tensor scales"),
        ("gptq", "qzeros", None, "no tensor qzeros"),
        ("gptq-activation-order", "g_idx", lambda tensor: tensor * 0, "g_idx"),
        ("fp8-row", "weight_scale", None, "neither"),
        ("fp8-row", "weight_scale", lambda tensor: tensor[:3], "3 numbers"),
        ("fp8-block", "weight_scale_inv", lambda tensor: tensor[:, :0], "block"),
    ],
)
def test_broken_tensors_are_named(
    name: str, part: str, change: Any, blamed: str, tmp_path: Path, save_checkpoint: Any
) -> None:
    quantise_folder(make_folder(tmp_path, save_checkpoint), *FORMATS[name])
    stored = load_file(tmp_path / "model.safetensors")
    key = f"model.layers.0.mlp.up_proj.{part}"
    tensor = stored.pop(key)
    if change is not None:
        stored[key] = change(tensor).contiguous()
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=blamed):
        load_model(tmp_path, dtype="float32")


def test_every_projection_is_rewritten_here(tmp_path: Path, save_checkpoint: Any) -> None:
    folder = make_folder(tmp_path, save_checkpoint)
    quantise_folder(folder, *FORMATS["gptq"])
    names = load_file(folder / "model.safetensors")
    assert sum(name.endswith("qweight") for name in names) == 2 * len(PROJECTIONS)
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"] == "gptq"
