"""Switch for OpenTelemetry spans of programs. When off, it costs nothing and imports nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self

from ...runtime.protocol.errors import BoughError
from ...runtime.protocol.program import Failed, Program, ProgramEvent
from ...runtime.tools.registry import ToolCall

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from ..backend import Backend


class RunSpans(Protocol):
    """The spans of one run of a program: one for the whole, and one below it for each call."""

    def current(self) -> AbstractContextManager[object]:
        """While it is open, spans that the program's own code makes are below that of the program."""
        ...

    def sent(self, program: Program) -> None:
        """A submission goes to the backend."""

    def take(self, event: ProgramEvent) -> None:
        """Takes an event that has come back."""

    def watched(self, tool: ToolCall) -> ToolCall:
        """The same tool, each call of which is a span."""
        ...

    def end(self, error: BaseException | None) -> None:
        """The run is over. Only the first call counts."""


class Switch:
    """Switch for observing programs of this process, and for naming spans in the headers of requests.

    begin     makes the spans of a run by its title, its program's id and its backend; None: nobody observes
    """

    def __init__(self) -> None:
        self.begin: Callable[[str, str, Backend], RunSpans] | None = None
        self.headers: Callable[[], dict[str, str]] | None = None


switch = Switch()


class Observation:
    """An observation started by `observe`, until `stop` or the end of a `with`."""

    def stop(self) -> None:
        """Stops observing: programs that start from now on are not observed."""
        switch.begin = switch.headers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def observe(tracer_provider: TracerProvider | None = None, *, content: bool = False) -> Observation:
    """Makes all programs that start from now on emit OpenTelemetry spans: one per run, with a child span for each
    generation, select and tool call, named by the GenAI conventions. The parent of a run's span is the span that is
    current where the run starts. Needs `pip install "bough[otel]"`.

    tracer_provider   where the spans go; None: the global provider
    content           also record generated texts, and arguments and results of tools; they may be private

    >>> bough.observe(provider)

    Raises:
        ImportError: OpenTelemetry is not installed.
    """
    try:
        from .spans import headers, observer  # noqa: PLC0415  optional, and not to be imported before it is asked for
    except ImportError as error:
        raise ImportError("bough.observe needs OpenTelemetry: pip install 'bough[otel]'") from error
    switch.begin, switch.headers = observer(tracer_provider, content=content), headers
    return Observation()


def run(title: str, backend: Backend, program: Program, tools: Mapping[str, ToolCall]) -> Generator[ProgramEvent]:
    """The events of a program that is one submission and has no session, observed if anybody observes."""
    spans = switch.begin(title, program.id, backend) if switch.begin else None
    error: BaseException | None = None
    events: Any = backend.run(program, _sent(spans, program, tools))
    try:
        for event in events:
            error = _taken(spans, event) or error
            yield event
    except Exception as failure:
        error = failure
        raise
    finally:
        if (close := getattr(events, "close", None)) is not None:
            close()
        if spans is not None:
            spans.end(error)


async def arun(
    title: str, backend: Backend, program: Program, tools: Mapping[str, ToolCall]
) -> AsyncGenerator[ProgramEvent]:
    """The same for tasks."""
    spans = switch.begin(title, program.id, backend) if switch.begin else None
    error: BaseException | None = None
    events: Any = backend.arun(program, _sent(spans, program, tools))
    try:
        async for event in events:
            error = _taken(spans, event) or error
            yield event
    except Exception as failure:
        error = failure
        raise
    finally:
        if (aclose := getattr(events, "aclose", None)) is not None:
            await aclose()
        if spans is not None:
            spans.end(error)


def _sent(spans: RunSpans | None, program: Program, tools: Mapping[str, ToolCall]) -> Mapping[str, ToolCall]:
    """The tools as they are to be called."""
    if spans is None:
        return tools
    spans.sent(program)
    return {name: spans.watched(tool) for name, tool in tools.items()}


def _taken(spans: RunSpans | None, event: ProgramEvent) -> BoughError | None:
    """Returns what the program has failed with, if it has."""
    if spans is None:
        return None
    spans.take(event)
    return BoughError(event.error.message, code=event.error.code) if isinstance(event, Failed) else None


def trace_headers() -> Mapping[str, str]:
    """HTTP headers that name the current span to whoever gets the request; none if nobody observes."""
    return {} if switch.headers is None else switch.headers()
