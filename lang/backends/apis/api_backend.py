"""Base of the backends over others' APIs, which differ in what they send and how they read the answer."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any, Self

from ....runtime.protocol.program import Done, Program, ProgramEvent
from ....runtime.tools.registry import ToolCall
from ...backend import TEXT_ONLY
from ..messages.tools import NO_TOOLS
from .answers import Answering, Policy
from .http_client import ApiClient
from .programs import Programs
from .wire import Wire


@dataclass
class TokenUsage:
    """Tokens since the start, or since `reset`: of the programs that have ended, as the endpoint counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def reset(self) -> None:
        with self._lock:
            self.prompt_tokens = self.completion_tokens = 0

    def counted(self, events: Iterator[ProgramEvent]) -> Iterator[ProgramEvent]:
        """Passes events on, and counts."""
        closable: Any = events
        with closing(closable):
            for event in events:
                self._take(event)
                yield event

    async def acounted(self, events: AsyncIterator[ProgramEvent]) -> AsyncIterator[ProgramEvent]:
        """Passes events on, and counts."""
        closable: Any = events
        async with aclosing(closable):
            async for event in events:
                self._take(event)
                yield event

    def _take(self, event: ProgramEvent) -> None:
        if isinstance(event, Done):
            with self._lock:
                self.prompt_tokens += event.usage.prompt_tokens
                self.completion_tokens += event.usage.completion_tokens


class ApiBackend:
    """Runs programs by requests that `wire` makes through `client`. Safe to use from many threads."""

    modalities = TEXT_ONLY

    def __init__(self, model_name: str, client: ApiClient, wire: Wire, policy: Policy, *, max_states: int) -> None:
        self.model_name = model_name
        self._client = client
        self.token_usage = TokenUsage()
        self._programs = Programs(Answering(wire, policy), wire.aclose, max_states=max_states)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_name!r})"

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
        """Returns false: there is no cache that could be emptied from here."""
        return False

    def close(self) -> None:
        """Stops what runs, and closes all connections."""
        self._programs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
