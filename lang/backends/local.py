"""Programs on an engine in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec

from ...runtime.client.client import EngineClient
from ...runtime.protocol.program import Program, ProgramEvent
from ...runtime.tokenizer.tokenizer import Tokenizer
from ...runtime.tools.registry import ToolCall
from ..backend import TEXT_ONLY
from ..diagnostics.source_lines import located, no_attribute, users_lines
from ..record.options import nearest
from .messages.tools import NO_TOOLS

_MEANT = {
    "count_tokens": "state.num_tokens is a state's, and bough.Conversation(messages).count_tokens() that of messages",
    **dict.fromkeys(("generate", "complete", "chat"), "a @bough.function is run on it, f.run(..., backend=backend)"),
    "model": "backend.server_info() describes it",
}
"""Likely meanings of attributes that do not exist."""


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
        with located:
            self.client = client if client is not None else _load(model, engine_options)

    if not TYPE_CHECKING:  # type checkers say it themselves

        @users_lines
        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(type(self).__name__, name, _MEANT, dir(type(self)))

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's: by it, programs are told of limits in which no value can be finished."""
        return self.client.tokenizer

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


_ELSEWHERE = {
    **dict.fromkeys(
        ("gpu_layers", "n_gpu_layers", "ngl", "num_gpu_layers"),
        ": all layers are on one device, device='cuda' or device='cpu'",
    ),
    **dict.fromkeys(("n_ctx", "ctx_size", "context_length", "max_length"), ": that is max_model_len=..."),
    **dict.fromkeys(("gpu_memory_utilization", "mem_fraction_static"), ": that is memory_fraction=..."),
    **dict.fromkeys(("n_threads", "threads"), ": that is num_threads=..."),
    **dict.fromkeys(
        ("temperature", "max_tokens", "top_p", "top_k", "seed"),
        ": options of sampling are given to run, bind or gen",
    ),
}
"""Names that engines elsewhere have for options, and what to write here."""


def _meant(name: str, names: tuple[str, ...]) -> str:
    return _ELSEWHERE.get(name) or nearest(name, names) or f"; there are {', '.join(names)}"


def _load(model: str | None, options: dict[str, Any]) -> EngineClient:
    from ...runtime.client.local import LocalClient  # pulls torch
    from ...runtime.protocol.config import EngineConfig

    for name in options:
        if name not in EngineConfig.__struct_fields__:
            raise TypeError(f"an engine has no option {name!r}{_meant(name, EngineConfig.__struct_fields__)}")
    return LocalClient.load(EngineConfig(**options) if model is None else EngineConfig(model=model, **options))
