"""One interface to an engine, in this process or in another: requests and programs in, streams of events out."""

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
    (`close`, `aclose`, cancellation) aborts the request, or drops the program with the state that it has kept
    (`streams.iterate`, `aiterate`). Refusals (RequestError, OverloadedError, GrammarError) are
    raised at the first `next`; a failure in mid-flight arrives as a terminal event with `error` set;
    EngineStoppedError is raised if the engine dies.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def info(self) -> ModelInfo: ...

    def stream(self, request: Request) -> Iterator[RequestOutput]: ...

    def astream(
        self, request: Request, *, settle: Callable[[RequestOutput], None] | None = None
    ) -> AsyncIterator[RequestOutput]:
        """`settle` is called on the event loop with the last output, also if the consumer has left before it."""

    def run(self, program: Program, tools: Mapping[str, ToolCall] | None = None) -> Iterator[ProgramEvent]:
        """`tools` are what this program may call besides the registered ones; they run in this process."""

    def arun(
        self,
        program: Program,
        tools: Mapping[str, ToolCall] | None = None,
        *,
        settle: Callable[[Done | Failed], None] | None = None,
    ) -> AsyncIterator[ProgramEvent]:
        """`settle` is called on the event loop with the last event, also if the consumer has left before it."""

    @property
    def tools(self) -> Mapping[str, ToolCall]:
        """The registered tools, by name: every program may call them."""

    def register_tool(self, tool: ToolCall) -> None:
        """Raises RequestError: its name is none or taken, or there are too many."""

    def drop(self, program_id: str) -> None:
        """Stops a program, its submissions in flight included, and forgets its state. Unknown ids are ignored."""

    def stats(self) -> EngineStats: ...

    def flush_cache(self) -> bool:
        """Empties the prefix cache; False (and nothing done) while requests are running."""

    @property
    def alive(self) -> bool:
        """Returns false once nothing can be asked of it any more."""

    def check(self) -> None:
        """Raises EngineStoppedError: it takes nothing now. EngineStuckError, EngineStartingError: it may, later."""

    def close(self, *, at_once: bool = False) -> None:
        """Ends the engine, and what runs in it. `at_once`: without waiting for what it is in the middle of."""
