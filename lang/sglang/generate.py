"""Single prompts on a backend, with the arguments and results of SGLang's `generate`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...constrain.spec import Gbnf
from ...runtime.protocol.errors import RequestError
from ..api import gen
from ..backend import Backend
from ..function import Function
from ..state.state import State
from ..state.streaming import described_stream

Params = Mapping[str, Any]

_RENAMED = {"min_new_tokens": "min_tokens", "no_stop_trim": "include_stop", "sampling_seed": "seed"}
_KNOWN = frozenset({
    "max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "seed", "n",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "ignore_eos", "skip_special_tokens", "logit_bias",
    "regex", "json_schema", "min_tokens", "include_stop",
})  # fmt: skip


class Asked(NamedTuple):
    """Prompts with what each was asked for. `single`: one prompt, not a list of them."""

    prompts: list[str]
    options: list[dict[str, Any]]
    single: bool


def asked(
    prompt: str | Sequence[str] | None,
    sampling_params: Params | Sequence[Params] | None,
    *,
    return_logprob: bool | Sequence[bool] | None = False,
    logprob_start_len: int | Sequence[int] | None = None,
    top_logprobs_num: int | Sequence[int] | None = None,
    **others: object,
) -> Asked:
    """Reads what is asked for.

    Raises:
        RequestError: something cannot be had, or the lists differ in length.
    """
    for name, value in others.items():
        if value not in (None, False):
            raise RequestError(f"{name} is not supported", code="unsupported_parameter", param=name)
    if prompt is None:
        raise RequestError("a prompt is needed, as text", code="missing_required_parameter", param="prompt")
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    if not all(isinstance(text, str) for text in prompts):
        raise RequestError("each prompt must be text", param="prompt")
    params = _spread("sampling_params", sampling_params, len(prompts))
    logprobs = {
        "return_logprob": _spread("return_logprob", return_logprob or None, len(prompts)),
        "logprob_start_len": _spread("logprob_start_len", logprob_start_len, len(prompts)),
        "top_logprobs_num": _spread("top_logprobs_num", top_logprobs_num, len(prompts)),
    }
    options = [
        _options(one or {}) | {name: values[index] for name, values in logprobs.items()}
        for index, one in enumerate(params)
    ]
    return Asked(prompts, options, isinstance(prompt, str))


def generate(
    backend: Backend,
    prompt: str | Sequence[str] | None,
    sampling_params: Params | Sequence[Params] | None,
    *,
    stream: bool = False,
    **others: Any,
) -> Any:
    """The answers: a dict a prompt, or with n > 1 a dict a sample; of a list of prompts, a list of them all.

    stream   gives an iterator of the answer to one prompt, each with all text so far
    others   those of `asked`

    Raises:
        RequestError: something that is asked for cannot be had.
        ProgramError: a prompt failed.
    """
    what = asked(prompt, sampling_params, **others)
    if stream:
        return _stream(backend, what)
    return _answers(what, _COMPLETE.run_batch(_items(what), backend=backend))


async def agenerate(
    backend: Backend,
    prompt: str | Sequence[str] | None,
    sampling_params: Params | Sequence[Params] | None,
    *,
    stream: bool = False,
    **others: Any,
) -> Any:
    """The same for tasks; with `stream`, what is awaited is an async iterator."""
    what = asked(prompt, sampling_params, **others)
    if stream:
        return _astream(backend, what)
    return _answers(what, await _COMPLETE.arun_batch(_items(what), backend=backend))


def _stream(backend: Backend, what: Asked) -> Iterator[dict[str, Any]]:
    """The answer to one prompt as it comes: each dict has all text so far and what is known of it."""
    state = _COMPLETE.run(*_the_one(what), backend=backend, stream=True)
    text = ""
    for piece, info in described_stream(state._branch, "text"):
        text += piece
        yield {"text": text, "meta_info": info}
    if not text:
        yield _results(state)[0]


async def _astream(backend: Backend, what: Asked) -> AsyncIterator[dict[str, Any]]:
    """The same for tasks."""
    state = _COMPLETE.run(*_the_one(what), backend=backend, stream=True)
    text = ""
    async for piece, info in described_stream(state._branch, "text"):
        text += piece
        yield {"text": text, "meta_info": info}
    if not text:
        yield _results(state)[0]


def _complete(s: State, prompt: str, options: dict[str, Any]) -> None:
    s += prompt
    s += gen("text", **options)


_COMPLETE = Function(_complete)


def _items(what: Asked) -> list[tuple[str, dict[str, Any]]]:
    return list(zip(what.prompts, what.options, strict=True))


def _the_one(what: Asked) -> tuple[str, dict[str, Any]]:
    if not what.single:
        raise RequestError("only one prompt can be streamed at a time", code="unsupported_value", param="stream")
    return _items(what)[0]


def _answers(what: Asked, states: Sequence[State]) -> Any:
    answers = [answer for state in states for answer in _results(state)]
    return answers[0] if what.single and len(answers) == 1 else answers


def _results(state: State) -> list[dict[str, Any]]:
    info, texts = state.get_meta_info("text"), state["text"]
    return [{"text": text, "meta_info": info} for text in (texts if isinstance(texts, list) else [texts])]


def _options(params: Params) -> dict[str, Any]:
    """SGLang's sampling parameters as options of `gen`."""
    options: dict[str, Any] = {}
    for given, value in params.items():
        name = _RENAMED.get(given, given)
        if value is None or (given == "spaces_between_special_tokens" and value is True):
            continue
        if given == "ebnf":
            options["grammar"] = Gbnf(value)
        elif name == "logit_bias":
            options[name] = {int(token): bias for token, bias in value.items()}
        elif name in _KNOWN:
            options[name] = value
        else:
            raise RequestError(
                f"sampling_params has no field {given!r}",
                code="unsupported_parameter",
                param=f"sampling_params.{given}",
            )
    return options


def _spread(name: str, value: Any, count: int) -> list[Any]:
    """One value for all, or one each."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise RequestError(f"there are {count} prompts but {len(value)} {name}", param=name)
    return list(value)
