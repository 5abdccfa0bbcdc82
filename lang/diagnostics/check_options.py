"""Types of the options, and errors for values of other types."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...runtime.protocol.errors import RequestError


def checked_option(name: str, value: object) -> Any:
    """The value of a sampling option, as the runtime takes it.

    Raises:
        RequestError: it is of another type; the message names the option, and says what was given.
    """
    what, read = _KINDS[name]
    refuse_unknown(name, value)
    try:
        return read(value)
    except TypeError:
        raise wrong_kind(name, what, value) from None


def checked_timeout(value: object, name: str = "timeout_s") -> float | None:
    """A limit in seconds; None: there is none.

    Raises:
        RequestError: it is no number, or not more than 0.
    """
    if value is None:
        return None
    try:
        seconds = _number(value)
    except TypeError:
        raise wrong_kind(name, "a number of seconds", value) from None
    if not seconds > 0:
        raise RequestError(f"{name} must be more than 0, got {seconds:g}", param=name)
    return seconds


def checked_flag(name: str, value: object) -> bool:
    """A switch; None leaves it off.

    Raises:
        RequestError: it is neither True nor False.
    """
    try:
        return value is not None and _flag(value)
    except TypeError:
        raise wrong_kind(name, _FLAG, value) from None


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
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return RequestError(f"{name} must be {what}, got {shown} ({type(value).__name__})", param=name)


def nearest(name: str, names: Iterable[str]) -> str:
    """ ": did you mean 'x'?" for a name that is nearly one of `names`, otherwise nothing."""
    import difflib  # noqa: PLC0415  only for a mistake

    found = difflib.get_close_matches(name, [other for other in names if isinstance(other, str)], n=1)
    return f": did you mean {found[0]!r}?" if found else ""


def _whole(value: object) -> int:
    if type(value) is int:
        return value
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    raise TypeError


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


_FLAG = "True or False"

_Kind = tuple[str, Callable[[object], Any]]
_KINDS: Mapping[str, _Kind] = {
    **dict.fromkeys(
        ("max_tokens", "max_new_tokens", "min_tokens", "n", "top_k", "seed", "logprobs", "top_logprobs_num"),
        ("a whole number", _whole),
    ),
    "logprob_start_len": ("a whole number", _whole),
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
        ("a number", _number),
    ),
    **dict.fromkeys(
        ("ignore_eos", "include_stop", "skip_special_tokens", "token_healing", "return_logprob"), (_FLAG, _flag)
    ),
    **dict.fromkeys(("return_text_in_logprobs", "use_thread"), (_FLAG, _flag)),
    **dict.fromkeys(("stop", "stop_regex"), ("text, or a list of texts", _texts)),
    "stop_token_ids": ("a list of token ids", _tokens),
    "logit_bias": ("a dict of numbers by token id", _biases),
}
