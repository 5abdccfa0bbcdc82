"""Backend with scripted answers for unit tests of programs: no model, no server."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import json
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import regex
from jsonschema.exceptions import SchemaError, UnknownType

from ...constrain.errors import GrammarError, InvalidSchemaError, MatcherError
from ...constrain.json_schema.validate import violations
from ...constrain.regex.formats import NAMES as FORMATS
from ...constrain.regex.formats import example
from ...constrain.spec import Choice, GrammarSpec, JsonSchema, Regex, Structural
from ...runtime.client.streams import aiterate, iterate
from ...runtime.programs.executor import Executor
from ...runtime.programs.state import Branch
from ...runtime.protocol.errors import BoughError, EngineError, RequestError
from ...runtime.protocol.program import Gen, Offer, Program, ProgramEvent, Select, Use, Value, walk
from ...runtime.protocol.request import Usage
from ...runtime.tools.calls import WrittenCall, schema_of
from ...runtime.tools.forms import HERMES
from ...runtime.tools.registry import Ticket
from ...runtime.tools.registry import ToolCall as Callee
from ..backend import TEXT_ONLY
from ..diagnostics.errors import BackendError
from ..tools.offered import ToolCall
from ..types.annotations import as_json
from .apis.emulate import Judge
from .cassette_file import still
from .messages.machine import MAX_STATES, MessageMachine, ModelCall
from .messages.surplus import Answer
from .messages.tools import NO_TOOLS, ToolRuns, late, limit_of
from .messages.transcript import words


class MockBackend:
    """Executes programs as an engine does, but takes each generated text from `answers`.

    answers    by variable name: an answer; a list of answers, used up in order; or a function of (the text before it,
               name). A function in place of the dict answers all generations. What has no answer, or None, gets one
               made up that its constraint allows: "(name)" if there is none, the first choice of a select. A tool
               without an answer is called
    requests   the programs that were run, one for each request that a real backend would have got
    dropped    the ids that were dropped

    An answer is a text, or the value itself (a number, an Enum's member, an object, a dict): it is written so that the
    type that is asked for reads it back. An answer that is a list stands in a list.

    A name that is generated again in the same branch is sent as "name#2"; its answers are those of "name". Branches
    take turns, each as far as it gets, so that lists of answers are always used up in the same order: branches that
    wait for tools then go on in the order in which those were called.

    >>> backend = MockBackend({"city": ["Paris", "Tokyo"]})
    >>> capital.run("France", backend=backend)["city"]
    'Paris'
    >>> len(backend.requests)
    1
    """

    modalities = TEXT_ONLY

    def __init__(self, answers: Answers | None = None) -> None:
        self._runs = _Runs(Script(answers if answers is not None else {}))
        self._end = weakref.finalize(self, self._runs.close)  # of those that nobody closes
        self.requests: list[Program] = []
        self.dropped: list[str] = []

    @property
    def answers(self) -> Answers:
        """Answers by variable, or the function that makes them; can be set anew."""
        return self._runs.script.answers

    @answers.setter
    def answers(self, answers: Answers) -> None:
        with self._runs.lock:
            self._runs.script.learn(answers)

    def run(self, program: Program, tools: Mapping[str, Callee] = NO_TOOLS) -> Iterator[ProgramEvent]:
        self.requests.append(program)
        yield from iterate(partial(self._runs.start, program, tools), partial(self._runs.drop, program.id))

    async def arun(self, program: Program, tools: Mapping[str, Callee] = NO_TOOLS) -> AsyncIterator[ProgramEvent]:
        self.requests.append(program)
        events = aiterate(partial(self._runs.start, program, tools), partial(self._runs.drop, program.id))
        try:
            async for event in events:
                yield event
                await asyncio.sleep(0)  # as others would, so that tasks take turns
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator

    def drop(self, program_id: str) -> None:
        self.dropped.append(program_id)
        self._runs.drop(program_id)

    def flush_cache(self) -> bool:
        return True

    def close(self) -> None:
        self._end()


class _Machine(MessageMachine):
    """Counts words as tokens."""

    def num_tokens(self, branch: Branch) -> int:
        return len(words(branch.content.text))


@dataclass(eq=False, slots=True)
class _Flight:
    """A tool that runs, and what has come of it while those before it are waited for."""

    ticket: Ticket | None = None
    timer: threading.Timer | None = None
    result: Answer | BoughError | None = None

    def stop(self, tools: ToolRuns) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.ticket is not None:
            tools.abandon(self.ticket)


class _Runs:
    """The programs. Generations are answered at once; tools run beside them, and bring their programs on when they
    return. `lock` guards all: one thread at a time does what can be done."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.lock = threading.RLock()  # an answer may be a function that runs a program
        self._programs = Executor(_Machine(self), time.monotonic, max_states=MAX_STATES)
        self._tools = ToolRuns()
        self._flights: dict[ModelCall, _Flight] = {}

    def start(self, program: Program, tools: Mapping[str, Callee], put: Callable[[ProgramEvent], None]) -> None:
        with self.lock:
            known = {**self.script.stand_ins(program), **tools}
            self._programs.run(program, lambda event: put(still(event)), known)

    def drop(self, program_id: str) -> None:
        with self.lock:
            self._programs.drop(program_id)

    def close(self) -> None:
        with self.lock:
            self._programs.drop_all()
        with contextlib.suppress(RuntimeError):  # a collected backend may be closed on a tool's own thread
            self._tools.close()

    # For the machine

    def begin(self, call: ModelCall) -> None:
        try:
            if isinstance(call.op, Use) and not self.script.has(call.op.name):
                self._begin_tool(call)
                return
            result: Answer | BoughError = self.script.reply(call)
        except BoughError as error:
            result = error
        except GrammarError as error:
            result = RequestError(str(error), code=error.code)
        except Exception as error:  # noqa: BLE001  of a function that answers, on whatever thread
            name = call.op.name
            result = BackendError(f"there is no answer to {name!r}: {error!r}", code="answer_failed", param="answers")
            result.__cause__ = error
        call.finish(result)

    def cancel(self, call: ModelCall) -> None:
        flight = self._flights.pop(call, None)
        if flight is not None:
            flight.stop(self._tools)

    def _begin_tool(self, call: ModelCall) -> None:
        flight = _Flight(self._tools.start(call, partial(self._returned, call)))
        limit_s = limit_of(call)
        flight.timer = threading.Timer(min(limit_s, threading.TIMEOUT_MAX), self._returned, (call, late(call, limit_s)))
        flight.timer.name, flight.timer.daemon = "bough-mock-limit", True
        flight.timer.start()
        self._flights[call] = flight

    def _returned(self, call: ModelCall, result: Answer | BoughError) -> None:
        """A tool has come to its end, or to its limit."""
        with self.lock:
            flight = self._flights.get(call)
            if flight is None or flight.result is not None:
                return
            flight.result = result
            flight.stop(self._tools)
            while (ended := self._next_ended(call.run.program.id)) is not None:
                found = self._flights.pop(ended).result
                assert found is not None
                ended.finish(found)

    def _next_ended(self, program_id: str) -> ModelCall | None:
        """The tool of a program to go on with: where the order matters, the one that was called first."""
        line = [call for call in self._flights if call.run.program.id == program_id]
        ended = [call for call in line if self._flights[call].result is not None]
        if self.script.in_order and line[:1] != ended[:1]:
            return None
        return ended[0] if ended else None


# -- Scripted answers -------------------------------------------------------------------------------------------------


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

    def stand_ins(self, program: Program) -> dict[str, Callee]:
        """Stand-ins for tools that need not be there, since what they would return is answered."""
        uses = [op for op in walk(program.ops) if isinstance(op, Use) and self.has(op.name)]
        return {op.tool: _StandIn(op.tool) for op in uses}

    def has(self, name: str) -> bool:
        """Returns true if a variable has answers of its own."""
        return isinstance(self.answers, Mapping) and not {name, name.partition("#")[0]}.isdisjoint(self.answers)

    def reply(self, call: ModelCall) -> Answer:
        """Returns the value that a call asks for.

        Raises:
            RequestError: there is none left, or it is not what was asked for.
            EngineError: finding it took longer than the program allows.
        """
        start = time.monotonic()
        match call.op:
            case Gen(offer=Offer() as offer):
                answer = self._turn(call, call.op, offer)
            case Gen():
                answer = Answer(self._value(call, call.op, (self._next(call) for _ in range(call.op.sampling.n))))
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

    def _turn(self, call: ModelCall, op: Gen, offer: Offer) -> Answer:
        """Returns an answer, or calls. Where a call is required and none was given, one is made up."""
        given = self._next(call)
        if given is None and offer.choice == "required":
            name = offer.only or offer.tools[0]
            schema = JsonSchema(json.dumps(schema_of(call.run.tools[name])))
            given = ToolCall(name, json.loads(make_text(schema, name)))
        calls = _calls(given)
        if not calls:
            return Answer(self._value(call, op, (given,)))
        if offer.choice == "none" or any(written.name not in offer.tools for written in calls):
            allowed = "none" if offer.choice == "none" else ", ".join(map(repr, offer.tools))
            raise RequestError(f"{given!r} is no answer to {op.name!r}: it may call {allowed}", param="answers")
        text = "".join(HERMES.write(*written) for written in calls)
        call.emit(text)
        value = Value(branch=op.branch, name=op.name, text=text, usage=_usage(call, text))
        return Answer(value, calls=calls)

    def _value(self, call: ModelCall, op: Gen, answers: Iterable[object]) -> Value:
        """Returns answers as the samples of a generation."""
        samples = [self._cut(answer, op) for answer in answers]
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

    def _cut(self, answer: object, op: Gen) -> tuple[str, str | None]:
        """Returns the text of an answer, cut at the first stop string, and that string."""
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

    def _select(self, call: ModelCall, op: Select) -> Value:
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

    def _next(self, call: ModelCall) -> object:
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


def _calls(answer: object) -> tuple[WrittenCall, ...]:
    """Returns the calls that an answer is: one `ToolCall`, or several."""
    several = answer if isinstance(answer, list | tuple) else (answer,)
    if not several or not all(isinstance(each, ToolCall) for each in several):
        return ()
    calls = [each for each in several if isinstance(each, ToolCall)]
    return tuple(WrittenCall(each.name, _plain(each.arguments)) for each in calls)


def _plain(arguments: Mapping[str, Any] | str) -> dict[str, Any] | str:
    return arguments if isinstance(arguments, str) else {name: as_json(value) for name, value in arguments.items()}


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


def _usage(call: ModelCall, text: str) -> Usage:
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
