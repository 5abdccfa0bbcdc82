"""Every failure has a status, a code and a body of one form."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
import openai
import pytest

from bough.constrain.errors import GrammarError, GrammarTooComplexError, InvalidSchemaError, UnsupportedKeywordError
from bough.runtime.protocol.errors import (
    MAX_MESSAGE_CHARS,
    EngineError,
    EngineStartingError,
    EngineStoppedError,
    EngineStuckError,
    ErrorInfo,
    OverloadedError,
    RequestError,
    to_exception,
    to_info,
)
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.server.config import ServerConfig
from bough.server.errors import ApiError, ShuttingDownError, from_decode_error, from_error_info, to_api_error
from bough.server.http.connection import Lifecycle
from bough.server.http.keys import parse_keys
from bough.server.openai.objects import ChatBody, CompletionBody

from ..constrain.search.hostile import expanded
from .conftest import Running, Start, running
from .fake_client import FakeClient, Script

HI: Any = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
BAD_REQUESTS = Path(__file__).resolve().parents[3] / "shared" / "data" / "bad_requests.jsonl"


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return dict(error)


@pytest.mark.parametrize(
    ("refusal", "status", "code", "param"),
    [
        (RequestError("bad", param="stop"), 400, "invalid_value", "stop"),
        (OverloadedError("full"), 503, "engine_overloaded", None),
        (EngineStoppedError("gone"), 503, "engine_dead", None),
        (InvalidSchemaError("no"), 400, "invalid_json_schema", "response_format"),
        (UnsupportedKeywordError("not", path="/not"), 400, "unsupported_json_schema", "response_format"),
        (GrammarTooComplexError("big"), 400, "grammar_too_complex", "response_format"),
        (
            RequestError("no", code="invalid_json_schema", param="grammar"),
            400,
            "invalid_json_schema",
            "response_format",
        ),
        (EngineError("late", code="generation_timeout"), 504, "generation_timeout", None),
        (EngineError("/root/secret.py"), 500, "internal_error", None),
        (KeyError("/root/secret.py"), 500, "internal_error", None),
    ],
)
def test_what_the_engine_raises(start: Start, refusal: Exception, status: int, code: str, param: str | None) -> None:
    server = start(FakeClient(lambda _: Script(refuse=refusal)))
    form = {"type": "json_object"}
    for stream in (False, True):
        body = {"model": "m", "messages": HI, "stream": stream, "response_format": form}
        response = server.http().post(CHAT, json=body)
        error = error_of(response)
        assert (response.status_code, error["code"], error["param"]) == (status, code, param)
        assert "secret" not in response.text
    assert ("retry-after" in response.headers) == (status == 503)
    assert response.headers.get("x-should-retry") == ("false" if status in (500, 504) else None)


@pytest.mark.parametrize(
    ("kind", "status"), [(RequestError, 400), (GrammarError, 400), (OverloadedError, 503), (EngineStoppedError, 503)]
)
def test_each_kind_of_exception_has_its_status(kind: type[Exception], status: int) -> None:
    assert to_api_error(kind("message")).status == status


def test_a_failed_generation_is_a_plain_error_before_the_first_output(start: Start) -> None:
    info = ErrorInfo(code="generation_timeout", message="not done within 1 s")
    server = start(FakeClient(lambda _: Script([], reason="error", error=info)))
    for stream in (False, True):
        response = server.http().post(CHAT, json={"model": "m", "messages": HI, "stream": stream})
        assert (response.status_code, error_of(response)["code"]) == (504, "generation_timeout")


def test_unknown_codes_of_the_engine_stay_inside() -> None:
    answer = from_error_info(ErrorInfo(code="surprise", message="at 0x7f00"))
    assert (answer.status, answer.code) == (500, "internal_error")
    assert "0x" not in answer.message


def test_the_official_client_raises_its_own_exceptions(server: Running) -> None:
    client = server.openai()
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=HI)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="m", messages=HI, temperature=3)
    assert (bad.value.code, bad.value.param) == ("decimal_above_max_value", "temperature")
    assert (bad.value.type, bad.value.status_code) == ("invalid_request_error", 400)


def test_unknown_urls_and_methods(server: Running) -> None:
    http = server.http()
    response = http.get("/nope")
    assert (response.status_code, error_of(response)["code"]) == (404, "unknown_url")
    response = http.get(CHAT)
    assert (response.status_code, error_of(response)["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == "POST"
    for path in ("/docs", "/redoc", f"{CHAT}/"):
        assert http.post(path).status_code == 404


def test_unknown_fields_are_counted_or_refused(start: Start) -> None:
    body = {"model": "m", "messages": HI, "some_future_field": 1, "store": True}
    server = start()
    assert server.http().post(CHAT, json=body).status_code == 200
    assert "\nbough_unknown_fields_total 1\n" in server.http().get("/metrics").text
    response = start(strict_params=True).http().post(CHAT, json=body)
    assert (response.status_code, error_of(response)["code"]) == (400, "unknown_parameter")


@pytest.mark.parametrize("field", ["use_beam_search", "allowed_token_ids", "adapter", "lora_path", "bad_words"])
def test_known_fields_that_are_not_honoured_are_refused_unless_empty(server: Running, field: str) -> None:
    http = server.http()
    response = http.post(CHAT, json={"model": "m", "messages": HI, field: ["x"]})
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", field)
    assert http.post(CHAT, json={"model": "m", "messages": HI, field: None}).status_code == 200


@pytest.mark.parametrize("name", ["continuous_usage_stats", "include_poetry"])
def test_an_option_of_streams_that_is_not_honoured_is_refused(server: Running, name: str) -> None:
    http, body = server.http(), {"model": "m", "messages": HI, "stream": True}
    error = error_of(http.post(CHAT, json={**body, "stream_options": {"include_usage": True, name: True}}))
    assert error["param"] == f"stream_options.{name}"
    options = {"include_usage": True, "continuous_usage_stats": False}
    assert http.post(CHAT, json={**body, "stream_options": options}).status_code == 200


def wire(row: dict[str, Any]) -> bytes:
    raw = row.get("raw")
    if raw is None:
        body = row.get("body")
        return b"" if body is None else json.dumps(expanded(body), ensure_ascii=False).encode()
    if raw.startswith("@hex:"):
        return bytes.fromhex(raw[5:])
    if raw.startswith("@utf16:"):
        return str(raw[7:]).encode("utf-16")
    return str(expanded(raw)).encode()


# Refused by the compiler of grammars, which the scripted engine does not have; and a route that is not served.
COMPILED = {"F09", "F10", "F11", "F12", "F14", "F15", "F16", "F17", "F19", "F20", "F21", "F24", "F25", "F26", "F34"}


@pytest.mark.skipif(not BAD_REQUESTS.exists(), reason="the list of bad requests is not there")
def test_the_list_of_bad_requests() -> None:
    rows = [json.loads(line) for line in BAD_REQUESTS.read_text().splitlines()]
    rows = [row for row in rows if row["id"] not in COMPILED and row["path"] != "/v1/responses"]
    config = ServerConfig(port=0, served_model_name="m", keys=parse_keys(["test test-key"]))
    streamed = [
        {**row, "id": f"{row['id']} streamed", "body": {**row["body"], "stream": True}}
        for row in rows
        if isinstance(row.get("body"), dict) and "stream" not in json.dumps(row["body"])
    ]
    with running(FakeClient(), config) as server:
        wrong = [problem for row in [*rows, *streamed] for problem in problems(server, row)]
    assert len(rows) > 90
    assert wrong == []


def problems(server: Running, row: dict[str, Any]) -> list[str]:
    """Returns what is wrong with the answer. (Sent by hand: some rows lie about their length.)"""
    headers = {"authorization": "Bearer test-key", "content-type": "application/json", **row.get("headers", {})}
    data = wire(row)
    headers.setdefault("content-length", str(len(data)))
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest(row["method"], row["path"])
    for name, value in headers.items():
        if value is not None:
            connection.putheader(name, value.encode())
    connection.endheaders(data)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    if response.status != row["status"]:
        return [f"{row['id']}: status {response.status}, not {row['status']}: {body[:200]!r}"]
    if response.status == 200:
        return []
    error = json.loads(body)["error"]
    wanted = {name: row[name] for name in ("code", "param") if name in row}
    return [
        f"{row['id']}: {name} {error[name]!r}, not {wanted[name]!r}" for name in wanted if error[name] != wanted[name]
    ]


@pytest.mark.parametrize(
    ("left_s", "least", "most"), [(7.0, 7, 9), (-3.0, 1, 2), (0.2, 1, 2), (3600.0, 60, 60), (math.inf, 60, 60)]
)
def test_a_wait_is_as_long_as_it_should_take(left_s: float, least: int, most: int) -> None:
    error = EngineStartingError("the engine is being started again")
    error.retry_after_s = left_s
    for answer in (to_api_error(error), ShuttingDownError(left_s)):
        waits = {int(answer.headers["retry-after"]), int(answer.headers["retry-after"])}
        assert least <= min(waits) <= max(waits) <= most


def test_a_server_that_drains_says_how_long() -> None:
    lifecycle = Lifecycle()
    lifecycle.drain(20.0)
    assert 19 <= int(lifecycle.refusal().headers["retry-after"]) <= 24
    lifecycle.expire()
    assert lifecycle.draining


def test_what_an_engine_was_stuck_in_must_not_come_again() -> None:
    error = EngineStuckError("the engine has made no progress for 60 s")
    assert "x-should-retry" not in to_api_error(error).headers
    error.may_retry = False
    for answer in (to_api_error(error), to_api_error(to_exception(to_info(error))), from_error_info(to_info(error))):
        assert (answer.status, answer.code) == (503, "engine_stuck")
        assert answer.headers == {"x-should-retry": "false"}
    assert b"may_retry" not in msgspec.json.encode(to_info(EngineStuckError("")))


# Integers of any size

INTEGERS = ("9" * 4300, f"-{'9' * 4300}", "9" * 4301, "9" * 9000)
"""The first two are all that Python's `str` writes."""


def integers_of(kind: type[msgspec.Struct]) -> list[str]:
    """The members of a struct that are integers."""

    def is_integer(known: msgspec.inspect.Type) -> bool:
        match known:
            case msgspec.inspect.UnionType(types=types):
                return any(map(is_integer, types))
            case msgspec.inspect.Metadata(type=inner):
                return is_integer(inner)
            case _:
                return isinstance(known, msgspec.inspect.IntType)

    about = msgspec.inspect.type_info(kind)
    assert isinstance(about, msgspec.inspect.StructType)
    return [field.encode_name for field in about.fields if is_integer(field.type)]


def completion(fields: str) -> str:
    return f'{{"model": "m", "prompt": "x", {fields}}}'


def prompted(fields: str) -> str:
    return f'{{"model": "m", {fields}}}'


def chat(fields: str) -> str:
    return f'{{"model": "m", "messages": [{{"role": "user", "content": "x"}}], {fields}}}'


def program(fields: str) -> str:
    return f'{{"id": "p", "ops": [{{"type": "text", "branch": 0, "parts": ["x"]}}], {fields}}}'


def op(fields: str) -> str:
    return f'{{"id": "p", "ops": [{{{fields}}}]}}'


def sampled(fields: str) -> str:
    return op(f'"type": "gen", "branch": 0, "name": "v", "sampling": {{{fields}}}')


def template(fields: str) -> str:
    return f'{{"name": "f", "ops": [], "result": {{"type": "constant", "json": "1"}}, {fields}}}'


@pytest.mark.parametrize("value", INTEGERS, ids=["most", "least", "more", "many"])
@pytest.mark.parametrize(
    ("path", "made", "field", "sent"),
    [
        *(("/v1/completions", completion, name, "{}") for name in integers_of(CompletionBody)),
        *((CHAT, chat, name, "{}") for name in integers_of(ChatBody)),
        (CHAT, lambda fields: chat(f'"max_tokens": 5, {fields}'), "max_completion_tokens", "{}"),
        (CHAT, lambda fields: chat(f'"min_tokens": 5, {fields}'), "max_tokens", "{}"),
        *((path, made, "stop_token_ids", "[{}]") for path, made in ((CHAT, chat), ("/v1/completions", completion))),
        *((path, made, "logit_bias", '{{"{}": 1}}') for path, made in ((CHAT, chat), ("/v1/completions", completion))),
        *(("/v1/completions", prompted, "prompt", sent) for sent in ("[{}]", "[[{}]]")),
        ("/detokenize", lambda fields: f"{{{fields}}}", "tokens", "[{}]"),
        *(("/v1/programs", sampled, name, "{}") for name in integers_of(SamplingParams)),
        ("/v1/programs", sampled, "stop_token_ids", "[{}]"),
        ("/v1/programs", sampled, "logit_bias", '{{"{}": 1}}'),
        ("/v1/programs", program, "spec_tokens", "{}"),
        ("/v1/programs", lambda fields: op(f'"type": "gen", "name": "v", {fields}'), "branch", "{}"),
        ("/v1/programs", lambda fields: op(f'"type": "fork", "branch": 0, {fields}'), "children", "[{}]"),
        ("/v1/programs", lambda fields: op(f'"type": "fork", "branch": 0, "children": [], {fields}'), "retries", "{}"),
    ],
)  # fmt: skip
def test_no_integer_is_too_long_for_a_refusal(
    server: Running, path: str, made: Callable[[str], str], field: str, sent: str, value: str
) -> None:
    headers = {"content-type": "application/json"}
    response = server.http().post(path, content=made(f'"{field}": {sent.format(value)}'), headers=headers)
    error = error_of(response)
    assert (response.status_code, len(error["message"]) < 1000) == (400, True), error
    assert field in error["param"]


@pytest.mark.parametrize("value", INTEGERS)
def test_no_integer_of_a_deployed_program_is_too_long_for_a_refusal(server: Running, value: str) -> None:
    headers = {"content-type": "application/json"}
    content = template(f'"version": {value}')
    error = error_of(server.http().put("/v1/programs/f", content=content, headers=headers))
    assert error["param"] == "version" and len(error["message"]) < 1000


LONG = "a" * 200_000
TOOLS = '"tools": [{"type": "function", "function": {"name": "f"}}]'


def constrained(grammar: str) -> str:
    return op(f'"type": "gen", "branch": 0, "name": "v", "grammar": {{{grammar}}}')


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (CHAT, chat(f'"{LONG}": 1').replace('"m"', f'"{LONG}"')),
        (CHAT, chat(f'"tool_choice": {{"type": "{LONG}"}}')),
        (CHAT, chat(f'{TOOLS}, "tool_choice": {{"type": "function", "function": {{"name": "{LONG}"}}}}')),
        (CHAT, chat(f'{TOOLS}, "tool_choice": "{LONG}"')),
        (CHAT, chat(f'"chat_template_kwargs": {{"{LONG}-": 1}}')),
        (CHAT, chat(f'"chat_template_kwargs": {{"{LONG}": []}}')),
        (CHAT, chat(f'"response_format": {{"type": "structural_tag", "format": {{"type": "{LONG}"}}}}')),
        (CHAT, chat(f'"response_format": {{"type": "structural_tag", "triggers": "{LONG}", "structures": []}}')),
        (CHAT, chat(f'"logit_bias": {{"{LONG}": 1}}')),
        (CHAT, chat(TOOLS.replace('"f"', f'"f", "parameters": {{"properties": {{"{LONG}": 1}}}}'))),
        (CHAT, f'{{"model": "m", "messages": [{{"role": "{LONG}"}}]}}'),
        (CHAT, f'{{"model": "m", "messages": [{{"role": "user", "content": [{{"type": "{LONG}"}}]}}]}}'),
        ("/v1/programs", op(f'"type": "{LONG}"')),
        ("/v1/programs", constrained(f'"type": "lark", "grammar": "x", "{LONG}": 1')),
        ("/v1/programs", constrained(f'"type": "json_schema", "schema": "x", "policy": "{LONG}"')),
        ("/v1/programs", sampled(f'"{LONG}": 1')),
    ],
    ids=range(16),
)  # fmt: skip
def test_no_more_is_quoted_than_a_message_needs(server: Running, path: str, content: str) -> None:
    response = server.http().post(path, content=content, headers={"content-type": "application/json"})
    error = error_of(response)
    assert 400 <= response.status_code < 500
    assert (len(error["message"]) < 1200, len(error["param"] or "") < 200) == (True, True), error["message"][:200]
    assert "a" * 250 not in error["message"] or "characters in all" in error["message"]


def test_an_answer_is_cut_whatever_it_quotes() -> None:
    quoting = [RequestError(LONG, param=LONG), GrammarError(LONG, path=LONG), ApiError(400, "invalid_value", LONG)]
    told = ErrorInfo(code="tool_failed", message=LONG, param=LONG)
    for answer in (*map(to_api_error, quoting), from_error_info(told)):
        assert len(answer.message) <= MAX_MESSAGE_CHARS and len(answer.param or "") <= 200
        assert answer.message.startswith("a" * 900) and "characters in all" in answer.message


def test_a_deployed_program_is_refused_in_few_words(start: Start) -> None:
    server = start()

    def refused(name: str, value: object) -> None:
        program: dict[str, Any] = {
            "name": "f",
            "parameters": [{"name": "a", "schema": '{"type": "object", "additionalProperties": false}'}],
            "ops": [{"type": "text", "branch": 0, "parts": [{"type": "hole", "name": "a"}]}],
            "result": {"type": "constant", "json": "1"},
        }
        response = server.http().put("/v1/programs/f", json={**program, name: value})
        assert response.status_code == 400, (name, str(value)[:100])
        assert len(error_of(response)["message"]) < 1200

    share = {"type": "share", "ref": {"branch": 0, "name": "v"}, "choices": ["x"]}
    refused("result", {**share, "choice": LONG})
    refused("result", {**share, "choice": "x", "format": LONG})
    refused("parameters", [{"name": "a", "schema": json.dumps({"properties": {LONG: 1}})}])
    refused("parameters", [{"name": "a", "default": f'"{LONG}', "schema": "{}"}])
    refused("parameters", [{"name": "a", "default": f'"{LONG}"', "schema": '{"enum": ["x"]}'}])
    refused("ops", [{"type": "text", "branch": 0, "parts": [{"type": "hole", "name": "a", "spec": LONG}]}])


class Mode(msgspec.Struct):
    kind: Literal["one", "two"]


def test_the_path_of_a_refusal_is_the_last_and_is_found_without_reading_what_is_quoted() -> None:
    def refusal(value: str) -> ApiError:
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.json.decode(msgspec.json.encode({"kind": value}), type=Mode)
        return from_decode_error(caught.value)

    assert refusal("three").param == "kind"
    assert refusal("three - at `$.other` - at `$.third`").param == "kind"
    before = time.thread_time()
    long = refusal(" - at" * 2_000_000)
    assert time.thread_time() - before < 0.2  # a search from the front took more than this
    assert long.param == "kind"
    assert len(long.message) < 1_000
