"""Fills a template's holes with arguments."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...constrain.errors import GrammarError, cut, quoted
from ...constrain.json_schema.document import Document
from ...constrain.json_schema.parse import parse_schema
from ...constrain.json_schema.validate import violations
from ..protocol.condition import Condition, Hole, Operand
from ..protocol.errors import RequestError
from ..protocol.program import Op, walk
from ..protocol.template import (
    Parameter,
    Result,
    ResultArgument,
    ResultConstant,
    ResultShare,
    ResultText,
    ResultValue,
    Template,
    replace_leaves,
    walk_result,
)
from .results import read_json
from .rewrite import Parts, condition_of, joined, operands, parts_in, rewrite, with_operands

MAX_ARGUMENT_CHARS = 4_000_000
MAX_FILLED_CHARS = 2 * MAX_ARGUMENT_CHARS
"""Most characters of arguments written into one program and its result. A template can repeat a hole."""

CHECK_TIMEOUT_S = 0.5
"""Processor time for checking the arguments of one call, or a default."""

TOO_DEEP = "its blocks and conditions are nested too deeply"

_MAX_WIDTH = 1_000
_SPEC = re.compile(r"[ -~]{0,32}")


def check_arguments(template: Template, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments, with defaults filled in, as JSON values.

    Raises:
        RequestError: an argument is missing, unknown, or violates its parameter's schema; `param` names it.
    """
    known = {parameter.name: parameter for parameter in template.parameters}
    for name in arguments:
        if name not in known:
            names = ", ".join(known) or "none"
            raise RequestError(f"{template.name} has no parameter {name[:100]!r}; it has {names}", param=name[:100])
    found: dict[str, Any] = {}
    until = time.thread_time() + CHECK_TIMEOUT_S
    for name, parameter in known.items():
        if name not in arguments:
            if parameter.default is None:
                raise RequestError(f"{template.name} needs the argument {name!r}", param=name)
            found[name] = json.loads(parameter.default)
            continue
        text = _json(name, arguments[name])
        if len(text) > MAX_ARGUMENT_CHARS:
            raise RequestError(f"{name} has more than {MAX_ARGUMENT_CHARS} characters", param=name)
        try:
            wrong = violations(parameter.schema, text, timeout_s=until - time.thread_time())
        except GrammarError as error:
            raise RequestError(f"{name} cannot be checked: {error}", param=name) from error
        if wrong:
            where = f"{name}{cut(wrong[0].pointer)}"
            raise RequestError(f"{where}: {wrong[0].message}", param=name)
        found[name] = json.loads(text)
    return found


def _json(name: str, value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()  # half of a surrogate pair is a ValueError
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{name} is no JSON value: {error}", param=name) from error
    return text


def check_template(template: Template) -> None:
    """Checks that a template can be filled: schemas are valid, defaults fit them, each hole has its parameter.

    Raises:
        RequestError, GrammarError: the template is invalid.
    """
    names = [parameter.name for parameter in template.parameters]
    if len(set(names)) < len(names):
        raise RequestError("two parameters have the same name", param="parameters")
    for parameter in template.parameters:
        Document(parse_schema(parameter.schema))  # raises if it is no schema
        if parameter.default is not None:
            _check_default(parameter)
    _check_result(template.result)
    try:
        for hole in (*_holes_in_ops(template.ops), *_holes_in_result(template.result)):
            _check_spec(hole)
            if hole.name.partition("/")[0] not in names:
                raise RequestError(f"there is no parameter for the hole {hole.name[:100]!r}", param="parameters")
    except RecursionError as error:
        raise RequestError(TOO_DEEP, code="invalid_program", param="ops") from error


def _check_default(parameter: Parameter) -> None:
    assert parameter.default is not None
    wrong = violations(parameter.schema, parameter.default, timeout_s=CHECK_TIMEOUT_S)
    if wrong:
        raise RequestError(f"the default of {parameter.name}: {wrong[0].message}", param="parameters")
    try:
        read_json(parameter.default)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the default of {parameter.name}: {cut(str(error))}", param="parameters") from error


SHARE_FORMAT = re.compile(r"[<>^]?[0-9]{0,2}(\.[0-9]{1,2})?[eEfFgG%]?")
"""Allowed formats of probabilities, whose results fit on a line."""


def _check_result(result: Result) -> None:
    """Checks the parts of a result that an engine does not check.

    Raises:
        RequestError: a text in it is not JSON, or a probability is of no choice.
        GrammarError: a schema is invalid.
    """
    for part in walk_result(result):
        match part:
            case ResultShare(choices=choices, choice=choice, format=form):
                if choice not in choices:
                    message = f"{quoted(choice)} is none of the choices of the result's probability"
                    raise RequestError(message, param="result")
                if form is not None and SHARE_FORMAT.fullmatch(form) is None:
                    raise RequestError(f"a probability cannot be written in the format {quoted(form)}", param="result")
            case ResultConstant(json=text) | ResultValue(schema=text):
                try:
                    json.dumps(read_json(text), ensure_ascii=False).encode()
                except (ValueError, RecursionError) as error:
                    raise RequestError(f"a part of the result is not JSON: {error}", param="result") from error
                if isinstance(part, ResultValue):
                    Document(parse_schema(text))  # raises if it is no schema


def _holes_in_ops(ops: Iterable[Op]) -> Iterator[Hole]:
    for op in walk(ops):
        condition = condition_of(op)
        for part in (*parts_in(op), *(operands(condition) if condition is not None else ())):
            if isinstance(part, Hole):
                yield part


def _holes_in_result(result: Result) -> Iterator[Hole]:
    for part in walk_result(result):
        match part:
            case ResultText(parts=parts):
                yield from (each for each in parts if isinstance(each, Hole))
            case ResultArgument(hole=hole):
                yield hole


class Filled(NamedTuple):
    """Instructions to run, and the recipe of their result."""

    ops: tuple[Op, ...]
    result: Result


def fill(template: Template, arguments: Mapping[str, Any]) -> Filled:
    """Returns the template with the arguments in its holes.

    Raises:
        RequestError: an argument does not fit, or the program becomes too long.
    """
    filling = _Filling(check_arguments(template, arguments))
    try:
        return Filled(rewrite(template.ops, filling), filling.result(template.result))
    except RecursionError as error:
        raise RequestError(TOO_DEEP, code="invalid_program", param="ops") from error


class _Filling:
    """Replaces holes by arguments."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._room = MAX_FILLED_CHARS

    def parts(self, parts: Parts) -> Parts:
        return joined(self._written(part) if isinstance(part, Hole) else part for part in parts)

    def argument(self, parts: Parts) -> Parts:
        """Fills an argument of a tool; a whole value that is not text is passed as JSON."""
        match parts:
            case (Hole(spec="") as hole,) if not isinstance(value := _looked_up(hole, self._values), str):
                return (self._dumped(value),)
            case _:
                return self.parts(parts)

    def result(self, result: Result) -> Result:
        return replace_leaves(result, self._leaf)

    def _leaf(self, result: Result) -> Result:
        match result:
            case ResultText(parts=parts):
                return ResultText(self.parts(parts))
            case ResultArgument(hole=hole):
                return ResultConstant(self._dumped(_looked_up(hole, self._values)))
            case _:
                return result

    def condition(self, condition: Condition) -> Condition:
        return with_operands(condition, self._operand)

    def _operand(self, operand: Operand) -> Operand:
        if not isinstance(operand, Hole):
            return operand
        value = _looked_up(operand, self._values)
        try:
            return float(value) if type(value) in (int, float) else self._written(operand)
        except OverflowError as error:
            raise RequestError(f"{operand.name} is too large a number", param=operand.name) from error

    def _written(self, hole: Hole) -> str:
        return self._within(_written(hole, self._values))

    def _dumped(self, value: Any) -> str:
        return self._within(json.dumps(value, ensure_ascii=False))

    def _within(self, text: str) -> str:
        self._room -= len(text)
        if self._room < 0:
            message = f"the arguments are written as more than {MAX_FILLED_CHARS} characters in all"
            raise RequestError(message, code="program_too_long")
        return text


def _looked_up(hole: Hole, values: Mapping[str, Any]) -> Any:
    """Returns the argument, or the part of it that the hole's name leads to: "person/age"."""
    name, *path = hole.name.split("/")
    value = values[name]
    for step in path:
        try:
            value = value[int(step)] if isinstance(value, Sequence) and not isinstance(value, str) else value[step]
        except (LookupError, TypeError, ValueError):
            raise RequestError(f"{name} has no {hole.name.removeprefix(name)}", param=name) from None
    return value


def _written(hole: Hole, values: Mapping[str, Any]) -> str:
    value = _looked_up(hole, values)
    _check_spec(hole)
    try:
        return format(value, hole.spec)
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"{hole.name} cannot be written as {hole.spec!r}: {error}", param=hole.name) from error


def _check_spec(hole: Hole) -> None:
    """Raises RequestError for a format that could ask for a huge text. Python reads digits of all scripts."""
    if not _SPEC.fullmatch(hole.spec):
        raise RequestError(f"{hole.spec[:100]!r} is no format of 32 ASCII characters at most", param=hole.name)
    if any(len(number) > 4 or int(number) > _MAX_WIDTH for number in re.findall(r"[0-9]+", hole.spec)):
        raise RequestError(f"the format {hole.spec!r} is wider than {_MAX_WIDTH}", param=hole.name)
