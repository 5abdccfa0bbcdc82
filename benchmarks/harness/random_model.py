"""Models of well-known shapes with random weights, made on the device: speed without a checkpoint.

Nothing of a benchmark's time depends on what the weights say, as long as they are not zeros.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

import tokenizers
import torch

from ...kernels.decoder.select import select_ops
from ...runtime.checkpoints.config import ModelConfig
from ...runtime.checkpoints.weights import list_parameters
from ...runtime.engine.engine import Engine
from ...runtime.load.load_torch import make_engine
from ...runtime.models.decoder import Decoder
from ...runtime.models.load import LoadedModel, resolve_dtype
from ...runtime.protocol.config import EngineConfig
from ...runtime.tokenizer.chat_template import ControlTokens
from ...runtime.tokenizer.tokenizer import TextPipeline, Tokenizer, TokenizerParts
from .shapes import shape

END = "<|im_end|>"


def random_model(name: str, *, device: str, dtype: str = "auto", seed: int = 0) -> LoadedModel:
    """A decoder of the shape `name` whose activations keep about the size that trained ones have."""
    config, resolved = shape(name), resolve_dtype(dtype, device)
    generator = torch.Generator(device).manual_seed(seed)
    parameters = {}
    for parameter in list_parameters(config):
        tensor = torch.empty(parameter.shape, dtype=resolved, device=device)
        if tensor.dim() == 1:  # a norm's weight; these shapes have no biases
            tensor.uniform_(0.9, 1.1, generator=generator)
        else:
            tensor.normal_(0.0, _deviation(parameter.name, config), generator=generator)
        parameters[parameter.name] = tensor
    return LoadedModel(
        model=Decoder(config, parameters, select_ops(device)),
        config=config,
        name=name,
        path=Path(name),
        num_parameters=sum(tensor.numel() for tensor in parameters.values()),
        dtype=resolved,
        device=torch.device(device),
        eos_ids=(config.vocab_size - 1,),
    )


def _deviation(name: str, config: ModelConfig) -> float:
    """Of a matrix's entries: outputs as large as inputs, but smaller where they are added to the residual."""
    kind = name.rpartition(".")[2]
    num_inputs = {"out": config.num_heads * config.head_dim, "down": config.intermediate_size}
    deviation = 1.0 / math.sqrt(num_inputs.get(kind, config.hidden_size))
    return deviation / math.sqrt(2 * config.num_layers) if kind in num_inputs else deviation


def random_engine(config: EngineConfig, *, loaded: LoadedModel | None = None) -> Engine:
    """An engine whose model is `config.model`, one of SHAPES, with random weights; or `loaded`, made before."""
    device = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
    if loaded is None:
        loaded = random_model(config.model, device=device, dtype=config.dtype, seed=config.seed)
    return make_engine(config, loaded, covering_tokenizer(loaded.config.vocab_size))


# -- A tokenizer -------------------------------------------------------------------------------------------------------


def covering_tokenizer(vocab_size: int) -> Tokenizer:
    """A byte-level tokenizer in which every id below `vocab_size` means something; the last one ends a turn.

    Ids are the 256 bytes, pieces of JSON, and words of growing length, each its longest beginning and one more letter,
    so that a grammar's masks are about as large as with a trained vocabulary.
    """
    if vocab_size < 512:
        raise ValueError(f"vocab_size must be at least 512, got {vocab_size}")
    bytes_ = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    spellings = [*bytes_, *islice(_pieces(), vocab_size - 1 - len(bytes_)), END]
    ids = {spelling: token for token, spelling in enumerate(spellings)}
    merges = [(spelling[:-1], spelling[-1]) for spelling in spellings[len(bytes_) : -1]]
    if len(ids) != vocab_size:
        raise ValueError(f"vocab_size must be at most {len(ids)}, got {vocab_size}")
    model = tokenizers.models.BPE(vocab={text: token for text, token in ids.items() if text != END}, merges=merges)
    parts = TokenizerParts(
        pipeline=TextPipeline(
            model,
            normalizer=None,
            pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ),
        spellings=tuple(spellings),
        literal=frozenset(),
        byte_level=True,
        control=ControlTokens({END: vocab_size - 1}),
        bos_id=None,
        adds_bos=False,
        eos_ids=(vocab_size - 1,),
    )
    return Tokenizer(parts)


def _pieces() -> Iterator[str]:
    """Spellings of tokens after the single bytes ("Ġ" is a space), each one's beginning before it."""
    yield from ('{"', '":', '",', '"}', "},", "],", "[{", ',"', ':"', "}]", '":"', '","', '"},', '":{', '":[', "Ġ{")
    letters = string.ascii_lowercase
    yield from ("Ġ" + letter for letter in letters)
    for length in range(2, 5):
        words = ("".join(word) for word in product(letters, repeat=length))
        for word in words:
            yield word
            if length < 4:
                yield "Ġ" + word
