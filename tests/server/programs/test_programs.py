"""Programs over HTTP: what is posted is what runs, and its events come back as they are."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from bough.constrain.spec import JsonSchema, Regex
from bough.runtime.protocol.errors import ErrorInfo, OverloadedError, to_exception
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
from bough.runtime.protocol.template import ResultConstant, Template
from bough.server.http.dialect import event
from bough.server.http.keys import parse_keys
from bough.server.programs import programs as programs_module

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


@pytest.mark.parametrize("path", ["/v1/programs", "/v1/programs/f"])
def test_a_program_that_is_dropped_before_its_first_event_is_a_conflict(start: Start, path: str) -> None:
    class Dropped(FakeClient):
        async def arun(self, program: Program, tools: object = None, **more: object) -> Any:
            raise to_exception(ErrorInfo(code="aborted", message="the program was dropped"))
            yield

    http = start(Dropped()).http()
    template = msgspec.json.encode(Template(name="f", ops=(Text(0, ("x",)),), result=ResultConstant("1")))
    http.put("/v1/programs/f", content=template, headers={"content-type": "application/json"}).raise_for_status()
    response = http.post(path, json=msgspec.to_builtins(PROGRAM) if path == "/v1/programs" else {})
    error = json.loads(response.text)["error"]
    assert (response.status_code, error["code"], error["message"]) == (409, "aborted", "the program was dropped")
    assert response.headers["x-should-retry"] == "false"


def test_a_program_is_nested_no_deeper_than_any_may_run(server: Running) -> None:
    op: Any = {"type": "assign", "branch": 0, "name": "x", "parts": ["1"]}
    condition = {"type": "compare", "left": "1", "relation": "eq", "right": "1"}
    for _ in range(40):
        op = {"type": "when", "branch": 0, "condition": condition, "then": [op]}
    refused = server.http().post("/v1/programs", json={"id": "deep", "ops": [op]})
    assert refused.status_code == 400 and "nested 32 levels" in refused.json()["error"]["message"]
    assert not server.engine.programs


def test_states_of_one_key_push_out_none_of_another(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_module, "MAX_KEPT", 4)
    server = start(keys=parse_keys(["root key-r admin", "flood key-f", "quiet key-q"]))
    flood, quiet, root = (
        server.http(headers={"authorization": f"Bearer {key}"}) for key in ("key-f", "key-q", "key-r")
    )
    state = {"ops": [{"type": "assign", "branch": 0, "name": "x", "parts": ["1"]}], "keep": True}
    assert quiet.post("/v1/programs", json={"id": "mine", **state}).status_code == 200
    for number in range(8):
        assert flood.post("/v1/programs", json={"id": f"f{number}", **state}).status_code == 200
    template = msgspec.json.encode(Template(name="mine", ops=(Text(0, ("x",)),), result=ResultConstant("1")))
    root.put("/v1/programs/mine", content=template, headers={"content-type": "application/json"}).raise_for_status()
    assert quiet.delete("/v1/programs/mine").json()["object"] == "program.state"


def test_a_large_end_is_written_text_by_text() -> None:
    num_turns = 0

    async def write(end: Done) -> bytes:
        async def others() -> None:
            nonlocal num_turns
            while True:
                num_turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        written = await programs_module._to_event(end)
        task.cancel()
        return written

    for texts in ({}, {0: "x", 7: '"'}, {number: f'"{number}\n"' * 20_000 for number in range(10)}):
        end = Done(requests=3, texts=texts, elapsed_s=0.5)
        assert asyncio.run(write(end)) == event(end)
    assert num_turns >= 10


@pytest.mark.parametrize("within", [False, True])
def test_a_constraint_that_is_too_long_is_refused_before_it_is_looked_at(
    server: Running, monkeypatch: pytest.MonkeyPatch, *, within: bool
) -> None:
    looked_at: list[object] = []
    monkeypatch.setattr(programs_module, "check_room", lambda ops, _: looked_at.append(ops))
    gen = {"type": "gen", "branch": 0, "name": "v", "grammar": {"type": "lark", "grammar": "x" * 1_000_001}}
    condition = {"type": "compare", "left": {"type": "ref", "branch": 0, "name": "v"}, "relation": "eq", "right": "x"}
    ops = [{"type": "when", "branch": 0, "condition": condition, "then": [gen]}] if within else [gen]
    error = server.http().post("/v1/programs", json={"id": "p", "ops": ops}).json()["error"]
    assert (error["code"], error["param"]) == ("grammar_too_complex", "ops")
    place = f"instruction {int(within)}"
    assert error["message"] == f"{place}: the constraint has 1000001 characters, at most 1000000 are allowed"
    assert looked_at == []
