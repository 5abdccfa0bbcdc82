"""Programs over Anthropic's Messages API."""

from __future__ import annotations

import os
from collections.abc import Mapping

from .answers import Policy
from .anthropic_wire import AnthropicWire
from .api_backend import ApiBackend
from .http_client import ApiClient

API_VERSION = "2023-06-01"


class Anthropic(ApiBackend):
    """Runs programs by requests to the Messages API: one for each generation. Safe to use from many threads.

    A system message is sent with every request. Text before a generation in an assistant message is what the answer
    begins with. Constraints and choices are not enforced by the API: with `emulate` they are asked for in words,
    checked, and asked for again up to `max_tries` times; else they are refused.

    api_key     or the environment's ANTHROPIC_API_KEY
    max_tokens  of generations that set no limit; the API wants one

    The other arguments are those of `OpenAI`.

    >>> backend = bough.Anthropic("claude-sonnet-4-5")
    """

    def __init__(  # noqa: PLR0913  one word has to say it all
        self,
        model_name: str,
        *,
        base_url: str = "https://api.anthropic.com",
        api_key: str | None = None,
        emulate: bool = True,
        max_tries: int = 3,
        max_tokens: int = 4096,
        timeout_s: float = 600.0,
        max_concurrency: int = 64,
        max_retries: int = 4,
        extra_headers: Mapping[str, str] | None = None,
        max_states: int = 1024,
    ) -> None:
        key = api_key if api_key is not None else os.environ.get("ANTHROPIC_API_KEY")
        headers = {"anthropic-version": API_VERSION, **({"x-api-key": key} if key else {}), **(extra_headers or {})}
        client = ApiClient(
            base_url.rstrip("/").removesuffix("/v1"),
            headers,
            timeout_s=timeout_s,
            max_concurrency=max_concurrency,
            max_retries=max_retries,
        )
        wire = AnthropicWire(client, model_name, max_tokens=max_tokens)
        policy = Policy(emulate=emulate, max_tries=max_tries, assistant_prefix="continue", completions=False)
        super().__init__(model_name, client, wire, policy, max_states=max_states)
