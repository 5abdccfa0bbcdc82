"""Perplexity: what is measured is what it says, whatever the chunks, and worse weights measure worse."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from bough.benchmarks import perplexity
from bough.benchmarks.peers.process import PeerError
from bough.benchmarks.perplexity import log_probabilities, run
from bough.benchmarks.workloads.prose import PASSAGE, TEXTS
from bough.cli import bench
from bough.runtime.models.load import load_model
from bough.runtime.tokenizer.load import load_tokenizer

from ..support.tiny_model import write_tiny_model


def compare(*arguments: Any, **settings: Any) -> list[Any]:
    """Some of what is compared has no divergence, which types would have each test look at."""
    return perplexity.compare(*arguments, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny")


def test_the_text_is_long_enough() -> None:
    assert len(PASSAGE.split()) > 1700 and PASSAGE.isascii()


def test_chunks_do_not_matter(folder: Path) -> None:
    loaded = load_model(folder, dtype="float32")
    tokens = load_tokenizer(folder).encode_prompt(PASSAGE)[:60]
    whole = log_probabilities(loaded, tokens, chunk=60)
    torch.testing.assert_close(log_probabilities(loaded, tokens, chunk=7), whole, rtol=0, atol=1e-4)
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(60))


def test_worse_weights_measure_worse(folder: Path) -> None:
    none, int8, int4 = compare(str(folder), ["int8", "int4"], dtype="float32", num_tokens=120)
    assert (none.ratio, none.agreement, none.divergence, none.bits) == (1.0, 1.0, 0.0, 32.0)
    assert 0 < int8.divergence < int4.divergence and int4.agreement < int8.agreement <= 1.0
    assert abs(math.log(int8.ratio)) < abs(math.log(int4.ratio))
    assert int4.bits < int8.bits < 32
    loaded = load_model(folder, dtype="float32")
    tokens = load_tokenizer(folder).encode_prompt(PASSAGE)[:120]
    scores = log_probabilities(loaded, tokens)
    by_hand = math.exp(-sum(float(scores[i, tokens[i + 1]]) for i in range(119)) / 119)
    assert none.perplexity == pytest.approx(by_hand, rel=1e-4) and none.num_tokens == 120


def test_the_last_line_is_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(folder), "--kinds", "w8a8", "--device", "cpu", "--dtype", "float32", "--num-tokens", "30"]
    assert run(bench.read("perplexity", words)[1]) == 0
    lines = capsys.readouterr().out.splitlines()
    results = json.loads(lines[-1])["results"]
    assert [result["kind"] for result in results] == ["none", "w8a8"] and len(lines) == 5
    assert lines[0] == "prose, 30 tokens"


def test_distances_are_of_the_texts_tokens(folder: Path) -> None:
    none, bfloat16 = compare(str(folder), ["bfloat16"], dtype="float32", num_tokens=50, text=TEXTS["code"])
    assert none.mean == none.p99 == none.most == 0.0 and 2**none.bits_per_token == pytest.approx(none.perplexity)
    tokens = load_tokenizer(folder).encode_prompt(TEXTS["code"])[:50]
    reference, other = (log_probabilities(load_model(folder, dtype=name), tokens) for name in ("float32", "bfloat16"))
    distances = [abs(float(reference[i, tokens[i + 1]] - other[i, tokens[i + 1]])) for i in range(49)]
    assert bfloat16.mean == pytest.approx(sum(distances) / 49) and bfloat16.most == pytest.approx(max(distances))
    assert bfloat16.mean < bfloat16.p99 <= bfloat16.most


@pytest.mark.usefixtures("native_library")
def test_the_library_in_c_loses_what_rounding_loses(tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "num_attention_heads": 2}
    wide = str(write_tiny_model(tmp_path / "wide", **shape))
    none, int8, int4 = compare(wide, ["native-int8", "native-int4"], dtype="float32", num_tokens=200)
    assert (int8.bits, int4.bits) == (8.5, 5.0)
    assert 0 < int8.divergence < int4.divergence < 0.5 and none.divergence == 0.0
    assert abs(int8.ratio - 1) < 0.01 and int8.agreement > 0.9
    assert all(len(text.split()) > 400 and text.isascii() for text in TEXTS.values())
    with pytest.raises(SystemExit, match="try native-int8"):
        compare(wide, ["native"], num_tokens=20)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("native_library")
def test_four_bits_are_what_a_file_of_four_bits_has(default_model: Path) -> None:
    _, stored, rounded = compare(str(default_model), ["native", "native-int4"], dtype="float32", num_tokens=150)
    assert (rounded.perplexity, rounded.divergence, rounded.bits) == (stored.perplexity, stored.divergence, stored.bits)
    assert abs(stored.ratio - 1) < 0.03 and stored.divergence < 0.01


class Reader:
    """A peer that computes the model as it is."""

    def __init__(self, folder: Path, *, tells: bool = True) -> None:
        self.loaded, self.tells = load_model(folder, dtype="float32"), tells

    def ask(self, job: str, limit_s: float, tokens: list[int]) -> dict[str, Any]:
        assert job == "score" and limit_s > 0
        scores = log_probabilities(self.loaded, tokens)
        logprobs = [float(scores[at, token]) for at, token in enumerate(tokens[1:])]
        return {"logprobs": logprobs if self.tells else None, "likeliest": scores[:-1].argmax(-1).tolist()}


def test_a_peer_reads_the_same_tokens(folder: Path) -> None:
    none, peer = compare(str(folder), [], dtype="float32", num_tokens=40, peers={"one": cast(Any, Reader(folder))})
    assert (peer.kind, peer.agreement, peer.num_tokens) == ("one", 1.0, 40)
    assert peer.ratio == pytest.approx(1.0) and peer.most == pytest.approx(0.0, abs=1e-6)
    assert (peer.divergence, peer.bits, peer.told_divergence, peer.told_bits) == (None, None, "", "")
    assert none.told_bits == "32.00"
    silent = cast(Any, Reader(folder, tells=False))
    with pytest.raises(PeerError, match="silent tells no log-probabilities"):
        compare(str(folder), [], dtype="float32", num_tokens=40, peers={"silent": silent})
