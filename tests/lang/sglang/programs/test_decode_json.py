"""JSON written by hand around constrained generations: by patterns, and by types."""

from __future__ import annotations

import json

import pytest

import bough as sgl

pytestmark = pytest.mark.usefixtures("default_backend")


def test_by_patterns():
    @sgl.function
    def decode_json(s):
        from bough.lang.sglang.words import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR

        s += "A JSON object that describes the city Rome.\n"
        with s.var_scope("json_output"):
            s += "{\n"
            s += '  "name": ' + sgl.gen(regex=REGEX_STR, max_tokens=8) + ",\n"
            s += '  "population": ' + sgl.gen(regex=REGEX_INT, stop=[" ", "\n"], max_tokens=6) + ",\n"
            s += '  "latitude": ' + sgl.gen(regex=REGEX_FLOAT, stop=[" ", "\n"], max_tokens=6) + "\n"
            s += "}"
        s += "\nIs it large? " + sgl.gen("large", regex=REGEX_BOOL)

    ret = decode_json.run(temperature=0.0)
    value = json.loads(ret["json_output"])
    assert isinstance(value["name"], str)
    assert isinstance(value["population"], int)
    assert isinstance(value["latitude"], int | float)
    assert ret["large"] in ("True", "False")


def test_by_types():
    @sgl.function
    def decode_json(s):
        s += "A JSON object that describes the city Rome.\n"
        with s.var_scope("json_output"):
            s += "{\n"
            s += '  "name": ' + sgl.gen_string() + ",\n"
            s += '  "population": ' + sgl.gen_int() + ",\n"
            s += '  "area": ' + sgl.gen(dtype=int) + ",\n"
            s += '  "country": ' + sgl.gen(dtype=str) + "\n"
            s += "}"

    ret = decode_json.run(max_new_tokens=8)
    value = json.loads(ret["json_output"])
    assert isinstance(value["name"], str)
    assert isinstance(value["country"], str)
    assert isinstance(value["population"], int)


def test_by_a_schema():
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }

    @sgl.function
    def character(s, name):
        s += name + " as JSON:\n" + sgl.gen("json_output", max_tokens=32, json_schema=json.dumps(schema))

    value = json.loads(character.run("Alice, aged 7,", temperature=0)["json_output"])
    assert set(value) == {"name", "age"}
    assert isinstance(value["age"], int)
