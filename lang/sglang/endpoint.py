"""`RuntimeEndpoint`: a server given by its address, under SGLang's name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...runtime.protocol.errors import RequestError
from ..backends.http import HttpBackend
from .generate import Params, agenerate, generate

_PROBE = "What did you see?"


class _Turn(NamedTuple):
    """Text that a chat template writes around a user's message."""

    before: str
    after: str


_TEMPLATES = {
    "chatml": _Turn("<|im_start|>user\n", "<|im_end|>\n"),
    "qwen": _Turn("<|im_start|>user\n", "<|im_end|>\n"),
    "llama-3-instruct": _Turn("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
    "gemma-it": _Turn("<start_of_turn>user\n", "<end_of_turn>\n"),
    "llama-2-chat": _Turn("[INST] ", " [/INST]"),
    "mistral": _Turn("[INST]", "[/INST]"),
}


class RuntimeEndpoint(HttpBackend):
    """A bough server by its address.

    api_key              sent as a bearer token
    verify               a file of certificates to trust instead of the system's
    chat_template_name   may name the template that the model has; it is not chosen by name, so another is refused

    >>> bough.set_default_backend(RuntimeEndpoint("http://127.0.0.1:8000"))

    Raises:
        RequestError: the model has another chat template.
        BackendError: there is a template to be compared, but the server cannot be reached.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | None = None,
        chat_template_name: str | None = None,
    ) -> None:
        super().__init__(base_url, api_key, verify=verify)
        self.base_url = base_url.rstrip("/")
        if chat_template_name is not None:
            try:
                self._check_template(chat_template_name)
            except BaseException:
                self.close()
                raise

    @property
    def endpoint(self) -> RuntimeEndpoint:
        """Itself."""
        return self

    def get_model_name(self) -> str:
        """Returns the name under which the server serves its model."""
        return str(self._get("/v1/models")["data"][0]["id"])

    def get_server_info(self) -> dict[str, Any]:
        """Returns what the server says of itself."""
        return self.server_info()

    def get_tokenizer(self) -> ServerTokenizer:
        """The model's tokenizer, as far as the server lends it."""
        return ServerTokenizer(self)

    def cache_prefix(self, prefix: str) -> None:
        """Computes a text that many programs begin with, so that it is in the cache."""
        generate(self, prefix, {"max_new_tokens": 1, "temperature": 0})

    def generate(
        self,
        prompt: str | Sequence[str],
        sampling_params: Params | Sequence[Params] | None = None,
        return_logprob: bool | Sequence[bool] | None = False,
        logprob_start_len: int | Sequence[int] | None = None,
        top_logprobs_num: int | Sequence[int] | None = None,
        lora_path: None = None,
    ) -> str:
        """The answers to prompts, as JSON text: `json.loads(...)["text"]`, or of a list of prompts a list.

        Raises:
            RequestError: something that is asked for cannot be had.
            ProgramError: a prompt failed.
        """
        answers = generate(
            self,
            prompt,
            sampling_params,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=top_logprobs_num,
            lora_path=lora_path,
        )
        return json.dumps(answers)

    async def async_generate(self, prompt: str, sampling_params: Params | None = None) -> AsyncIterator[str]:
        """The text of an answer as it comes."""
        seen = 0
        async for answer in await agenerate(self, prompt, sampling_params, stream=True):
            text = answer["text"][seen:]
            seen += len(text)
            if text:
                yield text

    add_request = async_generate

    def _check_template(self, name: str) -> None:
        turn = _TEMPLATES.get(name)
        rendered = self._post("/tokenize", {"messages": [{"role": "user", "content": _PROBE}]})["tokens"]
        text = self.detokenize(rendered)
        if turn is None or f"{turn.before}{_PROBE}{turn.after}" not in text:
            raise RequestError(
                f"chat_template_name={name!r}: the model's own template is used, which writes a message as {text!r}; "
                "leave the name out",
                code="unsupported_value",
                param="chat_template_name",
            )

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, control tokens included."""
        return str(self._post("/detokenize", {"tokens": list(tokens)})["prompt"])

    def _get(self, path: str) -> Any:
        return json.loads(self._call("GET", path))

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return json.loads(self._call("POST", path, json=body))


class ServerTokenizer:
    """The tokenizer of a server's model. Each call is a request."""

    def __init__(self, endpoint: RuntimeEndpoint) -> None:
        self._endpoint = endpoint

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt."""
        body = {"prompt": text, "add_special_tokens": add_special_tokens}
        return list(self._endpoint._post("/tokenize", body)["tokens"])

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens."""
        body = {"tokens": list(tokens), "skip_special_tokens": skip_special_tokens}
        return str(self._endpoint._post("/detokenize", body)["prompt"])

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, tokenize: bool = True, add_generation_prompt: bool = False
    ) -> list[int] | str:
        """A chat as the model reads it: token ids, or text."""
        body = {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        tokens = list(self._endpoint._post("/tokenize", body)["tokens"])
        return tokens if tokenize else self.decode(tokens)
