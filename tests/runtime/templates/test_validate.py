"""Templates that could never run are refused before they are called, by the index of the instruction."""

from __future__ import annotations

import pytest

from bough.constrain.spec import JsonSchema, Regex, Structural, Tag
from bough.runtime.protocol.condition import Compare, Hole, Ref
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Gen, Op, Select, Text, When
from bough.runtime.protocol.template import Parameter, ResultConstant, Template
from bough.runtime.templates.validate import rehearse


def template(*ops: Op) -> Template:
    return Template(name="t", parameters=(Parameter(name="q", schema="{}"),), ops=ops, result=ResultConstant("null"))


def test_one_that_could_run_passes() -> None:
    ask = Text(0, ("Q: ", Hole("q")))
    branch = When(0, Compare(Hole("q"), "eq", Ref(0, "a")), (Text(0, (Hole("q", ">3"),)),))
    rehearse(template(ask, Gen(0, "a", grammar=Regex("[a-z]+")), Select(0, "b", ("x", "y")), branch), {})


@pytest.mark.parametrize(
    ("op", "index", "code"),
    [
        (Select(0, "b", ()), 1, "invalid_program"),
        (Select(0, "b", ("x", "")), 1, "invalid_program"),
        (Gen(0, "b", grammar=JsonSchema('{"type": "nothing"}')), 1, "invalid_json_schema"),
        (Text(7, ("x",)), 1, "invalid_value"),
    ],
)
def test_one_that_could_not_is_refused(op: Op, index: int, code: str) -> None:
    with pytest.raises(RequestError, match=f"^instruction {index}\\b") as caught:
        rehearse(template(Text(0, ("Q",)), op), {})
    assert caught.value.code == code


def test_constraints_of_tags_are_looked_at() -> None:
    tagged = Structural((Tag("<a>", JsonSchema('{"type": "nothing"}'), "</a>"),))
    with pytest.raises(RequestError, match=r"^instruction 0: "):
        rehearse(template(Gen(0, "b", grammar=tagged)), {})
