"""Words of SGLang's language that bough's own have no need of, and those that are refused with advice."""

from __future__ import annotations

from typing import Any, NoReturn, Unpack

from ..api import gen
from ..diagnostics.errors import UnsupportedError
from ..record.expression import Generate
from ..record.options import SGLANG_ORDER, TypedOptions, by_name, in_places

__all__ = ["Crusoe", "LiteLLM", "VertexAI", "gen_int", "gen_string"]

_ORDER = tuple(name for name in SGLANG_ORDER[: SGLANG_ORDER.index("dtype")] if name != "min_tokens")


@in_places(_ORDER, TypedOptions)
def gen_int(name: str | None = None, *placed: Any, **options: Unpack[TypedOptions]) -> Generate:
    """Generates an integer: `gen(name, dtype=int)`."""
    return gen(name, int, **by_name("gen_int", _ORDER, placed, options))


@in_places(_ORDER, TypedOptions)
def gen_string(name: str | None = None, *placed: Any, **options: Unpack[TypedOptions]) -> Generate:
    """Generates a string in quotes; the variable is what stands between them: `gen(name, dtype=str)`."""
    return gen(name, str, **by_name("gen_string", _ORDER, placed, options))


class _Absent:
    """A backend of SGLang's that has no counterpart: calling it raises UnsupportedError, which says what to use."""

    def __init__(self, name: str, advice: str) -> None:
        self._advice = f"bough has no backend {name}: {advice}"

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError(self._advice, code="unsupported", param="backend")


LiteLLM = _Absent("LiteLLM", "start its proxy, and use OpenAI(model, base_url='http://127.0.0.1:4000/v1', api_key=...)")
VertexAI = _Absent("VertexAI", "use OpenAI(model, base_url=<its OpenAI-compatible endpoint>, api_key=<access token>)")
Crusoe = _Absent("Crusoe", "use OpenAI(model, base_url=<its address>, api_key=...)")
