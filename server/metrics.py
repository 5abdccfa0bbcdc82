"""Metrics in Prometheus' text format: bough's names, and aliases for existing dashboards."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from ..runtime.protocol.counters import EngineStats, ModelInfo
from ..runtime.protocol.request import Finish, Usage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LAGS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)

Labels = Sequence[tuple[str, str]]


class KeyUse(Protocol):
    """Use of one API key; without keys all are one, whose name is empty."""

    name: str
    num_requests: int
    refused: Counter[str]
    used: Usage


class Histogram:
    """Counts of values by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str, help_text: str, labels: Labels) -> Iterator[str]:
        yield from _head(name, "histogram", help_text)
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield _sample(f"{name}_bucket", total, [*labels, ("le", str(bound))])
        yield _sample(f"{name}_sum", self._sum, labels)
        yield _sample(f"{name}_count", total, labels)


class ServerMetrics:
    """Counters of the server itself. Used on the event loop only."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, int]] = Counter()
        self.failed_streams: Counter[str] = Counter()
        self.unknown_fields = 0
        self.disconnects = 0
        self._finished: Counter[str] = Counter()
        self._latencies = {
            "time_to_first_token_seconds": Histogram(_SECONDS),
            "time_per_output_token_seconds": Histogram((0.001, 0.0025, *_SECONDS)),
            "request_queue_seconds": Histogram(_SECONDS),
            "request_seconds": Histogram(_SECONDS),
        }
        self.loop_lag = Histogram(_LAGS)
        self._lengths = {"request_prompt_tokens": Histogram(_TOKENS), "request_completion_tokens": Histogram(_TOKENS)}

    def finished(self, finish: Finish) -> None:
        """Counts a generation that ended."""
        timings, usage = finish.timings, finish.usage
        self._finished[finish.reason] += 1
        if finish.reason not in ("stop", "length"):
            return
        first = timings.queue_s + timings.prefill_s
        self._latencies["time_to_first_token_seconds"].observe(first)
        self._latencies["request_queue_seconds"].observe(timings.queue_s)
        self._latencies["request_seconds"].observe(first + timings.decode_s)
        if usage.completion_tokens > 1:
            self._latencies["time_per_output_token_seconds"].observe(timings.decode_s / (usage.completion_tokens - 1))
        self._lengths["request_prompt_tokens"].observe(usage.prompt_tokens)
        self._lengths["request_completion_tokens"].observe(usage.completion_tokens)

    def render(self, stats: EngineStats, info: ModelInfo, keys: Iterable[KeyUse] = ()) -> str:
        """The whole page."""
        lines = [*self._own_lines(stats), *_key_lines(list(keys)), *self._alias_lines(stats, info.name)]
        return "\n".join(lines) + "\n"

    def _own_lines(self, stats: EngineStats) -> Iterator[str]:
        for name in stats.__struct_fields__:
            value = getattr(stats, name)
            kind = "counter" if name.endswith("_total") else "gauge"
            if isinstance(value, dict):
                yield from _family(f"bough_{name}", kind, _HELP[name], (([("reason", k)], n) for k, n in value.items()))
            else:
                yield from _family(f"bough_{name}", kind, _HELP[name], [([], value)])
        help_text = "Share of the KV pages held by running requests."
        yield from _family("bough_kv_cache_usage_ratio", "gauge", help_text, [([], kv_usage(stats))])
        for name, histogram in {**self._latencies, **self._lengths, "event_loop_lag_seconds": self.loop_lag}.items():
            yield from histogram.lines(f"bough_{name}", _HELP[name], ())
        responses = (([("path", path), ("status", str(code))], n) for (path, code), n in sorted(self.responses.items()))
        yield from _family("bough_http_responses_total", "counter", "Answers by path and status.", responses)
        failed = (([("code", code)], n) for code, n in sorted(self.failed_streams.items()))
        help_text = "Streams that failed after they had begun with status 200, by error code."
        yield from _family("bough_streams_failed_total", "counter", help_text, failed)
        help_text = "Unknown body fields, which were ignored."
        yield from _family("bough_unknown_fields_total", "counter", help_text, [([], self.unknown_fields)])
        help_text = "Clients that disconnected before their answer was complete."
        yield from _family("bough_disconnects_total", "counter", help_text, [([], self.disconnects)])

    def _alias_lines(self, stats: EngineStats, model: str) -> Iterator[str]:
        labels: Labels = [("model_name", model)]
        for name, (kind, value) in _aliases(stats).items():
            yield from _family(f"vllm:{name}", kind, _ALIAS_HELP, [(labels, value)])
        finished = (([*labels, ("finished_reason", reason)], n) for reason, n in sorted(self._finished.items()))
        yield from _family("vllm:request_success_total", "counter", _ALIAS_HELP, finished)
        for theirs, ours in _HISTOGRAM_ALIASES.items():
            yield from self._latencies[ours].lines(f"vllm:{theirs}", _ALIAS_HELP, labels)


def _key_lines(keys: Sequence[KeyUse]) -> Iterator[str]:
    requests = (([("key", key.name)], key.num_requests) for key in keys)
    yield from _family("bough_key_requests_total", "counter", "Requests accepted, by key.", requests)
    refused = (
        ([("key", key.name), ("limit", limit)], count) for key in keys for limit, count in sorted(key.refused.items())
    )
    yield from _family("bough_key_refused_total", "counter", "Requests refused by a limit of their key.", refused)
    tokens = (
        ([("key", key.name), ("kind", kind)], getattr(key.used, f"{kind}_tokens"))
        for key in keys
        for kind in ("prompt", "cached", "completion")
    )
    yield from _family("bough_key_tokens_total", "counter", "Tokens of prompts and answers, by key.", tokens)


def kv_usage(stats: EngineStats) -> float:
    """Share of the KV pages that are neither free nor merely cached."""
    return stats.locked_pages / stats.num_pages if stats.num_pages else 0.0


_ALIAS_HELP = "Alias for dashboards made for other servers."
_HISTOGRAM_ALIASES = {
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "request_time_per_output_token_seconds": "time_per_output_token_seconds",
    "request_queue_time_seconds": "request_queue_seconds",
    "e2e_request_latency_seconds": "request_seconds",
}


def _aliases(stats: EngineStats) -> dict[str, tuple[str, float]]:
    """Names that scripts look for, old ones included. None has another one's name as its beginning."""
    usage = kv_usage(stats)
    hit_rate = stats.cached_tokens_total / stats.prompt_tokens_total if stats.prompt_tokens_total else 0.0
    batched = stats.computed_tokens_total / stats.steps_total if stats.steps_total else 0.0
    return {
        "num_requests_running": ("gauge", stats.running),
        "num_requests_waiting": ("gauge", stats.waiting),
        "kv_cache_usage_perc": ("gauge", usage),
        "gpu_cache_usage_perc": ("gauge", usage),
        "cpu_prefix_cache_hit_rate": ("gauge", hit_rate),
        "gpu_prefix_cache_hit_rate": ("gauge", hit_rate),
        "avg_num_batched_tokens": ("gauge", batched),
        "prefix_cache_queries_total": ("counter", stats.prompt_tokens_total),
        "prefix_cache_hits_total": ("counter", stats.cached_tokens_total),
        "num_preemptions_total": ("counter", stats.preemptions_total),
        "prompt_tokens_total": ("counter", stats.prompt_tokens_total),
        "generation_tokens_total": ("counter", stats.generated_tokens_total),
    }


_HELP = {
    "up": "1 while the engine accepts requests; 0 while it is stuck or restarting.",
    "restarts_total": "Restarts of the engine's process.",
    "running": "Running requests.",
    "waiting": "Requests in the queue.",
    "states": "Program states kept between segments.",
    "abandoned_tools": "Tool calls that nobody waits for and that have not returned, and event loops that one blocks.",
    "num_pages": "All KV pages.",
    "free_pages": "Free KV pages.",
    "cached_pages": "KV pages of the prefix cache that can be evicted.",
    "locked_pages": "KV pages in use, in the prefix cache or not.",
    "steps_total": "Forward passes.",
    "requests_total": "Requests taken.",
    "programs_total": "Programs taken.",
    "finished_total": "Requests that ended, by reason.",
    "prompt_tokens_total": "Prompt tokens of the requests.",
    "cached_tokens_total": "Prompt tokens found in the prefix cache.",
    "computed_tokens_total": "Tokens that went through the model.",
    "generated_tokens_total": "Tokens generated.",
    "forced_tokens_total": "Generated tokens that a grammar forced.",
    "guessed_tokens_total": "Tokens drafted from the text so far, and verified.",
    "right_guesses_total": "Drafted tokens that were right.",
    "retried_passes_total": "Parts of passes repeated after running out of memory.",
    "failed_passes_total": "Passes that failed, and the requests in them.",
    "preemptions_total": "Running requests that were retracted.",
    "evicted_tokens_total": "Tokens evicted from the prefix cache.",
    "grammars_compiled_total": "Grammars compiled.",
    "grammar_cache_hits_total": "Compiled grammars found in the cache.",
    "step_seconds_total": "Time in steps.",
    "forward_seconds_total": "Time in forward passes.",
    "mask_seconds_total": "Time spent waiting for grammar masks.",
    "sample_seconds_total": "Time spent sampling tokens.",
    "time_to_first_token_seconds": "From arrival to the first token.",
    "time_per_output_token_seconds": "Mean time between the tokens of a request.",
    "request_queue_seconds": "From arrival to admission.",
    "request_seconds": "From arrival to the last token.",
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_completion_tokens": "Generated tokens of a request.",
    "event_loop_lag_seconds": "Lag of the server's event loop, sampled 50 times a second.",
}


def _family(name: str, kind: str, help_text: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    yield from _head(name, kind, help_text)
    for labels, value in samples:
        yield _sample(name, value, labels)


def _head(name: str, kind: str, help_text: str) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"


def _sample(name: str, value: float, labels: Labels) -> str:
    inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    number = str(value) if isinstance(value, int) else repr(float(value))
    return f"{name}{{{inner}}} {number}" if inner else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
