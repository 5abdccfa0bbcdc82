"""Readable listing of a program: a line for each instruction, indented by its branch and block."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...constrain.spec import Choice, GrammarSpec, JsonSchema, Regex
from ...runtime.protocol.condition import (
    Compare,
    Condition,
    Count,
    Either,
    Every,
    Hole,
    Matches,
    Negation,
    Operand,
    Ref,
    Times,
)
from ...runtime.protocol.program import (
    Assign,
    CallTools,
    Cancel,
    Fork,
    Gen,
    Join,
    Offer,
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
from ...runtime.protocol.template import (
    Parameter,
    Result,
    ResultArgument,
    ResultConstant,
    ResultJoined,
    ResultList,
    ResultObject,
    ResultProbabilities,
    ResultShare,
    ResultText,
    ResultValue,
    Template,
)

MAX_TEXT = 72
_MAX_LINE = 110
_MAX_DEPTH = 6
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
    lines += [f"{branch:>5} | {'  ' * depth}{text}" for branch, depth, text in _Lines().of(template.ops, 0)]
    return "\n".join([*lines, f"result {_result(template.result)}"])


def _parameter(parameter: Parameter) -> str:
    default = "" if parameter.default is None else f" = {_cut(parameter.default)}"
    return f"{parameter.name}: {schema_text(json.loads(parameter.schema))}{default}"


class _Lines:
    """Lines with their branches and depths: what is in a message, a block or a branch stands below it."""

    def __init__(self) -> None:
        self._depths: dict[int, int] = {}
        self._open: set[int] = set()

    def of(self, ops: Iterable[Op], depth: int) -> Iterator[tuple[int, int, str]]:
        for op in ops:
            own = self._depths.setdefault(op.branch, 0)
            here = depth + own
            if isinstance(op, RoleEnd):
                self._close(op.branch)
                continue
            if isinstance(op, RoleBegin):
                self._open.add(op.branch)
                self._depths[op.branch] = own + 1
            if isinstance(op, Fork):
                self._depths |= dict.fromkeys(op.children, own + 1)
            yield op.branch, here - (isinstance(op, Join) and op.branch in self._open), _line(op)
            match op:
                case When(then=then, otherwise=otherwise):
                    yield from self.of(then, depth + 1)
                    if otherwise:
                        yield op.branch, here, "otherwise"
                        yield from self.of(otherwise, depth + 1)
                case Repeat(body=body, until=until, at_most=at_most):
                    yield from self.of(body, depth + 1)
                    yield op.branch, here, f"until {condition_text(until)}, {at_most} times at most"

    def _close(self, branch: int) -> None:
        """A message ends; one that was open before a fork does so in each branch."""
        self._open.discard(branch)
        self._depths[branch] = max(0, self._depths[branch] - 1)


def _line(op: Op) -> str:
    match op:
        case Text(parts=parts):
            return _parts(parts)
        case RoleBegin(role=role):
            return role
        case Gen():
            return f"gen {op.name}{_options(op)}"
        case Select(name=name, choices=choices, method=method):
            return f"select {name} of {_cut(', '.join(map(_quoted, choices)))}, {method}"
        case Assign(name=name, parts=parts):
            return f"{name} = {_parts(parts)}"
        case Use(name=name, tool=tool, arguments=arguments):
            return f"use {name} = {tool}({', '.join(f'{key}={_parts(value)}' for key, value in arguments)})"
        case CallTools(name=name, of=of):
            return f"{name} = the calls in {of}"
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
    """Lists what is not the default: sampling parameters, the constraint, the time-out."""
    given = [f"{name}={_cut(json.dumps(value))}" for name, value in msgspec.to_builtins(op.sampling).items()]
    if op.grammar is not None:
        given.append(_grammar(op.grammar))
    if op.offer is not None:
        given.append(_offer(op.offer))
    if op.timeout_s is not None:
        given.append(f"timeout_s={op.timeout_s:g}")
    return f" ({', '.join(given)})" if given else ""


def _offer(offer: Offer) -> str:
    choice = offer.only or offer.choice
    several = "" if offer.parallel else ", one at a time"
    return f"tools {', '.join(offer.tools)}, {choice}{several}"


def _grammar(grammar: GrammarSpec) -> str:
    match grammar:
        case JsonSchema(schema=schema):
            return f"schema {schema_text(json.loads(schema))}"
        case Regex(pattern=pattern):
            return f"regex /{_cut(pattern)}/"
        case Choice(options=choices):
            return f"one of {_cut(', '.join(map(_quoted, choices)))}"
    fields = msgspec.to_builtins(grammar)
    first = next((value for name, value in fields.items() if name != "type"), "")
    return f"{type(grammar).__name__} {_cut(first if isinstance(first, str) else json.dumps(first))}"


def schema_text(schema: Any) -> str:
    """A JSON Schema in a few words, without what narrows its types further."""
    return _cut(_words(schema, schema.get("$defs", {}) if isinstance(schema, dict) else {}, 0))


def _words(schema: Any, definitions: Mapping[str, Any], depth: int) -> str:
    def inner(one: Any) -> str:
        return _words(one, definitions, depth + 1)

    match schema:
        case _ if depth > _MAX_DEPTH:
            return "..."
        case {"$ref": str(reference)}:
            return inner(definitions.get(reference.rpartition("/")[2], {}))
        case {"enum": [*values]}:
            return " | ".join(map(_quoted, values))
        case {"const": value}:
            return _quoted(value)
        case {"anyOf": [*several]} | {"oneOf": [*several]}:
            return " | ".join(map(inner, several))
        case {"properties": {**properties}}:
            return "{" + ", ".join(f"{name}: {inner(one)}" for name, one in properties.items()) + "}"
        case {"prefixItems": [*items]}:
            return f"[{', '.join(map(inner, items))}]"
        case {"type": "array", "items": items}:
            return f"[{inner(items)}, ...]"
        case {"type": [*kinds]}:
            return " | ".join(map(str, kinds))
        case {"type": kind}:
            return str(kind)
        case _:
            return "any"


def _parts(parts: Iterable[Part]) -> str:
    return " ".join(map(_part, parts)) or '""'


def _part(part: Part) -> str:
    match part:
        case str():
            return _quoted(part)
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
            return f"{_operand(text)} matches /{_cut(pattern)}/"
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


def _result(result: Result, margin: str = "") -> str:
    """In one line, or with a line for each item if that would be a long one."""
    match result:
        case ResultConstant(json=text):
            return _cut(text)
        case ResultText(parts=parts):
            return _parts(parts)
        case ResultList(items=items):
            return _several("[]", [("", item) for item in items], margin)
        case ResultObject(fields=fields):
            return _several("{}", [(f"{name}: ", field) for name, field in fields], margin)
        case ResultJoined(items=items):
            return " ".join(_result(item, margin) for item in items)
        case ResultShare(ref=ref, choice=choice):
            return f"probability of {_cut(json.dumps(choice, ensure_ascii=False))} in {_part(ref)}"
        case ResultProbabilities(ref=ref):
            return f"probabilities of {_part(ref)}"
        case ResultArgument(hole=hole):
            return _part(hole)
        case ResultValue(ref=ref, reading=reading, part=part):
            whole = _part(ref) if part is None else f"the {part.which} in {_part(ref)}"
            return f"{whole} as {reading}"


def _several(marks: str, items: Sequence[tuple[str, Result]], margin: str) -> str:
    line = marks[0] + ", ".join(name + _result(item) for name, item in items) + marks[1]
    if len(line) + len(margin) <= _MAX_LINE:
        return line
    deeper = margin + "  "
    lines = [f"{deeper}{name}{_result(item, deeper)}" for name, item in items]
    return "\n".join([marks[0], *lines, margin + marks[1]])


def _quoted(value: Any) -> str:
    """A text in quotes, without its end if it is long."""
    text = value if isinstance(value, str) else ""
    if len(text) <= MAX_TEXT:
        return json.dumps(value, ensure_ascii=False)
    return f"{json.dumps(text[: MAX_TEXT - 20] + '...', ensure_ascii=False)}[{len(text):,} characters]"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 20]} ... [{len(text):,} characters]"
