"""Options given by users: names, types, errors, and the precedence of those of a `gen` over those of the run."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from ...constrain.spec import GrammarSpec
from ...runtime.protocol.errors import RequestError, did_you_mean
from ...runtime.protocol.sampling_params import SamplingParams, derive

Word = TypeVar("Word", bound=Callable[..., Any])

_ANYHOW, _BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


class TokenOptions(TypedDict, total=False):
    """Sampling options other than the number of tokens; an option that is left out or None has the run's default.

    `SamplingParams` describes each. `return_logprob` requests the log-probability of each token, and
    `top_logprobs_num` that many alternatives; `logprobs` is both in one. `return_text_in_logprobs` is accepted, but the
    tokens' texts are always included. `logprob_start_len` may be -1: log-probabilities are those of generated tokens.
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
    logprobs: int | bool | None
    return_logprob: bool | None
    logprob_start_len: int | None
    top_logprobs_num: int | None
    return_text_in_logprobs: bool | None


class SamplingOptions(TokenOptions, total=False):
    """Sampling options; `max_new_tokens` is an alias of `max_tokens`."""

    max_tokens: int | None


class ToolOptions(TypedDict, total=False):
    """Options of a generation that may call tools."""

    tools: Sequence[object] | None
    tool_choice: object
    parallel_tool_calls: bool | None
    max_turns: int | None


class TypedOptions(SamplingOptions, ToolOptions, total=False):
    """Options of a generation with a given type."""

    retries: int | None
    check: Callable[[Any], object] | None
    regex: str | None
    timeout_s: float | None


class GenOptions(TokenOptions, ToolOptions, total=False):
    """Options of `gen` by name: sampling options and constraints."""

    type: object
    dtype: object
    schema: object
    json_schema: object
    regex: str | None
    ebnf: str | None
    grammar: GrammarSpec | str | None
    choices: None
    choices_method: object
    retries: int | None
    check: Callable[[Any], object] | None
    timeout_s: float | None


class RunOptions(SamplingOptions, total=False):
    """Options of `run`. `use_thread` is accepted for compatibility with SGLang: no state has its own thread."""

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
        raise TypeError(f"{word}() takes at most {len(order)} options by position, got {len(placed)}")
    options = dict(zip(order, placed, strict=False))
    if twice := options.keys() & named.keys():
        raise TypeError(f"{word}() got multiple values for argument {min(twice)!r}")
    return {**options, **named}


def clean_options(options: Mapping[str, Any], others: Iterable[str] = ()) -> dict[str, Any]:
    """Fields of SamplingParams, with what is None left out. `others` are options that the caller has taken itself.

    Raises:
        RequestError: a value is of the wrong type or out of range, or an option is given twice.
        TypeError: there is no such option.
    """
    for name in options:
        if name not in OPTION_NAMES:
            hint = nearest(name, {*OPTION_NAMES, *others}) or ": help(bough.gen) lists them"
            raise TypeError(f"there is no option {name!r}{hint}")
    checked = ((name, checked_option(name, value)) for name, value in options.items() if value is not None)
    fields = {name: value for name, value in checked if value is not None}
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


OF_BRANCHES, OF_ITEMS, OF_CALLS = 1 << 56, 1 << 57, 1 << 58
"""Parts that a run's seed is divided among, so that no two of them draw the same."""


def apart(defaults: Mapping[str, Any], among: int, number: int) -> Mapping[str, Any]:
    """The defaults of one of several parts that inherit them: a seed is mixed with the part's number, since parts that
    ask the same would otherwise get the same answer. Number 0 has the seed itself."""
    seed = defaults.get("seed")
    if seed is None or number == 0:
        return defaults
    return {**defaults, "seed": derive(derive(seed, among), number) >> 11}  # exact in every JSON


# The types of options


def checked_option(name: str, value: object) -> Any:
    """The value of a sampling option, as the runtime takes it.

    Raises:
        RequestError: it is of another type; the message names the option, and says what was given.
    """
    return _read(name, _KINDS[name], value)


def checked_timeout(value: object, name: str = "timeout_s") -> float | None:
    """A limit in seconds; None: there is none.

    Raises:
        RequestError: it is no number, or not more than 0.
    """
    if value is None:
        return None
    seconds: float = _read(name, ("a number of seconds", _number), value)
    if not seconds > 0:
        raise RequestError(f"{name} must be more than 0, got {seconds:g}", param=name)
    return seconds


MAX_RETRIES = 16


def checked_retries(value: object) -> int | None:
    """Returns how often a value may be asked for again; None: not at all.

    Raises:
        RequestError: it is no whole number, or out of range.
    """
    return None if value is None else checked_whole("retries", value, 0, MAX_RETRIES) or None


def checked_whole(name: str, value: object, least: int, most: int) -> int:
    """A whole number.

    Raises:
        RequestError: it is none, or out of range.
    """
    number: int = _read(name, _WHOLE, value)
    if not least <= number <= most:
        raise RequestError(f"{name} must be {least} to {most}, got {number}", param=name)
    return number


def checked_flag(name: str, value: object) -> bool:
    """A switch; None leaves it off.

    Raises:
        RequestError: it is neither True nor False.
    """
    return value is not None and bool(_read(name, _FLAG, value))


def _read(name: str, kind: _Kind, value: object) -> Any:
    what, read = kind
    refuse_unknown(name, value)
    try:
        return read(value)
    except TypeError:
        raise wrong_kind(name, what, value) from None


def refuse_unknown(name: str, value: object) -> None:
    """Raises what a placeholder of a program that is being compiled says: an option is not filled in later."""
    refuse = getattr(value, "refuse", None)
    if refuse is not None and isinstance(value, str):
        refuse(f"the option {name!r} made of")


def checked_name(name: object) -> str | None:
    """The name of a variable; None: it needs none.

    Raises:
        RequestError: it is no text.
    """
    if name is None or isinstance(name, str):
        return name
    raise wrong_kind("name", "text, the name of a variable", name)


def wrong_kind(name: str, what: str, value: object) -> RequestError:
    """Returns the error for an option that must be `what` but is `value`."""
    refuse_unknown(name, value)
    return RequestError(f"{name} must be {what}, got {shown(value)}", param=name)


def shown(value: object, *, with_type: bool = True) -> str:
    """Returns a short text of a value and its type."""
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"{text} ({type(value).__name__})" if with_type else text


def nearest(name: str, names: Iterable[str]) -> str:
    """ ": did you mean 'x'?" for a name that is nearly one of `names`, otherwise nothing."""
    return did_you_mean(name, names, shown=repr)


def _whole(value: object) -> int:
    if type(value) is int:
        return value
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    raise TypeError


def _logprobs(value: object) -> int | None:
    """A number of alternatives. True is 1, and False is none at all."""
    if isinstance(value, bool):
        return 1 if value else None
    return _whole(value)


def _number(value: object) -> float:
    if type(value) is float or type(value) is int:
        return value
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    raise TypeError


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError


def _several(value: object) -> Iterable[Any]:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return value
    raise TypeError


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError


def _texts(value: object) -> str | tuple[str, ...]:
    return value if isinstance(value, str) else tuple(_text(item) for item in _several(value))


def _tokens(value: object) -> tuple[int, ...]:
    return tuple(_whole(item) for item in _several(value))


def _biases(value: object) -> dict[int, float]:
    if isinstance(value, Mapping):
        return {_whole(token): _number(bias) for token, bias in value.items()}
    raise TypeError


_Kind = tuple[str, Callable[[object], Any]]
_FLAG: _Kind = "True or False", _flag
_WHOLE: _Kind = "a whole number", _whole
_NUMBER: _Kind = "a number", _number
_KINDS: Mapping[str, _Kind] = {
    **dict.fromkeys(("max_tokens", "max_new_tokens", "min_tokens", "n", "top_k", "seed"), _WHOLE),
    "logprobs": ("a whole number, or True or False", _logprobs),
    **dict.fromkeys(("top_logprobs_num", "logprob_start_len"), _WHOLE),
    **dict.fromkeys(("temperature", "top_p", "min_p"), _NUMBER),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty"), _NUMBER),
    **dict.fromkeys(("ignore_eos", "include_stop", "skip_special_tokens", "token_healing"), _FLAG),
    **dict.fromkeys(("return_logprob", "return_text_in_logprobs", "use_thread"), _FLAG),
    **dict.fromkeys(("stop", "stop_regex"), ("text, or a list of texts", _texts)),
    "stop_token_ids": ("a list of token ids", _tokens),
    "logit_bias": ("a dict of numbers by token id", _biases),
}
