"""Floors, against figures worked out by hand and against each other."""

import pytest

from bough.benchmarks.gpu.roofline import (
    Heads,
    Work,
    decode_attention,
    decode_step_s,
    extend_attention,
    kv_bytes,
    linear,
    linear_parameters,
    rope_store,
    sampler,
)
from bough.benchmarks.harness.shapes import shape

HEADS = Heads(32, 8, 128)


def test_a_floor_is_the_slower_of_moving_and_computing():
    assert Work(50.0, 100.0).floor_s(bandwidth=10.0, rate=100.0) == 5.0
    assert Work(10.0, 1000.0).floor_s(bandwidth=10.0, rate=100.0) == 10.0


def test_weights_of_a_model():
    """The numbers of its config: 36 layers of 4096 x (6144 + 4096 + 3 x 12288), and the head."""
    body, head = linear_parameters(shape("qwen3-8b"))
    assert body == 36 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 12_288)
    assert head == 151_936 * 4096
    assert 2 * (body + head) == pytest.approx(15.14e9, rel=1e-3)
    assert kv_bytes(shape("qwen3-8b")) == 144 * 1024
    assert kv_bytes(shape("qwen3-0.6b")) == 112 * 1024
    assert kv_bytes(shape("llama-3.1-8b")) == 128 * 1024


@pytest.mark.parametrize(
    ("model", "batch", "length", "milliseconds"),
    [
        ("qwen3-8b", 1, 1024, 3.56),
        ("qwen3-8b", 64, 4096, 12.5),
        ("qwen3-8b", 256, 1024, 14.0),
        ("qwen3-0.6b", 1, 1024, 0.30),
        ("qwen3-0.6b", 128, 2048, 7.3),
        ("llama-3.1-8b", 64, 4096, 11.5),
    ],
)
def test_decode_steps(model, batch, length, milliseconds):
    assert decode_step_s(shape(model), [length] * batch) * 1e3 == pytest.approx(milliseconds, rel=0.02)


def test_a_shared_prefix_is_read_once():
    config = shape("qwen3-8b")
    flat = decode_step_s(config, [8448] * 64)
    shared = decode_step_s(config, [8448] * 64, distinct_tokens=8192 + 64 * 256)
    assert flat / shared == pytest.approx(5.06, rel=0.02)


def test_attention_of_one_layer():
    assert decode_attention(HEADS, [4096] * 64).floor_s() * 1e6 == pytest.approx(250, rel=0.01)
    alone = decode_attention(HEADS, [1024])
    assert alone.flops / alone.bytes == pytest.approx(4, rel=0.01)
    prefill = extend_attention(HEADS, 4096, 0)
    assert prefill.flops == pytest.approx(0.137e12, rel=0.01)
    assert prefill.floor_s() * 1e6 == pytest.approx(176, rel=0.01)
    assert extend_attention(HEADS, 2048, 8192).flops == pytest.approx(0.309e12, rel=0.01)


def test_one_extended_token_is_a_decode():
    assert extend_attention(HEADS, 1, 99) == decode_attention(HEADS, [100])


def test_small_kernels():
    assert rope_store(HEADS, 256).bytes == pytest.approx(6.3e6, rel=0.01)
    assert sampler(64, 151_936, masked=False, itemsize=4).bytes == pytest.approx(39e6, rel=0.01)
    assert linear(1, 4096, 1024, weight_bits=4).bytes == 4096 * 1024 / 2 + 2 * (4096 + 1024)
