"""What the numbers are to be: each target beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from .rows import Report, Row

_LARGE, _SMALL = "8b", "0.6b"
_BIG_CACHE = 256e6  # bytes: a launch that reads so much is limited by bandwidth alone


@dataclass(frozen=True)
class Verdict:
    """A target and the rows that decide it. `value` is the worst of them; None: not measured."""

    name: str
    goal: str
    value: float | None
    text: str
    passed: bool | None
    rows: tuple[Row, ...]


Figure = Callable[[Row], float | None]


def verdicts(report: Report) -> list[Verdict]:
    """All targets, in the order of the sections. What tiny sizes give is not judged."""
    found = [*_kernels(report), *_engine(report), *_peers(report)]
    return found if report.meaningful else [replace(verdict, passed=None) for verdict in found]


def _kernels(report: Report) -> list[Verdict]:
    decode = [row for row in report.find("decode") if (row.bytes or 0) >= _BIG_CACHE]
    prefill = [row for row in report.find("extend") if row.cfg.get("T", 0) >= 4096]
    short = [row for row in report.find("extend") if row.cfg.get("T", 0) <= 64 and row.cfg.get("P", 0) >= 8192]
    tree = [row for row in report.find("tree") if row.cfg.get("load") == "8k x 64"]
    apart = [row for row in report.find("tree") if row.cfg.get("load") == "unshared"]
    filters = report.find("sampler", B=64, kind="all filters")
    masked = report.find("sampler", B=64, kind="greedy, mask")
    return [
        _least("decode attention, KV >= 256 MB", decode, _ceiling, 85, "% of copy bandwidth"),
        _least("the same, against FlashInfer", decode, _against("flashinfer"), 1.0, "x"),
        _least("extend, 4k tokens, against FA3", prefill, _against("fa3"), 0.70, "x"),
        _least("extend, 4k tokens", prefill, _teraflops, 420, " TFLOP/s"),
        _least("extend, up to 64 tokens over 8k", short, _ceiling, 75, "% of bandwidth"),
        _least("tree decode, 64 under 8k, against flat", tree, _against("flat"), 4.0, "x"),
        _least("tree decode, 64 under 8k, best peer", tree, _best_other, 4.0, "x"),
        _most("tree decode, nothing shared, over flat", apart, _over("flat"), 1.03, "x"),
        _most("sampler, 64 x 152k, all filters", filters, _us, 120, " us"),
        _most("sampler, 64 x 152k, greedy with mask", masked, _us, 25, " us"),
    ]


def _engine(report: Report) -> list[Verdict]:
    def steps(size: str, batches: Iterable[int]) -> list[Row]:
        return [
            row
            for row in report.find("step")
            if size in row.cfg["model"] and row.cfg["B"] in batches and not {"shared", "option"} & row.cfg.keys()
        ]

    def start(cache: str) -> list[Row]:
        return [row for row in report.find("start", cache=cache) if _LARGE in row.cfg["model"]]

    return [
        _least("8B bf16 step, 1 request", steps(_LARGE, [1]), _floor, 85, "% of floor"),
        _least("8B bf16 step, 32 to 128 requests", steps(_LARGE, [32, 64, 128]), _floor, 80, "% of floor"),
        _most("0.6B step, 1 request", steps(_SMALL, [1]), lambda row: (row.us or 0) / 1e3, 0.7, " ms"),
        _least("0.6B step, 64 requests", steps(_SMALL, [64]), _floor, 65, "% of floor"),
        _most("8B, start to ready, kernels cached", start("cached"), _value, 10, " s"),
        _most("8B, start to ready, cold", start("cold"), _value, 40, " s"),
        _least("under a JSON schema, over without", report.find("json"), _value, 1.0, "x"),
    ]


def _peers(report: Report) -> list[Verdict]:
    def rows(name: str, size: str) -> list[Row]:
        return [row for row in report.find(name) if size in row.cfg["model"]]

    found = [
        _least("W1, 8B, against vLLM", rows("w1", _LARGE), _against("vllm"), 1.05, "x"),
        _least("W1, 0.6B, against vLLM", rows("w1", _SMALL), _against("vllm"), 1.5, "x"),
    ]
    for shared, goal in (("8k", 3.5), ("2k", 1.8)):
        for peer, name in (("vllm", "vLLM"), ("sglang", "SGLang")):
            both = rows(f"shared-{shared} decode", _LARGE)
            found.append(_least(f"64 sharing {shared}, 8B decode, against {name}", both, _against(peer), goal, "x"))
    return found


# -- Figures of a row --------------------------------------------------------------------------------------------------


def _us(row: Row) -> float | None:
    return row.us


def _value(row: Row) -> float | None:
    return row.value


def _floor(row: Row) -> float | None:
    return row.pct_floor


def _ceiling(row: Row) -> float | None:
    return row.pct_ceiling


def _teraflops(row: Row) -> float | None:
    return row.flops / row.us / 1e6 if row.flops and row.us else None


def _against(peer: str) -> Figure:
    def figure(row: Row) -> float | None:
        theirs = row.peers.get(peer)
        return theirs / row.us if theirs and row.us else None

    return figure


def _over(peer: str) -> Figure:
    def figure(row: Row) -> float | None:
        theirs = row.peers.get(peer)
        return row.us / theirs if theirs and row.us else None

    return figure


def _best_other(row: Row) -> float | None:
    others = [us for name, us in row.peers.items() if us and name != "flat"]
    return min(others) / row.us if others and row.us else None


def _least(name: str, rows: list[Row], figure: Figure, goal: float, unit: str) -> Verdict:
    """The smallest figure must reach the goal."""
    found = [value for value in map(figure, rows) if value is not None]
    value = min(found) if found else None
    return _verdict(name, f">= {goal:g}{unit}", value, unit, None if value is None else value >= goal, rows)


def _most(name: str, rows: list[Row], figure: Figure, goal: float, unit: str) -> Verdict:
    """The largest figure must not exceed the goal."""
    found = [value for value in map(figure, rows) if value is not None]
    value = max(found) if found else None
    return _verdict(name, f"<= {goal:g}{unit}", value, unit, None if value is None else value <= goal, rows)


def _verdict(name: str, goal: str, value: float | None, unit: str, passed: bool | None, rows: list[Row]) -> Verdict:
    short = unit.split(" of ")[0]
    text = "not measured" if value is None else f"{value:.{0 if value >= 100 else 1 if value >= 20 else 2}f}{short}"
    return Verdict(name, goal, value, text, passed, tuple(rows))
