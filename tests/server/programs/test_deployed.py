"""Deployed programs: registered by data, called with typed arguments, described by OpenAPI."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from bough.constrain.spec import Choice
from bough.runtime.protocol.condition import Hole, Ref
from bough.runtime.protocol.errors import RequestError
from bough.runtime.protocol.program import Fork, Gen, Text, Use
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.protocol.template import (
    Parameter,
    Result,
    ResultConstant,
    ResultObject,
    ResultText,
    ResultValue,
    Template,
)
from bough.server.app import create_app
from bough.server.config import ServerConfig
from bough.server.http.keys import parse_keys

from ..conftest import Start
from ..fake_client import FakeClient

JSON = {"content-type": "application/json"}
PERSON = json.dumps(
    {
        "$ref": "#/$defs/Person",
        "$defs": {"Person": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
    }
)


def template(**changes: Any) -> Template:
    result: Result = ResultObject(
        (("answer", ResultValue(Ref(0, "x"), "int")), ("text", ResultText((Hole("word"), " is ", Ref(0, "x")))))
    )
    made = Template(
        name="multiply",
        description="Multiplies.\n\nWith words.",
        parameters=(
            Parameter(name="word", schema='{"type": "string"}'),
            Parameter(name="person", schema=PERSON, default='{"name": "Ada"}'),
        ),
        ops=(Text(0, (Hole("word"), " for ", Hole("person/name"))), Gen(0, "x")),
        result=result,
    )
    return msgspec.structs.replace(made, **changes)


def put(http: Any, made: Template, name: str = "multiply") -> Any:
    return http.put(f"/v1/programs/{name}", content=msgspec.json.encode(made), headers=JSON)


def test_a_deployed_program_is_an_endpoint(start: Start) -> None:
    server = start()
    http = server.http()
    assert put(http, template()).json()["id"] == "multiply"
    response = http.post("/v1/programs/multiply", json={"word": "six"})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["result"] == {"answer": 42, "text": "six is 42"}
    assert (answer["object"], answer["program"]) == ("program.result", "multiply")
    assert answer["id"] == response.headers["x-request-id"]
    assert set(answer["usage"]) >= {"prompt_tokens", "completion_tokens"}
    (ran,) = server.engine.programs
    assert ran.ops[0] == Text(0, ("six for Ada",))
    assert not ran.keep


def test_it_streams_what_happens(start: Start) -> None:
    http = start().http()
    put(http, template())
    response = http.post("/v1/programs/multiply?stream=true", json={"word": "six"})
    assert response.headers["content-type"].startswith("text/event-stream")
    *parts, done, empty = response.text.split("\n\n")
    events = [json.loads(part.removeprefix("data: ")) for part in parts]
    assert (done, empty) == ("data: [DONE]", "")
    assert [event["type"] for event in events] == ["delta", "value", "result"]
    assert events[-1]["result"] == {"answer": 42, "text": "six is 42"}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "word", "needs the argument 'word'"),
        ({"word": 1}, "word", "is not of type 'string'"),
        ({"word": "x", "other": 1}, "other", "has no parameter 'other'"),
        ({"word": "x", "person": {}}, "person", "'name' is a required property"),
        ([], "", "JSON object"),
    ],
)
def test_bad_arguments_are_refused_by_name(start: Start, body: Any, param: str, message: str) -> None:
    http = start().http()
    put(http, template())
    response = http.post("/v1/programs/multiply", json=body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert message in error["message"]
    assert error["param"] == param


@pytest.mark.parametrize(
    ("name", "made", "message"),
    [
        ("9lives", template(), "not begin with a digit"),
        ("a" * 65, template(), "1 to 64"),
        ("multiply", template(ops=(Text(0, (Hole("other"),)),)), "no parameter for the hole 'other'"),
        ("multiply", template(ops=(Text(0, ("x",)),) * 5000), "at most 4096"),
        ("multiply", template(ops=(Fork(0, tuple(range(1, 1030))),)), "at most 1024 branches"),
        ("multiply", template(parameters=(Parameter(name="word", schema='{"type": "text"}'),)), ""),
        ("multiply", template(parameters=(Parameter(name="word", schema="{"),)), "not JSON"),
        ("multiply", template(result=ResultConstant("not json")), "result is not JSON"),
        ("multiply", template(result=ResultConstant('"\\ud800"')), "result is not JSON"),
        ("multiply", template(result=ResultConstant("[" * 100_000)), "result is not JSON"),
        ("multiply", template(result=ResultValue(Ref(0, "x"), "json", "garbage")), "result is not JSON"),
        ("multiply", template(ops=(Text(0, (Hole("word", "9" * 11),)),)), "wider than 1000"),
        ("multiply", template(ops=(Text(0, (Hole("word", "\u0669" * 9),)),)), "ASCII"),
        (
            "multiply",
            template(ops=(Gen(0, "x", sampling=SamplingParams(max_tokens=1), grammar=Choice(("yes", "no"))),)),
            "instruction 0: max_tokens=1 is too small",
        ),
    ],
)
def test_what_cannot_run_is_not_deployed(start: Start, name: str, made: Template, message: str) -> None:
    http = start().http()
    response = put(http, made, name)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
    assert http.get("/v1/programs").json()["data"] == []


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            template(ops=(Gen(0, "x", sampling=SamplingParams(max_tokens=1), grammar=Choice(("yes", "no"))),)),
            "the program 'multiply': instruction 0: max_tokens=1 is too small for any value of its constraint",
        ),
        (template(ops=(Use(0, "x", "nope"),)), "the program 'multiply': instruction 0 uses the tool 'nope'"),
        (template(parameters=(Parameter(name="word", schema="{"),)), "the program 'multiply': .* not JSON"),
    ],
)
def test_a_server_does_not_start_with_what_cannot_run(made: Template, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        create_app(FakeClient(), ServerConfig(), programs=(made,))
    create_app(FakeClient(), ServerConfig(), programs=(template(),))


def test_garbage_is_not_deployed(start: Start) -> None:
    http = start().http()
    for garbage in (b"", b"[]", b'{"name": "x"}', b'{"name": "x", "ops": [], "result": {"type": "value"}}'):
        assert http.put("/v1/programs/x", content=garbage, headers=JSON).status_code == 400
    future = msgspec.to_builtins(template()) | {"version": 2}
    assert http.put("/v1/programs/x", json=future).json()["error"]["param"] == "version"


def test_only_admins_deploy(start: Start) -> None:
    server = start(keys=parse_keys(["user key-u", "root key-r admin"]))
    user = server.http(headers={"authorization": "Bearer key-u"})
    root = server.http(headers={"authorization": "Bearer key-r"})
    assert put(user, template()).status_code == 403
    assert put(root, template()).status_code == 200
    assert user.post("/v1/programs/multiply", json={"word": "six"}).status_code == 200
    assert server.engine.programs[0].namespace == "user"
    assert user.delete("/v1/programs/multiply").status_code == 403
    assert root.delete("/v1/programs/multiply").status_code == 200
    assert user.post("/v1/programs/multiply", json={"word": "six"}).json()["error"]["code"] == "program_not_found"


def test_programs_are_listed_and_described(start: Start) -> None:
    http = start().http()
    put(http, template())
    (card,) = http.get("/v1/programs").json()["data"]
    assert card == http.get("/v1/programs/multiply").json()
    assert card["description"].startswith("Multiplies.")
    jsonschema.validate({"word": "x", "person": {"name": "y"}}, card["arguments"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"word": "x", "person": {"name": 1}}, card["arguments"])
    jsonschema.validate({"answer": 42, "text": "six is 42"}, card["result"])
    assert http.get("/v1/programs/none").status_code == 404


def test_the_openapi_document_is_true(start: Start) -> None:
    http = start().http()
    put(http, template())
    document = http.get("/openapi.json").json()
    post = document["paths"]["/v1/programs/multiply"]["post"]
    assert post["operationId"] == "multiply" and post["summary"] == "Multiplies."
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    whole = {**schema, "components": document["components"]}
    jsonschema.validate({"word": "x"}, whole)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"word": "x", "person": {"name": 1}}, whole)
    answer = http.post("/v1/programs/multiply", json={"word": "six"}).json()
    jsonschema.validate(answer, post["responses"]["200"]["content"]["application/json"]["schema"])


def test_the_number_of_programs_is_bounded(start: Start) -> None:
    http = start().http()
    for number in range(256):
        assert put(http, template(), f"p{number}").status_code == 200
    assert put(http, template(), "one_more").json()["error"]["code"] == "too_many_programs"
    assert put(http, template(), "p0").status_code == 200


def test_keys_see_and_call_the_programs_that_are_theirs(start: Start) -> None:
    server = start(keys=parse_keys(["some key-s programs=multiply", "none key-n programs=", "root key-r admin"]))
    root = server.http(headers={"authorization": "Bearer key-r"})
    assert [put(root, template(), name).status_code for name in ("multiply", "other")] == [200, 200]
    for key, names in (("key-s", ["multiply"]), ("key-n", []), ("key-r", ["multiply", "other"])):
        http = server.http(headers={"authorization": f"Bearer {key}"})
        assert [each["id"] for each in http.get("/v1/programs").json()["data"]] == names
        assert sorted(http.get("/openapi.json").json()["paths"]) == [f"/v1/programs/{name}" for name in names]
        for name in ("multiply", "other"):
            allowed = name in names
            assert (http.get(f"/v1/programs/{name}").status_code == 200) is allowed
            answer = http.post(f"/v1/programs/{name}", json={})
            assert (answer.status_code != 404) is allowed
