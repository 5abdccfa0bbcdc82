"""The OpenAPI document describes a program's arguments and result as they are."""

import datetime
import json
from typing import Any, Literal

import jsonschema
import pytest

import bough
from bough.lang.types.annotations import as_json
from bough.server.programs.openapi import card, document

from ...lang.compile.test_result import OF_ONE_TYPE, PERSON, Color, Level, Person, Team


def loaded(body):
    """The program as a server has it."""
    return bough.CompiledProgram.from_json(bough.function(body).compile().to_json())


def result_of(program, answers, **arguments):
    """Its result, which its own description and the whole document allow; and the schema."""
    backend = bough.MockBackend(answers)
    found = json.loads(json.dumps(program.run(backend=backend, **arguments)))
    schema = card(program.template)["result"]
    check = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    check.validate(found)
    whole = document([program.template])
    post = whole["paths"][f"/v1/programs/{program.name}"]["post"]
    answer = {"id": "x", "object": "program.result", "program": program.name, "result": found, "usage": {"a": 1}}
    described = post["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer, {**described, "components": whole["components"]})
    taken = post["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.validate(arguments, {**taken, "components": whole["components"]})
    return found, schema


@pytest.mark.parametrize(("kind", "text"), OF_ONE_TYPE)
def test_values_are_of_the_type_that_is_described(kind: Any, text: str):
    def typed(s):
        s += bough.gen("value", json_schema=kind) if isinstance(kind, dict | str) else bough.gen("value", kind)

    found, schema = result_of(loaded(typed), {"value": text})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "value": {"no": [object]}}, schema)


def test_dates_are_checked_as_such():
    def dated(s):
        s += bough.gen("when", datetime.date) + bough.gen("person", Person)

    found, schema = result_of(loaded(dated), {"when": '"2024-02-29"', "person": PERSON})
    assert schema["properties"]["when"] == {"type": "string", "format": "date"}
    assert found["person"] == json.loads(PERSON)


def test_choices_are_named():
    def chosen(s):
        s += bough.gen("color", Color) + bough.gen("level", Level) + bough.gen("word", Literal["a", "b"])
        s += bough.select("pick", ["p", "q"])

    answers = {"color": "red", "level": "2", "word": "b", "pick": "q"}
    found, schema = result_of(loaded(chosen), answers)
    assert found == {"color": "red", "level": 2, "word": "b", "pick": "q"}
    assert schema["properties"]["color"] == {"enum": ["red", "blue"]}
    assert schema["properties"]["level"] == {"enum": [1, 2]}
    assert schema["properties"]["pick"] == {"enum": ["p", "q"]}


def test_what_may_be_missing_may_be_null():
    def decided(s):
        s += bough.select("kind", ["p", "q"])
        s += bough.when(s.ref("kind") == "p", bough.gen("number", int))

    program = loaded(decided)
    assert result_of(program, {"kind": "q", "number": "1"})[0] == {"kind": "q", "number": None}
    assert result_of(program, {"kind": "p", "number": "1"})[0] == {"kind": "p", "number": 1}


def test_json_and_reasoning():
    def reasoned(s):
        s += bough.separate_reasoning(bough.gen("n", int)) + bough.gen("raw", json_schema={"type": "array"})
        return {"n": s["n"], "why": s["n_reasoning_content"], "text": s["raw"], "raw": s.json("raw")}

    found, schema = result_of(loaded(reasoned), {"n": "<think>so</think> 4", "raw": "[1]"})
    assert found == {"n": 4, "why": "so", "text": "[1]", "raw": [1]}
    assert schema["properties"]["raw"]["type"] == "array"


def test_arguments_are_described():
    def taking(s, team: Team, when: datetime.date, many: list[Person], color: Color = Color.RED):
        s += f"{team.name} {when}" + bough.gen("a")
        return [team, when, many, color, s["a"]]

    team = Team("t", Color.BLUE, [Person.model_validate_json(PERSON)])
    arguments = as_json({"team": team, "when": datetime.date(2024, 1, 1), "many": [json.loads(PERSON)]})
    found, _ = result_of(loaded(taking), {"a": "b"}, **arguments)
    assert found == [arguments["team"], "2024-01-01", [json.loads(PERSON)], "red", "b"]
