"""SGLang's server arguments by name: their equivalents in bough, and those that are not supported."""

from __future__ import annotations

from typing import Any

from ...runtime.protocol.config import EngineConfig, our_value
from ...runtime.protocol.errors import RequestError

_RENAMED = {
    "context_length": "max_model_len",
    "mem_fraction_static": "memory_fraction",
    "max_running_requests": "max_num_seqs",
    "chunked_prefill_size": "max_batch_tokens",
    "max_queued_requests": "max_waiting",
    "random_seed": "seed",
    "enable_deterministic_inference": "deterministic",
}
_NEGATED = {
    "disable_radix_cache": "enable_prefix_caching",
    "disable_cuda_graph": "cuda_graphs",
    "disable_overlap_schedule": "overlap",
    "disable_jump_forward": "jump_forward",
}
_ONE_DEVICE = "one device serves the whole model; run one server a device instead"
_ONLY: dict[str, tuple[tuple[object, ...], str]] = {
    **dict.fromkeys(
        ("tp_size", "tensor_parallel_size", "dp_size", "data_parallel_size", "pp_size", "ep_size", "nnodes"),
        ((1,), _ONE_DEVICE),
    ),
    "node_rank": ((0,), _ONE_DEVICE),
    "trust_remote_code": ((False,), "code from a model's files is never run"),
    "skip_tokenizer_init": ((False,), "programs are text"),
    "is_embedding": ((False,), "embeddings are not computed"),
    "load_format": (("auto", "safetensors", "gguf"), "safetensors and GGUF files are read"),
    "chat_template": ((None,), "the model's own template is used"),
    "speculative_algorithm": ((None,), "there is no draft model"),
    "lora_paths": ((None,), "adapters are not loaded"),
    "enable_lora": ((False, None), "adapters are not loaded"),
    "revision": ((None,), "give the folder of the revision as model_path"),
}
_WITHOUT_EFFECT = frozenset({
    "attention_backend", "constrained_json_whitespace_pattern", "cuda_graph_max_bs", "decode_log_interval",
    "disable_custom_all_reduce", "disable_outlines_disk_cache", "enable_cache_report", "enable_metrics",
    "enable_mixed_chunk", "enable_torch_compile", "grammar_backend", "launch_timeout", "log_requests",
    "max_prefill_tokens", "reasoning_parser", "sampling_backend", "schedule_conservativeness", "schedule_policy",
    "show_time_cost", "stream_interval", "tokenizer_mode", "tool_call_parser", "watchdog_timeout",
})  # fmt: skip
"""They choose between ways to the same answer, or are about logs."""

_SERVER = ("host", "port", "api_key", "served_model_name", "log_level")
_PAGE_SIZE = 16


class ServerArgs:
    """Arguments of a server or an engine, in SGLang's words: for `Runtime` and `Engine`.

    model_path    name, folder, .gguf file or hub id
    arguments     SGLang's, by name, and the fields of `EngineConfig`. Those that only choose between ways to the same
                  answer have no effect

    >>> args = ServerArgs(model_path="smollm2-135m", mem_fraction_static=0.5, tp_size=1)
    >>> args.engine_options
    {'model': 'smollm2-135m', 'memory_fraction': 0.5}

    Raises:
        RequestError: an argument is unknown, or asks for what is not there.
    """

    def __init__(self, model_path: str | None = None, **arguments: Any) -> None:
        if model_path is not None:
            arguments["model"] = model_path
        self._given = arguments
        self.host: str = arguments.get("host") or "127.0.0.1"
        self.port: int = arguments.get("port") or 0
        self.api_key: str | None = arguments.get("api_key")
        self.served_model_name: str | None = arguments.get("served_model_name")
        self.log_level: str = arguments.get("log_level") or "info"
        self.engine_options = _engine_options(arguments)
        self.model_path: str = self.engine_options.get("model", EngineConfig().model)

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self._given.items() if name != "api_key")
        return f"ServerArgs({', '.join(shown)})"


def _engine_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as fields of EngineConfig."""
    fields: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in _SERVER or name in _WITHOUT_EFFECT or name == "max_total_tokens":
            continue
        if name == "tokenizer_path":
            _check(name, value, (None, arguments.get("model")), "a model is read with its own tokenizer")
        elif name in _ONLY:
            _check(name, value, *_ONLY[name])
        elif name in _NEGATED:
            fields[_NEGATED[name]] = not value
        elif value is not None:
            fields[_RENAMED.get(name, name)] = our_value(name, value)
    unknown = sorted(fields.keys() - set(EngineConfig.__struct_fields__))
    if unknown:
        raise RequestError(f"there is no argument {unknown[0]!r}", code="unsupported_parameter", param=unknown[0])
    if (num_tokens := arguments.get("max_total_tokens")) is not None:
        fields.setdefault("page_size", _PAGE_SIZE)
        fields["num_pages"] = 1 + -(-num_tokens // fields["page_size"])  # page 0 is reserved
    EngineConfig(**fields)  # raises here, where the user can see which line it was
    return fields


def _check(name: str, value: object, supported: tuple[object, ...], reason: str) -> None:
    if value not in supported:
        raise RequestError(f"{name}={value!r} is not supported: {reason}", code="unsupported_value", param=name)
