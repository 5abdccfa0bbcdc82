"""Deployed programs at the edges: what can never run is refused when it is deployed, and no result is too long."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from bough.constrain.spec import JsonSchema, Regex
from bough.runtime.protocol.condition import Compare, Hole, Matches, Ref
from bough.runtime.protocol.program import (
    Assign,
    Cancel,
    Done,
    Gen,
    Op,
    Program,
    ProgramEvent,
    Select,
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
    ResultText,
    ResultValue,
    Template,
)
from bough.server.http.connection import LARGE_BODY
from bough.server.http.keys import parse_keys
from bough.server.service import Service

from ..conftest import Running, Start
from ..fake_client import FakeClient

JSON = {"content-type": "application/json"}
ONE = ResultConstant("1")
OPS: tuple[Op, ...] = (Text(0, (Hole("a"),)), Gen(0, "x"))


class UpperTool:
    name, timeout_s, max_chars = "upper", None, 1000
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

    def call(self, arguments: dict[str, Any]) -> str:
        return str(arguments["text"]).upper()


def made(*ops: Op, result: Result = ONE, schema: str = "{}") -> Template:
    return Template(name="f", parameters=(Parameter(name="a", schema=schema),), ops=ops or OPS, result=result)


def put(server: Running, template: Template, name: str = "f") -> Any:
    return server.http().put(f"/v1/programs/{name}", content=msgspec.json.encode(template), headers=JSON)


def error_of(response: Any) -> dict[str, Any]:
    assert 400 <= response.status_code < 500, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def nested(depth: int) -> Op:
    op: Op = Text(0, ("x",))
    for _ in range(depth):
        op = When(0, Compare("1", "eq", "1"), (op,))
    return op


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Text(0, ("x",)), Text(5, ("x",))), "instruction 1 is for branch 5, which does not exist"),
        ((Text(0, ("x",)), Use(0, "r", "nope")), "instruction 1 uses the tool 'nope'"),
        ((Text(0, ("x",)), Use(0, "r", "upper", (("other", ("x",)),))), "instruction 1: the tool 'upper'"),
        ((When(0, Matches("a", "(")),), "instruction 0: the pattern '('"),
        ((When(0, Compare("1", "eq", "1"), (Cancel(3),)),), "instruction 1 is for branch 3"),
        ((Text(0, ("x",)), Select(0, "s", ())), "instruction 1: a select needs"),
        ((Text(0, ("x",)), Gen(0, "g", grammar=JsonSchema("{"))), "instruction 1: "),
        ((Text(0, ("x",)), Gen(0, "g", grammar=Regex(""))), "instruction 1: the regular expression is empty"),
        ((nested(40),), "nested 32 levels deep"),
    ],
)
def test_what_a_call_would_refuse_is_not_deployed(start: Start, ops: tuple[Op, ...], message: str) -> None:
    engine = FakeClient()
    engine.register_tool(UpperTool())
    server = start(engine)
    response = put(server, made(*ops))
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
    assert server.http().get("/v1/programs").json()["data"] == []


def test_a_program_of_400_blocks_is_refused_by_name(start: Start) -> None:
    when = '{"type":"when","branch":0,"condition":{"type":"matches","text":"a","pattern":"a"},"then":['
    body = f'{{"name":"f","ops":[{when * 400}{"]}" * 400}],"result":{{"type":"constant","json":"1"}}}}'
    response = start().http().put("/v1/programs/f", content=body, headers=JSON)
    error = error_of(response)
    assert "deep" in error["message"] and error["param"] == "ops"


def test_holes_do_not_multiply_without_bound(start: Start) -> None:
    server = start()
    for template in (
        made(*(Assign(0, f"x{number}", (Hole("a"),)) for number in range(400))),
        made(result=ResultText((Hole("a"),) * 400)),
        made(result=ResultList((ResultArgument(Hole("a")),) * 400)),
    ):
        assert put(server, template).status_code == 200
        error = error_of(server.http().post("/v1/programs/f", json={"a": "x" * 400_000}))
        assert error["code"] == "program_too_long"
    assert server.http().post("/v1/programs/f", json={"a": "x" * 1000}).status_code == 200


def says(*values: Value) -> FakeClient:
    def play(program: Program) -> Iterator[ProgramEvent]:
        yield from values
        yield Done()

    return FakeClient(play=play)


def test_values_in_results_do_not_multiply_without_bound(start: Start) -> None:
    server = start(says(Value(branch=0, name="x", text="x" * 200_000)))
    put(server, made(result=ResultText((Ref(0, "x"),) * 400)))
    assert error_of(server.http().post("/v1/programs/f", json={"a": 1}))["code"] == "result_too_long"
    streamed = server.http().post("/v1/programs/f?stream=true", json={"a": 1}).text
    assert '"code":"result_too_long"' in streamed and "[DONE]" not in streamed
    put(server, made(result=ResultText((Ref(0, "x"),) * 3)))
    assert server.http().post("/v1/programs/f", json={"a": 1}).json()["result"] == "x" * 600_000


@pytest.mark.parametrize("query", ["", "?stream=true"])
def test_a_large_result_is_large_work(start: Start, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    sizes: list[int] = []
    beside = Service.beside

    async def noted(self: Service, request: Any, work: Any, *, size: int = 0) -> Any:
        sizes.append(size)
        return await beside(self, request, work, size=size)

    monkeypatch.setattr(Service, "beside", noted)
    server = start(says(Value(branch=0, name="x", text="x" * 2 * LARGE_BODY)))
    put(server, made(result=ResultText((Ref(0, "x"),))))
    assert server.http().post(f"/v1/programs/f{query}", json={"a": 1}).status_code == 200
    assert sizes[-1] == 2 * LARGE_BODY


@pytest.mark.parametrize(
    ("text", "reading", "message"),
    [
        ('"\\ud800"', "json", "surrogates not allowed"),
        ("NaN", "json", "NaN is not a finite number"),
        ("[1, -Infinity]", "json", "-Infinity is not a finite number"),
        ("1e999", "json", "1e999 is not a finite number"),
        ("nan", "float", "nan is not a finite number"),
        ("1e999", "float", "1e999 is not a finite number"),
        ("x" * 5000, "float", "could not convert"),
        ("[" * 100_000, "json", "recursion"),
    ],
)
@pytest.mark.parametrize("query", ["", "?stream=true"])
def test_what_json_cannot_say_is_an_error_and_no_null(
    start: Start, text: str, reading: Any, message: str, query: str
) -> None:
    server = start(says(Value(branch=0, name="x", text=text)))
    put(server, made(result=ResultValue(Ref(0, "x"), reading)))
    response = server.http().post(f"/v1/programs/f{query}", json={"a": 1})
    if query:
        last = json.loads(response.text.split("\n\n")[-2].removeprefix("data: "))
        error = last["error"]
    else:
        assert response.status_code == 422, response.text
        error = response.json()["error"]
    assert error["code"] == "invalid_output"
    assert message in error["message"] and len(error["message"]) < 400


@pytest.mark.parametrize("text", ["NaN", "1e999", '{"x": -Infinity}'])
def test_constants_and_defaults_are_numbers_that_there_are(start: Start, text: str) -> None:
    server = start()
    assert error_of(put(server, made(result=ResultConstant(text))))["param"] == "result"
    parameter = Parameter(name="a", default=text)
    template = msgspec.structs.replace(made(), parameters=(parameter,))
    assert error_of(put(server, template))["param"] == "parameters"


def test_the_check_of_arguments_has_an_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bough.runtime.templates.fill.CHECK_TIMEOUT_S", 0.05)
    server = start()
    put(server, made(schema='{"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}'))
    error = error_of(server.http().post("/v1/programs/f", json={"a": [""] * 100_000}))
    assert "takes too long" in error["message"] and error["param"] == "a"


def test_a_state_is_not_hidden_by_a_deployed_program(start: Start) -> None:
    server = start(keys=parse_keys(["user key-u", "root key-r admin"]))
    user = server.http(headers={"authorization": "Bearer key-u"})
    root = server.http(headers={"authorization": "Bearer key-r"})
    state = {"id": "f", "ops": [{"type": "assign", "branch": 0, "name": "x", "parts": ["1"]}], "keep": True}
    assert user.post("/v1/programs", json=state).status_code == 200
    root.put("/v1/programs/f", content=msgspec.json.encode(made()), headers=JSON).raise_for_status()
    again = user.post("/v1/programs", json=state)
    assert (again.status_code, again.json()["error"]["param"]) == (400, "id")
    assert "name of a deployed program" in again.json()["error"]["message"]
    assert user.post("/v1/programs", json={**state, "resume": True}).status_code == 200
    dropped = user.delete("/v1/programs/f").json()
    assert (dropped["object"], server.engine.dropped) == ("program.state", ["user/f"])
    assert user.delete("/v1/programs/f").status_code == 403
    assert root.delete("/v1/programs/f").json()["object"] == "program"
    assert user.post("/v1/programs", json=state).status_code == 200


def test_what_is_deployed_is_bounded_in_all(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    template = made(Text(0, ("x" * 1000,)))
    size = len(msgspec.json.encode(template))
    monkeypatch.setattr("bough.server.programs.programs.MAX_DEPLOYED_BYTES", 2 * size)
    assert [put(server, template, name).status_code for name in ("f", "g", "f")] == [200] * 3
    assert put(server, template, "h").json()["error"]["code"] == "too_many_programs"
    assert server.http().delete("/v1/programs/f").status_code == 200
    assert put(server, template, "h").status_code == 200


def test_a_key_learns_nothing_of_programs_that_it_may_not_see(start: Start) -> None:
    engine = FakeClient()
    server = start(engine, keys=parse_keys(["ops key-o admin", "team key-t programs=other", "all key-l"]))
    ops, team, everything = (
        server.http(headers={"authorization": f"Bearer {key}"}) for key in ("key-o", "key-t", "key-l")
    )
    assert ops.put("/v1/programs/payroll", content=msgspec.json.encode(made()), headers=JSON).status_code == 200
    sent = {"id": "payroll", "ops": [{"type": "gen", "branch": 0, "name": "x"}]}
    assert team.post("/v1/programs", json=sent).status_code == 200
    assert everything.post("/v1/programs", json=sent).status_code == 400
    for name in ("payroll", "nothing"):
        answer = team.delete(f"/v1/programs/{name}")
        assert (answer.status_code, answer.json()["object"]) == (200, "program.state")
    assert engine.dropped == ["team/payroll", "team/nothing"]
    assert everything.delete("/v1/programs/payroll").status_code == 403
    assert ops.delete("/v1/programs/payroll").json()["object"] == "program"


def test_a_deployed_program_calls_no_tool_that_its_caller_may_not(start: Start) -> None:
    engine = FakeClient()
    engine.register_tool(UpperTool())
    server = start(engine, keys=parse_keys(["ops key-o admin", "team key-t tools=", "all key-l"]))
    ops, team, everything = (
        server.http(headers={"authorization": f"Bearer {key}"}) for key in ("key-o", "key-t", "key-l")
    )
    shout = made(Use(0, "x", "upper", (("text", ("hi",)),)))
    assert ops.put("/v1/programs/shout", content=msgspec.json.encode(shout), headers=JSON).status_code == 200
    refused = team.post("/v1/programs/shout", json={"a": 1})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tool_not_allowed")
    assert everything.post("/v1/programs/shout", json={"a": 1}).status_code == 200


def test_an_unknown_tool_is_refused_without_the_names_of_tools_that_the_key_may_not_call(start: Start) -> None:
    engine = FakeClient()
    for name in ("upper", "payroll"):
        tool = UpperTool()
        tool.name = name
        engine.register_tool(tool)
    server = start(engine, keys=parse_keys(["team key-t tools=upper,gone"]))
    team = server.http(headers={"authorization": "Bearer key-t"})
    sent = {"id": "p", "ops": [{"type": "use", "branch": 0, "name": "x", "tool": "gone"}]}
    refused = team.post("/v1/programs", json=sent)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "unknown_tool", "ops")
    assert "'gone'" in error["message"] and "there are: 'upper'" in error["message"]
    assert "payroll" not in refused.text
