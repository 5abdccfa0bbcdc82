"""Costs of quantisation: perplexity of a fixed text, and how often the most likely token is still the same.

    bough bench perplexity smollm2-135m --dtype float32 --kinds native fp8 int8 int4
    bough bench perplexity --dtype float32 --kinds native bfloat16 --peers llama.cpp openvino --texts prose code chats

`native` is what the CPU computes unless a dtype is asked for: the file's quantised weights by the library in C, with
activations of 8 bits, or 16 where they are far above the others; `native-a8` is the same with activations="int8", and
`bfloat16` the model in that dtype by torch; `native-int8`, `native-w8a8` and `native-int4` are weights that are rounded
for it; with `-kv8` at the end, keys and values have 8 bits, too. Weights of a GGUF file that were quantised already
lose less when they are rounded again on a like grid: compare kinds on a model whose files hold bfloat16. `--peers` adds
engines of `bough bench peers` that read the same tokens: llama.cpp the file itself, the others what is made of it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ..kernels.attention.interface import AttentionBatch, KVShape
from ..kernels.attention.select import select_attention
from ..kernels.native.library import load_library
from ..kernels.native.threads import Threads
from ..runtime.models.decoder import Decoder, Linear
from ..runtime.models.load import LoadedModel, load_model, locate
from ..runtime.models.native import NATIVE_KINDS, NativeDecoder, NativeTarget
from ..runtime.models.quantised_linear import TORCH_KINDS, QuantisedLinear, StackedLinear, quantise_decoder
from ..runtime.runner.host import num_threads
from ..runtime.runner.native_runner import NativeRunner
from ..runtime.runner.runner import Batch, LogitsRunner
from ..runtime.runner.torch_runner import ModelRunner
from ..runtime.tokenizer.load import load_tokenizer
from .harness.report import figures_table, number, say
from .peers.contest import judge, start_peer
from .peers.environments import KINDS, make_environment, make_model, peers_folder
from .peers.process import PeerError, Side
from .workloads.prose import PASSAGE, TEXTS

_CHUNK = 256  # tokens of one forward pass
_PAGE_SIZE = 16
_NONE, _STORED, _NATIVE, _A8, _BFLOAT16, _KV8 = "none", "stored", "native", "a8", "bfloat16", "-kv8"
_PEER_S = 900.0  # for one text, or until a peer is ready
_PEER_TOKENS = 8192  # of the longest text that peers read
_NATIVES = tuple(
    f"{_NATIVE}{kind}{kv}" for kind in ("", *(f"-{kind}" for kind in (_A8, *NATIVE_KINDS))) for kv in ("", _KV8)
)


@dataclass(frozen=True)
class WeightQuality:
    """One kind of weights against the reference of the same model.

    bits_per_token    the text's mean negative log-likelihood in bits
    """

    kind: str
    perplexity: float  # exp of the mean negative log-likelihood of the text's tokens but the first
    ratio: float  # of it to the reference's
    agreement: float  # share of positions at which the most likely token is the reference's
    # mean Kullback-Leibler divergence of its next-token distributions from the reference's, in nats; None: it tells of
    # none
    divergence: float | None
    bits: float | None  # of a weight of the projections on average, scales included; None: not known
    num_tokens: int
    seconds: float
    # mean, p99, most: distance of the log-probabilities of the text's tokens from the reference's: on average, in all
    # but a hundredth of the tokens, and at most
    mean: float
    p99: float
    most: float

    @property
    def bits_per_token(self) -> float:
        return math.log2(self.perplexity)

    @property
    def told_divergence(self) -> str:
        return number(self.divergence, ".5f")

    @property
    def told_bits(self) -> str:
        return number(self.bits, ".2f")


_COLUMNS = {
    "weights": "{0.kind}",
    "bits": "{0.told_bits}",
    "perplexity": "{0.perplexity:.3f}",
    "ratio": "{0.ratio:.4f}",
    "bits/token": "{0.bits_per_token:.3f}",
    "same token": "{0.agreement:.1%}",
    "KL, nats": "{0.told_divergence}",
    "mean": "{0.mean:.4f}",
    "p99": "{0.p99:.3f}",
    "most": "{0.most:.3f}",
    "s": "{0.seconds:.1f}",
}


def log_probabilities(
    loaded: LoadedModel, tokens: Sequence[int], *, chunk: int = _CHUNK, kv_bits: int = 16
) -> torch.Tensor:
    """float32 [tokens, vocabulary] on the CPU: the distribution of the token after each, in one sequence.

    `kv_bits` is for the library in C.
    """
    count = len(tokens)
    num_pages = -(-count // _PAGE_SIZE) + 1
    model, device = loaded.model, str(loaded.device)
    if isinstance(model, NativeDecoder):
        runner: LogitsRunner = NativeRunner(model, num_pages, _PAGE_SIZE, kv_bits)
    else:
        shape = KVShape(model.num_layers, num_pages, _PAGE_SIZE, model.num_kv_heads, model.head_dim, loaded.dtype)
        runner = ModelRunner(model, select_attention(shape, device), device)
    pages = np.arange(1, num_pages, dtype=np.int32)[None]  # page 0 is nobody's
    nothing = np.empty(0, np.int64)
    found = []
    for start in range(0, count, chunk):
        positions = np.arange(start, min(start + chunk, count), dtype=np.int64)
        attention = AttentionBatch(
            query_start=np.array([0, len(positions)], np.int32),
            context_len=np.array([positions[-1] + 1], np.int32),
            page_table=pages,
            write_slot=positions + _PAGE_SIZE,
        )
        here = np.array(tokens[start : start + len(positions)], np.int64)
        logits = runner.run(Batch(here, positions, positions - start, nothing, nothing, attention))
        assert logits is not None
        found.append(torch.from_numpy(logits).log_softmax(-1))
    return torch.cat(found)


def compare(
    model: str,
    kinds: Sequence[str],
    *,
    device: str = "cpu",
    dtype: str = "auto",
    num_tokens: int | None = None,
    text: str = PASSAGE,
    peers: Mapping[str, Side] | None = None,
) -> list[WeightQuality]:
    """The model's own weights, undone, called "none", then each of `kinds`, and each of `peers`.

    kinds   of quantised_linear.TORCH_KINDS; "stored" keeps weights that files have quantised; for others see the module

    Raises:
        ModelError: the model cannot be loaded.
        PeerError: a peer failed.
        SystemExit: it cannot be computed as one of the kinds.
    """
    tokens = load_tokenizer(locate(model)).encode_prompt(text)[:num_tokens]
    reference: torch.Tensor | None = None
    results: list[WeightQuality] = []
    for kind in (_NONE, *kinds):
        loaded = _load(model, kind, device, dtype)
        began = time.perf_counter()
        scores = log_probabilities(loaded, tokens, kv_bits=8 if kind.endswith(_KV8) else 16)
        seconds = time.perf_counter() - began
        reference = scores if reference is None else reference
        results.append(_judge(kind, scores, reference, tokens, bits=_mean_bits(loaded), seconds=seconds))
    assert reference is not None
    return results + [_judge_peer(name, side, reference, tokens) for name, side in (peers or {}).items()]


def _load(model: str, kind: str, device: str, dtype: str) -> LoadedModel:
    if kind in _NATIVES:
        library = load_library()
        if library is None:
            raise SystemExit("the CPU library was not built, or this processor is x86 without AVX2")
        rounding = kind.removesuffix(_KV8).removeprefix(_NATIVE).removeprefix("-") or None
        threads = Threads(library, torch.get_num_threads())
        weights = None if rounding == _A8 else rounding
        target = NativeTarget(library, threads, weights, has_rests=rounding not in (_A8, "w8a8"))
        loaded = load_model(model, native=target)
        if not isinstance(loaded.model, NativeDecoder):
            raise SystemExit(f"the CPU library has no formats for {loaded.name}: try native-int8")
        return loaded
    wanted = _BFLOAT16 if kind == _BFLOAT16 else dtype
    loaded = load_model(model, dtype=wanted, device=device, keep_quantised=kind == _STORED)
    if not isinstance(loaded.model, Decoder):
        raise SystemExit(f"{loaded.name} has no native decoder, whose weights could be quantised")
    if kind not in (_NONE, _STORED, _BFLOAT16):
        quantise_decoder(loaded.model, kind)
    return loaded


def _judge(
    kind: str, scores: torch.Tensor, reference: torch.Tensor, tokens: Sequence[int], **facts: float
) -> WeightQuality:
    scores = scores.float()
    divergence = 0.0
    for theirs, ours in zip(torch.split(reference, _CHUNK), torch.split(scores, _CHUNK), strict=True):  # it is wide
        divergence += float((theirs.exp() * (theirs - ours)).sum(dtype=torch.float64))
    same = float((scores.argmax(-1) == reference.argmax(-1)).double().mean())
    found, wanted = _of_text(scores, tokens), _of_text(reference, tokens)
    return _quality(kind, found, wanted, agreement=same, divergence=divergence / len(tokens), **facts)


def _judge_peer(name: str, side: Side, reference: torch.Tensor, tokens: Sequence[int]) -> WeightQuality:
    began = time.perf_counter()
    told = judge(side, tokens, _PEER_S)
    seconds = time.perf_counter() - began
    if not told.logprobs:
        raise PeerError(f"{name} tells no log-probabilities of a text")
    same = sum(int(reference[at - 1].argmax()) == token for at, token in told.likeliest.items()) / len(told.likeliest)
    found, wanted = torch.tensor(told.logprobs, dtype=torch.float64), _of_text(reference, tokens)
    return _quality(name, found, wanted, agreement=same, divergence=None, bits=None, seconds=seconds)


def _of_text(scores: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    """Log-probabilities of the tokens after the first, float64."""
    return scores[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].double()


def _quality(kind: str, found: torch.Tensor, wanted: torch.Tensor, **facts: Any) -> WeightQuality:
    """The quality of log-probabilities of the text's tokens, `found`, beside the reference's; `facts` as they are."""
    distance = (found - wanted).abs()
    perplexity, least = math.exp(-found.mean()), math.exp(-wanted.mean())
    far = {"mean": float(distance.mean()), "p99": float(distance.quantile(0.99)), "most": float(distance.max())}
    return WeightQuality(kind, perplexity, perplexity / least, num_tokens=len(found) + 1, **far, **facts)


def _mean_bits(loaded: LoadedModel) -> float:
    """Bits of a projection's weight on average."""
    if isinstance(loaded.model, NativeDecoder):
        return loaded.model.layer_bits
    assert isinstance(loaded.model, Decoder)
    num_bytes = num_weights = 0
    for projection in (p for layer in loaded.model.layers for p in (layer.qkv, layer.out, layer.gate_up, layer.down)):
        for part in projection.parts if isinstance(projection, StackedLinear) else (projection,):
            assert isinstance(part, Linear | QuantisedLinear)
            count = math.prod(part.weight.shape)
            num_weights += count
            num_bytes += part.weight.num_bytes if isinstance(part, QuantisedLinear) else loaded.dtype.itemsize * count
    return 8 * num_bytes / num_weights


def run(options: argparse.Namespace) -> int:
    """Prints a table and a JSON line for each text. 1: a peer cannot be measured."""
    asked = {"device": options.device, "dtype": options.dtype, "num_tokens": options.num_tokens}
    try:
        with ExitStack() as stack:
            peers = {}
            for name in options.peers:
                interpreter, log = make_environment(name), peers_folder() / "perplexity.log"
                model_file = make_model(KINDS[name], options.model, interpreter)
                side = start_peer(name, interpreter, model_file, num_threads(), 1, _PEER_TOKENS, log)
                peers[name] = stack.enter_context(closing(side))
            for side in peers.values():
                side.wait_ready(_PEER_S)
            for name in options.texts:
                results = compare(options.model, options.kinds, text=TEXTS[name], peers=peers, **asked)
                table = figures_table(_COLUMNS, results, right=range(1, len(_COLUMNS)))
                print(f"{name}, {results[0].num_tokens:,} tokens\n{table}")
                facts = {"model": options.model, "device": options.device, "torch": torch.__version__, "text": name}
                print(json.dumps(facts | {"results": [asdict(result) for result in results]}), flush=True)
    except PeerError as error:
        say(str(error))
        return 1
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    kinds = [*TORCH_KINDS, _STORED, _BFLOAT16, *_NATIVES]
    parser.add_argument("--kinds", nargs="*", default=list(TORCH_KINDS), choices=kinds)
    parser.add_argument("--texts", nargs="+", default=["prose"], choices=TEXTS, help="default: prose")
    parser.add_argument("--peers", nargs="*", default=[], choices=KINDS, help="engines that read the same tokens")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--num-tokens", type=int, help="of the text; default: all")
