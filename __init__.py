"""bough: write multi-call LLM programs in Python; they run next to a radix-tree KV cache.

Every public name, and the module that holds it. A name is imported when it is first used, so `import bough` costs
next to nothing and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what `_HOMES` says, for type checkers; tests/test_facade.py compares the two
    from bough.constrain.spec import Choice as Choice
    from bough.constrain.spec import JsonSchema as JsonSchema
    from bough.constrain.spec import Lark as Lark
    from bough.constrain.spec import Regex as Regex
    from bough.lang.api import assistant as assistant
    from bough.lang.api import assistant_begin as assistant_begin
    from bough.lang.api import assistant_end as assistant_end
    from bough.lang.api import flush_cache as flush_cache
    from bough.lang.api import function as function
    from bough.lang.api import gen as gen
    from bough.lang.api import gen_int as gen_int
    from bough.lang.api import gen_string as gen_string
    from bough.lang.api import image as image
    from bough.lang.api import select as select
    from bough.lang.api import set_default_backend as set_default_backend
    from bough.lang.api import system as system
    from bough.lang.api import system_begin as system_begin
    from bough.lang.api import system_end as system_end
    from bough.lang.api import user as user
    from bough.lang.api import user_begin as user_begin
    from bough.lang.api import user_end as user_end
    from bough.lang.backends.http import HttpBackend as HttpBackend
    from bough.lang.backends.local import LocalBackend as LocalBackend
    from bough.lang.backends.mock import MockBackend as MockBackend
    from bough.lang.errors import ProgramError as ProgramError
    from bough.lang.program import Function as Function
    from bough.lang.program import State as State
    from bough.runtime.errors import BoughError as BoughError
    from bough.runtime.errors import EngineError as EngineError
    from bough.runtime.errors import RequestError as RequestError
    from bough.runtime.llm import LLM as LLM
    from bough.runtime.sampling import SamplingParams as SamplingParams

__version__ = "0.1.0"

_HOMES = {
    "bough.constrain.spec": ("Choice", "JsonSchema", "Lark", "Regex"),
    "bough.lang.api": (
        "assistant",
        "assistant_begin",
        "assistant_end",
        "flush_cache",
        "function",
        "gen",
        "gen_int",
        "gen_string",
        "image",
        "select",
        "set_default_backend",
        "system",
        "system_begin",
        "system_end",
        "user",
        "user_begin",
        "user_end",
    ),
    "bough.lang.backends.http": ("HttpBackend",),
    "bough.lang.backends.local": ("LocalBackend",),
    "bough.lang.backends.mock": ("MockBackend",),
    "bough.lang.errors": ("ProgramError",),
    "bough.lang.program": ("Function", "State"),
    "bough.runtime.errors": ("BoughError", "EngineError", "RequestError"),
    "bough.runtime.llm": ("LLM",),
    "bough.runtime.sampling": ("SamplingParams",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)

if not TYPE_CHECKING:  # hidden from type checkers: to them it would make every misspelt name an object

    def __getattr__(name: str) -> object:
        module = _HOME_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
