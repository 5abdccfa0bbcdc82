"""Cost of a run, as a short table for a terminal."""

from __future__ import annotations

from .calls import Call
from .text import aligned
from .timeline import Timeline

_MAX_ROWS = 60
_HEAD = ("value", "branch", "prompt", "cached", "computed because", "output", "seconds", "ended by")
_NUMBERS = frozenset({2, 3, 5, 6})


def report(timeline: Timeline) -> str:
    """Formats the requests and tokens of a run, with a line per call.

    >>> print(report(state.timeline()))
    """
    summary, calls = timeline.summary(), timeline.calls()
    prompt, saved = int(summary["prompt_tokens"]), int(summary["saved_tokens"])
    output = int(summary["sampled_tokens"]) + int(summary["forced_tokens"])
    forced = f", {summary['forced_tokens']:,} of them forced by a grammar" if summary["forced_tokens"] else ""
    lines = [
        f"requests       {timeline.num_programs:>7,} of the program, {timeline.num_requests:,} inside the engine",
        f"prompt tokens  {prompt:>7,} in all, {saved:,} from the cache ({summary['cached_share']:.0%}), "
        f"{prompt - saved:,} computed",
        f"output tokens  {output:>7,}{forced}",
        f"seconds        {summary['elapsed_s']:>7.2f}",
    ]
    if timeline.record.error is not None:
        lines.append(f"failed         {timeline.record.error.code}: {timeline.record.error.message}")
    if calls:
        lines += ["", *aligned([_HEAD, *map(_row, calls[:_MAX_ROWS])], _NUMBERS)]
    if len(calls) > _MAX_ROWS:
        lines.append(f"and {len(calls) - _MAX_ROWS} more")
    return "\n".join(lines)


def _row(call: Call) -> tuple[str, ...]:
    name = f"{call.name} ({call.turn + 1})" if call.turn else call.name
    seconds = f"{call.elapsed_s:.2f}"
    if call.kind == "tool":
        return f"{name} = {call.tool}()", call.branch, "", "", "", "", seconds, ""
    tokens = f"{call.prompt_tokens:,}", f"{call.cached_tokens:,}", call.why_computed
    return name, call.branch, *tokens, f"{call.output_tokens:,}", seconds, call.finish_reason or call.kind
