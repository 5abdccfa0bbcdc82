"""`bough schema check`: verdicts, places, exit statuses."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bough.cli.main import main

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a"],
    "additionalProperties": False,
}

Check = Callable[..., tuple[int, str]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], str]:
    def write(name: str, value: Any) -> str:
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    def check(*arguments: str) -> tuple[int, str]:
        status = main(["schema", "check", *arguments])
        return status, capsys.readouterr().out

    return check


def test_a_schema_and_its_values(write: Callable[[str, Any], str], check: Check) -> None:
    schema = write("s.json", SCHEMA)
    status, said = check(schema, write("good.json", '{\n  "b": "x",\n  "a": 1.0\n}\n'))
    assert status == 0
    assert "compiles" in said and "(exact)" in said and "required" in said and "accepted" in said
    status, said = check(schema, write("bad.json", '{"a": "x"}'))
    assert status == 1
    assert "refused (invalid by the schema)" in said
    assert "at byte 6" in said and "'0'-'9'" in said
    assert "/a: 'x' is not of type 'integer'" in said


def test_as_json(write: Callable[[str, Any], str], check: Check) -> None:
    arguments = [write("s.json", SCHEMA), write("swap.json", '{"b":"x","a":1}'), "--json", "--order", "schema"]
    status, said = check(*arguments)
    report = json.loads(said)
    assert status == 1
    assert (report["compiles"], report["mode"], report["order"]) == (True, "exact", "schema")
    (instance,) = report["instances"]
    assert (instance["valid"], instance["accepted"], instance["refused"]["offset"]) == (True, False, 2)
    assert check(*arguments[:3])[0] == 0


def test_what_is_checked_counts(write: Callable[[str, Any], str], check: Check) -> None:
    schema = write("s.json", {"not": {"uniqueItems": True}})
    assert check(schema, write("twice.json", '["a", "a"]'))[0] == 0
    status, said = check(schema, write("once.json", '["a", "b"]'))
    assert status == 1
    assert "/not/uniqueItems (on the finished value)" in said
    assert "should not be valid" in said


def test_what_is_left_out_is_told(write: Callable[[str, Any], str], check: Check) -> None:
    branches = [{"properties": {"x": {"minimum": i}}, "required": [f"k{i}"]} for i in range(8)]
    schema = write("s.json", {"properties": {"a": {"type": "object", "oneOf": branches}}})
    status, said = check(schema)
    assert status == 0
    assert "narrowed /properties/a (rare values are left out" in said
    assert json.loads(check(schema, "--json")[1])["narrowed"] == ["/properties/a"]
    assert "narrowed" not in check(write("t.json", SCHEMA))[1]


def test_a_refused_schema_names_the_place(write: Callable[[str, Any], str], check: Check) -> None:
    schema = write("s.json", {"properties": {"a": {"type": "strnig"}}})
    status, said = check(schema)
    assert status == 1
    assert "refused (invalid_json_schema)" in said and "/properties/a/type" in said
    status, said = check(schema, "--json")
    assert json.loads(said)["error"]["pointer"] == "/properties/a/type"


def test_from_standard_input(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"type": "integer"}'))
    assert check("-")[0] == 0


def test_what_cannot_be_read_is_a_wrong_command_line(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "check", "/nowhere.json"]) == 2
    assert "/nowhere.json" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["schema"])
    assert ended.value.code == 2
