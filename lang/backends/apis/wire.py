"""Interface to an API of one text per request: its requests and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ....constrain.spec import GrammarSpec
from ....runtime.protocol.program import Gen, Offer, Select
from ....runtime.protocol.request import TokenLogprob, Usage
from ....runtime.protocol.sampling_params import SamplingParams
from ....runtime.tools.calls import WrittenCall
from ..messages.transcript import Message


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    messages    of a chat, closed; without any, `prefix` is a text to be completed
    prefix      what the answer has begun with; it is not part of what comes back
    grammar     to be enforced by the API
    tools       that the model may call, as OpenAI writes them, under what `offer` says
    """

    messages: tuple[Message, ...]
    prefix: str
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    offer: Offer | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One text. `ended` tells why: by itself or a stop ("stop"), or by the limit ("length"); `matched` what stopped it,
    if that is known. `token_texts` are the texts of the tokens in `logprobs`, `calls` those of tools after the
    text."""

    text: str
    ended: str = "stop"
    matched: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    token_texts: Mapping[int, str] = field(default_factory=dict)
    calls: tuple[WrittenCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """The samples of one request, as many as were asked for."""

    samples: tuple[Sample, ...]
    usage: Usage


class Wire(Protocol):
    """An API. `continues`: an answer can be begun for the model; `scores`: texts can be scored."""

    @property
    def continues(self) -> bool: ...

    @property
    def scores(self) -> bool: ...

    def refusal(self, op: Gen | Select) -> tuple[str, str] | None:
        """Returns why the API cannot do this, and the field to blame; None if it can."""

    def enforces(self, grammar: GrammarSpec) -> bool:
        """The API itself keeps to the constraint."""

    def gives_up(self, grammar: GrammarSpec, error: Exception) -> bool:
        """Returns true if `error` says that the API does not know such constraints after all; it is remembered."""

    async def write(self, ask: Ask, emit: Callable[[str], None] | None) -> Written:
        """Asks; `emit` is told the first sample's text as it comes. Raises BackendError."""

    async def score(self, text: str, choices: Sequence[str]) -> tuple[list[list[float]], Usage] | None:
        """The log-probabilities of each choice's tokens after a text; None if the API cannot tell."""

    async def aclose(self) -> None: ...
