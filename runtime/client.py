"""One interface to an engine, in this process or in another: requests and programs in, streams of events out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Protocol

import msgspec

from .program import Program, ProgramEvent
from .request import Request, RequestOutput
from .tokenizer import Tokenizer
from .tools import ToolCall


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The loaded model, as clients need to know it. `max_model_len` counts prompt and completion tokens;
    `max_request_tokens` is that, or what the cache holds if it is less. `path` is where the files lie."""

    name: str
    path: str
    architecture: str
    vocab_size: int
    max_model_len: int
    max_request_tokens: int
    dtype: str
    device: str
    num_parameters: int
    page_size: int
    num_pages: int


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start (`*_total`) and gauges now.

    num_pages = free_pages + cached_pages + locked_pages. Cached ones are in nobody's use; locked ones are in use, by
    one sequence or shared by several.
    """

    running: int = 0
    waiting: int = 0
    states: int = 0
    num_pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    locked_pages: int = 0
    steps_total: int = 0
    requests_total: int = 0
    programs_total: int = 0
    finished_total: dict[str, int] = {}
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    computed_tokens_total: int = 0
    generated_tokens_total: int = 0
    forced_tokens_total: int = 0
    guessed_tokens_total: int = 0
    right_guesses_total: int = 0
    preemptions_total: int = 0
    evicted_tokens_total: int = 0
    grammars_compiled_total: int = 0
    grammar_cache_hits_total: int = 0
    step_seconds_total: float = 0.0
    forward_seconds_total: float = 0.0
    mask_seconds_total: float = 0.0
    sample_seconds_total: float = 0.0


class EngineClient(Protocol):
    """What programs, the server and scripts hold. Safe to use from many threads.

    `stream` and `run` (and their async forms) yield events until the terminal one. Leaving the iterator early
    (`close`, `aclose`, cancellation) aborts the work. Refusals (RequestError, OverloadedError, GrammarError) are
    raised at the first `next`; a failure in mid-flight arrives as a terminal event with `error` set;
    EngineStoppedError is raised if the engine dies.
    """

    tokenizer: Tokenizer
    info: ModelInfo

    def stream(self, request: Request) -> Iterator[RequestOutput]: ...

    def astream(self, request: Request) -> AsyncIterator[RequestOutput]: ...

    def run(self, program: Program, tools: Mapping[str, ToolCall] | None = None) -> Iterator[ProgramEvent]:
        """`tools` are what this program may call besides the registered ones; they run in this process."""

    def arun(self, program: Program, tools: Mapping[str, ToolCall] | None = None) -> AsyncIterator[ProgramEvent]: ...

    @property
    def tools(self) -> Mapping[str, ToolCall]:
        """The registered tools, by name: every program may call them."""

    def register_tool(self, tool: ToolCall) -> None:
        """Raises RequestError: its name is none or taken, or there are too many."""

    def drop(self, program_id: str) -> None:
        """Forgets a kept program state. Unknown ids are ignored."""

    def stats(self) -> EngineStats: ...

    def flush_cache(self) -> bool:
        """Empties the prefix cache; False (and nothing done) while requests are running."""

    @property
    def alive(self) -> bool: ...

    def close(self) -> None: ...
