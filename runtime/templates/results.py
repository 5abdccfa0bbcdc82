"""Reads the result of a template from the events of its run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..protocol.condition import Ref
from ..protocol.errors import EngineError, ErrorInfo
from ..protocol.program import BranchFailed, ProgramEvent, Skipped, Value
from ..protocol.template import (
    Reading,
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
    refs_of,
    walk_result,
)
from ..tokenizer.reasoning import Marks, split_reasoning

MAX_RESULT_CHARS = 1 << 25
"""Most characters of a result, and of the values kept for it. A short template can repeat a long value."""

JSON_WEIGHT = 8
"""Weight of a character of text that is read as JSON, since the values take more room than the text."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(text: str) -> Any:
    """Reads the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, or has a number or a text that cannot be written as JSON again.
    """
    value = json.loads(text, parse_float=_finite, parse_constant=_finite)
    if _SURROGATE.search(text) is not None:
        json.dumps(value, ensure_ascii=False).encode()  # half of a pair is a ValueError
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


_READERS: Mapping[Reading, Callable[[str], Any]] = {
    "text": str,
    "json": read_json,
    "int": int,
    "float": _finite,
    "bool": lambda text: text.strip() == "True",
}


class Results:
    """Collects the values that the result of a run is made of.

    >>> results = Results(template.result)
    >>> for event in client.run(program):
    ...     results.feed(event)
    >>> results.read()
    {'answer': 'Paris'}
    """

    def __init__(self, result: Result) -> None:
        self._result = result
        self._wanted = _refs(result)
        self._values: dict[Ref, list[Value]] = {}
        self._nothing: set[Ref] = set()
        self._errors: dict[int, ErrorInfo] = {}
        self._num_chars = 0
        self._room = MAX_RESULT_CHARS

    @property
    def num_chars(self) -> int:
        """Number of characters of the kept values."""
        return self._num_chars

    def feed(self, event: ProgramEvent) -> None:
        """Takes in an event; only finished values and failed branches matter.

        Raises:
            EngineError: the values are too long to be kept.
        """
        match event:
            case Value(branch=branch, name=name) if (all_turns := self._wanted.get(Ref(branch, name))) is not None:
                self._nothing.discard(Ref(branch, name))
                self._keep(self._values.setdefault(Ref(branch, name), []), event, all_turns=all_turns)
            case Skipped(branch=branch, name=name) if Ref(branch, name) in self._wanted:
                self._nothing.add(Ref(branch, name))
            case BranchFailed(branch=branch, error=error):
                self._errors[branch] = error

    def _keep(self, turns: list[Value], value: Value, *, all_turns: bool) -> None:
        first = value.turn if all_turns else 0  # a branch that restarts counts from 0 again
        self._num_chars += _length(value) - sum(map(_length, turns[first:]))
        if self._num_chars > MAX_RESULT_CHARS:
            raise _too_long()
        turns[first:] = [msgspec.structs.replace(value, logprobs=None, choice_logprobs=None, token_texts={})]

    def read(self) -> Any:
        """Returns the result as a JSON value. A value that was not made because of a condition is None; one of a branch
        that failed is replaced by `{"error": {"code": ..., "message": ...}}`.

        Raises:
            EngineError: a text does not have the required form, which only happens if a limit is too small; or the
                result is too long.
        """
        self._room = MAX_RESULT_CHARS
        return self._read(self._result)

    def _read(self, result: Result) -> Any:
        match result:
            case ResultConstant(json=text):
                return json.loads(self._within(text))
            case ResultList(items=items):
                return [self._read(item) for item in items]
            case ResultObject(fields=fields):
                return {name: self._read(field) for name, field in fields}
            case ResultText(parts=parts):
                texts = (part if isinstance(part, str) else self._text(part) for part in parts)  # type: ignore[arg-type]
                return "".join(map(self._within, texts))
            case ResultJoined(items=items):
                return "".join(self._within(str(self._read(item))) for item in items)
            case ResultShare(ref=ref, choices=choices, choice=choice, format=form):
                values = self._values.get(ref, [])
                shares = values[-1].probabilities if values else None
                if shares is None:
                    return None if form is None else ""
                share = shares[choices.index(choice)]
                return share if form is None else format(share, form)
            case ResultValue():
                return self._value(result)
            case ResultProbabilities(ref=ref, choices=choices):
                values = self._values.get(ref, [])
                shares = values[-1].probabilities if values else None
                return None if shares is None else dict(zip(choices, shares, strict=True))
            case ResultArgument(hole=hole):
                raise EngineError(f"the argument {hole.name!r} was not filled in", code="invalid_program")

    def _within(self, text: str, weight: int = 1) -> str:
        """Counts a text against MAX_RESULT_CHARS, and returns it."""
        self._room -= weight * len(text)
        if self._room < 0:
            raise _too_long()
        return text

    def _text(self, ref: Ref) -> str:
        values = self._values.get(ref)
        return values[-1].text if values else ""

    def _value(self, wanted: ResultValue) -> Any:
        values = self._values.get(wanted.ref, [])
        if wanted.turns:
            return [self._one(wanted, value) for value in values]
        if wanted.assigned and wanted.ref in self._nothing:
            return None
        if values:
            return self._one(wanted, values[-1])
        error = self._errors.get(wanted.ref.branch)
        return None if error is None else {"error": {"code": error.code, "message": error.message}}

    def _one(self, wanted: ResultValue, value: Value) -> Any:
        read, weight = _READERS[wanted.reading], JSON_WEIGHT if wanted.reading == "json" else 1
        try:
            if wanted.samples and value.samples is not None:
                return [read(_part(wanted, self._within(sample, weight))) for sample in value.samples]
            return read(_part(wanted, self._within(value.text, weight)))
        except (ValueError, RecursionError) as error:
            reason = f"{str(error)[:200]}; it ended by {value.finish_reason!r}"
            message = f"{wanted.ref.name!r} is no {wanted.reading}: {reason}"
            raise EngineError(message, code="invalid_output") from error


def _part(wanted: ResultValue, text: str) -> str:
    """Returns the requested part of a text."""
    if wanted.part is None:
        return text
    parts = split_reasoning(text, Marks(wanted.part.begin, wanted.part.end), opened=wanted.part.opened)
    return parts.reasoning if wanted.part.which == "reasoning" else parts.answer


def _refs(result: Result) -> dict[Ref, bool]:
    """Returns the values that a result needs, each with True if it needs all turns."""
    all_turns = {part.ref for part in walk_result(result) if isinstance(part, ResultValue) and part.turns}
    return {ref: ref in all_turns for ref in refs_of(result)}


def _length(value: Value) -> int:
    return len(value.text) + sum(map(len, value.samples or ()))


def _too_long() -> EngineError:
    return EngineError(f"the result has more than {MAX_RESULT_CHARS} characters", code="result_too_long")
