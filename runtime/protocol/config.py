"""Settings of an engine: a small frozen value, and the one place that resolves "auto"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from .errors import RequestError

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")

MAX_WEIGHT = 100
MAX_RESTARTS = 1000


STORED = ("awq", "gptq", "gguf")
"""Values of `quantization` that ask for the checkpoint's own format, and round nothing."""

VALUES: Mapping[str, Mapping[str, str]] = {
    "dtype": {"half": "float16", "float": "float32", "fp16": "float16", "bf16": "bfloat16"},
    "kv_cache_dtype": {"fp8": "fp8_e4m3", "half": "float16", "fp16": "float16", "bf16": "bfloat16"},
    "quantization": {"w8a8_int8": "w8a8", "w8a8_fp8": "fp8"},
}
"""Values of settings as vLLM and SGLang spell them, and ours."""


def our_value(name: str, value: Any) -> Any:
    """Returns our spelling of a setting's value."""
    return VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an engine; the defaults suit most uses. "Unset" is None.

    model                   name ("smollm2-135m"), folder, .gguf file, Hub id, or URL of a .gguf file
    dtype                   dtype of weights and activations: "auto", "float32", "bfloat16", "float16"
    kv_cache_dtype          dtype of keys and values: "auto" is that of the activations, or 16-bit codes with the
                            "native" attention_backend; "fp8_e4m3" (GPU) and "int8" ("native") hold twice as much
    quantization            format of the layers' weights: "fp8", "int8", "w8a8", "int4"; unset: the checkpoint's own;
                            "awq", "gptq", "gguf": the checkpoint's own, but refuse any other format
    activations             inputs of products with the "native" attention_backend: "mixed" ("auto"), with 16 bits where
                            they are far above the others of their token, or "int8", which is faster and less accurate;
                            "w8a8" weights have "int8"
    device                  "auto", "cpu", "cuda", "cuda:1", ...
    max_model_len           maximum tokens of prompt and completion; unset: the model's context length
    max_num_seqs            maximum sequences running at once; unset: 64 on the CPU, 256 on a GPU
    max_batch_tokens        maximum query tokens in a step; longer prompts are computed in chunks beside decodes; unset:
                            512 on the CPU, 8192 on a GPU (2048 if deterministic)
    max_step_ms             longest step while another request waits for its next token: prompts then get smaller
                            chunks, of at least 16 tokens; unset: 100, or four decode-only steps if that is longer
    page_size               tokens in a KV page; unset: 1 on the CPU (every shared token is found), 16 on a GPU
    num_pages               number of KV pages; unset: as many as fit into kv_cache_memory
    kv_cache_memory         bytes for keys and values; unset: a share of the free memory (memory_fraction)
    memory_fraction         if kv_cache_memory is unset: on the CPU, the share of the memory free after loading that
                            becomes KV cache (unset: 0.25); on a GPU, the share of its memory used in total, by
                            weights, activations and cache (unset: 0.9)
    enable_prefix_caching   share computed prefixes between requests
    max_waiting             maximum requests in the queue; further ones are refused
    max_states              maximum program states kept between submissions; the oldest is dropped
    seed                    seed of requests without one
    jump_forward            propose tokens that a grammar forces as drafts, verified in one forward pass
    speculation             "auto": draft repetitions of the text so far, or of other answers under the same JSON
                            Schema, verified in one forward pass, where that saves time ("native"); "off": never. The
                            output is the same
    attention_backend       "auto": Triton kernels on a GPU. On a CPU "native", the C library, for quantised models of
                            the Llama family if dtype is "auto", too: it rounds activations to 8 bits. For all other
                            models, or if the library was not built, torch
    overlap                 launch a pass before the previous one is read (GPU)
    cuda_graphs             replay decode steps, and passes of up to 2,048 tokens, as graphs (GPU)
    max_decode_steps        maximum decode steps in one launch, when the device samples by itself (GPU)
    deterministic           answers do not depend on batch, cache or chunking, to the bit, at some cost (GPU; on a CPU
                            they never do, with "native" and in float32)
    """

    model: str = "smollm2-135m"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8_e4m3", "int8"] = "auto"
    quantization: Literal["fp8", "int8", "w8a8", "int4", "awq", "gptq", "gguf"] | None = None
    activations: Literal["auto", "int8", "mixed"] = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_batch_tokens: int | None = None
    max_step_ms: float | None = None
    page_size: int | None = None
    num_pages: int | None = None
    kv_cache_memory: int | None = None
    memory_fraction: float | None = None
    enable_prefix_caching: bool = True
    max_waiting: int = 4096
    max_states: int = 1024
    seed: int = 0
    jump_forward: bool = True
    speculation: Literal["auto", "off"] = "auto"
    attention_backend: Literal["auto", "torch", "triton", "native"] = "auto"
    overlap: bool = True
    cuda_graphs: bool = True
    max_decode_steps: int = 4
    deterministic: bool = False
    tenant_weights: dict[str, int] = {}
    """Weight of a tenant (an API key, by name) when batch slots, tokens, pages and the queue are shared: 1 to 100, by
    default 1. Has no flag: it comes with the keys."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise RequestError(f"{name} must be from -2^63 to 2^63 - 1, got {value}", param=name)
        for name in (
            "max_model_len",
            "max_num_seqs",
            "max_batch_tokens",
            "page_size",
            "kv_cache_memory",
            "max_waiting",
            "max_states",
            "max_decode_steps",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RequestError(f"{name} must be at least 1, got {value}", param=name)
        if not _DEVICE.fullmatch(self.device):
            message = f"device must be auto, cpu, cuda or cuda:0, cuda:1, ...; got {self.device!r}"
            raise RequestError(message, param="device")
        for tenant, weight in self.tenant_weights.items():
            if not 1 <= weight <= MAX_WEIGHT:
                message = f"the weight of {tenant!r} must be 1 to {MAX_WEIGHT}, got {weight}"
                raise RequestError(message, param="tenant_weights")
        if self.max_step_ms is not None and not self.max_step_ms > 0.0:
            raise RequestError(f"max_step_ms must be above 0, got {self.max_step_ms}", param="max_step_ms")
        if self.num_pages is not None and self.num_pages < 2:
            raise RequestError(
                f"num_pages must be at least 2 (page 0 is reserved), got {self.num_pages}", param="num_pages"
            )
        if self.memory_fraction is not None and not 0.0 < self.memory_fraction <= 1.0:
            raise RequestError(
                f"memory_fraction must be above 0 and at most 1, got {self.memory_fraction}", param="memory_fraction"
            )

    def limits(self, device: str) -> SchedulerLimits:
        """The scheduler's bounds on a device."""
        on_cpu = device == "cpu"
        return SchedulerLimits(
            max_num_seqs=self.max_num_seqs or (64 if on_cpu else 256),
            # Fixed borders of splits keep partial results of each: more of them the more tokens a pass has.
            max_batch_tokens=self.max_batch_tokens or (512 if on_cpu else 2048 if self.deterministic else 8192),
        )


class SupervisorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for supervising an engine's process.

    restarts          maximum restarts in ten minutes
    stuck_timeout_s   seconds without progress after which the engine is killed
    """

    restarts: int = 3
    stuck_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.restarts <= MAX_RESTARTS:
            message = f"restarts must be 0 to {MAX_RESTARTS}, got {self.restarts}"
            raise RequestError(message, param="restarts")
        if not self.stuck_timeout_s > 0.0:
            message = f"stuck_timeout_s must be above 0, got {self.stuck_timeout_s}"
            raise RequestError(message, param="stuck_timeout_s")


class SchedulerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one step, and of unfairness: after `max_passes` steps of waiting a sequence goes before all others of
    its tenant.

    `hold_back` is the number of tokens at which waiting for a prefix that another sequence is computing right now
    beats computing it again.
    """

    max_num_seqs: int = 64
    max_batch_tokens: int = 512
    max_passes: int = 64
    hold_back: int = 16
    window: int = 256
