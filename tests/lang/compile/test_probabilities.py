"""Probabilities of a select in what a compiled program returns: all, one, and one in a text."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bough import CompiledProgram, MockBackend, RequestError, function, select
from bough.lang.compile.placeholder import CompileError
from bough.runtime.protocol.program import Done, Value
from bough.runtime.protocol.template import ResultShare
from bough.runtime.templates.fill import check_template, fill
from bough.runtime.templates.results import Results

from ...support.pages import blocks


@function
def mood(s: Any, text: str) -> Any:
    s += f"{text} is" + select("mood", ["good", "bad"])
    odds = s.probabilities("mood")
    return {"one": odds["good"], "all": odds, "said": f"{text}: {s['mood']}, {odds['good']:.0%} good, {odds['bad']}"}


def loaded(program: CompiledProgram) -> CompiledProgram:
    return CompiledProgram.from_json(program.to_json())


@pytest.mark.parametrize("kept", [lambda program: program, loaded])
def test_they_are_those_of_the_run(kept: Any) -> None:
    program = kept(mood.compile())
    found = program.run(text="This", backend=MockBackend({"mood": "bad"}))
    same = mood.run("This", backend=MockBackend({"mood": "bad"})).ret_value
    assert found == same
    assert found["one"] == found["all"]["good"] and f"{found['one']:.0%} good" in found["said"]


def test_they_are_read_from_the_value_that_came() -> None:
    template = mood.compile().template
    results = Results(fill(template, {"text": "x"})[1])
    results.feed(Value(branch=0, name="mood", text="good", probabilities=(0.75, 0.25)))
    results.feed(Done())
    assert results.read() == {"one": 0.75, "all": {"good": 0.75, "bad": 0.25}, "said": "x: good, 75% good, 0.25"}


@pytest.mark.parametrize(
    "use",
    [
        lambda s, p: p > 0.5,
        lambda s, p: bool(p),
        lambda s, p: p + 1,
        lambda s, p: s.__iadd__(f"so sure: {p:.0%}"),
        lambda s, p: f"{p:.900f}",
    ],
)
def test_nothing_in_the_program_depends_on_them(use: Any) -> None:
    def body(s: Any) -> Any:
        s += "x" + select("m", ["a", "b"])
        return use(s, s.probabilities("m")["a"])

    with pytest.raises(CompileError, match="probability"):
        function(body).compile()


@pytest.mark.parametrize("changed", [{"choice": "c"}, {"format": ".99999f"}, {"format": "{}"}])
def test_templates_from_elsewhere_are_checked(changed: dict[str, str]) -> None:
    def body(s: Any) -> Any:
        s += "x" + select("m", ["a", "b"])
        return s.probabilities("m")["a"]

    template = function(body).compile().template
    assert isinstance(template.result, ResultShare)
    wrong = msgspec.structs.replace(template, result=msgspec.structs.replace(template.result, **changed))
    with pytest.raises(RequestError, match="probability"):
        check_template(wrong)


def test_the_program_of_the_readme_can_be_deployed(repository: Path, tmp_path: Path) -> None:
    source = next(code for code in blocks((repository / "README.md").read_text(), "python") if "def brief" in code)
    script = tmp_path / "brief.py"
    script.write_text(source)
    names = runpy.run_path(str(script))
    program = loaded(names["brief"].compile(temperature=0))
    answers = {"title": "The Amazon", "place": "In Brazil.", "topic": "nature"}
    found = program.run("text", backend=MockBackend(answers))
    assert found == names["brief"].run("text", backend=MockBackend(answers)).ret_value
    assert re.fullmatch(r"The Amazon\nIn Brazil\.\nnature \(\d+% nature\)", found)
