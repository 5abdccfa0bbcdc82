"""Counts the tokens of all programs of a backend."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any

from ....runtime.protocol.program import Done, ProgramEvent


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
        """The same events."""
        closable: Any = events
        with closing(closable):
            for event in events:
                self._take(event)
                yield event

    async def acounted(self, events: AsyncIterator[ProgramEvent]) -> AsyncIterator[ProgramEvent]:
        """The same events."""
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
