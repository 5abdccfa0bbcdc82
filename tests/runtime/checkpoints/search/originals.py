"""Small models that load, as the files that are changed: a GGUF file, and folders of several kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from ....support.tiny_model import write_tiny_model
from ...models.quantised_folders import quantise_folder
from ...models.test_quantised_checkpoint import FORMATS
from .gguf_image import Field, GGUFImage

U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 32, 256, 2, 1, 32, 2

_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1}


def gguf_image() -> GGUFImage:
    """A model of two layers with weights in several block formats, and a byte-level tokenizer."""
    image = GGUFImage()
    tokens, merges = _byte_level_tokens()
    numbers = {
        "block_count": LAYERS,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.dimension_count": HEAD_DIM,
        "attention.sliding_window": 0,
        "rope.scaling.original_context_length": 128,
    }
    image.fields = [
        Field("general.architecture", STRING, "llama"),
        Field("general.name", STRING, "tiny"),
        *(Field(f"llama.{name}", U32, value) for name, value in numbers.items()),
        Field("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        Field("llama.rope.freq_base", F32, 10_000.0),
        Field("llama.rope.scaling.type", STRING, "yarn"),
        Field("llama.rope.scaling.factor", F32, 4.0),
        Field("tokenizer.ggml.model", STRING, "gpt2"),
        Field("tokenizer.ggml.pre", STRING, "smollm"),
        Field("tokenizer.ggml.tokens", ARRAY, tokens, STRING),
        Field("tokenizer.ggml.scores", ARRAY, [-float(token) for token in range(len(tokens))], F32),
        Field("tokenizer.ggml.token_type", ARRAY, [1] * (len(tokens) - 3) + [4, 3, 3], I32),
        Field("tokenizer.ggml.merges", ARRAY, merges, STRING),
        Field("tokenizer.ggml.bos_token_id", U32, len(tokens) - 2),
        Field("tokenizer.ggml.eos_token_id", U32, len(tokens) - 1),
        Field("tokenizer.ggml.add_bos_token", BOOL, True),
        Field("tokenizer.chat_template", STRING, _CHATML),
    ]
    random = np.random.default_rng(0)
    _add_matrix(image, random, "token_embd.weight", HIDDEN, len(tokens), 8)
    image.add_tensor("output_norm.weight", [HIDDEN], 0, np.ones(HIDDEN, "<f4").tobytes())
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            image.add_tensor(f"blk.{layer}.{name}.weight", [HIDDEN], 0, np.ones(HIDDEN, "<f4").tobytes())
        _add_matrix(image, random, f"blk.{layer}.attn_q.weight", HIDDEN, HEADS * HEAD_DIM, 8)
        _add_matrix(image, random, f"blk.{layer}.attn_k.weight", HIDDEN, KV_HEADS * HEAD_DIM, 2)
        _add_matrix(image, random, f"blk.{layer}.attn_v.weight", HIDDEN, KV_HEADS * HEAD_DIM, 3)
        _add_matrix(image, random, f"blk.{layer}.attn_output.weight", HEADS * HEAD_DIM, HIDDEN, 8)
        _add_matrix(image, random, f"blk.{layer}.ffn_gate.weight", HIDDEN, INNER, 7)
        _add_matrix(image, random, f"blk.{layer}.ffn_up.weight", HIDDEN, INNER, 6)
        _add_matrix(image, random, f"blk.{layer}.ffn_down.weight", INNER, HIDDEN, 14 if layer else 12)
    return image


_BLOCKS = {2: (32, 18, (0,)), 3: (32, 20, (0, 2)), 6: (32, 22, (0,)), 7: (32, 24, (0, 2)), 8: (32, 34, (0,)),
           12: (256, 144, (0, 2)), 14: (256, 210, (208,))}  # fmt: skip
"""By type: numbers and bytes of a block, and where its half-precision scales are."""


def _add_matrix(
    image: GGUFImage, random: np.random.Generator, name: str, columns: int, rows: int, type_id: int
) -> None:
    """A matrix of random codes with small scales."""
    size, num_bytes, scales = _BLOCKS[type_id]
    blocks = random.integers(0, 256, (rows * columns // size, num_bytes), dtype=np.uint8)
    for place in scales:
        small = random.uniform(0.001, 0.004, len(blocks)).astype("<f2")
        blocks[:, place : place + 2] = small.view(np.uint8).reshape(-1, 2)
    image.add_tensor(name, [columns, rows], type_id, blocks.tobytes())


def _byte_level_tokens() -> tuple[list[str], list[str]]:
    """GPT-2's alphabet, a few merges, one added token and two control tokens."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merged = ["he", "ll", "hell", "hello", "Ġw", "or", "ld"]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "l d"]
    return [*alphabet, *merged, "<added>", "<|im_start|>", "<|im_end|>"], merges


def write_folders(root: Path) -> dict[str, Path]:
    """Folders by name: plain ones with a rope of each kind, one of GPTQ weights, one with a SentencePiece tokenizer."""
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "num_attention_heads": 2,
                             "num_key_value_heads": 1, "vocab_size": 266}  # fmt: skip
    folders = {
        "plain": write_tiny_model(root / "plain", **sizes, rope_scaling=_ROPE),
        "gptq": write_tiny_model(root / "gptq", **sizes, rope_scaling=_YARN),
        "mistral": write_tiny_model(root / "mistral", **sizes, model_type="mistral", sliding_window=8),
        "pieces": write_tiny_model(root / "pieces", **{**sizes, "vocab_size": 300}),
    }
    quantise_folder(folders["gptq"], *FORMATS["gptq"])
    for name in ("plain", "gptq", "mistral"):
        _write_tokenizer(folders[name])
    _write_pieces(folders["pieces"])
    return folders


def _write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer with a regular expression of its own, merges, and added tokens of both kinds."""
    tokens, merges = _byte_level_tokens()
    vocabulary = {token: index for index, token in enumerate(tokens[:-3])}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs))
    words = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\p{N}{1,3}| ?\p{L}+|\s+|."), "isolated")
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([words, byte_level])
    backend.normalizer = tokenizers.normalizers.NFC()
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_tokens([tokenizers.AddedToken("<added>", normalized=False)])
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    _save(backend, folder)


def _write_pieces(folder: Path) -> None:
    """A SentencePiece tokenizer as converters write it: bytes, pieces with spaces, a template that adds bos."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "e", "l", "o", "he", "▁he"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("h", "e"), ("▁", "he")]
    model = tokenizers.models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    normalizers, decoders = tokenizers.normalizers, tokenizers.decoders
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 1)])
    backend.enable_truncation(512)
    backend.enable_padding(pad_id=0, pad_token="<unk>")
    _save(backend, folder)


def _save(backend: tokenizers.Tokenizer, folder: Path) -> None:
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": {"content": "<|im_end|>", "lstrip": False},
        "add_bos_token": False,
        "chat_template": _CHATML,
        "added_tokens_decoder": {"264": {"content": "<|im_start|>", "special": True}},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [257, 2], "do_sample": True, "top_p": 0.9})
    )
