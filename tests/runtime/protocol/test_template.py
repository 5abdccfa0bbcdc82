"""Templates: arguments fill holes, bad ones are refused by name, results are read from values."""

import json

import msgspec
import pytest

from bough.runtime.protocol.condition import Compare, Count, Every, Hole, Matches, Negation, Ref, Times
from bough.runtime.protocol.errors import EngineError, ErrorInfo, RequestError
from bough.runtime.protocol.program import (
    Assign,
    BranchFailed,
    BranchRestarted,
    Delta,
    Fork,
    Gen,
    Join,
    Repeat,
    RoleBegin,
    RoleEnd,
    Text,
    Use,
    Value,
    When,
)
from bough.runtime.protocol.template import (
    Parameter,
    Result,
    ResultArgument,
    ResultConstant,
    ResultList,
    ResultObject,
    ResultText,
    ResultValue,
    Template,
)
from bough.runtime.templates.fill import check_template, fill
from bough.runtime.templates.results import Results


def template(*ops, parameters=("question",), result: Result | None = None):
    kinds = {"question": '{"type": "string"}', "count": '{"type": "integer"}', "person": '{"type": "object"}'}
    return Template(
        name="t",
        parameters=tuple(Parameter(name=name, schema=kinds.get(name, "{}")) for name in parameters),
        ops=ops,
        result=result or ResultConstant("null"),
    )


def test_texts_around_a_hole_become_one():
    made = template(Text(0, ("Q: ", Hole("question"), "?", Ref(0, "x"))))
    assert fill(made, {"question": "why"}).ops == (Text(0, ("Q: why?", Ref(0, "x"))),)


def test_a_hole_is_written_as_python_would_write_it():
    made = template(Text(0, (Hole("count", "05d"), " ", Hole("count"))), parameters=("count",))
    assert fill(made, {"count": 42}).ops == (Text(0, ("00042 42",)),)


def test_holes_are_filled_inside_of_blocks_and_conditions():
    body = (
        Text(0, (Hole("question"),)),
        When(0, Every((Compare(Ref(0, "a"), "eq", Hole("question")), Negation(Matches(Hole("question"), "x+")))), ()),
        Assign(0, "b", (Hole("question"),)),
    )
    until = Compare(Count((Compare(Times(0, "a"), "ge", Hole("count")),)), "gt", 0.0)
    made = template(Repeat(0, body, until, 3), parameters=("question", "count"))
    (repeat,) = fill(made, {"question": "why", "count": 2}).ops
    assert isinstance(repeat, Repeat)
    assert repeat.body[0] == Text(0, ("why",))
    assert repeat.body[1] == When(0, Every((Compare(Ref(0, "a"), "eq", "why"), Negation(Matches("why", "x+")))), ())
    assert repeat.body[2] == Assign(0, "b", ("why",))
    assert repeat.until == Compare(Count((Compare(Times(0, "a"), "ge", 2.0),)), "gt", 0.0)


def test_a_tool_gets_a_value_that_is_no_text_as_json():
    made = template(
        Use(
            0,
            "x",
            "search",
            (("tags", (Hole("tags"),)), ("text", ("about ", Hole("tags"))), ("q", (Hole("question"),))),
        ),
        parameters=("question", "tags"),
    )
    (use,) = fill(made, {"question": "why", "tags": ["ä", True]}).ops
    assert isinstance(use, Use)
    assert dict(use.arguments) == {"tags": ('["ä", true]',), "text": ("about ['ä', True]",), "q": ("why",)}


def test_a_hole_can_be_a_part_of_an_argument():
    made = template(Text(0, (Hole("person/name"), Hole("person/pets/1"))), parameters=("person",))
    assert fill(made, {"person": {"name": "Ada", "pets": ["cat", "dog"]}}).ops == (Text(0, ("Adadog",)),)
    with pytest.raises(RequestError, match="person has no") as caught:
        fill(made, {"person": {"name": "Ada"}})
    assert caught.value.param == "person"


@pytest.mark.parametrize(
    ("arguments", "param", "message"),
    [
        ({}, "question", "needs the argument 'question'"),
        ({"question": 1}, "question", "not of type 'string'"),
        ({"question": "x", "other": 1}, "other", "no parameter 'other'"),
        ({"question": {1, 2}}, "question", "no JSON value"),
        ({"question": "x" * 4_000_001}, "question", "more than 4000000 characters"),
    ],
)
def test_a_bad_argument_is_refused_by_name(arguments, param, message):
    with pytest.raises(RequestError, match=message) as caught:
        fill(template(Text(0, (Hole("question"),))), arguments)
    assert caught.value.param == param


def test_a_format_cannot_ask_for_a_huge_text():
    made = template(Text(0, (Hole("count", "999999999d"),)), parameters=("count",))
    with pytest.raises(RequestError, match="wider than 1000"):
        fill(made, {"count": 1})
    with pytest.raises(RequestError, match="cannot be written as 'q'"):
        fill(template(Text(0, (Hole("count", "q"),)), parameters=("count",)), {"count": 1})


def test_defaults_are_filled_in():
    made = msgspec.structs.replace(
        template(Text(0, (Hole("question"),))), parameters=(Parameter(name="question", default='"why"'),)
    )
    assert fill(made, {}).ops == (Text(0, ("why",)),)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (template(Text(0, (Hole("other"),))), "no parameter for the hole 'other'"),
        (template(When(0, Compare(Hole("other"), "eq", "x"), ())), "hole 'other'"),
        (template(result=ResultList((ResultText((Hole("other/x"),)),))), "hole 'other/x'"),
        (template(parameters=("a", "a")), "same name"),
        (
            Template(
                name="t",
                parameters=(Parameter(name="n", schema='{"type": "integer"}', default='"x"'),),
                ops=(),
                result=ResultConstant("1"),
            ),
            "the default of n",
        ),
    ],
)
def test_a_template_that_cannot_be_filled_is_found_out(broken, message):
    with pytest.raises(RequestError, match=message):
        check_template(broken)


def test_a_template_survives_json():
    made = template(
        RoleBegin(0, "user"),
        Text(0, ("x", Hole("question", ">3"))),
        RoleEnd(0),
        Fork(0, (1, 2), isolated=True, retries=2),
        Gen(1, "a"),
        Use(2, "b", "search", (("q", (Ref(1, "a"),)),), append=False),
        Join(0, (1, 2)),
        result=ResultObject(
            (("a", ResultValue(Ref(1, "a"), "int", turns=True)), ("b", ResultArgument(Hole("question"))))
        ),
    )
    assert msgspec.json.decode(msgspec.json.encode(made), type=Template) == made


def read(result, *events):
    results = Results(result)
    for event in events:
        results.feed(event)
    return results.read()


def test_results_have_the_types_asked_for():
    events = [
        Delta(0, "a", "1"),
        Value(branch=0, name="a", text="12"),
        Value(branch=1, name="b", text='{"x": [1]}'),
        Value(branch=0, name="c", text="True"),
        Value(branch=0, name="d", text="p", samples=("p", "q")),
        Value(branch=0, name="e", text="1.5", turn=0),
        Value(branch=0, name="e", text="2.5", turn=1),
    ]
    result = ResultObject(
        (
            ("a", ResultValue(Ref(0, "a"), "int")),
            ("b", ResultValue(Ref(1, "b"), "json")),
            ("c", ResultValue(Ref(0, "c"), "bool")),
            ("d", ResultValue(Ref(0, "d"), samples=True)),
            ("last", ResultValue(Ref(0, "e"), "float")),
            ("all", ResultValue(Ref(0, "e"), "float", turns=True)),
            ("text", ResultText(("a is ", Ref(0, "a"), "."))),
            ("fixed", ResultConstant('{"y": null}')),
            ("skipped", ResultValue(Ref(0, "z"))),
        )
    )
    assert read(result, *events) == {
        "a": 12,
        "b": {"x": [1]},
        "c": True,
        "d": ["p", "q"],
        "last": 2.5,
        "all": [1.5, 2.5],
        "text": "a is 12.",
        "fixed": {"y": None},
        "skipped": None,
    }


def test_a_branch_that_begins_anew_loses_its_values():
    error = ErrorInfo(code="c", message="m")
    events = [
        Value(branch=1, name="a", text="old"),
        BranchRestarted(branch=1, attempt=1, error=error),
        Value(branch=1, name="a", text="new"),
    ]
    assert read(ResultValue(Ref(1, "a"), turns=True), *events) == ["new"]


def test_a_branch_that_failed_leaves_its_error():
    failed = BranchFailed(branch=1, error=ErrorInfo(code="tool_failed", message="no"))
    result = ResultList((ResultValue(Ref(1, "a")), ResultValue(Ref(2, "a"))))
    assert read(result, failed, Value(branch=2, name="a", text="x")) == [
        {"error": {"code": "tool_failed", "message": "no"}},
        "x",
    ]


def test_a_text_that_was_cut_off_is_an_error_with_its_reason():
    cut = Value(branch=0, name="a", text='{"x": ', finish_reason="length")
    with pytest.raises(EngineError, match=r"'a' is no json.*ended by 'length'") as caught:
        read(ResultValue(Ref(0, "a"), "json"), cut)
    assert caught.value.code == "invalid_output"


def test_arguments_are_results_too():
    made = template(
        result=ResultList((ResultArgument(Hole("person")), ResultText(("Hi ", Hole("person/name"))))),
        parameters=("person",),
    )
    filled = fill(made, {"person": {"name": "Ada"}})
    assert read(filled.result) == [{"name": "Ada"}, "Hi Ada"]
    assert json.loads(msgspec.json.encode(filled.result))
