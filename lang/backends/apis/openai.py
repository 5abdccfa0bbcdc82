"""Programs over any OpenAI-compatible API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from .answers import Policy, PrefixPolicy
from .api_backend import ApiBackend
from .http_client import ApiClient
from .openai_wire import OpenAIWire


class OpenAI(ApiBackend):
    """Runs programs by requests to an endpoint: one for each generation. Safe to use from many threads.

    model_name          as the endpoint calls it
    base_url            up to and with `/v1`
    api_key             or the environment's OPENAI_API_KEY
    is_chat_model       True: only messages are sent; False: only text to be completed; None: what the program holds
    extensions          the endpoint takes what vLLM, SGLang and bough have added: top_k, min_p, min_tokens, constraints
                        by regex, choice and grammar, and `continue_final_message`
    structured_outputs  it enforces JSON Schemas; "auto": until it refuses one
    scores              it returns log-probabilities of the prompt (`echo`), so that `select` compares likelihoods;
                        "auto": until it refuses to
    emulate             what it does not enforce is asked for in words, checked, and asked for again; else refused
    max_tries           so often, for one value
    assistant_prefix    what to do with text before a generation in an assistant message: "continue" has the API go on
                        from it (with `extensions`), "ask" asks for it in words and checks, "refuse" refuses
    use_max_completion_tokens   the limit's newer name, for models that take no other
    timeout_s           seconds without anything from the endpoint after which it is given up
    max_concurrency     requests at once
    max_retries         for answers 429 and 5xx and lost connections, with growing pauses or as `Retry-After` says
    max_states          programs kept between two reads; the least recently used are dropped

    >>> backend = bough.OpenAI("gpt-4o-mini")
    >>> capital.run("France", backend=backend)["city"]
    'Paris'
    """

    def __init__(  # noqa: PLR0913  one word has to say it all
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        extensions: bool = False,
        structured_outputs: bool | Literal["auto"] = "auto",
        scores: bool | Literal["auto"] = "auto",
        emulate: bool = True,
        max_tries: int = 3,
        assistant_prefix: PrefixPolicy | None = None,
        use_max_completion_tokens: bool = False,
        timeout_s: float = 600.0,
        max_concurrency: int = 64,
        max_retries: int = 4,
        extra_headers: Mapping[str, str] | None = None,
        max_states: int = 1024,
    ) -> None:
        key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY")
        client = ApiClient(
            base_url.rstrip("/"),
            {**({"Authorization": f"Bearer {key}"} if key else {}), **(extra_headers or {})},
            timeout_s=timeout_s,
            max_concurrency=max_concurrency,
            max_retries=max_retries,
        )
        wire = OpenAIWire(
            client,
            model_name,
            extensions=extensions,
            structured_outputs=structured_outputs,
            scores=scores,
            limit_field="max_completion_tokens" if use_max_completion_tokens else "max_tokens",
        )
        policy = Policy(
            emulate=emulate,
            max_tries=max_tries,
            assistant_prefix=assistant_prefix or ("continue" if extensions else "refuse"),
            chats=is_chat_model is not False,
            completions=is_chat_model is not True,
        )
        super().__init__(model_name, client, wire, policy, max_states=max_states)
