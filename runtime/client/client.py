"""Client interface to an engine, in this process or in another: requests and programs in, streams of events out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Protocol

from ..protocol.counters import EngineStats, ModelInfo
from ..protocol.program import Done, Failed, Program, ProgramEvent
from ..protocol.request import Request, RequestOutput
from ..tokenizer.tokenizer import Tokenizer
from ..tools.registry import ToolCall


class EngineClient(Protocol):
    """Interface to an engine for programs, the server and scripts. Safe to use from many threads.

    `stream` and `run` (and their async forms) yield events until the terminal one. Leaving the iterator early
    (`close`, `aclose`, cancellation) aborts the request, or drops the program with its kept state (`streams.iterate`,
    `aiterate`). Refusals (RequestError, OverloadedError, GrammarError) are raised at the first `next`; a failure in
    flight arrives as a terminal event with `error` set; EngineStoppedError is raised if the engine dies.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def info(self) -> ModelInfo: ...

    def stream(self, request: Request) -> Iterator[RequestOutput]: ...

    def astream(
        self, request: Request, *, settle: Callable[[RequestOutput], None] | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Streams outputs. Calls `settle` on the event loop with the last one, even if the consumer left before."""

    def run(self, program: Program, tools: Mapping[str, ToolCall] | None = None) -> Iterator[ProgramEvent]:
        """Runs a program. `tools` are those that it may call besides the registered ones; they run in this process."""

    def arun(
        self,
        program: Program,
        tools: Mapping[str, ToolCall] | None = None,
        *,
        settle: Callable[[Done | Failed], None] | None = None,
    ) -> AsyncIterator[ProgramEvent]:
        """Runs a program. Calls `settle` on the event loop with the last event, even if the consumer left before."""

    @property
    def tools(self) -> Mapping[str, ToolCall]:
        """Registered tools by name, which every program may call."""

    def register_tool(self, tool: ToolCall) -> None:
        """Registers a tool. Raises RequestError: its name is invalid or taken, or there are too many."""

    def drop(self, program_id: str) -> None:
        """Stops a program, its submissions in flight included, and forgets its state. Unknown ids are ignored."""

    def stats(self) -> EngineStats: ...

    def flush_cache(self) -> bool:
        """Empties the prefix cache; returns False, and does nothing, while requests are running."""

    @property
    def alive(self) -> bool:
        """False once the engine accepts no more work."""

    def check(self) -> None:
        """Raises EngineStoppedError if the engine has ended; EngineStuckError, EngineStartingError if it may return."""

    def close(self, *, at_once: bool = False) -> None:
        """Ends the engine and its work. `at_once`: without waiting for its current step."""
