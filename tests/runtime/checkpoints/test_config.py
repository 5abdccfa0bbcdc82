"""Configs: old and new spellings agree with transformers' own reading, and bad fields are refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformers

from bough.runtime.checkpoints.config import ModelConfig, UnsupportedModelError, read_config
from bough.runtime.models.rope_frequencies import rope_table
from bough.runtime.protocol.errors import ModelError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}


YARN: dict[str, Any] = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def read(**changes: Any) -> ModelConfig:
    return read_config({key: value for key, value in (LLAMA | changes).items() if value != "absent"})


def test_fields_of_a_llama() -> None:
    config = read()
    assert (config.architecture, config.vocab_size, config.num_layers) == ("llama", 100, 2)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.max_position, config.norm_eps, config.rope.theta) == (512, 1e-5, 5000.0)
    assert not config.tie_embeddings
    assert config.rope_layers == (True, True)
    assert config.windows == (None, None)


def test_kv_heads_default_to_heads() -> None:
    assert read(num_key_value_heads="absent").num_kv_heads == 4
    assert read(num_key_value_heads=None).num_kv_heads == 4


@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_both_spellings_of_rope_scaling(where: str, key: str) -> None:
    config = read(**{where: {key: "linear", "factor": 4}})
    assert (config.rope.kind, config.rope.factor, config.rope.theta) == ("linear", 4.0, 5000.0)


def test_llama3_rope() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    rope = read(rope_scaling=scaling).rope
    assert (rope.kind, rope.factor, rope.original_max_position) == ("llama3", 8.0, 128)
    assert (rope.low_frequency_factor, rope.high_frequency_factor) == (1.0, 4.0)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_an_empty_config_means_what_transformers_means(model_type: str) -> None:
    """Fields that a config.json leaves out have the same defaults here as there."""
    sizes = {
        key: value for key, value in LLAMA.items() if key not in ("model_type", "num_key_value_heads", "rope_theta")
    }
    sizes["num_key_value_heads"] = 4
    theirs = transformers.CONFIG_MAPPING[model_type](**sizes)
    ours = read_config(sizes | {"model_type": model_type})
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == head_dim
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    if model_type == "smollm3":
        assert ours.rope_layers == tuple(map(bool, theirs.no_rope_layers))


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "smollm3"])
def test_windows_need_the_switch(model_type: str) -> None:
    assert read(model_type=model_type, sliding_window=8).windows == (None, None)
    kinds = ["full_attention", "sliding_attention"]
    on = read(model_type=model_type, sliding_window=8, use_sliding_window=True, layer_types=kinds)
    assert on.windows == (None, 8)


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": None}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0}}, "yarn"),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 4,
                "use_sliding_window": True,
                "layer_types": ["linear_attention"] * 2,
            },
            "linear_attention",
        ),
    ],
)
def test_what_is_not_computed_natively_says_so(changes: dict[str, Any], blamed: str) -> None:
    with pytest.raises(UnsupportedModelError, match=blamed):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        ({"vocab_size": "absent"}, "vocab_size"),
        ({"hidden_size": 64.0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": 1 << 30}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_kv_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": 0.0}, "norm_eps"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"rope_theta": 0.5}, "rope theta"),
        ({"rope_theta": 1e300}, "rope theta"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rope_theta": [1]}, "rope_theta"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope factor"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-300}}, "rope factor"),
        ({"rope_scaling": {"type": "linear", "factor": 1e300}}, "rope factor"),
        ({"rope_scaling": YARN | {"beta_fast": 0}}, "rope beta_fast"),
        ({"rope_scaling": YARN | {"beta_slow": 1e300}}, "rope beta_slow"),
        ({"rope_scaling": YARN | {"attention_factor": 1e300}}, "rope attention_factor"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 0}}, "original_max_position"),
        ({"rope_scaling": YARN, "rope_theta": 1.0}, "above 1 with yarn"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "below high_freq_factor"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 0.5}}, "below high_freq_factor"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings"),
        ({"max_position_embeddings": 1 << 31}, "max_position_embeddings"),
        ({"max_position_embeddings": -5}, "max_position_embeddings"),
        ({"rope_theta": 0}, "rope theta"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "rope_layers"),
    ],
)
def test_bad_field_is_named(changes: dict[str, Any], blamed: str) -> None:
    with pytest.raises(ModelError, match=f"^config.json: .*{blamed}"):
        read(**changes)


@pytest.mark.parametrize("field", ["vocab_size", "num_attention_heads", "rms_norm_eps", "rope_scaling"])
@pytest.mark.parametrize(
    "value", ["x" * 100_000, [[["deep"] * 9] * 9] * 9, "line\nline"], ids=["long", "deep", "lines"]
)
def test_what_is_said_of_a_field_is_one_short_line(field: str, value: Any) -> None:
    with pytest.raises(ModelError) as caught:
        read(**{field: value})
    assert caught.value.message.startswith(f"config.json: {field} ")
    assert len(caught.value.message) <= 600 and "\n" not in caught.value.message


@pytest.mark.parametrize("scaling", [None, YARN, LLAMA3, {"type": "linear", "factor": 1e9}], ids=str)
@pytest.mark.parametrize("theta", [1.0001, 1e4, 1e15])
def test_ropes_within_the_bounds_have_finite_tables(scaling: Any, theta: float) -> None:
    cos, sin = rope_table(read(rope_theta=theta, rope_scaling=scaling).rope, 128, 512)
    assert np.isfinite(cos).all() and np.isfinite(sin).all()
