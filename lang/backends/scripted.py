"""Answers that a test has given in advance, as the values of generations and choices; missing ones are made up.

What is made up conforms to its constraint, without a model.
"""

from __future__ import annotations

import enum
import functools
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeGuard

import regex
from jsonschema.exceptions import SchemaError, UnknownType

from ...constrain.errors import GrammarError, InvalidSchemaError, MatcherError
from ...constrain.json_schema.validate import violations
from ...constrain.regex.formats import NAMES as FORMATS
from ...constrain.regex.formats import example
from ...constrain.spec import Choice, GrammarSpec, JsonSchema, Regex, Structural
from ...runtime.protocol.errors import EngineError, RequestError
from ...runtime.protocol.program import Gen, Program, Select, Use, Value, walk
from ...runtime.protocol.request import Usage
from ...runtime.tools.registry import ToolCall
from ..types.annotations import as_json
from .apis.emulate import Judge
from .messages.machine import Call
from .messages.surplus import Answer
from .messages.transcript import words

Answers = Mapping[str, object] | Callable[[str, str], object]


class _StandIn(NamedTuple):
    """A tool that is never called."""

    name: str
    timeout_s: float | None = None
    max_chars: int = 1
    parameters: Mapping[str, Any] | None = None

    def call(self, arguments: dict[str, Any]) -> str:
        raise AssertionError(f"the tool {self.name!r} was to be answered")


class Script:
    """Answers by variable, as far as they are not used up."""

    def __init__(self, answers: Answers) -> None:
        self.learn(answers)

    def learn(self, answers: Answers) -> None:
        """Takes these answers from now on."""
        self.answers = answers
        given = answers.items() if isinstance(answers, Mapping) else ()
        self._lists: dict[str, deque[object]] = {name: deque(answer) for name, answer in given if _is_list(answer)}

    @property
    def in_order(self) -> bool:
        """True if it matters which of two branches asks first."""
        return bool(self._lists)

    def stand_ins(self, program: Program) -> dict[str, ToolCall]:
        """Stand-ins for tools that need not be there, since what they would return is answered."""
        uses = [op for op in walk(program.ops) if isinstance(op, Use) and self.has(op.name)]
        return {op.tool: _StandIn(op.tool) for op in uses}

    def has(self, name: str) -> bool:
        """Returns true if a variable has answers of its own."""
        return isinstance(self.answers, Mapping) and not {name, name.partition("#")[0]}.isdisjoint(self.answers)

    def reply(self, call: Call) -> Answer:
        """Returns the value that a call asks for.

        Raises:
            RequestError: there is none left, or it is not what was asked for.
            EngineError: finding it took longer than the program allows.
        """
        start = time.monotonic()
        match call.op:
            case Gen():
                answer = Answer(self._generate(call, call.op))
            case Select():
                answer = Answer(self._select(call, call.op))
            case Use(branch=branch, name=name):
                text = _written(self._next(call), None)
                answer = Answer(Value(branch=branch, name=name, text="" if text is None else text), num_requests=0)
        own_s = None if isinstance(call.op, Select) else call.op.timeout_s
        limit_s = min((limit for limit in (own_s, call.timeout_s) if limit is not None), default=None)
        if limit_s is not None and time.monotonic() - start >= limit_s:
            raise EngineError(f"not done within {limit_s:g} s", code="generation_timeout")
        return answer

    def _generate(self, call: Call, op: Gen) -> Value:
        samples = [self._text_for(call, op) for _ in range(op.sampling.n)]
        text, matched = samples[0]
        for chunk in words(text):
            call.emit(chunk)
        return Value(
            branch=op.branch,
            name=op.name,
            text=text,
            matched=matched,
            usage=_usage(call, text),
            samples=tuple(text for text, _ in samples) if op.sampling.n > 1 else None,
        )

    def _text_for(self, call: Call, op: Gen) -> tuple[str, str | None]:
        """Returns an answer, cut at the first stop string, and that string."""
        answer = self._next(call)
        text = _written(answer, op.grammar)
        if text is None:
            text = make_text(op.grammar, op.name)
        wrong = fault(text, op.grammar)
        if wrong is not None:
            raise RequestError(
                f"the answer {text!r} to {op.name!r} is not what its constraint allows: {wrong}{self._hint(op)}",
                param="answers",
            )
        found = [(text.index(stop), stop) for stop in op.sampling.stop_strings if stop in text]
        if not found:
            return text, None
        start, stop = min(found)
        return text[: start + len(stop) if op.sampling.include_stop else start], stop

    def _hint(self, op: Gen) -> str:
        """Returns a hint for a list that was meant as one value."""
        name, given = self._key(op.name), self.answers
        if not isinstance(given, Mapping) or name not in self._lists or not isinstance(op.grammar, JsonSchema):
            return ""
        whole = _written(given[name], op.grammar)
        if whole is None or not conforms(whole, op.grammar):
            return ""
        return f" (a list gives one answer after the other: write {{{name!r}: [[...]]}} for an answer that is a list)"

    def _select(self, call: Call, op: Select) -> Value:
        text = _written(self._next(call), None)
        text = op.choices[0] if text is None else text
        if text not in op.choices:
            raise RequestError(f"the answer {text!r} to {op.name!r} is not among its choices", param="answers")
        weights = [3.0 if choice == text else 1.0 for choice in op.choices]
        return Value(
            branch=op.branch,
            name=op.name,
            text=text,
            usage=_usage(call, text),
            probabilities=tuple(weight / sum(weights) for weight in weights),
            scores=tuple(weights),
        )

    def _key(self, name: str) -> str:
        """Returns the name under which a variable's answers are found."""
        return name if isinstance(self.answers, Mapping) and name in self.answers else name.partition("#")[0]

    def _next(self, call: Call) -> object:
        """Returns the answer to a call, and uses it up; None if one is to be made up."""
        name = call.op.name
        if not isinstance(self.answers, Mapping):
            return self.answers(call.prompt.text, name)
        key = self._key(name)
        if key in self._lists:
            if not self._lists[key]:
                raise RequestError(f"the answers to {key!r} are used up", param="answers")
            return self._lists[key].popleft()
        answer = self.answers.get(key)
        return answer(call.prompt.text, name) if callable(answer) else answer


def _is_list(answer: object) -> TypeGuard[Sequence[object]]:
    """Returns true for one answer after the other, false for a sequence that is itself a value."""
    return isinstance(answer, Sequence) and not isinstance(answer, str | bytes) and not hasattr(answer, "_fields")


def _written(answer: object, grammar: GrammarSpec | None) -> str | None:
    """Returns the text that a type of this constraint reads as `answer`; None: there is no answer.

    What is no text is written as JSON where that is asked for, and else as Python writes it. So is a text that is right
    only in quotes.
    """
    if answer is None or isinstance(answer, enum.Enum):
        return None if answer is None else _written(answer.value, grammar)
    is_json = isinstance(grammar, JsonSchema)
    if isinstance(answer, str):
        quoted = json.dumps(answer, ensure_ascii=False)
        return quoted if is_json and not conforms(answer, grammar) and conforms(quoted, grammar) else answer
    if isinstance(answer, float) and not is_json:
        return _plain_number(answer)
    if isinstance(answer, bool | int) and not is_json:
        return str(answer)
    try:
        plain = as_json(answer)
    except (TypeError, ValueError) as error:
        raise RequestError(f"the answer {answer!r} has no text: {error}", param="answers") from error
    return plain if isinstance(plain, str) and not is_json else json.dumps(plain, ensure_ascii=False)


def _plain_number(number: float) -> str:
    """Writes a number without an exponent."""
    text = repr(number)
    return f"{number:.15f}".rstrip("0").rstrip(".") if "e" in text else text


def _usage(call: Call, text: str) -> Usage:
    return Usage(prompt_tokens=len(words(call.prompt.text)), completion_tokens=len(words(text)))


# Texts that conform to a constraint

_MAX_NODES = 2_000
_FULL_DEPTH = 3
"""Depth to which lists hold an item and objects all their properties; below, only what must be there."""

_GUESSES = (
    "0",
    "1",
    "True",
    "true",
    "yes",
    "text",
    '"text"',
    "a",
    "A",
    "00",
    "0000",
    "0.5",
    "2024-01-01",
    "a@b.example",
)
"""Texts that common patterns match, in the order in which they are tried."""

_OF_FORMATS = {
    "date": "2024-01-01",
    "date-time": "2024-01-01T00:00:00Z",
    "decimal": "0",
    "email": "a@b.example",
    "hostname": "b.example",
    "ipv4network": "192.0.2.0/24",
    "ipv6network": "2001:db8::/32",
    "ipvanyaddress": "192.0.2.1",
    "ipvanyinterface": "192.0.2.1",
    "ipvanynetwork": "192.0.2.0/24",
    "json-string": "0",
    "time": "00:00:00Z",
    "uri": "https://b.example/",
    **{f"uuid{version}": f"00000000-0000-{version}000-8000-000000000000" for version in range(1, 9)},
    "uuid": "00000000-0000-4000-8000-000000000000",
}
"""Texts that Python's types read back, of formats of the standard and of those that libraries write into schemas."""

_CHECKED = frozenset(("date", "ipv4", "ipv6", "uuid"))
"""Formats of which it is known without more ado whether a text is of them."""


def make_text(spec: GrammarSpec | None, name: str) -> str:
    """Returns a text for the value `name` that conforms to `spec`; the same one each time.

    Raises:
        RequestError: none could be made up.
    """
    match spec:
        case None:
            return f"({name})"
        case Choice(options=options):
            return options[0]
        case Regex():
            guesses: tuple[str, ...] = _GUESSES
        case JsonSchema(schema=schema):
            guesses = (json.dumps(_Maker(_read(schema)).value(), ensure_ascii=False),)
        case _:
            guesses = ()
    found = next((text for text in guesses if conforms(text, spec)), None)
    if found is None:
        found = _by_grammar(spec, f"({name})" if isinstance(spec, Structural) else "")
    if found is None or not conforms(found, spec):
        raise RequestError(
            f"no answer to {name!r} could be made up that its {type(spec).__name__} allows: give one", param="answers"
        )
    return found


def fault(text: str, spec: GrammarSpec | None) -> str | None:
    """Describes what is wrong with `text` under `spec`, if anything is. Grammars and marked parts are not checked."""
    match spec:
        case Choice(options=options):
            return None if text in options else f"it is none of {', '.join(map(repr, options[:20]))}"
        case Regex(pattern=pattern):
            return None if regex.fullmatch(pattern, text) is not None else f"it does not match {pattern[:200]!r}"
        case JsonSchema(schema=schema):
            try:
                found = violations(schema, text, formats=_CHECKED)
            except (UnknownType, SchemaError) as error:
                raise InvalidSchemaError(str(error).partition("\n")[0]) from None
            return f"{found[0].pointer or 'the value'}: {found[0].message}" if found else None
    return None


def conforms(text: str, spec: GrammarSpec | None) -> bool:
    """Returns true if nothing is wrong with `text`."""
    return fault(text, spec) is None


@functools.lru_cache(maxsize=256)
def _by_grammar(spec: GrammarSpec, wish: str = "") -> str | None:
    """Returns the wish, if decoding under `spec` could write it, or else about the shortest text that it could."""
    with closing(Judge()) as judge:
        try:
            return wish if wish and judge.follows(wish, spec) else judge.shortest(spec)
        except (GrammarError, MatcherError):
            return None


class _Maker:
    """Makes a small value for a schema: right for the common keywords; the caller checks it."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._num_left = _MAX_NODES

    def value(self) -> Any:
        try:
            return self._instance(self._root, 0)
        except RecursionError:  # references that lead round
            return None

    def _instance(self, schema: Any, depth: int) -> Any:
        self._num_left -= 1
        if not isinstance(schema, dict) or self._num_left < 0:
            return None
        if "$ref" in schema:
            beside = {name: value for name, value in schema.items() if name != "$ref"}
            target = _resolve(schema["$ref"], self._root)
            return self._instance({**target, **beside} if isinstance(target, dict) else target, depth)
        for keyword in ("const", "default"):
            if keyword in schema:
                return schema[keyword]
        for keyword in ("enum", "examples"):
            if schema.get(keyword):
                return schema[keyword][0]
        if schema.get("allOf"):
            return self._instance(self._merged(schema, schema["allOf"]), depth)
        for keyword in ("anyOf", "oneOf"):
            if schema.get(keyword):
                option = self._option(schema[keyword], depth)
                return self._instance(self._merged({**schema, keyword: None}, [option]), depth)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = kind[0]
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, depth + 1)
        if kind == "array":
            return self._array(schema, depth + 1)
        if kind in ("string", "integer", "number"):
            return _scalar({**schema, "type": kind})
        return kind == "boolean" or None

    def _option(self, options: list[Any], depth: int) -> Any:
        """Returns the first one; deep down the one that leads least deep."""
        if depth <= _FULL_DEPTH:
            return options[0]
        return min(options, key=lambda option: json.dumps(self._target(option)).count('"$ref"'))

    def _target(self, schema: Any) -> Any:
        return _resolve(schema["$ref"], self._root) if isinstance(schema, dict) and "$ref" in schema else schema

    def _merged(self, schema: Mapping[str, Any], parts: list[Any]) -> dict[str, Any]:
        """Returns one schema for `schema` and all of `parts`, as far as keywords of one name need not be combined."""
        whole = {name: value for name, value in schema.items() if name != "allOf" and value is not None}
        for part in parts:
            found = self._target(part)
            for name, value in found.items() if isinstance(found, dict) else ():
                both = isinstance(value, dict) and isinstance(whole.get(name), dict)
                if name == "required":
                    whole[name] = [*whole.get(name, ()), *value]
                else:
                    whole[name] = {**whole[name], **value} if both else value
        return whole

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        names = [name for name in properties if depth <= _FULL_DEPTH or name in required]
        names += [name for name in required if name not in properties]
        return {name: self._instance(properties.get(name, {}), depth) for name in names}

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems", ())
        items = schema.get("items", {})
        count = max(len(first), schema.get("minItems", 0), 1 if depth <= _FULL_DEPTH and items is not False else 0)
        count = min(count, schema.get("maxItems", count), _MAX_NODES)
        return [self._instance(first[index] if index < len(first) else items, depth) for index in range(count)]


def _scalar(schema: Mapping[str, Any]) -> Any:
    """Returns a text or a number that the schema itself allows, if one is found."""
    own = JsonSchema(json.dumps({name: value for name, value in schema.items() if name != "$defs"}))
    values = list(_texts(schema) if schema["type"] == "string" else _numbers(schema))
    found = next((value for value in values if conforms(json.dumps(value), own)), None)
    if found is not None:
        return found
    shortest = _by_grammar(own)
    return values[0] if shortest is None else json.loads(shortest)


def _texts(schema: Mapping[str, Any]) -> Iterator[str]:
    name = schema.get("format")
    if name in _OF_FORMATS:
        yield _OF_FORMATS[name]
    if name in FORMATS:
        yield example(name)
    yield "text".ljust(schema.get("minLength", 0), "t")[: schema.get("maxLength")]
    if "pattern" in schema:
        yield from _GUESSES


def _numbers(schema: Mapping[str, Any]) -> Iterator[int | float]:
    step = schema.get("multipleOf", 1)
    bounds = [schema[name] for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if name in schema]
    yield 0
    for bound in bounds:
        nearest = math.ceil(bound / step) * step
        yield from (bound, nearest, nearest + step, nearest - step, bound + step / 2)


def _read(schema: str) -> Any:
    try:
        return json.loads(schema)
    except ValueError as error:
        raise InvalidSchemaError(f"the schema is not JSON: {error}") from None


def _resolve(reference: str, root: Any) -> Any:
    node = root
    for step in reference.removeprefix("#").split("/")[1:]:
        node = node.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(node, dict) else {}
    return node
