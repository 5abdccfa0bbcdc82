"""Names of SGLang's that have no counterpart here: calling one says what to use instead."""

from __future__ import annotations

from typing import NoReturn

from ..diagnostics.errors import UnsupportedError

__all__ = ["Crusoe", "LiteLLM", "VertexAI"]


def LiteLLM(*_: object, **__: object) -> NoReturn:  # noqa: N802  a class there
    """Not here: a LiteLLM proxy speaks OpenAI's protocol.

    Raises:
        UnsupportedError: always.
    """
    _refuse("LiteLLM", "start its proxy, and use OpenAI(model, base_url='http://127.0.0.1:4000/v1', api_key=...)")


def VertexAI(*_: object, **__: object) -> NoReturn:  # noqa: N802
    """Not here: Vertex AI has an endpoint that speaks OpenAI's protocol.

    Raises:
        UnsupportedError: always.
    """
    _refuse("VertexAI", "use OpenAI(model, base_url=<its OpenAI-compatible endpoint>, api_key=<access token>)")


def Crusoe(*_: object, **__: object) -> NoReturn:  # noqa: N802
    """Not here: Crusoe speaks OpenAI's protocol.

    Raises:
        UnsupportedError: always.
    """
    _refuse("Crusoe", "use OpenAI(model, base_url=<its address>, api_key=...)")


def _refuse(name: str, advice: str) -> NoReturn:
    raise UnsupportedError(f"bough has no backend {name}: {advice}", code="unsupported", param="backend")
