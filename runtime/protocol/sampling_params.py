"""Rules for choosing the tokens of a generation, and for ending it; seeds derived from that of a request."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from .errors import RequestError

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
MAX_STOP_LENGTH = 1024


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rules for choosing tokens; validated on creation.

    max_tokens          maximum number of generated tokens; None: as many as the context holds
    min_tokens          the end of sequence and stops are ignored until this many tokens
    temperature         0 is greedy
    top_k               keep the k most likely; None (or 0, -1): all
    top_p               keep the most likely tokens whose probabilities sum to p
    min_p               keep tokens at least p times as likely as the most likely
    frequency_penalty, presence_penalty   OpenAI's, over generated tokens
    repetition_penalty  CTRL's (arXiv 1909.05858), over prompt and generated tokens; 1 is none
    logit_bias          maps a token id to a number added to its logit, -100 .. 100
    stop                strings that end the generation; not part of the output
    stop_regex          a pattern whose first match ends the generation; not part of the output
    stop_token_ids      token ids that end it
    include_stop        the stop string stays in the output
    ignore_eos          the end-of-sequence token does not end it
    seed                makes sampling reproducible: draws depend only on (seed, position). None: chosen per request
    logprobs            number of top alternatives per token, 0 .. 20; None: no logprobs at all
    skip_special_tokens  control tokens are left out of the text
    token_healing       the prompt's last tokens may be re-chosen together with what follows: for prompts that end
                        within a token of the model
    n                   independent completions of one prompt

    Raises:
        RequestError: a value is out of range; `param` names the field.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    stop: str | tuple[str, ...] = ()
    stop_regex: str | None = None
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    skip_special_tokens: bool = True
    token_healing: bool = False
    n: int = 1

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _in_range("max_tokens", self.max_tokens, 0, 2**31 - 1)
        _in_range("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}", param="min_tokens"
            )
        _in_range("temperature", self.temperature, 0.0, 100.0)
        if self.top_k is not None:
            _in_range("top_k", self.top_k, -1, 2**31 - 1)
        _in_range("top_p", self.top_p, 0.0, 1.0)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.01, 10.0)
        if self.logprobs is not None:
            _in_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.seed is not None:
            _in_range("seed", self.seed, -(2**63), 2**64 - 1)
        _in_range("n", self.n, 1, 128)
        _at_most("stop", self.stop_strings, MAX_STOP_STRINGS)
        for text in self.stop_strings:
            if not 1 <= len(text) <= MAX_STOP_LENGTH:
                raise RequestError(f"each stop string must have 1 to {MAX_STOP_LENGTH} characters", param="stop")
        _at_most("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS)
        for token in self.stop_token_ids:
            _in_range("stop_token_ids", token, -(2**31), 2**31 - 1)
        if self.logit_bias is not None:
            _at_most("logit_bias", self.logit_bias, MAX_LOGIT_BIAS)
            for token, bias in self.logit_bias.items():
                _in_range("logit_bias", token, -(2**31), 2**31 - 1)
                _in_range("logit_bias", bias, -100.0, 100.0)
        if self.stop_regex is not None and len(self.stop_regex) > MAX_STOP_LENGTH:
            raise RequestError(f"stop_regex must have at most {MAX_STOP_LENGTH} characters", param="stop_regex")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def cuts(self) -> bool:
        """True if top-k, top-p or min-p may leave tokens out of the draw."""
        return not self.greedy and ((self.top_k or 0) > 0 or self.top_p < 1.0 or self.min_p > 0.0)

    @property
    def penalised(self) -> bool:
        """True if logits depend on the tokens before, by penalties."""
        return bool(self.frequency_penalty or self.presence_penalty) or self.repetition_penalty != 1.0


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError(f"{name} must be a finite number, got {value}", param=name)
    if value < low:
        raise RequestError(f"{name} must be at least {low:g}, got {_shown(value)}", param=name)
    if value > high:
        raise RequestError(f"{name} must be at most {high:g}, got {_shown(value)}", param=name)


def _shown(value: float) -> str:
    """Returns the number as text; for an integer too large for a float, its size."""
    try:
        return f"{value:g}"
    except OverflowError:
        return f"a number of {int(value).bit_length()} bits"


def _at_most(name: str, values: object, limit: int) -> None:
    if len(values) > limit:  # type: ignore[arg-type]
        raise RequestError(f"{name} must have at most {limit} entries", param=name)


# Seeds

_WORD = (1 << 64) - 1


def derive(seed: int, index: int) -> int:
    """Derives the seed of the `index`-th sample of a request (n > 1), or of a request without a seed."""
    return seed & _WORD if index == 0 else _mix((seed & _WORD) + index * 0xD1B54A32D192ED03)


def derive_again(seed: int, attempts: Sequence[int], turn: int) -> int:
    """Derives the seed of a repeated generation, which should not produce the same text again.

    `attempts` are the numbers of restarts of its branch and of the ancestors; `turn` is the number of times that a loop
    has made it before. The first time, the result is `seed` itself.
    """
    seed = derive(seed, turn << 16)
    for depth, attempt in enumerate(attempts):
        if attempt:
            seed = derive(seed, (attempt << 32) + (depth << 40))
    return seed


def _mix(x: int) -> int:
    """SplitMix64, which also gives samplers random numbers by (seed, position): see kernels/sampling/reference.py."""
    x = (x + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)
