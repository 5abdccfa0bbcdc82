"""The table after a run, against what a scripted backend has said."""

from __future__ import annotations

import bough
from bough.lang.observe.timelines.report import report
from bough.lang.observe.timelines.text import aligned
from bough.lang.observe.timelines.timeline import Timeline
from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.protocol.program import Done, Failed, Gen, Piece, ProgramEvent, Text, Value
from bough.runtime.protocol.request import PREFILLED, SAMPLED, Usage


def test_columns_stand_below_each_other():
    assert aligned([("a", "bb"), ("ccc", "1")], {1}) == ["a    bb", "ccc   1"]
    assert aligned([("a", ""), ("b", "x")]) == ["a", "b  x"]


def test_a_run_in_numbers():
    words = ("a", "b", "c", "d")
    usage = Usage(prompt_tokens=4, cached_tokens=1, completion_tokens=2, forced_tokens=1)
    events: list[ProgramEvent] = [
        Piece(branch=0, op=0, kind="text", texts=words, origins=(PREFILLED,) * 4),
        Value(branch=0, name="x", text="XY", finish_reason="length", usage=usage),
        Piece(branch=0, op=1, kind="gen", name="x", texts=("X", "Y"), origins=(SAMPLED,) * 2, start_s=0.5, stop_s=2.0),
        Done(usage=usage, requests=1),
    ]
    lines = report(Timeline.of((Text(0, ("abcd",)), Gen(0, "x")), events)).splitlines()
    said = [" ".join(line.split()) for line in lines]
    assert said[0] == "requests 1 of the program, 1 inside the engine"
    assert said[1] == "prompt tokens 4 in all, 1 from the cache (25%), 3 computed"
    assert said[-1] == "x main 4 1 3 new, 1 from before the run 2 1.50 length"


def test_a_failure_and_a_long_list():
    ops = tuple(Gen(0, f"x{index}") for index in range(100))
    events = [Piece(branch=0, op=index, kind="gen", name=f"x{index}") for index in range(100)]
    text = report(Timeline.of(ops, [*events, Failed(error=ErrorInfo(code="aborted", message="stopped"))]))
    assert "failed         aborted: stopped" in text
    assert text.endswith("and 40 more")


def test_of_a_program_that_reads_and_uses_a_tool():
    @bough.tool
    def look_up(topic: str) -> str:
        return topic

    @bough.function
    def ask(s):
        s += "Say: " + bough.gen("word")
        if s["word"]:
            s += bough.use("found", look_up, topic="x") + bough.select("mood", ["good", "bad"])

    text = report(ask.run(backend=bough.MockBackend(), trace=True).timeline())
    assert "2 of the program" in text
    assert "found = look_up()" in text
    assert text.splitlines()[-1].endswith("select")
