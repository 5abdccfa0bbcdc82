"""Names of SGLang's language that bough's own does not need: words, settings, patterns; and those that are refused."""

from __future__ import annotations

from typing import Any, NoReturn, Unpack

from ...runtime.protocol.errors import RequestError
from ..api import gen
from ..backend import Backend, resolve_backend, set_default_backend
from ..diagnostics.errors import ProgramError, UnsupportedError
from ..diagnostics.source_lines import located
from ..record.expression import Generate
from ..record.options import SGLANG_ORDER, TypedOptions, by_name, in_places
from ..types.schema import INTEGER, NUMBER

__all__ = ["Crusoe", "GlobalConfig", "LiteLLM", "VertexAI", "gen_int", "gen_string", "global_config"]

_ORDER = tuple(name for name in SGLANG_ORDER[: SGLANG_ORDER.index("dtype")] if name != "min_tokens")


@located
@in_places(_ORDER, TypedOptions)
def gen_int(name: str | None = None, *placed: Any, **options: Unpack[TypedOptions]) -> Generate:
    """Generates an integer: `gen(name, dtype=int)`."""
    return gen(name, int, **by_name("gen_int", _ORDER, placed, options))


@located
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


class GlobalConfig:
    """`default_backend` can be read and set. The other fields of SGLang's can be set to what they are here.

    verbosity                               0; print `state.text()` to see a program's text
    skip_special_tokens_in_output           True; `skip_special_tokens=False` is an option of `gen` and of `run`
    spaces_between_special_tokens_in_out    True
    enable_precache_with_tracing            any: common prefixes of a batch are found in the tree, without tracing
    enable_parallel_encoding                any: branches are computed side by side either way

    >>> bough.global_config.default_backend = bough.LocalBackend()
    """

    verbosity = 0
    skip_special_tokens_in_output = True
    spaces_between_special_tokens_in_out = True
    enable_precache_with_tracing = True
    enable_parallel_encoding = True

    @property
    def default_backend(self) -> Any:  # which backend it is, and what it has beside the protocol, its owner knows
        try:
            return resolve_backend(None)
        except ProgramError:
            return None

    @default_backend.setter
    def default_backend(self, backend: Backend | None) -> None:
        set_default_backend(backend)

    def __setattr__(self, name: str, value: Any) -> None:
        known = getattr(GlobalConfig, name, None)
        if name == "default_backend" or (name.startswith("enable_") and known is not None):
            object.__setattr__(self, name, value)
        elif known is None:
            raise AttributeError(f"global_config has no field {name!r}")
        elif value != known:
            raise RequestError(f"global_config.{name} can only be {known!r} here; see help(global_config)", param=name)


global_config = GlobalConfig()


# For `regex=`: what JSON can hold of each type. After a number may stand one space or line break, for programs that
# stop there. `dtype=` needs neither.
REGEX_INT = INTEGER + r"[ \n]?"
REGEX_FLOAT = NUMBER + r"[ \n]?"
REGEX_BOOL = "True|False"
REGEX_STR = r'"([^"\\\x00-\x1f]|\\["\\/bfnrt])*"'
