"""What quantisation costs: perplexity of a fixed text, and how often the most likely token is still the same.

    python -m bough.benchmarks.perplexity smollm2-135m --kinds fp8 int8 int4

Weights of a GGUF file that were quantised already lose less when they are rounded again on a like grid: compare kinds
on a model whose files hold bfloat16.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from ..kernels.attention import AttentionBatch, KVShape
from ..kernels.select import select_attention
from ..runtime.models.decoder import Decoder, Linear
from ..runtime.models.load import LoadedModel, load_model
from ..runtime.models.quantised import KINDS, QuantisedLinear, StackedLinear, quantise_decoder
from ..runtime.tokenizer import load_tokenizer
from .passage import PASSAGE

_CHUNK = 256  # tokens of one forward pass
_PAGE_SIZE = 16


@dataclass(frozen=True)
class Quality:
    """One kind of weights against the reference of the same model.

    perplexity        exp of the mean negative log-likelihood of the text's tokens but the first
    ratio             of it to the reference's
    agreement         share of positions at which the most likely token is the reference's
    divergence        mean Kullback-Leibler divergence of its next-token distributions from the reference's, in nats
    bits              of a weight of the projections on average, scales included
    """

    kind: str
    perplexity: float
    ratio: float
    agreement: float
    divergence: float
    bits: float
    num_tokens: int
    seconds: float


def log_probabilities(loaded: LoadedModel, tokens: Sequence[int], *, chunk: int = _CHUNK) -> torch.Tensor:
    """float32 [tokens, vocabulary] on the CPU: the distribution of the token after each, in one sequence."""
    model, count = loaded.model, len(tokens)
    num_pages = -(-count // _PAGE_SIZE) + 1
    shape = KVShape(model.num_layers, num_pages, _PAGE_SIZE, model.num_kv_heads, model.head_dim, loaded.dtype)
    attention = select_attention(shape, str(loaded.device))
    pages = np.arange(1, num_pages, dtype=np.int32)[None]  # page 0 is nobody's
    found = []
    for start in range(0, count, chunk):
        positions = np.arange(start, min(start + chunk, count), dtype=np.int64)
        attention.plan(
            AttentionBatch(
                query_start=np.array([0, len(positions)], np.int32),
                context_len=np.array([positions[-1] + 1], np.int32),
                page_table=pages,
                write_slot=positions + _PAGE_SIZE,
            )
        )
        with torch.inference_mode():
            here = torch.tensor(tokens[start : start + len(positions)], device=loaded.device)
            hidden = model.forward(here, torch.from_numpy(positions).to(loaded.device), attention)
            found.append(model.logits(hidden).log_softmax(-1).float().cpu())
    return torch.cat(found)


def compare(
    model: str, kinds: Sequence[str], *, device: str = "cpu", dtype: str = "auto", num_tokens: int | None = None
) -> list[Quality]:
    """The model's own weights, called "none", and then each of `kinds`; "stored" keeps those that files have quantised.

    Raises:
        ModelError: the model cannot be loaded, or has no native decoder.
    """
    reference: torch.Tensor | None = None
    results = []
    for kind in ("none", *kinds):
        loaded = load_model(model, dtype=dtype, device=device, keep_quantised=kind == "stored")
        tokens = load_tokenizer(loaded.path).encode_prompt(PASSAGE)[:num_tokens]
        decoder = loaded.model
        if not isinstance(decoder, Decoder):
            raise SystemExit(f"{loaded.name} has no native decoder, whose weights could be quantised")
        if kind not in ("none", "stored"):
            quantise_decoder(decoder, kind)
        began = time.perf_counter()
        scores = log_probabilities(loaded, tokens)
        seconds = time.perf_counter() - began
        reference = scores if reference is None else reference
        results.append(_judge(kind, scores, reference, tokens, _mean_bits(decoder, loaded.dtype), seconds))
    first = results[0].perplexity
    return [Quality(**(asdict(result) | {"ratio": result.perplexity / first})) for result in results]


def _judge(
    kind: str, scores: torch.Tensor, reference: torch.Tensor, tokens: Sequence[int], bits: float, seconds: float
) -> Quality:
    following = torch.tensor(tokens[1:])[:, None]
    likelihood = scores[:-1].gather(1, following).double().mean()
    divergence = 0.0
    for start in range(0, len(tokens), _CHUNK):  # in pieces: a vocabulary is wide
        theirs, ours = reference[start : start + _CHUNK], scores[start : start + _CHUNK]
        divergence += float((theirs.exp() * (theirs - ours)).sum(dtype=torch.float64))
    same = (scores.argmax(-1) == reference.argmax(-1)).double().mean()
    return Quality(kind, math.exp(-likelihood), 1.0, float(same), divergence / len(tokens), bits, len(tokens), seconds)


def _mean_bits(decoder: Decoder, dtype: torch.dtype) -> float:
    """Bits of a projection's weight on average."""
    num_bits = num_weights = 0
    for layer in decoder.layers:
        for projection in (layer.qkv, layer.out, layer.gate_up, layer.down):
            parts = projection.parts if isinstance(projection, StackedLinear) else (projection,)
            for part in parts:
                if isinstance(part, QuantisedLinear):
                    num_bits += 8 * part.weight.num_bytes
                    num_weights += part.weight.shape[0] * part.weight.shape[1]
                else:
                    assert isinstance(part, Linear)
                    count = part.weight.numel()
                    num_bits += 8 * dtype.itemsize * count
                    num_weights += count
    return num_bits / num_weights


def table(results: Sequence[Quality]) -> str:
    """One line a kind."""
    names = ("weights", "bits", "perplexity", "ratio", "same token", "KL, nats", "seconds")
    lines = ["{:10} {:>6} {:>11} {:>7} {:>11} {:>9} {:>8}".format(*names)]
    for result in results:
        lines.append(
            f"{result.kind:10} {result.bits:6.2f} {result.perplexity:11.3f} {result.ratio:7.4f} "
            f"{result.agreement:11.1%} {result.divergence:9.4f} {result.seconds:8.1f}"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table, then one JSON line."""
    options = _parser().parse_args(argv)
    results = compare(
        options.model, options.kinds, device=options.device, dtype=options.dtype, num_tokens=options.num_tokens
    )
    print(table(results))
    facts = {"model": options.model, "device": options.device, "torch": torch.__version__}
    print(json.dumps(facts | {"results": [asdict(result) for result in results]}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bough bench perplexity", description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=[*KINDS, "stored"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--num-tokens", type=int, help="of the text; default: all")
    return parser


if __name__ == "__main__":
    sys.exit(main())
