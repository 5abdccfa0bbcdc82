"""Programs over HTTP: what is posted is what runs, and its events come back as they are."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from bough.constrain.spec import JsonSchema, Regex
from bough.runtime.protocol.errors import OverloadedError
from bough.runtime.protocol.program import (
    Delta,
    Done,
    Fork,
    Gen,
    Program,
    ProgramEvent,
    Ref,
    RoleBegin,
    RoleEnd,
    Text,
    Value,
)
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.server.http.keys import parse_keys

from ..conftest import Running, Start
from ..fake_client import FakeClient

PROGRAM = Program(
    id="p1",
    ops=(
        RoleBegin(0, "user"),
        Text(0, ("6 * 7 = ", Ref(0, "x"))),
        RoleEnd(0),
        Gen(0, "x", sampling=SamplingParams(max_tokens=3, temperature=0.0), grammar=Regex("[0-9]+")),
    ),
    keep=True,
)


def events_of(text: str) -> list[Any]:
    parts = text.split("\n\n")
    assert parts.pop() == ""
    return [msgspec.json.decode(part.removeprefix("data: "), type=ProgramEvent) for part in parts]


def test_a_program_round_trip(start: Start) -> None:
    server = start()
    headers = {"content-type": "application/json"}
    response = server.http().post("/v1/programs", content=msgspec.json.encode(PROGRAM), headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    delta, value, done = events_of(response.text)
    assert delta == Delta(0, "x", "4")
    assert isinstance(value, Value)
    assert value.text == "42"
    assert done == Done(requests=1, texts={0: "6 * 7 = 42"})
    ran = server.engine.programs[0]
    assert (ran.id, ran.ops, ran.keep) == (PROGRAM.id, PROGRAM.ops, True)
    assert ran.timeout_s == 600.0
    assert server.http().delete("/v1/programs/p1").json()["deleted"] is True
    assert server.engine.dropped == ["p1"]


def test_keys_have_programs_and_namespaces_of_their_own(start: Start) -> None:
    server = start(keys=parse_keys(["alice key-a", "bob key-b"]))
    for key in ("key-a", "key-b"):
        http = server.http(headers={"authorization": f"Bearer {key}", "content-type": "application/json"})
        http.post("/v1/programs", content=msgspec.json.encode(PROGRAM))
        http.delete("/v1/programs/p1")
    assert [program.id for program in server.engine.programs] == ["alice/p1", "bob/p1"] == server.engine.dropped
    assert [program.namespace for program in server.engine.programs] == ["alice", "bob"]


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"id": None}, "invalid_type", "id"),
        ({"id": ""}, "invalid_value", "id"),
        ({"timeout_s": 0}, "invalid_value", "timeout_s"),
        ({"timeout_s": -1}, "invalid_value", "timeout_s"),
        ({"ops": [{"type": "gen", "branch": 0}]}, "missing_required_parameter", "ops[0].name"),
        ({"ops": [{"type": "hack", "branch": 0}]}, "invalid_value", "ops[0].type"),
        (
            {"ops": [{"type": "gen", "branch": 0, "name": "x", "sampling": {"temperature": -1}}]},
            "invalid_value",
            "temperature",
        ),
        ({"ops": [{"type": "role_end", "branch": 0}] * 5000}, "array_above_max_length", "ops"),
        ({"ops": [{"type": "role_end", "branch": 2**64}]}, "integer_above_max_value", "ops[0].branch"),
        ({"ops": [{"type": "role_end", "branch": -(2**70)}]}, "integer_below_min_value", "ops[0].branch"),
        (
            {"ops": [{"type": "fork", "branch": 0, "children": [1, 10**30]}]},
            "integer_above_max_value",
            "ops[0].children[1]",
        ),
        ({"spec_tokens": 10**30}, "integer_above_max_value", "spec_tokens"),
        ({"ops": [{"type": "gen", "branch": 0, "name": "n" * 257}]}, "string_above_max_length", "ops[0].name"),
        (
            {"ops": [{"type": "text", "branch": 0, "parts": [{"type": "ref", "branch": 0, "name": "n" * 257}]}]},
            "string_above_max_length",
            "ops[0].parts[0].name",
        ),
        (
            {"ops": [{"type": "use", "branch": 0, "name": "r", "tool": "t" * 257}]},
            "string_above_max_length",
            "ops[0].tool",
        ),
    ],
)
def test_a_malformed_program_is_a_plain_error(server: Running, change: dict[str, Any], code: str, param: str) -> None:
    response = server.http().post("/v1/programs", json={**msgspec.to_builtins(PROGRAM), **change})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)


def test_a_limit_that_no_value_keeps_is_refused(server: Running) -> None:
    schema = JsonSchema('{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}')
    tight = msgspec.structs.replace(PROGRAM.ops[3], grammar=schema)
    program = msgspec.structs.replace(PROGRAM, ops=(*PROGRAM.ops[:3], tight))
    response = server.http().post("/v1/programs", json=msgspec.to_builtins(program))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", "max_tokens")
    assert (
        error["message"].startswith("instruction 3: max_tokens=3 is too small")
        and "takes 10 tokens" in error["message"]
    )
    assert not server.engine.programs


def test_forks_are_bounded(server: Running) -> None:
    program = Program(id="p", ops=(Fork(0, tuple(range(1, 2000))),))
    response = server.http().post("/v1/programs", json=msgspec.to_builtins(program))
    assert response.json()["error"]["code"] == "array_above_max_length"


def test_a_refusal_comes_before_the_stream(start: Start) -> None:
    class Full(FakeClient):
        async def arun(self, program: Program, tools: object = None, **more: object) -> Any:
            raise OverloadedError("full")
            yield

    response = start(Full()).http().post("/v1/programs", json=msgspec.to_builtins(PROGRAM))
    assert (response.status_code, json.loads(response.text)["error"]["code"]) == (503, "engine_overloaded")
