"""Offline API in the usual form: `LLM(model).generate(prompts, SamplingParams(...))`."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...constrain.spec import GrammarSpec
from ..engine.engine import Engine
from ..load.start import start_engine
from ..protocol.config import EngineConfig, our_value
from ..protocol.counters import EngineStats
from ..protocol.errors import RequestError, to_exception
from ..protocol.request import FinishReason, Request, RequestOutput, TokenLogprob, Usage
from ..protocol.sampling_params import SamplingParams, derive

Prompt = str | Sequence[int] | dict[str, Any]
Messages = Sequence[dict[str, Any]]

MAX_PROMPTS = 1 << 20

_ONLY_ONE_DEVICE = "one device serves the whole model; run one engine a device instead"


@dataclass
class CompletionOutput:
    """One completion of a prompt. `stop_reason` is the stop string or token id that ended it."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass
class PromptOutput:
    """A prompt with its completions so far; they are complete when `finished`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    usage: Usage = field(default_factory=Usage)
    error: Exception | None = None

    @property
    def finished(self) -> bool:
        return self.error is not None or all(output.finish_reason is not None for output in self.outputs)

    @property
    def num_cached_tokens(self) -> int:
        return self.usage.cached_tokens


class LLM:
    """A model ready to generate, on the caller's thread.

    >>> llm = LLM("smollm2-135m")                                                       # doctest: +SKIP
    >>> llm.generate("The capital of France is", SamplingParams(max_tokens=1))[0].outputs[0].text   # doctest: +SKIP
    ' Paris'

    gpu_memory_utilization   share of the device's free memory for the KV cache
    block_size               tokens of a KV page
    num_gpu_blocks_override  KV pages

    Further keywords are fields of `EngineConfig`.

    Raises:
        RequestError: an option is not supported; the error names it.
        ModelError: the model cannot be loaded.
    """

    def __init__(  # noqa: PLR0913  the usual names of the field, each supported or refused
        self,
        model: str | os.PathLike[str] = "smollm2-135m",
        *,
        dtype: str = "auto",
        quantization: str | None = None,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        gpu_memory_utilization: float | None = None,
        swap_space: float = 0,
        block_size: int | None = None,
        num_gpu_blocks_override: int | None = None,
        max_num_batched_tokens: int | None = None,
        enforce_eager: bool = False,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> None:
        for name, value, supported, reason in (
            ("tensor_parallel_size", tensor_parallel_size, (1,), _ONLY_ONE_DEVICE),
            ("pipeline_parallel_size", pipeline_parallel_size, (1,), _ONLY_ONE_DEVICE),
            ("swap_space", swap_space, (0,), "what is preempted stays in the prefix cache or is computed again"),
            ("trust_remote_code", trust_remote_code, (False,), "code from a model's files is never run"),
        ):
            if value not in supported:
                raise RequestError(f"{name}={value!r} is not supported: {reason}", code="unsupported_value", param=name)
        renamed = {
            "quantization": our_value("quantization", quantization),
            "cuda_graphs": False if enforce_eager else None,
            "memory_fraction": gpu_memory_utilization,
            "page_size": block_size,
            "num_pages": num_gpu_blocks_override,
            "max_batch_tokens": max_num_batched_tokens,
        }
        options = {name: our_value(name, value) for name, value in options.items()}
        options |= {name: value for name, value in renamed.items() if value is not None}
        unknown = options.keys() - set(EngineConfig.__struct_fields__)
        if unknown:
            name = sorted(unknown)[0]
            raise RequestError(
                f"{name} is not an option of LLM or EngineConfig", code="unsupported_parameter", param=name
            )
        # The limit protects servers; the caller's own list of prompts needs none.
        options = {"max_waiting": MAX_PROMPTS} | options
        self._config = _config(options | {"model": os.fspath(model), "dtype": our_value("dtype", dtype)})
        self._engine: Engine = start_engine(self._config)
        self._live: dict[str, PromptOutput] = {}
        self._changed: dict[str, PromptOutput] = {}
        self._numbers = itertools.count()

    # Whole lists of prompts

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        grammar: GrammarSpec | Sequence[GrammarSpec | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[PromptOutput]:
        """Returns the completions of all prompts, in order, computed together.

        A prompt is a text, a list of token ids, or {"prompt": text} / {"prompt_token_ids": ids}.

        Raises:
            RequestError: a prompt or parameter is invalid; nothing is generated.
            EngineError: a prompt failed while it ran.
        """
        many = _as_list(prompts)
        params = _spread(sampling_params or SamplingParams(max_tokens=16), len(many), "sampling_params")
        grammars = _spread(grammar, len(many), "grammar")
        ids = [f"generate-{next(self._numbers)}" for _ in many]
        try:
            for request_id, prompt, param, spec in zip(ids, many, params, grammars, strict=True):
                self.add_request(request_id, prompt, param, grammar=spec, stream=False)
            return self._finish(ids, use_tqdm=use_tqdm)
        except BaseException:
            self.abort_request(ids)
            raise

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        grammar: GrammarSpec | Sequence[GrammarSpec | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[PromptOutput]:
        """Returns answers to one conversation, or to each of several."""
        chats = [messages] if not messages or isinstance(messages[0], dict) else list(messages)
        prompts = [
            self._engine.tokenizer.encode_chat(
                list(chat),  # type: ignore[arg-type]
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                template_kwargs=chat_template_kwargs,
            )
            for chat in chats
        ]
        many = _spread(sampling_params or SamplingParams(max_tokens=16), len(prompts), "sampling_params")
        # Token healing must not rewrite the end of the template.
        params = [msgspec.structs.replace(one, token_healing=False) for one in many]
        return self.generate(prompts, params, grammar=grammar, use_tqdm=use_tqdm)

    # Stepwise interface

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        grammar: GrammarSpec | None = None,
        priority: int = 0,
        stream: bool = True,
    ) -> None:
        """Queues a request; `step` advances it. Without `stream`, outputs are filled only at the end, which costs less.

        Raises:
            RequestError: the request is invalid.
        """
        if request_id in self._live:
            raise RequestError(f"a request with id {request_id!r} is running already", param="request_id")
        params = params or SamplingParams(max_tokens=16)
        text, tokens = self._encode(prompt)
        outputs = [
            CompletionOutput(index, logprobs=None if params.logprobs is None else []) for index in range(params.n)
        ]
        result = PromptOutput(request_id, text, tokens, outputs)
        self._live[request_id] = result
        try:
            for index in range(params.n):
                seed = None if params.seed is None else derive(params.seed, index)
                request = Request(
                    id=f"{request_id}/{index}",
                    prompt=tuple(tokens),
                    sampling=msgspec.structs.replace(params, n=1, seed=seed),
                    grammar=grammar,
                    priority=priority,
                    stream=stream,
                )
                listener = functools.partial(self._take, result, index, stream)
                self._engine.submit(request, listener)
        except BaseException:
            self.abort_request(request_id)
            raise

    def step(self) -> list[PromptOutput]:
        """Runs one forward pass; returns the requests that made progress."""
        if self._engine.idle:
            self._engine.wait_for_grammar(timeout_s=0.05)
        self._engine.step()
        changed, self._changed = self._changed, {}
        return list(changed.values())

    def has_unfinished_requests(self) -> bool:
        return bool(self._live)

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """Aborts requests; unknown ids are ignored."""
        for request_id in [request_ids] if isinstance(request_ids, str) else list(request_ids):
            self._changed.pop(request_id, None)
            if (result := self._live.pop(request_id, None)) is not None:
                self._stop(result)

    # Lifecycle

    def get_tokenizer(self) -> Any:
        return self._engine.tokenizer

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats()

    def reset_prefix_cache(self) -> bool:
        return self._engine.flush_cache()

    def close(self) -> None:
        self._engine.close()

    def _encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, dict):
            if "prompt_token_ids" in prompt:
                return prompt.get("prompt"), list(prompt["prompt_token_ids"])
            if not isinstance(prompt.get("prompt"), str):
                raise RequestError('a prompt given as a dict needs "prompt" or "prompt_token_ids"', param="prompts")
            prompt = prompt["prompt"]
        if isinstance(prompt, str):
            return prompt, self._engine.tokenizer.encode_prompt(prompt, special=True)
        return None, [int(token) for token in prompt]

    def _take(self, result: PromptOutput, index: int, stream: bool, output: RequestOutput) -> None:
        if self._live.get(result.request_id) is not result:  # it has already ended
            return
        completion = result.outputs[index]
        completion.text += output.text
        completion.token_ids += output.tokens
        if completion.logprobs is not None:
            completion.logprobs += output.logprobs or ()
        if (finish := output.finish) is not None:
            completion.finish_reason = finish.reason
            completion.stop_reason = finish.matched
            result.usage += finish.usage
            if finish.error is not None:
                result.error = to_exception(finish.error)
        if result.error is not None:  # the other samples still report their results
            self._stop(result)
        if stream or result.finished:
            self._changed[result.request_id] = result
        if result.finished:
            self._live.pop(result.request_id, None)

    def _stop(self, result: PromptOutput) -> None:
        """Aborts the samples of a request that still run."""
        for index in range(len(result.outputs)):
            self._engine.abort(f"{result.request_id}/{index}")

    def _finish(self, ids: list[str], *, use_tqdm: bool) -> list[PromptOutput]:
        results = {request_id: self._live[request_id] for request_id in ids if request_id in self._live}
        from tqdm import tqdm  # noqa: PLC0415  it is not small

        with tqdm(total=len(ids), desc="generating", unit="prompt", disable=not use_tqdm) as bar:
            others: dict[str, PromptOutput] = {}
            while any(request_id in self._live for request_id in ids):
                changed = {result.request_id: result for result in self.step()}
                bar.update(sum(result.finished for name, result in changed.items() if name in results))
                others |= {name: result for name, result in changed.items() if name not in results}
            self._changed = others | self._changed  # for the caller's next step
        for result in results.values():
            if result.error is not None:
                raise result.error
        return [results[request_id] for request_id in ids]


def _config(options: dict[str, Any]) -> EngineConfig:
    try:
        return msgspec.convert(options, EngineConfig)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, RequestError):
            raise error.__cause__ from None
        message, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`") or None
        raise RequestError(f"{name}: {message}" if name else message, param=name) from error


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, (str, dict)) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _spread(value: Any, count: int, name: str) -> list[Any]:
    """Returns `count` values: one for all, or one each."""
    if isinstance(value, (list, tuple)):
        if len(value) != count:
            raise RequestError(f"there are {count} prompts but {len(value)} {name}", param=name)
        return list(value)
    return [value] * count
