"""/metrics: the format, our names and the aliases that scripts read."""

from __future__ import annotations

import re
from typing import Any

from bough.runtime.protocol.counters import EngineStats
from bough.runtime.protocol.request import Finish, Timings, Usage
from bough.server.metrics import ServerMetrics, kv_usage

from .conftest import Start
from .fake_client import INFO

SAMPLE = re.compile(r'([a-z][a-z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)+)\})? ([0-9.e+-]+)')


def samples(text: str) -> dict[str, float]:
    """Every sample line by name and labels; fails on a line of another form, a repeat, or a family without a type."""
    found: dict[str, float] = {}
    families: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            assert line.split()[2] not in families
            families.add(line.split()[2])
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] in families or re.sub(r"_(bucket|sum|count)$", "", match[1]) in families
            key = line.rpartition(" ")[0]
            assert key not in found
            found[key] = float(match[3])
    return found


def test_the_page_over_http(start: Start) -> None:
    server = start()
    body: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    server.http().post("/v1/chat/completions", json=body)
    server.http().get("/some/unknown/path")
    response = server.http().get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(response.text)
    assert found["bough_running"] == 2
    assert found['bough_finished_total{reason="stop"}'] == 3
    assert found["bough_kv_cache_usage_ratio"] == 0.1
    assert found['bough_http_responses_total{path="/v1/chat/completions",status="200"}'] == 1
    assert found['bough_http_responses_total{path="other",status="404"}'] == 1
    assert found["bough_request_seconds_count"] == 1
    label = '{model_name="tiny"}'
    assert found[f"vllm:num_requests_running{label}"] == 2
    assert found[f"vllm:num_requests_waiting{label}"] == 1
    assert found[f"vllm:kv_cache_usage_perc{label}"] == found[f"vllm:gpu_cache_usage_perc{label}"] == 0.1
    assert found[f"vllm:cpu_prefix_cache_hit_rate{label}"] == 0.25
    assert found['vllm:request_success_total{model_name="tiny",finished_reason="stop"}'] == 1


def test_scripts_that_match_by_substring_find_one_line() -> None:
    lines = ServerMetrics().render(EngineStats(), INFO).splitlines()
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:gpu_cache_usage_perc"):
        assert len([line for line in lines if name in line and not line.startswith("#")]) == 1


def test_histograms_count_by_upper_bound() -> None:
    metrics = ServerMetrics()
    timings = Timings(queue_s=0.5, prefill_s=0.5, decode_s=9.0)
    metrics.finished(Finish(reason="stop", usage=Usage(prompt_tokens=4, completion_tokens=10), timings=timings))
    metrics.finished(Finish(reason="abort"))
    found = samples(metrics.render(EngineStats(), INFO))
    name = "bough_time_to_first_token_seconds"
    assert found[f'{name}_bucket{{le="0.5"}}'] == 0
    assert found[f'{name}_bucket{{le="1.0"}}'] == found[f'{name}_bucket{{le="+Inf"}}'] == found[f"{name}_count"] == 1
    assert found["bough_time_per_output_token_seconds_sum"] == 1.0
    assert found["bough_request_seconds_sum"] == 10.0


def test_cache_usage_is_a_share() -> None:
    assert kv_usage(EngineStats()) == 0.0
    assert kv_usage(EngineStats(num_pages=10, locked_pages=10)) == 1.0
    assert kv_usage(EngineStats(num_pages=10, free_pages=2, cached_pages=4, locked_pages=4)) == 0.4
    assert kv_usage(EngineStats(num_pages=10, free_pages=6, cached_pages=4)) == 0.0
