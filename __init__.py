"""bough: write multi-call LLM programs in Python; they run next to a radix-tree KV cache.

`lang` records programs, `server` is the HTTP API, and `runtime` executes the requests of both; below it `radix` caches
prefixes and evicts their pages, `constrain` makes grammars and masks, `kernels` computes. `cli` is the command line.

This module lists every public name with the module that holds it. A name is imported when it is first used, so `import
bough` costs next to nothing and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what `_HOMES` says, for type checkers; tests/house/test_facade.py compares the two
    from bough.constrain.spec import Choice as Choice
    from bough.constrain.spec import JsonSchema as JsonSchema
    from bough.constrain.spec import Lark as Lark
    from bough.constrain.spec import Regex as Regex
    from bough.lang.api import assistant as assistant
    from bough.lang.api import assistant_begin as assistant_begin
    from bough.lang.api import assistant_end as assistant_end
    from bough.lang.api import call_tools as call_tools
    from bough.lang.api import flush_cache as flush_cache
    from bough.lang.api import function as function
    from bough.lang.api import gen as gen
    from bough.lang.api import get_server_info as get_server_info
    from bough.lang.api import image as image
    from bough.lang.api import select as select
    from bough.lang.api import separate_reasoning as separate_reasoning
    from bough.lang.api import set_default_backend as set_default_backend
    from bough.lang.api import system as system
    from bough.lang.api import system_begin as system_begin
    from bough.lang.api import system_end as system_end
    from bough.lang.api import user as user
    from bough.lang.api import user_begin as user_begin
    from bough.lang.api import user_end as user_end
    from bough.lang.api import video as video
    from bough.lang.backend import use_backend as use_backend
    from bough.lang.backends.apis.anthropic import Anthropic as Anthropic
    from bough.lang.backends.apis.openai import OpenAI as OpenAI
    from bough.lang.backends.cassette import Cassette as Cassette
    from bough.lang.backends.http import HttpBackend as HttpBackend
    from bough.lang.backends.local import LocalBackend as LocalBackend
    from bough.lang.backends.mock import MockBackend as MockBackend
    from bough.lang.compile.compiled import CompiledProgram as CompiledProgram
    from bough.lang.compile.placeholder import CompileError as CompileError
    from bough.lang.control import count as count
    from bough.lang.control import repeat_until as repeat_until
    from bough.lang.control import times as times
    from bough.lang.control import var as var
    from bough.lang.control import when as when
    from bough.lang.diagnostics.errors import BackendError as BackendError
    from bough.lang.diagnostics.errors import ProgramError as ProgramError
    from bough.lang.function import Function as Function
    from bough.lang.function import State as State
    from bough.lang.observe.otel import observe as observe
    from bough.lang.observe.timelines.timeline import BatchTimeline as BatchTimeline
    from bough.lang.observe.timelines.timeline import Timeline as Timeline
    from bough.lang.record.choices import greedy_token_selection as greedy_token_selection
    from bough.lang.record.choices import token_length_normalized as token_length_normalized
    from bough.lang.record.choices import unconditional_likelihood_normalized as unconditional_likelihood_normalized
    from bough.lang.record.condition import Condition as Condition
    from bough.lang.sglang.endpoint import RuntimeEndpoint as RuntimeEndpoint
    from bough.lang.sglang.engine import Engine as Engine
    from bough.lang.sglang.runtime import Runtime as Runtime
    from bough.lang.sglang.server_args import ServerArgs as ServerArgs
    from bough.lang.sglang.words import Crusoe as Crusoe
    from bough.lang.sglang.words import LiteLLM as LiteLLM
    from bough.lang.sglang.words import VertexAI as VertexAI
    from bough.lang.sglang.words import gen_int as gen_int
    from bough.lang.sglang.words import gen_string as gen_string
    from bough.lang.sglang.words import global_config as global_config
    from bough.lang.state.conversation import Conversation as Conversation
    from bough.lang.state.trimming import KeepLast as KeepLast
    from bough.lang.state.trimming import Summarise as Summarise
    from bough.lang.tools.http_tool import http_tool as http_tool
    from bough.lang.tools.mcp_server import McpServer as McpServer
    from bough.lang.tools.mcp_server import mcp_server as mcp_server
    from bough.lang.tools.offered import ToolCall as ToolCall
    from bough.lang.tools.tool import Tool as Tool
    from bough.lang.tools.tool import tool as tool
    from bough.lang.tools.tool import use as use
    from bough.runtime.client.llm import LLM as LLM
    from bough.runtime.protocol.errors import BoughError as BoughError
    from bough.runtime.protocol.errors import EngineError as EngineError
    from bough.runtime.protocol.errors import RequestError as RequestError
    from bough.runtime.protocol.program import BranchFailed as BranchFailed
    from bough.runtime.protocol.program import BranchRestarted as BranchRestarted
    from bough.runtime.protocol.program import Delta as Delta
    from bough.runtime.protocol.program import Done as Done
    from bough.runtime.protocol.program import Failed as Failed
    from bough.runtime.protocol.program import Piece as Piece
    from bough.runtime.protocol.program import Skipped as Skipped
    from bough.runtime.protocol.program import Value as Value
    from bough.runtime.protocol.sampling_params import SamplingParams as SamplingParams

__version__ = "0.1.0"

_HOMES = {
    "bough.constrain.spec": ("Choice", "JsonSchema", "Lark", "Regex"),
    "bough.lang.sglang.words": ("Crusoe", "LiteLLM", "VertexAI", "gen_int", "gen_string", "global_config"),
    "bough.lang.api": (
        "assistant",
        "assistant_begin",
        "assistant_end",
        "call_tools",
        "flush_cache",
        "function",
        "gen",
        "get_server_info",
        "image",
        "select",
        "separate_reasoning",
        "set_default_backend",
        "system",
        "system_begin",
        "system_end",
        "user",
        "user_begin",
        "user_end",
        "video",
    ),
    "bough.lang.backend": ("use_backend",),
    "bough.lang.backends.apis.anthropic": ("Anthropic",),
    "bough.lang.backends.cassette": ("Cassette",),
    "bough.lang.sglang.endpoint": ("RuntimeEndpoint",),
    "bough.lang.sglang.engine": ("Engine",),
    "bough.lang.backends.http": ("HttpBackend",),
    "bough.lang.sglang.runtime": ("Runtime",),
    "bough.lang.backends.local": ("LocalBackend",),
    "bough.lang.backends.mock": ("MockBackend",),
    "bough.lang.backends.apis.openai": ("OpenAI",),
    "bough.lang.sglang.server_args": ("ServerArgs",),
    "bough.lang.record.choices": (
        "greedy_token_selection",
        "token_length_normalized",
        "unconditional_likelihood_normalized",
    ),
    "bough.lang.compile.compiled": ("CompiledProgram",),
    "bough.lang.compile.placeholder": ("CompileError",),
    "bough.lang.record.condition": ("Condition",),
    "bough.lang.control": ("count", "repeat_until", "times", "var", "when"),
    "bough.lang.diagnostics.errors": ("BackendError", "ProgramError"),
    "bough.lang.tools.http_tool": ("http_tool",),
    "bough.lang.observe.otel": ("observe",),
    "bough.lang.function": ("Function", "State"),
    "bough.lang.observe.timelines.timeline": ("BatchTimeline", "Timeline"),
    "bough.lang.state.conversation": ("Conversation",),
    "bough.lang.state.trimming": ("KeepLast", "Summarise"),
    "bough.lang.tools.mcp_server": ("McpServer", "mcp_server"),
    "bough.lang.tools.offered": ("ToolCall",),
    "bough.lang.tools.tool": ("Tool", "tool", "use"),
    "bough.runtime.protocol.errors": ("BoughError", "EngineError", "RequestError"),
    "bough.runtime.client.llm": ("LLM",),
    "bough.runtime.protocol.program": (
        "BranchFailed",
        "BranchRestarted",
        "Delta",
        "Done",
        "Failed",
        "Piece",
        "Skipped",
        "Value",
    ),
    "bough.runtime.protocol.sampling_params": ("SamplingParams",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)

_FOLDERS = ("benchmarks", "cli", "constrain", "kernels", "lang", "radix", "runtime", "server")
_MEANT = {
    **dict.fromkeys(
        ("Chat", "ChatSession", "History", "Session", "chat", "load", "session"),
        "f.after(state) continues a program, and bough.Conversation holds, saves and loads what was said",
    ),
    **dict.fromkeys(("fork", "fork_samples", "join", "copy"), "a state is forked, branches = s.fork(2)"),
    **dict.fromkeys(("generate", "complete"), "that is bough.gen(name)"),
    **dict.fromkeys(("Local", "Model", "Backend"), "bough.LocalBackend(model) loads a model"),
    "run": "a program is run, f.run(...), after @bough.function",
}
"""Likely meanings of names that do not exist."""

if not TYPE_CHECKING:  # hidden from type checkers: to them it would make every misspelt name an object

    def __getattr__(name: str) -> object:
        module = _HOME_OF.get(name)
        if module is None:
            if name.startswith("_") or name in _FOLDERS:
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            lines = import_module("bough.lang.diagnostics.source_lines")
            with lines.users_lines:
                raise lines.no_attribute(f"module {__name__!r}", name, _MEANT, _HOME_OF)
        value = getattr(import_module(module), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
