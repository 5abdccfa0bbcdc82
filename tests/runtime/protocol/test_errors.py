"""Errors survive the way between processes, and every code is in the table of classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from bough.constrain.errors import REFUSALS
from bough.runtime.protocol.errors import (
    CLASSES,
    MAX_LINE_CHARS,
    BoughError,
    EngineError,
    EngineStoppedError,
    ErrorInfo,
    ModelError,
    OverloadedError,
    RequestError,
    in_file,
    to_exception,
    to_info,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("m", param="p"), RequestError),
        (RequestError("m", code="context_length_exceeded"), RequestError),
        (RequestError("m", code="state_not_found"), RequestError),
        (RequestError("m", code="unsupported_parameter"), RequestError),
        (RequestError("m", code="empty_prompt"), RequestError),
        (EngineError("m", code="generation_timeout"), EngineError),
        (OverloadedError("m"), OverloadedError),
        (EngineStoppedError("m"), EngineStoppedError),
    ],
)
def test_errors_survive_the_way(error: BoughError, kind: type[BoughError]) -> None:
    back = to_exception(to_info(error))
    assert type(back) is kind
    assert (back.code, back.message, back.param) == (error.code, error.message, error.param)


def test_an_unknown_code_is_an_engine_error() -> None:
    assert type(to_exception(ErrorInfo(code="surprise", message="m"))) is EngineError


def test_an_old_peer_may_say_less() -> None:
    error = to_exception(ErrorInfo(code="engine_overloaded", message="m", param="p"))
    assert type(error) is OverloadedError
    assert (error.code, error.param) == ("engine_overloaded", "p")


def codes_in(node: ast.AST) -> Iterator[str]:
    """The codes that a piece of source gives to errors: as an argument, as a class's own, or as a constant."""
    values: list[ast.expr] = []
    match node:
        case ast.Call(func=function, args=arguments, keywords=keywords):
            values = [keyword.value for keyword in keywords if keyword.arg == "code"]
            if isinstance(function, ast.Attribute) and function.attr == "_fail":
                values += arguments[1:2]
        case ast.Assign(targets=[ast.Name(id="code" | "CANCELLED")], value=value):
            values = [value]
    yield from (value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str))


def test_every_code_has_a_class() -> None:
    files = [*(ROOT / "runtime").rglob("*.py"), ROOT / "constrain" / "errors.py"]
    trees = [ast.parse(file.read_text()) for file in files]
    found = {code for tree in trees for node in ast.walk(tree) for code in codes_in(node)}
    assert found == set(CLASSES)


def test_what_a_constraint_is_refused_for_is_wrong_with_the_request() -> None:
    assert {CLASSES[code] for code in REFUSALS} == {RequestError}


@pytest.mark.parametrize("kind", [RequestError, ModelError, OverloadedError, EngineStoppedError])
def test_a_class_is_found_by_its_own_code(kind: type[BoughError]) -> None:
    assert CLASSES[kind.code] is kind


def test_a_model_error_is_one_line_of_bounded_length() -> None:
    error = ModelError("first\n  second\t" + "x" * 1_000_000)
    assert error.message.startswith("first second x") and len(error.message) == MAX_LINE_CHARS
    assert str(error) == error.message


def test_the_name_of_a_file_is_said_once() -> None:
    for message in ("no such field", "config.json: no such field"):
        with pytest.raises(ModelError) as caught, in_file("config.json"):
            raise ModelError(message, code="a_code")
        assert (caught.value.message, caught.value.code) == ("config.json: no such field", "a_code")
