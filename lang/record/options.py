"""Sampling options as users give them, and how those of a `gen` go over those of the whole run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from ...constrain.spec import GrammarSpec
from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.sampling_params import SamplingParams
from ..diagnostics.check_options import checked_option, nearest

Word = TypeVar("Word", bound=Callable[..., Any])

_ANYHOW, _BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


class TokenOptions(TypedDict, total=False):
    """Options of choosing tokens, all but how many; what is left out or None is the run's default.

    `SamplingParams` says what each means. `return_logprob` asks for the log-probability of each token and
    `top_logprobs_num` for so many alternatives; `logprobs` is both in one. `return_text_in_logprobs` may be given, but
    the tokens' texts are always there. `logprob_start_len` may be -1: log-probabilities are those of generated tokens.
    """

    max_new_tokens: int | None
    min_tokens: int | None
    n: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    stop_regex: str | Sequence[str] | None
    include_stop: bool | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    token_healing: bool | None
    seed: int | None
    logprobs: int | None
    return_logprob: bool | None
    logprob_start_len: int | None
    top_logprobs_num: int | None
    return_text_in_logprobs: bool | None


class SamplingOptions(TokenOptions, total=False):
    """Options of sampling; `max_new_tokens` is another name of `max_tokens`."""

    max_tokens: int | None


class TypedOptions(SamplingOptions, total=False):
    """Options of a generation whose type is given."""

    regex: str | None
    timeout_s: float | None


class GenOptions(TokenOptions, total=False):
    """Options of `gen` by name: those of sampling, and what the text must conform to."""

    type: object
    dtype: object
    schema: object
    json_schema: object
    regex: str | None
    ebnf: str | None
    grammar: GrammarSpec | str | None
    choices: None
    choices_method: object
    timeout_s: float | None


class RunOptions(SamplingOptions, total=False):
    """Options of `run`. `use_thread` may be given for SGLang's sake: no state has a thread of its own."""

    use_thread: bool | None


SGLANG_ORDER = (
    "max_tokens", "min_tokens", "n", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p",
    "frequency_penalty", "presence_penalty", "ignore_eos", "return_logprob", "logprob_start_len", "top_logprobs_num",
    "return_text_in_logprobs", "dtype", "choices", "choices_method", "regex", "json_schema",
)  # fmt: skip
"""Places of SGLang's `gen`, after the name."""

OPTION_NAMES = frozenset(RunOptions.__optional_keys__)
DEFAULTS: Mapping[str, Any] = {"max_tokens": 128}


def in_places(order: Sequence[str], options: Any) -> Callable[[Word], Word]:
    """Gives a word that takes options by place the signature that shows them; `options` are all that it takes."""

    def shown(word: Word) -> Word:
        places = [inspect.Parameter(name, _ANYHOW, default=None) for name in ("name", *order)]
        rest = [
            inspect.Parameter(name, _BY_NAME, default=None) for name in options.__annotations__ if name not in order
        ]
        vars(word)["__signature__"] = inspect.Signature([*places, *rest])
        return word

    return shown


def by_name(word: str, order: Sequence[str], placed: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were given by place, and those given by name.

    Raises:
        TypeError: there are more than places, or one is given twice.
    """
    if len(placed) > len(order):
        raise TypeError(f"{word}() takes no more than {len(order)} options by place, got {len(placed)}")
    options = dict(zip(order, placed, strict=False))
    if twice := options.keys() & named.keys():
        raise TypeError(f"{word}() got multiple values for argument {min(twice)!r}")
    return {**options, **named}


def clean_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of SamplingParams, with what is None left out.

    Raises:
        RequestError: a value is of the wrong type or out of range, or an option is given twice.
        TypeError: there is no such option.
    """
    for name in options:
        if name not in OPTION_NAMES:
            meant = nearest(name, OPTION_NAMES)
            raise TypeError(f"there is no option {name!r}{meant}; there are {', '.join(sorted(OPTION_NAMES))}")
    fields = {name: checked_option(name, value) for name, value in options.items() if value is not None}
    if "max_new_tokens" in fields:
        if "max_tokens" in fields:
            raise RequestError("max_tokens and max_new_tokens are the same option; give one", param="max_new_tokens")
        fields["max_tokens"] = fields.pop("max_new_tokens")
    if fields.get("max_tokens") == 0:
        raise RequestError("max_tokens must be at least 1, got 0", param="max_tokens")
    _take_logprobs(fields)
    fields.pop("use_thread", None)
    if "stop_regex" in fields and not isinstance(fields["stop_regex"], str):
        patterns = fields.pop("stop_regex")
        if patterns:
            fields["stop_regex"] = "|".join(f"(?:{pattern})" for pattern in patterns)
    SamplingParams(**fields)  # raises here, where the user can see which line it was
    return fields


def _take_logprobs(fields: dict[str, Any]) -> None:
    """SGLang's four options as our one."""
    return_logprob, top_logprobs_num = fields.pop("return_logprob", False), fields.pop("top_logprobs_num", 0)
    fields.pop("return_text_in_logprobs", None)
    start = fields.pop("logprob_start_len", -1)
    if start != -1:
        raise RequestError(
            f"logprob_start_len={start} asks for log-probabilities of the prompt, which programs do not get; "
            "leave it out, or ask for them with `echo` and `logprobs` at /v1/completions",
            code="unsupported_value",
            param="logprob_start_len",
        )
    if return_logprob or top_logprobs_num:
        fields.setdefault("logprobs", top_logprobs_num)


def merge_options(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters of one generation; both are what `clean_options` gave."""
    return SamplingParams(**{**DEFAULTS, **defaults, **options})
