"""Programs on an engine in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from importlib.metadata import version
from typing import Any, Self

import msgspec

from ...runtime.client.client import EngineClient
from ...runtime.protocol.program import Program, ProgramEvent
from ...runtime.tools.registry import ToolCall
from ..backend import TEXT_ONLY
from .messages.tools import NO_TOOLS


class LocalBackend:
    """Loads a model, or uses an engine that is there already.

    model     name ("smollm2-135m"), folder or file; see EngineConfig, whose other fields are taken by name
    client    an engine to use instead; it is not closed with the backend

    >>> backend = LocalBackend("smollm2-135m", max_num_seqs=16)
    """

    modalities = TEXT_ONLY

    def __init__(self, model: str | None = None, *, client: EngineClient | None = None, **engine_options: Any) -> None:
        if client is not None and (model is not None or engine_options):
            raise TypeError("give a model with its options, or a client; not both")
        self._owns_client = client is None
        self.client = client if client is not None else _load(model, engine_options)

    def run(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> Iterator[ProgramEvent]:
        return self.client.run(program, tools=tools)

    def arun(self, program: Program, tools: Mapping[str, ToolCall] = NO_TOOLS) -> AsyncIterator[ProgramEvent]:
        return self.client.arun(program, tools=tools)

    def drop(self, program_id: str) -> None:
        self.client.drop(program_id)

    def flush_cache(self) -> bool:
        return self.client.flush_cache()

    def server_info(self) -> dict[str, Any]:
        """Returns the engine's account of itself: version, model, counters."""
        about = {"version": version("bough"), "model": self.client.info, "stats": self.client.stats()}
        return {name: msgspec.to_builtins(value) for name, value in about.items()}

    def close(self) -> None:
        """Stops the engine, if this backend has made it."""
        if self._owns_client:
            self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _load(model: str | None, options: dict[str, Any]) -> EngineClient:
    from ...runtime.client.local import LocalClient  # pulls torch
    from ...runtime.protocol.config import EngineConfig

    return LocalClient.load(EngineConfig(**options) if model is None else EngineConfig(model=model, **options))
