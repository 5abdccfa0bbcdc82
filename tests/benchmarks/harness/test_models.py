"""Random models run in the real engine; their tokenizer covers the vocabulary."""

import json
from typing import Any

import pytest
import tokenizers
import torch

from bough.benchmarks.harness.models import byte_tokenizer, random_engine, random_model, write_tokenizer
from bough.benchmarks.harness.shapes import SHAPES, shape, write_folder
from bough.constrain.spec import JsonSchema
from bough.runtime.checkpoints.config import read_config
from bough.runtime.protocol.config import EngineConfig
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.tokenizer.load import build_gguf_tokenizer
from bough.runtime.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def engine():
    made = random_engine(EngineConfig(model="tiny", device="cpu", dtype="float32", max_model_len=512, num_pages=2048))
    yield made
    made.close()


def run(engine, request):
    outputs: list[RequestOutput] = []
    engine.submit(request, outputs.append)
    while not outputs or outputs[-1].finish is None:
        if engine.idle:
            engine.wait_for_grammar(timeout_s=5.0)
        engine.step()
    return outputs


def test_an_engine_runs_on_it(engine):
    request = Request(id="a", prompt=(1, 2, 3), sampling=SamplingParams(max_tokens=20, ignore_eos=True))
    tokens = [token for output in run(engine, request) for token in output.tokens]
    assert len(tokens) == 20
    assert len(set(tokens)) > 5  # no one token has all the weight


def test_a_schema_holds(engine):
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"enum": ["one", "two"]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    request = Request(
        id="b",
        prompt=(5, 6),
        sampling=SamplingParams(max_tokens=60, temperature=0),
        grammar=JsonSchema(json.dumps(schema)),
    )
    outputs = run(engine, request)
    assert json.loads("".join(output.text for output in outputs))["n"] in ("one", "two")
    assert outputs[-1].finish.reason == "stop"


def test_activations_keep_their_size():
    loaded = random_model("tiny", device="cpu", dtype="float32")
    model: Any = loaded.model
    weights = model.layers[0].qkv.weight
    x = torch.randn(64, weights.shape[1])
    assert 0.8 < float((x @ weights.T).std() / x.std()) < 1.2
    assert (
        loaded.num_parameters
        == sum(
            tensor.numel()
            for layer in model.layers
            for tensor in (layer.qkv.weight, layer.out.weight, layer.gate_up.weight, layer.down.weight)
        )
        + model.embedding.numel()
        + (2 * 64 + 2 * 64) * 2
        + 64
    )
    again: Any = random_model("tiny", device="cpu", dtype="float32").model
    assert torch.equal(again.embedding, model.embedding)


@pytest.mark.parametrize("size", [640, 5000])
def test_every_token_means_something(size):
    tokenizer = byte_tokenizer(size)
    assert tokenizer.vocab_size == size
    assert tokenizer.eos_ids == (size - 1,)
    assert all(tokenizer.token_bytes[: size - 1])
    assert len(set(tokenizer.token_bytes[: size - 1])) == size - 1
    text = '{"name": "Zoë", "list": [1, {"a b": "c"}]}'
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_largest_vocabulary_is_covered():
    assert byte_tokenizer(151_936).vocab_size == 151_936
    with pytest.raises(ValueError, match="vocab_size"):
        byte_tokenizer(256)


@pytest.mark.parametrize("name", SHAPES)
def test_a_folder_tells_the_same_shape(name, tmp_path):
    folder = write_folder(name, tmp_path / name)
    raw = json.loads((folder / "config.json").read_text())
    assert read_config(raw) == shape(name)
    assert raw["architectures"] == ["LlamaForCausalLM" if "llama" in name else "Qwen3ForCausalLM"]


def test_what_peers_read_says_the_same(tmp_path):
    controls = ["<|im_start|>", "<|im_end|>"]
    tokens = [*controls, *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), "ab", "abc", "12"]
    parts = build_gguf_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3, 3, *[1] * (len(tokens) - 2)],
            "tokenizer.ggml.merges": ["a b", "ab c", "1 2"],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1,
        }
    )
    write_tokenizer(parts, tmp_path)
    theirs, ours = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")), Tokenizer(parts)
    for text in ("ab abc", "12 é\n\n ab", "<|im_start|>abc<|im_end|>\n"):
        found = theirs.encode(text, add_special_tokens=False).ids
        assert found == ours.encode(text, special=True)
        assert theirs.decode(found, skip_special_tokens=False) == text
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
