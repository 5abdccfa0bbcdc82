"""`global_config`: SGLang's settings of the whole process, as far as there is something to set."""

from __future__ import annotations

from typing import Any

from ...runtime.protocol.errors import RequestError
from ..backend import Backend, resolve_backend, set_default_backend
from ..diagnostics.errors import ProgramError

__all__ = ["GlobalConfig", "global_config"]


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
