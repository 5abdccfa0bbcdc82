"""Answers that a test has given in advance, as the values of generations and choices."""

from __future__ import annotations

import enum
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from ...constrain.spec import GrammarSpec, JsonSchema
from ...runtime.protocol.errors import EngineError, RequestError
from ...runtime.protocol.program import Gen, Program, Select, Use, Value, walk
from ...runtime.protocol.request import Usage
from ...runtime.tools.registry import ToolCall
from ..types.annotations import as_json
from .messages.machine import Call
from .messages.surplus import Answer
from .messages.transcript import words
from .samples import conforms, fault, make_text

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
    """The answers, by variable, as far as they are not used up."""

    def __init__(self, answers: Answers) -> None:
        self.learn(answers)

    def learn(self, answers: Answers) -> None:
        """These are the answers from now on."""
        self.answers = answers
        given = answers.items() if isinstance(answers, Mapping) else ()
        self._lists: dict[str, deque[object]] = {name: deque(answer) for name, answer in given if _is_list(answer)}

    @property
    def in_order(self) -> bool:
        """It matters which of two branches asks first."""
        return bool(self._lists)

    def stand_ins(self, program: Program) -> dict[str, ToolCall]:
        """For tools that need not be there, since what they would give is answered."""
        uses = [op for op in walk(program.ops) if isinstance(op, Use) and self.has(op.name)]
        return {op.tool: _StandIn(op.tool) for op in uses}

    def has(self, name: str) -> bool:
        """There are answers for a variable of its own."""
        return isinstance(self.answers, Mapping) and not {name, name.partition("#")[0]}.isdisjoint(self.answers)

    def reply(self, call: Call) -> Answer:
        """The value that a call asks for.

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
        """An answer, cut at the first stop string, and that string."""
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
        """Of a list that was meant as one value."""
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
        """The name under which a variable's answers are found."""
        return name if isinstance(self.answers, Mapping) and name in self.answers else name.partition("#")[0]

    def _next(self, call: Call) -> object:
        """The answer to a call, which uses it up; None if one is to be made up."""
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
    """One answer after the other, and not one that is itself a value."""
    return isinstance(answer, Sequence) and not isinstance(answer, str | bytes) and not hasattr(answer, "_fields")


def _written(answer: object, grammar: GrammarSpec | None) -> str | None:
    """The text that a type of this constraint reads as `answer`; None: there is no answer.

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
    """Without an exponent."""
    text = repr(number)
    return f"{number:.15f}".rstrip("0").rstrip(".") if "e" in text else text


def _usage(call: Call, text: str) -> Usage:
    return Usage(prompt_tokens=len(words(call.prompt.text)), completion_tokens=len(words(text)))
