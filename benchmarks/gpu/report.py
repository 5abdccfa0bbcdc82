"""Report for people: targets beside what was measured, a short table, markdown for docs/performance.md, pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..harness.pictures import BLUE, GREEN, GREY, PURPLE, RED, SIDES, Axis, Panel, write_picture
from ..harness.report import duration, number
from .roofline import H200
from .rows import Report, Row

MAX_LINES = 60

_MARKS = {True: "pass", False: "FAIL", None: "-"}
_COLUMNS = (
    *(("", 40), ("time", 11), ("p90", 11), ("floor", 7), ("ceiling", 9), ("best peer", 24), ("ratio", 8)),
    *(("error", 8), ("noise", 8)),
)


def table(report: Report) -> str:
    """At most MAX_LINES lines. Rows that no target looks at give way; they are in the JSON file."""
    judged = verdicts(report)
    head = [*_summary(report), "".join(f"{name:>{width}}" for name, width in _COLUMNS)]
    tail = ["", f"{'target':46}{'goal':>26}{'measured':>16}", *map(_target_line, judged), _count_line(judged)]
    room = MAX_LINES - len(head) - len(tail) - 1
    shown = _most_important(report.rows, judged, room)
    left_out = [f"  and {len(report.rows) - len(shown)} rows more in the file"] if len(shown) < len(report.rows) else []
    return "\n".join([*head, *map(_row_line, shown), *left_out, *tail])


def _summary(report: Report) -> list[str]:
    machine = report.machine
    lines = [
        f"{machine.get('gpu') or machine.get('device')}, torch {machine.get('torch')}, triton {machine.get('triton')}, "
        f"commit {machine.get('commit')}, {report.date}, {report.elapsed_s:.0f} s"
    ]
    if not report.meaningful:
        lines.append("TINY SIZES: these figures try the path out and say nothing about speed")
    if report.ceilings:
        lines.append(f"ceilings: {_ceilings(report)}")
    if report.skipped:
        lines.append(f"left out: {len(report.skipped)}; the first: {report.skipped[0][:120]}")
    return lines


def _ceilings(report: Report) -> str:
    units = {"copy": (1e12, "TB/s"), "read": (1e12, "TB/s"), "gemm": (1e12, "TFLOP/s")}
    found = [(name, value / units[name][0], units[name][1]) for name, value in report.ceilings.items() if name in units]
    return ", ".join(f"{name} {value:.{2 if value < 100 else 0}f} {unit}" for name, value, unit in found)


def _most_important(rows: Sequence[Row], judged: Sequence[Verdict], room: int) -> list[Row]:
    """Selects as many rows as there is room for, in their order."""
    targeted = {id(row) for verdict in judged for row in verdict.rows}
    ranked = sorted(
        range(len(rows)), key=lambda index: (rows[index].sec == "C", id(rows[index]) not in targeted, index)
    )
    return [rows[index] for index in sorted(ranked[: max(room, 0)])]


def _row_line(row: Row) -> str:
    label = f"{row.sec} {row.name} {' '.join(_setting(key, value) for key, value in row.cfg.items())}"[:39]
    if row.us is None:
        figure = "" if row.value is None else f"{row.value:,.2f} {row.unit}"
        return f"{label:<40}{figure:>22}  {row.note}"[:140].rstrip()
    name, theirs = _best_peer(row)
    cells = [
        _time(row.us),
        _time(row.us_p90),
        number(row.pct_floor, ".0f", "%"),
        number(row.pct_ceiling, ".0f", "%"),
        "" if theirs is None else f"{name[:13]} {_time(theirs)}",
        number(row.ratio_peer, ".2f", "x"),
        number(row.err, ".0e"),
        number(row.noise, ".1%"),
    ]
    widths = [width for _, width in _COLUMNS[1:]]
    return (f"{label:<40}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))).rstrip()


def _setting(key: str, value: object) -> str:
    """Name and value of a setting; the value alone where it says what it is."""
    return str(value) if isinstance(value, str) else f"{key}={value}"


def _best_peer(row: Row) -> tuple[str, float | None]:
    found = [(us, name) for name, us in row.peers.items() if us is not None]
    return (min(found)[1], min(found)[0]) if found else ("", None)


def _target_line(verdict: Verdict) -> str:
    return f"{verdict.name:46}{verdict.goal:>26}{verdict.text:>16}  {_MARKS[verdict.passed]}"


def _count_line(judged: Sequence[Verdict]) -> str:
    known = [verdict for verdict in judged if verdict.passed is not None]
    reached = sum(bool(verdict.passed) for verdict in known)
    return f"{reached} of {len(known)} measured targets reached, {len(judged)} in all"


# -- Markdown ----------------------------------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """Targets, then every row, with date, machine and commit."""
    machine = report.machine
    lines = [
        f"Measured on {report.date[:10]} at {machine.get('commit')} on {machine.get('gpu') or machine.get('device')}, "
        f"torch {machine.get('torch')}, Triton {machine.get('triton')}, in {report.elapsed_s:.0f} s. "
        f"Ceilings of this run: {_ceilings(report) or 'not measured'}.",
        "",
    ]
    if not report.meaningful:
        lines += ["**Tiny sizes: these figures try the path out and say nothing about speed.**", ""]
    lines += ["| target | goal | measured | |", "|---|---|---|---|"]
    lines += [f"| {v.name} | {v.goal} | {v.text} | {_MARKS[v.passed]} |" for v in verdicts(report)]
    lines += ["", "| what | time | p90 | of the floor | of the ceiling | others | best other / ours | noise |"]
    lines += ["|---|---|---|---|---|---|---|---|", *map(_markdown_row, report.rows)]
    if report.skipped:
        lines += ["", "Left out:", "", *(f"- {line}" for line in report.skipped)]
    return "\n".join(lines)


def _markdown_row(row: Row) -> str:
    cells = [
        row.label(),
        _time(row.us) if row.us is not None else f"{number(row.value, ',.2f')} {row.unit}".strip(),
        _time(row.us_p90),
        number(row.pct_floor, ".0f", " %"),
        number(row.pct_ceiling, ".0f", " %"),
        ", ".join(f"{name} {_time(us)}" for name, us in row.peers.items() if us is not None),
        number(row.ratio_peer, ".2f"),
        number(row.noise, ".1%"),
    ]
    return f"| {' | '.join(cells)} |"


def _time(us: float | None) -> str:
    return duration(None if us is None else us / 1e6)


# -- Pictures ----------------------------------------------------------------------------------------------------------

_COLOURS = {"decode": BLUE, "tree": RED, "extend": GREEN, "linear": PURPLE, "small": "#8a6d00", "sampler": "#b0447a"}
_NAMES = {
    "decode": "decode attention",
    "tree": "tree decode",
    "extend": "extend attention",
    "linear": "weight products",
    "small": "norm, SiLU, rope",
    "sampler": "sampler",
}
_SHORTEST_US = 2.0  # a launch whose floor is below this is limited by how long a launch takes


def write_pictures(report: Report, folder: Path) -> list[Path]:
    """Draws what there are rows for; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    gpu = str(report.machine.get("gpu") or report.machine.get("device")).split(",")[0]
    caption = f"{gpu}, {report.date[:10]}, {report.machine.get('commit')}"
    caption += "" if report.meaningful else ": tiny sizes, no figure means anything"
    written = []
    for name, draw in (("roofline", _roofline), ("steps", _steps), ("workloads", _workloads)):
        if panels := draw(report):
            written.append(folder / f"gpu-{name}.svg")
            write_picture(written[-1], [panels], caption=caption)
    return written


def _roofline(report: Report) -> list[Panel]:
    """Rate against intensity of every kernel, ours filled and the best peer hollow, under the measured ceilings.

    A kernel's intensity is counted from what it must move, so sharing moves it to the right. Launches too short to be
    limited by either ceiling are left out.
    """
    rows = [row for row in report.rows if row.sec == "K" and row.us and row.bytes and row.flops]
    rows = [row for row in rows if (row.floor_us or 0) >= _SHORTEST_US] or rows
    if not rows:
        return []
    bandwidth, rate = report.ceilings.get("copy", H200.bandwidth), report.ceilings.get("gemm", H200.flops)
    intensities = [(row.flops or 0) / (row.bytes or 1) for row in rows]
    ridge = rate / bandwidth
    low, high = min(intensities) / 2.5, max(*intensities, ridge) * 3
    slowest = min(_rate(row, max([row.us or 0, *_times(row)])) for row in rows)
    panel = Panel(
        "Kernels under the roofline: filled is bough, hollow the best peer",
        x=Axis("operations for each byte that must move", low=low, high=high, log=True, tick="{:g}".format),
        y=Axis("TFLOP/s", low=slowest / 2, high=2 * rate / 1e12, log=True, tick="{:g}".format),
        width=900, height=560,
    )  # fmt: skip
    panel.line([(low, low * bandwidth / 1e12), (ridge, rate / 1e12), (high, rate / 1e12)])
    panel.text(high, rate / 1e12, f"matrix product, measured: {rate / 1e12:.0f} TFLOP/s", anchor="end", shift=(-4, -6))
    start, along = (low * 1.5, low * 1.5 * bandwidth / 1e12), (low * 3, low * 3 * bandwidth / 1e12)
    panel.text(*start, f"copy, measured: {bandwidth / 1e12:.2f} TB/s", shift=(0, -6), along=along)
    for row, intensity in zip(rows, intensities, strict=True):
        family = _family(row)
        ours = _rate(row, row.us or 1)
        if times := _times(row):
            theirs = _rate(row, min(times))
            panel.line([(intensity, ours), (intensity, theirs)], _COLOURS[family], wide=0.8, faint=True)
            panel.dot(intensity, theirs, _COLOURS[family], hollow=True)
        panel.dot(intensity, ours, _COLOURS[family], label=_NAMES[family])
    return [panel]


def _times(row: Row) -> list[float]:
    """Times of peers; our own flat kernel is none."""
    return [us for name, us in row.peers.items() if us and name != "flat"]


def _rate(row: Row, us: float) -> float:
    """TFLOP/s."""
    return (row.flops or 0) / us / 1e6


def _family(row: Row) -> str:
    return row.name if row.name in _COLOURS else "small"


def _of_models(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {
        model: [row for row in rows if row.cfg["model"] == model] for model in {row.cfg["model"]: 0 for row in rows}
    }


def _steps(report: Report) -> list[Panel]:
    """Decode steps of each model beside their floors."""
    steps = [row for row in report.find("step") if "option" not in row.cfg and row.us and row.floor_us]
    panels = []
    for model, rows in _of_models(steps).items():
        axis = Axis("ms, and the share of the floor (the mark)", low=0.0, room=0.45)
        panel = Panel(f"{model}: decode steps", x=axis, rows=[_step_label(row) for row in rows])
        for place, row in enumerate(rows):
            time_ms, floor_ms = (row.us or 0) / 1e3, (row.floor_us or 0) / 1e3
            panel.bar(place, 0.0, time_ms, RED if "shared" in row.cfg else BLUE, thick=0.62)
            panel.line([(floor_ms, place - 0.38), (floor_ms, place + 0.38)], wide=1.8)
            panel.text(max(time_ms, floor_ms), place, f"{time_ms:.2f} ms, {row.pct_floor:.0f} %")
        panels.append(panel)
    return panels


def _step_label(row: Row) -> str:
    batch, length, shared = row.cfg["B"], row.cfg["S"], row.cfg.get("shared")
    return f"{batch} x ({shared:,} shared + {length:,})" if shared else f"{batch} x {length:,}"


def _workloads(report: Report) -> list[Panel]:
    """Time of each workload beside peers, ours as 1."""
    panels = []
    for model, rows in _of_models([row for row in report.rows if row.sec == "P" and row.us and _times(row)]).items():
        panel = Panel(f"{model}: whole workloads", x=Axis("time, bough = 1", low=0.0, room=0.4))
        ticks: list[tuple[float, str]] = []
        place = 0.0
        for row in rows:
            sides = [("bough", row.us or 1.0), *((name, us) for name, us in row.peers.items() if us is not None)]
            ticks.append((place + 0.45 * (len(sides) - 1), row.name))
            for name, us in sides:
                panel.bar(place, 0.0, us / (row.us or 1.0), SIDES.get(name, GREY), thick=0.8)
                panel.text(us / (row.us or 1.0), place, f"{name} {_time(us)}")
                place += 0.9
            place += 0.8
        panel.ticks = ticks
        panels.append(panel)
    return panels


# -- Targets -----------------------------------------------------------------------------------------------------------

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
