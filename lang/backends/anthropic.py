"""Programs over Anthropic's Messages API."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Self

from ...runtime.program import Program, ProgramEvent
from ...runtime.tools import ToolCall
from ..backend import TEXT_ONLY
from .answering import Answering, Policy
from .anthropic_wire import AnthropicWire
from .api_client import ApiClient
from .programs import Programs
from .token_usage import TokenUsage
from .tool_runs import NO_TOOLS

API_VERSION = "2023-06-01"


class Anthropic:
    """Runs programs by requests to the Messages API: one for each generation. Safe to use from many threads.

    A system message is sent with every request. Text before a generation in an assistant message is what the answer
    begins with. Constraints and choices are not enforced by the API: with `emulate` they are asked for in words,
    checked, and asked for again up to `max_tries` times; else they are refused.

    api_key     or the environment's ANTHROPIC_API_KEY
    max_tokens  of generations that set no limit; the API wants one

    The other arguments are those of `OpenAI`.

    >>> backend = bough.Anthropic("claude-sonnet-4-5")
    """

    modalities = TEXT_ONLY

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
        self.model_name = model_name
        self._client = ApiClient(
            base_url.rstrip("/").removesuffix("/v1"),
            headers,
            timeout_s=timeout_s,
            max_concurrency=max_concurrency,
            max_retries=max_retries,
        )
        wire = AnthropicWire(self._client, model_name, max_tokens=max_tokens)
        policy = Policy(emulate=emulate, max_tries=max_tries, assistant_prefix="continue", completions=False)
        self.token_usage = TokenUsage()
        self._programs = Programs(Answering(wire, policy), wire.aclose, max_states=max_states)

    def __repr__(self) -> str:
        return f"Anthropic({self.model_name!r})"

    @property
    def calls(self) -> int:
        """Requests made so far, repeated ones included."""
        return self._client.calls

    def run(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> Iterator[ProgramEvent]:
        return self.token_usage.counted(self._programs.run(program, tools))

    def arun(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> AsyncIterator[ProgramEvent]:
        return self.token_usage.acounted(self._programs.arun(program, tools))

    def drop(self, program_id: str) -> None:
        self._programs.drop(program_id)

    def flush_cache(self) -> bool:
        """There is no cache to empty from here."""
        return False

    def close(self) -> None:
        """Stops what runs, and closes all connections."""
        self._programs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
