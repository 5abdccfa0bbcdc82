"""A program as text that people read: a line for each instruction, indented by its branch and block."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import msgspec

from ...constrain.spec import GrammarSpec
from ...runtime.condition import Compare, Condition, Count, Either, Every, Hole, Matches, Negation, Operand, Ref, Times
from ...runtime.program import (
    Assign,
    Cancel,
    Fork,
    Gen,
    Join,
    Op,
    Part,
    Repeat,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    Use,
    When,
)
from ...runtime.template import (
    Parameter,
    Result,
    ResultArgument,
    ResultConstant,
    ResultList,
    ResultObject,
    ResultProbabilities,
    ResultText,
    ResultValue,
    Template,
)

MAX_TEXT = 72
_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "contains": "contains"}


def listing(template: Template) -> str:
    """The whole program: its parameters, instructions and result.

    >>> print(listing(template))
    program capital(country: string)
        0 | user
        0 |   "What is the capital of " {country} "?"
        ...
    """
    parameters = ", ".join(map(_parameter, template.parameters))
    lines = [f"program {template.name}({parameters})"]
    lines += [f"{branch:>5} | {text}" for branch, text in _lines(template.ops, 0)]
    return "\n".join([*lines, f"result {_result(template.result)}"])


def _parameter(parameter: Parameter) -> str:
    schema = json.loads(parameter.schema)
    kind = schema.get("type", "any") if isinstance(schema, dict) else "any"
    default = "" if parameter.default is None else f" = {_short(parameter.default)}"
    return f"{parameter.name}: {kind if isinstance(kind, str) else 'any'}{default}"


def _lines(ops: Iterable[Op], depth: int) -> Iterator[tuple[int, str]]:
    indent = "  " * depth
    inside: set[int] = set()
    for op in ops:
        if isinstance(op, RoleEnd):
            inside.discard(op.branch)
            continue
        yield op.branch, indent + "  " * (op.branch in inside) + _line(op)
        match op:
            case RoleBegin():
                inside.add(op.branch)
            case When(then=then, otherwise=otherwise):
                yield from _lines(then, depth + 1)
                if otherwise:
                    yield op.branch, f"{indent}otherwise"
                    yield from _lines(otherwise, depth + 1)
            case Repeat(body=body, until=until, at_most=at_most):
                yield from _lines(body, depth + 1)
                yield op.branch, f"{indent}until {condition_text(until)}, {at_most} times at most"


def _line(op: Op) -> str:
    match op:
        case Text(parts=parts):
            return _parts(parts)
        case RoleBegin(role=role):
            return role
        case Gen():
            return f"gen {op.name}{_options(op)}"
        case Select(name=name, choices=choices, method=method):
            return f"select {name} of {_short(', '.join(map(json.dumps, choices)))}, {method}"
        case Assign(name=name, parts=parts):
            return f"{name} = {_parts(parts)}"
        case Use(name=name, tool=tool, arguments=arguments):
            return f"use {name} = {tool}({', '.join(f'{key}={_parts(value)}' for key, value in arguments)})"
        case Fork(children=children, isolated=isolated, retries=retries):
            extra = (", isolated" if isolated else "") + (f", {retries} retries" if retries else "")
            return f"fork {' '.join(map(str, children))}{extra}"
        case Join(children=children, mode=mode):
            return f"join {' '.join(map(str, children))}, {mode}"
        case When(condition=condition):
            return f"when {condition_text(condition)}"
        case Repeat():
            return "repeat"
        case Cancel():
            return "cancel"
        case RoleEnd():
            return "end"


def _options(op: Gen) -> str:
    """What is not the default: sampling parameters, the constraint, the time-out."""
    given = [f"{name}={_short(json.dumps(value))}" for name, value in msgspec.to_builtins(op.sampling).items()]
    if op.grammar is not None:
        given.append(_grammar(op.grammar))
    if op.timeout_s is not None:
        given.append(f"timeout_s={op.timeout_s:g}")
    return f" ({', '.join(given)})" if given else ""


def _grammar(grammar: GrammarSpec) -> str:
    fields = msgspec.to_builtins(grammar)
    first = next((value for name, value in fields.items() if name != "type"), "")
    return f"{type(grammar).__name__} {_short(first if isinstance(first, str) else json.dumps(first))}"


def _parts(parts: Iterable[Part]) -> str:
    return " ".join(map(_part, parts)) or '""'


def _part(part: Part) -> str:
    match part:
        case str():
            return _short(json.dumps(part, ensure_ascii=False))
        case Hole(name=name, spec=spec):
            return "{" + name + (f":{spec}" if spec else "") + "}"
        case Ref(branch=branch, name=name):
            return f"<{name} of {branch}>"


def condition_text(condition: Condition) -> str:
    """A condition as one would write it."""
    match condition:
        case Compare(left=left, relation=relation, right=right):
            return f"{_operand(left)} {_RELATIONS[relation]} {_operand(right)}"
        case Matches(text=text, pattern=pattern):
            return f"{_operand(text)} matches /{_short(pattern)}/"
        case Every(of=of):
            return "(" + " and ".join(map(condition_text, of)) + ")"
        case Either(of=of):
            return "(" + " or ".join(map(condition_text, of)) + ")"
        case Negation(of=inner):
            return f"not {condition_text(inner)}"


def _operand(operand: Operand) -> str:
    match operand:
        case str() | Hole() | Ref():
            return _part(operand)
        case Times(branch=branch, name=name):
            return f"times <{name} of {branch}>"
        case Count(of=of):
            return f"count({', '.join(map(condition_text, of))})"
        case _:
            return f"{operand:g}"


def _result(result: Result) -> str:
    match result:
        case ResultConstant(json=text):
            return _short(text)
        case ResultText(parts=parts):
            return _parts(parts)
        case ResultList(items=items):
            return f"[{', '.join(map(_result, items))}]"
        case ResultObject(fields=fields):
            return "{" + ", ".join(f"{name}: {_result(field)}" for name, field in fields) + "}"
        case ResultProbabilities(ref=ref):
            return f"probabilities of {_part(ref)}"
        case ResultArgument(hole=hole):
            return _part(hole)
        case ResultValue(ref=ref, reading=reading):
            return f"{_part(ref)} as {reading}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 20]} ... ({len(text):,} characters)"
