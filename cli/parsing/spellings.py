"""Options of vLLM and SGLang: their counterparts in bough, and advice on those without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...runtime.protocol.config import VALUES, our_value
from .settings import SettingError


class Spelling(NamedTuple):
    """An option of another engine.

    names     as it is written there
    ours      our option of the same meaning, which takes its value
    switch    our option that it turns on or off; neither takes a value
    only      the one value that asks for nothing; any other is refused
    advice    what to do instead where it is refused
    bare      it takes no value there
    """

    names: tuple[str, ...]
    ours: str = ""
    switch: str = ""
    only: str = ""
    advice: str = ""
    bare: bool = False


_ONE_DEVICE = "one device holds the whole model: start a server for each device, or make it smaller with --quantization"
_NO_ADAPTERS = "adapters are not loaded: merge them into the weights, and serve the folder that you get"
_NO_DRAFT_MODEL = "there is no draft model: leave it out; --speculation auto drafts from the text where that saves time"
_LOG = "set BOUGH_LOG to debug, info, warning or error in the environment"

SPELLINGS: tuple[Spelling, ...] = (
    Spelling(("--model-path",), ours="--model"),
    Spelling(("--gpu-memory-utilization", "--mem-fraction-static"), ours="--memory-fraction"),
    Spelling(("--block-size",), ours="--page-size"),
    Spelling(("--num-gpu-blocks-override",), ours="--num-pages"),
    Spelling(("--context-length",), ours="--max-model-len"),
    Spelling(("--max-running-requests",), ours="--max-num-seqs"),
    Spelling(("--max-num-batched-tokens", "--chunked-prefill-size"), ours="--max-batch-tokens"),
    Spelling(("--max-queued-requests",), ours="--max-waiting"),
    Spelling(("--random-seed",), ours="--seed"),
    Spelling(("--kv-cache-memory-bytes",), ours="--kv-cache-memory"),
    Spelling(("--disable-radix-cache",), switch="--no-enable-prefix-caching"),
    Spelling(("--enforce-eager", "--disable-cuda-graph"), switch="--no-cuda-graphs"),
    Spelling(("--disable-overlap-schedule",), switch="--no-overlap"),
    Spelling(("--enable-deterministic-inference",), switch="--deterministic"),
    Spelling(("--enable-log-requests", "--log-requests"), switch="--request-log"),
    Spelling(("--disable-log-requests", "--no-enable-log-requests"), switch="--no-request-log"),
    Spelling(
        ("--tensor-parallel-size", "-tp", "--tp", "--tp-size", "--pipeline-parallel-size", "-pp", "--pp-size",
         "--data-parallel-size", "-dp", "--dp", "--dp-size", "--nnodes"),
        only="1", advice=_ONE_DEVICE,
    ),
    Spelling(("--max-total-tokens",), advice="write --num-pages: that many divided by --page-size, and one more"),
    Spelling(("--swap-space", "--cpu-offload-gb"), only="0", advice="nothing is swapped: leave it out, and lower "
             "--max-model-len or take --quantization int4 if memory is short"),
    Spelling(("--api-key",), advice="whoever lists processes would see it: set BOUGH_API_KEY, or write --api-key-file"),
    Spelling(("--trust-remote-code",), bare=True, advice="code from a model's files is never run: leave it out"),
    Spelling(("--revision",), advice="write it behind the name: --model organisation/name@revision"),
    Spelling(("--tokenizer", "--tokenizer-path"), advice="a model is read with its own tokenizer: leave it out"),
    Spelling(("--chat-template",), advice="the model's own template is used: change it in the model's folder"),
    Spelling(("--load-format",), only="auto", advice="safetensors and GGUF files are told apart by themselves: leave "
             "it out"),
    Spelling(("--tool-call-parser", "--reasoning-parser"), advice="the form is known from the model's template: leave "
             "it out"),
    Spelling(("--enable-auto-tool-choice",), bare=True, advice="requests choose by tool_choice: leave it out"),
    Spelling(("--speculative-algorithm", "--speculative-config", "--speculative-model"), advice=_NO_DRAFT_MODEL),
    Spelling(("--enable-lora",), bare=True, advice=_NO_ADAPTERS),
    Spelling(("--lora-modules", "--lora-paths"), advice=_NO_ADAPTERS),
    Spelling(("--download-dir",), advice="set BOUGH_CACHE to that folder in the environment"),
    Spelling(("--log-level", "--uvicorn-log-level"), advice=_LOG),
)  # fmt: skip

_RESPELT = frozenset(f"--{name.replace('_', '-')}" for name in VALUES)
_BY_NAME = {name: spelling for spelling in SPELLINGS for name in spelling.names}


def translate(words: list[str], options: frozenset[str]) -> list[str]:
    """Returns the words with the options of other engines replaced by ours. `options` are those that the command has.

    Raises:
        SettingError: an option is not supported; the message says what to do instead.
    """
    return list(_translated(iter(words), options))


def our_text(option: str, value: str) -> str:
    """Returns our spelling of the value of an option, `--name`."""
    return str(our_value(option.removeprefix("--").replace("-", "_"), value))


def advice_for(key: str) -> str:
    """Returns what to write instead of the key of a file that is another engine's; "" for other keys."""
    spelling = _BY_NAME.get(f"--{key}")
    if spelling is None:
        return ""
    if spelling.advice:
        return f": {spelling.advice}"
    ours = spelling.ours or spelling.switch
    return f": here it is {ours.removeprefix('--')}" if spelling.ours else f": here it is the command line's {ours}"


def _translated(words: Iterator[str], options: frozenset[str]) -> Iterator[str]:
    for word in words:
        if word == "--":
            yield from (word, *words)
            return
        name, sign, value = word.partition("=")
        spelling = None if name in options else _BY_NAME.get(name)
        if spelling is not None:
            yield from _replaced(name, spelling, value if sign else None, words, options)
        elif name in _RESPELT and name in options:
            if not sign:
                value = next(words, "")
                yield from (name, our_text(name, value)) if value else (name,)
            else:
                yield f"{name}={our_text(name, value)}"
        else:
            yield word


def _replaced(
    name: str, spelling: Spelling, value: str | None, words: Iterator[str], options: frozenset[str]
) -> Iterator[str]:
    """Yields our words for an option; takes its value from `words` if it stands there."""
    ours = spelling.ours or spelling.switch
    if ours and ours not in options:
        raise SettingError(f"{name} is {ours} of bough serve, which this command does not have: leave it out")
    if spelling.switch:
        yield spelling.switch if value is None else f"{spelling.switch}={value}"
    elif spelling.ours:
        yield spelling.ours if value is None else f"{spelling.ours}={value}"
    else:
        if value is None and not spelling.bare:
            value = next(words, "")
        if not spelling.only or value != spelling.only:
            raise SettingError(f"{name}{f' {value}' if spelling.only else ''} is not supported: {spelling.advice}")
